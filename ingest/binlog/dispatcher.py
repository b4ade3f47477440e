"""Walks the events of a binlog as they lie in the receive buffer, and gathers committed transactions.

`_walk_events` is the hot loop: header, checksum, table map (known by its raw bytes), the table's generated decoder.
control_events.py handles all other events. No transaction leaves before its commit was read; one above `spool_bytes`
waits in a temporary file. Rows of tables nobody follows are never decoded.
"""

from __future__ import annotations

import struct
from zlib import crc32

from ingest.binlog import stream_errors
from ingest.binlog.common_transactions import CommonTransactions
from ingest.binlog.control_events import ControlEvents
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.delivery import Delivery
from ingest.binlog.events import (
    CHECKSUM_RESIDUE,
    DELETE_ROWS,
    FORMAT_DESCRIPTION,
    GTID,
    QUERY,
    TABLE_MAP,
    UPDATE_ROWS,
    WRITE_ROWS,
    XID,
    Event,
)
from ingest.binlog.gtids import GTID_BYTES
from ingest.binlog.open_transaction import OpenTransaction
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.place import Place, TransactionEnd
from ingest.binlog.query_event import is_begin
from ingest.binlog.row_events import check_pairs
from ingest.binlog.table_readers import OWN_TABLE, TableReaders, Wanted
from ingest.binlog.transaction_layouts import PACKET_HEAD_BYTES
from ingest.binlog.walk import Walk
from viewtail.changes.batches import RowChanges
from viewtail.changes.errors import TableUnreadableError

# Packet length and sequence, status byte | timestamp, type, server id, event size, end position, flags.
_HEAD = struct.Struct("<IBIBIIIH")
_U32 = struct.Struct("<I").unpack_from
_TABLE_ID = struct.Struct("<IH").unpack_from
_CHECKSUM_BYTES = 4


