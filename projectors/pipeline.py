"""The loop that keeps the views of one store up to date.

    offset = offsets.take(pipeline)                  # raises the fence
    for batch in source.read(after=offset):          # whole committed transactions, in order, bounded in bytes
        writes = projections.of(batch)               # per view: key, version, row or tombstone; coalesced
        sink.write(writes)                           # newer wins; returns when durable
        offsets.save(pipeline, batch.end)            # in the sink's own transaction where both are MySQL

`Pipeline` reads: it waits for a store that fails, and starts again from what is durable (recovery.py). What is done
with a batch is `_apply`: of a `GuardedPipeline` here, of a `PublishingPipeline` in publishing.py. A key that cannot be
applied is parked and a table that cannot be read halts its views, while everything else goes on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from ingest import Source
from ingest.limits import Limits
from ingest.read_ahead import TICK_S, ReadAhead
from offsets import OffsetStore
from projectors import failpoints, recovery
from projectors.dead_letters import DeadLetters, Parking
from projectors.derived.fan_outs import FanOuts
from projectors.derived.reading import DerivedReader, committed, last_event
from projectors.look_ahead import LookAhead
from projectors.observer import Observer
from projectors.outcomes import DONE, Ended, Outcome
from projectors.paused_parts import OwnedParts
from projectors.projection import Projected
from projectors.stores import Sink
from projectors.table_changes import TableChanges
from projectors.view_life import ViewLife
from projectors.watermarks import LocalWaiter, Watermarks
from viewtail.changes.batches import Batch
from viewtail.changes.errors import AnotherServerError, SourceError, StoreUnavailableError, ViewtailError
from viewtail.changes.pipelines import PipelineState
from viewtail.changes.positions import Position
from viewtail.changes.retrying import reaction_to
from viewtail.servers.sessions import Connection

_log = structlog.get_logger("viewtail.pipeline")

IDLE_SAVE_S = 10.0  # how often an offset is saved that moved past nothing but other tables' changes


@dataclass(slots=True, kw_only=True)
class Vitals:
    """What a pipeline reports about itself; its loop writes it."""

    state: str = PipelineState.STARTING
    error: str | None = None
    position: Position | None = None
    row_count: int = 0  # changed rows read
    write_count: int = 0  # writes applied, after coalescing
    batch_count: int = 0
    store_retry_count: int = 0
    oldest_waiting_us: int = 0  # commit time of the oldest change that is being written; 0: none is
    last_commit_us: int = 0  # of the first change of the last batch


@dataclass(slots=True, kw_only=True, eq=False)
class Pipeline(ABC):
    """One store's views, kept up to date until `stop` is set."""

    source: Source
    sink: Sink
    offsets: OffsetStore
    life: ViewLife
    dead_letters: DeadLetters
    watermarks: Watermarks[LocalWaiter]
    open_source: Callable[[], Connection]  # the server whose changes are read, and no other
    derived: DerivedReader
    fan_outs: FanOuts
    raise_epoch_above: Callable[[int], int]  # returns the epoch that the source is in then
    stop: threading.Event
    check_lease: Callable[[], None]  # raises FencedError when another owner may have taken over
    limits: Limits = field(default_factory=Limits)
    tick_s: float = TICK_S
    parts: OwnedParts = field(default_factory=OwnedParts)
    observers: Sequence[Observer] = ()
    vitals: Vitals = field(default_factory=Vitals)
    _parking: Parking = field(init=False)
    _table_changes: TableChanges = field(init=False)
    _next: LookAhead = field(init=False)
    _idle_saved_at: float = field(default_factory=time.monotonic)
    _unsaved: Position | None = None  # read past, and not saved
    _applied_at: float = 0.0  # monotonic
    _settled_at: float = 0.0

    def __post_init__(self) -> None:
        self._parking = Parking(self.dead_letters, self.life.halt)
        self._table_changes = TableChanges(
            self.life, self.sink, self.offsets, self.dead_letters, self.open_source, self.check_lease, self.stop
        )
        self._next = LookAhead(self.life.projections)

    @property
    def trouble(self) -> str | None:
        """Why it waits for the source's tables, where that takes long."""
        return self.derived.trouble

    @property
    def fan_out_us(self) -> int:
        """When the oldest change was committed whose fan-out is under way, us since 1970; 0: none is."""
        return self.fan_outs.oldest_us

    # -- reading -------------------------------------------------------------------------------------------------

    def run(self, offset: Position) -> Outcome:
        """From `offset` until stopped; a store that is away is waited for.

        Returns DONE, or how the pipeline is to be taken again at once; nothing of the batch at hand was committed then.
        Raises FencedError when another owner took over, SourceError when the stream cannot be continued.
        """
        attempt = 0
        self.vitals.position = offset
        while not self.stop.is_set():
            batches_before = self.vitals.batch_count
            self._unsaved = None  # what was read past is read again, from what turns out to be durable
            try:
                offset = self.vitals.position or offset
                begin = recovery.begin(offset, self.source, self.sink, self.life, self.raise_epoch_above)
                if begin.version > offset.version:  # of a commit only the answer was lost: it does not come again
                    self.vitals.oldest_waiting_us = 0
                self._begin_again(begin)
                self.parts.make_right(self._table_changes, begin.version)
                self._keep_up(begin)
                return DONE
            except Ended as ended:
                return ended.outcome
            except StoreUnavailableError as error:
                attempt = 0 if self.vitals.batch_count > batches_before else attempt + 1
                self._wait_for_store(error, attempt)
            except (SourceError, AnotherServerError):
                with contextlib.suppress(ViewtailError):
                    self._settle()  # another server is judged by all that was applied
                raise
        return DONE

    @abstractmethod
    def _begin_again(self, begin: Position) -> None:
        """Reading begins there, behind what is durable; what was under way comes again."""

    def _keep_up(self, offset: Position) -> None:
        has_read = False
        with ReadAhead(self.source, offset, self.limits, self._tick_s) as batches:
            self._next = LookAhead(self.life.projections, batches.following)
            self.vitals.state = PipelineState.RUNNING
            for batch in batches:
                self.check_lease()
                has_read = has_read or batch is not None
                self.vitals.last_commit_us = batch.oldest_commit_us if batch else self.vitals.last_commit_us
                if batch is not None and batch.is_telling:
                    began = time.monotonic()
                    self._apply(batch)
                    self._applied_at = time.monotonic()
                    self.fan_outs.note_live(self._applied_at - began)
                elif batch is not None:
                    self._pass(batch)
                else:
                    self._when_idle(has_read)
                self.vitals.error = None  # not before: the store may refuse the same batch again and again
                self._save_when_idle()
                self._between_batches(is_idle=batch is None or not batch.is_telling)
                if self.stop.is_set() and self._may_stop():
                    return

    @abstractmethod
    def _apply(self, batch: Batch) -> None:
        """Write what a batch changes in the views, and save the offset behind it."""

    def _tick_s(self) -> float:
        """How long a batch is waited for before there is something else to do."""
        return self.fan_outs.due_s(self.tick_s)

    def _between_batches(self, *, is_idle: bool) -> None:
        """Do a little of what is not in the stream. `is_idle`: no change of the views came just now."""
        self.fan_outs.step(self._write_apart, may_wait=not is_idle)

    def _may_stop(self) -> bool:
        return True

    def _when_idle(self, has_read: bool) -> None:
        """The source has nothing more for now. `has_read`: it had something since reading began."""
        if has_read:  # before that, what the store refused comes again
            self.vitals.oldest_waiting_us = 0
        now = time.monotonic()
        if not self._tick_s() and now - max(self._applied_at, self._settled_at) < self.tick_s:
            return  # not behind each page: stores settle in round trips of their own
        self._settled_at = now
        self.sink.settle()
        self.offsets.settle()

    def _pass(self, batch: Batch) -> None:
        """Nothing for our views: the offset moves on a timer, and not for viewtail's own writes alone."""
        is_worth_it = not batch.is_quiet or batch.is_milestone or self._unsaved is not None
        if batch.end is not None and is_worth_it:
            self._unsaved = batch.end

    def _settle(self) -> None:
        """Make the offset durable of all that was applied."""
        self.offsets.settle()

    def _save_every_s(self) -> float:
        return IDLE_SAVE_S

    def _save_when_idle(self) -> None:
        now = time.monotonic()
        if self._unsaved is not None and now - self._idle_saved_at > self._save_every_s():
            self._idle_saved_at = now
            self.save_now()

    def save_now(self) -> None:
        """Save the offset of what was read past, or is late; at the end of the loop, and on a timer."""
        if self._unsaved is not None:
            self.sink.write([], self._unsaved)  # the witness moves too, or it would look like a loss
            self.offsets.save(self._unsaved)
            self.vitals.position, self._unsaved = self._unsaved, None
        self.offsets.settle()

    def _wait_for_store(self, error: StoreUnavailableError, attempt: int) -> None:
        reaction = reaction_to(error)
        self.vitals.state, self.vitals.error = reaction.state, str(error)
        self.vitals.store_retry_count += 1
        _log.warning("store unavailable", error=str(error), attempt=attempt)
        self.stop.wait(reaction.pause_s(attempt))

    # -- steps of `_apply`, in their order -----------------------------------------------------------------------

    def _make_ready(self, batch: Batch) -> None:
        """Halt the views that the source cannot read any more, and those that do not fit their table any more."""
        failpoints.reach("after read")
        self._unsaved = None  # the offset of this batch replaces it
        self.life.cannot_read(batch.halts)
        if batch.table_changes:
            self._table_changes.prepare(batch.table_changes)

    def _derived(self, batch: Batch, projected: Projected) -> Iterator[tuple[Projected, bool]]:
        """Read the derived rows that a batch touched, or a piece of one: its commit has been read.

        Yields slices of each view, with whether it is the view's last.
        """
        if not projected.touched:
            return
        origin, changes = batch.origin_of(last_event(batch)), committed(batch)
        for view, touched in projected.touched.items():
            bound = self.life.views[view]
            assert bound.derived is not None
            try:
                versions = self.fan_outs.take(view, touched, changes, batch.oldest_commit_us)
                for rows in self.derived.slices(bound.derived, bound.needed, versions, changes):
                    yield self.life.projections.of_derived(view, rows.versions, rows.rows, origin), rows.is_last
            except SourceError as error:  # its table is another one by now
                self.life.halt(view, f"its rows cannot be read back: {error}")

    @abstractmethod
    def _write_apart(self, part: Projected) -> None:
        """Make rows durable by themselves, without a position."""

    def _write(self, projected: Projected, upto: Position | None) -> None:
        refused = self.sink.write(projected.writes, upto, self._next.look)
        failpoints.reach("after write")
        self._parking.park(projected.writes, projected.parked, refused)
        self.dead_letters.clear_applied(projected.writes, [*projected.parked, *refused])
        self.vitals.write_count += sum(writes.count for writes in projected.writes)
        for observer in self.observers:
            observer.on_written(projected.writes)

    def _written(self, batch: Batch) -> bool:
        """Behind a batch's rows and before its offset: apply statements that took rows away. False: not all of them."""
        for observer in self.observers:
            observer.on_passed(batch)
        if not batch.table_changes:
            return True
        self.offsets.save_rows()
        is_done = self._table_changes.apply(batch.table_changes)
        if is_done and batch.end is not None:
            self.sink.write([], batch.end)
        return is_done

    def _save(self, end: Position) -> None:
        self.offsets.save(end)
        self.vitals.position = end

    def _saved(self, batch: Batch) -> None:
        """What comes behind the offset."""
        failpoints.reach("after offset")
        if batch.watermarks:
            self.offsets.confirm()  # what a backfill relies on is saved, not about to be
        self.watermarks.waiter.on_passed(batch.watermarks)
        self.vitals.batch_count += 1


