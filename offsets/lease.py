"""Decides who owns a pipeline right now: a named MySQL lock, held by a session.

The lock says who should run, the fence (offsets/mysql.py) makes it safe. A lock costs no binlog writes; it goes
when its session ends: at once when the owner dies, and after `SESSION_TIMEOUT_S` when the owner is stopped or cut
off, because the server ends sessions that are silent for so long.

Other sessions of a stopped owner live on, and what they have locked (the pipeline's row, rows of index tables) would
keep the next owner waiting. So each of them holds a lock of a name that can be guessed (`mark`), and whoever takes the
lease ends the sessions that hold one. To end a session of one's own user needs no privilege.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pymysql
import structlog

from offsets.mysql import Session, looking, unavailable
from viewtail.changes.errors import FencedError, StoreUnavailableError, ViewtailError, place_of
from viewtail.servers.sessions import Connection, value_of

_log = structlog.get_logger("viewtail.lease")

SESSION_TIMEOUT_S = 6
RENEW_EVERY_S = 1.5
ASK_FOR_S = 5  # one question for a lease that another owner has
MAX_MARKS = 64  # sessions of an owner that the next one finds; it has about ten


def lock_name(database: str, pipeline: str) -> str:
    """Name a lock, in at most 64 characters, MySQL's limit."""
    name = f"viewtail:{database}:{pipeline}"
    return name if len(name) <= 64 else "viewtail:" + hashlib.sha256(name.encode()).hexdigest()[:48]


# Whether somebody owns a pipeline now, for a statement that has its name in a column, with `held_values`: its lock is
# named as `lock_name` does.
_NAMED = "CONCAT(%(locks)s, {0})"
HELD = (
    f"IS_USED_LOCK(IF(CHAR_LENGTH({_NAMED}) <= 64, {_NAMED}, "
    f"CONCAT('viewtail:', LEFT(SHA2({_NAMED}, 256), 48)))) IS NOT NULL"
)


def held_values(database: str) -> dict[str, str]:
    """The values of HELD in a statement."""
    return {"locks": f"viewtail:{database}:"}


def is_held(cursor: Any, database: str, pipeline: str) -> bool:
    """Return whether somebody owns a pipeline now."""
    cursor.execute("SELECT IS_USED_LOCK(%s)", (lock_name(database, pipeline),))
    return cursor.fetchone()[0] is not None


_NOT_ENDED = frozenset({1094, 1095})  # no such session, not the owner of it


class Lease:
    """The lock of one pipeline; `is_lost` is set as soon as the owner can no longer be sure of it.

    `look` is called each time that the lock was renewed, with the lease's session: for what the owner wants to know now
    and then. It must be quick, and may not keep the session in a transaction.
    """

    def __init__(self, open_: Callable[[], pymysql.Connection[Any]], database: str, pipeline: str) -> None:
        self._open = looking(open_)
        self._name = lock_name(database, pipeline)
        self._pipeline = pipeline
        self._connection: pymysql.Connection[Any] | None = None
        self._renewing: threading.Thread | None = None
        self._marks = [lock_name(database, f"{pipeline}#{number}") for number in range(MAX_MARKS)]
        self._next_marks = itertools.cycle(self._marks)
        self._stop = threading.Event()
        self.is_lost = threading.Event()
        self.look: Callable[[Session], None] = lambda _: None

    def acquire(self, timeout_s: int) -> bool:
        """Wait up to `timeout_s` seconds for the lock; False when another owner has it still."""
        try:
            if self._connection is None or not self._connection.open:
                self._connection = self._open()
                self._ask(f"SET SESSION wait_timeout = {SESSION_TIMEOUT_S}")
            if not self._is_got_within(timeout_s):
                return False
            self._end_sessions_of_the_last_owner()
        except pymysql.err.MySQLError as error:
            self._drop()
            raise unavailable(error, f"taking the lease of pipeline {self._pipeline}") from None
        self.is_lost.clear()
        self._stop.clear()
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._renewing.start()
        return True

    def _is_got_within(self, timeout_s: int) -> bool:
        """Ask for the lock in rounds that the session's time limit does not end."""
        for waited_s in range(0, max(timeout_s, 1), ASK_FOR_S):
            if self._ask("SELECT GET_LOCK(%s, %s)", self._name, min(ASK_FOR_S, timeout_s - waited_s)) == 1:
                return True
        return False

    def check(self) -> None:
        """Raises FencedError when the lease went; the fence would find it out too, but later."""
        if self.is_lost.is_set():
            raise FencedError(f"pipeline {self._pipeline}: the lease was lost; standing by for it")

    def mark(self, connection: pymysql.Connection[Any]) -> None:
        """Let the next owner of the pipeline find this session of ours, and end it, should we hang."""
        try:
            for name in itertools.islice(self._next_marks, MAX_MARKS):
                if value_of(connection, "SELECT GET_LOCK(%s, 0)", name) == 1:
                    return
        except pymysql.err.MySQLError as error:
            connection.close()
            raise unavailable(error, f"marking a session of pipeline {self._pipeline}") from None

    def _end_sessions_of_the_last_owner(self) -> None:
        assert self._connection is not None
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(['IS_USED_LOCK(%s)'] * MAX_MARKS)}", self._marks)
            sessions = [session for session in cursor.fetchone() or () if session is not None]
            for session in sessions:
                try:
                    cursor.execute(f"KILL {session:d}")
                except pymysql.err.MySQLError as error:  # it is gone, or another user's
                    if error.args[0] not in _NOT_ENDED:
                        raise
                    _log.info("a session of the last owner was not ended", session=session, error=error.args[0])

    def release(self) -> None:
        self._stop.set()
        if self._renewing is not None:
            self._renewing.join()
            self._renewing = None
        # The server lets go of a closed session's locks a moment later: who takes over at once would stand by.
        with suppress(pymysql.err.MySQLError, StoreUnavailableError):
            if self._connection is not None and self._connection.open and not self.is_lost.is_set():
                self._ask("SELECT RELEASE_LOCK(%s)", self._name)
        self._drop()

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_EVERY_S):
            try:
                is_ours = self._ask("SELECT IS_USED_LOCK(%s) = CONNECTION_ID()", self._name) == 1
            except (pymysql.err.MySQLError, StoreUnavailableError):
                is_ours = False
            if not is_ours:
                self.is_lost.set()
                return
            try:
                self.look(lambda: self._session)
            except ViewtailError as error:  # a broken session is seen at the next renewal
                _log.info("looking beside the lease failed", pipeline=self._pipeline, error=str(error))
            except Exception as error:  # the lease must be renewed all the same
                where = f"{type(error).__name__}{place_of(error)}"
                _log.error("looking beside the lease failed; please report it", pipeline=self._pipeline, error=where)

    @property
    def _session(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def _ask(self, statement: str, *arguments: object) -> Any:
        return value_of(self._session, statement, *arguments)

    def _drop(self) -> None:
        if self._connection is not None and self._connection.open:
            self._connection.close()
        self._connection = None