class Dispatcher:
    """One connection's walk. `consume` takes what was received; `batches` gives what is committed.

    Args:
        after: the position to go on from; where it names a transaction, that one is read again and compared.
        has_checksums: whether events end with four bytes of CRC-32.
        large_files: where a start by set would not know its place: what the server leaves out may hide a wrap.
        unchecked_formats: format descriptions that have no checksum.
        server: identity of the server, for positions.
        folds_names: whether the server takes table names that differ in case for one; None: perhaps.
    """

    def __init__(
        self,
        wanted: Wanted,
        *,
        after: BinlogPosition,
        has_checksums: bool,
        large_files: frozenset[str] = frozenset(),
        unchecked_formats: frozenset[bytes] = frozenset(),
        server: str = "",
        folds_names: bool | None = None,
    ) -> None:
        self._place = Place(after, _CHECKSUM_BYTES if has_checksums else 0, server, large_files)
        self._transaction = OpenTransaction(self._place, after.start, wanted.spool_bytes)
        self._tables = TableReaders(self._place, self._transaction, wanted, folds_names=folds_names)
        walk = Walk(self._place, self._transaction, self._tables, wanted.max_event_bytes)
        self._unchecked_formats = unchecked_formats
        self._others = ControlEvents(walk, after)
        self._common = CommonTransactions(walk)
        self._delivery = Delivery(walk, self._others.compressed, self._others.xa)
        self.max_event_bytes = wanted.max_event_bytes
        self.halt_too_large = walk.halt_too_large
        self.batches = self._delivery.batches

    @property
    def place(self) -> str:
        """The place where reading is, for messages."""
        return str(self._place)

    @property
    def prepared(self) -> tuple[int, int]:
        """The number of XA transactions that wait for their commit, and when the oldest was prepared (microseconds)."""
        return self._others.xa.waiting

    @property
    def has_checksums(self) -> bool:
        """Return whether events end with a checksum, as the last format description said."""
        return self._place.checksum_bytes > 0

    @property
    def is_stopped(self) -> bool:
        """Return whether `consume` stopped behind a transaction above the memory bound, with more behind `batches`."""
        return self._transaction.spooled_end is not None or self._others.compressed.large is not None

    def consume(self, buffer: bytearray, start: int, filled: int) -> int:
        """Walk every whole event in buffer[start:filled]; returns where the first incomplete one begins.

        Stops early, behind the commit, when `is_stopped`: call `batches`, then go on. Raises SourceError for an event
        that cannot be read, CorruptEventError for one that another reading may bring whole.
        """
        try:
            p = self._common.take(buffer, start, filled)
            return p if p == filled else self._walk_events(buffer, p, filled)
        except stream_errors.MALFORMED as error:
            stream_errors.malformed(self.place, error)

    # hot loop: each call within an event costs 3 to 5 % of reading single rows [M]
    def _walk_events(self, buffer: bytearray, start: int, filled: int) -> int:  # noqa: C901, PLR0912, PLR0915
        head, table_id, check, residue = _HEAD.unpack_from, _TABLE_ID, crc32, CHECKSUM_RESIDUE
        transaction, tables, place, common = self._transaction, self._tables, self._place, self._common
        by_body, by_id, changes, gtids = tables.by_body, tables.by_id, transaction.changes, place.new_gtids
        new, change_type, others = tuple.__new__, RowChanges, self._others
        base, above, file, last_pos, checksum_bytes, is_comparing = self._load_place()
        txn_start, gtid, held, committed, committed_bytes, end, is_quiet = self._load_transaction()
        most_held, p = transaction.most_held, start
        other_at = start  # where a run of common transactions ended
        gtid_at = begin_at = -1  # the last GTID event, and its end
        with memoryview(buffer) as view:
            while filled - p >= PACKET_HEAD_BYTES:
                word, status, _, kind, _, size, log_pos, flags = head(buffer, p)
                q = p + 5 + size
                if status or (word & 0xFFFFFF != size + 1 and size < 0xFFFFFE):
                    break
                if q > filled:
                    break
                rows_end = q - checksum_bytes
                if checksum_bytes and check(view[p + 5 : q]) != residue:
                    self._failed_checksum(kind, bytes(view[p + 5 : q]), f"{file}:{last_pos}")
                b = p + PACKET_HEAD_BYTES
                if log_pos > last_pos and not is_comparing:
                    if kind == GTID:
                        if held:
                            stream_errors.not_ended(f"{file}:{last_pos}")
                        if p != other_at:
                            place.last_pos, transaction.held_bytes = last_pos, held
                            transaction.committed_bytes = committed_bytes
                            other_at = common.take(buffer, p, filled)
                            if p != other_at:
                                p, last_pos = other_at, place.last_pos
                                txn = self._load_transaction()
                                txn_start, gtid, held, committed, committed_bytes, end, is_quiet = txn
                                continue
                        gtid, txn_start = buffer[b : b + GTID_BYTES], above + log_pos - size
                        by_id.clear()
                        gtid_at, begin_at, last_pos, p = p, q, log_pos, q
                        continue
                    if kind == TABLE_MAP:
                        body = bytes(view[b:rows_end])
                        reader = by_body[body] if body in by_body else tables.reader(body, base | log_pos >> 4)
                        low, high = table_id(body)
                        by_id[low | high << 32] = reader
                        if reader is not OWN_TABLE:
                            is_quiet = False
                        last_pos, p = log_pos, q
                        continue
                    if WRITE_ROWS <= kind <= DELETE_ROWS:
                        low, high = table_id(buffer, b)
                        try:
                            reader = by_id[low | high << 32]
                        except KeyError:
                            stream_errors.rows_without_map(kind, f"{file}:{last_pos}")
                        if reader:
                            held += size
                            image = reader.update_image if kind == UPDATE_ROWS else reader.write_image
                            r = b + 8 + len(image)
                            if held > most_held:
                                held = transaction.spill(committed, held, size)
                                most_held = transaction.most_held
                            version = base | log_pos >> 4
                            if buffer[b + 8 : r] != image:  # not the full image, or with extra data
                                event = Event(kind, flags, buffer, b, rows_end, log_pos, size)
                                others.rows.read(reader, event, version)
                            else:
                                try:
                                    rows = reader.decode(buffer, r, rows_end)
                                    if kind == UPDATE_ROWS and len(rows) & 1:
                                        check_pairs(kind, rows, reader.followed)
                                    parts = (
                                        reader.followed,
                                        kind - WRITE_ROWS,
                                        version,
                                        rows,
                                        gtid,
                                        above + log_pos - size,
                                    )
                                    changes.append(new(change_type, parts))
                                except (UnicodeDecodeError, TableUnreadableError) as error:
                                    event = Event(kind, flags, buffer, b, rows_end, log_pos, size)
                                    others.rows.after_failure(reader, event, version, r, error)
                        last_pos, p = log_pos, q
                        continue
                    if kind == QUERY:
                        if is_begin(buffer, b, rows_end):
                            transaction.begun_at = txn_start
                            if p == begin_at:
                                common.openings.learn(buffer, gtid_at, p)
                            last_pos, p = log_pos, q
                            continue
                    elif kind == XID and transaction.spool is None and not transaction.refused:
                        committed = len(changes)
                        committed_bytes += held
                        held = 0
                        end = (file, above + log_pos, txn_start, gtid)
                        gtids += gtid
                        by_id.clear()
                        last_pos, p = log_pos, q
                        continue
                place.last_pos, transaction.start, transaction.gtid = last_pos, txn_start, gtid
                transaction.held_bytes, transaction.committed = held, committed
                transaction.committed_bytes, transaction.end, transaction.is_quiet = committed_bytes, end, is_quiet
                if not place.has_wrapped(kind, log_pos, size):
                    others.handle(new(Event, (kind, flags, buffer, b, rows_end, log_pos, size)))
                    p = q
                # else it is walked again, with its true position
                base, above, file, last_pos, checksum_bytes, is_comparing = self._load_place()
                txn_start, gtid, held, committed, committed_bytes, end, is_quiet = self._load_transaction()
                if transaction.spooled_end is not None or others.compressed.large is not None:
                    break
        place.last_pos, transaction.start, transaction.gtid = last_pos, txn_start, gtid
        transaction.held_bytes, transaction.committed = held, committed
        transaction.committed_bytes, transaction.end, transaction.is_quiet = committed_bytes, end, is_quiet
        if filled - p >= 5 and (buffer[p + 4] or _is_malformed(buffer, p, filled)):
            stream_errors.not_an_event(bytes(buffer[p + 4 : filled]), self.place)
        return p

    def _load_place(self) -> tuple[int, int, str, int, int, bool]:
        place = self._place
        base, above = place.base | place.wraps << 28, place.wraps << 32
        return base, above, place.file, place.last_pos, place.checksum_bytes, place.saved is not None

    def _load_transaction(self) -> tuple[int, Buffer, int, int, int, TransactionEnd | None, bool]:
        t = self._transaction
        return t.start, t.gtid, t.held_bytes, t.committed, t.committed_bytes, t.end, t.is_quiet

    def _failed_checksum(self, kind: int, event: bytes, place: str) -> None:
        """Raises CorruptEventError, but for a format description that is known to have no checksum."""
        # It has the bytes of one in any case, behind the byte that says whether the other events have one.
        if kind != FORMAT_DESCRIPTION or event[-1 - _CHECKSUM_BYTES]:
            stream_errors.corrupt(kind, place, crc32(event))
        if event not in self._unchecked_formats:
            why = f"the format description after {place} fails its checksum, or has none; reconnecting to read it again"
            raise stream_errors.UncheckedFormatError(why, event)


def _is_malformed(buffer: bytearray, p: int, filled: int) -> bool:
    """Return whether a packet's length disagrees with its event's (the source joins packets of 16 MiB and more)."""
    if filled - p < PACKET_HEAD_BYTES:
        return False
    length, size = _U32(buffer, p)[0] & 0xFFFFFF, _U32(buffer, p + 14)[0]
    return bool(length != size + 1 and size < 0xFFFFFE)
