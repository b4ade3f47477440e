"""Joins what the handlers of events work on: the place, the open transaction and the tables of one walk."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from ingest.binlog.events import IGNORABLE_FLAG, NAMES, ROW_EVENTS, SILENT, Event
from ingest.binlog.open_transaction import OpenTransaction, Savepoint
from ingest.binlog.place import Place
from ingest.binlog.stream_errors import BACKFILL_TABLE, name_of
from ingest.binlog.table_readers import TableReaders
from viewtail.changes.batches import Followed
from viewtail.changes.errors import SourceError

_HEADER = struct.Struct("<4xB8xIH")  # of an event: type, end position, flags
_HEADER_BYTES = 19


@dataclass(frozen=True, slots=True)
class Walk:
    """One connection's walk through the binlog, and the steps that concern more than one of its parts."""

    place: Place
    transaction: OpenTransaction
    tables: TableReaders
    max_event_bytes: int  # a larger row event is not received, and halts its table's views

    def commit(self, log_pos: int) -> None:
        """The open transaction ended at `log_pos`; a row event behind it has no table map."""
        self.transaction.commit(log_pos)
        self.tables.by_id.clear()

    def take_back(self, savepoint: Savepoint) -> None:
        """A rollback: drop what the open transaction holds since the savepoint."""
        if self.transaction.is_in_pieces:
            self.halt_touched("a rollback comes behind rows that were delivered already")
        else:
            self.transaction.take_back(savepoint)

    def halt_touched(self, why: str) -> None:
        """Halt every followed table that the open transaction has a table map of; drop what it holds."""
        touched = [reader.followed for reader in self.tables.by_id.values() if reader]
        self.halt(touched, self.place.last_pos, why)
        self.transaction.forget()

    def halt(self, tables: Iterable[Followed], log_pos: int, why: str) -> None:
        """Halt tables whose views must be backfilled again."""
        for followed in dict.fromkeys(tables):
            self.tables.halt(followed, self.place.version(log_pos), f"{why}. To go on, {BACKFILL_TABLE}")

    def halt_too_large(self, event: bytes, size: int) -> None:
        """Halt the table of a row event above `max_event_bytes`; `event` holds its header and first bytes.

        Raises SourceError for another event that matters.
        """
        place, (kind, log_pos, flags) = self.place, _HEADER.unpack_from(event)
        place.has_wrapped(kind, log_pos, size)
        if kind in SILENT or (flags & IGNORABLE_FLAG and kind not in NAMES):
            place.last_pos = log_pos
            return
        above = f"a {name_of(kind)} event of {size} bytes"
        bound = f"is above run.max_event_bytes ({self.max_event_bytes})"
        if kind not in ROW_EVENTS:
            raise SourceError(f"{above} at {place.file}:{log_pos} {bound}; raise that setting")
        # While the saved transaction is compared, table maps are not read.
        whole = Event(kind, flags, event, _HEADER_BYTES, len(event), log_pos, size)
        reader = None if place.saved is not None else self.tables.of_event(whole)
        place.last_pos = log_pos
        if reader:
            why = f"{above} {bound}. Raise that setting, then {BACKFILL_TABLE}"
            self.tables.halt(reader.followed, place.version(log_pos), why)
