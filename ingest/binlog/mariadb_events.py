"""Handles what only MariaDB's binlog has: its GTIDs, which begin transactions, and compressed events.

Source of the forms: Gtid_log_event and binlog_buf_uncompress (sql/log_event.h, sql/log_event.cc) of MariaDB 10.11.
"""

from __future__ import annotations

import struct
import zlib

from ingest.binlog import events, gtids, packed_integers
from ingest.binlog.events import Event
from ingest.binlog.mariadb_types import MalformedCompressionError, declared, inflated
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.statement_events import StatementEvents
from ingest.binlog.stream_errors import name_of, unreadable
from ingest.binlog.walk import Walk

_GTID = struct.Struct("<QIB").unpack_from  # number, domain, flags
_GTID_BYTES = 13
_STANDALONE, _GROUP_COMMIT, _XA = 0x01, 0x02, 0x40 | 0x80
_START_ALTER, _ROLLBACK_ALTER = 0x02, 0x08  # extra flags: the statement that decides is another event's
_HEADER = struct.Struct("<IBI").unpack_from  # time, type, server id
_HEADER_BYTES = 19
_ROWS_V2 = frozenset({events.WRITE_ROWS, events.UPDATE_ROWS, events.DELETE_ROWS})


class MariaDBEvents:
    """Handles these events."""

    def __init__(self, walk: Walk, statements: StatementEvents) -> None:
        self._walk, self._statements = walk, statements

    def begin(self, event: Event, start: int) -> None:
        """A GTID event at `start`."""
        transaction, buffer = self._walk.transaction, event.buffer
        number, domain, flags = _GTID(buffer, event.start)
        committed_at_s, _, server = _HEADER(buffer, event.start - _HEADER_BYTES)
        transaction.begin(gtids.mariadb(domain, server, number, committed_at_s), start)
        if not flags & _STANDALONE:  # what follows is a transaction; no BEGIN says so
            transaction.mark_begun()
        if flags & _XA:  # nor XA START
            transaction.mark_branch()
        extra = _extra_flags(buffer, event.start, event.end, flags)
        self._statements.changes_nothing = bool(extra & (_START_ALTER | _ROLLBACK_ALTER))

    def decompressed(self, event: Event) -> Event | None:
        """The plain event that a compressed one holds; None: it was too large, and its table halts."""
        kind, buffer, b = event.kind, event.buffer, event.start
        try:
            at = _compressed_at(kind, buffer, b)
            length, start = declared(buffer, at, event.end)
            if length > self._walk.max_event_bytes:
                self._walk.halt_too_large(bytes(buffer[b - _HEADER_BYTES : at]), length)
                return None
            content = inflated(buffer[start : event.end], length, wbits=zlib.MAX_WBITS)
        except (MalformedCompressionError, IndexError) as error:
            where = f"{self._walk.place.file}:{event.log_pos}"
            raise unreadable(f"event {name_of(kind)} at {where} cannot be decompressed: {error}") from None
        plain, kind = buffer[b - _HEADER_BYTES : at] + content, events.COMPRESSED[kind]
        return Event(kind, event.flags, plain, _HEADER_BYTES, len(plain), event.log_pos, len(plain))


def _extra_flags(buffer: Buffer, b: int, rows_end: int, flags: int) -> int:
    """The flags behind the group's commit number and the XA name, where the server wrote them."""
    at = b + _GTID_BYTES
    if flags & _GROUP_COMMIT:
        at += 8
    if flags & _XA:
        at += 6 + buffer[at + 4] + buffer[at + 5]
    return buffer[at] if at < rows_end else 0


def _compressed_at(kind: int, buffer: Buffer, b: int) -> int:
    """Find where in an event's body the compressed part begins."""
    if kind == events.MARIADB_QUERY_COMPRESSED:
        return b + 13 + (buffer[b + 11] | buffer[b + 12] << 8) + buffer[b + 8] + 1
    plain = events.COMPRESSED[kind]
    at = b + 8
    if plain in _ROWS_V2:
        at += buffer[at] | buffer[at + 1] << 8
    count, at = packed_integers.integer(buffer, at)
    bitmaps = 2 if plain in (events.UPDATE_ROWS, events.UPDATE_ROWS_V1) else 1
    return at + (count + 7) // 8 * bitmaps
