"""The command line: names, options and help of every command, and how errors end it.

What a command does is in viewtail/commands/. A module there is imported when its command is called: `--help` is quick,
and no command pays for the clients of another. Exit codes: 0 good, 1 something is wrong, 2 misuse.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import typer.core
import typer.exceptions
from typer.models import CommandFunctionType

from changes.errors import MisuseError, UnknownNameError, ViewtailError, once, place_of
from viewtail import light_imports, signals
from viewtail.interpreter import tune_command
from viewtail.shards import VARIABLE, NotOneShardError

if TYPE_CHECKING:
    from viewtail.commands.pausing import Wanted

_WITH_MODELS_OF_USERS = frozenset({"serve", "entities"})  # commands that load entities.py
_MAY_BE_EMPTY = "--key"  # that of a row may be


def _require_texts(command: Any, context: Any, arguments: Sequence[str]) -> None:
    """Refuse an empty text for an option: in a script it is a variable without a value, not an option left out."""
    given, *_ = command.make_parser(context).parse_args(list(arguments))
    for one in command.params:
        values = given.get(one.name)
        texts = values if isinstance(values, list) else [values]
        is_text = one.param_type_name == "option" and _MAY_BE_EMPTY not in one.opts
        if is_text and any(isinstance(text, str) and not text.strip() for text in texts):
            raise typer.BadParameter("it is empty: give it a value, or leave it out", ctx=context, param=one)


class _Command(typer.core.TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _require_texts(self, ctx, args)
        return super().parse_args(ctx, args)


class _Group(typer.core.TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _require_texts(self, ctx, args)
        return super().parse_args(ctx, args)


class _Commands(typer.Typer):
    """Of which each refuses an empty option."""

    def command(self, *names: Any, **given: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        return super().command(*names, cls=_Command, **given)


app = _Commands(
    name="viewtail",
    cls=_Group,
    help=(
        "Keeps MySQL index tables, Redis keys, Elasticsearch documents and Kafka topics in step with MySQL tables. It "
        "reads the binlog, or polls append-only tables by their ids. Declare views in views.py; name servers in "
        "VIEWTAIL_* variables or viewtail.toml.\n\n"
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
Watch = Annotated[bool, typer.Option("--watch", help="Show it on the whole terminal, again and again, until Ctrl-C.")]
Every = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="With --watch: how often to look; by default 2.", min=0.5, max=3600),
]
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
FirstTables = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="NAME", help="A table to write views of; repeat it for more. By default one."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
PrintGrants = Annotated[
    bool,
    typer.Option(
        "--print-grants",
        help="Print the GRANT statements and kafka-acls.sh commands that viewtail needs. Asks no server.",
    ),
]
_KEY = "The entity's key. Join several columns by ':'; write bytes in hexadecimal, with or without 0x."
_VALUES = (
    "Values of the value columns, in order. The last ones may be left out. Of a column of bytes a value is its text, "
    "or 0x and hexadecimal digits."
)
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
TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="Take the view's place in its store over from the deployment that has it."),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="What the binlog says changed since then: 2026-11-22T03:00, or 03:00 for the last time that it was three. "
        "In UTC, unless the time says otherwise (+01:00).",
    ),
]
Into = Annotated[
    str | None,
    typer.Option(
        metavar="TOPIC",
        help="Publish that into a topic of its own, made like the view's. VIEW is one Topic; its own stays as it is.",
    ),
]
Hold = Annotated[bool, typer.Option("--hold", help="Wait before the swap; the same command without it goes on.")]
Keep = Annotated[
    str, typer.Option(metavar="TIME", help="How long the former copy is kept after the swap: 90m, 24h, 7d.")
]
Hurry = Annotated[
    bool,
    typer.Option("--hurry", help="Fill and compare the copy at full speed; live changes may be late meanwhile."),
]
AcceptParked = Annotated[
    bool,
    typer.Option(
        "--accept-parked",
        help="Swap though keys are parked in the copy and not in what readers have: readers lose these.",
    ),
]
Rollback = Annotated[bool, typer.Option("--rollback", help="Give readers the former copy again.")]
Abort = Annotated[bool, typer.Option("--abort", help="Drop the copy that readers do not see. Asks first.")]
RebuildWithin = Annotated[
    float | None,
    typer.Option("--within", metavar="SECONDS", help="Give up after so long; what was asked for stays.", min=0),
]
SampledRows = Annotated[int, typer.Option("--sample", metavar="N", help="Rows to look at.", min=1, max=10_000)]
WaitedKey = Annotated[str | None, typer.Argument(metavar="[KEY]", help=_KEY)]
WaitedVersion = Annotated[int | None, typer.Option("--version", metavar="N", help="Until KEY has this version.")]
WaitedPosition = Annotated[
    str | None, typer.Option("--position", metavar="FILE:POSITION", help="Until this place in the source's binlog.")
]
WaitedGtid = Annotated[str | None, typer.Option("--gtid", metavar="GTID", help="Until this transaction of the source.")]
To = Annotated[Literal["poll", "binlog"], typer.Option("--to", help="How the source is read from then on.")]
SwitchWithin = Annotated[
    float,
    typer.Option("--within", metavar="SECONDS", help="How long to wait for transactions, views and the stop.", min=1),
]
Within = Annotated[float, typer.Option(metavar="SECONDS", help="At most so long.", min=0)]
Keys = Annotated[list[str] | None, typer.Option("--key", metavar="KEY", help="This entity; repeatable.")]
KeysFrom = Annotated[
    Path | None, typer.Option("--keys-from", metavar="FILE", help="The entities of a file, a key a line; - is stdin.")
]
IsParked = Annotated[bool, typer.Option("--parked", help="The entities that are parked.")]
Begin = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="FILE:POSITION", help="What the binlog says changed from there on, up to --to or now."
    ),
]
End = Annotated[str | None, typer.Option("--to", metavar="FILE:POSITION", help="The end of --from.")]
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="SQL", help="The entities of which the canonical row meets a condition."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")]
IsAwaited = Annotated[
    bool, typer.Option("--wait", help="Wait until whole views are backfilled, and show how far it is.")
]
Verified = Annotated[list[str] | None, typer.Argument(metavar="[VIEW...]", help="The views; by default all of them.")]
Repair = Annotated[bool, typer.Option("--repair", help="Write what is wrong again, through the guard.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing: say what would be written.")]
Sample = Annotated[
    float | None,
    typer.Option(
        metavar="PERCENT", help="Compare a sample of the rows, and say what that proves.", min=0.0001, max=100
    ),
]
MaxRows = Annotated[
    float, typer.Option(metavar="N", help="Read at most N rows a second; 0: no limit.", min=0, max=1_000_000_000)
]
MaxThreads = Annotated[
    int, typer.Option(metavar="N", help="Wait while the source runs more statements than that at once.", min=1)
]
Paused = Annotated[
    list[str] | None, typer.Argument(metavar="[VIEW...]", help="Views; the pipelines that keep them go on.")
]
Pipelines = Annotated[
    list[str] | None,
    typer.Option(
        "--pipeline",
        metavar="NAME",
        help="A pipeline as `status` names it, or a store: all pipelines that write it; repeatable.",
    ),
]
AllPipelines = Annotated[bool, typer.Option("--all", help="Every pipeline.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why; `status` and readers show it.")]
OfView = Annotated[str | None, typer.Argument(metavar="[VIEW]", help="Only this view's.")]
LetterKey = Annotated[str, typer.Argument(metavar="KEY", help="The key as `dead-letters list` prints it.")]
LetterKeys = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY...]", help="Keys as `dead-letters list` prints them; without one, all of the view."),
]
Forgotten = Annotated[
    str,
    typer.Argument(
        metavar="VIEW|ENTITY", help="A view; or, with KEY, a canonical table: SCHEMA.TABLE, or the table's name alone."
    ),
]
ForgottenKey = Annotated[str | None, typer.Argument(metavar="[KEY]", help=f"{_KEY} Its row is gone already.")]
KeepData = Annotated[
    bool, typer.Option("--keep-data", help="Of a view: forget what viewtail knows, and leave its data where it is.")
]
WithTopic = Annotated[
    bool, typer.Option("--with-topic", help="Of a Topic view: delete the topic too. Its consumers lose it.")
]
By = Annotated[
    str | None,
    typer.Option(metavar="COLUMN,...", help="Of an entity: the columns of KEY, where views have several keys."),
]
PASSED_WITHIN_S = 60.0
PassedWithin = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.1,
        help=f"Of an entity: wait so long for the pipelines; {PASSED_WITHIN_S:.0f} by default.",
    ),
]
EventTable = Annotated[
    str, typer.Argument(metavar="TABLE", help="A table of event-sourced entities: SCHEMA.TABLE, on the primary.")
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
MovedRows = Annotated[
    float, typer.Option(metavar="N", help="Read or move at most N events a second; 0: no limit.", min=0, max=1e9)
]
RestoredEntity = Annotated[str | None, typer.Option("--entity", metavar="ID", help="The events of one entity.")]
RestoreAll = Annotated[bool, typer.Option("--all", help="All archived events.")]
FromFile = Annotated[Path | None, typer.Option("--from", metavar="FILE", help="The events of one file.")]
Migration = Annotated[
    Path, typer.Argument(metavar="FILE.sql", help="A file with the migration's statements; - is the standard input.")
]
Database = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The database of names without one; by default the database of the views."),
]
Offline = Annotated[bool, typer.Option("--offline", help="Ask no server. Only what the views name is known then.")]
Host = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Listen on it; by default serve.host of the settings, 127.0.0.1.")
]
Port = Annotated[
    int | None,
    typer.Option(metavar="N", help="Listen on it; by default serve.port of the settings, 8080.", min=0, max=65535),
]
PrintSql = Annotated[
    bool, typer.Option("--print-sql", help="Print the CREATE TABLE statements for this server, and change nothing.")
]


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
    light_imports.structlog()
    from viewtail import logs

    logs.configure()  # before anything is logged: structlog prints on stdout, where programs read results
    context.obj = config


@app.command()
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
def status(context: typer.Context, json: Json = False, watch: Watch = False, every: Every = None) -> int:
    """Show each pipeline and view: state, lag, rate, position, backfill, parked keys.

    Needs no running viewtail. Exits 1 when a pipeline is down or behind, a view is halted, or keys are parked; what is
    paused is behind after a minute. A view that is new or being backfilled is no fault: `viewtail wait` waits for it.
    The lines below the table say what to do.

    With --watch the terminal shows all that, and how the lag was in the last three minutes, until Ctrl-C; the exit code
    is 0 then. It asks MySQL alone, four questions each time.
    """
    if every is not None and not watch:
        raise typer.BadParameter("it is how often --watch looks; add --watch", param_hint="--every")
    if watch:
        if json:
            raise typer.BadParameter("leave --json out: a program calls viewtail status --json", param_hint="--watch")
        from viewtail.commands.watch import watch as watching

        return watching(context.obj, every or 2.0)
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
    take_over: TakeOver = False,
    key: Keys = None,
    keys_from: KeysFrom = None,
    parked: IsParked = False,
    since: Since = None,
    begin: Begin = None,
    end: End = None,
    where: Where = None,
    into: Into = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    max_rows_per_second: MaxRows = 0,
    wait: IsAwaited = False,
) -> int:
    """Project canonical rows again, in place, while readers read: a view, or some entities of it.

    A whole VIEW is backfilled again by the running viewtail, within seconds; without one, by the next `viewtail run`. A
    halted view goes on after it, once you have corrected the reason.

    Some entities (--key, --keys-from, --parked, --since, --from, --where) are written by the command itself, as their
    rows are now; a key without a row gets its tombstone. The same command goes on with one that was stopped. Old events
    are never sent again as they were: the view has newer versions, and would rightly refuse them. Up to 1,000 are
    compared with their rows at the end. Exits 1 where one is parked, or differs still.

    With --into, every change of a Topic since a time is published again, once and in order, into a topic of its own.

    With --take-over, VIEW gets the place of another deployment's view: that one halts, what it left is dropped.

    `viewtail replays` lists what was done, when and by whom.
    """
    from viewtail.commands.replay_keys import How, Selected
    from viewtail.commands.which_replay import Asked, run

    selected = Selected(
        keys=key or (), keys_from=keys_from, is_parked=parked, since=since, begin=begin, end=end, where=where
    )
    asked = Asked(
        views=view or (),
        all_views=all_views,
        selected=selected,
        into=into,
        is_new_history=new_history,
        is_take_over=take_over,
        how=How(is_dry_run=dry_run, is_yes=yes, rows_a_second=max_rows_per_second),
        is_awaited=wait,
    )
    return run(context.obj, asked)


@app.command()
def replays(context: typer.Context, limit: Limit = 20, json: Json = False) -> int:
    """List what operators had done to views: replays, verified and repaired views; who, when, what, result."""
    from viewtail.commands.replay import replays as command

    return command(context.obj, limit=limit, as_json=json)


@app.command()
def wait(
    context: typer.Context,
    view: ViewName,
    key: WaitedKey = None,
    version: WaitedVersion = None,
    position: WaitedPosition = None,
    gtid: WaitedGtid = None,
    within: Within = 10.0,
) -> int:
    """Wait until a view has everything that is committed by now, or up to a version, position or GTID.

    For scripts that read what they wrote. In Python: viewtail.wait_for(...). A view that is being backfilled is waited
    for. Exits 1 when the time is over, when the view is halted or paused, or when KEY is parked.
    """
    from operations.waiting import Wanted
    from viewtail.commands.waiting import wait as command

    wanted = Wanted(version=version, position=position, gtid=gtid)
    return command(context.obj, view, key, wanted, within_s=within)


@app.command()
def why(context: typer.Context, view: ViewName, key: Key, json: Json = False) -> int:
    """Tell why a view shows what it shows of one entity, and what to run next.

    Looks at the row, at what the store holds, at the pipeline, at the dead letters, and for the entity's last change in
    the binlog. Exits 0 when the view is right: current, rightly absent, or kept out by `where`. Writes nothing but a
    watermark.
    """
    from viewtail.commands.why import why as command

    return command(context.obj, view, key, as_json=json)


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
    through the moment at which the pass began: `status` shows it. Without a running viewtail, or while the pipeline is
    paused, the view is compared as it stands, and nothing is proven. The command backs off when the source is busy, and
    goes on where it was stopped. --repair writes what is wrong again through the guard, and compares it once more. A
    version that no history explains is replaced, which nothing else does; the list names it.
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


def _wanted(views: list[str] | None, pipelines: list[str] | None, is_all: bool) -> Wanted:
    from viewtail.commands.pausing import Wanted

    return Wanted(views or [], pipelines or [], is_all)


@app.command()
def switch(context: typer.Context, to: To, within: SwitchWithin = 300.0) -> int:
    """Give the binlog up for polling, or take it up again: no view is backfilled, and nothing is lost.

    Call it while `viewtail run` runs, and stop that when this says so; then set the mode and start it again. Where the
    binlog can be read no more, stop `viewtail run` first: --to poll then has all rows read again, in place. Views whose
    entity is not append_only with order= need the binlog: the command names them, and changes nothing.
    """
    from viewtail.commands.switch import switch as command

    return command(context.obj, to, within)


@app.command()
def rebuild(
    context: typer.Context,
    view: ViewName,
    hold: Hold = False,
    hurry: Hurry = False,
    accept_parked: AcceptParked = False,
    keep: Keep = "24h",
    rollback: Rollback = False,
    abort: Abort = False,
    within: RebuildWithin = None,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Build a second copy of a view beside the one that readers have, compare it with its table, and swap the two.

    Readers never see an empty or half view. A running viewtail fills the copy while changes go on. After the swap the
    former copy is kept up to date for a while: --rollback swaps back. The same command goes on with one that was
    stopped or killed. Ctrl-C leaves the copy as it is. The work gives way to live changes, so it takes long while many
    come; --hurry, given at once or with the same command later, is for a view that is wrong now. --within gives up
    after that time, says how far it is, and exits 1.
    """
    from viewtail.commands import rebuild as commands

    if (rollback and abort) or (hold and (rollback or abort)):
        raise typer.BadParameter("give one of --hold, --rollback and --abort", param_hint="--hold")
    if accept_parked and (rollback or abort):
        raise typer.BadParameter(
            "it has no effect with --rollback or --abort: leave it out", param_hint="--accept-parked"
        )
    if rollback:
        return commands.roll_back(context.obj, view, within_s=within, as_json=json)
    if abort:
        return commands.abort(context.obj, view, within_s=within, is_yes=yes)
    return commands.rebuild(
        context.obj,
        view,
        keep=keep,
        is_held=hold,
        is_hurried=hurry,
        accepts_parked=accept_parked,
        within_s=within,
        as_json=json,
    )


