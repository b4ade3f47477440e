"""Writes single entities of a view again, as their rows are now: replay by key, repair, dead letters.

The rows are read under a watermark and written with its version (or their own, with a version column), as a backfill
does: later changes are newer, earlier ones older, and the guard settles every race. A key that has no row gets its
tombstone. Nothing is lowered and nothing comes back, with one exception, which is asked for by name: a version that no
history explains is taken away first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ingest.canonical.chunks import CanonicalRows
from offsets.mysql import Session, transaction
from projectors import failpoints
from projectors.projection import Projected, Projections, writes_by_key
from projectors.proving.view_lock import ViewLock
from projectors.stores import GuardedSink, Held
from projectors.views import BoundView
from viewtail.changes.batches import Row
from viewtail.changes.rendering import key_renderer
from viewtail.changes.writes import Key, Parked, ViewWrites, Write

KEYS_A_WRITE = 500
PIECES_WITHIN_S = 2.0  # under one lock, which the pipeline may wait for


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The outcome of writing some entities again."""

    shown: int = 0  # rows that were written
    gone: int = 0  # tombstones for keys that have no row
    kept_out: int = 0  # tombstones for rows that do not belong in the view
    parked: tuple[Parked, ...] = ()

    def __add__(self, other: Written) -> Written:
        return Written(
            shown=self.shown + other.shown,
            gone=self.gone + other.gone,
            kept_out=self.kept_out + other.kept_out,
            parked=(*self.parked, *other.parked),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """Some rows of the table, in the order in which they are read."""

    keys: list[Key]
    projected: Projected
    rows: int
    place: Any  # of its last row
    is_last: bool  # no row follows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """The outcome of writing some pieces."""

    written: Written
    rows: int
    last: Piece | None  # that was written
    is_end: bool  # no row follows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reprojection:
    """Writes entities of one view again. Not thread-safe.

    Args:
        rows, projections: as of a Comparison.
        sink: a writer of this view alone, prepared.
        session: on which the sink's rows are committed, where they wait for that.
        lock: held from reading rows to writing them.
        check: raises where the view is not to be written any more: it is halted, or was declared anew.
        settle: keeps its dead letters, given what was written and what was refused.
        end: ends the dead letters of those of some keys that have no row: no write will.
        held: what the store holds of some keys.
    """

    view: BoundView
    rows: CanonicalRows
    projections: Projections
    sink: GuardedSink
    session: Session
    lock: Callable[[], AbstractContextManager[ViewLock]]
    check: Callable[[], None]
    settle: Callable[[Sequence[ViewWrites], Sequence[Parked]], None]
    end: Callable[[Sequence[Key]], None]
    held: Callable[[Sequence[Key]], dict[Key, Held]]

    def of_keys(self, keys: Sequence[Key], version: int, unexplained: Mapping[Key, Held] | None = None) -> Written:
        """Write these entities as of a snapshot that shows the watermark of that version, which the view is past.

        Those of `unexplained` lose the version that they have first, if it is still what was seen.
        """
        if self.view.view.entity.dropped == "keep":  # of tables that are gone the view is the archive
            keys = self.rows.of_present_tables(keys)
        return self._of_keys(keys, version, unexplained)

    def of_gone_table(self, keys: Sequence[Key], version: int) -> Written:
        """Bury these keys of a table that is gone, also where the view is its archive."""
        return self._of_keys(keys, version, None)

    def _of_keys(self, keys: Sequence[Key], version: int, unexplained: Mapping[Key, Held] | None) -> Written:
        written, keys = Written(), self.view.own(keys)
        for at in range(0, len(keys), KEYS_A_WRITE):
            some = list(keys[at : at + KEYS_A_WRITE])
            taken = {key: held for key, held in (unexplained or {}).items() if key in some}
            written += self._of_some(some, version, taken)
        return written

    def of_pieces(self, read: Callable[[Any], Piece | None], after: Any, version: int, most: int) -> Pieces:
        """Write up to so many pieces of rows under one lock, the first behind a place; the next is read meanwhile.

        `read` gives the piece behind a place, None where no row follows. It is called in a thread.
        """
        written, rows, last = Written(), 0, None
        with self.lock() as lock, ThreadPoolExecutor(1, thread_name_prefix="piece") as reader:
            began = time.monotonic()  # waiting for the lock keeps nobody waiting
            self.check()
            piece = reader.submit(read, after).result()
            for number in range(1, most + 1):
                failpoints.reach("after rows")
                if piece is None:
                    return Pieces(written=written, rows=rows, last=last, is_end=True)
                is_final = piece.is_last or number == most or time.monotonic() - began > PIECES_WITHIN_S
                ahead = None if is_final else reader.submit(read, piece.place)
                keys = [*self.view.own(piece.keys)]
                writes = self._with_tombstones(keys, piece.projected, version)
                some = self._write(writes, piece.projected, keys, {}, lock, is_again=True)
                if some is None or not lock.is_held():
                    break  # what was read ahead is read again under the next lock
                written, rows, last = written + some, rows + piece.rows, piece
                if ahead is None:
                    return Pieces(written=written, rows=rows, last=last, is_end=piece.is_last)
                piece = ahead.result()
        assert piece is not None
        written, rows = written + self.of_keys(piece.keys, version), rows + piece.rows
        return Pieces(written=written, rows=rows, last=piece, is_end=piece.is_last)

    def _of_some(self, keys: list[Key], version: int, unexplained: Mapping[Key, Held]) -> Written:
        while True:
            with self.lock() as lock:
                self.check()
                rows = self.rows.having(self.view.key, keys, version)
                failpoints.reach("after rows")
                projected = self.projections.of_rows(self.view.id, rows, version)
                writes = self._with_tombstones(keys, projected, version)
                written = self._write(writes, projected, self._keys(rows), unexplained, lock)
                if written is not None and lock.is_held():
                    self.end(self._unwritten(keys, writes, written.parked))
                    return written
            # This process hung, and its lock was taken from it: rows that it read may be gone. Once more.

    def _keys(self, rows: Sequence[Row]) -> set[Key]:
        at = [self.view.needed.index(column.name) for column in self.view.key]
        return {tuple([row[number] for number in at]) for row in rows}

    def _with_tombstones(self, keys: list[Key], projected: Projected, version: int) -> list[ViewWrites]:
        """Only these keys, exactly: a collation takes others for equal ones."""
        if _are_those_of(keys, projected.writes):
            return projected.writes
        projected_writes = writes_by_key(projected)
        parked = {letter.key for letter in projected.parked}
        render = key_renderer(self.view.key)
        writes = {key: projected_writes[key] for key in keys if key in projected_writes}
        absent = [key for key in keys if key not in writes and render(key) not in parked]
        writes |= self._tombstones(absent, version)
        return [ViewWrites(self.view.id, writes)] if writes else []

    def _tombstones(self, absent: list[Key], version: int) -> dict[Key, Write]:
        """Make them for keys that have no row; with a version column, for those of them that the store holds."""
        entity = self.view.view.entity
        if entity.version is None:
            return {key: Write(version, None) for key in absent}
        if not absent or entity.append_only:  # there it is archiving
            return {}
        stored = {key: held.version for key, held in self.held(absent).items()}
        # A row that came back meanwhile may be what is stored: its own version must get no tombstone.
        gone = self.rows.absent(self.view.key, list(stored), version)
        return {key: Write(of | 1, None) for key in gone if (of := stored[key]) is not None}

    def _unwritten(self, keys: list[Key], writes: Sequence[ViewWrites], parked: Sequence[Parked]) -> list[Key]:
        """Those of which neither the table nor the store has anything; and those whose rows came back meanwhile."""
        entity = self.view.view.entity
        if entity.version is None or entity.append_only:  # there a letter may tell of a row that was archived
            return []
        written, refused = {key for of_view in writes for key in of_view.writes}, {letter.key for letter in parked}
        render = key_renderer(self.view.key)
        return [key for key in keys if key not in written and render(key) not in refused]

    def _write(
        self,
        writes: Sequence[ViewWrites],
        projected: Projected,
        with_rows: Collection[Key],
        unexplained: Mapping[Key, Held],
        lock: ViewLock,
        *,
        is_again: bool = False,
    ) -> Written | None:
        """None where the lock is lost, and nothing was written.

        Args:
            with_rows: keys that the table has.
            is_again: most rows are there as they are.
        """
        if not lock.is_held():
            return None
        if unexplained:
            self.sink.take_away(self.view.id, unexplained)
            failpoints.reach("after take away")
        refused: list[Parked] = []
        if writes or unexplained:  # a store may take away what it was told to with the write alone
            refused = self.sink.write_again(writes) if is_again else self.sink.write(writes, None)
        with transaction(self.session, f"writing {self.view.id} again"):
            pass
        failpoints.reach("after rewrite")
        parked = [*projected.parked, *refused]
        self.settle(writes, parked)
        return _written(writes, with_rows, parked, len(refused))


def _written(
    writes: Sequence[ViewWrites], with_rows: Collection[Key], parked: Sequence[Parked], refused_count: int
) -> Written:
    deleted = [key for of_view in writes for key, (_, values) in of_view.writes.items() if values is None]
    kept_out = len(set(deleted).intersection(with_rows)) if deleted else 0
    return Written(
        shown=sum(of_view.count for of_view in writes) - len(deleted) - refused_count,
        gone=len(deleted) - kept_out,
        kept_out=kept_out,
        parked=tuple(parked),
    )


def _are_those_of(keys: Sequence[Key], writes: Sequence[ViewWrites]) -> bool:
    """Return whether these writes are of these keys, and of no others."""
    if len(writes) != 1 or writes[0].count != len(keys):
        return False
    return all(map(writes[0].writes.__contains__, keys))
