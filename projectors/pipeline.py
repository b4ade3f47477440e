"""The loop that keeps the views of one store up to date.

    offset = offsets.take(pipeline)                  # raises the fence
    for batch in source.read(after=offset):          # whole committed transactions, in order, bounded in bytes
        writes = projections.of(batch)               # per view: key, version, row or tombstone; coalesced
        sink.write(writes)                           # newer wins; returns when durable
        offsets.save(pipeline, batch.end)            # in the sink's own transaction where both are MySQL

`_keep_up` is that loop. Around it: a store that fails is waited for and reading starts again from what is durable; a
store that lost what it had acknowledged (its witness is behind the offset) is read for again from there; a key that
cannot be applied is parked and a table that cannot be read halts its views, while everything else goes on.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from changes.batches import Batch, Halt
from changes.errors import HistoryGoneError, SourceError, StoreUnavailableError, ViewtailError
from changes.positions import Position
from changes.writes import Parked, ViewWrites
from ingest import Source
from ingest.read_ahead import Limits, ReadAhead
from offsets import OffsetStore
from projectors import failpoints
from projectors.dead_letters import DeadLetters
from projectors.projection import Projected, Projections
from projectors.registry import Registry
from projectors.stores import Sink
from projectors.table_changes import TableChanges
from projectors.watermarks import Watermarks

_log = structlog.get_logger("viewtail.pipeline")

IDLE_SAVE_S = 10.0  # how often an offset is saved that moved past nothing but other tables' changes
PARKED_IN_A_ROW = 100  # so many refusals of a view without one success halt it
_LONGEST_PAUSE_S = 5.0


class ReadAgain(Exception):
    """The source stopped reading a table that other views can follow without these. Nothing of the batch was written.

    Args:
        held_back: not filled yet; they are to wait until the changes of before their time are read.
        left_out: halted; their table may fit them as it is now, and yet only a replay fills them again.
    """

    def __init__(self, held_back: frozenset[str], left_out: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(held_back | left_out)))
        self.held_back = held_back
        self.left_out = left_out


@dataclass(slots=True, kw_only=True)
class Vitals:
    """What a pipeline tells of itself; written by its loop, read by reports."""

    state: str = "starting"
    error: str | None = None
    position: Position | None = None
    row_count: int = 0  # changed rows read
    write_count: int = 0  # writes applied, after coalescing
    batch_count: int = 0
    store_retry_count: int = 0
    parked_count: int = 0
    oldest_waiting_us: int = 0  # commit time of the oldest change that is being written; 0: none is
    last_commit_us: int = 0  # of the first change of the last batch
    started_at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A batch that was projected before its turn."""

    batch: Batch
    projected: Projected
    halted_count: int  # of views: what was projected for one that is halted since must not be written


