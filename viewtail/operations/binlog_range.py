"""`viewtail replay VIEW --since TIME --into TOPIC`: what the binlog says changed since a time, in a topic of its own.

The stretch ends at a watermark that is written as it begins. Each batch is published in one step with how far that is
and which stretch it is, under a name of its own: so the same command goes on behind what is published, each change is
there once, and the pipelines go on beside it. What cannot be given as a change each ends the stretch before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from threading import Event

import orjson

from ingest import History, Source, TimedSource
from ingest.read_ahead import ReadAhead
from offsets.runs import RunState
from projectors.catalog import Catalog
from projectors.every_change import projections_for, with_forms
from projectors.projection import Projections, followed_tables
from projectors.stores import Publisher
from projectors.stores.registry import store_of
from projectors.views import BoundView
from projectors.watermark_rows import WatermarkWriter
from viewtail.changes.batches import Batch, Refused, RowChanges
from viewtail.changes.counting import counted
from viewtail.changes.errors import HistoryGoneError, MisuseError, SourceError, StoreError, ViewtailError
from viewtail.changes.positions import Position
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Parked
from viewtail.operations.runs import Run

SAVE_EVERY_S = 5.0  # while other tables' changes are passed
MOST_TOLD = 20  # of what could not be published


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRange:
    """A stretch, and how far it is published; kept with what is published."""

    view: str  # id of the live one
    fingerprint: str  # of what is published
    since_us: int
    place: str  # which topic of its name
    token: str  # of the watermark at which it ends
    count: int = 0  # of changes that were published
    refused_count: int = 0
    reached: int = 0  # version of the newest change
    reached_us: int = 0  # when it was committed
    end: str = ""  # where it ended, for people; '' while it is not over
    cut_short: str = ""  # why it ends before its watermark

    def is_same(self, other: PublishedRange) -> bool:
        """Return whether both are of one view and time."""
        return (self.view, self.fingerprint, self.since_us) == (other.view, other.fingerprint, other.since_us)


@dataclass(slots=True, kw_only=True, eq=False)
class Replay:
    """One run of it.

    Args:
        view: bound, under the name of the topic that it is to be in.
        live: id of the view that it is a replay of.
        history: of the source, for readers that nobody else uses.
        say: called with how far it is, now and then.
    """

    catalog: Catalog
    view: BoundView
    live: str
    history: History
    since_us: int
    say: Callable[[PublishedRange, Position], None]
    refused: list[Parked] = field(default_factory=list)  # the first of this run
    stop: Event = field(default_factory=Event)
    _looking: Source | None = None  # for where it begins
    _sink: Publisher = field(init=False)
    _stretch: PublishedRange = field(init=False)
    _at: Position = field(init=False)
    _saved_at: float = field(default_factory=time.monotonic)
    _is_open: bool = False  # changes are published, and not committed

    def run(self) -> PublishedRange:
        """Publish what is not published yet; its `end` is '' where it was stopped. Another run goes on with it.

        Raises HistoryGoneError, before anything is made, where the source no longer has all of it; MisuseError where
        the topic is not for it; SourceError where some of it cannot be read.
        """
        store, followed = store_of(self.view.view), with_forms(followed_tables([self.view]), [self.view], {})
        source = self.history.reader(followed, {})
        self._sink = sink = store.sink_beside(self.catalog.access(store), self.view)
        with closing(sink):
            begin: list[tuple[Position, str]] = []
            for why in sink.prepare(lambda _: begin.append(self._begin(source))).values():
                raise StoreError(why)
            if not self._goes_on(source):
                self._at, token = begin[0] if begin else self._begin(source)
                self._stretch = self._new(token)
            try:
                if not self._stretch.end and not self.stop.is_set():
                    source.check(self._at)
                    self._publish_all(source, projections_for(store, [self.view], followed))
            except HistoryGoneError as error:  # what it says to do is for views
                why = str(error).partition(". ")[0]
                raise HistoryGoneError(f"the stretch is published up to {self._at}, and cannot go on: {why}") from None
        return self._stretch

    def interrupt(self) -> None:
        """Have `run` return soon; called in another thread."""
        self.stop.set()
        if self._looking is not None:
            self._looking.interrupt()

    # -- where it begins -----------------------------------------------------------------------------------------

    def _new(self, token: str) -> PublishedRange:
        return PublishedRange(
            view=self.live,
            fingerprint=self.view.fingerprint,
            since_us=self.since_us,
            place=self._sink.incarnations()[self.view.id],
            token=token,
        )

    def _goes_on(self, source: Source) -> bool:
        """Return whether the topic holds some of this stretch. Raises MisuseError where it holds anything else."""
        topic, new = f"the topic {self.view.view.name}", self._new("")
        text, kept = self._sink.fills.get(self.view.id), self._sink.witness(source.now())
        before = None if text is None else PublishedRange(**orjson.loads(text))
        if before is None or before.place != new.place or kept is None:
            if not self._sink.is_empty(self.view.id):
                raise MisuseError(f"{topic} holds something already: name a new topic, or delete this one")
            return False
        if not before.is_same(new) or kept.epoch != self.history.epoch:
            raise MisuseError(f"{topic} holds another replay already: name a new topic, or delete this one")
        self._at, self._stretch = kept, before
        return True

    def _begin(self, source: Source) -> tuple[Position, str]:
        """A place close before the stretch, and the watermark at which it ends."""
        assert isinstance(source, TimedSource)
        at = before = source.since(self.since_us)
        with closing(WatermarkWriter(self.catalog.marks, f"{self.catalog.database}:replay")) as writer:
            token = writer.mark_end()
        # Of a reader that follows no table nothing can be unreadable before the stretch.
        self._looking = looking = self.history.reader({}, {})
        is_found = False
        for batch in looking.read(at):
            is_in_time = batch.oldest_commit_us >= self.since_us
            is_found = is_found or is_in_time or self.stop.is_set() or _version_of(token, batch) is not None
            if is_found:
                looking.interrupt()
            else:
                before, at = at, batch.end or at
        return before, token

    # -- publishing ----------------------------------------------------------------------------------------------

    def _publish_all(self, source: Source, projections: Projections) -> None:
        limits = self.catalog.servers.limits.with_at_most(self._sink.most_rows)
        with ReadAhead(source, self._at, limits) as batches:
            for batch in batches:
                if batch is not None:
                    self._publish(projections, batch)
                self.say(self._stretch, self._at)
                if self._stretch.end or self.stop.is_set():
                    return

    def _publish(self, projections: Projections, batch: Batch) -> None:
        try:
            upto, cut_short = self._end_in(batch)
        except SourceError:
            if not self._is_open:  # the error says how far it is, and so must the next run's
                with suppress(ViewtailError):
                    self._save()
            raise
        within = self._within(batch, upto)
        projected = projections.of(within)
        too_large = []
        if projected.writes:
            too_large = self._sink.write(projected.writes, None)
            self._is_open = True
        count = sum(writes.count for writes in projected.writes) - len(too_large)
        self._note(within, count, [*projected.parked, *too_large])
        if batch.end is None:  # a piece of a large transaction
            return
        self._at = batch.end
        is_over = upto <= MAX_VERSION
        if is_over:
            self._stretch = replace(self._stretch, end=str(batch.end), cut_short=cut_short)
        if self._is_open or is_over or time.monotonic() - self._saved_at > SAVE_EVERY_S:
            self._save()

    def _save(self) -> None:
        """Save how far it is, with what was published since the last time."""
        self._sink.fills = {self.view.id: orjson.dumps(self._stretch).decode()}
        self._sink.write([], self._at)
        self._is_open, self._saved_at = False, time.monotonic()

    def _end_in(self, batch: Batch) -> tuple[int, str]:
        """The version at which the stretch ends in this batch, above all versions where it does not; and why so early.

        Raises SourceError where rows of it cannot be read.
        """
        mark = _version_of(self._stretch.token, batch)
        upto, why = (MAX_VERSION + 1 if mark is None else mark), ""
        passed = self._passed(batch)
        for change in batch.table_changes:
            if not change.kind.keeps_rows and passed < change.version < upto:
                upto, why = change.version, f"{change.reason}, without a change for each row"
        for halt in batch.halts:
            if halt.version < upto:
                raise SourceError(
                    f"the stretch is published up to {self._at}, and not all behind that can be read with the table as "
                    f"it is now: {halt.reason.partition('. ')[0]}. Ask for a time behind that, with another topic"
                )
        return upto, why

    def _within(self, batch: Batch, upto: int) -> Batch:
        """Return what of a batch is in the stretch, and not published yet."""
        passed = self._passed(batch)
        return replace(
            batch,
            changes=[change for change in batch.changes if passed < change.version < upto],
            refused=[refused for refused in batch.refused if passed < refused.version < upto],
        )

    def _passed(self, batch: Batch) -> int:
        """The version up to which nothing of a batch is to be published. All behind the first change in time is.

        While an XA transaction is prepared the position stays before it, and what comes behind is read again.
        """
        passed = self._stretch.reached
        if not passed:
            for event in _events(batch):
                if batch.origin_of(event).committed_us >= self.since_us:
                    break
                passed = event.version
        return passed

    def _note(self, within: Batch, count: int, letters: Sequence[Parked]) -> None:
        events, stretch = _events(within), self._stretch
        if not events:
            return
        last = events[-1]
        self.refused += letters[: MOST_TOLD - len(self.refused)]
        self._stretch = replace(
            stretch,
            count=stretch.count + count,
            refused_count=stretch.refused_count + len(letters),
            reached=last.version,
            reached_us=within.origin_of(last).committed_us,
        )


def recorded(replay: Replay, run: Run) -> PublishedRange:
    """`replay.run`, in the record of what operators had done. One that was stopped goes on in its row."""
    saved_at, say = time.monotonic(), replay.say

    def note(stretch: PublishedRange) -> None:
        run.progress |= {"entities": stretch.count, "parked": stretch.refused_count, "reached": stretch.reached}

    def save(stretch: PublishedRange, at: Position) -> None:
        nonlocal saved_at
        if time.monotonic() - saved_at > SAVE_EVERY_S:
            note(stretch)
            run.save()
            saved_at = time.monotonic()
        say(stretch, at)

    replay.say = save
    run.begin()
    try:
        stretch = replay.run()
    except ViewtailError as error:
        run.fail(error)
        raise
    note(stretch)
    words = f"{counted(stretch.count, 'changes')} published, {stretch.refused_count:,} refused"
    if not stretch.end:
        run.end(RunState.STOPPED, words)
    else:
        run.end(
            RunState.DONE,
            f"{words}, up to {stretch.end}" + (f", where {stretch.cut_short}" if stretch.cut_short else ""),
        )
    return stretch


def _events(batch: Batch) -> list[RowChanges | Refused]:
    """Yield the events of a batch, in order."""
    if not batch.refused:
        return list(batch.changes)
    return sorted([*batch.changes, *batch.refused], key=lambda event: event.version)


def _version_of(token: str, batch: Batch) -> int | None:
    return next((mark.version for mark in batch.watermarks if mark.token == token), None)
