"""Walks the events of a binlog as they lie in the receive buffer, and gathers committed transactions.

`consume` is the hot path: header peek, checksum, table map memo (by its raw bytes), the table's generated decoder.
Everything rarer is a method below it. Nothing leaves before its commit has been read; a transaction above
`spool_bytes` waits in a temporary file. Rows of tables nobody follows are never decoded. An event or statement that
cannot be read exactly halts the tables it touches, or, where those cannot be told, the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn
from zlib import crc32

import structlog

from changes.batches import (
    DELETE,
    UPDATE,
    Batch,
    Followed,
    Halt,
    Refused,
    Row,
    RowChanges,
    Unreadable,
    Watermark,
)
from changes.errors import (
    CorruptEventError,
    HistoryGoneError,
    SourceError,
    TableUnreadableError,
)
from changes.positions import Position, file_number
from changes.versions import MAX_POSITION, base_version
from ingest.binlog import statements
from ingest.binlog.events import (
    ANONYMOUS_GTID,
    DELETE_ROWS,
    FORMAT_DESCRIPTION,
    GTID,
    HEARTBEAT,
    HEARTBEAT_V2,
    IGNORABLE_FLAG,
    NAMES,
    PARTIAL_UPDATE_ROWS,
    QUERY,
    ROTATE,
    SILENT,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    UPDATE_ROWS,
    WRITE_ROWS,
    XA_PREPARE,
    XID,
)
from ingest.binlog.row_decoder import Decoder, compile_decoder
from ingest.binlog.spool import Spool
from ingest.binlog.table_map import names, parse

_log = structlog.get_logger("viewtail.source")

# Packet length and sequence, status byte | timestamp, type, server id, event size, end position, flags.
_HEAD = struct.Struct("<IBIBIIIH")
_U32 = struct.Struct("<I").unpack_from
_TABLE_ID = struct.Struct("<IH").unpack_from
_HEAD_BYTES = _HEAD.size  # 24
_GTID_BYTES = 49  # flags 1, source id 16, number 8, clock type 1, two clocks 16, commit time 7
_MEMO_LIMIT = 10_000
_NO_EXTRA_DATA = b"\x02\x00"

_BRIEF = struct.Struct("<4xB4xB4xII2x").unpack_from  # of the same: status, type, size, end position
_RESIDUE = 0x2144DF1C  # CRC-32 of anything followed by its own CRC-32, low byte first
_LOOK_AHEAD = 64  # more than the next event's header, and what is looked at before its length is known
_XID_BYTES = 36  # packet header, status byte, event header, number, checksum
_BEGIN_TAIL = b"\0BEGIN"
_COMMIT_TIME_MASK = (1 << 55) - 1  # the 56th bit says whether the original commit time follows
_BEFORE_ALL = -1  # a last position below each, 0 too, which an event that ends at 4 GiB has
_ARTIFICIAL = frozenset(
    {ROTATE, FORMAT_DESCRIPTION, HEARTBEAT, HEARTBEAT_V2}
)  # their positions mean nothing here
_NO_BACKSLASH_ESCAPES = 1 << 20  # bits of sql_mode (MySQL source, system_variables.h)
_STRICT = 3 << 21  # STRICT_TRANS_TABLES, STRICT_ALL_TABLES
_WAYS_OUT = {
    TRANSACTION_PAYLOAD: "It is a compressed transaction: run SET GLOBAL binlog_transaction_compression = OFF, then "
    "viewtail replay --new-history.",
}


@dataclass(slots=True, eq=False)
class Plan:
    """How the rows of one table map are read."""

    followed: Followed
    decoder: Decoder
    decode: Callable[[Any, int, int], list[Row]]
    write_image: bytes  # what a full image's WRITE or DELETE event has between table flags and rows
    update_image: bytes


_NO_PLAN: Any = None


class _Own:
    """In place of a plan: a table of viewtail's own. Falsy, like None, which stands for everybody else's."""

    def __bool__(self) -> Literal[False]:
        return False


OWN = _Own()


# Where a committed transaction ended, and which it was: file, end and start in bytes, GTID event's first bytes.
End = tuple[str, int, int, bytearray]


class Dispatcher:
    """One connection's walk. `consume` takes what was received; `batches` gives what is committed.

    Args:
        followed: by (schema, table): the tables to decode.
        watermark: the watermark table; its rows become `Batch.watermarks`.
        own_schema: viewtail's own database; a stream of nothing else is `is_quiet`.
        after: the position to go on from; where it names a transaction, that one is read again and compared.
        spool_bytes: bytes of followed row events of one open transaction kept in memory.
    """

    def __init__(
        self,
        *,
        followed: Mapping[tuple[str, str], Followed],
        watermark: Followed,
        own_schemas: frozenset[str],
        after: Position,
        has_checksums: bool,
        spool_bytes: int,
        max_event_bytes: int,
    ) -> None:
        self._followed = dict(followed)
        self._watermark = watermark
        self._own_schemas = own_schemas
        self._spool_bytes = spool_bytes
        self.max_event_bytes = max_event_bytes
        self._epoch = after.epoch
        self._verifying: Position | None = after if after.gtid else None
        self._resumed_at = after
        self._file = after.file
        self._base = base_version(after.epoch, file_number(after.file))
        self._last_pos = after.start & 0xFFFFFFFF  # header's 32 bits of the last event's end
        self._wraps = after.start >> 32
        self._checksum_bytes = 4 if has_checksums else 0
        self._memo: dict[bytes, Plan | _Own | None] = {}
        self._tables: dict[int, Plan | _Own | None] = {}
        self._changes: list[RowChanges] = []
        self._committed = 0  # how many of _changes belong to committed transactions
        self._committed_bytes = 0
        self._held_bytes = 0  # of followed row events of the open transaction
        self._txn_start = after.start
        self._gtid = bytearray(_GTID_BYTES)
        self._first_gtid: bytearray | None = None
        self._begun_at = -1  # _txn_start of the transaction whose BEGIN was read last
        self._end: End | None = None
        self._big_end: End | None = None
        self._open_refused: list[Refused] = []
        self._loud: bytearray | None = None  # _gtid of the last transaction that `_mark_loud` was told of
        self._watermark_was_seen = False
        self._refused: list[Refused] = []
        self._halts: list[Halt] = []
        self._halted: set[Followed] = set()  # what is still gathered of them is dropped on delivery
        self._spool: Spool | None = None
        self._spool_is_committed = False
        self._bytes_before_spool = 0  # of the spooled transaction, those that are held in memory
        self.is_quiet = True

    # -- the hot path -----------------------------------------------------------------------------------------

    def consume(self, buffer: bytearray, start: int, filled: int) -> int:
        """Walk every whole event in buffer[start:filled]; returns where the first incomplete one begins.

        Stops early, behind the commit, when a spooled transaction is complete: call `batches`, then go on.
        """
        head, brief, table_id, check = _HEAD.unpack_from, _BRIEF, _TABLE_ID, crc32
        memo, tables, changes = self._memo, self._tables, self._changes
        new, change_type = tuple.__new__, RowChanges
        base, last_pos, above, txn_start, gtid, held, checksum_bytes, is_verifying = self._load()
        file, committed, committed_bytes = (
            self._file,
            self._committed,
            self._committed_bytes,
        )
        end, first_gtid, is_quiet = self._end, self._first_gtid, self.is_quiet
        spool_bytes, p = self._spool_bytes, start
        usual_body = b""
        usual: Plan = _NO_PLAN
        usual_id = usual_image_at = -1
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
                    self._corrupt(kind)
                b = p + _HEAD_BYTES
                if log_pos > last_pos and not is_verifying:
                    if kind == GTID:
                        gtid, txn_start = (
                            buffer[b : b + _GTID_BYTES],
                            above + log_pos - size,
                        )
                        tables.clear()
                        last_pos, p = log_pos, q
                        if (
                            not checksum_bytes
                            or filled - p < _LOOK_AHEAD
                            or self._spool is not None
                            or self._open_refused
                        ):
                            continue
                        # The usual transaction (BEGIN, one table map, one row event, commit), walked in one go.
                        # What does not fit falls back to the general walk, at the event where it stopped fitting.
                        status, kind, size, log_pos = brief(buffer, p)
                        q = p + 5 + size
                        if kind != QUERY or status or log_pos != last_pos + size or q + _LOOK_AHEAD > filled:
                            continue
                        # Nothing of a BEGIN is used but that it is one: the tail and the lengths say so.
                        at = p + 47 + buffer[p + 32] + (buffer[p + 35] | buffer[p + 36] << 8)
                        if at != q or buffer[q - 10 : q - 4] != _BEGIN_TAIL:
                            continue
                        self._begun_at, last_pos, p = txn_start, log_pos, q
                        status, kind, size, log_pos = brief(buffer, p)
                        q = p + 5 + size
                        if (
                            kind != TABLE_MAP
                            or status
                            or log_pos != last_pos + size
                            or q + _LOOK_AHEAD > filled
                        ):
                            continue
                        body = bytes(view[p + 24 : q - 4])
                        if body != usual_body:
                            plan = memo.get(body)
                            if not plan or check(view[p + 5 : q]) != _RESIDUE:
                                continue
                            usual_body, usual, (low, high) = body, plan, table_id(body)
                            usual_id = low | high << 32
                            usual_image_at = 32 + len(plan.write_image)
                            is_quiet = False
                        tables[usual_id] = usual
                        last_pos, p = log_pos, q
                        status, kind, size, log_pos = brief(buffer, p)
                        q = p + 5 + size
                        if (
                            (kind != WRITE_ROWS and kind != DELETE_ROWS)
                            or q + _XID_BYTES > filled
                            or status
                            or log_pos <= last_pos
                            or held + size > spool_bytes
                            or check(view[p + 5 : q]) != _RESIDUE
                            or buffer[p + 32 : p + usual_image_at] != usual.write_image
                            or buffer[p + 24 : p + 30] != usual_body[:6]
                        ):
                            continue
                        try:
                            rows = usual.decode(buffer, p + usual_image_at, q - 4)
                        except (UnicodeDecodeError, TableUnreadableError):
                            continue
                        changes.append(
                            new(
                                change_type,
                                (
                                    usual.followed,
                                    kind - WRITE_ROWS,
                                    base | log_pos >> 4,
                                    rows,
                                ),
                            )
                        )
                        held += size
                        last_pos, p = log_pos, q
                        status, kind, size, log_pos = brief(buffer, p)
                        q = p + 5 + size
                        if kind != XID or status or log_pos <= last_pos or check(view[p + 5 : q]) != _RESIDUE:
                            continue
                        committed = len(changes)
                        committed_bytes += held
                        held = 0
                        end = (file, above + log_pos, txn_start, gtid)
                        if first_gtid is None:
                            first_gtid = gtid
                        last_pos, p = log_pos, q
                        continue
                    if kind == TABLE_MAP:
                        body = bytes(view[b:rows_end])
                        plan = memo[body] if body in memo else self._plan(body, base | log_pos >> 4)
                        low, high = table_id(body)
                        tables[low | high << 32] = plan
                        if plan is not OWN:
                            is_quiet = False
                        if self._spool is not None:
                            self._spool.append(view[p:q], above >> 32)
                        last_pos, p = log_pos, q
                        continue
                    if WRITE_ROWS <= kind <= DELETE_ROWS:
                        low, high = table_id(buffer, b)
                        try:
                            plan = tables[low | high << 32]
                        except KeyError:
                            self._rows_without_map(kind)
                        if plan:
                            held += size
                            image = plan.update_image if kind == UPDATE_ROWS else plan.write_image
                            r = b + 8 + len(image)
                            if held > spool_bytes:
                                self._to_spool(view[p:q], above >> 32, held - size)
                            elif buffer[b + 8 : r] != image:  # not the full image, or with extra data
                                self._other_image(plan, kind, base | log_pos >> 4, buffer, b, rows_end)
                            else:
                                version = base | log_pos >> 4
                                try:
                                    rows = plan.decode(buffer, r, rows_end)
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
                        if _is_begin(buffer, b, rows_end):
                            self._begun_at = txn_start
                            last_pos, p = log_pos, q
                            continue
                    elif kind == XID and self._spool is None and not self._open_refused:
                        committed = len(changes)
                        committed_bytes += held
                        held = 0
                        end = (file, above + log_pos, txn_start, gtid)
                        if first_gtid is None:
                            first_gtid = gtid
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
                self._first_gtid, self.is_quiet = first_gtid, is_quiet
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
                end, first_gtid, is_quiet = self._end, self._first_gtid, self.is_quiet
                if self._spool_is_committed:
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
        self._first_gtid, self.is_quiet = first_gtid, is_quiet
        if filled - p >= 5 and (buffer[p + 4] or _is_malformed(buffer, p, filled)):
            self._not_an_event(bytes(buffer[p + 4 : filled]))
        return p

    def _load(self) -> tuple[int, int, int, int, bytearray, int, int, bool]:
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
        """Whether `consume` stopped behind a spooled transaction, with more to walk after `batches`."""
        return self._spool_is_committed

    # -- what is committed --------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """What was committed since the last call: at most one batch, or the pieces of a spooled transaction."""
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
        self._held_bytes = self._bytes_before_spool
        yield self._spooled_piece(first_gtid)
        for _ in self._replay():
            yield self._spooled_piece(first_gtid)
        self._end, self._first_gtid = big_end, first_gtid
        last = self._take()
        assert last is not None
        yield last

    def _spooled_piece(self, first_gtid: bytearray) -> Batch:
        """What is decoded by now of a spooled transaction, with what of it was refused."""
        self._committed = len(self._changes)
        self._committed_bytes, self._held_bytes = self._held_bytes, 0
        self._refused += self._open_refused
        self._open_refused = []
        return self._piece(first_gtid)

    def _take(self) -> Batch | None:
        if self._end is None:
            return None
        batch = self._piece(self._first_gtid or self._end[3])
        batch.end = _position(self._epoch, self._end)
        self.is_quiet = self._end[3] is self._gtid or not self._is_open_loud()
        self._end = self._first_gtid = None
        return batch

    def _is_open_loud(self) -> bool:
        """Whether the open transaction touched anything that is not viewtail's own."""
        return self._loud is self._gtid or any(plan is not OWN for plan in self._tables.values())

    def _piece(self, first_gtid: bytearray) -> Batch:
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
            oldest_commit_us=int.from_bytes(first_gtid[42:49], "little") & _COMMIT_TIME_MASK,
            refused=self._refused,
            halts=self._halts,
            watermarks=watermarks,
            is_quiet=self.is_quiet,
        )
        self._committed = self._committed_bytes = 0
        self._refused, self._halts = [], []
        return batch

    def _replay(self) -> Iterator[None]:
        """Decode the spooled events; after each chunk its rows are in `_changes`."""
        assert self._spool is not None
        spool, self._spool = self._spool, None
        self._spool_is_committed = False
        after = (self._last_pos, self._wraps, self._spool_bytes)
        # Not all events of the transaction are here, so wraps cannot be counted: the spool knows them.
        self._last_pos, self._wraps, self._spool_bytes = _BEFORE_ALL, -1, 1 << 62
        try:
            for buffer, filled, wraps in spool.chunks():
                if wraps != self._wraps:
                    self._last_pos, self._wraps = _BEFORE_ALL, wraps
                rest = self.consume(buffer, 0, filled)
                spool.keep(buffer, rest, filled)
                yield
        finally:
            spool.close()
        self._last_pos, self._wraps, self._spool_bytes = after

    # -- rows that need care ------------------------------------------------------------------------------------

    def _plan(self, body: bytes, version: int) -> Plan | _Own | None:
        """The plan for a table map seen for the first time; None for a table nobody follows (OWN is falsy too)."""
        schema, name = names(body)
        plan: Plan | _Own | None = None
        if schema == self._watermark.table.schema and name == self._watermark.table.name:
            self._watermark_was_seen = True
            try:
                plan = _compile(body, self._watermark)
            except TableUnreadableError as error:
                self._skip_watermark(str(error))
                return None  # not remembered: each one that is skipped is told of
        elif (followed := self._followed.get((schema, name))) is not None:
            try:
                plan = _compile(body, followed)
            except TableUnreadableError as error:
                self._halt(followed, version, str(error))
        elif schema in self._own_schemas:
            plan = OWN
        if len(self._memo) >= _MEMO_LIMIT:
            self._memo.clear()
        self._memo[body] = plan
        return plan

    def _halt(self, followed: Followed, version: int, reason: str) -> None:
        """Stop decoding a table; its views learn of it with the next batch."""
        if followed is self._watermark:
            self._skip_watermark(reason)
            return
        place = f"{followed.table.full_name} at {self._file}:{self._last_pos}"
        self._halts.append(Halt(followed, version, f"{place}: {reason}"))
        self._halted.add(followed)
        self._followed.pop((followed.table.schema, followed.table.name), None)
        self._memo.clear()
        for identity, plan in self._tables.items():
            if plan and plan.followed is followed:
                self._tables[identity] = None

    def _skip_watermark(self, reason: str) -> None:
        """One watermark event that cannot be read: no view has rows of it, and the next one may be as it should be."""
        _log.warning(
            "watermark skipped: it cannot be read",
            position=self.place,
            reason=reason,
            mend="SET GLOBAL binlog_row_metadata = 'FULL'; SET GLOBAL binlog_row_image = 'FULL'; fills wait for a "
            "watermark that can be read",
        )

    def _other_image(
        self,
        plan: Plan,
        kind: int,
        version: int,
        buffer: bytearray,
        b: int,
        rows_end: int,
    ) -> None:
        """Rows whose prefix is not the usual one: extra data (partitions) is stepped over, a partial image halts."""
        r = b + 8 + int.from_bytes(buffer[b + 8 : b + 10], "little")
        image = (plan.update_image if kind == UPDATE_ROWS else plan.write_image)[2:]
        if buffer[r : r + len(image)] != image:
            self._halt(
                plan.followed,
                version,
                "a row event does not hold the full row image. Run SET GLOBAL binlog_row_image = 'FULL' (and see that "
                "no session changes it), then fill the views again: viewtail replay VIEW",
            )
            return
        r += len(image)
        try:
            rows = plan.decode(buffer, r, rows_end)
            self._changes.append(RowChanges(plan.followed, kind - WRITE_ROWS, version, rows))
        except (UnicodeDecodeError, TableUnreadableError) as error:
            self._careful(plan, kind, version, buffer, r, rows_end, error)

    def _careful(
        self,
        plan: Plan,
        kind: int,
        version: int,
        buffer: bytearray,
        r: int,
        rows_end: int,
        error: Exception,
    ) -> None:
        """Keep the rows of an event that can be read, refuse those with an unreadable value, halt if none can."""
        if isinstance(error, TableUnreadableError):
            self._halt(plan.followed, version, str(error))
            return
        try:
            rows = plan.decoder.decode_carefully(buffer, r, rows_end)
        except TableUnreadableError as worse:
            self._halt(plan.followed, version, str(worse))
            return
        step = 2 if kind == UPDATE_ROWS else 1
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            bad = [value.column for row in some for value in row if isinstance(value, Unreadable)]
            if bad and plan.followed is self._watermark:
                self._skip_watermark("its token holds bytes that are invalid in its character set")
            elif bad:
                reason = f"column {bad[0]} holds bytes that are invalid in its character set"
                self._open_refused.append(Refused(plan.followed, kind - WRITE_ROWS, version, some, reason))
            else:
                self._changes.append(RowChanges(plan.followed, kind - WRITE_ROWS, version, some))

    def _to_spool(self, packet: memoryview, wraps: int, bytes_before: int) -> None:
        if self._spool is None:
            self._spool, self._bytes_before_spool = Spool(), bytes_before
        self._spool.append(packet, wraps)

    def halt_too_large(self, event: bytes, size: int) -> None:
        """An event above max_event_bytes, of which only the first bytes were received."""
        kind, log_pos, flags = event[4], _U32(event, 13)[0], int.from_bytes(event[17:19], "little")
        self._has_wrapped(kind, log_pos, size)
        if kind in SILENT or (flags & IGNORABLE_FLAG and kind not in NAMES):
            self._last_pos = log_pos
            return
        if not (WRITE_ROWS <= kind <= DELETE_ROWS or kind == PARTIAL_UPDATE_ROWS):
            raise SourceError(
                f"a {_name(kind)} event of {size} bytes at {self._file}:{log_pos} is above run.max_event_bytes "
                f"({self.max_event_bytes}); raise that setting"
            )
        low, high = _TABLE_ID(event, 19)
        if (table := low | high << 32) not in self._tables and self._verifying is None:
            self._rows_without_map(kind)
        plan = self._tables.get(table)
        self._last_pos = log_pos
        if plan:
            self._halt(
                plan.followed,
                self._version(log_pos),
                f"a {_name(kind)} event of {size} bytes is above run.max_event_bytes ({self.max_event_bytes}). Raise "
                "that setting and fill the views again: viewtail replay VIEW",
            )

    # -- events without rows ------------------------------------------------------------------------------------

    def _has_wrapped(self, kind: int, log_pos: int, size: int) -> bool:
        """Count a wrap of the header's 32-bit position; anything else that goes back is no binlog viewtail knows."""
        if log_pos > self._last_pos or kind in _ARTIFICIAL:
            return False
        if (self._last_pos + size) & 0xFFFFFFFF != log_pos:
            if log_pos == 0:  # made up by the server
                return False
            raise HistoryGoneError(
                f"positions in {self._file} went back from {self._last_pos} to {log_pos}: versions would fall. "
                "The stream stops here; fill the views again with: viewtail replay --new-history"
            )
        self._wraps += 1
        self._last_pos = _BEFORE_ALL
        if self._wraps << 32 > MAX_POSITION:
            raise HistoryGoneError(f"{self._file} is above {MAX_POSITION} bytes: versions cannot be made")
        return True

    def _unusual(
        self,
        kind: int,
        flags: int,
        buffer: bytearray,
        b: int,
        rows_end: int,
        log_pos: int,
        size: int,
    ) -> None:
        """Every event that the hot path does not take."""
        if kind == ROTATE:
            self._rotate(buffer, b, rows_end)
            return
        if kind == FORMAT_DESCRIPTION:
            self._checksum_bytes = (
                4 if buffer[rows_end - 1 if self._checksum_bytes else rows_end - 5] == 1 else 0
            )
            self._memo.clear()
            return
        if (log_pos or self._last_pos == _BEFORE_ALL) and kind not in _ARTIFICIAL:
            self._last_pos = log_pos
        if kind in SILENT:
            return
        if self._verifying is not None:
            self._verify(kind, buffer, b, rows_end, log_pos, size)
        elif kind == XID:
            self._commit(log_pos)
        elif kind == QUERY:
            self._query(buffer, b, rows_end, log_pos)
        elif kind in (GTID, ANONYMOUS_GTID):
            self._gtid, self._txn_start = (
                buffer[b : b + _GTID_BYTES],
                (self._wraps << 32) + log_pos - size,
            )
            self._tables.clear()
        elif kind == XA_PREPARE:
            if not buffer[b]:
                self._halt_touched(
                    "an XA transaction was prepared; viewtail cannot tell yet whether it will commit"
                )
            self._commit(log_pos)
        elif kind == PARTIAL_UPDATE_ROWS:
            low, high = _TABLE_ID(buffer, b)
            plan = self._tables.get(low | high << 32)
            if plan:
                self._halt(
                    plan.followed,
                    self._version(log_pos),
                    "a partial JSON update, which viewtail cannot read. Run SET GLOBAL binlog_row_value_options = '', "
                    "then fill the views again: viewtail replay VIEW",
                )
        elif not flags & IGNORABLE_FLAG:
            raise SourceError(
                f"event {_name(kind)} at {self._file}:{log_pos} is one viewtail cannot read; nothing is skipped, so "
                f"the pipeline stops here. {_WAYS_OUT.get(kind, 'A newer viewtail may know it.')}"
            )

    def _version(self, log_pos: int) -> int:
        return self._base | self._wraps << 28 | log_pos >> 4

    def _rotate(self, buffer: bytearray, b: int, rows_end: int) -> None:
        """The next events are of another file, or, at the start of a dump, of the one that is named."""
        file = buffer[b + 8 : rows_end].decode("utf-8", "replace")
        if file == self._file:
            return
        if len(self._changes) > self._committed or self._open_refused or self._spool is not None:
            raise SourceError(f"{self._file} ended inside a transaction; the pipeline stops before it")
        self._base = base_version(self._epoch, file_number(file))
        if file_number(file) <= file_number(self._file):
            raise HistoryGoneError(
                f"the source went from {self._file} back to {file}: its binlogs were reset, and versions would fall. "
                "Fill the views again with: viewtail replay --new-history"
            )
        self._file, self._last_pos, self._wraps = file, 4, 0
        self._tables.clear()

    def _commit(self, log_pos: int) -> None:
        """A transaction ended at `log_pos` and is to be delivered."""
        end: End = (
            self._file,
            (self._wraps << 32) + log_pos,
            self._txn_start,
            self._gtid,
        )
        if self._spool is not None:
            self._big_end, self._spool_is_committed = end, True
            return
        self._refused += self._open_refused
        self._open_refused = []
        self._committed = len(self._changes)
        self._committed_bytes += self._held_bytes
        self._held_bytes = 0
        self._end = end
        if self._first_gtid is None:
            self._first_gtid = self._gtid

    def _query(self, buffer: bytearray, b: int, rows_end: int, log_pos: int) -> None:
        database_length, status_length = (
            buffer[b + 8],
            int.from_bytes(buffer[b + 11 : b + 13], "little"),
        )
        at = b + 13 + status_length
        database = buffer[at : at + database_length].decode("utf-8", "replace")
        mode = _sql_mode(buffer[b + 13 : at])
        statement = statements.plain(
            buffer[at + database_length + 1 : rows_end].decode("utf-8", "replace"),
            has_escapes=not mode & _NO_BACKSLASH_ESCAPES,
        )
        match statements.meaning(statement):
            case (
                statements.Meaning.BEGIN | statements.Meaning.SAVEPOINT | statements.Meaning.OPENING_STATEMENT
            ):
                self._mark_loud()
                self._begun_at = self._txn_start
            case statements.Meaning.XA_BRANCH:
                pass
            case statements.Meaning.COMMIT:
                self._commit(log_pos)
            case statements.Meaning.ROLLBACK | statements.Meaning.ROLLBACK_TO as meaning:
                self._halt_touched("a rollback stands in the binlog, so what the server kept cannot be told")
                if meaning is statements.Meaning.ROLLBACK:
                    self._commit(log_pos)
            case statements.Meaning.STATEMENT:
                if database not in self._own_schemas:
                    self._mark_loud()
                self._judge(statement, database, bool(mode & _STRICT), log_pos)
                if not self._in_transaction():
                    self._commit(log_pos)

    def _mark_loud(self) -> None:
        """The open transaction is not viewtail's own, though no table map says so."""
        self.is_quiet = False
        self._loud = self._gtid

    def _judge(self, statement: str, database: str, is_strict: bool, log_pos: int) -> None:
        """Halt the tables whose stored values a statement may have changed unseen."""
        followed = list(self._followed.values())
        for table, why in statements.halted_by(statement, database, followed, is_strict=is_strict):
            self._halt(
                table,
                self._version(log_pos),
                f"{why}. When the table is as it should be, fill the views again: viewtail replay VIEW",
            )

    def _in_transaction(self) -> bool:
        """Whether the open transaction began with BEGIN: a statement inside it does not end it."""
        return self._begun_at == self._txn_start

    def _halt_touched(self, why: str) -> None:
        """Halt every followed table that the open transaction has a table map of; forget what it held."""
        touched = {plan.followed.table.full_name: plan.followed for plan in self._tables.values() if plan}
        for followed in touched.values():
            self._halt(
                followed,
                self._version(self._last_pos),
                f"{why}. Fill the views again: viewtail replay VIEW",
            )
        if self._spool is not None:
            self._spool.close()
            self._spool = None
        self._held_bytes = 0
        self._open_refused = []
        del self._changes[self._committed :]

    # -- resuming -----------------------------------------------------------------------------------------------

    def _verify(
        self,
        kind: int,
        buffer: bytearray,
        b: int,
        rows_end: int,
        log_pos: int,
        size: int,
    ) -> None:
        """The last saved transaction, read again: same GTID, same place, same end, or the history is another."""
        saved = self._verifying
        assert saved is not None
        if kind in (GTID, ANONYMOUS_GTID):
            self._gtid, self._txn_start = (
                buffer[b : b + _GTID_BYTES],
                (self._wraps << 32) + log_pos - size,
            )
            if (gtid_text(self._gtid), self._txn_start) != (saved.gtid, saved.start):
                self._diverged(saved, f"there is {gtid_text(self._gtid)} at {self._txn_start}")
        elif saved.end == (self._wraps << 32 | log_pos):
            self._verifying = None
        elif saved.end < (self._wraps << 32 | log_pos):
            self._diverged(saved, f"an event that ends at {log_pos} stands across its end")

    def _diverged(self, saved: Position, found: str) -> NoReturn:
        raise HistoryGoneError(
            f"the source's history is not the one that was read: {saved.gtid} stood at {saved.file}:{saved.start} to "
            f"{saved.end}, now {found}. The binlogs were reset or restored. Fill the views again with: "
            "viewtail replay --new-history"
        )

    # -- refusals -----------------------------------------------------------------------------------------------

    def _corrupt(self, kind: int) -> NoReturn:
        raise CorruptEventError(
            f"event {_name(kind)} after {self._file}:{self._last_pos} fails its checksum; reconnecting to read it again"
        )

    def _rows_without_map(self, kind: int) -> NoReturn:
        raise SourceError(
            f"event {_name(kind)} after {self._file}:{self._last_pos} has no table map in its transaction: reading "
            "began inside a transaction, and its rows would be lost. The pipeline stops"
        )

    def _not_an_event(self, packet: bytes) -> NoReturn:
        if packet[0] == 0xFF:
            raise DumpEnded(packet)
        if packet[0] == 0xFE:
            raise CorruptEventError(
                f"the source ended the dump after {self._file}:{self._last_pos}; reconnecting"
            )
        raise CorruptEventError(
            f"the packet after {self._file}:{self._last_pos} is no binlog event; reconnecting to read it again"
        )

    @property
    def place(self) -> str:
        """Where reading is, for messages."""
        return f"{self._file}:{self._last_pos}"


