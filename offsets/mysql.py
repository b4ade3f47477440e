"""Keeps offsets and fences in MySQL: one row a pipeline.

The fence is compared under the row's lock in each offset write. (An affected-row count of changed rows would prove
nothing, since it is 0 for an unchanged update; these sessions count the rows that were found.)
Where the sink writes to the same server, the offset is saved on its connection, so that rows and offset are one
transaction (projectors/stores/index_tables/offsets.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pymysql

from offsets import OffsetStore, Owner, Taken
from viewtail.changes.errors import RETRIES, FencedError, StoreError, StoreUnavailableError, ViewtailError
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.positions import Position, ReadPosition
from viewtail.servers.pipelined import Flight, Prepared
from viewtail.servers.sessions import Connection, mend_of_denial, quote, read_only_error

Session = Callable[[], Connection]

CONFIRM_WITHIN_S = 10.0


def unavailable(error: pymysql.err.MySQLError, doing: str) -> StoreUnavailableError | StoreError:
    """A MySQL error while keeping viewtail's own rows; the server's number and text hold no row values here."""
    message = f"offset store: {doing} failed: {' '.join(str(part) for part in error.args)}"
    if (mend := mend_of_denial(error)) is not None:
        return StoreError(f"{message}. {mend}")
    return read_only_error(error, f"offset store: {doing} failed: its server") or StoreUnavailableError(
        f"{message}. {RETRIES}"
    )


@contextmanager
def transaction(session: Session, doing: str, *, is_one_read: bool = False) -> Iterator[Any]:
    """A cursor; commit at the end, rollback on an error, the connection given up on an error of the server."""
    connection = session()
    has_autocommit = connection.get_autocommit()
    try:
        if has_autocommit and not is_one_read:
            connection.begin()
        yield connection.cursor()
        if not (has_autocommit and is_one_read):
            connection.commit()
    except pymysql.err.MySQLError as error:
        connection.close()
        raise unavailable(error, doing) from None
    except BaseException:
        with suppress(pymysql.err.MySQLError):  # the connection is gone, and the transaction with it
            connection.rollback()
        raise


def reading(session: Session, doing: str) -> AbstractContextManager[Any]:
    """A cursor for one SELECT. On a session for looks (`looking`) it sends no COMMIT, which would double the cost."""
    return transaction(session, doing, is_one_read=True)


class MySQLOffsets:
    """The offset of one pipeline. `session` returns the connection to write on; it is committed by `save`."""

    def __init__(self, session: Session, database: str, pipeline: str, *, read_position: ReadPosition) -> None:
        self._session = session
        self._database = database
        self._pipeline = pipeline
        self._read_position = read_position
        self.owner = Owner(quote(database, "pipeline"), 0, 0)  # what `take` makes of it
        self._update: Prepared | None = None

    def take(self) -> Taken:
        with transaction(self._session, f"taking pipeline {self._pipeline}") as cursor:
            row = self._locked(cursor)
            if row is None:
                # Not before looking: InnoDB spends a number of the key on each INSERT, ignored ones too.
                which = PipelineId.parse(self._pipeline)
                columns = "(name, source, partition_number, store)"
                cursor.execute(
                    f"INSERT IGNORE INTO {self.owner.table} {columns} VALUES (%s, %s, %s, %s)",
                    (which.name, which.source, which.partition, which.store),
                )
                row = self._locked(cursor)
            assert row is not None
            number, fence, position = row[0], row[1] + 1, row[2]
            cursor.execute(f"UPDATE {self.owner.table} SET fence = %s WHERE id = %s", (fence, number))
        self.owner = Owner(self.owner.table, number, fence)
        return Taken(self.owner, _position(position, self._pipeline, self._read_position))

    def _locked(self, cursor: Any) -> tuple[Any, ...] | None:
        table = self.owner.table
        cursor.execute(f"SELECT id, fence, position FROM {table} WHERE name = %s FOR UPDATE", (self._pipeline,))
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row

    def saved(self) -> Position | None:
        """The offset as the server has it."""
        return saved_position(self._session, self._database, self._pipeline, self._read_position)

    def update(self, connection: Connection, position: Position) -> bytes:
        """Pack the statement that moves the offset for Flight.execute; the connection has nothing under way.

        Sessions count found rows, not changed ones (CLIENT_FOUND_ROWS), so one statement locks the row, compares the
        fence and moves the offset; a SELECT ... FOR UPDATE first would cost every batch one more round trip. It is
        prepared because parsing it would be a tenth of the time that a batch of one row takes.
        """
        if self._update is None or self._update.connection is not connection:
            update = f"UPDATE {self.owner.table} SET position = ?, saved_at = CURRENT_TIMESTAMP(6)"
            self._update = Prepared(connection, f"{update} WHERE id = ? AND fence = ?")
        return self._update.packed((position.to_text(), self.owner.id, self.owner.fence))

    def save(self, position: Position) -> None:
        self.commit(position)

    def save_rows(self) -> None:
        self.commit(None)

    def commit(self, position: Position | None, moved: int | None = None) -> None:
        """Commit what was written on the session, with the offset; None leaves that. Raises FencedError.

        `moved`: so many rows the UPDATE found that is in the transaction already.
        """
        with transaction(self._session, f"saving the offset of pipeline {self._pipeline}") as cursor:
            if position is not None and moved is None:
                moved = self._moved(cursor.connection, position)
            if position is None or moved != 1:
                check_fence(cursor, self.owner)

    def _moved(self, connection: Connection, position: Position) -> int:
        statement = self.update(connection, position)
        flight = Flight(connection)
        flight.execute(statement)
        (answer,) = flight.land()
        if isinstance(answer, pymysql.err.MySQLError):
            raise answer
        return answer

    def settle(self) -> None:
        """Nothing to do: `save` is never late."""

    def confirm(self) -> None:
        """Nothing to do: what was saved is durable."""

    def close(self) -> None:
        """Nothing is outstanding."""

    def abandon(self) -> None:
        """Nothing to end."""


def check_fence(cursor: Any, owner: Owner) -> None:
    """Lock the pipeline's row against another owner, and raise FencedError when somebody has taken it already.

    The lock is shared: other threads of this owner take the same one with their rows, and must not wait for a COMMIT.
    """
    cursor.execute(f"SELECT name, fence FROM {owner.table} WHERE id = %s LOCK IN SHARE MODE", (owner.id,))
    row = cursor.fetchone()
    name, fence = row or (f"number {owner.id}", None)
    if fence != owner.fence:
        raise FencedError(
            f"pipeline {name} was taken over by another viewtail (fence {fence}, ours is {owner.fence}); "
            "this one stops writing and stands by"
        )


def _position(text: str | None, pipeline: str, read_position: ReadPosition) -> Position | None:
    try:
        return None if text is None else read_position(text)
    except ValueError as error:
        raise StoreError(
            f"offset store: the position of pipeline {pipeline} is not what viewtail wrote there ({error}). Restore "
            "it, or set it to NULL and run: viewtail replay --new-history"
        ) from None


def saved_position(session: Session, database: str, pipeline: str, read_position: ReadPosition) -> Position | None:
    """The offset of a pipeline that need not be owned; None when it never saved one."""
    with transaction(session, f"reading the offset of pipeline {pipeline}") as cursor:
        cursor.execute(f"SELECT position FROM {quote(database, 'pipeline')} WHERE name = %s", (pipeline,))
        row = cursor.fetchone()
    return None if row is None else _position(row[0], pipeline, read_position)


class BackgroundOffsets:
    """Saves the newest offset behind the pipeline's back, at most every `interval_s` seconds.

    For stores that do not share a transaction with the offset: the rows are durable before `save` is called, so
    a late offset only means that a restart applies some changes again, which the guard makes harmless. It keeps
    the latency of the offset's commit out of the loop.
    """

    def __init__(self, offsets: OffsetStore, interval_s: float, end: Callable[[], None] = lambda: None) -> None:
        self._offsets = offsets
        self._interval_s = interval_s
        self._end = end  # gives up the session of `offsets`
        self._wake = threading.Condition()
        self._newest: Position | None = None
        self._error: ViewtailError | None = None
        self._is_closed = False
        self._is_saving = self._is_hurried = False
        self._thread: threading.Thread | None = None

    def take(self) -> Taken:
        self._stop_thread()
        self._newest = self._error = None
        self._is_closed = self._is_saving = self._is_hurried = False
        taken = self._offsets.take()
        self._thread = threading.Thread(target=self._work, name="offsets", daemon=True)
        self._thread.start()
        return taken

    def save(self, position: Position) -> None:
        with self._wake:
            if self._error is not None:
                raise self._error
            self._newest = position
            self._wake.notify_all()

    def save_rows(self) -> None:
        """Nothing to do: the rows are in another store, and durable there."""

    def settle(self) -> None:
        """Nothing to do: what is not saved yet will be, at its time."""

    def confirm(self) -> None:
        deadline = time.monotonic() + CONFIRM_WITHIN_S
        with self._wake:
            self._is_hurried = True
            self._wake.notify_all()
            while self._newest is not None or self._is_saving:
                if self._error is not None:
                    raise self._error
                if not self._wake.wait(max(0.0, deadline - time.monotonic())):
                    raise StoreUnavailableError(f"offset store: the offset could not be saved yet; {RETRIES}")
            self._is_hurried = False

    def close(self) -> None:
        """Save what is outstanding; raises what saving it raised."""
        self._stop_thread()
        if self._error is not None:
            raise self._error
        if self._newest is not None:
            newest, self._newest = self._newest, None
            self._offsets.save(newest)

    def abandon(self) -> None:
        """Save nothing more: somebody else owns the pipeline, or a restart applies the changes again."""
        self._stop_thread()
        self._end()

    def _stop_thread(self) -> None:
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._newest is not None or self._is_closed)
                if self._is_closed:
                    return
                newest, self._newest = self._newest, None
                self._is_saving = True
            self._try(newest)
            self._rest(newest)

    def _rest(self, tried: Position | None) -> None:
        """Wait until the next save is due: at its time, or at once where somebody waits and the last one succeeded."""
        with self._wake:
            self._is_saving = False
            self._wake.notify_all()
            self._wake.wait_for(
                lambda: (
                    self._is_closed or (self._is_hurried and self._newest is not None and self._newest is not tried)
                ),
                self._interval_s,
            )

    def _try(self, newest: Position | None) -> None:
        """Save; put back what the server refuses for now, unless a newer one came."""
        assert newest is not None
        try:
            self._offsets.save(newest)
        except StoreUnavailableError:
            with self._wake:
                self._newest = self._newest or newest
        except ViewtailError as error:
            with self._wake:
                self._error = error


def looking(open_: Session) -> Session:
    """Opens sessions for whoever looks again and again, all day. Outside `transaction` each statement is one."""

    def opened() -> Connection:
        connection = open_()
        try:
            connection.autocommit(True)
        except pymysql.err.MySQLError as error:
            connection.close()
            raise unavailable(error, "opening a session") from None
        return connection

    return opened


class OwnSession:
    """A session that is opened when first asked for, and again after it was closed."""

    def __init__(self, open_: Session) -> None:
        self._open = open_
        self._connection: Connection | None = None

    def __call__(self) -> Connection:
        if self._connection is None or not self._connection.open:
            self._connection = self._open()
        return self._connection

    def close(self) -> None:
        if self._connection is not None and self._connection.open:
            self._connection.close()
