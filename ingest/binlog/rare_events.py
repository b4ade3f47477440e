"""The events that the hot path of dispatcher.py does not take: statements, commits of their kind, files, faults.

An event or statement that cannot be read exactly halts the tables it touches, or, where those cannot be told, the
stream. A transaction that was read before is read again on resuming, and compared.
"""

from __future__ import annotations

import struct

from changes.errors import HistoryGoneError, SourceError
from changes.positions import file_number
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
    TRANSACTION_PAYLOAD,
    WRITE_ROWS,
    XA_PREPARE,
    XID,
)
from ingest.binlog.refusals import diverged, name_of, rows_without_map
from ingest.binlog.walk_state import BEFORE_ALL, GTID_BYTES, End, WalkState

_U32 = struct.Struct("<I").unpack_from
_TABLE_ID = struct.Struct("<IH").unpack_from
_ARTIFICIAL = frozenset(
    {ROTATE, FORMAT_DESCRIPTION, HEARTBEAT, HEARTBEAT_V2}
)  # their positions mean nothing here
_NO_BACKSLASH_ESCAPES = 1 << 20  # bits of sql_mode (MySQL source, system_variables.h)
_STRICT = 3 << 21  # STRICT_TRANS_TABLES, STRICT_ALL_TABLES
_WAYS_OUT = {
    TRANSACTION_PAYLOAD: "It is a compressed transaction: run SET GLOBAL binlog_transaction_compression = OFF, then "
    "viewtail replay --new-history.",
}


class RareEvents(WalkState):
    """What each of these events does to a walk."""

    def halt_too_large(self, event: bytes, size: int) -> None:
        """An event above max_event_bytes, of which only the first bytes were received."""
        kind, log_pos, flags = event[4], _U32(event, 13)[0], int.from_bytes(event[17:19], "little")
        self._has_wrapped(kind, log_pos, size)
        if kind in SILENT or (flags & IGNORABLE_FLAG and kind not in NAMES):
            self._last_pos = log_pos
            return
        if not (WRITE_ROWS <= kind <= DELETE_ROWS or kind == PARTIAL_UPDATE_ROWS):
            raise SourceError(
                f"a {name_of(kind)} event of {size} bytes at {self._file}:{log_pos} is above run.max_event_bytes "
                f"({self.max_event_bytes}); raise that setting"
            )
        low, high = _TABLE_ID(event, 19)
        if (table := low | high << 32) not in self._tables and self._verifying is None:
            rows_without_map(kind, self.place)
        plan = self._tables.get(table)
        self._last_pos = log_pos
        if plan:
            self._halt(
                plan.followed,
                self._version(log_pos),
                f"a {name_of(kind)} event of {size} bytes is above run.max_event_bytes ({self.max_event_bytes}). Raise "
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
        self._last_pos = BEFORE_ALL
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
        if (log_pos or self._last_pos == BEFORE_ALL) and kind not in _ARTIFICIAL:
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
                buffer[b : b + GTID_BYTES],
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
                f"event {name_of(kind)} at {self._file}:{log_pos} is one viewtail cannot read; nothing is skipped, so "
                f"the pipeline stops here. {_WAYS_OUT.get(kind, 'A newer viewtail may know it.')}"
            )

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
                buffer[b : b + GTID_BYTES],
                (self._wraps << 32) + log_pos - size,
            )
            if (gtid_text(self._gtid), self._txn_start) != (saved.gtid, saved.start):
                diverged(saved, f"there is {gtid_text(self._gtid)} at {self._txn_start}")
        elif saved.end == (self._wraps << 32 | log_pos):
            self._verifying = None
        elif saved.end < (self._wraps << 32 | log_pos):
            diverged(saved, f"an event that ends at {log_pos} stands across its end")


def gtid_text(body: bytearray) -> str:
    """'uuid:number' of a GTID event's body."""
    source = body[1:17].hex()
    number = int.from_bytes(body[17:25], "little", signed=True)
    return f"{source[:8]}-{source[8:12]}-{source[12:16]}-{source[16:20]}-{source[20:]}:{number}"


def _sql_mode(status: bytearray) -> int:
    """The session's sql_mode, from a query event's status variables; 0 where it is not told.

    It is the second of them behind four bytes of flags, or the first (MySQL source, Query_event).
    """
    at = 5 if status[:1] == b"\0" else 0
    return int.from_bytes(status[at + 1 : at + 9], "little") if status[at : at + 1] == b"\x01" else 0
