"""`viewtail adopt`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.audit import AgainAfter, Audited
from viewtail.cli.options import DryRun, Json, MaxThreads

DropExtra = Annotated[bool, typer.Option("--drop-extra", help="Drop keys that no row is for; else they stay.")]


def adopt(
    context: typer.Context,
    view: Audited,
    dry_run: DryRun = False,
    drop_extra: DropExtra = False,
    again_after: AgainAfter = "5s",
    max_threads_running: MaxThreads = 25,
    json: Json = False,
) -> int:
    """Take over what another tool keeps in the place of a view, while readers read on.

    Stop the other tool's writes first, and no viewtail may run. What is right gets viewtail's version beside it, what
    is wrong is repaired, and keys that no row is for stay, unless --drop-extra is given. Redis keys and an index table
    stay where they are; an Elasticsearch index is cloned to viewtail's name, and the readers' alias leads there. In the
    end all is compared once more, and `viewtail run` goes on from there. --dry-run shows an audit and each step. A
    command that was stopped goes on when it is given again.
    """
    from viewtail.commands.adopt import Options
    from viewtail.commands.adopt import adopt as command
    from viewtail.commands.durations import seconds_of

    options = Options(
        is_dry_run=dry_run,
        drops_extra=drop_extra,
        again_after_s=seconds_of("--again-after", again_after),
        max_threads_running=max_threads_running,
        as_json=json,
    )
    return command(context.obj, view, options)