@dataclass(slots=True, kw_only=True, eq=False)
class Pipeline:
    """One store's views, kept up to date until `stop` is set."""

    name: str
    source: Source
    projections: Projections
    sink: Sink
    offsets: OffsetStore
    registry: Registry
    dead_letters: DeadLetters
    watermarks: Watermarks
    table_changes: TableChanges
    stop: threading.Event
    check_lease: Callable[[], None]  # raises FencedError when another owner may have taken over
    is_before_its_fill: Callable[
        [str], bool
    ]  # of a view: nothing of it is filled, and its table fits it, so that it can be taken up anew
    follow_from: Callable[
        [Halt], None
    ]  # no view of its table was filled by then: nothing up to there concerns them
    on_store_lost: Callable[[frozenset[str]], None]  # the store holds nothing of these views: fill them again
    on_store_behind: Callable[
        [int], None
    ]  # it has kept no more than this version: fills that ended later are lost
    begin_epoch_above: Callable[
        [int], None
    ]  # of another server's, which this one continues: ends the pipeline
    epoch: int = 0  # of the source's history; 0: the offset's
    server: str = ""  # identity of the source; '' when not known
    limits: Limits = field(default_factory=Limits)
    vitals: Vitals = field(default_factory=Vitals)
    _parked_in_a_row: dict[str, int] = field(default_factory=dict)
    _idle_saved_at: float = field(default_factory=time.monotonic)
    _unsaved: Position | None = None
    _ahead: _Ahead | None = None

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
                missing = self.sink.missing()
                if missing:
                    self.on_store_lost(missing)
                self.sink.prepare()
                self._keep_up(self._durable())
                return
            except StoreUnavailableError as error:
                attempt = 0 if self.vitals.batch_count > batches_before else attempt + 1
                self._wait_for_store(error, attempt)
            except SourceError:
                with contextlib.suppress(ViewtailError):
                    self.offsets.settle()  # another server is judged by all that was applied
                raise

    def _keep_up(self, offset: Position) -> None:
        self._ahead = None
        with ReadAhead(self.source, offset, self.limits) as batches:
            self.sink.meanwhile = lambda: self._look_ahead(batches)
            self.vitals.state = "running"
            self.vitals.error = None
            for batch in batches:
                self.check_lease()
                self.vitals.last_commit_us = batch.oldest_commit_us if batch else self.vitals.last_commit_us
                if batch is not None and _is_telling(batch):
                    self._apply(batch)
                elif batch is not None:
                    self._pass(batch)
                else:
                    self.vitals.oldest_waiting_us = 0
                    self.sink.settle()
                    self.offsets.settle()
                self._save_when_idle()
                if self.stop.is_set():
                    return

    def _apply(self, batch: Batch) -> None:
        failpoints.reach("after read")
        self.vitals.oldest_waiting_us = batch.oldest_commit_us
        self._halt_unreadable(batch)
        if batch.table_changes:
            self.table_changes.prepare(batch.table_changes, self.halt)
        projected = self._projected(batch)
        failpoints.reach("before write")
        refused = self.sink.write(projected.writes, None if batch.table_changes else batch.end)
        failpoints.reach("after write")
        self._park(projected.writes, projected.parked, refused)
        if batch.table_changes and not self._change_tables(batch):
            return
        if batch.end is None:
            self.offsets.save_rows()  # a piece of a large transaction: the offset stays before it
        else:
            self.offsets.save(batch.end)
            self.vitals.position, self._unsaved = batch.end, None
        failpoints.reach("after offset")
        if batch.watermarks:
            self.offsets.settle()  # what a fill relies on is saved, not about to be
        self.watermarks.saw(batch.watermarks)
        self.vitals.row_count += batch.row_count
        self.vitals.write_count += sum(len(found.writes) for found in projected.writes)
        self.vitals.batch_count += 1
        self.vitals.oldest_waiting_us = 0

    def _look_ahead(self, batches: ReadAhead) -> None:
        """Project the next batch while the store is busy with this one."""
        following = None if self._ahead is not None else batches.following()
        if following is None or following.halts or following.table_changes:
            return
        with contextlib.suppress(Exception):  # it is raised when the batch's turn comes
            self._ahead = _Ahead(following, self.projections.of(following), len(self.projections.halted))

    def _projected(self, batch: Batch) -> Projected:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.batch is batch and ahead.halted_count == len(self.projections.halted):
            return ahead.projected
        return self.projections.of(batch)

    def _change_tables(self, batch: Batch) -> bool:
        """Apply statements that took rows away, behind the batch's rows and before its offset; False: not all."""
        self.offsets.save_rows()
        is_done = self.table_changes.apply(batch.table_changes, self.halt)
        if is_done and batch.end is not None:
            self.sink.write([], batch.end)
        return is_done

    def _pass(self, batch: Batch) -> None:
        """Nothing for our views: the offset moves on a timer, and not for viewtail's own writes alone.

        In a new file it moves in any case, or the server would one day purge the file that it stands in.
        """
        position = self.vitals.position
        is_new_file = batch.end is not None and position is not None and batch.end.file != position.file
        if batch.end is not None and (not batch.is_quiet or is_new_file or self._unsaved is not None):
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

    def _halt_unreadable(self, batch: Batch) -> None:
        """Halt the views that need what cannot be read; raise ReadAgain for the others of their tables."""
        left_out: set[str] = set()
        others: set[str] = set()
        for halt in batch.halts:
            concerned = self._concerned(halt)
            running = {one.id for one in self.projections.views_of(halt.followed)} - self.projections.halted
            early = frozenset(name for name in running & concerned if self.is_before_its_fill(name))
            if early and early < running:
                raise ReadAgain(early, frozenset(left_out))
            left_out |= concerned
            others |= running - concerned
            if early:
                self.follow_from(halt)
            for view in sorted(running & concerned):
                if view in early:
                    # What became of the table before is in what the fill will read.
                    _log.info("view not filled yet: taken up anew behind this", view=view, reason=halt.reason)
                    self.projections.halt(view)
                    continue
                self.halt(view, halt.reason.replace("viewtail replay VIEW", f"viewtail replay {view}"))
        if others:
            raise ReadAgain(frozenset(), frozenset(left_out))

    def _concerned(self, halt: Halt) -> frozenset[str]:
        """The views that need one of the columns; all where none does, so that reading again leaves one out."""
        views = self.projections.views_of(halt.followed)
        found = frozenset(one.id for one in views if halt.concerns(one.needed))
        return found or frozenset(one.id for one in views)

    def halt(self, view: str, reason: str) -> None:
        """From now on the view gets nothing, until it is filled again. The first reason stays."""
        if self.projections.is_halted(view):
            return
        _log.error("view halted", view=view, reason=reason)
        self.registry.halt(view, reason)
        self.projections.halt(view)

    def _park(self, writes: list[ViewWrites], unprojected: list[Parked], refused: list[Parked]) -> None:
        """Dead letters for what was refused, none any more for what was applied; a view that only refuses halts.

        `unprojected` never became writes; `refused` are writes that the store would not take.
        """
        parked = unprojected + refused
        if parked:
            self.dead_letters.record(parked)
            for letter in parked[:10]:
                _log.warning(
                    "key parked", view=letter.view, version=str(letter.version), reason=letter.reason
                )
        self.dead_letters.clear_applied(writes, parked)
        self.vitals.parked_count = self.dead_letters.count
        if not parked and not self._parked_in_a_row:
            return
        refused_writes = Counter(letter.view for letter in refused)
        for found in writes:
            if len(found.writes) > refused_writes[found.view]:
                self._parked_in_a_row.pop(found.view, None)
        for view, count in Counter(letter.view for letter in parked).items():
            self._parked_in_a_row[view] = self._parked_in_a_row.get(view, 0) + count
            if self._parked_in_a_row[view] >= PARKED_IN_A_ROW:
                reasons = [letter.reason for letter in parked if letter.view == view]
                self.halt(
                    view,
                    f"{self._parked_in_a_row.pop(view)} keys in a row could not be applied, the last because: "
                    f"{reasons[-1]}. Mend that, then fill the view again: viewtail replay {view}",
                )

    def _durable(self) -> Position:
        """Where to read from: the offset, or further back when the store shows that it lost acknowledged writes."""
        offset = self.vitals.position
        assert offset is not None
        kept = self.sink.witness(offset)
        if kept is None:
            self.sink.write([], offset)
            return offset
        if kept.is_of_another_server(self.server) and kept.epoch >= self.epoch:
            self._check_contained(kept)
            self.begin_epoch_above(kept.epoch)
        if kept.epoch > max(offset.epoch, self.epoch):
            raise HistoryGoneError(
                f"{self.name} holds writes of epoch {kept.epoch}, its offset is of {offset.epoch}: viewtail's own "
                "tables were lost, or are of another deployment, and the store would refuse every change as older. "
                "Point viewtail at the database it had, or fill every view again with: viewtail replay --new-history"
            )
        if kept.is_comparable_with(offset):
            self.on_store_behind(kept.version)
        elif kept.epoch == offset.epoch:
            self._check_contained(kept)
            return kept  # by its set: what that has is in the store, whatever was read of this server before
        if (
            kept.epoch < offset.epoch and offset.gtid
        ):  # else the offset is a beginning, and every view is filled
            _log.warning("store is behind the offset: reading again", store_has=str(kept), offset=str(offset))
            return self._if_readable(kept, offset)
        if kept.version > offset.version and offset.epoch < self.epoch:
            self.source.check(kept)  # what the store holds beyond the offset must be in the new history too
        if kept.epoch == offset.epoch and kept.version < offset.version:
            _log.warning("store is behind the offset: reading again", store_has=str(kept), offset=str(offset))
            return self._if_readable(kept, offset)
        return offset

    def _check_contained(self, kept: Position) -> None:
        try:
            self.source.check(kept)
        except HistoryGoneError as error:
            raise HistoryGoneError(
                f"{self.name} holds what was read from server {kept.server}. {error}"
            ) from None

    def _if_readable(self, kept: Position, offset: Position) -> Position:
        """`kept` where the source still has the changes after it; else the views are filled again."""
        try:
            self.source.check(kept)
        except HistoryGoneError as error:
            _log.error(
                "the source no longer has what the store lost: filling its views again", reason=str(error)
            )
            self.on_store_lost(self.projections.views)
            return offset
        return kept

    def _wait_for_store(self, error: StoreUnavailableError, attempt: int) -> None:
        self.vitals.state, self.vitals.error = "retrying", str(error)
        self.vitals.store_retry_count += 1
        _log.warning("store unavailable", error=str(error), attempt=attempt)
        pause_s = min(_LONGEST_PAUSE_S, 0.1 * 2 ** min(attempt, 10)) * random.uniform(0.5, 1.0)
        self.stop.wait(pause_s)


def _is_telling(batch: Batch) -> bool:
    """Whether anything in a batch concerns a view or a fill."""
    return bool(batch.changes or batch.refused or batch.halts or batch.table_changes or batch.watermarks)
