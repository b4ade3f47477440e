"""The events that the hot path of dispatcher.py does not take: statements, commits of their kind, files, faults.

An event or statement that cannot be read exactly halts the tables it touches, or, where those cannot be told, the
stream. A compressed transaction's events are walked here. A transaction that was read before is read again on
resuming, and compared.
"""

from __future__ import annotations

import struct
from typing import NoReturn

import structlog

from changes.batches import Followed, RowChanges, TableChange, TableChangeKind
from changes.errors import HistoryGoneError, SourceError, TableUnreadableError
from changes.gtid_sets import GtidSet
from changes.positions import file_number
from changes.versions import MAX_POSITION, base_version
from ingest.binlog import query_event, schema_changes, statements
from ingest.binlog.events import (
    ANONYMOUS_GTID,
    DELETE_ROWS,
    EXECUTE_LOAD_QUERY,
    FORMAT_DESCRIPTION,
    GTID,
    GTID_TAGGED,
    HEARTBEAT,
    HEARTBEAT_V2,
    IGNORABLE_FLAG,
    MARIADB_GTID,
    NAMES,
    PARTIAL_UPDATE_ROWS,
    PREVIOUS_GTIDS,
    QUERY,
    ROTATE,
    ROW_EVENTS,
    SILENT,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    UPDATE_ROWS,
    WRITE_ROWS,
    XA_PREPARE,
    XID,
)
from ingest.binlog.gtids import GTID_BYTES, MalformedGtidError, gtid_text, untagged
from ingest.binlog.packed import Buffer
from ingest.binlog.payload import MalformedPayloadError, Payload
from ingest.binlog.query_event import LOAD_FIXED_BYTES, Query
from ingest.binlog.refusals import (
    WentBackError,
    corrupt,
    diverged,
    name_of,
    not_ended,
    rows_without_map,
    unchecked_format,
    unpaired,
)
from ingest.binlog.seen import Seen
from ingest.binlog.shapes import BEGIN_TAIL
from ingest.binlog.transactions import Transactions
from ingest.binlog.walk_state import BEFORE_ALL, OWN, Compressed, Plan

_log = structlog.get_logger("viewtail.source")

_U32 = struct.Struct("<I").unpack_from
_TABLE_ID = struct.Struct("<IH").unpack_from
_ARTIFICIAL = frozenset(
    {ROTATE, FORMAT_DESCRIPTION, HEARTBEAT, HEARTBEAT_V2}
)  # their positions mean nothing here
_GTIDS = frozenset({GTID, ANONYMOUS_GTID, GTID_TAGGED, MARIADB_GTID})
_INNER_HEAD = struct.Struct("<IBIIIH").unpack_from  # time, type, server id, event size, end position, flags
_INNER_HEAD_BYTES = 19
_CREATED_AT = 52  # in a format description: when the server started, in its first file
_CHECKSUM_BYTES = 4  # a format description has them in any case, behind the byte that tells of the others


