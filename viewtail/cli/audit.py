"""`viewtail audit`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.completing import view_names
from viewtail.cli.each import in_each
from viewtail.cli.options import Json, MaxRows, MaxThreads

Audited = Annotated[list[str], typer.Argument(metavar="VIEW...", help="The views.", autocompletion=view_names)]
AgainAfter = Annotated[
    str, typer.Option(metavar="TIME", help="Look again so long after a first look, at what differed: 5s, 1m.")
]


def audit(
    context: typer.Context,
    view: Audited,
    again_after: AgainAfter = "5s",
    max_rows_per_second: MaxRows = 0,
    max_threads_running: MaxThreads = 25,
    json: Json = False,
) -> int:
    """Compare an index, keys or a table that another tool keeps with what a view would have there; writes nothing.

    The view is declared as it is to be, under the name that readers use. What differs counts when it still does at a
    second look: missing, extra, stale, wrong by field, as a page of text or with --json. No value is printed but keys.
    Exits 1 where something differs. It needs no running viewtail, and only rights to read. What comes next: viewtail
    adopt.
    """
    from viewtail.commands.audit import Options
    from viewtail.commands.audit import audit as command
    from viewtail.commands.durations import seconds_of

    options = Options(
        again_after_s=seconds_of("--again-after", again_after),
        rows_a_second=max_rows_per_second,
        max_threads_running=max_threads_running,
        as_json=json,
    )
    return in_each(context.obj, command, view, options)
