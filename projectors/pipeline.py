"""The loop that keeps the views of one store up to date.

    offset = offsets.take(pipeline)                  # raises the fence
    for batch in source.read(after=offset):          # whole committed transactions, in order, bounded in bytes
        writes = projections.of(batch)               # per view: key, version, row or tombstone; coalesced
        sink.write(writes)                           # newer wins; returns when durable
        offsets.save(pipeline, batch.end)            # in the sink's own transaction where both are MySQL

`_keep_up` is that loop. Around it: a store that fails is waited for, and reading starts again from what is durable
(recovery.py); a key that cannot be applied is parked and a table that cannot be read halts its views, while everything
else goes on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from ingest import Source
from ingest.limits import Limits
from ingest.read_ahead import TICK_S, ReadAhead
from offsets import OffsetStore
from projectors import failpoints, recovery
from projectors.dead_letters import DeadLetters, Parking
from projectors.projection import Projected
from projectors.proving.cascades import Cascades
from projectors.proving.recent import RecentKeys
from projectors.read_back import ReadBack, committed
from projectors.stores import Publisher, Sink, WitnessedSink, publisher, witnessed
from projectors.stream_fill import Windows
from projectors.table_changes import TableChanges
from projectors.view_life import ViewLife
from projectors.watermarks import Watermarks
from viewtail.changes.batches import Batch
from viewtail.changes.errors import AnotherServerError, SourceError, StoreUnavailableError, ViewtailError
from viewtail.changes.positions import Position
from viewtail.changes.retrying import reaction_to
from viewtail.servers.sessions import Connection

_log = structlog.get_logger("viewtail.pipeline")

IDLE_SAVE_S = 10.0  # how often an offset is saved that moved past nothing but other tables' changes


@dataclass(slots=True, kw_only=True)
class Vitals:
    """What a pipeline reports about itself; its loop writes it."""

    state: str = "starting"
    error: str | None = None
    position: Position | None = None
    row_count: int = 0  # changed rows read
    write_count: int = 0  # writes applied, after coalescing
    batch_count: int = 0
    store_retry_count: int = 0
    oldest_waiting_us: int = 0  # commit time of the oldest change that is being written; 0: none is
    last_commit_us: int = 0  # of the first change of the last batch


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A batch that was projected before its turn."""

    batch: Batch
    projected: Projected
    halted_count: int  # of views: what was projected for one that is halted since must not be written


