"""Backfills one view from the canonical rows while the pipeline goes on.

A watermark W is committed on the source's primary and its version is learned from the stream. Then the table is read
by key in chunks, each in a fresh snapshot in which the watermark is visible, and every row is written with W's version
(or its own, with a version column). Later changes are newer and earlier ones older, so the guard settles every race:
no pause, no reconciliation. At the end keys that the store shows with an older version, and the table no longer has,
are swept away, guarded in the same way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import structlog

from ingest.canonical.chunks import CanonicalRows, Chunk, row_order
from offsets.backfills import BackfillProgress
from offsets.views import Event, State, ViewRecord
from projectors import failpoints
from projectors.dead_letters import DeadLetters, Parking
from projectors.pace import GivingWay, Pace
from projectors.projection import Projected, Projections
from projectors.stores import GuardedSink, Sink, guarded
from projectors.view_life import ViewLife
from projectors.views import BoundView
from projectors.watermarks import Watermarks
from viewtail.changes.errors import StopRequested
from viewtail.changes.rendering import render_key
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key, Parked, ViewWrites, Write

_log = structlog.get_logger("viewtail.backfill")

CHUNK_AGE_LIMIT_S = 3600.0  # a chunk read longer ago is read again, never written: tombstones outlive it


@dataclass(slots=True, kw_only=True)
class BackfillVitals:
    """How far a backfill is; read by reports."""

    view: str
    row_count: int = 0
    row_estimate: int = 0
    state: str = "waiting for its watermark"


@dataclass(slots=True, kw_only=True, eq=False)
class Backfill:
    """Backfills one view once. `run` resumes where an earlier one was stopped or killed.

    `projections` are of this view alone, `rows` of its table with their columns; the sink is this backfill's own.
    """

    view: BoundView
    bound_at: float  # monotonic, not later
    life: ViewLife
    rows: CanonicalRows
    projections: Projections
    sink: Sink
    progress: BackfillProgress
    dead_letters: DeadLetters
    watermarks: Watermarks
    stop: threading.Event
    vitals: BackfillVitals
    gives_way: GivingWay | None = None  # where readers have another copy, and nobody waits for this one
    _kept_count: int = 0  # rows written of those that were read, one a key and chunk
    _parking: Parking = field(init=False)
    _pace: Pace | None = None
    _swept: GuardedSink | None = None  # the sink, where the view may have keys that the table has no longer

    def __post_init__(self) -> None:
        self._parking = Parking(self.dead_letters, self._halt)

    def run(self) -> None:
        """Raises StopRequested, StoreUnavailableError or SourceUnavailableError; call again to go on.

        AnotherServerError: the source's address leads elsewhere; call again when what that means has been decided.
        """
        view, guard = self.view.id, guarded(self.sink)
        self._prepare()
        incarnation = "" if guard is None else guard.incarnation()
        try:
            record, is_resumed = self._begin(self._now(), incarnation)
            assert record.watermark_version is not None
            # No older key can come from now on: the pipeline is past the watermark.
            swept = self._swept = guard if is_resumed or self._has_older(guard, record.watermark_version) else None
            # Whatever is older was written before. What a resumed one wrote first, no mark tells from that.
            mark = None if swept is None or is_resumed else swept.mark_writes(view)
            self._write_chunks(record.last_key, record.watermark_version)
            if swept is not None:
                self._sweep(swept, record.watermark_version, mark)
        finally:
            self.rows.close()
        # The store's witness passes this after every row of the backfill: one that comes back with less has lost some.
        end = self._now()
        if guard is not None and guard.incarnation() != incarnation:
            self._begin_again("the store was restarted during the backfill")
        self.progress.finish(end, self._kept_count)
        self.vitals.state = "filled"
        _log.info("view backfilled", view=view, rows=self._kept_count, swept=swept is not None)

    def _prepare(self) -> None:
        """Make the view's place in the store ready. Raises StopRequested where it does not get one now."""
        view = self.view.id
        with self.life.gate.open(view, self.bound_at) as is_right:
            if not is_right:
                raise StopRequested  # its table changed since; the next one is of the table as it is now
            # What it wrote before is gone.
            refused = self.sink.prepare(lambda _: self.life.states.move(Event.INTERRUPTED, [view]))
        if refused:
            self.life.refused(view, refused[view])
            raise StopRequested

    def close(self) -> None:
        """Give the sink up."""
        self.sink.close()

    def _now(self) -> int:
        version = self.watermarks.now(self.stop)
        if self.life.gate.is_bound_since(self.view.id, self.bound_at):
            raise StopRequested  # what it would read is not as this backfill knows it
        return version

    def _begin_again(self, why: str) -> NoReturn:
        _log.warning("the backfill begins again", view=self.view.id, why=why)
        self.life.states.move(Event.INTERRUPTED, [self.view.id])
        raise StopRequested

    def _begin(self, watermark: int, incarnation: str) -> tuple[ViewRecord, bool]:
        """The view's record, and whether an interrupted backfill goes on."""
        record = self.life.states.read(self.view.id)
        is_resumed = record.state is State.BACKFILLING
        if is_resumed:
            self._check_goes_on(record, incarnation)
        else:
            self.dead_letters.clear_view(self.view.id)
            record = self.life.states.begin_backfill(self.view.id, watermark, self.vitals.row_estimate, incarnation)
            if record.state is not State.BACKFILLING:
                raise StopRequested  # halted between the watermark and now
            if self.life.projections.is_halted(self.view.id):
                self._begin_again("it was halted and marked for a backfill meanwhile, but gets no changes yet")
        if record.rows_a_second:
            self._pace = Pace(record.rows_a_second, self.stop)
        self.vitals.row_count, self._kept_count = record.row_count, record.kept_count
        if not is_resumed or self.vitals.state != "filling":  # else it is tried again, perhaps for a while
            _log.info("backfilling", view=self.view.id, rows_before=record.row_count, about=self.vitals.row_estimate)
        self.vitals.state = "filling"
        return record, is_resumed

    def _check_goes_on(self, record: ViewRecord, incarnation: str) -> None:
        """Begin again where what the interrupted one wrote may be gone, or rows now come in another order."""
        if record.incarnation != incarnation:
            self._begin_again("the store was restarted during the backfill")
        if record.row_order not in ("", row_order(self.view.table)):
            self._begin_again("rows are in another order than when the backfill was interrupted")

    def _write_chunks(self, after: tuple[Any, ...] | None, version: int) -> None:
        if self.gives_way is None:
            self._write_at_once(after, version)
        else:
            self._write_giving_way(self.gives_way, after, version)

    def _write_giving_way(self, gives_way: GivingWay, after: tuple[Any, ...] | None, version: int) -> None:
        """One chunk after the other: beside the pipeline's threads there is one, and most of the time it rests."""
        gives_way.begin()
        while (found := self._read(version, after)) is not None:
            chunk, projected = found
            if self._write(chunk, projected):
                if chunk.is_last:
                    return
                after = chunk.last_key
            gives_way.after(0)

    def _write_at_once(self, after: tuple[Any, ...] | None, version: int) -> None:
        """The next chunk is read and projected in a thread while one is written."""
        read = partial(self._read, version)
        with ThreadPoolExecutor(1, thread_name_prefix="chunk") as reader:
            found = read(after)
            while found is not None:
                chunk, projected = found
                ahead = None if chunk.is_last else reader.submit(read, chunk.last_key)
                is_written = self._write(chunk, projected)
                found = None if ahead is None else ahead.result()  # rows are read by one thread at a time
                if is_written:
                    after = chunk.last_key
                else:
                    found = read(after)

    def _read(self, version: int, after: tuple[Any, ...] | None) -> tuple[Chunk, Projected] | None:
        chunk = self.rows.after(after, version)
        return None if chunk is None else (chunk, self.projections.of_rows(self.view.id, chunk.rows, version))

    def _write(self, chunk: Chunk, projected: Projected) -> bool:
        """False where the chunk is too old to be written."""
        with self.life.gate.open(self.view.id, chunk.read_at) as is_right:
            if self.life.gate.is_bound_since(self.view.id, self.bound_at):
                raise StopRequested
            if not is_right or time.monotonic() - chunk.read_at > CHUNK_AGE_LIMIT_S:
                return False
            refused = self._put(projected.writes)
            self._parking.park(projected.writes, projected.parked, refused)
            self.vitals.row_count += len(chunk.rows)
            shown = (write[1] is not None for found in projected.writes for write in found.writes.values())
            self._kept_count += sum(shown) - len(refused)
            self.progress.save(chunk.last_key, self.vitals.row_count, self._kept_count)
        failpoints.reach("after chunk")
        if self._pace is not None:
            self._pace.after(len(chunk.rows))
        if self.stop.is_set():
            raise StopRequested
        return True

    def _put(self, writes: Sequence[ViewWrites]) -> list[Parked]:
        return self.sink.write(writes, None) if self._swept is None else self._swept.write_again(writes)

    def _halt(self, view: str, reason: str) -> NoReturn:
        self.life.halt(view, reason)
        raise StopRequested

    # -- what the table no longer has ---------------------------------------------------------------------------

    def _has_older(self, sink: GuardedSink | None, version: int) -> bool:
        for page in () if sink is None else sink.keys_below(self.view.id, self._sweep_below(version)):
            if page:
                return True
            self._rest()
        return False

    def _rest(self) -> None:
        if self.gives_way is not None:
            self.gives_way.after(0)
        if self.stop.is_set():
            raise StopRequested

    def _sweep_below(self, version: int) -> int:
        """With a version column the stored versions say nothing about W: every present key is looked up."""
        return version if self.view.view.entity.version is None else MAX_VERSION

    def _sweep(self, sink: GuardedSink, version: int, mark: int | None) -> None:
        """Tombstones for present keys that are older than the backfill and not in the table.

        A key that is parked keeps what it has: that it could not be applied does not mean that it is gone.
        """
        self.vitals.state = "sweeping"
        for page in sink.keys_below(self.view.id, self._sweep_below(version), mark):
            parked = self.dead_letters.keys_of(self.view.id) if page else ()
            if parked:
                page = [one for one in page if render_key(one[0], self.view.key) not in parked]
            if stale := self._stale(page, version):
                self.sink.write([ViewWrites(self.view.id, stale)], None)
                self.progress.commit_rows()
            self._rest()

    def _stale(self, page: Sequence[tuple[Key, int]], version: int) -> dict[Key, Write]:
        """The tombstones for those of these present keys, each with its version, that the table no longer has."""
        if self.view.view.entity.version is None:
            return {key: Write(version, None) for key, _ in page}
        absent = self._absent([key for key, _ in page], version)
        return {key: Write(stored | 1, None) for key, stored in page if key in absent}

    def _absent(self, keys: list[Key], version: int) -> set[Key]:
        absent = self.rows.absent(self.view.key, keys, version)
        # The stream may bring a row before a query shows it; once the pipeline is past a new watermark, both have it.
        return self.rows.absent(self.view.key, sorted(absent), self._now()) if absent else absent
