"""What Redis must be like to hold views: it may forget nothing by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from redis import exceptions

from changes.findings import Finding, fail, ok, warn

if TYPE_CHECKING:
    from redis import Redis

MIN_VERSION = (6, 0)
_WHERE = "redis"


def checks(connect: Callable[[], Redis]) -> Iterator[Finding]:
    """Version, one primary, memory policy, evictions, persistence. Raises nothing of redis-py's."""
    try:
        with closing(connect()) as client:
            info: dict[str, Any] = client.info()
    except exceptions.RedisError as error:
        yield _unreachable(error)
        return
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= MIN_VERSION:
        yield ok(_WHERE, "version", version)
    else:
        why = "its scripts lack what the guard needs"
        yield fail(_WHERE, "version", version, why, "use Redis 6 or newer")
    role = info.get("role", "master")
    if role == "master":
        yield ok(_WHERE, "role", role)
    else:
        yield fail(_WHERE, "role", role, "a replica takes no writes", "set VIEWTAIL_REDIS__URL to the primary")
    yield from suitability(info)
    if str(info.get("aof_enabled")) == "1":
        yield ok(_WHERE, "persistence", "appendonly yes")
    else:
        why = "after a restart without it, views are backfilled again or changes are read again"
        mend = "CONFIG SET appendonly yes (and in redis.conf)"
        yield warn(_WHERE, "persistence", "appendonly no", why, mend)


def suitability(info: Mapping[str, Any]) -> Iterator[Finding]:
    """What INFO says of a server on which the sink must not write: a failed one stays so until somebody mends it."""
    if str(info.get("cluster_enabled")) == "1":
        why = "viewtail does not write to a cluster yet"
        yield fail(_WHERE, "one primary", "a Redis Cluster", why, "set VIEWTAIL_REDIS__URL to a single primary")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    limit = int(info.get("maxmemory", 0) or 0)
    if policy == "noeviction":
        yield ok(_WHERE, "maxmemory-policy", policy)
    else:
        why = "Redis would drop keys and their versions when its memory is full"
        mend = "CONFIG SET maxmemory-policy noeviction (and in redis.conf)"
        found = fail if limit else warn
        yield found(_WHERE, "maxmemory-policy", policy + ("" if limit else ", without maxmemory"), why, mend)
    evicted = int(info.get("evicted_keys", 0) or 0)
    if evicted:
        why, mend = "keys of views, or versions, may be gone", "CONFIG RESETSTAT, then: viewtail replay --all"
        yield fail(_WHERE, "evicted_keys", evicted, why, mend)
    else:
        yield ok(_WHERE, "evicted_keys", 0)


def _unreachable(error: exceptions.RedisError) -> Finding:
    if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError):
        why = "the user or the password is not accepted, or may not do INFO"
        mend = "correct VIEWTAIL_REDIS__URL, VIEWTAIL_REDIS__PASSWORD"
        return fail(_WHERE, "reachable", type(error).__name__, why, mend)
    if isinstance(error, exceptions.ResponseError):  # it answers; what it says holds no values
        mend = "VIEWTAIL_REDIS__URL: its last part is the number of the database"
        return fail(_WHERE, "reachable", str(error), "Redis refuses the connection", mend)
    why = "nothing can be written"
    return fail(_WHERE, "reachable", type(error).__name__, why, "start Redis, or set VIEWTAIL_REDIS__URL")
