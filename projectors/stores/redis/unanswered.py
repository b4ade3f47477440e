"""Converts redis-py's errors to viewtail's: where Redis is, why it does not answer, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis import exceptions

from viewtail.changes.errors import StoreError, StoreUnavailableError
from viewtail.servers.certificates import why_ended, why_refused

if TYPE_CHECKING:
    from redis import Redis

UNREACHABLE = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.InvalidResponse, OSError)
_SETTING = "VIEWTAIL_REDIS__URL"
_LATER = ("BUSY ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ")  # replies of a server that will read again soon
_DENIED = (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError)
# redis-py cuts the word off the text for those that it has a class for; what a script may not do has words of its own.
_SAYS_DENIED = re.compile(r"\b(NOAUTH|WRONGPASS|NOPERM)\b|ACL failure in script|The user executing the script")
CHECK_RIGHTS = (
    "Check user, password and permissions (ACL) of viewtail in Redis: docs/deployments.md, Redis, has the ACL SETUSER"
)


def is_denied(error: Exception) -> bool:
    """Return whether the user may not do it, or log in."""
    return isinstance(error, _DENIED) or _SAYS_DENIED.search(str(error)) is not None


def server_of(client: Redis) -> str:
    """'Redis at HOST:PORT'."""
    given: dict[str, Any] = client.connection_pool.connection_kwargs
    return f"Redis at {given.get('path') or '{}:{}'.format(given.get('host'), given.get('port'))}"


def why_silent(client: Redis, error: Exception) -> str:
    """The message of redis-py about a connection that failed, and what to do: a sentence."""
    said, given = str(error).rstrip("."), client.connection_pool.connection_kwargs
    certificate = Path(given["ssl_certfile"]) if given.get("ssl_certfile") else None
    if mend := why_refused(said, certificate) or why_ended(said, certificate):
        return f"{said}: {mend}"
    if isinstance(error, exceptions.AuthenticationError):
        return "check user, password and permissions (ACL) of viewtail in Redis"
    if isinstance(error, exceptions.InvalidResponse):
        return f"what listens there does not speak Redis's protocol; check {_SETTING}"
    if isinstance(error, exceptions.TimeoutError) and "connecting" not in said:
        within_s = given.get("socket_timeout")
        return f"nothing came within {within_s:g} s: it hangs, or another program listens there; check {_SETTING}"
    if "closed by server" in said or "reset by peer" in said:
        return f"{said}: it is stopping, it wants TLS (rediss://), or it is no Redis; check {_SETTING}"
    return f"{said}: is it up, and is {_SETTING} right?"


def no_answer(client: Redis, error: Exception) -> StoreUnavailableError:
    """The error for a question that got no answer."""
    why = why_silent(client, error)
    return StoreUnavailableError(f"{server_of(client)} does not answer ({type(error).__name__}): {why}")


def refuses(view: str, error: Exception, what: str = "read") -> StoreError:
    """The error for a view that Redis does not let viewtail read."""
    return StoreError(
        f"view {view}: Redis refuses to {what} it: {type(error).__name__}. Check user, password and permissions (ACL) "
        "of viewtail in Redis"
    )


@contextmanager
def reading(client: Redis, view: str, what: str = "read") -> Iterator[None]:
    """Convert the errors that a reader of the view meets."""
    try:
        yield
    except UNREACHABLE as error:
        raise no_answer(client, error) from None
    except exceptions.RedisError as error:
        if str(error).startswith(_LATER):
            raise no_answer(client, error) from None
        raise refuses(view, error, what) from None


@contextmanager
def asking(client: Redis, doing: str) -> Iterator[None]:
    """Convert the errors of something that a person's command does once."""
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        failed = f"{server_of(client)}: {doing} failed: {str(error).rstrip('.')} ({type(error).__name__})"
        if is_denied(error):
            raise StoreError(f"{failed}. {CHECK_RIGHTS}") from None
        if isinstance(error, UNREACHABLE):
            raise no_answer(client, error) from None
        raise StoreUnavailableError(f"{failed}. Run the command again when Redis answers") from None
