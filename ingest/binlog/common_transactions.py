"""The usual transactions, taken in whole: GTID, BEGIN, one table map, one row event, commit.

Most transactions of a busy server are it, one like the other, and a look at each header by itself would cost more than
their rows. What has not the known shape, or is not whole, is left untouched to the general walk (dispatcher.py).
"""

from __future__ import annotations

from zlib import crc32

from changes.batches import RowChanges
from changes.errors import TableUnreadableError
from ingest.binlog.events import CHECKSUM_RESIDUE, DELETE_ROWS, UPDATE_ROWS, WRITE_ROWS
from ingest.binlog.open_transaction import Plan, WalkState
from ingest.binlog.transaction_layouts import BEGIN_TAIL, XID_PACKET_BYTES, Opening, xid_head

_LOOK_AHEAD = 64  # more than an event's header, and what is looked at before its length is known


class UsualTransactions(WalkState):
    """Reads runs of them."""

    def _take_usual(self, buffer: bytearray, p: int, filled: int) -> int:
        """Gather the usual transactions from `p` on, as far as they are whole; returns where they end.

        `p` is between two transactions or in the midst of one, whose rows are not gathered by then.
        """
        if not self._checksum_bytes or self._verifying is not None or self._held_bytes:
            return p
        with memoryview(buffer) as view:
            return self._run(buffer, view, p, filled)

    def _run(self, buffer: bytearray, view: memoryview, p: int, filled: int) -> int:
        openings, memo, changes, gtids = self._openings.by_size, self._memo, self._changes, self._gtids
        last_pos = self._last_pos
        base = self._base | self._wraps << 28
        new, change_type, check, residue = tuple.__new__, RowChanges, crc32, CHECKSUM_RESIDUE
        known: Opening | None = None
        plan: Plan | None = None
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
            if (
                s1
                or s2
                or s3
                or head_1 != gtid_head
                or head_2 != begin_head
                or tail != BEGIN_TAIL
                or start <= last_pos
                or rows_p + _LOOK_AHEAD > filled
            ):
                break
            if map_bytes != map_size or not buffer.startswith(map_body, map_p + 24):
                map_body, map_size = bytes(view[map_p + 24 : rows_p - 4]), map_bytes
                plan = memo.get(map_body) or None
                if plan is None:
                    break  # what is remembered was whole, so it needs no checksum
                map_id = map_body[:6]
                rows_head, image, second_bitmap, rows_at = plan.rows_head
            assert plan is not None
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
            if (
                not WRITE_ROWS <= kind <= DELETE_ROWS
                or head_2 != commit_head
                or seen_image != image
                or table_id != map_id
                or s1
                or s2
                or not start < rows_end < end
                or check(view[p + 5 : p + 5 + gtid_bytes]) != residue
                or check(view[rows_p + 5 : commit_p]) != residue
                or check(view[commit_p + 5 : commit_p + XID_PACKET_BYTES]) != residue
            ):
                break
            try:
                rows = plan.decode(buffer, at, commit_p - 4)
            except (UnicodeDecodeError, TableUnreadableError):
                break
            if kind == UPDATE_ROWS and len(rows) & 1:
                break
            changes.append(new(change_type, (plan.followed, kind - WRITE_ROWS, base | rows_end >> 4, rows)))
            taken += rows_bytes
            gtids += this_gtid
            gtid, last_start, last_pos, p = this_gtid, start - gtid_bytes, end, commit_p + XID_PACKET_BYTES
        if taken:
            above = self._wraps << 32
            self._last_pos, self._gtid, self._txn_start = last_pos, gtid, above + last_start
            self._committed = len(changes)
            self._committed_bytes += taken
            self.is_quiet = False
            self._end = (self._file, above + last_pos, self._txn_start, gtid)
        return p
