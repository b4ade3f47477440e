"""Pausing pipelines and views on purpose, and resuming them.

A paused pipeline reads and writes nothing. It keeps its offset, and goes on there: nothing is lost as long as the
source keeps its changes. A paused view gets no changes while its pipeline goes on, so it is backfilled in place when it
is resumed. Both are noted in viewtail's own tables, so they outlive the process that runs the pipeline; it looks there
every second or two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from enum import Enum

from ingest.canonical.tables import row_estimates
from offsets import pauses, runs
from offsets.copies import Copies
from offsets.mysql import Session
from offsets.views import Event, State, ViewStates
from projectors.catalog import Catalog
from projectors.views import View
from viewtail.changes.errors import UnknownNameError, ViewtailError, nearest
from viewtail.changes.pipelines import PipelineId
from viewtail.operations.status import PipelineStatus, ViewStatus, as_one, pipelines_now


class Outcome(Enum):
    """The result of a wish for a view."""

    DONE = "done"
    NOT_NEEDED = "it is so already"
    HALTED = "the view is halted"
    SWAPPING = "its copies change places"
    UNKNOWN = "no run has seen the view"


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedView:
    """A view that an operator named, and how it and its pipelines were before."""

    view: str
    outcome: Outcome
    before: ViewStatus | None  # None: no run has seen it
    pipelines: Sequence[PipelineStatus] = ()  # that keep it: several where each has a part of the source
    row_estimate: int | None = None  # of its table, of one that is resumed, where the source answers


def pause_views(catalog: Catalog, views: Sequence[View], *, by: str, reason: str | None = None) -> list[PausedView]:
    """Let these views get no changes from now on. A halted one stays halted."""
    given = None if reason is None else reason[: pauses.MOST_REASON]

    def pause(session: Session, pipeline: PipelineStatus, view: View) -> bool | None:
        return Copies(session, catalog.database, pipeline.name).pause(view.id, by, given)

    paused = [_moved(catalog, view, known, pause) for view, known in _kept(catalog, views)]
    _record(catalog, runs.PAUSED, paused, given)
    return paused


def resume_views(catalog: Catalog, views: Sequence[View]) -> list[PausedView]:
    """Have those of these views that are paused backfilled again, in place, and follow their tables from there."""

    def resume(session: Session, pipeline: PipelineStatus, view: View) -> bool:
        return bool(ViewStates(session, catalog.database, pipeline.name).move(Event.RESUMED, [view.id]))

    resumed = [_moved(catalog, view, known, resume) for view, known in _kept(catalog, views)]
    _record(catalog, runs.RESUMED, resumed)
    by_id = {view.id: view for view in views}
    return [
        replace(view, row_estimate=_row_estimate(catalog, by_id[view.view])) if view.outcome is Outcome.DONE else view
        for view in resumed
    ]


def _record(catalog: Catalog, kind: str, views: Sequence[PausedView], reason: str | None = None) -> None:
    with closing(catalog.session()) as session:
        for view in views:
            if view.outcome is Outcome.DONE:
                runs.record(session, catalog.database, kind, view.view, "the view", reason or "")


def _kept(catalog: Catalog, views: Sequence[View]) -> list[tuple[View, Sequence[PipelineStatus]]]:
    """Each view with the pipelines that keep it."""
    pipelines = pipelines_now(catalog).values()
    return [(view, [each for each in pipelines if any(kept.name == view.id for kept in each.views)]) for view in views]


def _moved(
    catalog: Catalog,
    view: View,
    pipelines: Sequence[PipelineStatus],
    move: Callable[[Session, PipelineStatus, View], bool | None],
) -> PausedView:
    if not pipelines:
        return PausedView(view=view.id, outcome=Outcome.UNKNOWN, before=None)
    before = as_one([kept for pipeline in pipelines for kept in pipeline.views if kept.name == view.id])
    with closing(catalog.session()) as session:
        moved = [move(session, pipeline, view) for pipeline in pipelines]
    outcome = Outcome.HALTED if before.state == State.HALTED else Outcome.NOT_NEEDED
    if any(moved):
        outcome = Outcome.DONE
    elif None in moved:
        outcome = Outcome.SWAPPING
    return PausedView(view=view.id, outcome=outcome, before=before, pipelines=pipelines)


def _row_estimate(catalog: Catalog, view: View) -> int | None:
    if view.entity.sources:
        return None  # no source knows the rows of all
    table = view.entity.schema_and_table
    with suppress(ViewtailError), closing(catalog.servers.open_source()) as connection:
        return row_estimates(connection, {table}).get(table)
    return None


def pause_pipelines(catalog: Catalog, chosen: Sequence[PipelineStatus], *, by: str, reason: str | None = None) -> None:
    """Let these pipelines end between two batches, and not begin again until they are resumed."""
    if chosen:
        with closing(catalog.session()) as session:
            pauses.pause(session, catalog.database, [pipeline.name for pipeline in chosen], by, reason)
            for pipeline in chosen:
                if pipeline.paused is None:
                    what = f"pipeline {pipeline.name}"
                    runs.record(session, catalog.database, runs.PAUSED, "", what, reason or "")


def resume_pipelines(catalog: Catalog, chosen: Sequence[PipelineStatus]) -> None:
    """Let these pipelines go on at their offsets."""
    if chosen:
        with closing(catalog.session()) as session:
            pauses.resume(session, catalog.database, [pipeline.name for pipeline in chosen])
            for pipeline in chosen:
                if pipeline.paused is not None:
                    runs.record(session, catalog.database, runs.RESUMED, "", f"pipeline {pipeline.name}")


def chosen_pipelines(catalog: Catalog, names: Sequence[str] | None) -> list[PipelineStatus]:
    """The pipelines of these names, or of these stores; None: all that ever ran. Raises UnknownNameError."""
    pipelines = pipelines_now(catalog)
    if names is None:
        return list(pipelines.values())
    chosen: dict[str, PipelineStatus] = {}
    for name in names:
        meant = {each: of for each, of in pipelines.items() if name in (each, PipelineId.parse(each).store)}
        if not meant:
            near = nearest(name, pipelines)
            known = ", ".join(pipelines) or "none has run yet"
            raise UnknownNameError(
                f"no pipeline is called {name!r}, and none has a store of that name{near or f': {known}'}"
            )
        chosen |= meant
    return list(chosen.values())
