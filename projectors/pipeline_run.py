"""What lasts as long as a process owns a pipeline: its fence, source, loop, the life of its views."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog

from ingest import History, ReadableBack, Source
from ingest.canonical import describe
from offsets import OffsetStore, Owner, owners, pauses
from offsets.copies import Copy
from offsets.fan_outs import FanOutRecords
from offsets.lease import Lease
from offsets.mysql import OwnSession, Session
from offsets.views import GETS_NOTHING, State, ViewRecord, ViewStates
from projectors import failpoints
from projectors.binding import Describe, bind
from projectors.catalog import Catalog
from projectors.copies import OwnedCopies
from projectors.dead_letters import DeadLetters
from projectors.declared import all_declared
from projectors.derived.fan_outs import FanOuts
from projectors.derived.look_ups import look_ups
from projectors.derived.reading import DerivedReader
from projectors.every_change import projections_for, with_forms
from projectors.fills import from_topic
from projectors.fills.filling import FillsVitals
from projectors.fills.windows import Windows
from projectors.paused_parts import owned_parts
from projectors.pipeline import GuardedPipeline, Pipeline
from projectors.projection import NewestOnly, Projections, followed_tables
from projectors.proving.cascades import Cascades, followed_parents
from projectors.proving.recent import RecentKeys
from projectors.proving.view_lock import ViewLock
from projectors.publishing import PublishingPipeline
from projectors.stores import Sink, Store, guarded
from projectors.stores.registry import store_named
from projectors.throttle import LiveTraffic, LiveTrafficThrottle, RateThrottle, Throttle, Throttles
from projectors.view_life import BackfillGate, FitsFrom, ViewLife
from projectors.views import BoundView
from projectors.watermark_rows import WatermarkWriter
from projectors.watermarks import LocalWaiter, PassedWatermarks, Watermarks
from viewtail.changes.batches import Followed
from viewtail.changes.errors import DeclarationError, ViewtailError
from viewtail.changes.masks import Masks
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.positions import Position
from viewtail.changes.tables import Table
from viewtail.servers.sessions import Connection

_log = structlog.get_logger("viewtail.pipeline")


@dataclass(slots=True, eq=False)
class PipelineRun:
    """A pipeline that this process has taken."""

    catalog: Catalog
    identity: PipelineId
    owner: Owner
    session: OwnSession  # of the pipeline's thread
    life: ViewLife
    pipeline: Pipeline
    offset: Position  # to begin at
    is_begun: bool  # there was none that counts, so its views were bound before `offset`: they miss what came meanwhile
    taken_from: str | None  # a process that had not given it up
    stop: threading.Event
    copies: Mapping[str, Copy]  # by view, those that have a copy beside the live one
    recent: RecentKeys  # what a cleaner looks at first
    cascades: Cascades  # what a cleaner looks for, where the source does not log them
    fills: FillsVitals = field(default_factory=FillsVitals)
    repaired_count: int = 0  # entities that the cleaner wrote again
    paused_views: Collection[str] = ()  # at the last look
    is_paused: bool = False  # an operator paused it, so it ends
    is_again: bool = False  # an operator paused or resumed one table of many: it ends, to be taken again

    @property
    def source(self) -> Source:
        """What its pipeline reads."""
        return self.pipeline.source

    @property
    def windows(self) -> Windows | None:
        """The fillings in the order of the stream, where nothing guards the store."""
        return self.pipeline.windows if isinstance(self.pipeline, PublishingPipeline) else None

    @property
    def lag_s(self) -> float:
        """Age of the oldest change that is not durable yet in all that depends on it; 0 at the source's end."""
        since_us = self.pipeline.fan_out_us
        return max(self.stream_lag_s, self.source.progress.age_s(since_us) if since_us else 0.0)

    @property
    def stream_lag_s(self) -> float:
        """The same without fan-outs: how far the loop itself is behind."""
        vitals, progress = self.pipeline.vitals, self.source.progress
        if vitals.oldest_waiting_us:
            return progress.age_s(vitals.oldest_waiting_us)
        if progress.trouble:
            return time.monotonic() - progress.received_at
        if progress.is_at_end or not vitals.last_commit_us:
            return 0.0
        return progress.age_s(vitals.last_commit_us)

    def bound_views(self) -> list[BoundView]:
        """The declared views as they are bound now, wherever they are in the store."""
        # A copy may be of another declaration: only its tables are what the stream has come to. Live ones win.
        kept = sorted(self.life.views.values(), key=lambda view: not view.is_beside)
        described = {view.view.id: view.described for view in kept}
        declared = self.catalog.views_of(self.identity.store)
        return [self._bound(view, described.get(view.id, view.described)) for view in declared]

    def _bound(self, view: BoundView, describe: Describe) -> BoundView:
        try:
            (found,) = bind([view.view], describe, view.masks)
        except DeclarationError:  # nothing of it is kept now; where it is to be, that halts it
            return view
        return replace(found, comes_whole=view.comes_whole)

    def is_awaited(self, view: BoundView) -> bool:
        """Return whether somebody waits for this copy; as a rule nobody does while readers have a live one."""
        return not view.is_beside or self.copies[view.view.id].is_hurried or not self.life.gets_changes(view.view.id)

    def throttle(self, view: BoundView, rows_a_second: int = 0) -> Throttle:
        """Return what limits the filling or the move of a copy: a rate, and live traffic unless it is awaited."""
        rate = RateThrottle(rows_a_second, self.stop)
        if self.is_awaited(view):
            return rate
        vitals = self.pipeline.vitals
        traffic = LiveTraffic(lambda: vitals.row_count, lambda: self.stream_lag_s)
        rest = store_named(self.identity.store).unhurried_rest
        live = LiveTrafficThrottle(stop=self.stop, rest=rest, is_live=traffic.is_live, is_late=traffic.is_late)
        return Throttles(rate, live)

    def look(self, session: Session) -> None:
        """See what operators asked meanwhile: for the pipeline to pause, or its views, or to forget dead letters."""
        if pauses.of(session, self.catalog.database, self.identity.name) is not None:
            self.is_paused = True
            self.stop.set()
            return
        if self.pipeline.parts.are_others(session):
            _log.info("tables of many were paused or resumed")
            self.is_again = True
            self.stop.set()
            return
        self.paused_views = self.life.on(session).look_for_paused()
        self.pipeline.dead_letters.on(session).look_again()

    def close(self) -> bool:
        """Give the pipeline up; whether another process had taken it by then."""
        was_fenced = False
        # One whose sessions were ended, since somebody else owns the pipeline, says so over a new one.
        for _ in range(2):
            with suppress(ViewtailError):
                was_fenced = owners.gave_up(self.session, self.catalog.database, self.owner)
                break
        self.pipeline.watermarks.close()
        self.pipeline.sink.close()
        self.session.close()
        return was_fenced


