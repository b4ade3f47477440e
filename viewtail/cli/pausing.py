"""`viewtail pause` and `viewtail resume`: their options."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.completing import view_names
from viewtail.cli.each import in_deployments
from viewtail.cli.options import PartOf

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
    part: PartOf = None,
    reason: Reason = None,
) -> int:
    """Pause pipelines or views, or one table of many; they stay paused, over restarts too, until you resume them.

    A paused pipeline stops within seconds, between two batches. It reads and writes nothing and keeps its offset, so it
    loses nothing as long as the source keeps its changes. A paused view gets no changes while its pipeline goes on:
    `viewtail resume` backfills it. To pause what is paused changes nothing.

    With --part, the rows of one table of many, a tenant's, are passed over in these views, which go on with all others.
    """
    from viewtail.commands import pausing as commands

    if part is not None:
        from viewtail.commands import parts

        commands.check_of_part(view, pipeline, all_pipelines)
        commands.check_reason(reason)
        return in_deployments(context.obj, parts.pause_part, view or (), part, reason)
    wanted = commands.wanted("pause", view, pipeline, all_pipelines)
    commands.check_reason(reason)
    return in_deployments(context.obj, commands.pause, wanted, reason)


def resume(
    context: typer.Context,
    view: Paused = None,
    pipeline: Pipelines = None,
    all_pipelines: AllPipelines = False,
    part: PartOf = None,
) -> int:
    """Resume pipelines or views that were paused.

    A pipeline goes on at its offset. A view is backfilled again in place, while readers read it: it missed what changed
    meanwhile. To resume what runs changes nothing.

    With --part one table of many gets its changes again, and its rows are read again first; it waits for that.
    """
    from viewtail.commands import pausing as commands

    if part is not None:
        from viewtail.commands import parts

        commands.check_of_part(view, pipeline, all_pipelines)
        return in_deployments(context.obj, parts.resume_part, view or (), part)

    return in_deployments(context.obj, commands.resume, commands.wanted("resume", view, pipeline, all_pipelines))
