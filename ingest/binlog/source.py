"""The binlog as a Source: connects, reads, reconnects from its own last delivered position."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary
from zlib import crc32

import structlog

from ingest import Committed, Part, Progress, Resuming
from ingest.binlog import continuity, purged, resuming
from ingest.binlog.connection import BINLOG_BEGIN, DumpConnection
from ingest.binlog.coordinates import BEFORE_ALL, BinlogPosition, own
from ingest.binlog.dispatcher import Dispatcher
from ingest.binlog.events import CHECKSUM_RESIDUE
from ingest.binlog.gtid_sets import contains
from ingest.binlog.resets import SameBytes, SilentEnd
from ingest.binlog.stream_errors import BACKFILL_ALL, PurgedError, UncheckedFormatError, WentBackError, corrupt
from ingest.binlog.table_readers import Wanted
from ingest.binlog.times import begun_s, file_since
from ingest.binlog.transaction_layouts import PACKET_HEAD_BYTES
from ingest.left_out import is_logged
from viewtail.changes.batches import Batch, Followed, Halt
from viewtail.changes.errors import CorruptEventError, HistoryGoneError, SourceError, TemporaryError, ViewtailError
from viewtail.changes.positions import Position
from viewtail.changes.retrying import reaction_to
from viewtail.changes.tables import Column, Kind, Table
from viewtail.servers.facts import ServerFacts, facts_of
from viewtail.servers.sessions import Connection, MySQLAddress, asking

_log = structlog.get_logger("viewtail.source")

_BUFFER_BYTES = 256 << 10
_PIECE_BYTES = 1 << 20
_SIZE_AT = 14  # of an event, in its packet
_SHOWN_BYTES = 64  # of an event that is too large: its header, and what says which table it is about
_U32 = struct.Struct("<I").unpack_from


def _passed(batch: Batch, place: BinlogPosition) -> BinlogPosition:
    """Return the position behind the batch, and mark a batch at the end of a file as a milestone."""
    if batch.end is None:
        return place
    end = own(batch.end)
    batch.is_milestone = end.file != place.file
    return end


def _unfollow(halts: Sequence[Halt], followed: dict[tuple[str, str], Followed]) -> None:
    """A halted table stays unread after a reconnect too."""
    for halt in halts:
        followed.pop((halt.followed.table.schema, halt.followed.table.name), None)


class BinlogSource:
    """A MySQL server's row changes for some tables.

    Args:
        address: the tailed server.
        followed: by (schema, table): what to decode.
        watermark_schema: the database with the watermark table on that server.
        own_schemas: viewtail's own databases there: changes of theirs alone make a batch quiet.
        epoch: the number of this server's history.
        identity: of that server; another one behind the address ends a read. None: whichever answers.
        heartbeat_s: seconds of silence after which the server says that it is still there.
        server_id: replica number to use; None for a random one a connection.
        spool_bytes: bytes of row events of one open transaction that are kept in memory.
        max_event_bytes: a larger row event halts its table's views.
        offset_table: viewtail's own with the offsets, where it may be on that server.
        fits_from: by (schema, table): up to this version the table is not followed, and cannot halt.
    """

    def __init__(  # noqa: PLR0913 - each is a setting of its own, and most have a default
        self,
        address: MySQLAddress,
        followed: Mapping[tuple[str, str], Followed],
        *,
        watermark_schema: str,
        own_schemas: frozenset[str],
        epoch: int,
        identity: str | None = None,
        heartbeat_s: float = 2.0,
        server_id: int | None = None,
        spool_bytes: int = 4 << 20,
        max_event_bytes: int = 256 << 20,
        offset_table: purged.OffsetTable | None = None,
        fits_from: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        self._address = address
        self._ask = partial(asking, address, role="source")
        self._followed = dict(followed)
        self._epoch = epoch
        self._identity = identity
        self._facts_of: WeakKeyDictionary[Connection, ServerFacts] = WeakKeyDictionary()  # asked once a session
        self._new_silent_end = partial(SilentEnd, address, identity, heartbeat_s)
        self._connect = partial(
            DumpConnection, address, heartbeat_s=heartbeat_s, server_id=server_id, identity=identity
        )
        self._watermark = _watermark_table(watermark_schema)
        self._wanted = Wanted(
            followed=self._followed,
            watermark=self._watermark,
            own_schemas=own_schemas,
            fits_from=fits_from or {},
            spool_bytes=spool_bytes,
            max_event_bytes=max_event_bytes,
        )
        self._offset_table = offset_table
        self._rest: BinlogSource | None = None  # what is left of the binlogs, while it is looked through
        self._suspected_format = b""
        self._unchecked_formats: frozenset[bytes] = frozenset()
        self._interrupted = threading.Event()
        self._connection: DumpConnection | None = None
        self.progress = Progress()

    def beginning(self, shown: Position | None = None) -> None:
        """Watermarks come through the binlog."""

    def is_compacted(self) -> bool:
        return False

    def now(self) -> BinlogPosition:
        with self._ask() as connection, connection.cursor() as cursor:
            cursor.execute(facts_of(connection).status)
            row = cursor.fetchone()
            base = continuity.executed(connection)
        if row is None:
            raise SourceError("the source writes no binlog. Start it with --log-bin; see `viewtail check`")
        # By set, not by place: asked one after the other they would not belong together, and what is seen must be known
        # exactly from the beginning.
        end = 0 if base else row[1]
        server = self._identity or ""
        return BinlogPosition(epoch=self._epoch, file=row[0], end=end, start=end, gtid_base=base, server=server)

    def shows(self, cursor: Any, changes: Committed) -> bool:
        connection = cursor.connection
        if (facts := self._facts_of.get(connection)) is None:
            facts = self._facts_of[connection] = facts_of(connection)
        return continuity.shows(cursor, changes, facts)

    def committed_at(self, position: Position) -> Committed:
        place = own(position)
        seen = place.seen or place.gtid  # a set is as good as one
        return Committed(gtids=frozenset({seen} if seen else ()), version=place.version)

    def since(self, committed_us: int) -> BinlogPosition:
        with self._ask() as connection:
            files = list(continuity.binlog_sizes(connection))
        return self._begin_of(file_since(files, self._connect_to, committed_us))

    def place(self, text: str) -> tuple[BinlogPosition, int]:
        """Begin at the beginning of its file: an operator's place need not be between two transactions."""
        file, colon, number = text.rpartition(":")
        if not colon or not number.isascii() or not number.isdigit():
            raise ValueError(f"{text!r} is no place in a binlog; write FILE:POSITION, as `viewtail status` does")
        with self._ask() as connection:
            sizes = continuity.binlog_sizes(connection)
        if file not in sizes or sizes[file] < int(number):
            there = f"{next(iter(sizes))} to {list(sizes)[-1]}" if sizes else "none"
            raise HistoryGoneError(f"the source's binlogs have no {text}; there are {there}")
        begin = self._begin_of(file)
        return begin, replace(begin, end=int(number), start=int(number)).version

    def newest_first(self) -> Iterator[Part]:
        """A binlog each: reading cannot begin within one, but where a transaction is known to end."""
        with self._ask() as connection:
            sizes = continuity.binlog_sizes(connection)
        for file, byte_count in reversed(sizes.items()):
            begun_us = begun_s(self._connect_to, file) * 1_000_000
            yield Part(begin=self._begin_of(file), byte_count=byte_count, begun_us=begun_us)

    def _begin_of(self, file: str) -> BinlogPosition:
        server = self._identity or ""
        return BinlogPosition(epoch=self._epoch, file=file, end=BINLOG_BEGIN, start=BINLOG_BEGIN, server=server)

    def _connect_to(self, file: str) -> DumpConnection:
        return self._connect(file, BINLOG_BEGIN)

    def resume(self, offset: Position, kept: Position) -> Resuming:
        return resuming.resuming(own(offset), own(kept), self._epoch, self._identity or "", self.check)

    def check(self, after: Position) -> None:
        after = own(after)
        try:
            self._check_there(after)
        except PurgedError as error:
            self._behind_purged(after, error)

    def _check_there(self, after: BinlogPosition) -> None:
        with self._ask() as connection:
            if self._needs_set(after):
                continuity.check_sets(connection, self._seen(after))
                return
            sizes = continuity.binlog_sizes(connection)
        if sizes.get(after.file, -1) < after.end:
            raise PurgedError(
                f"history gone: the source no longer has the changes after {after}. Point viewtail at a server that "
                f"still has them, or {BACKFILL_ALL}"
            )

    def _behind_purged(self, after: BinlogPosition, error: PurgedError) -> BinlogPosition | None:
        """Return the position behind all that is gone, where nothing of that was missed; None when interrupted.

        Raises the error where something may have been.
        """
        with self._ask() as connection:
            if self._identity is not None:
                continuity.check_identity(connection, self._identity)
            seen, has_note = purged.beyond(connection, after, error, is_comparable=not self._needs_set(after))
            begin = replace(BEFORE_ALL, epoch=self._epoch, gtid_base=seen, server=self._identity or "")
            upto = continuity.executed(connection)
            if not has_note:
                return begin
            if self._offset_table is None or not is_logged(connection, *self._offset_table.name):
                raise error
            if contains(seen, upto):
                return begin
        self._rest = self._reader_of(Followed(self._offset_table.described(), ("id", "position")))
        is_noted = None if self._interrupted.is_set() else purged.holds_note(self._rest.read(begin), after, upto)
        self._rest = None
        if is_noted:
            raise error
        return None if is_noted is None else begin

    def _reader_of(self, followed: Followed) -> BinlogSource:
        """Make a reader of the same binlogs for one table."""
        tables = {(followed.table.schema, followed.table.name): followed}
        return BinlogSource(
            self._address,
            tables,
            watermark_schema="",
            own_schemas=frozenset(),
            epoch=self._epoch,
            identity=self._identity,
        )

    def _needs_set(self, after: BinlogPosition) -> bool:
        """Return whether coordinates do not say where to go on: they are of another history, or there are none yet."""
        is_anothers = after.is_of_another_server(self._identity or "")
        return after.is_by_set or after.epoch != self._epoch or is_anothers

    def _seen(self, after: BinlogPosition) -> str:
        if not after.seen:
            raise HistoryGoneError(
                f"{after} is a position of another server than the source that is there now, and it is not known which "
                f"transactions were read from that server. Point viewtail back at it, or {BACKFILL_ALL}"
            )
        return after.seen

    def read(self, after: Position) -> Iterator[Batch]:
        """Committed transactions after `after`, until `interrupt`; temporary errors are waited out here."""
        self._interrupted.clear()
        # This read's own: what it delivered may not have been applied, and the next one begins before it.
        followed = dict(self._followed)
        place, attempt = own(after), 0
        same_bytes = SameBytes()
        while not self._interrupted.is_set():
            try:
                for batch in self._read_connection(place, followed):
                    attempt = 0
                    self.progress.trouble = None
                    place = _passed(batch, place)
                    _unfollow(batch.halts, followed)
                    yield batch
                return
            except PurgedError as error:
                if self._interrupted.is_set() or (begin := self._behind_purged(place, error)) is None:
                    return
                if self._needs_set(place) and contains(place.seen, begin.seen):
                    raise  # it was begun behind all that is gone already: something else is missing
                _log.info("the source purged what was read, and nothing else: viewtail goes on", position=str(place))
                place = begin
            except (TemporaryError, WentBackError) as error:
                same_bytes.met(place, error)
                self._suspect_format(error)
                if self._interrupted.is_set():
                    return
                self._wait(error, place, attempt)
                attempt += 1

    def _suspect_format(self, error: ViewtailError) -> None:
        """A format without a checksum is believed when it comes again as it was."""
        if isinstance(error, UncheckedFormatError):
            self._unchecked_formats |= {error.event} & {self._suspected_format}
            self._suspected_format = error.event

    def _wait(self, error: ViewtailError, place: BinlogPosition, attempt: int) -> None:
        """Wait before the next try to read behind `place`; `interrupt` ends it."""
        self.progress.trouble = str(error)
        self.progress.is_at_end = False
        self.progress.reconnect_count += 1
        _log.warning("source unavailable", error=str(error), position=str(place), attempt=attempt)
        self._interrupted.wait(reaction_to(error).pause_s(attempt))

    def interrupt(self) -> None:
        self._interrupted.set()
        if (rest := self._rest) is not None:
            rest.interrupt()
        if (connection := self._connection) is not None:
            connection.shut_down()

    def _read_connection(self, after: BinlogPosition, followed: dict[tuple[str, str], Followed]) -> Iterator[Batch]:
        seen = None
        if self._needs_set(after):
            seen = self._seen(after)
            # Its coordinates are of no use here; the server says in which file it begins.
            after = replace(BEFORE_ALL, epoch=self._epoch, gtid_base=seen)
        if after.start >= 1 << 32:
            raise HistoryGoneError(
                f"the last transaction begins at {after.file}:{after.start}, beyond what a dump can be started from. "
                f"To go on, {BACKFILL_ALL}"
            )
        connection = self._connect(after.file, after.start, seen=seen)
        dispatcher = Dispatcher(
            replace(self._wanted, followed=followed),
            after=after,
            has_checksums=connection.has_checksums,
            large_files=connection.large_files,
            folds_names=connection.folds_names,
            unchecked_formats=self._unchecked_formats,
            server=self._identity or "",
        )
        self._connection, self.progress.clock_ahead_us = connection, connection.clock_ahead_us
        silent_end = self._new_silent_end()
        try:
            yield from self._walk(connection, dispatcher, silent_end)
        finally:
            self._connection = None
            connection.close()
            silent_end.close()

    def _walk(self, connection: DumpConnection, dispatcher: Dispatcher, end: SilentEnd) -> Iterator[Batch]:
        buffer = bytearray(_BUFFER_BYTES)
        filled = 0
        is_begun = False
        while not self._interrupted.is_set():
            if is_begun and not connection.has_data():
                self.progress.is_at_end = True
            is_begun = True
            with memoryview(buffer) as view:
                filled += connection.receive_into(view[filled:])
            self.progress.received_at = time.monotonic()
            self.progress.trouble = None
            filled = yield from self._consume(dispatcher, buffer, filled)
            if self.progress.is_at_end:
                end.check(dispatcher.place)
            while filled >= PACKET_HEAD_BYTES and (size := _U32(buffer, _SIZE_AT)[0]) > _BUFFER_BYTES - 64:
                incoming = _Incoming(connection, buffer[:filled])
                yield from self._large_event(dispatcher, incoming, size)
                filled = len(incoming.received)
                buffer[:filled] = incoming.received
                filled = yield from self._consume(dispatcher, buffer, filled)

    def _consume(self, dispatcher: Dispatcher, buffer: bytearray, filled: int) -> Generator[Batch, None, int]:
        """Walk what is whole in the buffer; moves the rest to its beginning, and returns how many bytes that is."""
        at, is_stopped = 0, True
        while is_stopped:
            at = dispatcher.consume(buffer, at, filled)
            is_stopped = dispatcher.is_stopped
            for batch in dispatcher.batches():
                self.progress.is_at_end = False
                yield batch
        self.progress.prepared = dispatcher.prepared
        buffer[: filled - at] = buffer[at:filled]
        return filled - at

    def _large_event(self, dispatcher: Dispatcher, incoming: _Incoming, size: int) -> Iterator[Batch]:
        """An event that does not fit the buffer: joined from its packets, or, above the bound, read past."""
        packets = incoming.packets(size, dispatcher.place)
        if size > dispatcher.max_event_bytes:
            self._read_past(dispatcher, incoming, packets, size)
            return
        # Received where it is walked: each copy of a large event costs as much as reading it.
        event, filled = bytearray(size + 5), 5
        event[:4] = struct.pack("<I", min(size + 1, 0xFFFFFF))
        for left in packets:
            with memoryview(event) as view:
                incoming.take_into(view[filled : filled + left])
            filled += left
        yield from self._consume(dispatcher, event, len(event))

    def _read_past(self, dispatcher: Dispatcher, incoming: _Incoming, packets: Iterator[int], size: int) -> None:
        """Halt the table of an event that is too large."""
        event, checksum = b"", 0
        for left in packets:
            while left:
                piece = incoming.take(min(left, _PIECE_BYTES))
                left -= len(piece)
                checksum = crc32(piece, checksum)
                event += piece[: max(0, _SHOWN_BYTES - len(event))]
        if dispatcher.has_checksums and checksum != CHECKSUM_RESIDUE:
            corrupt(event[4], dispatcher.place, checksum)
        dispatcher.halt_too_large(event, size)


