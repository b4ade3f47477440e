"""The offset of a pipeline of index tables: saved on the sink's connection, in the transaction of the rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from offsets import Taken
from offsets.mysql import MySQLOffsets
from viewtail.changes.positions import Position
from viewtail.servers.sessions import Connection

if TYPE_CHECKING:
    from projectors.stores.index_tables.sink import MySQLSink

LATE_S = 0.25  # so long the offset may trail behind rows that were committed without it


class SharedOffsets:
    """An OffsetStore; `MySQLSink.offsets` makes it."""

    def __init__(self, offsets: MySQLOffsets, sink: MySQLSink) -> None:
        self._offsets, self._sink = offsets, sink
        # To be saved, but not yet, and on which session: a new one may be to a server that lost those rows.
        self._late: tuple[Position, Connection] | None = None
        self._saved_at = 0.0

    def take(self) -> Taken:
        return self._offsets.take()

    def save(self, position: Position) -> None:
        """Save it at once; after rows that were committed without it, not more often than every LATE_S."""
        if position is self._sink.committed_upto and time.monotonic() - self._saved_at < LATE_S:
            self._late = position, self._sink.connection
        else:
            self._save(position)

    def _save(self, position: Position) -> None:
        self._offsets.commit(position, self._sink.take_moved(position))
        self._late, self._saved_at = None, time.monotonic()

    def settle(self) -> None:
        late, self._late = self._late, None
        if late is not None and late[1] is self._sink.connection:
            self._save(late[0])

    def confirm(self) -> None:
        self.settle()

    def save_rows(self) -> None:
        self._offsets.save_rows()

    def saved(self) -> Position | None:
        """The offset as the server has it."""
        return self._offsets.saved()

    def close(self) -> None:
        self.settle()

    def abandon(self) -> None:
        """Do nothing: the sink ends the session."""
