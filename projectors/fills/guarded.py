"""Fills a view whose store keeps each key's version, beside the pipeline.

Every row is written with W's version (or its own, with a version column). Later changes are newer and earlier ones
older, so the guard settles every race: no pause, no reconciliation. At the end keys that the store shows with an older
version, and the table no longer has, are swept away, guarded in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from ingest.canonical.chunks import Chunk
from offsets.views import Event, State, ViewRecord
from projectors.dead_letters import Parking
from projectors.fills.filling import Filling
from projectors.outcomes import again
from projectors.projection import Projected
from projectors.stores import GuardedSink, is_anothers, slices
from projectors.view_life import ViewLife
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key, Parked, ViewWrites, Write

_log = structlog.get_logger("viewtail.backfill")

CHUNK_AGE_LIMIT_S = 3600.0  # a chunk read longer ago is read again, never written: tombstones outlive it
PIECE_ROWS = 2_000  # of derived rows: the loop waits for its turn while they are written


@dataclass(slots=True, eq=False)
class GuardedFill:
    """Over a sink of its own."""

    sink: GuardedSink
    _parking: Parking = field(init=False)
    _incarnation: str = ""
    _version: int = 0  # of the filling's watermark
    _is_swept: bool = False  # the view may have keys that the table has no longer
    _mark: int | None = None  # what this filling wrote since may be left out of its sweep

    def prepare(self, filling: Filling) -> None:
        view, life = filling.view.id, filling.life
        self._parking = Parking(filling.dead_letters, life.halt)
        with filling.gate(filling.bound_at) as is_right:
            if not is_right:
                raise again("its table changed since; the next filling is of the table as it is now")
            # What an interrupted filling wrote is gone with the place.
            refused = self.sink.prepare(partial(_place_made, life, view))
        if refused:
            life.refused(view, refused[view])
            raise again(refused[view])
        self._incarnation = self.sink.incarnation()

    def incarnation(self) -> str:
        return self._incarnation

    def begin(self, filling: Filling, before: ViewRecord, record: ViewRecord) -> Key | None:
        assert record.watermark_version is not None
        self._version = record.watermark_version
        is_resumed = before.state is State.BACKFILLING
        # No older key can come from now on: the pipeline is past the watermark.
        self._is_swept = is_resumed or self._has_older(filling)
        # Whatever is older was written before. What a resumed one wrote first, no mark tells from that.
        self._mark = self.sink.mark_writes(filling.view.id) if self._is_swept and not is_resumed else None
        return record.last_key

    def version(self, filling: Filling) -> int:
        return self._version

    def write(self, filling: Filling, chunk: Chunk, projected: Projected) -> bool:
        writes, refused = projected.writes, list[Parked]()
        *pieces, last = _pieces(filling, writes)
        for piece in pieces:
            with filling.gate(chunk.read_at) as is_right:
                if not is_right or _is_too_old(chunk):
                    return False
                refused += self._write(piece)
                filling.progress.commit_rows()
            filling.life.gate.let_pass(filling.view.id)
        with filling.gate(chunk.read_at) as is_right:
            if not is_right or _is_too_old(chunk):
                return False
            refused += self._write(last)
            self._parking.park(writes, projected.parked, refused)
            shown = (values is not None for of_view in writes for _, values in of_view.writes.values())
            filling.save(chunk, sum(shown) - len(refused))
        return True

    def _write(self, writes: Sequence[ViewWrites]) -> list[Parked]:
        return self.sink.write_again(writes) if self._is_swept else self.sink.write(writes, None)

    # -- what the table no longer has -----------------------------------------------------------------------------

    def _has_older(self, filling: Filling) -> bool:
        for page in self._older(filling, None):
            if page:
                return True
            filling.rest()
        return False

    def _older(self, filling: Filling, mark: int | None) -> Iterator[list[tuple[Key, int]]]:
        view, version = filling.view, self._below(filling)
        if view.source:
            return self.sink.keys_of_part(view.id, view.source, version)
        return self.sink.keys_below(view.id, version, mark)

    def _below(self, filling: Filling) -> int:
        """With a version column the stored versions say nothing about W: every present key is looked up."""
        return self._version if filling.view.view.entity.version is None else MAX_VERSION

    def sweep(self, filling: Filling) -> bool:
        """Tombstones for present keys that are older than the filling and not in the table.

        What another tool left, where the view was adopted, is there until somebody says that it goes.
        """
        if not self._is_swept:
            return False
        view, left = filling.view.id, 0
        is_adopted = filling.progress.is_adopted()
        filling.vitals.state = "sweeping"
        for page in self._older(filling, self._mark):
            older = {key: of for key, of in page if not (is_adopted and is_anothers(filling.view, of))}
            older = {key: older[key] for key in filling.view.own([*older])}
            present = filling.unparked(older)
            left += len(older) - len(present)
            if stale := self._stale(filling, present):
                self.sink.write([ViewWrites(view, stale)], None)
                filling.progress.commit_rows()
            filling.rest()
        if left:
            # Also of columns that are masked by now.
            see = f"viewtail dead-letters list {view}"
            _log.warning(
                "keys that are parked keep what they showed before this backfill", view=view, keys=left, see=see
            )
        return True

    def _stale(self, filling: Filling, present: Mapping[Key, int]) -> dict[Key, Write]:
        """The tombstones for those of these keys, each with its version, that the table no longer has."""
        if filling.view.view.entity.dropped == "keep":  # the rows of tables that are gone stay
            kept = {*filling.rows.of_present_tables(list(present))}
            present = {key: stored for key, stored in present.items() if key in kept}
        if filling.view.view.entity.version is None:
            return {key: Write(self._version, None) for key in present}
        absent = filling.rows.absent(filling.view.key, list(present), self._version)
        if absent:
            # The stream may bring a row before a query shows it; once the pipeline is past a new watermark, both have
            # it.
            absent = filling.rows.absent(filling.view.key, sorted(absent), filling.now())
        return {key: Write(stored | 1, None) for key, stored in present.items() if key in absent}

    def finish(self, filling: Filling, end: int) -> None:
        if self.sink.incarnation() != self._incarnation:
            raise filling.begin_again("the store was restarted during the backfill")
        filling.save_end(end)

    def close(self) -> None:
        self.sink.close()


def _place_made(life: ViewLife, view: str, missing: frozenset[str]) -> None:
    life.lost_for_others(missing)
    life.states.move(Event.INTERRUPTED, [view])


def _is_too_old(chunk: Chunk) -> bool:
    return time.monotonic() - chunk.read_at > CHUNK_AGE_LIMIT_S


def _pieces(filling: Filling, writes: Sequence[ViewWrites]) -> Iterator[Sequence[ViewWrites]]:
    """The writes of a chunk as they are written at once: all of them, or derived rows in pieces."""
    if filling.view.derived is None or not any(of_view.writes for of_view in writes):
        yield writes
        return
    for of_view in writes:
        for items in slices(list(of_view.writes.items()), PIECE_ROWS):
            yield [ViewWrites(of_view.view, dict(items))]