@dataclass(slots=True, kw_only=True, eq=False)
class Pipeline:
    """One store's views, kept up to date until `stop` is set."""

    source: Source
    sink: Sink
    offsets: OffsetStore
    life: ViewLife
    dead_letters: DeadLetters
    watermarks: Watermarks
    open_source: Callable[[], Connection]  # the server whose changes are read, and no other
    raise_epoch_above: Callable[[int], int]  # returns the epoch that the source is in then
    stop: threading.Event
    check_lease: Callable[[], None]  # raises FencedError when another owner may have taken over
    limits: Limits = field(default_factory=Limits)
    tick_s: float = TICK_S
    vitals: Vitals = field(default_factory=Vitals)
    _parking: Parking = field(init=False)
    _table_changes: TableChanges = field(init=False)
    _idle_saved_at: float = field(default_factory=time.monotonic)
    _unsaved: Position | None = None
    _ahead: _Ahead | None = None
    recent: RecentKeys | None = None  # what a cleaner looks at first
    cascades: Cascades | None = None  # what a cleaner looks for, where the source does not log them
    windows: Windows | None = None  # of fillings in the order of the stream
    read_back: ReadBack | None = None  # rows that are made of more than what changed
    _witnessed: WitnessedSink | None = None
    _publisher: Publisher | None = None
    _open_rows: int = 0  # in the publisher's transaction, without those of the batch at hand
    _most_open_rows: int = 0
    _following: Callable[[], Batch | None] = lambda: None  # the batch that comes next, where it is known already

    def __post_init__(self) -> None:
        self._witnessed, self._publisher = witnessed(self.sink), publisher(self.sink)
        if self._publisher is not None:
            self._publisher.gets_changes = self.life.gets_changes
            self.windows = Windows(self._publisher, self.life.projections.is_halted)
            self._most_open_rows = self.limits.batch_rows
            self.limits = self.limits.with_at_most(self._publisher.most_rows)
        self._parking = Parking(self.dead_letters, self.life.halt)
        self._table_changes = TableChanges(
            self.life, self.sink, self.offsets, self.dead_letters, self.open_source, self.check_lease, self.stop
        )

    @property
    def trouble(self) -> str | None:
        """Why it waits for rows that it reads again."""
        return None if self.read_back is None else self.read_back.trouble

    def run(self, offset: Position) -> None:
        """From `offset` until stopped; a store that is away is waited for.

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
                if self.windows is not None:
                    self.windows.begin_again()
                    self.watermarks.begin_again()
                self._keep_up(begin)
                return
            except StoreUnavailableError as error:
                attempt = 0 if self.vitals.batch_count > batches_before else attempt + 1
                self._wait_for_store(error, attempt)
            except (SourceError, AnotherServerError):
                with contextlib.suppress(ViewtailError):
                    self.offsets.settle()  # another server is judged by all that was applied
                raise

    def _keep_up(self, offset: Position) -> None:
        self._ahead, self._open_rows = None, 0
        has_read = False
        with ReadAhead(self.source, offset, self.limits, self.tick_s) as batches:
            self._following = batches.following
            self.sink.meanwhile = self._look_ahead
            self.vitals.state = "running"
            self.vitals.error = None
            for batch in batches:
                self.check_lease()
                has_read = has_read or batch is not None
                self.vitals.last_commit_us = batch.oldest_commit_us if batch else self.vitals.last_commit_us
                if batch is not None and batch.is_telling:
                    self._apply(batch)
                elif batch is not None:
                    self._pass(batch)
                else:
                    self._when_idle(has_read)
                self._save_when_idle()
                if self.stop.is_set() and not self._open_rows:  # the batch that ends the transaction is there already
                    return

    def _when_idle(self, has_read: bool) -> None:
        """The source has nothing more for now. `has_read`: it had something since reading began."""
        if has_read:  # before that, what the store refused comes again
            self.vitals.oldest_waiting_us = 0
        if self._witnessed is not None:
            self._witnessed.settle()
        self.offsets.settle()

    # The way of a batch, in the order in which it goes.
    def _apply(self, batch: Batch) -> None:  # noqa: C901
        failpoints.reach("after read")
        # Saved with what comes now, or not at all: a publisher may keep its transaction open behind this batch.
        self._unsaved = None
        if not self._open_rows:  # else what its transaction began with is older
            self.vitals.oldest_waiting_us = batch.oldest_commit_us
        self.life.cannot_read(batch.halts)
        if batch.table_changes:
            self._table_changes.prepare(batch.table_changes)
        self._leave_out_published(batch)
        projected = self._projected(batch)
        if self.read_back is not None:
            self._read_back(self.read_back, batch, projected)
        if self.windows is not None:
            self.windows.take_part(batch, projected)
        failpoints.reach("before write")
        # A publisher's batch is read once: its dead letters are recorded before it is committed.
        is_held_open = bool(batch.table_changes) or self._publisher is not None
        self._write(projected, None if is_held_open else batch.end)
        if self.cascades is not None:
            self.cascades.saw(batch.changes)
        if self._publisher is not None:
            self._publisher.saw(batch.watermarks)
        if batch.table_changes and not self._change_tables(batch):
            return
        stays_open = batch.end is not None and self._stays_open(batch)
        if batch.end is None or stays_open:
            self.offsets.save_rows()  # a piece of a transaction: the offset stays before it
        else:
            self._end_transaction(batch, batch.end)
            self.offsets.save(batch.end)
            self.vitals.position = batch.end
        failpoints.reach("after offset")
        if batch.watermarks:
            self.offsets.confirm()  # what a backfill relies on is saved, not about to be
        self.watermarks.saw(batch.watermarks)
        self.vitals.row_count += 0 if stays_open else batch.row_count
        self.vitals.batch_count += 1
        if not stays_open:
            self.vitals.oldest_waiting_us = 0

    def _end_transaction(self, batch: Batch, end: Position) -> None:
        """A publisher's; statements on tables ended it where there are any."""
        if self._publisher is None or self.windows is None:
            return
        if not batch.table_changes:
            self.sink.write([], end)
        self.vitals.row_count += self._open_rows
        self._open_rows = 0
        self.windows.written()
        self._publisher.tell()

    def _write(self, projected: Projected, upto: Position | None) -> None:
        refused = self.sink.write(projected.writes, upto)
        failpoints.reach("after write")
        self._parking.park(projected.writes, projected.parked, refused)
        self.dead_letters.clear_applied(projected.writes, [*projected.parked, *refused])
        if self.recent is not None:
            self.recent.saw(projected.writes)
        self.vitals.write_count += sum(found.count for found in projected.writes)

    def _stays_open(self, batch: Batch) -> bool:
        """Whether the batch that comes next goes into a publisher's transaction too: a commit costs what 2,000 rows do.

        Only one that is sure to be applied: nothing else would end the transaction.
        """
        if self._publisher is None or batch.watermarks or batch.table_changes or self.stop.is_set():
            return False
        following = self._following()
        if following is None or following.end is None or not following.changes or following.table_changes:
            return False
        if self._open_rows + batch.row_count + following.row_count > self._most_open_rows:
            return False
        self._open_rows += batch.row_count
        return True

    def _leave_out_published(self, batch: Batch) -> None:
        """A position stays before a transaction that is prepared (XA), so changes behind it may come again."""
        if self._publisher is None:
            return
        newest = self._publisher.newest
        if batch.changes and batch.changes[0].version <= newest:
            batch.changes = [change for change in batch.changes if change.version > newest]
        if batch.refused:
            batch.refused = [row for row in batch.refused if row.version > newest]
        last = [change.version for change in batch.changes[-1:]] + [row.version for row in batch.refused[-1:]]
        self._publisher.newest = max([newest, *last])

    def _look_ahead(self) -> None:
        """Project the next batch while the store is busy with this one."""
        following = None if self._ahead is not None else self._following()
        if following is None or following.halts or following.table_changes:
            return
        with contextlib.suppress(Exception):  # it is raised when the batch's turn comes
            self._ahead = _Ahead(following, self.life.projections.of(following), self.life.projections.halted_count)
            if self._publisher is not None:
                self._publisher.look_at(self._ahead.projected.writes)

    def _projected(self, batch: Batch) -> Projected:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.batch is batch and ahead.halted_count == self.life.projections.halted_count:
            return ahead.projected
        return self.life.projections.of(batch)

    def _read_back(self, read_back: ReadBack, batch: Batch, projected: Projected) -> None:
        """Of a piece of a transaction too: its commit has been read. All slices but the last of a view are written."""
        for view, versions in projected.to_read.items():
            cells = self.life.views[view].cells
            assert cells is not None
            try:
                for one in read_back.slices(cells, list(versions), committed(batch)):
                    found = self.life.projections.of_read(view, {key: versions[key] for key in one.keys}, one.rows)
                    if one.is_last:
                        projected.writes += found.writes
                        projected.parked += found.parked
                    else:
                        self._write(found, None)
                        self.offsets.save_rows()  # no transaction of the store waits for the source
            except SourceError as error:  # its table is another one by now
                self.life.halt(view, f"its rows cannot be read back: {error}")

    def _change_tables(self, batch: Batch) -> bool:
        """Apply statements that took rows away, behind the batch's rows and before its offset; False: not all."""
        self.offsets.save_rows()
        is_done = self._table_changes.apply(batch.table_changes)
        if is_done and batch.end is not None:
            self.sink.write([], batch.end)
        return is_done

    def _pass(self, batch: Batch) -> None:
        """Nothing for our views: the offset moves on a timer, and not for viewtail's own writes alone."""
        is_worth_it = not batch.is_quiet or batch.is_milestone or self._unsaved is not None
        if batch.end is not None and is_worth_it:
            self._unsaved = batch.end

    def _save_when_idle(self) -> None:
        now = time.monotonic()
        if self._unsaved is not None and now - self._idle_saved_at > IDLE_SAVE_S:
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