@app.command()
def preview(context: typer.Context, view: ViewName, sample: SampledRows = 100, json: Json = False) -> int:
    """Show what the declaration in views.py would change in a view, on a sample of real rows.

    For an edited views.py, before you restart `viewtail run` with it. The command writes nothing. It exits 1 when rows
    of the sample could not be projected.
    """
    from viewtail.commands.preview import preview as command

    return command(context.obj, view, sample=sample, as_json=json)


@app.command()
def pause(
    context: typer.Context,
    view: Paused = None,
    pipeline: Pipelines = None,
    all_pipelines: AllPipelines = False,
    reason: Reason = None,
) -> int:
    """Pause pipelines or views; they stay paused, over restarts too, until you resume them.

    A paused pipeline stops within seconds, between two batches. It reads and writes nothing and keeps its offset, so it
    loses nothing as long as the source keeps its changes. A paused view gets no changes while its pipeline goes on:
    `viewtail resume` backfills it. To pause what is paused changes nothing.
    """
    from viewtail.commands import pausing as command

    return command.pause(context.obj, _wanted(view, pipeline, all_pipelines), reason)


@app.command()
def resume(
    context: typer.Context, view: Paused = None, pipeline: Pipelines = None, all_pipelines: AllPipelines = False
) -> int:
    """Resume pipelines or views that were paused.

    A pipeline goes on at its offset. A view is backfilled again in place, while readers read it: it missed what changed
    meanwhile. To resume what runs changes nothing.
    """
    from viewtail.commands import pausing as command

    return command.resume(context.obj, _wanted(view, pipeline, all_pipelines))


