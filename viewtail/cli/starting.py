"""`viewtail init` and `viewtail check`: their options."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.each import in_each
from viewtail.cli.options import Json

Source = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="mysql://USER:PASSWORD@HOST:PORT/SCHEMA; by default the source of the settings. viewtail writes a "
        "password that is in it into viewtail.toml.",
    ),
]
Schema = Annotated[str | None, typer.Option(metavar="NAME", help="The schema to read; by default the address's.")]
FirstTables = Annotated[
    list[str] | None,
    typer.Option(
        "--table", metavar="[SCHEMA.]NAME", help="A table to write views of; repeat it for more. By default one."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]


def init(
    context: typer.Context,
    source: Source = None,
    schema: Schema = None,
    table: FirstTables = None,
    force: Force = False,
) -> int:
    """Write a first views.py and viewtail.toml from a schema.

    The views are examples over real tables and columns; edit them. Without --table they are of one table, one that has
    rows before an empty one. Only you can read the settings file (mode 0600).
    The command overwrites no file and changes no server.
    """
    from viewtail.commands.init import init as command

    return command(context.obj, source=source, schema=schema, tables=table or [], is_forced=force)


PrintGrants = Annotated[
    bool,
    typer.Option(
        "--print-grants",
        help="Print the GRANT statements and kafka-acls.sh commands that viewtail needs. Asks no server.",
    ),
]


People = Annotated[
    bool,
    typer.Option("--people", help="Print which columns with people's data go where, and in which form, and no more."),
]


Notify = Annotated[
    bool, typer.Option("--notify", help="Send a message to the webhook of \\[notify], to try it, and no more.")
]


def check(
    context: typer.Context,
    json: Json = False,
    print_grants: PrintGrants = False,
    people: People = False,
    notify: Notify = False,
) -> int:
    """Check every requirement of the source and the stores.

    Each line that is not ok says what viewtail saw, why it matters, and the SQL or setting to run. The command changes
    nothing. It exits 1 when a requirement fails; a warning alone does not count.
    """
    from viewtail.commands import check as commands

    if print_grants:
        return in_each(context.obj, commands.print_grants)
    if people:
        return in_each(context.obj, commands.print_people, as_json=json)
    if notify:  # the settings have one, however many deployments there are
        from viewtail.settings import load

        return commands.try_webhook(load(context.obj), as_json=json)
    return in_each(context.obj, commands.check, as_json=json)
