"""Tells how long the server still keeps the binlogs that pipelines need, by its limits of age and of size.

A binlog is removed as a whole, the oldest first and never the one that is written: by age when it was ended for longer
than the limit, by size when it and all newer ones take more than the limit. Both servers look at that when they begin
another binlog, so what is told here is the least: a server that writes little keeps them for longer, and so does one
that a reader is connected to. MySQL has no limit of size; MariaDB and Percona Server have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingest import Margin
from ingest.binlog.continuity import binlog_sizes
from ingest.binlog.coordinates import file_number
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import Connection, value_of

BY_AGE = "binlog_expire_logs_seconds"
_OFF = "binlog_expire_logs_auto_purge"  # MySQL: OFF takes the limit of age away
_BY_SIZE = ("max_binlog_total_size", "binlog_space_limit")  # of MariaDB, of Percona Server

BegunS = Callable[[str], float]  # when a binlog was begun, seconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server keeps, by its settings; None: it has no such limit."""

    age_s: float | None
    size: tuple[str, int] | None  # the setting's name, bytes


def limits_of(connection: Connection) -> Limits:
    """Ask the server. A setting that it does not know is one that it does not have."""
    names = ", ".join(f"'{name}'" for name in (BY_AGE, _OFF, *_BY_SIZE))
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({names})")
        found = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
    age_s = 0.0 if found.get(_OFF, "ON").upper() in ("OFF", "0") else float(found.get(BY_AGE) or 0)
    sizes = ((name, int(found.get(name) or 0)) for name in _BY_SIZE)
    return Limits(age_s=age_s or None, size=next((each for each in sizes if each[1]), None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Binlogs:
    """The binlogs of a server at one moment, and its limits."""

    identity: str
    limits: Limits
    sizes: Mapping[str, int]  # bytes, from the oldest binlog on
    now_s: float  # by the server's clock, seconds since 1970

    @classmethod
    def of(cls, connection: Connection) -> Binlogs:
        """Ask the server behind a connection."""
        return cls(
            identity=value_of(connection, facts_of(connection).identity),
            limits=limits_of(connection),
            sizes=binlog_sizes(connection),
            now_s=float(value_of(connection, "SELECT UNIX_TIMESTAMP()")),
        )

    def margin(self, file: str, begun_s: BegunS) -> Margin | None:
        """Return the margin of who needs a binlog: by the limit that is reached first; None where there is none.

        A binlog that is not there any more has no time left.
        """
        return min(self._each(file, begun_s), key=lambda margin: (not margin.is_low, margin.left_s), default=None)

    def _each(self, file: str, begun_s: BegunS) -> Iterator[Margin]:
        names, limits = list(self.sizes), self.limits
        since = names[names.index(file) :] if file in self.sizes else []
        if names and not since and file_number(file) > file_number(names[-1]):
            since = names[-1:]  # it was begun since
        if limits.age_s is not None:
            left_s = _left_by_age(limits.age_s, since, begun_s, self.now_s)
            yield Margin(left_s=left_s, keeps_s=limits.age_s, limit=BY_AGE)
        if limits.size is not None and names:
            name, most = limits.size
            newest = names[-2:]  # the last whole one and the one that is written: how fast they grow now
            took_s = max(1.0, self.now_s - begun_s(newest[0]))
            keeps_s = most * took_s / max(1, sum(self.sizes[each] for each in newest))
            left_s = keeps_s * _left_of_size(most, since, self.sizes)
            yield Margin(left_s=left_s, keeps_s=keeps_s, limit=name)


def _left_by_age(age_s: float, since: Sequence[str], begun_s: BegunS, now_s: float) -> float:
    """It was ended when the next one was begun. The one that is written has all of the time before it."""
    if not since:
        return 0.0
    return age_s if len(since) == 1 else min(age_s, max(0.0, begun_s(since[1]) + age_s - now_s))


def _left_of_size(most: int, since: Sequence[str], sizes: Mapping[str, int]) -> float:
    """What is left of the limit, from 0 to 1."""
    if not since:
        return 0.0
    return 1.0 if len(since) == 1 else max(0.0, 1 - sum(sizes[each] for each in since) / most)