@app.command()
def forget(
    context: typer.Context,
    what: Forgotten,
    key: ForgottenKey = None,
    yes: Yes = False,
    keep_data: KeepData = False,
    with_topic: WithTopic = False,
    by: By = None,
    timeout: PassedWithin = None,
    json: Json = False,
) -> int:
    """Drop a view that is no longer declared, or erase one entity everywhere.

    viewtail forget VIEW drops what the view left: its table, keys or index, its dead letters, and last what viewtail's
    own tables know of it. It says first what that is, and asks. Killed in between, the same command goes on. A topic
    stays, unless you say --with-topic. The command refuses a view that is declared, or that a running viewtail keeps.

    viewtail forget ENTITY KEY proves that nothing of an entity is left after its row is gone: delete the row in MySQL
    first. The command waits until the pipelines have passed the delete, looks in every view, and erases what is there
    all the same. It prints each place, what it found there, and what stays until when. It exits 1 when anything else
    stays.
    """
    if key is None:
        if by is not None or timeout is not None:
            raise typer.BadParameter("they are for: viewtail forget ENTITY KEY", param_hint="--by, --timeout")
        from viewtail.commands.forget import Wishes
        from viewtail.commands.forget import forget as command

        if keep_data and with_topic:
            raise typer.BadParameter("it contradicts --keep-data", param_hint="--with-topic")
        wishes = Wishes(keeps_data=keep_data, drops_topic=with_topic, is_sure=yes, as_json=json)
        return command(context.obj, what, wishes)
    if keep_data or with_topic:
        raise typer.BadParameter("they are for: viewtail forget VIEW", param_hint="--keep-data, --with-topic")
    from viewtail.commands.erase import erase

    timeout_s = PASSED_WITHIN_S if timeout is None else timeout
    return erase(context.obj, what, key, by=by, timeout_s=timeout_s, as_json=json)


