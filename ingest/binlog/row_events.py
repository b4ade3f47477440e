"""Rows that the hot loops do not decode: partial images, texts that are invalid, extra data before the rows.

What can be read is kept, a row with an unreadable value is refused, and a table none of whose rows can be read halts.
"""

from __future__ import annotations

from ingest.binlog.events import DELETE_ROWS, PARTIAL_UPDATE_ROWS, UPDATE_ROWS, WRITE_ROWS, WRITE_ROWS_V1, Event
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.partial_json import PartialUpdates
from ingest.binlog.stream_errors import BACKFILL_TABLE
from ingest.binlog.table_readers import TableReader
from ingest.binlog.walk import Walk
from viewtail.changes.batches import Followed, Refused, Row, RowChanges, unreadable_in
from viewtail.changes.errors import TableUnreadableError

_V2_LESS_V1 = WRITE_ROWS - WRITE_ROWS_V1
_TABLE_BYTES = 8  # table id and flags, at the beginning of an event's body


class RowEvents:
    """Reads row events in all forms that they can have."""

    def __init__(self, walk: Walk) -> None:
        self._transaction, self._tables, self._place = walk.transaction, walk.tables, walk.place

    def handle(self, event: Event) -> None:
        """An event that has a position of its own."""
        if reader := self._tables.of_event(event):
            self._transaction.hold(event.size)
            self.read(reader, event, self._place.version(event.log_pos))

    def read(self, reader: TableReader, event: Event, version: int) -> None:
        """An event with extra data before its rows (partitions), or without any; a partial image halts the table."""
        kind, _, buffer, start, end, _, _ = event
        at = start + _TABLE_BYTES
        if kind < WRITE_ROWS:  # of the first version, which has no place for such data
            kind += _V2_LESS_V1
            event = event._replace(kind=kind)
        else:
            at += int.from_bytes(buffer[at : at + 2], "little")
        image = reader.write_image if kind in (WRITE_ROWS, DELETE_ROWS) else reader.update_image
        rows_at = at + len(image) - 2
        if buffer[at:rows_at] != image[2:]:
            why = (
                "a row event does not hold the full row image. Run SET GLOBAL binlog_row_image = 'FULL' (and see that "
                f"no session changes it), then {BACKFILL_TABLE}"
            )
            self._tables.halt(reader.followed, version, why)
        elif kind == PARTIAL_UPDATE_ROWS:
            self._partial_update(reader, event, version, rows_at)
        elif reader.current is not None:
            self._versioned(reader, event, version, rows_at)
        else:
            try:
                rows = reader.decode(buffer, rows_at, end)
                if kind == UPDATE_ROWS:
                    check_pairs(kind, rows, reader.followed)
                parts = (reader.followed, kind - WRITE_ROWS, version, rows, *self._origin(event))
                self._transaction.changes.append(tuple.__new__(RowChanges, parts))
            except (UnicodeDecodeError, TableUnreadableError) as error:
                self.after_failure(reader, event, version, rows_at, error)

    def after_failure(self, reader: TableReader, event: Event, version: int, rows_at: int, error: Exception) -> None:
        """Keep the rows of an event that can be read, refuse those with an unreadable value, halt if none can."""
        if isinstance(error, TableUnreadableError):
            self._tables.halt(reader.followed, version, str(error))
        elif (rows := self._careful(reader, event, version, rows_at)) is not None:
            self._sort_out(reader, event, event.kind, version, rows)

    def _origin(self, event: Event) -> tuple[Buffer, int]:
        return self._transaction.gtid, self._place.in_file(event.log_pos) - event.size

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
                self._sort_out(reader, event, change + WRITE_ROWS, version, some)

    def _partial_update(self, reader: TableReader, event: Event, version: int, rows_at: int) -> None:
        """An update whose after-images hold of a JSON column only what changed."""
        try:
            if reader.partial is None:
                reader.partial = PartialUpdates(reader.table_map, reader.followed, reader.part)
            rows = reader.partial.decode(event.buffer, rows_at, event.end)
        except TableUnreadableError as error:
            self._tables.halt(reader.followed, version, str(error))
            return
        self._sort_out(reader, event, UPDATE_ROWS, version, rows)

    def _sort_out(self, reader: TableReader, event: Event, kind: int, version: int, rows: list[Row]) -> None:
        """Keep the rows that can be read, refuse the others."""
        followed, change = reader.followed, kind - WRITE_ROWS
        step = 2 if kind == UPDATE_ROWS else 1
        transaction, start = self._origin(event)
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            bad = unreadable_in(value for row in some for value in row)
            if bad is None:
                self._transaction.changes.append(RowChanges(followed, change, version, some, transaction, start))
            elif followed is self._tables.watermark:
                self._tables.skip_watermark("its token holds bytes that are invalid in its character set")
            else:
                refused = Refused(followed, change, version, some, bad.reason, transaction, start)
                self._transaction.refused.append(refused)


def check_pairs(kind: int, rows: list[Row], followed: Followed) -> None:
    """Raises TableUnreadableError when an update's rows are not pairs of before and after."""
    if kind == UPDATE_ROWS and len(rows) & 1:
        raise TableUnreadableError(
            f"{followed.table.full_name}: an update event holds a row without what became of it, although the event "
            f"is whole. Look at the binlog with mysqlbinlog -v, then {BACKFILL_TABLE}"
        )
