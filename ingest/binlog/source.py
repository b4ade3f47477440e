"""The binlog as a Source: connects, reads, reconnects from its own last delivered position."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from zlib import crc32

import pymysql
import structlog

from changes.batches import Batch, Followed
from changes.errors import CorruptEventError, HistoryGoneError, SourceError, TemporaryError
from changes.positions import Position
from changes.retrying import reaction_to
from changes.tables import Column, Kind, Table
from ingest import Progress
from ingest.binlog import continuity, resuming
from ingest.binlog.connection import DumpConnection, dump_error
from ingest.binlog.coordinates import BEFORE_ALL, BinlogPosition, own
from ingest.binlog.dispatcher import Dispatcher
from ingest.binlog.events import CHECKSUM_RESIDUE
from ingest.binlog.resets import SameBytes, SilentEnd
from ingest.binlog.stream_errors import DumpEnded, UncheckedFormatError, WentBackError, corrupt
from ingest.binlog.transaction_layouts import PACKET_HEAD_BYTES
from ingest.resuming import Resuming
from servers.facts import facts_of
from servers.sessions import MySQLAddress, open_session, session_error

_log = structlog.get_logger("viewtail.source")

_BUFFER_BYTES = 256 << 10
_PIECE_BYTES = 1 << 20
_U32 = struct.Struct("<I").unpack_from


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
        fits_from: by (schema, table): up to this version the table is not followed, and cannot halt.
    """

    def __init__(
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
        fits_from: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        self._address = address
        self._followed = dict(followed)
        self._own_schemas = own_schemas
        self._epoch = epoch
        self._identity = identity
        self._heartbeat_s = heartbeat_s
        self._server_id = server_id
        self._spool_bytes = spool_bytes
        self._max_event_bytes = max_event_bytes
        self._fits_from: Mapping[tuple[str, str], int] = {} if fits_from is None else fits_from
        self._suspected_format = b""
        self._unchecked_formats: frozenset[bytes] = frozenset()
        self._interrupted = threading.Event()
        self._connection: DumpConnection | None = None
        self._watermark = _watermark_table(watermark_schema)
        self.progress = Progress()

    def now(self) -> BinlogPosition:
        connection = open_session(self._address, role="source")
        try:
            with connection.cursor() as cursor:
                cursor.execute(facts_of(connection).status)
                row = cursor.fetchone()
                cursor.execute(facts_of(connection).executed)
                (executed,) = cursor.fetchone() or ("",)
        except pymysql.err.MySQLError as error:
            raise session_error(error, self._address, "source") from None
        finally:
            connection.close()
        server = self._identity or ""
        if row is None:
            raise SourceError("the source writes no binlog. Start it with --log-bin; see `viewtail check`")
        if executed:
            # By set, not by place: asked one after the other they would not belong together, and what is seen must be
            # known exactly from the beginning.
            base = executed.replace("\n", "")
            return BinlogPosition(
                epoch=self._epoch, file=row[0], end=0, start=0, gtid_base=base, server=server
            )
        return BinlogPosition(epoch=self._epoch, file=row[0], end=row[1], start=row[1], server=server)

    def resume(self, offset: Position, kept: Position) -> Resuming:
        return resuming.resuming(own(offset), own(kept), self._epoch, self._identity or "", self.check)

    def check(self, after: Position) -> None:
        after = own(after)
        connection = open_session(self._address, role="source")
        try:
            if self._needs_set(after):
                continuity.check_sets(connection, self._seen(after))
                return
            with connection.cursor() as cursor:
                cursor.execute("SHOW BINARY LOGS")
                sizes = {row[0]: row[1] for row in cursor.fetchall()}
        except pymysql.err.MySQLError as error:
            raise session_error(error, self._address, "source") from None
        finally:
            connection.close()
        if sizes.get(after.file, -1) < after.end:
            raise HistoryGoneError(
                f"history gone: the source no longer has the changes after {after}. Point viewtail at a server that "
                "still has them, or fill the views again with: viewtail replay --new-history"
            )

    def _needs_set(self, after: BinlogPosition) -> bool:
        """Whether coordinates do not say where to go on: they are of another history, or there are none yet."""
        is_anothers = after.is_of_another_server(self._identity or "")
        return after.is_by_set or after.epoch != self._epoch or is_anothers

    def _seen(self, after: BinlogPosition) -> str:
        if not after.seen:
            raise HistoryGoneError(
                f"the source is another server than the one that {after} is of, and which transactions were read from "
                "that one is not known, so that this one cannot be asked for the others. Point viewtail back at it, or "
                "fill the views again with: viewtail replay --new-history"
            )
        return after.seen

    def read(self, after: Position) -> Iterator[Batch]:
        """Committed transactions after `after`, until `interrupt`; temporary errors are waited out here."""
        self._interrupted.clear()
        # This read's own: what it delivered may not have been applied, and the next one begins before it.
        followed = dict(self._followed)
        place, attempt = own(after), 0
        went_back: tuple[BinlogPosition, str] | None = None
        same_bytes = SameBytes()
        while not self._interrupted.is_set():
            try:
                for batch in self._read_connection(place, followed):
                    attempt = 0
                    self.progress.trouble = None
                    if batch.end is not None:
                        end = own(batch.end)
                        batch.is_milestone = end.file != place.file
                        place = end
                    for halt in batch.halts:  # a halted table stays unread after a reconnect too
                        followed.pop((halt.followed.table.schema, halt.followed.table.name), None)
                    yield batch
                return
            except (TemporaryError, WentBackError) as error:
                if isinstance(error, WentBackError):
                    if went_back == (place, str(error)):
                        raise  # so it stands in the binlog; once may have been the wire
                    went_back = place, str(error)
                same_bytes.met(place, error)
                if isinstance(error, UncheckedFormatError):
                    self._suspect(error.event)
                if self._interrupted.is_set():
                    return
                self.progress.trouble = str(error)
                self.progress.is_at_end = False
                self.progress.reconnect_count += 1
                _log.warning("source unavailable", error=str(error), position=str(place), attempt=attempt)
                self._interrupted.wait(reaction_to(error).pause_s(attempt))
                attempt += 1

    def _suspect(self, event: bytes) -> None:
        """A format description may have no checksum: it is believed when it comes again as it was."""
        if event == self._suspected_format:
            self._unchecked_formats |= {event}
        self._suspected_format = event

    def interrupt(self) -> None:
        self._interrupted.set()
        connection = self._connection
        if connection is not None:
            connection.shut_down()

    def _read_connection(
        self, after: BinlogPosition, followed: Mapping[tuple[str, str], Followed]
    ) -> Iterator[Batch]:
        seen = None
        if self._needs_set(after):
            seen = self._seen(after)
            # Its coordinates are of no use here; the server says in which file it begins.
            after = replace(BEFORE_ALL, epoch=self._epoch, gtid_base=seen)
        if after.start >= 1 << 32:
            raise HistoryGoneError(
                f"the last transaction begins at {after.file}:{after.start}, beyond what a dump can be started from. "
                "Fill the views again with: viewtail replay --new-history"
            )
        connection = DumpConnection(
            self._address,
            after.file,
            after.start,
            heartbeat_s=self._heartbeat_s,
            server_id=self._server_id,
            seen=seen,
            identity=self._identity,
        )
        dispatcher = Dispatcher(
            followed=followed,
            watermark=self._watermark,
            own_schemas=self._own_schemas,
            after=after,
            has_checksums=connection.has_checksums,
            spool_bytes=self._spool_bytes,
            max_event_bytes=self._max_event_bytes,
            large_files=connection.large_files,
            unchecked_formats=self._unchecked_formats,
            server=self._identity or "",
            fits_from=self._fits_from,
        )
        self._connection = connection
        silent_end = SilentEnd(self._address, self._identity, self._heartbeat_s)
        try:
            yield from self._walk(connection, dispatcher, silent_end)
        except DumpEnded as ended:
            raise dump_error(ended.packet, dispatcher.place) from None
        finally:
            self._connection = None
            connection.close()
            silent_end.close()

    def _walk(
        self, connection: DumpConnection, dispatcher: Dispatcher, silent_end: SilentEnd
    ) -> Iterator[Batch]:
        buffer = bytearray(_BUFFER_BYTES)
        filled = 0
        while not self._interrupted.is_set():
            if not connection.has_data():
                self.progress.is_at_end = True
            with memoryview(buffer) as view:
                filled += connection.receive_into(view[filled:])
            self.progress.received_at = time.monotonic()
            self.progress.trouble = None
            at = yield from self._consume(dispatcher, buffer, filled)
            buffer[: filled - at] = buffer[at:filled]
            filled -= at
            if self.progress.is_at_end:
                silent_end.check(dispatcher.place)
            while _event_bytes(buffer, filled) > _BUFFER_BYTES - 64:
                incoming = _Incoming(connection, bytes(buffer[:filled]))
                yield from self._large_event(dispatcher, incoming)
                rest = incoming.rest()  # less than a small read: it fits
                buffer[: len(rest)] = rest
                at = yield from self._consume(dispatcher, buffer, len(rest))
                buffer[: len(rest) - at] = buffer[at : len(rest)]
                filled = len(rest) - at

    def _consume(self, dispatcher: Dispatcher, buffer: bytearray, filled: int) -> Generator[Batch, None, int]:
        """Walk what is whole in the buffer; returns where the rest begins."""
        at, is_stopped = 0, True
        while is_stopped:
            at = dispatcher.consume(buffer, at, filled)
            is_stopped = dispatcher.is_stopped
            for batch in dispatcher.batches():
                self.progress.is_at_end = False
                yield batch
        self.progress.prepared = dispatcher.prepared
        return at

    def _large_event(self, dispatcher: Dispatcher, incoming: _Incoming) -> Iterator[Batch]:
        """An event that does not fit the buffer: joined from its packets, or, above the bound, read past."""
        left, is_last = incoming.packet_header()
        head = incoming.take(PACKET_HEAD_BYTES - 4)  # status byte and header, which are there already
        received, size = left, _U32(head, 10)[0]
        left -= len(head)
        is_kept = size <= dispatcher.max_event_bytes
        # Received where it is walked: each copy of a large event costs as much as reading it.
        event = bytearray(size + 5 if is_kept else PACKET_HEAD_BYTES)
        event[:PACKET_HEAD_BYTES] = struct.pack("<I", min(size + 1, 0xFFFFFF)) + head
        filled, checksum = PACKET_HEAD_BYTES, crc32(head[1:])
        while True:
            if received > size + 1 or (is_last and received != size + 1):
                # Waiting for what a garbled length promises could last for ever, and end in silence.
                raise CorruptEventError(
                    f"the packet after {dispatcher.place} has another length than its event"
                )
            if is_kept:
                with memoryview(event) as view:
                    incoming.take_into(view[filled : filled + left])
                filled += left
            while left and not is_kept:
                piece = incoming.take(min(left, _PIECE_BYTES))
                left -= len(piece)
                checksum = crc32(piece, checksum)
                event += piece[: max(0, 64 - len(event))]
            if is_last:
                break
            left, is_last = incoming.packet_header()
            received += left
        if is_kept:
            yield from self._consume(dispatcher, event, len(event))
            return
        if dispatcher.has_checksums and checksum != CHECKSUM_RESIDUE:
            corrupt(head[5], dispatcher.place, checksum)
        dispatcher.halt_too_large(bytes(event[5:]), size)


class _Incoming:
    """Bytes already received, then the socket's, as one stream."""

    def __init__(self, connection: DumpConnection, received: bytes) -> None:
        self._connection = connection
        self._buffer = bytearray(received)

    def take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            piece = bytearray(max(count - len(self._buffer), 4096))
            with memoryview(piece) as view:
                got = self._connection.receive_into(view)
            self._buffer += piece[:got]
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def take_into(self, target: memoryview) -> None:
        """Fill `target`."""
        filled = min(len(target), len(self._buffer))
        target[:filled] = self._buffer[:filled]
        del self._buffer[:filled]
        while filled < len(target):
            filled += self._connection.receive_into(target[filled:])

    def packet_header(self) -> tuple[int, bool]:
        """(payload bytes, whether it is the last packet of its event)."""
        length = int.from_bytes(self.take(4)[:3], "little")
        return length, length < 0xFFFFFF

    def rest(self) -> bytes:
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


def _event_bytes(buffer: bytearray, filled: int) -> int:
    """The size of the event at the buffer's beginning, 0 when its header is not there yet."""
    return _U32(buffer, 14)[0] if filled >= 24 else 0


def _watermark_table(schema: str) -> Followed:
    token = Column(
        name="token", kind=Kind.TEXT, declared="char(32)", is_nullable=False, charset="ascii", length=32
    )
    table = Table(schema=schema, name="watermark", columns=(token,), primary_key=("id",))
    return Followed(table, ("token",))
