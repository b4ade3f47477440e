"""RENAME TABLE that keeps readers waiting for a moment only.

RENAME waits for every transaction that has read the tables, and whoever reads them next waits behind it. So it is tried
when nobody is in the way, as far as the server shows that (performance_schema.metadata_locks), and given up after some
hundredths of a second: readers that came meanwhile are let through before the next attempt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

import pymysql
import structlog

from viewtail.changes.errors import StoreError, ViewtailError
from viewtail.servers.sessions import Connection, mend_of_denial, number_of, quote, value_of

# How long an attempt keeps readers waiting: the first ones only where a short read is in the way.
WAITS_S = (0.01, 0.02, 0.03, 0.05, 0.05, 0.05, 0.05, 0.05)
PAUSE_S = 0.15  # between two attempts
FREE_WITHIN_S = 2.0  # a transaction that lasts longer is not waited for
LOOK_EVERY_S = 0.02

_log = structlog.get_logger("viewtail.rebuild")

_INTERRUPTED = frozenset({1205, 1317, 1969, 3024})
_SHOWN = 5  # sessions in a message
_SHOWS_LOCKS = (
    "SELECT @@performance_schema AND EXISTS (SELECT 1 FROM performance_schema.setup_instruments "
    "WHERE name = 'wait/lock/metadata/sql/mdl' AND enabled = 'YES')"
)


class Renaming:
    """Of tables of one database; `open_` opens sessions."""

    def __init__(self, open_: Callable[[], Connection], database: str) -> None:
        self._open = open_
        self._database = database

    def rename(self, pairs: Sequence[tuple[str, str]]) -> None:
        """In one statement. Raises StoreError while a transaction that does not end has read one of the tables."""
        tables = [one for one, _ in pairs]
        statement = f"RENAME TABLE {', '.join(f'{self._named(one)} TO {self._named(to)}' for one, to in pairs)}"
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
        """Until every session that has read them was seen without: those that came later are no longer than that."""
        deadline = time.monotonic() + FREE_WITHIN_S
        left = self._holders(watching, tables)
        while left:
            if time.monotonic() > deadline:
                raise StoreError(self._in_the_way(tables, left))
            time.sleep(LOOK_EVERY_S)
            left &= self._holders(watching, tables)

    def _holders(self, watching: Connection, tables: Sequence[str]) -> frozenset[int]:
        """Sessions that have the tables in a transaction or a statement."""
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
        """False where it had to wait. Another session ends the wait: lock_wait_timeout counts whole seconds."""
        # A session for each: an order to end a statement that came late would meet the next one.
        with closing(self._open()) as renaming:
            renaming.autocommit(True)
            renaming.query("SET SESSION lock_wait_timeout = 1")  # should the other session not come
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
    """End its statement. Again where it came before that had begun: then it has no effect."""
    while not is_over.wait(after_s):
        with suppress(pymysql.err.MySQLError, ViewtailError):
            watching.query(f"KILL QUERY {session:d}")
