"""Runs RENAME TABLE so that readers wait only for a moment.

RENAME waits for every transaction that has read the tables, and new readers queue behind it. So viewtail tries it when
nobody holds the tables, as far as the server shows that (performance_schema.metadata_locks), and gives up after some
hundredths of a second: readers that came meanwhile proceed before the next attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

import pymysql
import structlog

from viewtail.changes.errors import StoreError, ViewtailError
from viewtail.servers.sessions import Connection, mend_of_denial, number_of, quote, value_of

# How long each attempt may keep readers waiting; the first ones succeed only if no longer read is in the way.
WAITS_S = (0.01, 0.02, 0.03, 0.05, 0.05, 0.05, 0.05, 0.05)
PAUSE_S = 0.15  # between two attempts
FREE_WITHIN_S = 2.0  # the longest wait for open transactions
LOOK_EVERY_S = 0.02

_log = structlog.get_logger("viewtail.rebuild")

_INTERRUPTED = frozenset({1205, 1317, 1969, 3024})
_SHOWN = 5  # sessions in a message
_SHOWS_LOCKS = (
    "SELECT @@performance_schema AND EXISTS (SELECT 1 FROM performance_schema.setup_instruments "
    "WHERE name = 'wait/lock/metadata/sql/mdl' AND enabled = 'YES')"
)


class Renaming:
    """Renames tables of one database; `open_` opens sessions."""

    def __init__(self, open_: Callable[[], Connection], database: str) -> None:
        self._open = open_
        self._database = database

    def rename(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Rename all pairs in one statement. Raises StoreError if a transaction that has read one of the tables does
        not end."""
        tables = [old_name for old_name, _ in pairs]
        statement = (
            f"RENAME TABLE {', '.join(f'{self._named(old_name)} TO {self._named(to)}' for old_name, to in pairs)}"
        )
        with closing(self._open()) as watching:
            watching.autocommit(True)
            shows = self._shows_locks(watching)
            for wait_s in WAITS_S:
                if shows:
                    self._wait_until_free(watching, tables)
                if self._renamed(watching, statement, wait_s):
                    return
                time.sleep(PAUSE_S)
            sessions = self._holders(watching, tables) if shows else frozenset()
        raise StoreError(self._in_the_way(tables, sessions))

    def _wait_until_free(self, watching: Connection, tables: Sequence[str]) -> None:
        """Wait until each session that holds the tables now has been seen without them; later sessions do not prolong
        it."""
        deadline = time.monotonic() + FREE_WITHIN_S
        left = self._holders(watching, tables)
        while left:
            if time.monotonic() > deadline:
                raise StoreError(self._in_the_way(tables, left))
            time.sleep(LOOK_EVERY_S)
            left &= self._holders(watching, tables)

    def _holders(self, watching: Connection, tables: Sequence[str]) -> frozenset[int]:
        """Sessions that hold the tables in a transaction or a statement."""
        with watching.cursor() as cursor:
            cursor.execute(
                "SELECT DISTINCT t.processlist_id FROM performance_schema.metadata_locks l "
                "JOIN performance_schema.threads t ON t.thread_id = l.owner_thread_id "
                "WHERE l.object_type = 'TABLE' AND l.object_schema = %s AND l.object_name IN %s "
                "AND l.lock_status = 'GRANTED' AND t.processlist_id <> CONNECTION_ID()",
                (self._database, tuple(tables)),
            )
            return frozenset(session for (session,) in cursor.fetchall())

    def _shows_locks(self, watching: Connection) -> bool:
        try:
            return bool(value_of(watching, _SHOWS_LOCKS)) and self._holders(watching, [""]) is not None
        except pymysql.err.MySQLError as error:
            if mend_of_denial(error) is None:
                raise
            return False

    def _renamed(self, watching: Connection, statement: str, wait_s: float) -> bool:
        """Try the RENAME; False if it had to wait. Another session ends the wait: lock_wait_timeout counts whole
        seconds."""
        # Each attempt has a session of its own: a late KILL QUERY would otherwise hit the next attempt.
        with closing(self._open()) as renaming:
            renaming.autocommit(True)
            renaming.query("SET SESSION lock_wait_timeout = 1")  # if the other session fails
            session, is_over = value_of(renaming, "SELECT CONNECTION_ID()"), threading.Event()
            ending = threading.Thread(target=_end, args=(watching, session, is_over, wait_s), daemon=True)
            ending.start()
            try:
                renaming.query(statement)
                return True
            except pymysql.err.MySQLError as error:
                if number_of(error) not in _INTERRUPTED:
                    raise
                return False
            finally:
                is_over.set()
                ending.join()

    def _in_the_way(self, tables: Sequence[str], sessions: frozenset[int]) -> str:
        names = ", ".join(map(self._named, tables))
        if not sessions:
            return (
                f"a session reads {names} in a transaction that does not end, and tables can be renamed only between "
                "transactions. End that transaction, or wait. performance_schema.metadata_locks names it, to whoever "
                "may read that"
            )
        some = ", ".join(map(str, sorted(sessions)[:_SHOWN])) + (", ..." if len(sessions) > _SHOWN else "")
        return (
            f"a transaction that does not end reads {names}, and tables can be renamed only between transactions: "
            f"session {some}. End it (KILL {min(sessions)}), or wait"
        )

    def _named(self, table: str) -> str:
        return quote(self._database, table)


def _end(watching: Connection, session: int, is_over: threading.Event, after_s: float) -> None:
    """Kill the session's statement after a delay, repeatedly: a KILL before the statement began has no effect."""
    while not is_over.wait(after_s):
        with suppress(pymysql.err.MySQLError, ViewtailError):
            watching.query(f"KILL QUERY {session:d}")
