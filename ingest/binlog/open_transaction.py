"""The open transaction: its rows so far, its savepoints, and the file where a large one waits for its commit.

Committed transactions that wait for delivery are in the same list of changes, before the open one's.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingest.binlog.gtids import GTID_BYTES
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.place import Place, TransactionEnd
from ingest.binlog.spool import Spool
from viewtail.changes.batches import Refused, RowChanges

PIECE_BYTES = 1 << 20  # of a spooled transaction: written while the processor's cache still has them
_NO_PLACE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """The amount that the open transaction held at a savepoint, or at its beginning."""

    change_count: int = 0
    refused_count: int = 0
    held_bytes: int = 0
    piece_count: int = 0  # of those in the spool; the other counts are of what was in memory


BEGINNING = Savepoint()


class OpenTransaction:
    """All that was gathered and not delivered yet; `start` is in bytes from the file's start."""

    def __init__(self, place: Place, start: int, spool_bytes: int) -> None:
        self._place = place
        self.spool_bytes = spool_bytes
        self.changes: list[RowChanges] = []
        self.committed = 0  # so many of `changes` belong to committed transactions
        self.committed_bytes = 0
        self.held_bytes = 0  # of followed row events of the open transaction
        self.refused: list[Refused] = []
        self.committed_refused: list[Refused] = []
        self.start = start
        self.gtid: Buffer = bytearray(GTID_BYTES)
        self.end: TransactionEnd | None = None  # of the last committed one that was not delivered
        self.spool: Spool | None = None
        self.spooled_end: TransactionEnd | None = None  # the spooled transaction was committed there
        self.is_in_pieces = False  # a part of the open transaction was delivered before its end was read
        self.is_cut = False  # a file ended inside the open transaction
        self.is_quiet = True  # nothing but viewtail's own tables was touched since the last batch
        self.foreign_gtid: Buffer | None = None  # `gtid` of the last one that `mark_foreign` was called in
        self.told_gtid: Buffer | None = None  # of the batch's first one that halts or changes a table
        self._savepoints: dict[tuple[int, str], Savepoint] = {}  # by start of their transaction, and name
        self.begun_at = _NO_PLACE  # start of the transaction whose BEGIN was read last
        self._branch_at = _NO_PLACE  # start of the XA transaction that was begun last

    @property
    def most_held(self) -> int:
        """Bytes of row events that are kept in memory: fewer once the transaction is in a file."""
        return self.spool_bytes if self.spool is None else min(self.spool_bytes, PIECE_BYTES)

    @property
    def has_begun(self) -> bool:
        """Return whether the open transaction began with BEGIN: a statement inside it does not end it."""
        return self.begun_at == self.start

    @property
    def is_branch(self) -> bool:
        """Return whether it is an XA transaction, which is committed elsewhere."""
        return self._branch_at == self.start

    @property
    def holds_rows(self) -> bool:
        return len(self.changes) > self.committed or bool(self.refused) or self.spool is not None

    def begin(self, gtid: Buffer, start: int) -> None:
        """A GTID event at `start`: another transaction begins."""
        self.gtid, self.start = gtid, start

    def mark_begun(self) -> None:
        self.begun_at = self.start

    def mark_branch(self) -> None:
        self._branch_at = self.start

    def mark_foreign(self) -> None:
        """Note that it is not viewtail's own, though no table map says so."""
        self.is_quiet = False
        self.foreign_gtid = self.gtid

    def mark_told(self) -> None:
        """Note that it halts or changes a table."""
        if self.told_gtid is None:
            self.told_gtid = self.gtid

    def enter_file(self) -> None:
        """A transaction is known by its start: in another file another one may have the same."""
        self.begun_at = self._branch_at = _NO_PLACE
        self._savepoints.clear()

    def hold(self, size: int) -> None:
        """Count a row event of so many bytes; above the bound all that came before it goes into a file."""
        self.held_bytes += size
        if self.held_bytes > self.most_held:
            self.held_bytes = self.spill(self.committed, self.held_bytes, size)

    def spill(self, committed: int, held_bytes: int, event_bytes: int) -> int:
        """Make room for an event: what the transaction holds goes into a file.

        `held_bytes` count the event already. Returns the bytes held afterwards. An event that is alone stays.
        """
        if held_bytes == event_bytes:
            return held_bytes
        if self.spool is None:
            self.spool = Spool()
        self.spool.append(self.changes[committed:], self.refused, held_bytes - event_bytes)
        del self.changes[committed:]
        self.refused = []
        return event_bytes

    def commit(self, log_pos: int) -> None:
        """The transaction ended at `log_pos` and is to be delivered."""
        end = (self._place.file, self._place.in_file(log_pos), self.start, self.gtid)
        self._branch_at = _NO_PLACE  # the hot loop does not note where the next one begins
        if self.spool is not None:
            self.spooled_end = end
            return
        self.committed_refused += self.refused
        self.refused = []
        self.committed = len(self.changes)
        self.committed_bytes += self.held_bytes
        self.held_bytes = 0
        self.end = end
        self._place.new_gtids += self.gtid

    def taken_out(self) -> tuple[list[RowChanges], list[Refused], int]:
        """Take out what the transaction holds in memory."""
        taken = self.changes[self.committed :], self.refused, self.held_bytes
        del self.changes[self.committed :]
        self.refused, self.held_bytes = [], 0
        return taken

    def forget(self) -> None:
        """Drop what it holds, in memory and in the file."""
        self.taken_out()
        self._drop_spool()

    # -- savepoints ---------------------------------------------------------------------------------------------

    def set_savepoint(self, name: str) -> None:
        """Remember what the transaction holds, to come back to."""
        if self._savepoints and next(iter(self._savepoints))[0] != self.start:
            self._savepoints.clear()
        self._savepoints[self.start, name.lower()] = Savepoint(
            change_count=len(self.changes) - self.committed,
            refused_count=len(self.refused),
            held_bytes=self.held_bytes,
            piece_count=0 if self.spool is None else self.spool.count,
        )

    def savepoint(self, name: str) -> Savepoint | None:
        """The open transaction's savepoint of that name."""
        return self._savepoints.get((self.start, name.lower()))

    def take_back(self, savepoint: Savepoint) -> None:
        """Drop what the transaction holds since then."""
        if self.spool is not None and self.spool.count > savepoint.piece_count:
            # What was in memory at the savepoint went into the file since.
            self.changes[self.committed :], self.refused, _ = self.spool.cut(savepoint.piece_count)
            if not savepoint.piece_count:
                self._drop_spool()
        del self.changes[self.committed + savepoint.change_count :]
        del self.refused[savepoint.refused_count :]
        self.held_bytes = savepoint.held_bytes

    def _drop_spool(self) -> None:
        if self.spool is not None:
            self.spool.close()
            self.spool = None
