"""A lock between a pipeline and the commands that write single entities of one of its views.

A statement that takes rows away without an event for each (TRUNCATE, DROP PARTITION) leaves tombstones only for keys
that the view shows by then. A row that a command read before and writes behind that would come back for good. So a
command holds this lock from its reading to its writing, and the pipeline while it applies such a statement. The state
and the fingerprint of the view cannot change meanwhile either, as far as its table is concerned.

The pipeline reads derived rows, too, and holds the lock from that to their commit: of two readings of one row the later
one must not be written first under the smaller version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pymysql
import structlog

from offsets.lease import lock_name
from offsets.mysql import Session, unavailable
from viewtail.changes.errors import RETRIES, StoreUnavailableError
from viewtail.servers.sessions import number_of, value_of

_log = structlog.get_logger("viewtail.pipeline")

WAIT_S = 30  # of a command, for another one or for the pipeline
PATIENCE_S = 10  # of the pipeline, for a command: one that hangs is not waited for

_NO_SUCH_SESSION = 1094


class ViewLock:
    """Of one view, for one thread's session."""

    def __init__(self, session: Session, database: str, view: str) -> None:
        self._session, self._view = session, view
        self._name = lock_name(database, f"view#{view}")

    @contextmanager
    def held(self) -> Iterator[ViewLock]:
        """Raises StoreUnavailableError where it is not to be had."""
        if not self._got(WAIT_S):
            raise StoreUnavailableError(
                f"another command writes view {self._view}, or its pipeline applies a statement that took rows away "
                f"from its table, or waits for rows that it must read again; {RETRIES}"
            )
        try:
            yield self
        finally:
            self._release()

    @contextmanager
    def taken(self) -> Iterator[Callable[[], None]]:
        """For the pipeline: the session of a command that hangs is ended, and its lock with it.

        Yields what raises StoreUnavailableError where this session does not hold it any more: others may have written.
        """
        while not self._got(PATIENCE_S):
            holder = self._asked("SELECT IS_USED_LOCK(%s)", self._name)
            if holder is not None:
                _log.warning("a command holds the lock of a view for too long: ended", view=self._view)
                self._asked(f"KILL {holder:d}")
        try:
            yield self._check
        finally:
            self._release()

    def is_held(self) -> bool:
        """Return whether this session holds it still."""
        try:
            return bool(value_of(self._session(), "SELECT IS_USED_LOCK(%s) = CONNECTION_ID()", self._name) == 1)
        except pymysql.err.MySQLError:
            return False

    def _check(self) -> None:
        if not self.is_held():
            raise StoreUnavailableError(
                f"the session that held the lock of view {self._view} was lost; what was read under it is read again"
            )

    def _got(self, wait_s: int) -> bool:
        return bool(self._asked("SELECT GET_LOCK(%s, %s)", self._name, wait_s) == 1)

    def _asked(self, statement: str, *arguments: object) -> Any:
        connection = self._session()
        try:
            return value_of(connection, statement, *arguments)
        except pymysql.err.MySQLError as error:
            if number_of(error) == _NO_SUCH_SESSION:
                return None
            connection.close()
            raise unavailable(error, f"locking view {self._view}") from None

    def _release(self) -> None:
        with suppress(StoreUnavailableError):  # it went with its session
            self._asked("SELECT RELEASE_LOCK(%s)", self._name)
