"""Watermark rows: where they are, and who writes them. See watermarks.py."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pymysql

from offsets import watermarks
from offsets.lease import lock_name
from offsets.mysql import OwnSession, Session
from viewtail.changes.errors import SourceUnavailableError, StoreUnavailableError, WatermarkMissingError
from viewtail.servers.sessions import Connection, value_of

REMOTE = "ask"  # a token begins so when another process waits for it; the others are hexadecimal
MOST_ROWS = 64  # of processes that read rows under watermarks at the same time
_REMEMBERED = 1000
_KEEP_SESSION_S = 5.0
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class WatermarkPlace:
    """Where the table `watermark` is.

    Args:
        open: a session on its server: the source's primary, or, where the source reads it there, viewtail's own.
        schema: its database.
        is_with_rows: it comes to who reads canonical rows as these do, and may be as late.
        why_missing: why the watermark of a name cannot come, though it was committed, and what to do; None: it may.
        deployment: whose rows these are: several may read one source, and call their own databases the same.
    """

    open: Callable[[], Connection]
    schema: str
    is_with_rows: bool = True
    why_missing: Callable[[str], str | None] = lambda _: None
    deployment: str = ""

    def row(self, name: str) -> str:
        """The name of a row: of a deployment's own."""
        return f"{name}@{self.deployment}" if self.deployment else name


class WatermarkWriter:
    """Commits tokens into a row of the table. Thread-safe.

    Args:
        name: whose row it is; one a pipeline and offset database.
        number: of the row, where there are several of that name; asked before each write.
        prefix: of the tokens.
    """

    def __init__(
        self, place: WatermarkPlace, name: str, *, number: Callable[[], int] | None = None, prefix: str = ""
    ) -> None:
        self._place, self._name, self._number, self._prefix = place, name, number, prefix
        self._row = place.row(name)  # that was written last
        self._session = OwnSession(self._open)
        self._order: dict[str, int] = {}  # token -> how many were written before it
        self._count = itertools.count()
        self._writing = threading.Lock()
        self._used_at = 0.0

    def write(self, before: Callable[[str], None] = lambda _: None) -> str:
        """Commit a watermark; returns its token, which `before` gets first. Raises SourceUnavailableError."""
        token = self._prefix + secrets.token_hex(16)[len(self._prefix) :]
        before(token)
        with self._writing:
            if self._number is not None:
                self._row = self._place.row(f"{self._name}:{self._number()}")
            # Kept for those that follow at once; later the address may lead to another server.
            if time.monotonic() - self._used_at > _KEEP_SESSION_S:
                self._session.close()
            self._used_at = time.monotonic()
            connection = self._session()
            try:
                with connection.cursor() as cursor:
                    watermarks.write(cursor, self._place.schema, self._row, token)
            except pymysql.err.MySQLError as error:
                connection.close()
                raise SourceUnavailableError(
                    f"writing a watermark into {watermarks.table_in(self._place.schema)} failed: "
                    f"{' '.join(str(part) for part in error.args)}. `viewtail check` lists the grants it needs"
                ) from None
            self._order[token] = next(self._count)
            forget_oldest(self._order)
        return token

    def _open(self) -> Connection:
        connection = self._place.open()
        connection.autocommit(True)  # one that hangs in between would hold the row for the next owner
        return connection

    def mark_end(self) -> str:
        """Commit a watermark at which a reader of its own ends; returns its token.

        Raises WatermarkMissingError where it cannot come: such a reader would wait for it at the stream's end.
        """
        token = self.write()
        self.check_can_come()
        return token

    def check_can_come(self) -> None:
        """Raises WatermarkMissingError where what was written cannot come: somebody must mend that first."""
        if (why := self.why_missing()) is not None:
            raise WatermarkMissingError(why)

    def why_missing(self) -> str | None:
        """Why what was written cannot come through the stream, and what to do; None: it may."""
        return self._place.why_missing(self._row)

    def is_visible(self, cursor: Any, version: int, passed: Mapping[str, int]) -> bool:
        """As `Watermarks.is_visible`, by the versions of the tokens that were `passed`."""
        if not self._place.is_with_rows:  # it was passed when all before it had been read from these tables
            return True
        token = watermarks.token_of(cursor, self._place.schema, self._row)
        if token is None:
            return False
        if passed.get(token, -1) >= version:
            return True
        # One that is not passed yet, written behind one that is.
        behind = (self._order.get(other, _NEVER) for other, at in passed.items() if at >= version)
        return min(behind, default=_NEVER) < self._order.get(token, -1)

    def close(self) -> None:
        self._session.close()


class RowNumber:
    """The number of a watermark row that no other process writes: the session has the lock on it."""

    def __init__(self, session: Session, database: str) -> None:
        self._session, self._database = session, database
        self._locked: Connection | None = None  # that has the lock
        self._number = 0

    def __call__(self) -> int:
        """Raises StoreUnavailableError."""
        connection = self._session()
        if connection is not self._locked:
            self._number, self._locked = self._lock(connection), connection
        return self._number

    def _lock(self, connection: Connection) -> int:
        try:
            for number in range(MOST_ROWS):
                if value_of(connection, "SELECT GET_LOCK(%s, 0)", lock_name(self._database, f"asker#{number}")) == 1:
                    return number
        except pymysql.err.MySQLError as error:
            connection.close()
            raise StoreUnavailableError(
                f"MySQL does not answer ({type(error).__name__} {error.args[0] if error.args else ''}) while a "
                "watermark is to be written. Try again when the server answers"
            ) from None
        raise StoreUnavailableError(
            f"{MOST_ROWS} commands or programs wait for watermarks already. Try again when some of them have ended"
        )


def remote_writer(place: WatermarkPlace, database: str, number: RowNumber | None = None) -> WatermarkWriter:
    """Into the row that all share, or one of its own: who asks whether a watermark is visible needs that."""
    return WatermarkWriter(place, f"{database}:asker", number=number, prefix=REMOTE)


def forget_oldest(tokens: dict[str, int]) -> None:
    """Keep those that were added last."""
    while len(tokens) > _REMEMBERED:
        del tokens[next(iter(tokens))]
