"""`viewtail serve`, `viewtail console` and `viewtail entities`: their options."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.group import Commands

Host = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Listen on it; by default host of the settings, 127.0.0.1.")
]
Port = Annotated[
    int | None, typer.Option(metavar="N", help="Listen on it; by default port of the settings.", min=0, max=65535)
]


def serve(context: typer.Context, host: Host = None, port: Port = None) -> int:
    """Serve commands to event-sourced entities, and their states, over HTTP until SIGTERM or Ctrl-C.

    POST /ENTITY/ID/COMMAND with an Idempotency-Key header, GET /ENTITY/ID, /openapi.json, /livez, /readyz. The entities
    are those of entities.py. A stop answers what was accepted. The command has no authentication: put a proxy that
    authenticates before it.
    """
    from viewtail.commands.serve import serve as command

    return command(context.obj, host=host, port=port)


def console(context: typer.Context, host: Host = None, port: Port = None) -> int:
    """Serve a page on which you see pipelines and views, live, and have commands run, until SIGTERM or Ctrl-C.

    `viewtail run` serves the same page while it runs; this command serves it of a whole fleet, wherever the processes
    are. Whoever reaches the address may read. To act, one signs in with console.token of the settings.
    """
    from viewtail.console.serving import console as command

    return command(context.obj, host=host, port=port)


entities = Commands(help="Event-sourced entities, as entities.py declares them.", no_args_is_help=True)


PrintSql = Annotated[
    bool, typer.Option("--print-sql", help="Print the CREATE TABLE statements for this server, and change nothing.")
]


@entities.command("create")
def create(context: typer.Context, print_sql: PrintSql = False) -> int:
    """Make the tables of the entities where they are missing, and their databases.

    A table that is there is not changed.
    """
    from viewtail.commands.entities import create as command

    return command(context.obj, is_printed=print_sql)


@entities.command("consume")
def consume(context: typer.Context) -> int:
    """Handle the commands of a Kafka topic until SIGTERM or Ctrl-C; their answers go to another topic.

    The topics are serve.commands_topic and serve.replies_topic of the settings. Several processes share the partitions.
    A command that is consumed twice takes effect once.
    """
    from viewtail.commands.entities import consume as command

    return command(context.obj)
