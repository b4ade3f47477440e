"""`viewtail archive` and `viewtail restore`: their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from viewtail.cli.each import in_each
from viewtail.cli.options import DryRun, MaxThreads, Yes

EventTable = Annotated[
    str, typer.Argument(metavar="TABLE", help="A table of event-sourced entities: SCHEMA.TABLE, on the primary.")
]
MovedRows = Annotated[
    float, typer.Option(metavar="N", help="Read or move at most N events a second; 0: no limit.", min=0, max=1e9)
]
OlderThan = Annotated[str, typer.Option(metavar="TIME", help="Events that are older: 90m, 24h, 90d.")]
KeepLast = Annotated[
    bool,
    typer.Option(
        "--keep-last",
        help="Changes nothing: each entity's newest event always stays, since the entity's state is in it.",
    ),
]
IntoTable = Annotated[
    str | None,
    typer.Option("--into", metavar="SCHEMA.TABLE", help="The archive table; by default TABLE_archive beside it."),
]
IntoFiles = Annotated[
    Path | None,
    typer.Option(
        "--into-files",
        metavar="FOLDER",
        help="Files for the states, compressed, with checksums; the archive table keeps what answers commands.",
    ),
]


def archive(
    context: typer.Context,
    table: EventTable,
    older_than: OlderThan,
    _keep_last: KeepLast = False,
    into: IntoTable = None,
    into_files: IntoFiles = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    max_rows_per_second: MovedRows = 0,
    max_threads_running: MaxThreads = 25,
) -> int:
    """Move old events of event-sourced entities to an archive table, or into files.

    An entity's newest event always stays. Archived commands keep their answers, and views stay as they are. The command
    moves a few hundred events in a transaction, rests after each, and backs off while the server is busy. Killed or
    stopped in between, the same command goes on.
    """
    from viewtail.commands import archive as commands

    how = commands.How(dry_run, yes, max_rows_per_second, max_threads_running)
    commands.check_archive(table, older_than, into, into_files)
    return in_each(context.obj, commands.archive, table, how, older_than=older_than, into=into, into_files=into_files)


RestoredEntity = Annotated[str | None, typer.Option("--entity", metavar="ID", help="The events of one entity.")]
RestoreAll = Annotated[bool, typer.Option("--all", help="All archived events.")]
FromFile = Annotated[Path | None, typer.Option("--from", metavar="FILE", help="The events of one file.")]


def restore(
    context: typer.Context,
    table: EventTable,
    entity: RestoredEntity = None,
    all_events: RestoreAll = False,
    from_file: FromFile = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    max_rows_per_second: MovedRows = 0,
    max_threads_running: MaxThreads = 25,
) -> int:
    """Bring archived events back into their table: of an entity, all of them, or those of a file.

    The checksums of the files come first; of a damaged one nothing is used. An event that is there already is left, if
    it is the same; otherwise the command ends with an error that names it. Stopped, the same command goes on.
    """
    from viewtail.commands import archive as commands

    how = commands.How(dry_run, yes, max_rows_per_second, max_threads_running)
    commands.check_restore(table, entity=entity, is_all=all_events, from_file=from_file)
    return in_each(context.obj, commands.restore, table, how, entity=entity, from_file=from_file)
