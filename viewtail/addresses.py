"""Server addresses as users write them: URLs, taken apart.

No message repeats what was given: it may hold a password.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

DEFAULT_PORTS = {"mysql": 3306, "redis": 6379, "elasticsearch": 9200}

_FORMS = {
    "mysql": "mysql://USER:PASSWORD@HOST:PORT[/DATABASE]",
    "redis": "redis://[USER:PASSWORD@]HOST:PORT[/DB], rediss://... with TLS, or unix:///PATH",
    "elasticsearch": "http://[USER:PASSWORD@]HOST:PORT, or https://...",
}
_SCHEMES = {
    "mysql": ("mysql",),
    "redis": ("redis", "rediss", "unix"),
    "elasticsearch": ("http", "https"),
}
_PARAMETERS = {"mysql": ("socket",), "redis": ("db",), "elasticsearch": ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The parts of an address, percent-decoded."""

    host: str
    port: int | None
    user: str | None
    password: str | None = field(repr=False)
    path: str | None  # MySQL: the database. Redis: the number of the database. Elasticsearch: a path prefix
    socket: str | None  # of a unix socket
    is_tls: bool


def parse(text: str, store: str) -> Parsed:
    """Take the address of 'mysql', 'redis' or 'elasticsearch' apart; raises ValueError with what is allowed."""
    parts = _split(text, store)
    parameters = _parameters(parts, store)
    is_socket = parts.scheme == "unix"
    if not parts.hostname and not is_socket and "socket" not in parameters:
        raise _wrong(store, "the host is missing")
    path = unquote(parts.path) if is_socket else unquote(parts.path).strip("/")
    return Parsed(
        host=parts.hostname or "localhost",
        port=_port(parts, store),
        user=unquote(parts.username) if parts.username else None,
        password=None if parts.password is None else unquote(parts.password),
        path=parameters.get("db", "0") if is_socket else _path(path, store),
        socket=path if is_socket else parameters.get("socket"),
        is_tls=parts.scheme in ("rediss", "https"),
    )


def _split(text: str, store: str) -> SplitResult:
    try:
        parts = urlsplit(text.strip())
    except ValueError:  # its text repeats the address
        raise _wrong(store, "it cannot be taken apart") from None
    if parts.scheme not in _SCHEMES[store]:
        raise _wrong(store, f"it begins with {' or '.join(scheme + '://' for scheme in _SCHEMES[store])}")
    if parts.fragment or "#" in text:
        raise _wrong(store, "a # in a password is written %23")
    if "://" not in text:
        raise _wrong(store, "the // after the scheme is missing")
    return parts


def _port(parts: SplitResult, store: str) -> int | None:
    try:
        port = parts.port
    except ValueError:  # its text repeats what stands there, perhaps half a password
        raise _wrong(
            store, "the port is a number from 1 to 65535; and / ? # @ : in a password are percent-encoded"
        ) from None
    if port == 0:
        raise _wrong(store, "the port is a number from 1 to 65535")
    return port


def _parameters(parts: SplitResult, store: str) -> dict[str, str]:
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(parameters) - set(_PARAMETERS[store]))
    if unknown or (parts.query and not parameters):
        allowed = ", ".join(f"?{name}=" for name in _PARAMETERS[store]) or "none"
        raise _wrong(
            store,
            f"it has a parameter that is not known (known: {allowed}); a ? in a password is written %3F",
        )
    return parameters


def _path(path: str, store: str) -> str | None:
    if not path:
        return None
    if store == "mysql" and ("/" in path or len(path) > 64):
        raise _wrong(store, "after the / stands the name of one database, at most 64 characters")
    if store == "redis" and not (path.isascii() and path.isdigit()):
        raise _wrong(store, "after the / stands the number of the database, e.g. /0")
    return f"/{path}" if store == "elasticsearch" else path


def _wrong(store: str, why: str) -> ValueError:
    return ValueError(f"is not an address of the form {_FORMS[store]}: {why}")