@app.command()
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
    from viewtail.commands.archive import How
    from viewtail.commands.archive import archive as command

    how = How(
        is_dry_run=dry_run, is_yes=yes, rows_a_second=max_rows_per_second, max_threads_running=max_threads_running
    )
    return command(context.obj, table, how, older_than=older_than, into=into, into_files=into_files)


@app.command()
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
    from viewtail.commands.archive import How
    from viewtail.commands.archive import restore as command

    how = How(
        is_dry_run=dry_run, is_yes=yes, rows_a_second=max_rows_per_second, max_threads_running=max_threads_running
    )
    return command(context.obj, table, how, entity=entity, is_all=all_events, from_file=from_file)


dead_letters = _Commands(
    help="Keys that could not be applied: which, why, since when. They hold no other value of a row.",
    no_args_is_help=True,
)
app.add_typer(dead_letters, name="dead-letters")


@dead_letters.command("list")
def dead_letters_list(context: typer.Context, view: OfView = None, limit: Limit = 100, json: Json = False) -> int:
    """List parked keys, those that were refused last first: cause, count, first and last time.

    Exits 0 also when there are none; `viewtail status` exits 1 while there are some.
    """
    from viewtail.commands.dead_letters import list_letters as command

    return command(context.obj, view, limit=limit, as_json=json)


