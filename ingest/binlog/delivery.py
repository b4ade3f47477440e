"""Makes batches of what was committed: one batch, or the pieces of a transaction above the memory bound."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import chain

from ingest.binlog.compressed_transactions import Compressed, CompressedTransactions
from ingest.binlog.gtids import committed_us
from ingest.binlog.open_transaction import PIECE_BYTES
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.payload import MalformedPayloadError
from ingest.binlog.place import TransactionEnd
from ingest.binlog.spool import Piece
from ingest.binlog.stream_errors import MALFORMED, malformed
from ingest.binlog.table_readers import OWN_TABLE
from ingest.binlog.walk import Walk
from ingest.binlog.xa_transactions import XaTransactions
from viewtail.changes.batches import DELETE, UPDATE, Batch, RowChanges, Watermark


class Delivery:
    """The batches of one walk."""

    def __init__(self, walk: Walk, compressed: CompressedTransactions, xa: XaTransactions) -> None:
        self._walk, self._compressed, self._xa = walk, compressed, xa

    def batches(self) -> Iterator[Batch]:
        """Deliver what was committed since the last call: at most one batch, or the pieces of a large transaction."""
        large, self._compressed.large = self._compressed.large, None
        spooled_end = self._walk.transaction.spooled_end
        if (batch := self._whole()) is not None:
            yield batch
        if large is not None:
            yield from self._compressed_pieces(large)
        elif spooled_end is not None:
            yield from self._spooled_pieces(spooled_end)

    def _whole(self) -> Batch | None:
        """All transactions that were committed, with the position behind them."""
        place, transaction, end = self._walk.place, self._walk.transaction, self._walk.transaction.end
        if end is None:
            return None
        place.add_gtids()
        batch = self._piece(place.first_new_gtid or end[3])
        batch.end = self._xa.resume_position(end)
        self._xa.delivered = end
        transaction.is_quiet = end[3] is transaction.gtid or not self._is_open_foreign()
        transaction.end = place.first_new_gtid = None
        return batch

    def _is_open_foreign(self) -> bool:
        """Return whether the open transaction touched anything that is not viewtail's own."""
        transaction = self._walk.transaction
        return transaction.foreign_gtid is transaction.gtid or any(
            reader is not OWN_TABLE for reader in self._walk.tables.by_id.values()
        )

    def _spooled_pieces(self, end: TransactionEnd) -> Iterator[Batch]:
        """A transaction that waited in a file."""
        transaction = self._walk.transaction
        assert transaction.spool is not None
        spool, transaction.spool, transaction.spooled_end = transaction.spool, None, None
        transaction.is_quiet = False  # only rows that are followed are spooled
        in_memory = (transaction.changes, transaction.refused, transaction.held_bytes)
        try:
            for piece in chain.from_iterable(map(_parts, chain(spool.pieces(), (in_memory,)))):
                transaction.changes, transaction.refused, transaction.held_bytes = piece
                transaction.committed = len(transaction.changes)
                yield self._large_piece(end[3])
        finally:
            spool.close()
        transaction.end = end
        self._walk.place.new_gtids += end[3]
        last = self._whole()
        assert last is not None
        yield last

    def _compressed_pieces(self, compressed: Compressed) -> Iterator[Batch]:
        """A compressed transaction above the memory bound, walked while its pieces leave."""
        self._walk.transaction.is_in_pieces = True
        try:
            rest = yield from self._walked_pieces(compressed)
        except MalformedPayloadError as error:
            self._compressed.refuse(compressed.log_pos, error)
        except MALFORMED as error:
            malformed(str(self._walk.place), error)
        self._walk.transaction.is_in_pieces = False
        last = self._whole()
        if rest or last is None:
            self._compressed.refuse(compressed.log_pos, "it ends inside an event or a transaction")
        yield last

    def _walked_pieces(self, compressed: Compressed) -> Generator[Batch, None, bytes]:
        """All pieces but the last; returns the bytes that are left."""
        transaction, rest = self._walk.transaction, b""
        will_be_prepared = compressed.payload.is_prepared()
        for piece in compressed.payload.pieces(transaction.spool_bytes):
            events = rest + piece
            rest = events[self._compressed.walk_events(compressed, events) :]
            if transaction.end is not None:
                continue
            if will_be_prepared:
                self._xa.check_size()
                continue
            transaction.committed = _without_last_version(transaction.changes)
            if transaction.committed:
                yield self._large_piece(transaction.gtid)
        return rest

    def _large_piece(self, first_gtid: Buffer) -> Batch:
        """Deliver what may leave by now of a large transaction, with the rows of it that were refused."""
        transaction = self._walk.transaction
        transaction.committed_bytes, transaction.held_bytes = transaction.held_bytes, 0
        transaction.committed_refused += transaction.refused
        transaction.refused = []
        return self._piece(first_gtid)

    def _piece(self, first_gtid: Buffer) -> Batch:
        place, tables, transaction = self._walk.place, self._walk.tables, self._walk.transaction
        oldest_commit_us = self._oldest_us(first_gtid)
        changes = transaction.changes[: transaction.committed]
        del transaction.changes[: transaction.committed]
        if tables.halted:
            changes = [change for change in changes if change.followed.described not in tables.halted]
        watermarks: list[Watermark] = []
        if tables.has_watermarks:
            watermarks = _watermarks([change for change in changes if change.followed is tables.watermark])
            changes = [change for change in changes if change.followed is not tables.watermark]
        batch = Batch(
            changes=changes,
            end=None,
            row_count=sum([len(change[3]) for change in changes]),
            byte_count=transaction.committed_bytes,
            oldest_commit_us=oldest_commit_us,
            refused=transaction.committed_refused,
            halts=tables.halts,
            table_changes=tables.table_changes,
            watermarks=watermarks,
            is_quiet=transaction.is_quiet,
            origin_of=place.origin_of,
        )
        transaction.committed = transaction.committed_bytes = 0
        transaction.told_gtid = None
        transaction.committed_refused, tables.halts, tables.table_changes = [], [], []
        return batch

    def _oldest_us(self, first_gtid: Buffer) -> int:
        """Return when the first transaction with changes or halts was committed: others before it may be much older."""
        transaction = self._walk.transaction
        firsts = transaction.changes[:1] if transaction.committed else []
        gtids = [change.transaction for change in firsts if change.transaction]
        gtids += [row.transaction for row in transaction.committed_refused[:1] if row.transaction]
        if transaction.told_gtid is not None:
            gtids.append(transaction.told_gtid)
        return min(map(committed_us, gtids), default=committed_us(first_gtid))


