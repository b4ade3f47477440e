"""MySQL's compressed transactions: one event that holds a whole transaction.

Its events have no position of their own: the bytes of the compressed event in the file are shared out among them, in
order. One above the memory bound is walked in pieces, while its rows are delivered (delivery.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import zstandard

from ingest.binlog import events
from ingest.binlog.events import Event
from ingest.binlog.payload import MalformedPayloadError, Payload
from ingest.binlog.query_event import is_begin
from ingest.binlog.row_events import RowEvents
from ingest.binlog.statement_events import StatementEvents
from ingest.binlog.stream_errors import unknown_event, unreadable
from ingest.binlog.table_readers import OWN_TABLE
from ingest.binlog.walk import Walk
from ingest.binlog.xa_transactions import XaTransactions

_HEAD_BYTES = 19
_HEAD = struct.Struct("<IBIIIH")  # time, type, server id, event size, end position, flags


@dataclass(slots=True, eq=False)
class Compressed:
    """A compressed transaction while its events are walked."""

    payload: Payload
    start: int  # of its event in the file, in bytes
    length: int
    log_pos: int  # the header's end position
    done: int = 0  # bytes of the events that were walked


class CompressedTransactions:
    """Handles TRANSACTION_PAYLOAD events."""

    def __init__(self, walk: Walk, rows: RowEvents, statements: StatementEvents, xa: XaTransactions) -> None:
        self._walk, self._rows = walk, rows
        self._decompressor = zstandard.ZstdDecompressor()
        self.large: Compressed | None = None  # above the memory bound: it waits to be walked in pieces
        self._handlers: dict[int, Callable[[Event], None]] = {
            events.XID: lambda event: walk.commit(event.log_pos),
            events.XA_PREPARE: xa.prepare,
            events.QUERY: statements.query,
        }

    def handle(self, event: Event) -> None:
        """Walk a compressed transaction, or keep one above the memory bound in `large`."""
        transaction, end = self._walk.transaction, self._walk.place.in_file(event.log_pos)
        try:
            payload = Payload(bytes(event.buffer[event.start : event.end]), self._decompressor)
            compressed = Compressed(payload, end - event.size, event.size, event.log_pos)
            if payload.size > transaction.spool_bytes:
                self.large = compressed
                return
            content = payload.whole()
        except MalformedPayloadError as error:
            self.refuse(event.log_pos, error)
        walked = self.walk_events(compressed, content)
        if walked != len(content) or transaction.end is None or transaction.end[1] != end:
            self.refuse(event.log_pos, "it ends inside an event or a transaction")

    def refuse(self, log_pos: int, why: object) -> NoReturn:
        """Raise the SourceError for a compressed transaction that cannot be read."""
        raise unreadable(f"the compressed transaction at {self._walk.place.file}:{log_pos} cannot be read: {why}")

    def walk_events(self, compressed: Compressed, content: bytes) -> int:
        """Walk every whole event at the beginning of `content`; returns how many bytes that was."""
        head, new, base = _HEAD.unpack_from, tuple.__new__, self._walk.place.base
        start, length, done = compressed.start, compressed.length, compressed.done
        whole, log_pos, p, filled = compressed.payload.size, compressed.log_pos, 0, len(content)
        while filled - p >= _HEAD_BYTES:
            _, kind, _, size, _, flags = head(content, p)
            q, b = p + size, p + _HEAD_BYTES
            if size < _HEAD_BYTES or q > filled:
                if size < _HEAD_BYTES:
                    self.refuse(log_pos, f"an event of {size} bytes")
                if size > self._walk.max_event_bytes:
                    why = f"an event of {size} bytes is above run.max_event_bytes; raise that setting"
                    self.refuse(log_pos, why)
                break
            version = base + (start + (done + q) * length // whole >> 4)
            self._handle(new(Event, (kind, flags, content, b, q, log_pos, size)), version)
            p = q
        compressed.done += p
        return p

    def _handle(self, event: Event, version: int) -> None:
        kind, walk = event.kind, self._walk
        if kind in events.ROWS:
            if reader := walk.tables.of_event(event):
                walk.transaction.held_bytes += event.size
                self._rows.read(reader, event, version)
        elif kind == events.TABLE_MAP:
            if walk.tables.add(event.buffer[event.start : event.end], version) is not OWN_TABLE:
                walk.transaction.is_quiet = False
        elif kind == events.QUERY and is_begin(event.buffer, event.start, event.end):
            walk.transaction.mark_begun()
        elif (handler := self._handlers.get(kind)) is not None:
            handler(event)
        elif kind not in events.SILENT and not event.flags & events.IGNORABLE_FLAG:
            unknown_event(kind, f"{walk.place.file}:{event.log_pos}")
