"""The command line: names, options and help of every command, and how errors end it.

What a command does is in viewtail/commands/. A module there is imported when its command is called: `--help` is quick,
and no command pays for the clients of another. Exit codes: 0 good, 1 something is wrong, 2 misuse.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
import typer.exceptions

from changes.errors import ViewtailError, once, place_of

app = typer.Typer(
    name="viewtail",
    help=(
        "Keeps MySQL index tables, Redis keys, Elasticsearch documents and Kafka topics in step with MySQL tables. It "
        "reads the binlog. Declare views in views.py; name servers in VIEWTAIL_* variables or viewtail.toml.\n\n"
        "Exit codes: 0 good, 1 something is wrong, 2 misuse."
    ),
    epilog="A first time: viewtail init, viewtail check, viewtail run. Then: viewtail status.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# What commands take, in the order of the commands.
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings file; by default $VIEWTAIL_CONFIG, or viewtail.toml in the working directory.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
ViewName = Annotated[
    str, typer.Argument(metavar="VIEW", help="A view's name, or STORE:NAME where two stores have one of that name.")
]
Source = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="mysql://USER:PASSWORD@HOST:PORT/SCHEMA; by default the source of the settings. viewtail writes a "
        "password that is in it into viewtail.toml.",
    ),
]
Schema = Annotated[str | None, typer.Option(metavar="NAME", help="The schema to read; by default the address's.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
PrintGrants = Annotated[
    bool,
    typer.Option(
        "--print-grants",
        help="Print the GRANT statements and kafka-acls.sh commands that viewtail needs. Asks no server.",
    ),
]
_KEY = "The entity's key. Join several columns by ':'; write bytes in hexadecimal."
_VALUES = "Values of the value columns, in order. The last ones may be left out."
Key = Annotated[str, typer.Argument(metavar="KEY", help=_KEY)]
Values = Annotated[list[str], typer.Argument(metavar="VALUE...", help=_VALUES)]
Limit = Annotated[int, typer.Option(metavar="N", help="Return at most N rows.", min=1, max=10_000)]
Query = Annotated[
    str,
    typer.Argument(metavar="QUERY", help='Words, "phrases", prefix*, -without, this | that. Every word must occur.'),
]
Fields = Annotated[
    list[str] | None,
    typer.Option("--field", metavar="NAME", help="Search only this field (NAME or NAME^BOOST); repeatable."),
]
Page = Annotated[int, typer.Option(metavar="N", help="Page number, from 1.")]
Size = Annotated[int, typer.Option(metavar="N", help="Hits on a page.")]
OfKey = Annotated[bool, typer.Option("--key", help="Print that of a message's key, instead of its value.")]
Replayed = Annotated[list[str] | None, typer.Argument(metavar="[VIEW...]", help="The views to backfill again.")]
All = Annotated[bool, typer.Option("--all", help="Every view.")]
NewHistory = Annotated[
    bool,
    typer.Option(
        "--new-history", help="Every view, when the source does not continue the old history. Begins a new epoch there."
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="What the binlog says changed since then: 2026-11-22T03:00, or 03:00 for the last time that it was three. "
        "In UTC, unless the time says otherwise (+01:00). Needs --into.",
    ),
]
Into = Annotated[
    str | None,
    typer.Option(
        metavar="TOPIC",
        help="Publish that into a topic of its own, made like the view's. VIEW is one Topic; its own stays as it is.",
    ),
]
Verified = Annotated[list[str] | None, typer.Argument(metavar="[VIEW...]", help="The views; by default all of them.")]
Repair = Annotated[bool, typer.Option("--repair", help="Write what is wrong again, through the guard.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing: say what would be written.")]
Sample = Annotated[
    float | None, typer.Option(metavar="PERCENT", help="Compare a sample of the rows, and say what that proves.")
]
MaxRows = Annotated[float, typer.Option(metavar="N", help="Read at most N rows a second; 0: no limit.", min=0)]
MaxThreads = Annotated[
    int, typer.Option(metavar="N", help="Wait while the source runs more statements than that at once.", min=1)
]
Migration = Annotated[Path, typer.Argument(metavar="FILE.sql", help="A file with the migration's statements.")]
Database = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The database of names without one; by default the database of the views."),
]
Offline = Annotated[bool, typer.Option("--offline", help="Ask no server. Only what the views name is known then.")]


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"viewtail {version('viewtail')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]
RoleOption = Annotated[
    Literal["all", "tail", "project"],
    typer.Option(help="tail: publish topics; project: keep the other views; all: both."),
]


@app.callback()
def _options(context: typer.Context, config: Config = None, _is_version: Version = False) -> None:
    context.obj = config


@app.command()
def init(context: typer.Context, source: Source = None, schema: Schema = None, force: Force = False) -> int:
    """Write a first views.py and viewtail.toml from a schema.

    The views are examples over real tables and columns; edit them. Only you can read the settings file (mode 0600).
    The command overwrites no file and changes no server.
    """
    from viewtail.commands.init import init as command

    return command(context.obj, source=source, schema=schema, is_forced=force)


@app.command()
def check(context: typer.Context, json: Json = False, print_grants: PrintGrants = False) -> int:
    """Check every requirement of the source and the stores.

    Each line that is not ok says what viewtail saw, why it matters, and the SQL or setting to run. The command changes
    nothing. It exits 1 when a requirement fails; a warning alone does not count.
    """
    from viewtail.commands import check as commands

    if print_grants:
        return commands.print_grants(context.obj)
    return commands.check(context.obj, as_json=json)


@app.command()
def run(context: typer.Context, role: RoleOption = "all") -> int:
    """Keep all views up to date until SIGTERM or Ctrl-C; backfill new ones first.

    Each store has its own process, so a store that is away stops its own views only. A stop finishes the batch and
    saves the offset. A second `run` stands by and takes over when the first is gone. Logs go to stderr, metrics to
    127.0.0.1:9464/metrics.
    """
    from viewtail.commands.run import run as command
    from viewtail.roles import Role

    return command(context.obj, Role(role))


@app.command()
def status(context: typer.Context, json: Json = False) -> int:
    """Show each pipeline and view: state, lag, rate, position, backfill, parked keys.

    Needs no running viewtail. Exits 1 when a pipeline is down or behind, a view is halted, or keys are parked. The
    lines below the table say what to do.
    """
    from viewtail.commands.status import status as command

    return command(context.obj, as_json=json)


@app.command()
def get(context: typer.Context, view: ViewName, key: Key, json: Json = False) -> int:
    """Read one entity from a view by its key; shows the version too.

    Exits 1 when the view has no such record.
    """
    from viewtail.commands.reading import get as command

    return command(context.obj, view, key, as_json=json)


@app.command()
def find(context: typer.Context, view: ViewName, value: Values, limit: Limit = 100, json: Json = False) -> int:
    """Find the canonical rows of entities by an indexed value, or of a Redis set by the values that name it.

    Reads the keys from the index table or the set, fetches the rows from the source, and keeps those that have the
    value now. So a late index never returns a row that does not match. Exits 0 also when no row matches.
    """
    from viewtail.commands.reading import find as command

    return command(context.obj, view, value, limit=limit, as_json=json)


@app.command()
def search(
    context: typer.Context,
    view: ViewName,
    query: Query,
    field: Fields = None,
    page: Page = 1,
    size: Size = 10,
    json: Json = False,
) -> int:
    """Search a SearchIndex view with a simple query string, best hits first.

    A search finds a change once the index has refreshed, after about a second.
    """
    from viewtail.commands.reading import search as command

    return command(context.obj, view, query, fields=field, page=page, size=size, as_json=json)


@app.command()
def schema(context: typer.Context, view: ViewName, key: OfKey = False) -> int:
    """Print the JSON Schema of a topic's messages, for those who consume them.

    It is that of the table as it is now; the command asks the source for it, and no broker. A tombstone, which is a
    message without a value, is no part of it.
    """
    from viewtail.commands.schema import schema as command

    return command(context.obj, view, of_key=key)


@app.command()
def replay(
    context: typer.Context,
    view: Replayed = None,
    all_views: All = False,
    new_history: NewHistory = False,
    since: Since = None,
    into: Into = None,
) -> int:
    """Backfill views again from their tables, in place, while readers read them.

    A halted view goes on after it, once you have corrected the reason. A running viewtail begins within seconds;
    without one, the next `viewtail run` does it.

    With --since and --into, nothing is backfilled: every change of a Topic since a time is published again, once and in
    order, into a topic of its own. The command does it itself. The same command goes on with one that was stopped.
    """
    from viewtail.commands import replay as command

    if since is not None or into is not None:
        if since is None or into is None or all_views or new_history or view is None or len(view) != 1:
            raise typer.BadParameter("write: viewtail replay VIEW --since TIME --into TOPIC", param_hint="--since")
        from viewtail.commands.stretch import replay_since

        return replay_since(context.obj, view[0], since, into)
    if not new_history:
        return command.replay(context.obj, view or [], all_views=all_views)
    if view or all_views:
        raise typer.BadParameter("it is for every view; leave VIEW and --all out", param_hint="--new-history")
    return command.replay_new_history(context.obj)


@app.command()
def verify(
    context: typer.Context,
    view: Verified = None,
    repair: Repair = False,
    dry_run: DryRun = False,
    sample: Sample = None,
    max_rows_per_second: MaxRows = 0,
    max_threads_running: MaxThreads = 25,
    json: Json = False,
) -> int:
    """Compare views with their tables, both ways, while they are written; exits 1 where one differs.

    What differs only because the pipeline is behind does not count. A whole pass without a difference proves the view
    through the moment at which the pass began: `status` shows it. The command needs a running viewtail, backs off when
    the source is busy, and goes on where it was stopped. --repair writes what is wrong again through the guard, and
    compares it once more. A version that no history explains is replaced, which nothing else does; the list names it.
    """
    from viewtail.commands.verify import Options
    from viewtail.commands.verify import verify as command

    share = 1.0 if sample is None else sample / 100
    options = Options(
        is_repair=repair,
        is_dry_run=dry_run,
        share=share,
        rows_a_second=max_rows_per_second,
        max_threads_running=max_threads_running,
        as_json=json,
    )
    return command(context.obj, view or [], options)


@app.command()
def forget(context: typer.Context, view: ViewName) -> int:
    """Remove a view that is no longer declared, and its dead letters, from `status`; its data stays.

    What it shows stays in its store; the command says what that is and how to drop it. A view that is declared, or that
    a running viewtail still keeps, is refused.
    """
    from viewtail.commands.forget import forget as command

    return command(context.obj, view)


contract = typer.Typer(help="What the views need of their tables.", no_args_is_help=True)
app.add_typer(contract, name="contract")


@contract.command("check")
def contract_check(
    context: typer.Context, file: Migration, database: Database = None, offline: Offline = False, json: Json = False
) -> int:
    """Tell which views each statement of a migration would break, before it runs.

    A statement breaks a view if viewtail would halt the view, or empty it. A statement that viewtail cannot read also
    breaks the views of its table. The command changes nothing. It exits 1 when a view breaks.
    """
    from viewtail.commands.contract import check as command

    return command(context.obj, file, database=database, is_offline=offline, as_json=json)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; every error is one message on stderr."""
    sys.exit(_main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="viewtail", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except ViewtailError as error:
        # What `run` does by itself, a command that ends does not.
        _say(once(error))
        return error.exit_code
    except typer.exceptions.TyperException as error:
        _say_misuse(error)
        return error.exit_code
    except (BrokenPipeError, SystemExit):  # typer makes the one into the other, and exits for nothing else
        _silence_stdout()
        return 0  # the reader had enough
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        if isinstance(error, OSError) and _is_of_output(error):
            _say(f"the output cannot be written: {error.strerror}")
            _silence_stdout()
        else:
            _say(_unexpected(error))
        return 1


def _is_of_output(error: OSError) -> bool:
    """Whether a full disk or a device that takes nothing is behind stdout."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG) and error.filename is None


def _say(message: str) -> None:
    from viewtail.logs import masked

    lines = masked(message).splitlines() or ["failed"]
    print("\n".join(f"viewtail: error: {line}" for line in lines), file=sys.stderr)


def _say_misuse(error: typer.exceptions.TyperException) -> None:
    """What is wrong with the command line, and where its help is."""
    message = error.format_message()
    if not message.strip():
        return  # nothing was given, and the help was printed
    context = getattr(error, "ctx", None)
    command = "viewtail" if context is None else context.command_path
    _say(f"{message.rstrip('.')}. See: {command} --help")


def _silence_stdout() -> None:
    """The interpreter flushes stdout once more when it ends, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _unexpected(error: Exception) -> str:
    """Where a fault of viewtail's own is. Its text stays out: nobody knows what it holds."""
    frames = traceback.extract_tb(error.__traceback__)
    calls = " < ".join(frame.name for frame in reversed(frames[-4:]))
    return f"{type(error).__name__}{place_of(error)} ({calls}): a fault in viewtail; please report this line"


if __name__ == "__main__":
    main()
