"""Fills one view from its table while the pipeline goes on: begin, chunks, sweep, finish.

A watermark W is committed on the source's primary and its version is learned from the stream. Then the table is read
by key in chunks, each in a fresh snapshot in which a watermark is visible. What becomes of a chunk, and of keys that
the table no longer has, is the strategy's: a store that guards versions is written beside the pipeline (guarded.py),
one that keeps every change is written by the pipeline itself (published.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from ingest.canonical.chunks import CanonicalRows, Chunk, row_order
from offsets.backfills import BackfillProgress
from offsets.views import Event, State, ViewRecord
from projectors import failpoints
from projectors.dead_letters import DeadLetters
from projectors.outcomes import Ended, Outcome, again, outcome_of
from projectors.projection import Projected, Projections
from projectors.throttle import Throttle
from projectors.view_life import ViewLife
from projectors.views import BoundView
from projectors.watermarks import LocalWaiter, Watermarks
from viewtail.changes.errors import StopRequested
from viewtail.changes.rendering import render_key
from viewtail.changes.writes import Key

_log = structlog.get_logger("viewtail.backfill")


@dataclass(slots=True, kw_only=True)
class FillVitals:
    """How far a filling is; read by reports."""

    view: str
    row_count: int = 0
    row_estimate: int = 0
    state: str = "waiting for its watermark"


@dataclass(slots=True, kw_only=True)
class FillsVitals:
    """What is known of a pipeline's fillings; read by reports."""

    under_way: dict[str, FillVitals] = field(default_factory=dict)  # by view
    trouble: str | None = None  # what they wait for


class Strategy(Protocol):
    """What a filling does with its rows; one object a filling, and its steps are called in this order.

    Each may raise `Ended`, StopRequested or a ViewtailError; the filling ends with that.
    """

    def prepare(self, filling: Filling) -> None:
        """Make the view's place in the store ready."""

    def incarnation(self) -> str:
        """Which place it is that is filled, or in which state of its store; asked once the pipeline keeps it."""

    def begin(self, filling: Filling, before: ViewRecord, record: ViewRecord) -> Key | None:
        """The key to go on after, None from the beginning; `before` is the view's record as it was found."""

    def version(self, filling: Filling) -> int:
        """Under which the next chunk is read: that of a watermark."""

    def write(self, filling: Filling, chunk: Chunk, projected: Projected) -> bool:
        """Make a chunk durable, and how far it goes (`Filling.save`); False: it is to be read again."""

    def sweep(self, filling: Filling) -> bool:
        """Delete the keys that the table no longer has; False where there can be none."""

    def finish(self, filling: Filling, end: int) -> None:
        """Note that the view is filled (`Filling.save_end`): the pipeline is past everything that was written."""

    def close(self) -> None: ...


