"""Polls tables by their ids: each pass reads the rows that are new in each of them, as batches of inserts.

Rows are delivered as soon as they are read. Where a row with a lower id may still come, its id stays open, and is asked
for in each pass, until nobody is left who could bring it (writers.py). So nothing is missed, however long a transaction
takes, and nobody waits for it.

A watermark is a token in viewtail's own table: it is passed with the first pass that began after it was seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress

import pymysql

from ingest import GoOn, Progress, ReadAgain, Resuming, check_epochs
from ingest.canonical.parts import parts_of
from ingest.poll.ids import Ids
from ingest.poll.polled_table import MOST_BYTES, PolledTable, polled
from ingest.poll.position import PollPosition, own
from ingest.poll.writers import Writers
from viewtail.changes.batches import (
    INSERT,
    Batch,
    Followed,
    Halt,
    Refused,
    Row,
    RowChanges,
    Unreadable,
    Watermark,
    unreadable_in,
)
from viewtail.changes.errors import RETRIES, SourceUnavailableError, TablesChangedError
from viewtail.changes.positions import Position
from viewtail.servers.answers import LastAnswer
from viewtail.servers.sessions import Connection, number_of

RETRY_S = (0.1, 5.0)  # first, and at most
LOOK_EVERY_S = 1.0  # whether ids begin again
MARKS_EVERY_S = (0.15, 0.5)  # while there was one within MARKS_S, and else: each look costs an idle poller
MARKS_S = 10.0  # who fills, compares or waits asks for the next one soon
# Statistics of tables as they are; MariaDB takes that for a comment, and has no others.
_SESSION = "SET /*!80000 information_schema_stats_expiry = 0, */ autocommit = 1"
ROW_BYTES = 100  # of a row that waits to be written, beside its texts


class _Marks:
    """The watermarks of one session: asked for more often while somebody waits for some."""

    def __init__(self, select: str, connection: Connection) -> None:
        self._select, self._connection = select, connection
        self._asked = LastAnswer()
        self._new: dict[str, str] = {}
        self._asked_at = self._found_at = float("-inf")

    def new(self, now: float, passed: Mapping[str, str]) -> dict[str, str]:
        """Return, by name, the tokens that were not passed yet."""
        if self._new or now - self._asked_at > MARKS_EVERY_S[now - self._found_at > MARKS_S]:
            self._new, self._asked_at = self._ask(passed), now
            self._found_at = now if self._new else self._found_at
        return self._new

    def _ask(self, passed: Mapping[str, str]) -> dict[str, str]:
        if not self._select:
            return {}
        with _polling():
            rows = self._asked.ask(self._connection, self._select)
        return {name: token for name, token in rows if passed.get(name) != token}


class PollSource:
    """Polls tables as a source.

    Args:
        followed: by (schema, table).
        orders: the column of each of these tables, or patterns, that has its ids.
        open_source: a session on the server with the tables.
        open_own: one on the server of viewtail's own tables.
        marks: the SELECT of the watermarks there; '' where nobody waits for watermarks.
        every_s: between two passes.
    """

    def __init__(  # noqa: PLR0913 - two servers, and how each is asked; made in one place
        self,
        followed: Mapping[tuple[str, str], Followed],
        orders: Mapping[tuple[str, str], str],
        *,
        open_source: Callable[[], Connection],
        open_own: Callable[[], Connection],
        marks: str,
        writers: Callable[[Connection], Writers],
        epoch: int,
        every_s: float,
    ) -> None:
        self._followed, self._orders = followed, orders
        self._open_source, self._open_own = open_source, open_own
        self._marks, self._writers = marks, writers
        self._epoch, self._every_s = epoch, every_s
        self._waiting = threading.Lock()  # is held; an Event costs three times as much processor time for each wait
        self._waiting.acquire()
        self._is_interrupted = False
        self.progress = Progress()

    # -- where reading begins --------------------------------------------------------------------------------------

    def now(self) -> PollPosition:
        """No table has begun: each does when nobody is left who may bring rows of before (`PolledTable.ids`)."""
        return PollPosition(self._epoch, 0)

    def beginning(self, shown: Position | None = None) -> None:
        """Views are filled from the rows of their tables."""

    def is_compacted(self) -> bool:
        return False

    def check(self, after: Position) -> None:
        """Nothing is lost by waiting: what is not read yet stays in its table."""

    def resume(self, offset: Position, kept: Position) -> Resuming:
        at, has = own(offset), own(kept)
        check_epochs(has, at, self._epoch)
        if has.epoch == at.epoch and has.version < at.version:
            return ReadAgain(has, has.version)
        return GoOn(at, has.version if has.epoch == at.epoch else None)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, after: Position) -> Iterator[Batch]:
        """A batch for each pass that finds something."""
        self._is_interrupted = False
        reading = _Reading(own(after), self._tables(own(after)))
        pause_s = RETRY_S[0]
        while not self._is_interrupted:
            try:
                yield from self._passes(reading)
            except SourceUnavailableError as error:
                self.progress.trouble = str(error)
                self.progress.reconnect_count += 1
                reading = _Reading(reading.position, self._tables(reading.position))
                self._wait(pause_s)
                pause_s = min(RETRY_S[1], pause_s * 2)
            else:
                pause_s = RETRY_S[0]

    def interrupt(self) -> None:
        self._is_interrupted = True
        with suppress(RuntimeError):  # it was let go already
            self._waiting.release()

    def _tables(self, at: PollPosition) -> list[PolledTable]:
        each = (polled(followed, self._orders[name], at) for name, followed in self._followed.items())
        return [table for tables in each for table in tables]

    def _wait(self, seconds: float) -> None:
        self._waiting.acquire(timeout=seconds)

    # One pass after another, in the order in which they happen.
    def _passes(self, reading: _Reading) -> Iterator[Batch]:
        with closing(self._open_source()) as source, closing(self._open_own()) as tokens:
            _begin_session(source)
            _begin_session(tokens)
            reading.check(source)
            writers, marks = self._writers(source), _Marks(self._marks, tokens)
            looked_at = float("-inf")
            while not self._is_interrupted:
                began = time.monotonic()
                if began - looked_at > LOOK_EVERY_S:
                    reading.look_at_patterns(source)
                    reading.leave_those_that_begin_again(source)
                    looked_at = began
                for table in reading.tables:
                    table.look(source, writers)
                new_marks = marks.new(began, reading.marks)
                new_rows = reading.read(source)
                is_cut = not source.open  # at its bytes; the next session goes on
                if reading.is_begun and not reading.is_behind:
                    reading.pass_marks(new_marks)
                self.progress.trouble = None
                self.progress.received_at = time.monotonic()
                self.progress.is_at_end = not reading.is_behind
                if (batch := reading.batch(new_rows)) is not None:
                    yield batch
                if is_cut:
                    return
                if not reading.is_behind and not self._is_interrupted:
                    self._wait(max(0.0, self._every_s - (time.monotonic() - began)))


class _Reading:
    """One reading, and how far it has come."""

    def __init__(self, begin: PollPosition, tables: Sequence[PolledTable]) -> None:
        self.position = begin
        self.tables = [*tables]
        self.marks: dict[str, str] = {}  # by name, the token that was passed last
        self.passed: list[str] = []  # tokens that were passed since the last batch
        self.is_behind = True  # there is more than was read
        self._halts: list[tuple[Followed, str]] = []
        self._left: list[str] = []  # whose reading the next batch ends; after an error before it they are found again
        self._first = 0  # of the tables, the one that is read first
        self._is_settled = True  # the position is as it was, but for rows
        self._whole_us = self._oldest_us = 0  # when the last whole look began, and that before it; Unix time

    @property
    def is_begun(self) -> bool:
        return all(table.ids is not None for table in self.tables)

    def leave_those_that_begin_again(self, connection: Connection) -> None:
        """Stop reading tables whose ids begin again: which of their rows are new nobody can tell."""
        for table in [*self.tables]:
            if table in self.tables and table.begins_again(connection):
                reason = (
                    f"the ids of {table.name} begin again: it was truncated, or made anew. Rows that come under ids "
                    "which were read before cannot be told from those. To read all that it has now: viewtail replay. "
                    "Where versions began again too, views then have higher ones: viewtail verify --repair"
                )
                self._leave(table.followed, [table.name], reason)

    def look_at_patterns(self, connection: Connection) -> None:
        """Look which tables match now. Raises TablesChangedError where they are to be described again."""
        for pattern in {table.followed for table in self.tables}:
            whole = pattern.table
            if whole.pattern is None:
                continue
            names = {part.full_name for part in parts_of(connection, whole.pattern)}
            known = {table.full_name for table in whole.each}
            if gone := sorted({*self.position.of_pattern(whole)} - names):
                reason = (
                    f"{', '.join(gone)}, of the tables {whole.full_name}, is gone: dropped or renamed. Views still "
                    "show what it had. Bring it back, or have them show the tables that are left: viewtail replay"
                )
                self._leave(pattern, gone, reason)
            elif changed := sorted(names ^ known):
                raise TablesChangedError(
                    f"{', '.join(changed)} came to the tables {whole.full_name}, or went: the pipeline goes on with "
                    "those that there are, with a new one from its first row"
                )

    def _leave(self, followed: Followed, names: Sequence[str], reason: str) -> None:
        """Read no more of what is followed; the reading of these tables begins anew one day."""
        self._halts.append((followed, reason))
        self.tables = [table for table in self.tables if table.followed is not followed]
        self._left += names

    def read(self, connection: Connection) -> list[tuple[Followed, list[Row]]]:
        """Read what is new in the tables, up to MOST_BYTES; those behind that come first in the next look."""
        new_rows, byte_count = [], 0
        self.is_behind = False
        began_us = time.time_ns() // 1_000
        self._oldest_us = self._whole_us or began_us
        in_turn = [*self.tables[self._first :], *self.tables[: self._first]]
        self._first = 0
        for table in in_turn:
            if not connection.open or byte_count > MOST_BYTES:  # the SELECT before was cut at its bytes, or was much
                self.is_behind, self._first = True, self.tables.index(table)
                break
            before = table.passed
            rows, is_whole = table.read(connection)
            self.is_behind = self.is_behind or not is_whole
            self._is_settled = self._is_settled and table.passed == before
            if rows:
                new_rows.append((table.followed, rows))
                byte_count += _bytes_of(rows)
        if not self.is_behind:
            self._whole_us = began_us
        return new_rows

    def pass_marks(self, marks: Mapping[str, str]) -> None:
        """Pass these watermarks: all that was committed before they were seen has been read."""
        self.marks.update(marks)
        self.passed += marks.values()

    def check(self, connection: Connection) -> None:
        """Look at all tables before anything is read of them."""
        self.look_at_patterns(connection)
        for table in self.tables:
            table.check(connection)

    def _ids(self) -> dict[str, Ids]:
        """Return how far each table is that has begun."""
        return {table.name: table.ids for table in self.tables if table.ids is not None}

    def batch(self, new_rows: Sequence[tuple[Followed, list[Row]]]) -> Batch | None:
        """Make a batch of what was read since the last one; None where nothing happened."""
        if self._is_settled and not any((new_rows, self.passed, self._halts)):
            return None
        self.position = self.position.without(self._left).behind(self._ids())
        self._left = []
        version = self.position.version
        changes = [RowChanges(followed, INSERT, version, rows) for followed, rows in new_rows if rows]
        refused: list[Refused] = []
        if Unreadable.made:
            changes, refused = _parted(changes)
        halts = [Halt(followed, version, reason) for followed, reason in self._halts]
        marks, self.passed, self._halts, self._is_settled = self.passed, [], [], True
        count = sum(len(rows) for _, rows in new_rows)
        return Batch(
            changes=changes,
            end=self.position,
            row_count=count,
            byte_count=sum(map(_bytes_of, (rows for _, rows in new_rows))),
            # When rows were committed their table does not say; not before it was read to its end.
            oldest_commit_us=self._oldest_us,
            refused=refused,
            halts=halts,
            watermarks=[Watermark(token, version) for token in marks],
            is_quiet=not any((new_rows, halts)),
        )


def _bytes_of(rows: Sequence[Row]) -> int:
    """Estimate the rows' bytes by the average of a few."""
    some = rows[:: max(1, len(rows) // 20)]
    size = sum(ROW_BYTES + sum(len(value) for value in row if isinstance(value, str | bytes)) for row in some)
    return size * len(rows) // max(1, len(some))


@contextmanager
def _polling() -> Iterator[None]:
    """Raises SourceUnavailableError."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise SourceUnavailableError(f"polling failed: {number_of(error)} {type(error).__name__}. {RETRIES}") from None


def _parted(changes: Sequence[RowChanges]) -> tuple[list[RowChanges], list[Refused]]:
    """Part the rows that can be read from the others, each of which stands by itself."""
    readable, refused = [], []
    for change in changes:
        good = []
        for row in change.rows:
            if (wrong := unreadable_in(row)) is None:
                good.append(row)
            else:
                refused.append(Refused(change.followed, INSERT, change.version, [row], wrong.reason))
        if good:
            readable.append(RowChanges(change.followed, INSERT, change.version, good))
    return readable, refused


def _begin_session(connection: Connection) -> None:
    with _polling(), connection.cursor() as cursor:
        cursor.execute(_SESSION)
