"""Canonical rows projected again, in place, while readers go on reading.

`replay` marks views in viewtail's own tables; the process that runs their pipeline sees the mark and backfills them
under a new watermark, a halted view too. `begin_new_history` raises the epoch first: for a source that no longer
continues what the offsets say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

from ingest.canonical.tables import row_estimates
from offsets import epochs, whole_replays
from offsets.copies import Copies
from offsets.lease import Lease
from offsets.mysql import OwnSession, transaction
from offsets.views import Event, State, ViewRecord, ViewStates
from projectors.binding import declaration_hash
from projectors.catalog import Catalog
from projectors.read_and_written import where_live
from projectors.stores import guarded
from projectors.stores.owners import Places
from projectors.stores.registry import store_named, store_of
from projectors.views import BoundView, View
from viewtail.changes.copy_ids import view_of
from viewtail.changes.errors import DeclarationError, StoreUnavailableError, ViewtailError
from viewtail.changes.pipelines import PipelineId
from viewtail.operations import status
from viewtail.operations.status import pipelines_now

WHOLE = "the whole view"  # for the record
LEASE_WAIT_S = 3  # a halted pipeline holds its lease for a moment at each attempt, a running one all the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result for the views that an operator named."""

    marked: Mapping[str, status.PipelineStatus]  # by id, their pipeline
    unknown: Sequence[str]  # ids: never backfilled, so there is nothing to mark
    refused: Mapping[str, str]  # by id: they stay halted, and why
    paused: Sequence[str]  # ids: they stay so until they are resumed
    redeclared: Sequence[str]  # ids: views.py is newer than the process that runs them, and only that reads views.py
    beside: Sequence[str]  # ids: what views.py declares is in a copy beside what readers have

    @property
    def left(self) -> list[str]:
        """Ids of those that an operator has to do something about first."""
        return [*self.refused, *self.paused, *self.redeclared, *self.beside]


def replay(catalog: Catalog, views: Sequence[View], rows_a_second: int = 0) -> Replayed:
    """Have these views backfilled again, by at most so many rows a second; 0: no limit. Each is recorded."""
    with closing(catalog.session()) as session:
        replayed = _replayable(catalog, session, views)
        for view in replayed.marked:
            _mark(catalog, session, view, rows_a_second)
    return replayed


def would_replay(catalog: Catalog, views: Sequence[View]) -> Replayed:
    """Return what `replay` would do; nothing is marked."""
    with closing(catalog.session()) as session:
        return _replayable(catalog, session, views)


def _replayable(catalog: Catalog, session: OwnSession, views: Sequence[View]) -> Replayed:
    kept, pipelines = catalog.known_views(session), pipelines_now(catalog)
    sorted_out: dict[str, list[str]] = {"unknown": [], "paused": [], "redeclared": [], "beside": []}
    marked: dict[str, status.PipelineStatus] = {}
    refused: dict[str, str] = {}
    for view in views:
        records = {pipeline: record for (pipeline, name), record in kept.items() if name == view.id}
        if (why_not := _why_not_marked(view, records, kept)) is not None:
            sorted_out[why_not].append(view.id)
        elif (why := _why_refused(catalog, view, records)) is not None:
            refused[view.id] = why
        else:
            marked[view.id] = _running(records, pipelines)
    return Replayed(marked=marked, refused=refused, **sorted_out)


def _why_not_marked(
    view: View, records: Mapping[str, ViewRecord], kept: Mapping[tuple[str, str], ViewRecord]
) -> str | None:
    """Return the field of Replayed for a view that has no record to mark; None where it has."""
    if not records:
        return "unknown"
    if any(record.state == State.PAUSED for record in records.values()):
        return "paused"
    if any(record.declaration not in _declarations(view) for record in records.values()):
        return "beside" if has_copy_of(view, kept) else "redeclared"
    return None