class RareEvents(Transactions):
    """What each of these events does to a walk."""

    def halt_too_large(self, event: bytes, size: int) -> None:
        """An event above max_event_bytes, of which only the first bytes were received."""
        kind, log_pos, flags = event[4], _U32(event, 13)[0], int.from_bytes(event[17:19], "little")
        self._has_wrapped(kind, log_pos, size)
        if kind in SILENT or (flags & IGNORABLE_FLAG and kind not in NAMES):
            self._last_pos = log_pos
            return
        if kind not in ROW_EVENTS:
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
            if log_pos == 0 and kind in SILENT:  # made up by the server
                return False
            raise WentBackError(
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
        buffer: Buffer,
        b: int,
        rows_end: int,
        log_pos: int,
        size: int,
    ) -> None:
        """Every event that the hot path does not take."""
        if kind == ROTATE:
            self._rotate(buffer, b, rows_end, log_pos)
            return
        if kind == FORMAT_DESCRIPTION:
            if self._is_cut:
                self._forget_what_was_cut(_U32(buffer, b + _CREATED_AT)[0])
            self._checksum_bytes = (
                4 if buffer[rows_end - 1 if self._checksum_bytes else rows_end - 5] == 1 else 0
            )
            self._memo.clear()
            return
        if (log_pos or self._last_pos == BEFORE_ALL) and kind not in _ARTIFICIAL:
            self._last_pos = log_pos
        if kind in SILENT:
            if kind == PREVIOUS_GTIDS and self._seen is None:
                self._learn_seen(bytes(buffer[b:rows_end]))
            return
        if self._verifying is not None:
            self._verify(kind, buffer, b, rows_end, log_pos, size)
        elif kind == XID:
            self._commit(log_pos)
        elif kind == QUERY:
            self._query(query_event.parse(buffer, b, rows_end), log_pos)
        elif kind == EXECUTE_LOAD_QUERY:
            self._query(query_event.parse(buffer, b, rows_end, LOAD_FIXED_BYTES), log_pos)
        elif kind in _GTIDS:
            if self._held_bytes:
                not_ended(self.place)
            self._begin(kind, buffer, b, rows_end, log_pos, size)
            self._tables.clear()
        elif kind == XA_PREPARE:
            self._prepare(buffer, b, rows_end, log_pos)
        elif kind == PARTIAL_UPDATE_ROWS:
            self._partial_event(buffer, b, rows_end, log_pos, size)
        elif kind == TRANSACTION_PAYLOAD:
            self._compressed_event(bytes(buffer[b:rows_end]), log_pos, size)
        elif not flags & IGNORABLE_FLAG:
            self._unknown(kind, log_pos)

    def _failed_checksum(self, kind: int, event: bytes, place: str) -> None:
        """Raises CorruptEventError, but for a format description that is known to have no checksum."""
        if kind != FORMAT_DESCRIPTION or event[-1 - _CHECKSUM_BYTES]:
            corrupt(kind, place)
        if event not in self._unchecked_formats:
            unchecked_format(event, place)

    def _learn_seen(self, body: bytes) -> None:
        """At the beginning of a file stands what all files before it hold."""
        self._note_seen()  # which is part of it
        try:
            self._seen = Seen(str(GtidSet.decoded(body)))
        except ValueError as error:
            raise SourceError(
                f"the PREVIOUS_GTIDS event at {self.place} cannot be read: {error}. The pipeline stops before it; a "
                "newer viewtail may know it"
            ) from None

    def _unknown(self, kind: int, log_pos: int) -> NoReturn:
        raise SourceError(
            f"event {name_of(kind)} at {self._file}:{log_pos} is one viewtail cannot read; nothing is skipped, so "
            "the pipeline stops here. A newer viewtail may know it."
        )

    def _begin(self, kind: int, buffer: Buffer, b: int, rows_end: int, log_pos: int, size: int) -> None:
        """A GTID event: which transaction follows, and where it starts."""
        if kind == GTID_TAGGED:
            try:
                self._gtid = untagged(buffer[b:rows_end])
            except MalformedGtidError as error:
                raise SourceError(
                    f"the tagged GTID event at {self._file}:{log_pos} cannot be read: {error}. The pipeline stops "
                    "before it; a newer viewtail may know it"
                ) from None
        else:
            self._gtid = bytearray(buffer[b : b + GTID_BYTES])
            if kind == ANONYMOUS_GTID:
                self._seen = None  # a transaction that no other server can be asked for
        self._txn_start = (self._wraps << 32) + log_pos - size

    def _partial_event(self, buffer: Buffer, b: int, rows_end: int, log_pos: int, size: int) -> None:
        low, high = _TABLE_ID(buffer, b)
        if (table := low | high << 32) not in self._tables:
            rows_without_map(PARTIAL_UPDATE_ROWS, self.place)
        if plan := self._tables[table]:
            self._held_bytes += size
            if self._held_bytes > self._most_held:
                self._held_bytes = self._spill(self._committed, self._held_bytes, size)
            self._partial_update(plan, self._version(log_pos), buffer, b, rows_end)

    # -- compressed transactions --------------------------------------------------------------------------------

    def _compressed_event(self, body: bytes, log_pos: int, size: int) -> None:
        """A whole transaction in one event: walked at once, or, above the memory bound, by `batches` in pieces."""
        end = (self._wraps << 32) + log_pos
        try:
            payload = Payload(body, self._decompressor)
            compressed = Compressed(payload=payload, start=end - size, length=size, log_pos=log_pos)
            if payload.size > self._spool_bytes:
                self._compressed = compressed
                return
            events = payload.whole()
        except MalformedPayloadError as error:
            self._bad_payload(log_pos, error)
        if self._inner_events(compressed, events) != len(events) or self._end is None or self._end[1] != end:
            self._bad_payload(log_pos, "it ends inside an event or a transaction")

    def _bad_payload(self, log_pos: int, why: object) -> NoReturn:
        raise SourceError(
            f"the compressed transaction at {self._file}:{log_pos} cannot be read: {why}. The pipeline stops before "
            "it. Look at it with mysqlbinlog -v; to go on behind it: viewtail replay --new-history"
        )

    def _inner_events(self, compressed: Compressed, events: bytes) -> int:
        """Walk every whole event at the beginning of `events`; how many bytes that was.

        They have no position of their own: the bytes of their event in the file are shared out among them, in order.
        """
        log_pos, base = compressed.log_pos, self._base
        place, length, whole = compressed.start, compressed.length, compressed.payload.size
        done, p, filled = compressed.done, 0, len(events)
        tables = self._tables
        while filled - p >= _INNER_HEAD_BYTES:
            _, kind, _, size, _, flags = _INNER_HEAD(events, p)
            if size < _INNER_HEAD_BYTES:
                self._bad_payload(log_pos, f"an event of {size} bytes")
            q = p + size
            if q > filled:
                if size > self.max_event_bytes:
                    self._bad_payload(
                        log_pos, f"an event of {size} bytes is above run.max_event_bytes; raise that setting"
                    )
                break
            b = p + _INNER_HEAD_BYTES
            version = base + (place + (done + q) * length // whole >> 4)
            if kind == TABLE_MAP:
                body = events[b:q]
                low, high = _TABLE_ID(body)
                plan = self._memo[body] if body in self._memo else self._plan(body, version)
                tables[low | high << 32] = plan
                if plan is not OWN:
                    self.is_quiet = False
            elif WRITE_ROWS <= kind <= DELETE_ROWS or kind == PARTIAL_UPDATE_ROWS:
                low, high = _TABLE_ID(events, b)
                if (table := low | high << 32) not in tables:
                    rows_without_map(kind, self.place)
                if plan := tables[table]:
                    self._held_bytes += size
                    self._inner_rows(plan, kind, version, events, b, q)
            elif kind == XID:
                self._commit(log_pos)
            elif kind == XA_PREPARE:
                self._prepare(events, b, q, log_pos)
            elif kind == QUERY:
                if is_begin(events, b, q):
                    self._begun_at = self._txn_start
                else:
                    self._query(query_event.parse(events, b, q), log_pos)
            elif kind not in SILENT and not flags & IGNORABLE_FLAG:
                self._unknown(kind, log_pos)
            p = q
        compressed.done = done + p
        return p

    def _inner_rows(self, plan: Plan, kind: int, version: int, events: bytes, b: int, q: int) -> None:
        image = plan.update_image if kind == UPDATE_ROWS else plan.write_image
        r = b + 8 + len(image)
        if kind == PARTIAL_UPDATE_ROWS:
            self._partial_update(plan, version, events, b, q)
        elif events[b + 8 : r] != image:
            self._other_image(plan, kind, version, events, b, q)
        else:
            try:
                rows = plan.decode(events, r, q)
                if kind == UPDATE_ROWS and len(rows) & 1:
                    unpaired(plan.followed)
                self._changes.append(RowChanges(plan.followed, kind - WRITE_ROWS, version, rows))
            except (UnicodeDecodeError, TableUnreadableError) as error:
                self._careful(plan, kind, version, events, r, q, error)

    def _rotate(self, buffer: Buffer, b: int, rows_end: int, log_pos: int) -> None:
        """The next events are of another file, or, at the start of a dump, of the one that is named."""
        file = buffer[b + 8 : rows_end].decode("utf-8", "replace")
        is_first, self._is_by_set = self._is_by_set, False
        if is_first and file in self._large_files:
            raise HistoryGoneError(
                f"{file} is above 4 GiB, and what was read is known by its GTIDs only: the positions of what follows "
                "cannot be told. For a first start run FLUSH BINARY LOGS on the source; after a failover fill the "
                "views again with: viewtail replay --new-history"
            )
        if file == self._file:
            return
        if len(self._changes) > self._committed or self._open_refused or self._spool is not None:
            if log_pos:  # the file's own last event, which no transaction is open at
                self._ended_inside()
            self._is_cut = True  # what comes next says whether it is over
        self._base = base_version(self._epoch, file_number(file))
        if file_number(file) <= file_number(self._file) and not is_first:
            raise HistoryGoneError(
                f"the source went from {self._file} back to {file}: its binlogs were reset, and versions would fall. "
                "Fill the views again with: viewtail replay --new-history"
            )
        self._file, self._last_pos, self._wraps = file, 4, 0
        self._tables.clear()
        # Where a transaction begins is what it is known by there; in this file another one may begin at the same place.
        self._begun_at = self._branch_at = -1
        self._savepoints.clear()

    def _forget_what_was_cut(self, started_at_s: int) -> None:
        """A transaction stands at a file's end without its own: rolled back, if the server then started anew.

        It died while it wrote the transaction, and what recovers does not find its commit.
        """
        self._is_cut = False
        if not started_at_s:
            self._ended_inside()
        _log.warning(
            "a transaction that the source did not finish when it died is left out", position=self.place
        )
        self._roll_back()

    def _ended_inside(self) -> NoReturn:
        raise SourceError(
            f"the file before {self._file} ended inside a transaction: whether its rows count cannot be told. The "
            "pipeline stops before it. Look at it with mysqlbinlog -v; to go on behind it: viewtail replay "
            "--new-history"
        )

    def _query(self, query: Query, log_pos: int) -> None:
        statement = statements.plain(query.texts[0], query.sql_mode)
        match statements.meaning(statement):
            case (
                statements.Meaning.BEGIN | statements.Meaning.SAVEPOINT | statements.Meaning.OPENING_STATEMENT
            ) as meaning:
                self._mark_loud()
                self._begun_at = self._txn_start
                if meaning is statements.Meaning.SAVEPOINT and statement[:7].upper() != "RELEASE":
                    self._savepoint(statements.savepoint(statement))
            case statements.Meaning.XA_BRANCH:
                self._branch_at = self._txn_start
            case statements.Meaning.XA_COMMIT | statements.Meaning.XA_ROLLBACK as meaning:
                self._decide(statement, log_pos, is_kept=meaning is statements.Meaning.XA_COMMIT)
            case statements.Meaning.COMMIT:
                self._commit(log_pos)
            case statements.Meaning.ROLLBACK:
                self._roll_back()
                self._commit(log_pos)
            case statements.Meaning.ROLLBACK_TO:
                self._roll_back_to(statements.savepoint(statement))
            case statements.Meaning.STATEMENT:
                if query.database not in self._own_schemas:
                    self._mark_loud()
                for text in query.texts:
                    self._judge(statements.plain(text, query.sql_mode), query, log_pos)
                if not self._in_transaction():
                    self._commit(log_pos)

    def _judge(self, statement: str, query: Query, log_pos: int) -> None:
        """Note which tables' rows a statement took or replaced; halt those whose values it may have changed unseen."""
        if statements.is_change(statement):
            for table in self._reached(statement, query):
                why = (
                    "a change in statement format, which does not say what rows it changed, nor what triggers, views "
                    f"and functions did with other tables: {statements.shown(statement)}. SET GLOBAL binlog_format = "
                    "'ROW', and see that no session changes it"
                )
                self._halt_by_statement(table, why, log_pos)
            return
        followed = statements.concerned(statement, query.database, self._followed.values())
        for table in followed:
            self._last_statements[table] = f"{statements.shown(statement)} (at {self.place})"
        for verdict in schema_changes.judge(statement, query.database, followed, query.sql_mode):
            why, kind = schema_changes.told(verdict, statement), verdict.kind
            if kind is None:
                self._halt_by_statement(verdict.followed, why, log_pos, verdict.columns)
                continue
            if kind is TableChangeKind.EMPTIED and query.uses_temporary_tables:
                kind = TableChangeKind.THINNED  # perhaps of a temporary table: what is gone is looked up
            place = f"{verdict.followed.table.full_name} at {self.place}"
            self._table_changes.append(
                TableChange(verdict.followed, self._version(log_pos), kind, f"{place}: {why}")
            )

    def _halt_by_statement(
        self, table: Followed, why: str, log_pos: int, columns: frozenset[str] | None = None
    ) -> None:
        self._halt(
            table,
            self._version(log_pos),
            f"{why}. When the table is as it should be, fill the views again: viewtail replay VIEW",
            columns,
        )

    def _reached(self, statement: str, query: Query) -> list[Followed]:
        """The followed tables that a change in statement format may have touched.

        MySQL says of which databases tables were used, by whatever way, unless there were too many.
        """
        followed, told = self._followed.values(), query.databases
        if told is None:
            return list(followed)
        schemas = {name.lower() for name in told}
        return [table for table in followed if table.table.schema.lower() in schemas]

    # -- resuming -----------------------------------------------------------------------------------------------

    def _verify(
        self,
        kind: int,
        buffer: Buffer,
        b: int,
        rows_end: int,
        log_pos: int,
        size: int,
    ) -> None:
        """The last saved transaction, read again: same GTID, same place, same end, or the history is another."""
        saved = self._verifying
        assert saved is not None
        if kind in _GTIDS:
            self._begin(kind, buffer, b, rows_end, log_pos, size)
            if (gtid_text(self._gtid), self._txn_start) != (saved.gtid, saved.start):
                diverged(saved, f"there is {gtid_text(self._gtid)} at {self._txn_start}")
        elif saved.end == (self._wraps << 32 | log_pos):
            self._verifying = None
        elif saved.end < (self._wraps << 32 | log_pos):
            diverged(saved, f"an event that ends at {log_pos} stands across its end")


def is_begin(buffer: Buffer, b: int, rows_end: int) -> bool:
    """Whether a query event's statement is BEGIN and nothing else; its lengths must add up."""
    return (
        buffer[rows_end - 6 : rows_end] == BEGIN_TAIL
        and b + 13 + (buffer[b + 11] | buffer[b + 12] << 8) + buffer[b + 8] + 6 == rows_end
    )
