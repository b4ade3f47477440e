"""The events that the hot loops do not take: statements, commits, GTIDs, files, compressed transactions.

An event that cannot be read exactly halts the tables it touches, or the stream where viewtail cannot tell which.
After a reconnect the last saved transaction is read again and compared.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NoReturn

import structlog

from ingest.binlog import events
from ingest.binlog.compressed_transactions import CompressedTransactions
from ingest.binlog.coordinates import BinlogPosition, file_number
from ingest.binlog.events import Event
from ingest.binlog.gtids import GTID_BYTES, MalformedGtidError, gtid_text, untagged
from ingest.binlog.mariadb_events import MariaDBEvents
from ingest.binlog.mariadb_tables import compile_mariadb_reader
from ingest.binlog.open_transaction import BEGINNING
from ingest.binlog.row_events import RowEvents
from ingest.binlog.statement_events import StatementEvents
from ingest.binlog.stream_errors import BACKFILL_ALL, diverged, not_ended, unknown, unknown_event, unreadable
from ingest.binlog.table_readers import compile_reader
from ingest.binlog.walk import Walk
from ingest.binlog.xa_transactions import XaTransactions
from viewtail.changes.errors import HistoryGoneError

_log = structlog.get_logger("viewtail.source")

_U32 = struct.Struct("<I").unpack_from
_CREATED_AT = 52  # in a format description: when the server started, in its first file
_SERVER_ID_BEFORE = 14  # bytes before an event's body, in its header
_EVENT_TYPES_AT = 57  # ... a byte for each type of event; MySQL knows some forty
_GTIDS = frozenset({events.GTID, events.ANONYMOUS_GTID, events.GTID_TAGGED, events.MARIADB_GTID})


class ControlEvents:
    """Hands each event to the handler of its type."""

    def __init__(self, walk: Walk, after: BinlogPosition) -> None:
        self._walk, self._place = walk, walk.place
        self.rows = rows = RowEvents(walk)
        self.xa = xa = XaTransactions(walk, after)
        statements = StatementEvents(walk, xa)
        self.compressed = compressed = CompressedTransactions(walk, rows, statements, xa)
        self._mariadb = MariaDBEvents(walk, statements)
        # These move to their position by themselves, or have none.
        self._unplaced: dict[int, Callable[[Event], None]] = {
            events.ROTATE: self._rotate,
            events.FORMAT_DESCRIPTION: self._format_description,
            **dict.fromkeys(events.COMPRESSED, self._compressed),
        }
        self._handlers: dict[int, Callable[[Event], None]] = {
            events.XID: lambda event: walk.commit(event.log_pos),
            **dict.fromkeys((events.QUERY, events.EXECUTE_LOAD_QUERY), statements.query),
            events.XA_PREPARE: xa.prepare,
            events.TRANSACTION_PAYLOAD: compressed.handle,
            **dict.fromkeys(_GTIDS, self._next_transaction),
            **dict.fromkeys((*events.ROWS, *events.ROWS_V1), rows.handle),
        }

    def handle(self, event: Event) -> None:
        """Every event that the hot loops do not take."""
        place, handler = self._place, self._handlers.get(event.kind)
        if handler is None or place.saved is not None:
            self._handle_other(event)
            return
        place.move_to(event.log_pos)
        handler(event)

    def _handle_other(self, event: Event) -> None:
        """An event that moves the place only, or is compared; or one that viewtail does not know."""
        kind, place = event.kind, self._place
        if kind in self._unplaced and (place.saved is None or kind in events.ARTIFICIAL):
            self._unplaced[kind](event)
            return
        if kind not in events.ARTIFICIAL:
            place.move_to(event.log_pos)
        if kind == events.PREVIOUS_GTIDS:
            place.learn_gtids(bytes(event.buffer[event.start : event.end]))
        elif kind in events.SILENT:
            return
        elif place.saved is not None:
            self._compare(event)
        elif not event.flags & events.IGNORABLE_FLAG:
            unknown_event(kind, f"{place.file}:{event.log_pos}")

    def _compressed(self, event: Event) -> None:
        if (plain := self._mariadb.decompressed(event)) is not None:
            self.handle(plain)

    # -- transactions -------------------------------------------------------------------------------------------

    def _next_transaction(self, event: Event) -> None:
        if self._walk.transaction.held_bytes:
            not_ended(str(self._walk.place))
        self._begin(event)
        self._walk.tables.by_id.clear()

    def _begin(self, event: Event) -> None:
        """A GTID event: which transaction follows, and where it starts."""
        kind, place = event.kind, self._walk.place
        start = place.in_file(event.log_pos) - event.size
        if (kind == events.MARIADB_GTID) != place.is_mariadb:
            unknown_event(kind, f"{place.file}:{event.log_pos}")
        if place.is_mariadb:
            self._mariadb.begin(event, start)
        elif kind == events.GTID_TAGGED:
            self._walk.transaction.begin(self._untagged(event), start)
        else:
            gtid = bytearray(event.buffer[event.start : event.start + GTID_BYTES])
            self._walk.transaction.begin(gtid, start)
            if kind == events.ANONYMOUS_GTID:
                place.gtids = None  # a transaction that no other server can be asked for

    def _untagged(self, event: Event) -> bytearray:
        try:
            return untagged(event.buffer[event.start : event.end])
        except MalformedGtidError as error:
            where = f"{self._walk.place.file}:{event.log_pos}"
            raise unknown(f"the tagged GTID event at {where} cannot be read: {error}") from None

    def _compare(self, event: Event) -> None:
        """The last saved transaction, read again: same GTID, same place, same end, or the history is another."""
        place, transaction = self._walk.place, self._walk.transaction
        saved, end = place.saved, place.in_file(event.log_pos)
        assert saved is not None
        if event.kind in _GTIDS:
            self._begin(event)
            if (gtid_text(transaction.gtid), transaction.start) != (saved.gtid, saved.start):
                diverged(saved, f"there is {gtid_text(transaction.gtid)} at {transaction.start}")
        elif saved.end == end:
            place.saved = None
        elif saved.end < end:
            diverged(saved, f"an event that ends at {event.log_pos} crosses its end")

    # -- files --------------------------------------------------------------------------------------------------

    def _format_description(self, event: Event) -> None:
        place, tables = self._walk.place, self._walk.tables
        place.server_id = _U32(event.buffer, event.start - _SERVER_ID_BEFORE)[0]
        place.is_mariadb = event.end - event.start - _EVENT_TYPES_AT > events.MARIADB_GTID
        tables.compile = compile_mariadb_reader if place.is_mariadb else compile_reader
        tables.by_body.clear()
        if self._walk.transaction.is_cut:
            self._forget_cut(_U32(event.buffer, event.start + _CREATED_AT)[0])
        # It has a checksum in any case, behind the byte that says whether the other events have one.
        algorithm_at = event.end - (1 if place.checksum_bytes else 5)
        place.checksum_bytes = 4 if event.buffer[algorithm_at] == 1 else 0

    def _rotate(self, event: Event) -> None:
        """The next events are of another file, or, at the start of a dump, of the one that is named."""
        place, transaction = self._walk.place, self._walk.transaction
        file = event.buffer[event.start + 8 : event.end].decode("utf-8", "replace")
        is_start = place.check_start(file)
        if file == place.file:
            return
        if transaction.holds_rows:
            if event.log_pos:  # the file's own last event, which no transaction is open at
                self._ended_inside()
            transaction.is_cut = True  # the next format description says whether it is over
        if file_number(file) <= file_number(place.file) and not is_start:
            raise HistoryGoneError(
                f"the source went from {place.file} back to {file}: its binlogs were reset, and versions would fall. "
                f"To go on, {BACKFILL_ALL}"
            )
        place.enter(file)
        transaction.enter_file()
        self._walk.tables.by_id.clear()

    def _forget_cut(self, started_at_s: int) -> None:
        """A file ended inside a transaction: it is rolled back, if the server restarted then.

        The server died while it wrote the transaction, and does not find its commit when it recovers.
        """
        self._walk.transaction.is_cut = False
        if not started_at_s:
            self._ended_inside()
        why = "a transaction that the source did not finish when it died is left out"
        _log.warning(why, position=str(self._walk.place))
        self._walk.take_back(BEGINNING)

    def _ended_inside(self) -> NoReturn:
        raise unreadable(
            f"the file before {self._walk.place.file} ended inside a transaction: nothing tells whether its rows count"
        )