def _why_refused(catalog: Catalog, view: View, records: Mapping[str, ViewRecord]) -> str | None:
    """Return why a halted view would be halted again at once, or that it was released; None where nothing says so."""
    for record in records.values():
        if record.state == State.RELEASED:
            return f"it was {record.reason}: take it out of views.py"
    if all(record.state != State.HALTED for record in records.values()):
        return None
    return catalog.misfit(view) or _why_no_place(catalog, view)


@contextmanager
def place_of(catalog: Catalog, view: View) -> Iterator[tuple[Places, BoundView] | None]:
    """Yield who may have the view's place, and the view where it is now; None where no other deployment writes."""
    store = store_of(view)
    places = store.places(catalog.access(store), view.id)
    if places is None:
        yield None
        return
    with closing(places):
        bound = next((kept for kept in catalog.views_of(view.store) if kept.view.id == view.id), None)
        if bound is None:
            raise DeclarationError(f"view {view.id} does not fit its table: {catalog.misfit(view)}")
        with closing(catalog.session()) as session:
            keepers = [pipeline for pipeline, name in catalog.known_views(session) if name == view.id]
            if keepers:
                (bound,) = where_live(Copies(session, catalog.database, keepers[0]), [bound])
        yield places, bound


def _why_no_place(catalog: Catalog, view: View) -> str | None:
    """Return why `run` would halt the view at once; None where its place is its own, or nobody says whose it is now."""
    with suppress(StoreUnavailableError), place_of(catalog.rebound(view), view) as found:
        return None if found is None else found[0].refusal(found[1])
    return None


def _whole(catalog: Catalog) -> str:
    source = catalog.servers.named_source
    return f"{WHOLE}, source {source}" if source else WHOLE


def _mark(catalog: Catalog, session: OwnSession, view: str, rows_a_second: int) -> None:
    """The view, with a copy beside it, in the transaction that records it."""
    kept, database, source = catalog.known_views(session), catalog.database, catalog.servers.named_source
    states = {name: ViewStates(session, database, name) for name, of in kept if of == view}
    known = [name for name, state in states.items() if state.pipeline_id >= 0]  # asked for before the transaction
    with transaction(session, "marking a view for a backfill") as cursor:
        whole_replays.begin(cursor, database, view, _whole(catalog), source)
        for name in known:
            copies = [of for (pipeline, of) in kept if pipeline == name and view_of(of) == view]
            states[name].move_in(cursor, Event.REPLAYED, copies, rows_a_second=rows_a_second)


def entities_of(catalog: Catalog, views: Sequence[View]) -> Mapping[str, int]:
    """Return about how many entities each view has. No table is read: counting a large one takes minutes.

    The server's statistics may be a day old, and of a version column's table they count rows, not entities; so what the
    last backfill found counts, too.
    """
    tables = {view.id: view.entity.schema_and_table for view in views if view.entity.version is None}
    with closing(catalog.servers.open_source()) as connection:
        estimates = row_estimates(connection, set(tables.values()))
    filled = _last_filled(catalog)
    return {
        view.id: max(filled[view.id], estimates.get(tables[view.id], 0) if view.id in tables else 0) for view in views
    }


def about(catalog: Catalog, views: Sequence[View]) -> int:
    """About how many entities these views have, as they were last backfilled."""
    filled = _last_filled(catalog)
    return sum(filled[view] for view in {view.id for view in views})


def _last_filled(catalog: Catalog) -> Counter[str]:
    counts = Counter[str]()
    ours = [pipeline for name, pipeline in pipelines_now(catalog).items() if catalog.servers.concerns(name)]
    for view in (view for pipeline in ours for view in pipeline.views):
        counts[view.name] += max(view.row_count, view.row_estimate if view.state != State.FILLED else 0)
    return counts


def _declarations(view: View) -> set[str]:
    """Hashes of those that the process which keeps the view knows."""
    return {declaration_hash(each) for each in (view, view.previous) if each is not None}


def has_copy_of(view: View, kept: Mapping[tuple[str, str], ViewRecord]) -> bool:
    """Return whether a copy beside the live one is of what views.py declares."""
    copies = (record for (_, name), record in kept.items() if view_of(name) == view.id != name)
    return any(record.declaration in _declarations(view) for record in copies)


