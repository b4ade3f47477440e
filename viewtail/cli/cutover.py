"""`viewtail cutover`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.each import in_each
from viewtail.cli.options import Json, ViewName

Go = Annotated[bool, typer.Option("--go", help="Compare all, see that nothing comes any more, and release the table.")]
Abort = Annotated[bool, typer.Option("--abort", help="End a --go that has not released the table.")]
Within = Annotated[
    str | None, typer.Option(metavar="TIME", help="Give up after so long, with nothing changed: 60s, 10m.")
]
ReadOnly = Annotated[
    bool,
    typer.Option("--read-only", help="You say that nobody writes the old tables: rows that come are not waited for."),
]


def cutover(
    context: typer.Context,
    view: ViewName,
    go: Go = False,
    within: Within = None,
    read_only: ReadOnly = False,
    abort: Abort = False,
    json: Json = False,
) -> int:
    """Hand the table of a MySQLTable view over to the application, which writes it from then on.

    Without an option it shows what is proven of the view, and what is missing. With --go it compares the view with its
    table, waits until the application has stopped writing the old tables, and releases the view's table: its invisible
    column goes, and new rows get numbers above all others. The record says who did it, when, and what was proven. The
    old tables stay as they are. Until the table is released nothing has changed. A released view must leave views.py.
    """
    from viewtail.commands import cutover as commands
    from viewtail.commands.durations import seconds_of

    if go and abort:
        raise typer.BadParameter("give one of --go and --abort", param_hint="--abort")
    if not go and (within is not None or read_only):
        raise typer.BadParameter("it goes with --go", param_hint="--within" if within is not None else "--read-only")
    if abort:
        return in_each(context.obj, commands.abort, view)
    if not go:
        return in_each(context.obj, commands.show, view, as_json=json)
    within_s = None if within is None else seconds_of("--within", within)
    return in_each(context.obj, commands.go, view, within_s=within_s, is_read_only=read_only, as_json=json)