class _Incoming:
    """Bytes already received, then the socket's, as one stream."""

    def __init__(self, connection: DumpConnection, received: bytearray) -> None:
        self._connection = connection
        self.received = received

    def take(self, count: int) -> bytes:
        taken = bytearray(count)
        with memoryview(taken) as view:
            self.take_into(view)
        return bytes(taken)

    def take_into(self, target: memoryview) -> None:
        """Fill `target`."""
        filled = min(len(target), len(self.received))
        target[:filled] = self.received[:filled]
        del self.received[:filled]
        while filled < len(target):
            filled += self._connection.receive_into(target[filled:])

    def packets(self, size: int, place: str) -> Iterator[int]:
        """Yield how many bytes of the event each of its packets holds; the caller takes them before the next."""
        left, is_last, header_bytes = size + 1, False, 5  # the first packet begins with a status byte
        while not is_last:
            length = int.from_bytes(self.take(header_bytes)[:3], "little")
            is_last = length < 0xFFFFFF
            if length > left or (is_last and length != left):
                # Waiting for what a garbled length promises could last for ever, and end in silence.
                raise CorruptEventError(f"the packet after {place} is not as long as its event")
            yield length + 4 - header_bytes
            left, header_bytes = left - length, 4


def _watermark_table(schema: str) -> Followed:
    token = Column(name="token", kind=Kind.TEXT, declared="char(32)", is_nullable=False, charset="ascii", length=32)
    return Followed(Table(schema=schema, name="watermark", columns=(token,), primary_key=("id",)), ("token",))