def _parts(piece: Piece) -> Iterator[Piece]:
    """The first piece of a spooled transaction is all that memory held: in parts, or what stores make of it adds up.

    No part ends among changes that share a version: those of one row event of which a row was refused.
    """
    changes, refused, byte_count = piece
    step = max(1, len(changes) * PIECE_BYTES // max(byte_count, PIECE_BYTES))
    while len(changes) > step:
        end, last = step, changes[step - 1].version
        while end < len(changes) and changes[end].version == last:
            end += 1
        some = [row for row in refused if row.version <= last]
        part = changes[:end], some, byte_count * end // len(changes)
        del changes[:end]
        refused, byte_count = refused[len(some) :], byte_count - part[2]
        yield part
    yield changes, refused, byte_count


def _without_last_version(changes: list[RowChanges]) -> int:
    """Count the changes before those with the last version: no piece ends among changes that share a version."""
    at = len(changes)
    while at and changes[at - 1].version == changes[-1].version:
        at -= 1
    return at


def _watermarks(changes: list[RowChanges]) -> list[Watermark]:
    """The rows that were written, not those that they replaced."""
    return [
        Watermark(row[0], version)
        for _, kind, version, rows, _, _ in changes
        if kind != DELETE
        for row in (rows[1::2] if kind == UPDATE else rows)
    ]
