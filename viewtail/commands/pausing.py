"""`viewtail pause` and `viewtail resume`: what operations/pausing.py does, and what it prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from offsets.pauses import MOST_REASON, this_person
from offsets.views import State
from projectors.stores.registry import store_of
from projectors.views import View
from viewtail import declarations
from viewtail.changes.copy_ids import view_of
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError
from viewtail.composition import own_tables
from viewtail.operations import pausing as operation
from viewtail.operations.pausing import Outcome, PausedView
from viewtail.operations.status import PipelineStatus
from viewtail.settings import Settings


@dataclass(frozen=True, slots=True)
class Wanted:
    """The views, or pipelines, or all pipelines, that the command line names."""

    views: Sequence[str]
    pipelines: Sequence[str]
    is_all: bool

    @property
    def names(self) -> Sequence[str] | None:
        """The names of pipelines; None: all of them."""
        return None if self.is_all else self.pipelines


def wanted(command: str, views: Sequence[str] | None, pipelines: Sequence[str] | None, is_all: bool) -> Wanted:
    """Raise MisuseError unless it is one of the three."""
    if [bool(views), bool(pipelines), is_all].count(True) != 1:
        raise MisuseError(
            f"name views (`viewtail {command} VIEW ...`), a pipeline (`--pipeline NAME`), or all with `--all`"
        )
    return Wanted(views or (), pipelines or (), is_all)


def check_of_part(views: Sequence[str] | None, pipelines: Sequence[str] | None, is_all: bool) -> None:
    """Raise MisuseError where one table of many is named, and no views that it is paused in."""
    if not views or pipelines or is_all:
        raise MisuseError("--part is of views: name them, and neither pipelines nor --all")


def check_reason(reason: str | None) -> None:
    """Raise MisuseError for what `status` could not show on a line."""
    if reason is not None and (not reason.isprintable() or not 1 <= len(reason) <= MOST_REASON):
        raise MisuseError(f"--reason is one line of 1 to {MOST_REASON:,} characters: `status` shows it")


def pause(loaded: Settings, wanted: Wanted, reason: str | None) -> int:
    """Pause what is named; the exit code is 1 where a view could not be."""
    by = this_person()
    if not wanted.views:
        catalog = own_tables(loaded)
        chosen = operation.chosen_pipelines(catalog, wanted.names)
        operation.pause_pipelines(catalog, chosen, by=by, reason=reason)
        for pipeline in chosen:
            print(f"pipeline {pipeline.name}: {_paused_pipeline(pipeline)}")
        return _none_ran(chosen)
    views = declarations.chosen_of_all(loaded, wanted.views)
    outcomes = operation.pause_views(own_tables(loaded), views, by=by, reason=reason)
    return max(_say(done, _paused_view(done)) for done in outcomes)


def resume(loaded: Settings, wanted: Wanted) -> int:
    """Resume what is named; the exit code is 1 where a view could not be."""
    if not wanted.views:
        catalog = own_tables(loaded)
        chosen = operation.chosen_pipelines(catalog, wanted.names)
        operation.resume_pipelines(catalog, chosen)
        for pipeline in chosen:
            print(f"pipeline {pipeline.name}: {_resumed_pipeline(pipeline)}")
        for view in sorted({view.name for pipeline in chosen for view in pipeline.views if view.state == State.PAUSED}):
            print(f"{view}: is paused by itself, and stays so. To go on: viewtail resume {view_of(view)}")
        return _none_ran(chosen)
    views = declarations.chosen_of_all(loaded, wanted.views)
    outcomes = operation.resume_views(own_tables(loaded), views)
    by_id = {view.id: view for view in views}
    return max(_say(done, _resumed_view(done, by_id[done.view])) for done in outcomes)


def _none_ran(chosen: Sequence[PipelineStatus]) -> int:
    if not chosen:
        print("viewtail: no pipeline has run yet. Start them: viewtail run", file=sys.stderr)
    return 0 if chosen else 1


def _say(done: PausedView, line: str) -> int:
    is_done = done.outcome in (Outcome.DONE, Outcome.NOT_NEEDED)
    print(f"{done.view}: {line}", file=sys.stdout if is_done else sys.stderr)
    return 0 if is_done else 1


def _paused_pipeline(pipeline: PipelineStatus) -> str:
    """Return what became of a pipeline, which is given as it was before."""
    if pipeline.paused is not None:
        return f"is paused already, {pipeline.paused}"
    when = "The next `viewtail run` leaves it alone" if pipeline.state == "down" else "It stops within a few seconds"
    return (
        f"paused. {when}: it reads and writes nothing, and keeps its offset. To go on there: "
        f"viewtail resume --pipeline {pipeline.name}"
    )


def _resumed_pipeline(pipeline: PipelineStatus) -> str:
    """Return what became of a pipeline, which is given as it was before."""
    if pipeline.paused is None:
        return f"is not paused; it is {pipeline.state}"
    where = pipeline.position or "its beginning"
    if pipeline.state == "down":
        return f"resumed. No viewtail runs it now: the next `viewtail run` goes on at {where}"
    return f"resumed. It goes on at {where} within a few seconds; watch it: viewtail status"


def _paused_view(done: PausedView) -> str:
    before = done.before
    if before is None:
        return "no run has seen it yet, so there is nothing to pause. Leave it out of views.py, or start: viewtail run"
    if done.outcome is Outcome.HALTED:
        return f"not paused: it is halted, and gets no changes already: {before.reason}"
    if done.outcome is Outcome.NOT_NEEDED:
        return f"is paused already, {before.paused}"
    if done.outcome is Outcome.SWAPPING:
        return (
            "not paused: its two copies are about to change places, or do so now. `viewtail run` does that; try again "
            "when `viewtail status` says that it is over"
        )
    return (
        "paused. It gets no more changes within a few seconds, and keeps what it shows; other views go on. To go on: "
        f"viewtail resume {done.view}, which backfills it"
    )


def _resumed_view(done: PausedView, view: View) -> str:
    before = done.before
    if before is None:
        return "no run has seen it yet, so it is not paused. `viewtail run` backfills it first of all"
    if done.outcome is Outcome.HALTED:
        return f"not paused, but halted: {before.reason}"
    if done.outcome is Outcome.NOT_NEEDED:
        return f"is not paused; it is {before.state}"
    rows = "its rows" if done.row_estimate is None else f"about {counted(done.row_estimate, 'rows')}"
    said = f"resumed. It missed what changed meanwhile, so it is backfilled in place, {rows}"
    if store_of(view).keeps_every_change:
        said += ", which are published as they are now: changes that were made meanwhile are not"
    return f"{said}. {_begins(done.pipelines)}"


def _begins(pipelines: Sequence[PipelineStatus]) -> str:
    paused = [pipeline.name for pipeline in pipelines if pipeline.paused is not None]
    if paused:
        return f"Its pipeline is paused, too. For that to begin: viewtail resume --pipeline {paused[0]}"
    if all(pipeline.state == "down" for pipeline in pipelines):
        return "No viewtail runs its pipeline now: the next `viewtail run` does it"
    return "That begins within a few seconds; watch it: viewtail status"
