"""Finds the transactions that may still bring rows with lower ids: they hold the table's metadata lock.

A row's id is assigned before its transaction ends, so a lower id may appear after a higher one. A session that has got
an id of a table holds a metadata lock on it from before that until after its COMMIT is visible. So once the holders of
a moment have released the lock, all ids that were assigned by then are there, or never will be.

Measured (tests/integration/test_poll_source.py): MySQL lists the locks of prepared XA transactions too, even if their
session is gone or the server was restarted. MariaDB does not: there every such transaction counts as a holder.

A holder is a session. MySQL also shows which of its transactions holds the lock, so that a session that begins the next
one at once is not taken for the same holder. If the server does not show that, such a session counts as ended once it
is seen without a lock."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import pymysql

from ingest.canonical.rows import source_error, source_errors
from viewtail.changes.errors import SourceError
from viewtail.servers.facts import MARIADB, ServerFacts
from viewtail.servers.sessions import TEMPORARY_NUMBERS, Connection, number_of

# These locks are for reading, which brings no rows. Every other lock counts, known or not.
_READS = "('SHARED', 'SHARED_HIGH_PRIO', 'SHARED_READ', 'SHARED_READ_ONLY')"
# A session's events are numbered, its transactions as well as its lock requests. A lock with a lower number than the
# transaction is older: it belongs to a prepared transaction, which has another lock than while it was written.
_MYSQL = (
    "SELECT l.OWNER_THREAD_ID, IF(t.XID_FORMAT_ID IS NULL AND l.OWNER_EVENT_ID >= t.EVENT_ID, t.EVENT_ID, NULL) "
    "FROM performance_schema.metadata_locks l "
    "LEFT JOIN performance_schema.events_transactions_current t ON t.THREAD_ID = l.OWNER_THREAD_ID "
    "WHERE l.OBJECT_TYPE = 'TABLE' AND l.OBJECT_SCHEMA = %s AND l.OBJECT_NAME = %s "
    f"AND l.LOCK_STATUS = 'GRANTED' AND l.LOCK_TYPE NOT IN {_READS}"
)
_MYSQL_LOST = (
    "SHOW GLOBAL STATUS WHERE Variable_name IN "
    "('Performance_schema_metadata_lock_lost', 'Performance_schema_thread_instances_lost')"
)
_MYSQL_IS_ON = (
    "SELECT COUNT(*) FROM performance_schema.setup_instruments i JOIN performance_schema.setup_consumers c "
    "WHERE i.NAME = 'wait/lock/metadata/sql/mdl' AND i.ENABLED = 'YES' "
    "AND c.NAME = 'global_instrumentation' AND c.ENABLED = 'YES'"
)
_MARIADB_READS = "('MDL_SHARED', 'MDL_SHARED_HIGH_PRIO', 'MDL_SHARED_READ', 'MDL_SHARED_READ_ONLY')"
_MARIADB = (
    "SELECT THREAD_ID FROM information_schema.METADATA_LOCK_INFO WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "
    f"AND LOCK_TYPE = 'Table metadata lock' AND LOCK_MODE NOT IN {_MARIADB_READS}"
)


_IS_OFF = (
    "performance_schema does not record metadata locks. Start the server with "
    "performance_schema_instrument='wait/lock/metadata/sql/mdl=ON', as it is by default"
)
TICK_S = 0.25


# By session: its open transaction, which may have ids of a table; None if the server does not show which one.
Open: TypeAlias = Mapping[Hashable, Hashable | None]


def still_open(before: Open, now: Open) -> Open:
    """The sessions of an earlier answer that may not have ended by a later one.

    If either answer lacks a session's transaction, it may have begun another one meanwhile, and waiting takes longer.
    """
    return {
        session: transaction
        for session, transaction in before.items()
        if session in now and (transaction is None or now[session] in (None, transaction))
    }


class Writers(Protocol):
    """Lists open transactions."""

    def now(self, connection: Connection, schema: str, table: str) -> Open:
        """The open transactions that may have ids of the table. Raises SourceError, SourceUnavailableError."""


class MySQLWriters:
    """Reads them from performance_schema."""

    def now(self, connection: Connection, schema: str, table: str) -> Open:
        rows = _asked(connection, _MYSQL, (schema, table))
        if _asked(connection, _MYSQL_IS_ON) != [(1,)]:
            raise SourceError(f"who may still bring a row cannot be told any more: {_IS_OFF}")
        for name, lost in _asked(connection, _MYSQL_LOST):
            if lost not in ("0", 0):  # SHOW STATUS returns text
                setting = "metadata_locks" if "metadata" in str(name) else "thread_instances"
                raise SourceError(
                    f"the source does not list every metadata lock ({name} is {lost}): who holds one that it left out "
                    f"may bring ids that were passed. Raise performance_schema_max_{setting} in my.cnf (or leave it "
                    "out: the server then sizes it by itself), restart the server, and start viewtail again"
                )
        by_session: defaultdict[Hashable, set[Hashable | None]] = defaultdict(set)
        for session, transaction in rows:
            by_session[session].add(transaction)
        return {session: those.pop() if len(those) == 1 else None for session, those in by_session.items()}


@dataclass(slots=True)
class MariaDBWriters:
    """Reads them from the plugin METADATA_LOCK_INFO and XA RECOVER.

    A prepared transaction whose session is gone has no lock there, and its tables are not shown: while there is one, no
    holder counts as ended."""

    _before: dict[tuple[str, str], Open] = field(default_factory=dict, init=False)

    def now(self, connection: Connection, schema: str, table: str) -> Open:
        holders: dict[Hashable, None] = dict.fromkeys(_asked(connection, _MARIADB, (schema, table)))
        if _asked(connection, "XA RECOVER"):  # after the locks: it lists transactions that released theirs by preparing
            holders |= dict.fromkeys([*self._before.get((schema, table), ()), "a prepared transaction"])
        self._before[schema, table] = holders
        return holders


@dataclass(slots=True)
class BoundedWait:
    """Assumes that every writer ends within a time limit, for servers that do not show their writers.

    A row whose transaction takes longer is missed."""

    wait_s: float

    def now(self, connection: Connection, schema: str, table: str) -> Open:
        tick_s = max(TICK_S, self.wait_s / 20)  # looks within one tick are merged, so that a long wait keeps few
        now = time.monotonic()
        first, last = int((now - self.wait_s) / tick_s) + 1, int(now / tick_s) + 1
        return dict.fromkeys(range(first, last + 1))  # the ticks from which a transaction may still be open


def why_unreadable(connection: Connection, facts: ServerFacts) -> str | None:
    """Why the locks cannot be read, and what to do; None if they can."""
    is_mariadb = facts.name == MARIADB
    try:
        with connection.cursor() as cursor:
            cursor.execute(_MARIADB if is_mariadb else _MYSQL, ("viewtail", "none"))
            cursor.fetchall()
            if not is_mariadb:
                cursor.execute(_MYSQL_IS_ON)
                if cursor.fetchone() != (1,):
                    return _IS_OFF
    except pymysql.err.MySQLError as error:
        if number_of(error) in TEMPORARY_NUMBERS or not connection.open:
            raise source_error(error, connection) from None
        message = " ".join(str(part) for part in error.args)
        if is_mariadb:
            return f"{message}. INSTALL SONAME 'metadata_lock_info'"
        return f"{message}. Grant SELECT on performance_schema.*"
    return None


def writers_of(facts: ServerFacts) -> Writers:
    """The Writers for this kind of server."""
    return MariaDBWriters() if facts.name == MARIADB else MySQLWriters()


def _asked(connection: Connection, statement: str, values: tuple[str, ...] = ()) -> list[tuple[Hashable, ...]]:
    with source_errors(connection), connection.cursor() as cursor:
        cursor.execute(statement, values)
        return [tuple(row) for row in cursor.fetchall()]