@dataclass(slots=True, kw_only=True, eq=False)
class GuardedPipeline(Pipeline):
    """Its store takes a write only if it is newer: what is read twice is written twice, and changes nothing."""

    def _begin_again(self, begin: Position) -> None:
        """The guard leaves out what was written before."""
        self.fan_outs.begin(begin)

    def _apply(self, batch: Batch) -> None:
        self.vitals.oldest_waiting_us = batch.oldest_commit_us
        self._make_ready(batch)
        projected = self._next.projected(batch)
        with self.life.gate.turns(projected.touched):
            self._add_derived(batch, projected)
            failpoints.reach("before write")
            self._write(projected, None if batch.table_changes else batch.end)
            if not self._written(batch):
                return
            if batch.end is None:
                self.offsets.save_rows()  # a piece of a transaction: the offset stays before it
            else:
                self._save(batch.end)
        self.fan_outs.passed(batch)
        self._saved(batch)
        self.vitals.row_count += batch.row_count
        self.vitals.oldest_waiting_us = 0

    def _add_derived(self, batch: Batch, projected: Projected) -> None:
        """All slices of a view but the last are written at once."""
        for part, is_last in self._derived(batch, projected):
            if is_last:
                projected.add(part)
            else:
                self._write_apart(part)

    def _write(self, projected: Projected, upto: Position | None) -> None:
        self.life.gate.check_turns()
        Pipeline._write(self, projected, upto)

    def _write_apart(self, part: Projected) -> None:
        """No transaction of the store waits for the source."""
        self._write(part, None)
        self.offsets.save_rows()
