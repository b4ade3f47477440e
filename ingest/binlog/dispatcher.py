"""Walks the events of a binlog as they lie in the receive buffer, and gathers committed transactions.

`consume` is the hot path: header peek, checksum, table map memo (by its raw bytes), the table's generated decoder.
Rows that need care are in careful_rows.py, MariaDB's own events in mariadb.py, all others in rare_events.py. Nothing
leaves before its commit has been read; a transaction above `spool_bytes` waits in a temporary file. Rows of tables
nobody follows are never decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain
from zlib import crc32

from changes.batches import (
    DELETE,
    UPDATE,
    Batch,
    RowChanges,
    Watermark,
)
from changes.errors import TableUnreadableError
from ingest.binlog.common_transactions import UsualTransactions
from ingest.binlog.control_events import is_begin
from ingest.binlog.events import (
    CHECKSUM_RESIDUE,
    DELETE_ROWS,
    GTID,
    QUERY,
    TABLE_MAP,
    UPDATE_ROWS,
    WRITE_ROWS,
    XID,
)
from ingest.binlog.gtids import GTID_BYTES, committed_us
from ingest.binlog.mariadb_events import MariaDBEvents
from ingest.binlog.open_transaction import OWN, PACKET_HEAD_BYTES, Compressed
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.payload import MalformedPayloadError
from ingest.binlog.stream_errors import malformed, not_an_event, not_ended, rows_without_map, unpaired

# Packet length and sequence, status byte | timestamp, type, server id, event size, end position, flags.
_HEAD = struct.Struct("<IBIBIIIH")
_U32 = struct.Struct("<I").unpack_from
_TABLE_ID = struct.Struct("<IH").unpack_from
_HEAD_BYTES = PACKET_HEAD_BYTES

_RESIDUE = CHECKSUM_RESIDUE

_MALFORMED = (
    IndexError,
    struct.error,
)  # what reading past an event's end comes to, where no rule was broken before


class Dispatcher(UsualTransactions, MariaDBEvents):
    """One connection's walk. `consume` takes what was received; `batches` gives what is committed."""

    # -- the hot path -----------------------------------------------------------------------------------------

    def consume(self, buffer: bytearray, start: int, filled: int) -> int:
        """Walk every whole event in buffer[start:filled]; returns where the first incomplete one begins.

        Stops early, behind the commit, when `is_stopped`: call `batches`, then go on. Raises SourceError for an event
        that cannot be read, CorruptEventError for one that another reading may bring whole.
        """
        try:
            p = self._take_usual(buffer, start, filled)
            return p if p == filled else self._walk(buffer, p, filled)
        except _MALFORMED as error:
            malformed(self.place, error)

    def _walk(self, buffer: bytearray, start: int, filled: int) -> int:
        head, table_id, check = _HEAD.unpack_from, _TABLE_ID, crc32
        memo, tables, changes = self._memo, self._tables, self._changes
        new, change_type = tuple.__new__, RowChanges
        base, last_pos, above, txn_start, gtid, held, checksum_bytes, is_verifying = self._load()
        file, committed, committed_bytes = (
            self._file,
            self._committed,
            self._committed_bytes,
        )
        end, gtids, is_quiet = self._end, self._gtids, self.is_quiet
        most_held, p = self._most_held, start
        odd_at = start  # where a run of usual transactions ended
        gtid_at = begin_at = -1  # the last GTID event, and its end
        with memoryview(buffer) as view:
            while filled - p >= _HEAD_BYTES:
                word, status, _, kind, _, size, log_pos, flags = head(buffer, p)
                q = p + 5 + size
                if status or (word & 0xFFFFFF != size + 1 and size < 0xFFFFFE):
                    break
                if q > filled:
                    break
                rows_end = q - checksum_bytes
                if checksum_bytes and check(view[p + 5 : q]) != _RESIDUE:
                    self._failed_checksum(kind, bytes(view[p + 5 : q]), f"{self._file}:{last_pos}")
                b = p + _HEAD_BYTES
                if log_pos > last_pos and not is_verifying:
                    if kind == GTID:
                        if held:
                            not_ended(f"{self._file}:{last_pos}")
                        if p != odd_at:
                            self._last_pos, self._held_bytes = last_pos, held
                            self._committed, self._committed_bytes = committed, committed_bytes
                            odd_at = self._take_usual(buffer, p, filled)
                            if p != odd_at:
                                p = odd_at
                                base, last_pos, above, txn_start, gtid, held, checksum_bytes, is_verifying = (
                                    self._load()
                                )
                                committed, committed_bytes = self._committed, self._committed_bytes
                                end, is_quiet = self._end, self.is_quiet
                                continue
                        gtid, txn_start = (
                            buffer[b : b + GTID_BYTES],
                            above + log_pos - size,
                        )
                        tables.clear()
                        gtid_at, begin_at, last_pos, p = p, q, log_pos, q
                        continue
                    if kind == TABLE_MAP:
                        body = bytes(view[b:rows_end])
                        plan = memo[body] if body in memo else self._plan(body, base | log_pos >> 4)
                        low, high = table_id(body)
                        tables[low | high << 32] = plan
                        if plan is not OWN:
                            is_quiet = False
                        last_pos, p = log_pos, q
                        continue
                    if WRITE_ROWS <= kind <= DELETE_ROWS:
                        low, high = table_id(buffer, b)
                        try:
                            plan = tables[low | high << 32]
                        except KeyError:
                            rows_without_map(kind, f"{self._file}:{last_pos}")
                        if plan:
                            held += size
                            image = plan.update_image if kind == UPDATE_ROWS else plan.write_image
                            r = b + 8 + len(image)
                            if held > most_held:
                                held = self._spill(committed, held, size)
                                most_held = self._most_held
                            if buffer[b + 8 : r] != image:  # not the full image, or with extra data
                                self._other_image(plan, kind, base | log_pos >> 4, buffer, b, rows_end)
                            else:
                                version = base | log_pos >> 4
                                try:
                                    rows = plan.decode(buffer, r, rows_end)
                                    if kind == UPDATE_ROWS and len(rows) & 1:
                                        unpaired(plan.followed)
                                    changes.append(
                                        new(
                                            change_type,
                                            (
                                                plan.followed,
                                                kind - WRITE_ROWS,
                                                version,
                                                rows,
                                            ),
                                        )
                                    )
                                except (
                                    UnicodeDecodeError,
                                    TableUnreadableError,
                                ) as error:
                                    self._careful(plan, kind, version, buffer, r, rows_end, error)
                        last_pos, p = log_pos, q
                        continue
                    if kind == QUERY:
                        if is_begin(buffer, b, rows_end):
                            self._begun_at = txn_start
                            if p == begin_at:
                                self._openings.learn(buffer, gtid_at, p)
                            last_pos, p = log_pos, q
                            continue
                    elif kind == XID and self._spool is None and not self._open_refused:
                        committed = len(changes)
                        committed_bytes += held
                        held = 0
                        end = (file, above + log_pos, txn_start, gtid)
                        gtids += gtid
                        tables.clear()
                        last_pos, p = log_pos, q
                        continue
                self._last_pos, self._txn_start, self._gtid, self._held_bytes = (
                    last_pos,
                    txn_start,
                    gtid,
                    held,
                )
                self._committed, self._committed_bytes, self._end = (
                    committed,
                    committed_bytes,
                    end,
                )
                self.is_quiet = is_quiet
                if not self._has_wrapped(
                    kind, log_pos, size
                ):  # a wrapped event is walked again, with its true position
                    self._unusual(kind, flags, buffer, b, rows_end, log_pos, size)
                    p = q
                (
                    base,
                    last_pos,
                    above,
                    txn_start,
                    gtid,
                    held,
                    checksum_bytes,
                    is_verifying,
                ) = self._load()
                file, committed, committed_bytes = (
                    self._file,
                    self._committed,
                    self._committed_bytes,
                )
                end, is_quiet = self._end, self.is_quiet
                if self._spool_is_committed or self._compressed is not None:
                    break
        self._last_pos, self._txn_start, self._gtid, self._held_bytes = (
            last_pos,
            txn_start,
            gtid,
            held,
        )
        self._committed, self._committed_bytes, self._end = (
            committed,
            committed_bytes,
            end,
        )
        self.is_quiet = is_quiet
        if filled - p >= 5 and (buffer[p + 4] or _is_malformed(buffer, p, filled)):
            not_an_event(bytes(buffer[p + 4 : filled]), self.place)
        return p

    def _load(self) -> tuple[int, int, int, int, Buffer, int, int, bool]:
        return (
            self._base | self._wraps << 28,
            self._last_pos,
            self._wraps << 32,
            self._txn_start,
            self._gtid,
            self._held_bytes,
            self._checksum_bytes,
            self._verifying is not None,
        )

    @property
    def is_stopped(self) -> bool:
        """Whether `consume` stopped behind a transaction above the memory bound, with more to walk after `batches`."""
        return self._spool_is_committed or self._compressed is not None

    # -- what is committed --------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """What was committed since the last call: at most one batch, or the pieces of a large transaction."""
        if self._compressed is not None:
            yield from self._compressed_pieces(self._compressed)
            return
        if not self._spool_is_committed:
            if (batch := self._take()) is not None:
                yield batch
            return
        big_end, self._big_end = self._big_end, None
        assert big_end is not None
        if (batch := self._take()) is not None:
            yield batch
        first_gtid = big_end[3]
        self.is_quiet = False  # only rows that are followed are spooled
        assert self._spool is not None
        spool, self._spool = self._spool, None
        self._spool_is_committed = False
        in_memory = (self._changes, self._open_refused, self._held_bytes)
        try:
            for self._changes, self._open_refused, self._held_bytes in chain(spool.pieces(), (in_memory,)):
                self._committed = len(self._changes)
                yield self._large_piece(first_gtid)
        finally:
            spool.close()
        self._end = big_end
        self._gtids += first_gtid
        last = self._take()
        assert last is not None
        yield last

    def _large_piece(self, first_gtid: Buffer) -> Batch:
        """What may leave by now of a large transaction, with what of it was refused."""
        self._committed_bytes, self._held_bytes = self._held_bytes, 0
        self._refused += self._open_refused
        self._open_refused = []
        return self._piece(first_gtid)

    def _compressed_pieces(self, compressed: Compressed) -> Iterator[Batch]:
        """A compressed transaction above the memory bound. No piece ends among changes that share a version."""
        self._compressed = None
        if (batch := self._take()) is not None:
            yield batch
        rest = b""
        self._is_in_pieces = True
        try:
            is_prepared = compressed.payload.is_prepared()
            for piece in compressed.payload.pieces(self._spool_bytes):
                events = rest + piece
                rest = events[self._inner_events(compressed, events) :]
                if self._end is None and is_prepared:
                    self._bound_prepared()
                elif self._end is None:
                    last = self._changes[-1][2] if self._changes else 0
                    self._committed = next(
                        (at for at in range(len(self._changes), 0, -1) if self._changes[at - 1][2] != last), 0
                    )
                    if self._committed:
                        yield self._large_piece(self._gtid)
        except MalformedPayloadError as error:
            self._bad_payload(compressed.log_pos, error)
        except _MALFORMED as error:
            malformed(self.place, error)
        self._is_in_pieces = False
        last_batch = self._take()
        if rest or last_batch is None:
            self._bad_payload(compressed.log_pos, "it ends inside an event or a transaction")
        yield last_batch

    def _take(self) -> Batch | None:
        if self._end is None:
            return None
        self._note_seen()
        batch = self._piece(self._first_gtid or self._end[3])
        batch.end = self._resume_position(self._end)
        self._last_end = self._end
        self.is_quiet = self._end[3] is self._gtid or not self._is_open_loud()
        self._end = self._first_gtid = None
        return batch

    def _is_open_loud(self) -> bool:
        """Whether the open transaction touched anything that is not viewtail's own."""
        return self._loud is self._gtid or any(plan is not OWN for plan in self._tables.values())

    def _piece(self, first_gtid: Buffer) -> Batch:
        changes = self._changes[: self._committed]
        del self._changes[: self._committed]
        if self._halted:
            changes = [change for change in changes if change.followed not in self._halted]
        watermarks = []
        if self._watermark_was_seen:
            watermarks = [
                Watermark(row[0], version)
                for followed, kind, version, rows in changes
                if followed is self._watermark
                for row in (rows[1::2] if kind == UPDATE else rows)  # what was written, not what it replaced
                if kind != DELETE
            ]
            changes = [change for change in changes if change.followed is not self._watermark]
        batch = Batch(
            changes=changes,
            end=None,
            row_count=sum([len(change[3]) for change in changes]),
            byte_count=self._committed_bytes,
            oldest_commit_us=committed_us(first_gtid),
            refused=self._refused,
            halts=self._halts,
            table_changes=self._table_changes,
            watermarks=watermarks,
            is_quiet=self.is_quiet,
        )
        self._committed = self._committed_bytes = 0
        self._refused, self._halts, self._table_changes = [], [], []
        return batch


def _is_malformed(buffer: bytearray, p: int, filled: int) -> bool:
    """Whether a packet's length disagrees with its event's (packets of 16 MiB and more are joined by the source)."""
    if filled - p < _HEAD_BYTES:
        return False
    length, size = _U32(buffer, p)[0] & 0xFFFFFF, _U32(buffer, p + 14)[0]
    return bool(length != size + 1 and size < 0xFFFFFE)
