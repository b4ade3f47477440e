"""`viewtail status` and `viewtail why`: their options."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.each import in_deployments, in_each
from viewtail.cli.options import Json, Key, ViewName

Watch = Annotated[bool, typer.Option("--watch", help="Show it on the whole terminal, again and again, until Ctrl-C.")]
Every = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="With --watch: how often to look; by default 2.", min=0.5, max=3600),
]


By = Annotated[
    str | None,
    typer.Option("--by", metavar="COLUMN", help="List the tenants of views whose entity is many tables, by that."),
]


def status(context: typer.Context, json: Json = False, watch: Watch = False, every: Every = None, by: By = None) -> int:
    """Show each pipeline and view: state, lag, rate, position, backfill, parked keys.

    Needs no running viewtail. Exits 1 when a pipeline is down or behind, a view is halted, or keys are parked; what is
    paused is behind after a minute. A view that is new or being backfilled is no fault: `viewtail wait` waits for it.
    The lines below the table say what to do.

    With --watch the terminal shows all that, and how the lag was in the last three minutes, until Ctrl-C; the exit code
    is 0 then. It asks MySQL alone, six questions each time.

    With --by the tables of such views are listed: those with parked keys first, then the largest, 20 at most.
    """
    if by is not None:
        if watch or every is not None:
            raise typer.BadParameter("leave --watch out: it shows all pipelines", param_hint="--by")
        from viewtail.commands.parts import status_by

        return in_each(context.obj, status_by, by, as_json=json)
    if every is not None and not watch:
        raise typer.BadParameter("it is how often --watch looks; add --watch", param_hint="--every")
    if watch:
        if json:
            raise typer.BadParameter("leave --json out: a program calls viewtail status --json", param_hint="--watch")
        from viewtail.commands.watch import watch as watching
        from viewtail.shards import one

        return watching(one(context.obj), every or 2.0)  # a screen shows one deployment
    from viewtail.commands.status import status as command

    return in_deployments(context.obj, command, as_json=json)


def why(context: typer.Context, view: ViewName, key: Key, json: Json = False) -> int:
    """Tell why a view shows what it shows of one entity, and what to run next.

    Looks at the row, at what the store holds, at the pipeline, at the dead letters, and for the entity's last change in
    the binlog. Exits 0 when the view is right: current, rightly absent, or kept out by `where`. Writes nothing but a
    watermark.
    """
    from viewtail.commands.why import why as command

    return in_each(context.obj, command, view, key, as_json=json)
