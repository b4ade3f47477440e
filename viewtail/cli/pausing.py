"""`viewtail pause` and `viewtail resume`: their options."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.completing import view_names
from viewtail.cli.each import in_deployments

Paused = Annotated[
    list[str] | None,
    typer.Argument(metavar="[VIEW...]", help="Views; the pipelines that keep them go on.", autocompletion=view_names),
]
Pipelines = Annotated[
    list[str] | None,
    typer.Option(
        "--pipeline",
        metavar="NAME",
        help="A pipeline as `status` names it, or a store: all pipelines that write it; repeatable.",
    ),
]
AllPipelines = Annotated[bool, typer.Option("--all", help="Every pipeline.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why; `status` and readers show it.")]


def pause(
    context: typer.Context,
    view: Paused = None,
    pipeline: Pipelines = None,
    all_pipelines: AllPipelines = False,
    reason: Reason = None,
) -> int:
    """Pause pipelines or views; they stay paused, over restarts too, until you resume them.

    A paused pipeline stops within seconds, between two batches. It reads and writes nothing and keeps its offset, so it
    loses nothing as long as the source keeps its changes. A paused view gets no changes while its pipeline goes on:
    `viewtail resume` backfills it. To pause what is paused changes nothing.
    """
    from viewtail.commands import pausing as commands

    wanted = commands.wanted("pause", view, pipeline, all_pipelines)
    commands.check_reason(reason)
    return in_deployments(context.obj, commands.pause, wanted, reason)


def resume(
    context: typer.Context, view: Paused = None, pipeline: Pipelines = None, all_pipelines: AllPipelines = False
) -> int:
    """Resume pipelines or views that were paused.

    A pipeline goes on at its offset. A view is backfilled again in place, while readers read it: it missed what changed
    meanwhile. To resume what runs changes nothing.
    """
    from viewtail.commands import pausing as commands

    return in_deployments(context.obj, commands.resume, commands.wanted("resume", view, pipeline, all_pipelines))