def _running(known: Iterable[str], pipelines: Mapping[str, status.PipelineStatus]) -> status.PipelineStatus:
    """Return one that runs of the pipelines that keep a view, if any does."""
    of_view = [pipelines[name] for name in known]
    return next((pipeline for pipeline in of_view if pipeline.state != "down"), of_view[0])


def begin_new_history(catalog: Catalog) -> int:
    """A new epoch from the source as it is now: every view is backfilled again under it. Returns the epoch.

    Refused while a pipeline of such a source runs: its process would go on in the old epoch. A tailer and the
    projectors of its topics read other sources than each other.
    """
    pipelines, now = catalog.pipelines(), catalog.sources_now()
    known_now = map(PipelineId.parse, pipelines_now(catalog))
    concerned = {*pipelines, *(pipeline for pipeline in known_now if pipeline.source in now)}
    with _leases_of(catalog, concerned), closing(catalog.session()) as session:
        above = max((kept_epoch(catalog, pipeline) for pipeline in pipelines), default=0)
        marks = list(_marks(catalog, session, pipelines))
        views = {view for mark in marks for view in mark.views}
        recorded = sorted(views.intersection(name for _, name in catalog.known_views(session)))
        with transaction(session, "beginning a new history") as cursor:
            begun = [
                epochs.begin_new_history(cursor, catalog.database, source, description, above)
                for source, description in now.items()
            ]
            epoch = max(begun, default=above)
            for view in recorded:
                what = f"{_whole(catalog)}, as of a new history: epoch {epoch}"
                whole_replays.begin(cursor, catalog.database, view, what, catalog.servers.named_source)
            for mark in marks:
                mark.states.move_in(cursor, Event.REPLAYED, [*mark.views, *mark.copies])
    return epoch


@dataclass(frozen=True, slots=True)
class _Mark:
    """The views that are marked for a backfill in one pipeline that has run before."""

    states: ViewStates
    views: Sequence[str]
    copies: Sequence[str]


def _marks(catalog: Catalog, session: OwnSession, pipelines: Iterable[PipelineId]) -> Iterator[_Mark]:
    """Read before the transaction that marks. A pipeline that has never run has none."""
    for pipeline in pipelines:
        states = ViewStates(session, catalog.database, pipeline.name)
        if states.pipeline_id >= 0:
            copies = Copies(session, catalog.database, pipeline.name).read().values()
            views = catalog.views_of(pipeline.store)
            yield _Mark(states, [view.id for view in views], [copy.copy_id for copy in copies])


def kept_epoch(catalog: Catalog, pipeline: PipelineId) -> int:
    """The epoch of a witness, 0 when there is none. The store must answer: its versions must stay below."""
    store = store_named(pipeline.store)
    with closing(catalog.session()) as session:
        views = where_live(Copies(session, catalog.database, pipeline.name), catalog.views_of(store.name))
    with closing(store.sink(catalog.access(store), views, pipeline.name)) as sink:
        guard = guarded(sink)
        if guard is None:
            sink.prepare()
        else:  # a place that was made here would hide from other sources that their rows in it were lost
            guard.attach()
        kept = sink.witness(catalog.servers.kind.before_all)
    return kept.epoch if kept is not None else 0


@contextmanager
def _leases_of(catalog: Catalog, pipelines: Collection[PipelineId]) -> Iterator[None]:
    """Own every one of them for a moment, so that none goes on in the old epoch. Refused while one is running."""
    held: list[Lease] = []
    try:
        for name in sorted(pipeline.name for pipeline in pipelines):
            lease = Lease(catalog.servers.open_own, catalog.database, name)
            held.append(lease)
            if not lease.acquire(LEASE_WAIT_S):
                raise ViewtailError(
                    f"pipeline {name} is running, so it follows the history that the offsets are of. Nothing was "
                    "changed. To begin a new one all the same, stop `viewtail run` first, then repeat this command"
                )
        yield
    finally:
        for lease in held:
            lease.release()