@dead_letters.command("show")
def dead_letters_show(context: typer.Context, view: ViewName, key: LetterKey, json: Json = False) -> int:
    """Show all that is known of one parked key.

    Exits 1 when the key is not parked.
    """
    from viewtail.commands.dead_letters import show as command

    return command(context.obj, view, key, as_json=json)


@dead_letters.command("redrive")
def dead_letters_redrive(
    context: typer.Context, view: OfView = None, key: LetterKeys = None, all_views: All = False, yes: Yes = False
) -> int:
    """Try parked keys again: their rows as they are now are projected and written.

    A key that is applied is parked no more; a key whose row is gone gets its tombstone. Without KEY all keys of the
    view; with --all those of every view. Exits 1 when a key is refused again, or differs from its row still.
    """
    from viewtail.commands.dead_letters import redrive as command

    if (view is None) != all_views:
        raise typer.BadParameter("name a VIEW, or every view with --all", param_hint="VIEW")
    return command(context.obj, view, key or [], is_yes=yes)


@dead_letters.command("drop")
def dead_letters_drop(context: typer.Context, view: ViewName, key: LetterKeys = None, yes: Yes = False) -> int:
    """Forget that keys were parked; the view keeps what it has for them.

    It repairs nothing: what the view shows for such a key is not what its row is now, and `viewtail verify` finds it. A
    later change of the key is applied, or parked again. The command asks first. Exits 1 when a key is not parked.
    """
    from viewtail.commands.dead_letters import drop as command

    return command(context.obj, view, key or [], is_yes=yes)