def open_run(
    catalog: Catalog,
    identity: PipelineId,
    lease: Lease,
    stop: threading.Event,
    held_back: frozenset[str] = frozenset(),
    fits_from: FitsFrom | None = None,
) -> PipelineRun:
    """Take a pipeline whose lease is held: raise its fence, read its offset and its views' states.

    Views that are `held_back` wait: the table as they need it is newer than the changes that come first.
    """
    store, history = store_named(identity.store), catalog.history(identity)
    placed = OwnedCopies(catalog, identity.name, store, catalog.views_of(identity.store)).placed()
    with ExitStack() as on_failure:
        taken = _take(catalog, identity, store, placed.views, on_failure)
        parts = owned_parts(taken.session, catalog.database, taken.owner, identity.name)
        placed = replace(placed, views=parts.leave_alone(placed.views))
        asked = history.reader({}, {})
        states = ViewStates(taken.session, catalog.database, identity.name)
        kept = _kept(states, taken.sink, asked, store, placed.views, held_back)
        is_cleaned = catalog.servers.is_cleaned and guarded(taken.sink) is not None
        recent = RecentKeys()
        masks = catalog.servers.masks
        cascades = _cascades(history, kept.running, kept.followed, masks) if is_cleaned else Cascades((), (), ())
        life = _life(catalog, taken.session, placed.views, kept, _projections(store, kept, asked), held_back, fits_from)
        letters = DeadLetters(taken.session, catalog.database, placed.views, states.ids)
        letters.load()
        source = history.reader(kept.followed, life.fits_from)
        pipeline = _loop(catalog, taken, source, history, kept, life, stop)(
            sink=taken.sink,
            dead_letters=letters,
            watermarks=_watermarks(catalog, identity, taken.owner, stop),
            raise_epoch_above=partial(catalog.raise_epoch_above, identity),
            check_lease=lease.check,
            parts=parts,
            observers=[recent, cascades] if is_cleaned else [],
        )
        offset, is_begun = _offset(source, taken, history.epoch, kept)
        on_failure.pop_all()
    return PipelineRun(
        catalog=catalog,
        identity=identity,
        owner=taken.owner,
        session=taken.session,
        life=life,
        pipeline=pipeline,
        offset=offset,
        is_begun=is_begun,
        taken_from=taken.taken_from,
        stop=stop,
        copies=placed.copies,
        recent=recent,
        cascades=cascades,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What nobody else has while this process owns the pipeline."""

    session: OwnSession
    sink: Sink
    offsets: OffsetStore
    owner: Owner
    position: Position | None
    taken_from: str | None


def _take(
    catalog: Catalog, identity: PipelineId, store: Store, views: list[BoundView], on_failure: ExitStack
) -> _Taken:
    """Raise the fence; `on_failure` gives up again what was opened."""
    sink, offsets = store.with_offsets(catalog.access(store), views, identity.name)
    session = catalog.session()
    for give_up in (session.close, sink.close, offsets.abandon):
        on_failure.callback(give_up)
    taken = offsets.take()
    taken_from = owners.took(session, catalog.database, taken.owner)
    return _Taken(
        session=session, sink=sink, offsets=offsets, owner=taken.owner, position=taken.position, taken_from=taken_from
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The states of the pipeline's views, and what those that get changes follow."""

    states: ViewStates
    records: Mapping[str, ViewRecord]
    running: list[BoundView]
    followed: dict[tuple[str, str], Followed]


def _kept(
    states: ViewStates,
    sink: Sink,
    source: Source,
    store: Store,
    views: Sequence[BoundView],
    held_back: frozenset[str],
) -> _Kept:
    records = _records(source, states, views)
    halted = {name for name, record in records.items() if record.state in GETS_NOTHING}
    if (guard := guarded(sink)) is not None:
        guard.leave_alone(halted)
    running = [view for view in views if view.id not in held_back | halted]
    return _Kept(states=states, records=records, running=running, followed=_followed(store, running, states))


def _loop(
    catalog: Catalog,
    taken: _Taken,
    source: Source,
    history: History,
    kept: _Kept,
    life: ViewLife,
    stop: threading.Event,
) -> Callable[..., Pipeline]:
    """The kind of loop that writes to this sink, from this source."""
    derived = {view.id: kept.records[view.id].id for view in kept.running if view.read_back is not None}
    readable = source if isinstance(source, ReadableBack) else None
    if derived and readable is None:
        raise DeclarationError("this source does not say when its changes can be read back")  # refused before
    _warn_of_missing_indexes(kept.running)
    reader = DerivedReader(history.open_session, _never if readable is None else readable.shows, stop)
    guard = guarded(taken.sink)
    fan_outs = FanOuts(
        records=FanOutRecords(taken.session, catalog.database, taken.owner, derived),
        reader=reader,
        life=life,
        above=catalog.servers.limits.fan_out_above,
        committed_at=_never if readable is None else readable.committed_at,
        # What a topic has is in it for good: one that is made again is filled again.
        incarnation=str if guard is None else guard.incarnation,
    )
    return partial(
        PublishingPipeline if guard is None else GuardedPipeline,
        source=source,
        offsets=taken.offsets,
        life=life,
        open_source=history.open_session,
        derived=reader,
        fan_outs=fan_outs,
        stop=stop,
        limits=catalog.servers.limits,
    )


def _never(*_: object) -> Any:
    raise AssertionError("no row is read again")


def _followed(store: Store, views: Sequence[BoundView], states: ViewStates) -> dict[tuple[str, str], Followed]:
    followed = followed_tables(views)
    return (
        with_forms(followed, views, states.former([view.id for view in views]))
        if store.keeps_every_change
        else followed
    )


def _records(source: Source, states: ViewStates, views: Sequence[BoundView]) -> dict[str, ViewRecord]:
    """The views' states, by id: those that changed are new, and others of the pipeline are kept no more."""
    records = from_topic.refuse(source, states, states.sync(all_declared(views)))
    states.retire_others(records)
    for record in records.values():
        if record.state is State.PAUSED:  # before this start; or it restarted for that, since a copy is beside
            _log.info("view paused", view=record.name)
    return records


def _life(
    catalog: Catalog,
    session: Session,
    views: Sequence[BoundView],
    kept: _Kept,
    projections: Projections,
    held_back: frozenset[str],
    fits_from: FitsFrom | None,
) -> ViewLife:
    return ViewLife(
        views={view.id: view for view in views},
        held_back=held_back & kept.records.keys(),
        left_out=catalog.left_out,
        states=kept.states,
        projections=projections,
        misfit=catalog.misfit,
        fits_from={} if fits_from is None else fits_from,
        gate=BackfillGate(lambda view: ViewLock(session, catalog.database, view).taken()),
        seen={view.id: State.HALTED for view in catalog.left_out}
        | {name: record.state for name, record in kept.records.items()},
    )


def _watermarks(catalog: Catalog, identity: PipelineId, owner: Owner, stop: threading.Event) -> Watermarks[LocalWaiter]:
    """Those of the pipeline; it tells other processes which of theirs it has passed."""
    writer = WatermarkWriter(catalog.marks, f"{catalog.database}:{identity.name}")
    passed = PassedWatermarks(catalog.servers.open_own, catalog.database, owner.id, stop)
    return Watermarks(writer, LocalWaiter(passed))


def _cascades(
    history: History, views: Sequence[BoundView], followed: dict[tuple[str, str], Followed], masks: Masks
) -> Cascades:
    """What a cleaner must know of the tables that these refer to; adds those to what is followed."""
    names = [of_table.table.names for of_table in followed.values()]
    keys = history.unlogged_keys(names)
    if not keys:
        return Cascades((), (), ())
    with closing(history.open_session()) as connection:
        followed |= followed_parents(keys, names, partial(_visible, connection, masks))
    return Cascades(keys, views, followed.values())


def _visible(connection: Connection, masks: Masks, name: tuple[str, str]) -> Table | None:
    try:
        return masks.table(describe(connection, *name), {}, ())
    except DeclarationError as error:
        _log.warning("what cascades from a table do is found in rounds only: it cannot be followed", error=str(error))
        return None


def _warn_of_missing_indexes(views: Sequence[BoundView]) -> None:
    for missing in look_ups(views):
        if missing.index is None:
            _log.warning(
                "an index is missing: each change reads a whole table",
                views=", ".join(missing.views),
                table=missing.named,
                mend=missing.create_index,
            )


def _projections(store: Store, kept: _Kept, source: Source) -> Projections:
    if source.is_compacted():
        return NewestOnly(kept.running, kept.followed)  # topics are not published from topics
    return projections_for(store, kept.running, kept.followed)


def _offset(source: Source, taken: _Taken, epoch: int, kept: _Kept) -> tuple[Position, bool]:
    """Where to begin, and whether that is a new place.

    The saved offset, whose set of transactions tells the place when it is of an earlier epoch. With none, and where
    every view is backfilled again (a new history), the stream's present end. Views that are filled from the stream
    itself begin before that.
    """
    offset = taken.position
    is_begun = offset is None or not begins_at(offset, epoch, (record.state for record in kept.records.values()))
    if offset is None or is_begun:
        failpoints.reach(failpoints.POSITION_STEP)
        offset = source.now()
        taken.offsets.save(offset)
        taken.offsets.confirm()
    beginning = from_topic.begin(source, kept.states, kept.records, offset)
    return (offset, is_begun) if beginning is None else (beginning, False)


def begins_at(saved: Position, epoch: int, states: Iterable[State]) -> bool:
    """Return whether a pipeline whose views have these states goes on at the saved offset under that epoch.

    One of an earlier epoch is left where every view is backfilled again, or gets nothing.
    """
    return saved.epoch == epoch or any(state not in GETS_NOTHING | {State.NEW} for state in states)
