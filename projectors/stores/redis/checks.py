"""Checks that Redis is fit to hold views: it must not forget anything by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from redis import exceptions

from projectors.stores.redis.unanswered import server_of, why_silent
from viewtail.changes.findings import Finding, expect, fail, ok, warn

if TYPE_CHECKING:
    from redis import Redis

_WHERE = "redis"


def checks(connect: Callable[[], Redis]) -> Iterator[Finding]:
    """Check version, role, memory policy, evictions and persistence. Raises none of redis-py's errors."""
    with closing(connect()) as client:
        try:
            info: dict[str, Any] = client.info()
        except (exceptions.RedisError, OSError) as error:
            yield _unreachable(client, error)
            return
    version = str(info.get("redis_version", "0"))
    major = version.split(".")[0]
    is_new = major.isdigit() and int(major) >= 6
    yield expect(is_new, _WHERE, "version", version, "its scripts lack what the guard needs", "use Redis 6 or newer")
    role, mend = info.get("role", "master"), "set VIEWTAIL_REDIS__URL to the primary"
    yield expect(role == "master", _WHERE, "role", role, "a replica takes no writes", mend)
    yield from suitability(info)
    if str(info.get("aof_enabled")) == "1":
        yield ok(_WHERE, "persistence", "appendonly yes")
    else:
        why = "after a restart without it, views are backfilled again or changes are read again"
        mend = "CONFIG SET appendonly yes (and in redis.conf)"
        yield warn(_WHERE, "persistence", "appendonly no", why, mend)


def suitability(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings from INFO; the sink refuses to write while one of them fails."""
    if str(info.get("cluster_enabled")) == "1":
        why = "viewtail does not write to a cluster yet"
        yield fail(_WHERE, "one primary", "a Redis Cluster", why, "set VIEWTAIL_REDIS__URL to a single primary")
    policy, has_limit = str(info.get("maxmemory_policy", "noeviction")), bool(int(info.get("maxmemory", 0)))
    why = "Redis would drop keys and their versions when its memory is full"
    mend = "CONFIG SET maxmemory-policy noeviction (and in redis.conf)"
    if policy == "noeviction" or has_limit:
        yield expect(policy == "noeviction", _WHERE, "maxmemory-policy", policy, why, mend)
    else:
        yield warn(_WHERE, "maxmemory-policy", f"{policy}, without maxmemory", why, mend)
    evicted = int(info.get("evicted_keys", 0) or 0)
    why, mend = "keys of views, or versions, may be gone", "CONFIG RESETSTAT, then replay each view in Redis"
    yield expect(not evicted, _WHERE, "evicted_keys", evicted, why, mend)


def _unreachable(client: Redis, error: exceptions.RedisError | OSError) -> Finding:
    place = server_of(client)
    if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError):
        why = "the user or the password is not accepted, or may not do INFO"
        mend = "correct VIEWTAIL_REDIS__URL, VIEWTAIL_REDIS__PASSWORD"
    elif isinstance(error, exceptions.ResponseError):  # it answered; its message holds no values
        mend = "VIEWTAIL_REDIS__URL: its last part is the number of the database"
        return fail(_WHERE, "reachable", f"{place}: {error}", "Redis refuses the connection", mend)
    else:
        why, mend = "nothing can be written", why_silent(client, error)
    return fail(_WHERE, "reachable", f"{place}: {type(error).__name__}: {error}", why, mend)