contract = _Commands(help="What the views need of their tables.", no_args_is_help=True)
app.add_typer(contract, name="contract")


@contract.command("check")
def contract_check(
    context: typer.Context, file: Migration, database: Database = None, offline: Offline = False, json: Json = False
) -> int:
    """Tell which views each statement of a migration would break, before it runs.

    A statement breaks a view if viewtail would halt the view, or empty it. The command changes nothing. It exits 1 when
    a view breaks, and 2 when it cannot read a statement: one that is misspelt, or that runs what the file does not show
    (CALL, EXECUTE, SOURCE).
    """
    from viewtail.commands.contract import check as command

    return command(context.obj, file, database=database, is_offline=offline, as_json=json)


@app.command()
def serve(context: typer.Context, host: Host = None, port: Port = None) -> int:
    """Serve commands to event-sourced entities, and their states, over HTTP until SIGTERM or Ctrl-C.

    POST /ENTITY/ID/COMMAND with an Idempotency-Key header, GET /ENTITY/ID, /openapi.json, /livez, /readyz. The entities
    are those of entities.py. A stop answers what was accepted. The command asks nobody who they are: put a proxy that
    does before it.
    """
    from viewtail.commands.serve import serve as command

    return command(context.obj, host=host, port=port)


entities = _Commands(help="Event-sourced entities, as entities.py declares them.", no_args_is_help=True)
app.add_typer(entities, name="entities")


