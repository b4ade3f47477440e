"""Who may still bring rows with lower ids than some that are there: the transactions that hold the table's lock.

A row's id is given out before its transaction ends, so a lower id may appear after a higher one. Whoever has been given
an id of a table holds a metadata lock on it from before that until behind its COMMIT is visible. So once the holders of
a moment have let go, all ids that were given out by then are there, or never will be.

Measured (tests/integration/test_poll_writers.py): MySQL lists the locks of prepared XA transactions too, also when
their session is gone or the server was started again. MariaDB does not: there every such transaction counts as one.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

import pymysql

from changes.errors import SourceError
from ingest.canonical.rows import source_error
from servers.facts import MARIADB, ServerFacts
from servers.sessions import Connection

# Who only reads brings no rows. Anything else counts, known or not.
_READS = "('SHARED', 'SHARED_HIGH_PRIO', 'SHARED_READ', 'SHARED_READ_ONLY')"
_MYSQL = (
    "SELECT OWNER_THREAD_ID, OWNER_EVENT_ID FROM performance_schema.metadata_locks WHERE OBJECT_TYPE = 'TABLE' "
    f"AND OBJECT_SCHEMA = %s AND OBJECT_NAME = %s AND LOCK_STATUS = 'GRANTED' AND LOCK_TYPE NOT IN {_READS}"
)
_MYSQL_LOST = "SHOW GLOBAL STATUS LIKE 'Performance_schema_metadata_lock_lost'"
_MYSQL_IS_ON = (
    "SELECT COUNT(*) FROM performance_schema.setup_instruments i JOIN performance_schema.setup_consumers c "
    "WHERE i.NAME = 'wait/lock/metadata/sql/mdl' AND i.ENABLED = 'YES' "
    "AND c.NAME = 'global_instrumentation' AND c.ENABLED = 'YES'"
)
_MARIADB_READS = "('MDL_SHARED', 'MDL_SHARED_HIGH_PRIO', 'MDL_SHARED_READ', 'MDL_SHARED_READ_ONLY')"
_MARIADB = (
    "SELECT l.THREAD_ID, COALESCE(t.trx_started, '') FROM information_schema.METADATA_LOCK_INFO l "
    "LEFT JOIN information_schema.innodb_trx t ON t.trx_mysql_thread_id = l.THREAD_ID "
    "WHERE l.TABLE_SCHEMA = %s AND l.TABLE_NAME = %s AND l.LOCK_TYPE = 'Table metadata lock' "
    f"AND l.LOCK_MODE NOT IN {_MARIADB_READS} "
    # A prepared XA transaction without a session has no lock there; which tables it changed nobody says.
    "UNION ALL SELECT -1, trx_id FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = 0"
)


TICK_S = 0.25


class Writers(Protocol):
    """Transactions that are open now and may have ids of a table."""

    def now(self, connection: Connection, schema: str, table: str) -> frozenset[Hashable]:
        """Equal ones in two answers are the same transaction. Raises SourceError, SourceUnavailableError."""


@dataclass(slots=True)
class MySQLWriters:
    """By performance_schema.metadata_locks."""

    _lost: int = field(default=0, init=False)

    def now(self, connection: Connection, schema: str, table: str) -> frozenset[Hashable]:
        rows = _asked(connection, _MYSQL, (schema, table))
        ((_, lost),) = _asked(connection, _MYSQL_LOST)
        if lost not in ("0", 0):  # text, as SHOW STATUS has it
            raise SourceError(
                f"the source did not list {lost} metadata locks, since performance_schema_max_metadata_locks is too "
                "small: who holds them may bring ids that were passed. Raise it in my.cnf (or leave it out: the "
                "server then sizes it by itself), restart the server, and start viewtail again"
            )
        return frozenset(rows)


@dataclass(slots=True)
class MariaDBWriters:
    """By the plugin METADATA_LOCK_INFO and InnoDB's list of transactions."""

    def now(self, connection: Connection, schema: str, table: str) -> frozenset[Hashable]:
        return frozenset(_asked(connection, _MARIADB, (schema, table)))


@dataclass(slots=True)
class BoundedWait:
    """Where nobody says who is there: a writer that lets go after so long, whoever it is.

    A row whose transaction took longer is missed.
    """

    wait_s: float

    def now(self, connection: Connection, schema: str, table: str) -> frozenset[Hashable]:
        now = time.monotonic()
        first, last = int((now - self.wait_s) / TICK_S) + 1, int(now / TICK_S)
        return frozenset(range(first, last + 1))  # the moments of which something may still be open


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
                    return (
                        "performance_schema does not record metadata locks. Start the server with "
                        "performance_schema_instrument='wait/lock/metadata/sql/mdl=ON', as it is by default"
                    )
    except pymysql.err.MySQLError as error:
        said = " ".join(str(part) for part in error.args)
        if is_mariadb:
            return f"{said}. INSTALL SONAME 'metadata_lock_info'; and grant PROCESS ON *.*"
        return f"{said}. Grant SELECT on performance_schema.metadata_locks, setup_instruments and setup_consumers"
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
