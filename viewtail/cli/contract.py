"""`viewtail contract`: its commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from viewtail.cli.each import in_each
from viewtail.cli.group import Commands
from viewtail.cli.options import Json

group = Commands(help="What the views need of their tables.", no_args_is_help=True)


Migration = Annotated[
    Path, typer.Argument(metavar="FILE.sql", help="A file with the migration's statements; - is the standard input.")
]
Database = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The database of names without one; by default the database of the views."),
]
Offline = Annotated[bool, typer.Option("--offline", help="Ask no server. Only what the views name is known then.")]


@group.command("check")
def check(
    context: typer.Context, file: Migration, database: Database = None, offline: Offline = False, json: Json = False
) -> int:
    """Tell which views each statement of a migration would break, before it runs.

    A statement breaks a view if viewtail would halt the view, or empty it. The command changes nothing. It exits 1 when
    a view breaks, and 2 when it cannot read a statement: one that is misspelt, or that runs what the file does not show
    (CALL, EXECUTE, SOURCE).
    """
    from viewtail.commands.contract import check as command

    return in_each(context.obj, command, file, database=database, is_offline=offline, as_json=json)