@entities.command("create")
def entities_create(context: typer.Context, print_sql: PrintSql = False) -> int:
    """Make the tables of the entities where they are missing, and their databases.

    A table that is there is not changed.
    """
    from viewtail.commands.entities import create as command

    return command(context.obj, is_printed=print_sql)


@entities.command("consume")
def entities_consume(context: typer.Context) -> int:
    """Handle the commands of a Kafka topic until SIGTERM or Ctrl-C; their answers go to another topic.

    The topics are serve.commands_topic and serve.replies_topic of the settings. Several processes share the partitions.
    A command that is consumed twice takes effect once.
    """
    from viewtail.commands.entities import consume as command

    return command(context.obj)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; every error is one message on stderr."""
    tune_command()
    sys.exit(_main(arguments))


def _main(arguments: Sequence[str] | None, unknown: list[str] | None = None) -> int:
    """`unknown` takes what a deployment does not know, which another one may: the name of a view, say."""
    try:
        return _command(arguments)
    except NotOneShardError as error:
        return _in_each(arguments, error.shards)
    except ViewtailError as error:
        said = once(error)  # what `run` does by itself, a command that ends does not
        if unknown is not None and isinstance(error, UnknownNameError):
            unknown.append(said)
        else:
            _say(said)
        return error.exit_code
    except typer.exceptions.TyperException as error:
        _say_misuse(error)
        return error.exit_code
    except (BrokenPipeError, SystemExit):  # typer makes the one into the other, and exits for nothing else
        _silence_stdout()
        return 0  # the reader had enough
    except (KeyboardInterrupt, typer.Abort):
        return signals.EXIT_STOPPED
    except Exception as error:
        if isinstance(error, OSError) and _is_of_output(error):
            _say(f"the output cannot be written: {error.strerror}")
            _silence_stdout()
        else:
            _say(_unexpected(error))
        return 1


def _command(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    for word in words:
        if word.encode(errors="replace").decode() != word:
            raise MisuseError(f"the argument {word!a} is not UTF-8, and no server would take it as it is")
    are_users_models = _WITH_MODELS_OF_USERS & {*words}
    with nullcontext() if are_users_models else light_imports.without_plugins():
        code = app(args=None if arguments is None else list(arguments), prog_name="viewtail", standalone_mode=False)
    sys.stdout.flush()
    return code if isinstance(code, int) else 0


def _in_each(arguments: Sequence[str] | None, shards: Mapping[str, str]) -> int:
    """A command in each of several deployments; the worst of its exit codes. A stop ends it for all of them.

    What it names need not be known in each of them.
    """
    codes, unknown = list[int](), dict[str, str]()
    try:
        for shard, what in shards.items():
            said = list[str]()
            code = _in_shard(arguments, shard, what, said)
            if said:
                unknown[shard] = said[0]
                print("   nothing of that name is here", file=sys.stderr, flush=True)
            else:
                codes.append(code)
            if signals.off_stop() or code == signals.EXIT_STOPPED:
                return signals.EXIT_STOPPED
    except KeyboardInterrupt:  # between two of them
        return signals.EXIT_STOPPED
    if not codes:
        for shard, why in unknown.items():
            _say(f"{shard}: {why}")
        return UnknownNameError.exit_code
    return max(codes)


def _in_shard(arguments: Sequence[str] | None, shard: str, what: str, unknown: list[str]) -> int:
    """A command in one of several deployments, as if it had been called for that one alone."""
    os.environ[VARIABLE] = shard
    print(f"-- {shard}: {what}", file=sys.stderr, flush=True)
    try:
        return _main(arguments, unknown)
    finally:
        del os.environ[VARIABLE]


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
