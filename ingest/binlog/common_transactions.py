"""The common transactions, read as a whole: GTID, BEGIN, one table map, one row event, commit.

Most transactions of a busy server have this form. To parse each header by itself would cost more than to decode their
rows. A transaction of another layout, or one that is not whole yet, is left to the general walk (dispatcher.py).
"""

from __future__ import annotations

from zlib import crc32

from ingest.binlog.events import CHECKSUM_RESIDUE, DELETE_ROWS, UPDATE_ROWS, WRITE_ROWS
from ingest.binlog.table_readers import TableReader
from ingest.binlog.transaction_layouts import BEGIN_TAIL, XID_PACKET_BYTES, Opening, Openings, xid_head
from ingest.binlog.walk import Walk
from viewtail.changes.batches import RowChanges
from viewtail.changes.errors import TableUnreadableError

_LOOK_AHEAD = 64  # more than an event's header, and what is looked at before its length is known


class CommonTransactions:
    """Reads runs of them; `openings` knows the layouts that were seen so far."""

    def __init__(self, walk: Walk) -> None:
        self._place, self._transaction = walk.place, walk.transaction
        self._readers = walk.tables.by_body
        self.openings = Openings()

    def take(self, buffer: bytearray, p: int, filled: int) -> int:
        """Gather the common transactions from `p` on, as far as they are whole; returns where they end.

        `p` is between two transactions, or inside one of which no rows are gathered yet.
        """
        place = self._place
        if not place.checksum_bytes or place.saved is not None or self._transaction.held_bytes:
            return p
        with memoryview(buffer) as view:
            return self._run(buffer, view, p, filled)

    # hot loop: each call within a transaction costs 3 % of reading single rows [M]
    def _run(self, buffer: bytearray, view: memoryview, p: int, filled: int) -> int:  # noqa: C901, PLR0912, PLR0915
        place, transaction, readers = self._place, self._transaction, self._readers
        openings, changes, gtids = self.openings.by_size, transaction.changes, place.new_gtids
        last_pos, base, above = place.last_pos, place.base | place.wraps << 28, place.wraps << 32
        new, change_type, check, residue = tuple.__new__, RowChanges, crc32, CHECKSUM_RESIDUE
        known: Opening | None = None
        reader: TableReader | None = None
        map_body, map_size = b"", -1
        taken = last_start = 0
        gtid = b""
        while p + _LOOK_AHEAD <= filled and (opening := openings[buffer[p + 14]]) is not None:
            if opening is not known:
                known = opening
                unpack, gtid_head, begin_head, commit_head, gtid_bytes, map_at = opening
            map_p = p + map_at
            if map_p + _LOOK_AHEAD > filled:
                break
            s1, head_1, start, this_gtid, s2, head_2, tail, s3, map_bytes = unpack(buffer, p)
            rows_p = map_p + 5 + map_bytes
            if s1 or s2 or s3 or start <= last_pos or rows_p + _LOOK_AHEAD > filled:
                break
            if head_1 != gtid_head or head_2 != begin_head or tail != BEGIN_TAIL:
                break
            if map_bytes != map_size or not buffer.startswith(map_body, map_p + 24):
                map_body, map_size = bytes(view[map_p + 24 : rows_p - 4]), map_bytes
                reader = readers.get(map_body) or None
                if reader is None:
                    break  # what is remembered was whole, so it needs no checksum
                map_id = map_body[:6]
                rows_head, image, second_bitmap, rows_at = reader.rows_head
            assert reader is not None
            if rows_p + rows_at > filled:
                break
            s1, kind, rows_bytes, rows_end, table_id, seen_image = rows_head(buffer, rows_p)
            commit_p = rows_p + 5 + rows_bytes
            if commit_p + XID_PACKET_BYTES > filled:
                break
            s2, head_2, end = xid_head(buffer, commit_p)
            at = rows_p + rows_at
            if kind == UPDATE_ROWS:
                at += len(second_bitmap)
                if buffer[rows_p + rows_at : at] != second_bitmap:
                    break
            if s1 or s2 or not WRITE_ROWS <= kind <= DELETE_ROWS or not start < rows_end < end:
                break
            if head_2 != commit_head or seen_image != image or table_id != map_id:
                break
            if check(view[p + 5 : p + 5 + gtid_bytes]) != residue or check(view[rows_p + 5 : commit_p]) != residue:
                break
            if check(view[commit_p + 5 : commit_p + XID_PACKET_BYTES]) != residue:
                break
            try:
                rows = reader.decode(buffer, at, commit_p - 4)
            except (UnicodeDecodeError, TableUnreadableError):
                break
            if kind == UPDATE_ROWS and len(rows) & 1:
                break
            version, at = base | rows_end >> 4, above + rows_end - rows_bytes
            changes.append(new(change_type, (reader.followed, kind - WRITE_ROWS, version, rows, this_gtid, at)))
            taken += rows_bytes
            gtids += this_gtid
            gtid, last_start, last_pos, p = this_gtid, start - gtid_bytes, end, commit_p + XID_PACKET_BYTES
        if taken:
            transaction.begin(gtid, place.in_file(last_start))
            transaction.committed = len(changes)
            transaction.committed_bytes += taken
            transaction.is_quiet = False
            transaction.end = (place.file, place.in_file(last_pos), transaction.start, gtid)
            place.last_pos = last_pos
        return p