class DumpEnded(Exception):
    """The server sent an error packet in place of an event."""

    def __init__(self, packet: bytes) -> None:
        super().__init__("error packet")
        self.packet = packet


def gtid_text(body: bytearray) -> str:
    """'uuid:number' of a GTID event's body."""
    source = body[1:17].hex()
    number = int.from_bytes(body[17:25], "little", signed=True)
    return f"{source[:8]}-{source[8:12]}-{source[12:16]}-{source[16:20]}-{source[20:]}:{number}"


def _position(epoch: int, end: End) -> Position:
    file, end_position, start, gtid = end
    return Position(epoch=epoch, file=file, end=end_position, start=start, gtid=gtid_text(gtid))


def _compile(body: bytes, followed: Followed) -> Plan:
    decoder = compile_decoder(parse(body), followed)
    return Plan(
        followed,
        decoder,
        decoder.decode,
        _NO_EXTRA_DATA + decoder.write_image,
        _NO_EXTRA_DATA + decoder.update_image,
    )


def _is_begin(buffer: bytearray, b: int, rows_end: int) -> bool:
    """Whether a query event's statement is BEGIN and nothing else; its lengths must add up."""
    return (
        buffer[rows_end - 6 : rows_end] == _BEGIN_TAIL
        and b + 13 + (buffer[b + 11] | buffer[b + 12] << 8) + buffer[b + 8] + 6 == rows_end
    )


def _sql_mode(status: bytearray) -> int:
    """The session's sql_mode, from a query event's status variables; 0 where it is not told.

    It is the second of them behind four bytes of flags, or the first (MySQL source, Query_event).
    """
    at = 5 if status[:1] == b"\0" else 0
    return int.from_bytes(status[at + 1 : at + 9], "little") if status[at : at + 1] == b"\x01" else 0


def _is_malformed(buffer: bytearray, p: int, filled: int) -> bool:
    """Whether a packet's length disagrees with its event's (packets of 16 MiB and more are joined by the source)."""
    if filled - p < _HEAD_BYTES:
        return False
    length, size = _U32(buffer, p)[0] & 0xFFFFFF, _U32(buffer, p + 14)[0]
    return bool(length != size + 1 and size < 0xFFFFFE)


def _name(kind: int) -> str:
    return NAMES.get(kind, f"of unknown type {kind}")
