"""`viewtail replay`: what operations/replay.py does, and what it prints."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, replace

from offsets.pauses import this_person
from offsets.runs import DROP, PAUSED, REFILL, RESUMED
from offsets.views import State
from projectors.catalog import Catalog
from projectors.views import View
from viewtail import declarations
from viewtail.changes.copy_ids import view_of
from viewtail.changes.counting import counted
from viewtail.changes.pipelines import PipelineState
from viewtail.commands.agreeing import agreed
from viewtail.commands.output import print_json, print_remark, print_rows
from viewtail.commands.progress import Say, progress
from viewtail.composition import deployed_to_work, greeted, own_tables
from viewtail.operations import replay as operation
from viewtail.operations import taking_over
from viewtail.operations.replay import Replayed
from viewtail.operations.replay_keys import ASK_ABOVE
from viewtail.operations.runs import past
from viewtail.operations.status import PipelineStatus, ViewStatus, pipelines_now
from viewtail.operations.version_resets import words
from viewtail.settings import Settings

KINDS = (
    *("replay", "verify", "repair", "rebuild", "redrive", DROP, PAUSED, RESUMED, "clean", "mend", "cascade", REFILL),
    *("archive", "restore"),
)
LOOK_EVERY_S = 0.5


def replay(
    loaded: Settings, names: Sequence[str], *, all_views: bool, is_yes: bool, rows_a_second: int, is_awaited: bool
) -> int:
    """Have views backfilled again from their canonical rows; returns the exit code."""
    catalog, wanted = _chosen(loaded, names, all_views)
    catalog.create_tables()
    count = operation.about(catalog, wanted)
    which = ", ".join(view.id for view in wanted)
    question = f"{which}: about {counted(count, 'entities', 'are')} written again, in place. Go on?"
    if count > ASK_ABOVE and not agreed(question, is_yes=is_yes):
        print_remark("nothing was marked")
        return 1
    done = operation.replay(catalog, wanted, rows_a_second)
    for view, pipeline in done.marked.items():
        print(f"{view}: {_what_next(pipeline)}")
    _tell_left(done)
    if is_awaited and done.marked and not _wait(catalog, done.marked):
        return 1
    return 1 if done.left else 0


def take_over(loaded: Settings, names: Sequence[str], *, is_yes: bool, is_awaited: bool) -> int:
    """Take the places of views over from another deployment, and have them backfilled; returns the exit code."""
    loaded.check_stores(declarations.configured(loaded))
    chosen = declarations.all_chosen(loaded, names)
    catalog = deployed_to_work(loaded, chosen)
    codes = [_take_over(catalog, view, is_yes=is_yes, is_awaited=is_awaited) for view in chosen]
    return max(codes, default=0)


def _take_over(catalog: Catalog, view: View, *, is_yes: bool, is_awaited: bool) -> int:
    former = taking_over.look(catalog, view)
    if former is None:
        print(f"{view.id}: no other deployment has its place, so there is nothing to take over")
        return 0
    question = (
        f"{view.id}: its place is kept by {former}. What is there is dropped and filled again from here, and that "
        "deployment halts its view. Take it over?"
    )
    if not agreed(question, is_yes=is_yes):
        print_remark(f"{view.id}: nothing was changed")
        return 1
    done = taking_over.take_over(catalog, view, this_person(), print_remark)
    for name, pipeline in done.marked.items():
        print(f"{name}: taken over and {_what_next(pipeline)}")
    for name in done.unknown:
        print(f"{name}: taken over. The next `viewtail run` backfills it")
    _tell_left(replace(done, unknown=()))
    is_filled = not (is_awaited and done.marked) or _wait(catalog, done.marked)
    return 0 if is_filled and not done.left else 1


def would_replay(loaded: Settings, names: Sequence[str], *, all_views: bool) -> int:
    """Say how many entities would be written again; nothing is marked or recorded. Returns the exit code."""
    catalog, wanted = _chosen(loaded, names, all_views)
    replayed = operation.would_replay(catalog, wanted)
    marked = [view for view in wanted if view.id in replayed.marked]
    for name, count in operation.entities_of(catalog, marked).items():
        print(f"{name}: about {counted(count, 'entities')} would be written again, in place")
    _tell_left(replayed)
    return 1 if replayed.left else 0


def _chosen(loaded: Settings, names: Sequence[str], all_views: bool) -> tuple[Catalog, list[View]]:
    views = declarations.configured(loaded) if all_views else declarations.all_chosen(loaded, map(view_of, names))
    return Catalog(servers=greeted(loaded, reads_source=False).servers()), views


def _tell_left(done: Replayed) -> None:
    """Print what is not marked, and why."""
    for view in done.unknown:
        print(f"{view}: was never backfilled, so there is nothing to mark. `viewtail run` backfills it first of all")
    for view, why in done.refused.items():
        print(f"{view}: not marked, it stays halted: {why}. Mend that first", file=sys.stderr)
    for view in done.paused:
        print(f"{view}: not marked: it is paused. To backfill it: viewtail resume {view}", file=sys.stderr)
    for view in done.redeclared:
        why = "views.py declares it otherwise than the viewtail that ran last, which does not read views.py again"
        print(f"{view}: not marked: {why}. Start `viewtail run` again: it backfills the view first", file=sys.stderr)
    for view in done.beside:
        why = "what views.py declares is built in a copy beside what readers have, which gets no changes"
        told = (
            f"viewtail status says what keeps it from readers; to have it compared and swapped: viewtail rebuild {view}"
        )
        print(f"{view}: not marked: {why}. {told}", file=sys.stderr)


def replays(loaded: Settings, *, limit: int, as_json: bool) -> int:
    """Print what operators had done to views, the newest first."""
    catalog = own_tables(loaded)
    with closing(catalog.session()) as session:
        runs = past(session, catalog.database, KINDS, limit)
    if as_json:
        print_json([asdict(run) for run in runs])
    elif runs:
        titles = ("started (UTC)", "kind", "view", "what", "who", "state", "result")
        rows = (
            (run.started_at, run.kind, run.view, run.what, run.operator, run.state, run.result + words(run.progress))
            for run in runs
        )
        print_rows([dict(zip(titles, row, strict=True)) for row in rows])
    else:
        print("nothing was replayed, verified, repaired or paused yet")
    return 0


def _wait(catalog: Catalog, marked: Collection[str]) -> bool:
    """Wait until these views are filled; return False where one is halted."""
    with progress("backfill", "rows") as say:
        try:
            while True:
                pipelines = _pipelines(catalog)
                of_them = [view for pipeline in pipelines for view in pipeline.views if view.name in marked]
                if will_not := _why_never(of_them, marked):
                    print(will_not, file=sys.stderr)
                    return False
                if {view.state for view in of_them} <= {State.FILLED}:
                    break
                _say_how_far(say, of_them, _trouble(pipelines, marked))
                time.sleep(LOOK_EVERY_S)
        except KeyboardInterrupt:
            print_remark("the running viewtail goes on with it; watch it: viewtail status")
            raise
    _tell_written(of_them, marked)
    return True


def _pipelines(catalog: Catalog) -> list[PipelineStatus]:
    """Return the pipelines of the source that is replayed."""
    return [pipeline for name, pipeline in pipelines_now(catalog).items() if catalog.servers.concerns(name)]


def _say_how_far(say: Say, views: Sequence[ViewStatus], trouble: str) -> None:
    estimate = sum(view.row_estimate for view in views)
    say(sum(view.row_count for view in views), 0 if trouble else estimate, trouble)


def _tell_written(views: Sequence[ViewStatus], marked: Collection[str]) -> None:
    written = dict.fromkeys(marked, 0)
    for view in views:
        written[view.name] += view.row_count
    for name, count in written.items():  # 0 too where nobody counted them
        print(f"{name}: backfilled{f'. Rows written: {count:,}' if count else ''}")


def _why_never(views: Sequence[ViewStatus], marked: Collection[str]) -> str:
    """Return why these views, of those that are marked, will not be filled, in words; '' where they may be."""
    if gone := sorted({*marked} - {view.name for view in views}):
        return f"{', '.join(gone)}: no pipeline keeps it any more"
    stands = (view for view in views if view.state in (State.HALTED, State.PAUSED))
    return next((f"{view.name}: {view.state}: {view.reason}" for view in stands), "")


def _trouble(pipelines: Iterable[PipelineStatus], marked: Collection[str]) -> str:
    """Return what keeps pipelines of these views, in words behind their progress; '' where nothing does."""
    trouble = ""
    for pipeline in pipelines:
        is_waited_for = any(view.name in marked and view.state != State.FILLED for view in pipeline.views)
        if is_waited_for and (pipeline.state != PipelineState.RUNNING or pipeline.error):
            trouble += (
                f"; pipeline {pipeline.name} is {pipeline.state}{f': {pipeline.error}' if pipeline.error else ''}"
            )
    return trouble


def replay_new_history(loaded: Settings) -> int:
    """Take the source as it is now for a new history, and have every view backfilled again; returns the exit code."""
    views = declarations.configured(loaded)
    loaded.check_stores(views)
    catalog = deployed_to_work(loaded, views)
    epoch = operation.begin_new_history(catalog)
    print(f"The source as it is now begins epoch {epoch}. viewtail backfills every view again, in place:")
    for view in views:
        print(f"  {view.id}")
    print(
        "A running viewtail begins within a few seconds; otherwise start one: viewtail run. Watch it: viewtail status"
    )
    return 0


def _what_next(pipeline: PipelineStatus) -> str:
    if pipeline.state == "down":
        return "marked. No viewtail runs its pipeline now: the next `viewtail run` backfills it"
    return "marked. The running viewtail begins to backfill it within a few seconds; watch it: viewtail status"
