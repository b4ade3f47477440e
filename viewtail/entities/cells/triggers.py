"""Calls a function for each cell of a table, at least once, and keeps how far that has come.

Cells are read as a polled source reads its tables (ingest/poll): by `added_at`, none missed, however long a transaction
takes. The place of the last call is kept beside the cells; after a crash, calls behind that place are made again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

import pymysql
import structlog

from ingest.canonical.tables import describe
from ingest.limits import Limits
from ingest.poll.kind import writers_on
from ingest.poll.position import PollPosition
from ingest.poll.source import PollSource
from ingest.read_ahead import ReadAhead
from offsets.lease import lock_name
from viewtail.changes.batches import Batch, Followed, Row
from viewtail.changes.errors import MisuseError, SourceError, StopRequested, TemporaryError, place_of
from viewtail.entities.cells.cell_table import COLUMNS, MOST_NAME, Cell, body_of
from viewtail.entities.cells.cells import Cells
from viewtail.servers.sessions import Connection, open_session, value_of

_log = structlog.get_logger("viewtail.cells")

SAVE_EVERY_S = 1.0
AGAIN_S = (0.1, 30.0)  # first, and at most
_TICK_S = 0.25


@dataclass(slots=True, kw_only=True)
class Trigger:
    """Calls a function for each cell of a table, or of one column of it, from the first one that is there.

        trigger = Trigger(cells=cells, name="welcome", function=welcome, column="users")
        trigger.run(stop)  # until the threading.Event is set

    Each cell is given to the function at least once, about in the order in which cells were added: one that a long
    transaction brings comes later. Of several processes that run a trigger of one name one calls, the others stand by.

    Args:
        name: under which it is kept how far the calls have come.
        column: its cells alone; None: those of all columns.
        every_s: between two looks at the table.
        wait_s: how long the longest transaction takes, where the server does not say who may still bring a cell. A cell
            of one that takes longer is missed.
    """

    cells: Cells
    name: str
    function: Callable[[Cell], object]
    column: str | None = None
    every_s: float = 0.1
    wait_s: float | None = None
    trouble: str | None = field(default=None, init=False)  # why it does not get on now
    _saved_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= MOST_NAME:
            raise MisuseError(f"a trigger's name is text of 1 to {MOST_NAME} characters")
        if not callable(self.function):
            raise MisuseError(f"trigger {self.name}: its function is none")

    def run(self, stop: threading.Event) -> None:
        """Call the function for new cells until `stop` is set. If it raises, it is called again with the same cell.

        Later cells wait meanwhile. Raises SourceError if the table cannot be read without missing cells, StoreError if
        the server refuses it."""
        pause_s = AGAIN_S[0]
        while not stop.is_set():
            try:
                with closing(self._session()) as session:
                    if self._is_ours(session):
                        self._follow(session, stop)
                pause_s = AGAIN_S[0]
            except StopRequested:
                return
            except (TemporaryError, pymysql.err.MySQLError) as error:
                failed = self.cells.mapped(error) if isinstance(error, pymysql.err.MySQLError) else error
                if not isinstance(failed, TemporaryError):
                    raise failed from None
                self._say(str(failed))
                stop.wait(pause_s)
                pause_s = min(2 * pause_s, AGAIN_S[1])

    def _session(self) -> Connection:
        session = open_session(self.cells.address, role="source")
        session.autocommit(True)
        return session

    def _is_ours(self, session: Connection) -> bool:
        """Return whether this process has the lock; wait for a moment. Its session holds it as long as that lives."""
        name = lock_name(self.cells.table.name, f"trigger {self.name}")
        return bool(value_of(session, "SELECT GET_LOCK(%s, 1)", name))

    def _follow(self, session: Connection, stop: threading.Event) -> None:
        position = self._position(session)
        with ReadAhead(self._source(session), position, Limits(), lambda: _TICK_S) as batches:
            for batch in batches:
                if stop.is_set():
                    raise StopRequested
                if batch is not None:
                    position = self._take(batch, position, session, stop)

    def _source(self, session: Connection) -> PollSource:
        schema, name = self.cells.table.schema_and_table
        table = describe(session, schema, name)
        wanted = COLUMNS.split(", ")
        columns = tuple(column.name for column in table.columns if column.name in wanted)
        return PollSource(
            {(schema, name): Followed(table, columns=columns, order="added_at")},
            {(schema, name): "added_at"},
            open_source=self._session,
            open_own=self._session,
            marks="",
            writers=partial(writers_on, address=self.cells.address, wait_s=self.wait_s),
            epoch=0,
            every_s=self.every_s,
        )

    def _take(self, batch: Batch, before: PollPosition, session: Connection, stop: threading.Event) -> PollPosition:
        """Call the function for the cells of a batch; return the place behind it."""
        for halt in batch.halts:
            raise SourceError(
                f"trigger {self.name}: {halt.reason.partition(' To read')[0]} To have all cells that are there now: "
                f"DELETE FROM {self.cells.table.quoted_triggers} WHERE name = '{self.name}'"
            )
        for refused in batch.refused:
            raise SourceError(f"trigger {self.name}: a cell cannot be read: {refused.reason}")
        table = self.cells.table.name
        ids = before.ids(table)
        assert ids is not None, "it begins at the first cell"
        called: list[int] = []
        for cell in _cells(batch):
            if self.column is None or cell.column_name == self.column:
                self._call(cell, stop)
            called.append(cell.added_at)
            if monotonic() - self._saved_at > SAVE_EVERY_S:
                ids.add(sorted(called))
                called = []
                self._save(session, before.behind({table: ids}))
        assert isinstance(batch.end, PollPosition)
        self._save(session, batch.end)
        return batch.end

    def _call(self, cell: Cell, stop: threading.Event) -> None:
        pause_s = AGAIN_S[0]
        while True:
            if stop.is_set():
                raise StopRequested
            try:
                self.function(cell)
            except Exception as error:  # the user's own code
                self._say(
                    f"its function raised {type(error).__name__}{place_of(error)} for the cell whose added_at is "
                    f"{cell.added_at}, and is called again with it; the cells behind it wait"
                )
            else:
                self.trouble = None
                return
            stop.wait(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S[1])

    def _say(self, trouble: str) -> None:
        self.trouble = trouble
        _log.warning("trigger", name=self.name, trouble=trouble)

    # -- how far it has come --------------------------------------------------------------------------------------

    def _position(self, session: Connection) -> PollPosition:
        text = value_of(session, f"SELECT position FROM {self.cells.table.quoted_triggers} WHERE name = %s", self.name)
        return PollPosition.from_text(text) if text else PollPosition(0, 0, {self.cells.table.name: (0, ())})

    def _save(self, session: Connection, position: PollPosition) -> None:
        with session.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {self.cells.table.quoted_triggers} (name, position) VALUES (%s, %s) "
                "ON DUPLICATE KEY UPDATE position = VALUES(position)",
                (self.name, position.to_text()),
            )
        self._saved_at, self.trouble = monotonic(), None


def _cells(batch: Batch) -> Iterator[Cell]:
    for change in batch.changes:
        names = change.followed.columns
        at = [names.index(name) for name in COLUMNS.split(", ")]
        for row in change.rows:
            yield _cell(row, at)


def _cell(row: Row, at: list[int]) -> Cell:
    added_at, row_key, column_name, ref_key, body = (row[index] for index in at)
    parsed = body_of(body, added_at)
    return Cell(added_at=added_at, row_key=row_key, column_name=column_name, ref_key=ref_key, body=parsed)
