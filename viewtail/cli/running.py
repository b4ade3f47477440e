"""`viewtail run`, and how it reads its source: their options."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from viewtail.cli.each import in_each
from viewtail.cli.options import Json

RoleOption = Annotated[
    Literal["all", "tail", "project"],
    typer.Option(help="tail: publish topics; project: keep the other views; all: both."),
]


Plan = Annotated[
    bool,
    typer.Option("--plan", help="Print what the next run would backfill, and how long that takes. Start nothing."),
]


def run(context: typer.Context, role: RoleOption = "all", plan: Plan = False, json: Json = False) -> int:
    """Keep all views up to date until SIGTERM or Ctrl-C; backfill new ones first.

    Each store has its own process, so a store that is away stops its own views only. A stop finishes the batch and
    saves the offset. A second `run` stands by and takes over when the first is gone. Logs go to stderr, metrics to
    127.0.0.1:9464/metrics.

    With --plan it starts and writes nothing: it says which views are new, changed or marked, which tables a backfill
    reads and in which order, and how long it takes. That is an estimate: it reads and projects some rows, and knows
    what earlier backfills reached. --json is for --plan.
    """
    if plan:
        from viewtail.commands.fill_plan import plan as planned
        from viewtail.roles import Role as WhichRole

        return planned(context.obj, WhichRole(role), as_json=json)
    if json:
        raise typer.BadParameter("it is for --plan: a run writes logs", param_hint="--json")
    from viewtail.commands.run import run as command
    from viewtail.roles import Role

    return command(context.obj, Role(role))


To = Annotated[Literal["poll", "binlog"], typer.Option("--to", help="How the source is read from then on.")]
SwitchWithin = Annotated[
    float,
    typer.Option("--within", metavar="SECONDS", help="How long to wait for transactions, views and the stop.", min=1),
]


def switch(context: typer.Context, to: To, within: SwitchWithin = 300.0) -> int:
    """Give the binlog up for polling, or take it up again: no view is backfilled, and nothing is lost.

    Call it while `viewtail run` runs, and stop that when this says so; then set the mode and start it again. Where the
    binlog can be read no more, stop `viewtail run` first: --to poll then has all rows read again, in place. Views whose
    entity is not append_only with order= need the binlog: the command names them, and changes nothing.
    """
    from viewtail.commands.switch import switch as command

    return in_each(context.obj, command, to, within)
