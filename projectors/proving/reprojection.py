"""Writes single entities of a view again, as their rows are now: replay by key, repair, dead letters.

The rows are read under a watermark and written with its version (or their own, with a version column), as a backfill
does: later changes are newer, earlier ones older, and the guard settles every race. A key that has no row gets its
tombstone. Nothing is lowered and nothing comes back, with one exception, which is asked for by name: a version that no
history explains is taken away first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from changes.rendering import key_renderer
from changes.writes import Key, Parked, ViewWrites, Write
from ingest.canonical.chunks import CanonicalRows
from offsets.mysql import Session, transaction
from projectors import failpoints
from projectors.projection import Projected, Projections
from projectors.proving.view_lock import ViewLock
from projectors.stores import GuardedSink, Held
from projectors.views import BoundView

KEYS_A_WRITE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of some entities."""

    shown: int = 0  # rows that were written
    gone: int = 0  # tombstones for keys that have no row
    parked: tuple[Parked, ...] = ()

    def __add__(self, other: Written) -> Written:
        return Written(
            shown=self.shown + other.shown, gone=self.gone + other.gone, parked=(*self.parked, *other.parked)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reprojection:
    """Of one view. Not thread-safe.

    Args:
        rows, projections: as of a Comparison.
        sink: a writer of this view alone, prepared.
        session: on which the sink's rows are committed, where they wait for that.
        lock: held from reading rows to writing them.
        check: raises where the view is not to be written any more: it is halted, or was declared anew.
        settle: keeps its dead letters, given what was written and what was refused.
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
    held: Callable[[Sequence[Key]], dict[Key, Held]]

    def of_keys(self, keys: Sequence[Key], version: int, unexplained: Mapping[Key, Held] | None = None) -> Written:
        """Write these entities as of a snapshot that shows the watermark of that version, which the view is past.

        Those of `unexplained` lose the version that they have first, if it is still what was seen.
        """
        written = Written()
        for at in range(0, len(keys), KEYS_A_WRITE):
            some = list(keys[at : at + KEYS_A_WRITE])
            taken = {key: held for key, held in (unexplained or {}).items() if key in some}
            written += self._of_some(some, version, taken)
        return written

    def of_chunk(self, read: Callable[[], tuple[list[Key], Projected] | None], version: int) -> Written | None:
        """Write rows that `read` gives, which is called while the lock is held: their keys, and what they project to.

        None where it gives none.
        """
        with self.lock() as lock:
            self.check()
            found = read()
            failpoints.reach("after rows")
            if found is None:
                return None
            keys, projected = found
            written = self._write(self._with_tombstones(keys, projected, version), projected.parked, {}, lock)
            if written is not None and lock.is_held():
                return written
        return self.of_keys(keys, version)

    def _of_some(self, keys: list[Key], version: int, unexplained: Mapping[Key, Held]) -> Written:
        while True:
            with self.lock() as lock:
                self.check()
                rows = self.rows.having(self.view.key, keys, version)
                failpoints.reach("after rows")
                projected = self.projections.of_rows(self.view.id, rows, version)
                writes = self._with_tombstones(keys, projected, version)
                written = self._write(writes, projected.parked, unexplained, lock)
                if written is not None and lock.is_held():
                    return written
            # This process hung, and its lock was taken from it: rows that it read may be gone. Once more.

    def _with_tombstones(self, keys: list[Key], projected: Projected, version: int) -> list[ViewWrites]:
        """Only these keys, exactly: a collation takes others for equal ones."""
        found = {key: write for one in projected.writes for key, write in one.writes.items()}
        parked = {letter.key for letter in projected.parked}
        render = key_renderer(self.view.key)
        absent = [key for key in keys if key not in found and render(key) not in parked]
        writes = {key: found[key] for key in keys if key in found}
        entity = self.view.view.entity
        if entity.version is None:
            writes |= {key: Write(version, None) for key in absent}
        elif absent and not entity.append_only:  # there it is archiving
            stored = {key: held.version for key, held in self.held(absent).items()}
            # A row that came back meanwhile may be what is stored: its own version must get no tombstone.
            gone = self.rows.absent(self.view.key, list(stored), version)
            writes |= {key: Write(of | 1, None) for key in gone if (of := stored[key]) is not None}
        return [ViewWrites(self.view.id, writes)] if writes else []

    def _write(
        self,
        writes: Sequence[ViewWrites],
        unprojected: Sequence[Parked],
        unexplained: Mapping[Key, Held],
        lock: ViewLock,
    ) -> Written | None:
        """None where the lock is lost, and nothing was written."""
        if not lock.is_held():
            return None
        if unexplained:
            self.sink.take_away(self.view.id, unexplained)
            failpoints.reach("after take away")
        refused = self.sink.write(writes, None) if writes else []
        with transaction(self.session, f"writing {self.view.id} again"):
            pass
        failpoints.reach("after rewrite")
        parked = [*unprojected, *refused]
        self.settle(writes, parked)
        values = [write[1] for one in writes for write in one.writes.values()]
        gone = sum(value is None for value in values)
        return Written(shown=len(values) - gone - len(refused), gone=gone, parked=tuple(parked))
