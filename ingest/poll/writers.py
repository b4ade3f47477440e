"""Who may still bring rows with lower ids than some that are there: the transactions that hold the table's lock.

A row's id is given out before its transaction ends, so a lower id may appear after a higher one. Whoever has been given
an id of a table holds a metadata lock on it from before that until behind its COMMIT is visible. So once the holders of
a moment have let go, all ids that were given out by then are there, or never will be.

Measured (tests/integration/test_poll_source.py): MySQL lists the locks of prepared XA transactions too, also when
their session is gone or the server was started again. MariaDB does not: there every such transaction counts as one.

A holder is a session. MySQL also tells which transaction of it holds the lock, so that one that begins the next at once
is not taken for the same. Where nobody tells, such a session has let go once it is seen without a lock.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import pymysql

from ingest.canonical.rows import source_error
from viewtail.changes.errors import SourceError
from viewtail.servers.facts import MARIADB, ServerFacts
from viewtail.servers.sessions import TEMPORARY_NUMBERS, Connection, number_of

# Who only reads brings no rows. Anything else counts, known or not.
_READS = "('SHARED', 'SHARED_HIGH_PRIO', 'SHARED_READ', 'SHARED_READ_ONLY')"
# Events of a session are numbered, its transactions and the taking of its locks alike. A lock with a lower number than
# the transaction was taken before it: it is that of a prepared one, which has another lock than while it was written.
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


# By session whose transaction is open, and may have ids of a table, which one that is; None where nobody tells.
Open: TypeAlias = Mapping[Hashable, Hashable | None]


def still_open(before: Open, now: Open) -> Open:
    """Who of an earlier answer may not have ended by a later one.

    Of whom it is not told in both which transaction it is, may have begun another one meanwhile; then it takes longer.
    """
    return {
        session: transaction
        for session, transaction in before.items()
        if session in now and (transaction is None or now[session] in (None, transaction))
    }


class Writers(Protocol):
    """Who has a transaction open."""

    def now(self, connection: Connection, schema: str, table: str) -> Open:
        """Raises SourceError, SourceUnavailableError."""


class MySQLWriters:
    """By performance_schema."""

    def now(self, connection: Connection, schema: str, table: str) -> Open:
        rows = _asked(connection, _MYSQL, (schema, table))
        if _asked(connection, _MYSQL_IS_ON) != [(1,)]:
            raise SourceError(f"who may still bring a row cannot be told any more: {_IS_OFF}")
        for name, lost in _asked(connection, _MYSQL_LOST):
            if lost not in ("0", 0):  # text, as SHOW STATUS has it
                setting = "metadata_locks" if "metadata" in str(name) else "thread_instances"
                raise SourceError(
                    f"the source does not list every metadata lock ({name} is {lost}): who holds one that it left out "
                    f"may bring ids that were passed. Raise performance_schema_max_{setting} in my.cnf (or leave it "
                    "out: the server then sizes it by itself), restart the server, and start viewtail again"
                )
        told: defaultdict[Hashable, set[Hashable | None]] = defaultdict(set)
        for session, transaction in rows:
            told[session].add(transaction)
        return {session: those.pop() if len(those) == 1 else None for session, those in told.items()}


@dataclass(slots=True)
class MariaDBWriters:
    """By the plugin METADATA_LOCK_INFO, and XA RECOVER.

    A prepared transaction whose session has gone has no lock there, and which tables it changed nobody says: while
    there is one, nobody is known to have ended.
    """

    _before: dict[tuple[str, str], Open] = field(default_factory=dict, init=False)

    def now(self, connection: Connection, schema: str, table: str) -> Open:
        found: dict[Hashable, None] = dict.fromkeys(_asked(connection, _MARIADB, (schema, table)))
        if _asked(connection, "XA RECOVER"):  # after the locks: what has let go of them by preparing is in it
            found |= dict.fromkeys([*self._before.get((schema, table), ()), "a prepared transaction"])
        self._before[schema, table] = found
        return found


@dataclass(slots=True)
class BoundedWait:
    """Where nobody says who is there: a writer that lets go after so long, whoever it is.

    A row whose transaction took longer is missed.
    """

    wait_s: float

    def now(self, connection: Connection, schema: str, table: str) -> Open:
        tick_s = max(TICK_S, self.wait_s / 20)  # looks within one are one, so that a long wait keeps few
        now = time.monotonic()
        first, last = int((now - self.wait_s) / tick_s) + 1, int(now / tick_s) + 1
        return dict.fromkeys(range(first, last + 1))  # the moments of which something may still be open


def why_unreadable(connection: Connection, facts: ServerFacts) -> str | None:
    """Why the locks cannot be read, and what to do; None: they can."""
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
        said = " ".join(str(part) for part in error.args)
        if is_mariadb:
            return f"{said}. INSTALL SONAME 'metadata_lock_info'"
        return f"{said}. Grant SELECT on performance_schema.*"
    return None


def writers_of(facts: ServerFacts) -> Writers:
    """How a server says who they are."""
    return MariaDBWriters() if facts.name == MARIADB else MySQLWriters()


def _asked(connection: Connection, statement: str, values: tuple[str, ...] = ()) -> list[tuple[Hashable, ...]]:
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
            return [tuple(row) for row in cursor.fetchall()]
    except pymysql.err.MySQLError as error:
        raise source_error(error, connection) from None
