"""`viewtail replay`: what operations/replay.py does, and what it prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from changes.errors import MisuseError
from operations import replay as operation
from operations.status import PipelineStatus
from projectors.views import view_of
from viewtail import declarations
from viewtail.composition import Deployment, deploy


def replay(config: Path | None, names: Sequence[str], *, all_views: bool) -> int:
    """Have views backfilled again from their canonical rows; returns the exit code."""
    if bool(names) == all_views:
        raise MisuseError("name the views to replay (`viewtail replay VIEW ...`), or all of them with --all")
    loaded, views = declarations.configured(config)
    chosen = views if all_views else [declarations.chosen(loaded, views, view_of(name)) for name in names]
    # By id, each once: a mapping in a declaration has no hash.
    done = operation.replay(Deployment(settings=loaded), list({view.id: view for view in chosen}.values()))
    for view, pipeline in done.marked.items():
        print(f"{view}: {_what_next(pipeline)}")
    for view in done.unknown:
        print(f"{view}: was never backfilled, so there is nothing to mark. `viewtail run` backfills it first of all")
    for view, why in done.refused.items():
        print(f"{view}: not marked, it stays halted: {why}. Mend that first", file=sys.stderr)
    for view in done.redeclared:
        why = "views.py declares it otherwise than the viewtail that ran last, which does not read views.py again"
        print(f"{view}: not marked: {why}. Start `viewtail run` again: it backfills the view first", file=sys.stderr)
    return 1 if done.refused or done.redeclared else 0


def replay_new_history(config: Path | None) -> int:
    """Take the source as it is now for a new history, and have every view backfilled again; returns the exit code."""
    loaded, views = declarations.configured(config)
    loaded.check_stores(views)
    deployment = deploy(loaded, views)
    deployment.create_tables()
    epoch = operation.begin_new_history(deployment)
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