@dataclass(slots=True, kw_only=True, eq=False)
class Filling:
    """Fills one view once. `run` goes on where an earlier one was stopped or killed.

    `projections` are of this view alone, `rows` of its table with their columns.
    """

    view: BoundView
    bound_at: float  # monotonic, not later
    life: ViewLife
    rows: CanonicalRows
    projections: Projections
    strategy: Strategy
    progress: BackfillProgress
    dead_letters: DeadLetters
    watermarks: Watermarks[LocalWaiter]
    stop: threading.Event
    vitals: FillVitals
    throttle_of: Callable[[int], Throttle]  # takes the most rows a second; 0: no limit
    reads_ahead: bool  # the next chunk is read and projected in a thread while one is written
    last_key: Key | None = None  # of the last row that was written
    throttle: Throttle = field(init=False)
    _kept_count: int = 0  # rows written of those that were read, one a key and chunk

    def run(self) -> Outcome:
        """Fill the view and return how that ended; call again to go on."""
        return outcome_of(self._run, self.stop)

    def _run(self) -> None:
        view = self.view.id
        self.strategy.prepare(self)
        try:
            self._begin(self.now())
            self._write_chunks()
            is_swept = self.strategy.sweep(self)
        finally:
            self.rows.close()
        # The store's witness passes this after every row of the filling: one that comes back with less has lost some.
        self.strategy.finish(self, self.now())
        self.vitals.state = "filled"
        _log.info("view backfilled", view=view, rows=self._kept_count, swept=is_swept)

    def close(self) -> None:
        """Give up what the strategy holds."""
        self.strategy.close()

    # -- begin --------------------------------------------------------------------------------------------------

    def _begin(self, watermark: int) -> None:
        """Begin under this watermark, or go on where an interrupted filling was."""
        view, incarnation = self.view.id, self.strategy.incarnation()
        before = record = self.life.states.read(view)
        is_resumed = before.state is State.BACKFILLING
        if is_resumed:
            self._check_goes_on(record, incarnation)
        else:
            self.dead_letters.clear_view(view)
            record = self.life.states.begin_backfill(view, watermark, self.vitals.row_estimate, incarnation)
            if record.state is not State.BACKFILLING:
                raise again("it was halted between the watermark and now")
            if self.life.projections.is_halted(view):
                raise self.begin_again("it was halted and marked for a backfill meanwhile, but gets no changes yet")
        self.throttle = self.throttle_of(record.rows_a_second)
        self.vitals.row_count, self._kept_count = record.row_count, record.kept_count
        if not is_resumed or self.vitals.state != "filling":  # else it is tried again, perhaps for a while
            _log.info("backfilling", view=view, rows_before=record.row_count, about=self.vitals.row_estimate)
        self.vitals.state = "filling"
        self.last_key = self.strategy.begin(self, before, record)

    def _check_goes_on(self, record: ViewRecord, incarnation: str) -> None:
        """Begin again where what the interrupted one wrote may be gone, or rows now come in another order."""
        if record.incarnation != incarnation:
            raise self.begin_again("the store was restarted during the backfill")
        if record.row_order not in ("", row_order(self.view.table)):
            raise self.begin_again("rows are in another order than when the backfill was interrupted")

    # -- chunks -------------------------------------------------------------------------------------------------

    def _write_chunks(self) -> None:
        self.throttle.begin()
        with ThreadPoolExecutor(1, thread_name_prefix="chunk") as reader:
            following = self._read(self.last_key)
            while following is not None:
                chunk, projected = following
                is_ahead = self.reads_ahead and not chunk.is_last
                ahead = reader.submit(self._read, chunk.last_key) if is_ahead else None
                is_written = self._write(chunk, projected)
                following = None if ahead is None else ahead.result()  # rows are read by one thread at a time
                if is_written and chunk.is_last:
                    return
                if ahead is None or not is_written:
                    following = self._read(self.last_key)

    def _write(self, chunk: Chunk, projected: Projected) -> bool:
        """Return whether it is durable; otherwise it is to be read again."""
        if not self.strategy.write(self, chunk, projected):
            self.rest()
            return False
        self.last_key = chunk.last_key
        failpoints.reach("after chunk")
        self.rest(len(chunk.rows))
        return True

    def _read(self, after: Key | None) -> tuple[Chunk, Projected] | None:
        version = self.strategy.version(self)
        chunk = self.rows.after(after, version)
        return None if chunk is None else (chunk, self.projections.of_rows(self.view.id, chunk.rows, version))

    # -- for strategies -----------------------------------------------------------------------------------------

    def now(self) -> int:
        """The version of a watermark that the pipeline has passed."""
        version = self.watermarks.now(self.stop)
        self._check_bound()
        return version

    @contextmanager
    def gate(self, read_at: float) -> Iterator[bool]:
        """While rows are written that were read then; False: a statement took rows away since, so read them again."""
        with self.life.gate.open(self.view.id, read_at) as is_right:
            self._check_bound()
            yield is_right

    def _check_bound(self) -> None:
        if self.life.gate.is_bound_since(self.view.id, self.bound_at):
            raise again("its table changed: what would be read is not as this filling knows it")

    def save(self, chunk: Chunk, kept_count: int) -> None:
        """A chunk is durable, with so many rows of it."""
        self.vitals.row_count += len(chunk.rows)
        self._kept_count += kept_count
        self.progress.save(chunk.last_key, self.vitals.row_count, self._kept_count)

    def save_end(self, end: int) -> None:
        """The view is filled; `end` is a version behind all that was written."""
        self.progress.finish(end, self._kept_count)

    def rest(self, row_count: int = 0) -> None:
        """Between two steps, of which the last was about so many rows."""
        self.throttle.after(row_count)
        if self.stop.is_set():
            raise StopRequested
        if self.life.projections.is_halted(self.view.id):
            raise again("it gets no changes any more")

    def begin_again(self, why: str) -> Ended:
        """What was written counts for nothing: the next filling of the view begins under another watermark."""
        _log.warning("the backfill begins again", view=self.view.id, why=why)
        self.life.states.move(Event.INTERRUPTED, [self.view.id])
        return again(why)

    def unparked(self, keys: Mapping[Key, int], refused: Collection[str] = ()) -> dict[Key, int]:
        """Without those that are parked or `refused` now: what could not be applied need not be gone."""
        parked = {*(self.dead_letters.keys_of(self.view.id) if keys else ()), *refused}
        if not parked:
            return dict(keys)
        return {key: stored for key, stored in keys.items() if render_key(key, self.view.key) not in parked}
