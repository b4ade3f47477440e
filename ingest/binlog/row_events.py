"""Rows that the hot loops do not decode: partial images, texts that are invalid, extra data before the rows.

What can be read is kept, a row with an unreadable value is refused, and a table none of whose rows can be read halts.
"""

from __future__ import annotations

from changes.batches import Refused, Row, RowChanges, unreadable_in
from changes.errors import TableUnreadableError
from ingest.binlog.events import PARTIAL_UPDATE_ROWS, UPDATE_ROWS, WRITE_ROWS, Event
from ingest.binlog.partial_json import PartialUpdates
from ingest.binlog.stream_errors import check_pairs
from ingest.binlog.table_readers import TableReader
from ingest.binlog.walk import Walk

_TABLE_BYTES = 8  # table id and flags, at the beginning of an event's body


class RowEvents:
    """Reads row events in all forms that they can have."""

    def __init__(self, walk: Walk) -> None:
        self._transaction, self._tables = walk.transaction, walk.tables

    def read(self, reader: TableReader, event: Event, version: int) -> None:
        """An event of the present form; extra data before its rows (partitions) is stepped over."""
        at = event.start + _TABLE_BYTES
        at += int.from_bytes(event.buffer[at : at + 2], "little")
        self.from_image(reader, event, version, at)

    def from_image(self, reader: TableReader, event: Event, version: int, at: int) -> None:
        """Rows behind the bitmaps at `at`; a partial image halts the table."""
        is_update = event.kind == UPDATE_ROWS or event.kind == PARTIAL_UPDATE_ROWS
        image = (reader.update_image if is_update else reader.write_image)[2:]
        rows_at = at + len(image)
        if event.buffer[at:rows_at] != image:
            why = (
                "a row event does not hold the full row image. Run SET GLOBAL binlog_row_image = 'FULL' (and see that "
                "no session changes it), then fill the views again: viewtail replay VIEW"
            )
            self._tables.halt(reader.followed, version, why)
        elif event.kind == PARTIAL_UPDATE_ROWS:
            self._partial_update(reader, event, version, rows_at)
        elif reader.current is not None:
            self._versioned(reader, event, version, rows_at)
        else:
            self.full(reader, event, version, rows_at)

    def full(self, reader: TableReader, event: Event, version: int, rows_at: int) -> None:
        """Rows of full images."""
        try:
            rows = reader.decode(event.buffer, rows_at, event.end)
            check_pairs(event.kind, rows, reader.followed)
            change = (reader.followed, event.kind - WRITE_ROWS, version, rows)
            self._transaction.changes.append(tuple.__new__(RowChanges, change))
        except (UnicodeDecodeError, TableUnreadableError) as error:
            self.after_failure(reader, event, version, rows_at, error)

    def after_failure(self, reader: TableReader, event: Event, version: int, rows_at: int, error: Exception) -> None:
        """Keep the rows of an event that can be read, refuse those with an unreadable value, halt if none can."""
        if isinstance(error, TableUnreadableError):
            self._tables.halt(reader.followed, version, str(error))
        elif (rows := self._careful(reader, event, version, rows_at)) is not None:
            self._sort_out(reader, event.kind, version, rows)

    def _careful(self, reader: TableReader, event: Event, version: int, rows_at: int) -> list[Row] | None:
        """The rows, values that cannot be read marked as such; None: the table halts."""
        try:
            rows = reader.decoder.decode_carefully(event.buffer, rows_at, event.end)
            check_pairs(event.kind, rows, reader.followed)
        except TableUnreadableError as error:
            self._tables.halt(reader.followed, version, str(error))
            return None
        return rows

    def _versioned(self, reader: TableReader, event: Event, version: int, rows_at: int) -> None:
        """Rows of a system-versioned table: those that are history are left out."""
        assert reader.current is not None
        if (rows := self._careful(reader, event, version, rows_at)) is not None:
            for change, some in reader.current(event.kind - WRITE_ROWS, rows):
                self._sort_out(reader, change + WRITE_ROWS, version, some)

    def _partial_update(self, reader: TableReader, event: Event, version: int, rows_at: int) -> None:
        """An update whose after-images hold of a JSON column only what changed."""
        try:
            if reader.partial is None:
                reader.partial = PartialUpdates(reader.table_map, reader.followed)
            rows = reader.partial.decode(event.buffer, rows_at, event.end)
        except TableUnreadableError as error:
            self._tables.halt(reader.followed, version, str(error))
            return
        self._sort_out(reader, UPDATE_ROWS, version, rows)

    def _sort_out(self, reader: TableReader, kind: int, version: int, rows: list[Row]) -> None:
        """Keep the rows that can be read, refuse the others."""
        followed, change = reader.followed, kind - WRITE_ROWS
        step = 2 if kind == UPDATE_ROWS else 1
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            bad = unreadable_in(value for row in some for value in row)
            if bad is None:
                self._transaction.changes.append(RowChanges(followed, change, version, some))
            elif followed is self._tables.watermark:
                self._tables.skip_watermark("its token holds bytes that are invalid in its character set")
            else:
                self._transaction.refused.append(Refused(followed, change, version, some, bad.reason))
