"""The command line as a whole: its commands, in the order of its help, and how it is entered.

A command's options and its help are in viewtail/cli/, what it does in viewtail/commands/. Exit codes: 0 good, 1
something is wrong, 2 misuse.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from changes.errors import MisuseError, UnknownNameError
from viewtail import light_imports, signals
from viewtail.cli import (
    archive,
    contract,
    dead_letters,
    forget,
    pausing,
    reading,
    rebuild,
    replay,
    running,
    serving,
    starting,
    status,
    verify,
)
from viewtail.cli.ending import ended, say
from viewtail.cli.group import Commands, Group
from viewtail.interpreter import tune_command
from viewtail.shards import VARIABLE, NotOneShardError

_WITH_MODELS_OF_USERS = frozenset({"serve", "entities"})  # commands that load entities.py

app = Commands(
    name="viewtail",
    cls=Group,
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

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings file; by default $VIEWTAIL_CONFIG, or viewtail.toml in the working directory.",
    ),
]


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"viewtail {version('viewtail')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback()
def _options(context: typer.Context, config: Config = None, _is_version: Version = False) -> None:
    light_imports.structlog()
    from viewtail import logs

    logs.configure()  # before anything is logged: structlog prints on stdout, where programs read results
    context.obj = config


for command in (
    starting.init,
    starting.check,
    running.run,
    status.status,
    reading.get,
    reading.find,
    reading.search,
    reading.schema,
    replay.replay,
    replay.replays,
    reading.wait,
    status.why,
    verify.verify,
    running.switch,
    rebuild.rebuild,
    rebuild.preview,
    pausing.pause,
    pausing.resume,
    forget.forget,
    archive.archive,
    archive.restore,
    serving.serve,
):
    app.command()(command)
app.add_typer(dead_letters.group, name="dead-letters")
app.add_typer(contract.group, name="contract")
app.add_typer(serving.entities, name="entities")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; every error is one message on stderr."""
    tune_command()
    sys.exit(_main(arguments))


def _main(arguments: Sequence[str] | None, unknown: list[str] | None = None) -> int:
    def call() -> int:
        try:
            return _command(arguments)
        except NotOneShardError as error:
            return _in_each(arguments, error.shards)

    return ended(call, unknown)


def _command(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    for word in words:
        if word.encode(errors="replace").decode() != word:
            raise MisuseError(f"the argument {word!a} is not UTF-8, and no server would take it as it is")
    are_users_models = _WITH_MODELS_OF_USERS & {*words}
    with nullcontext() if are_users_models else light_imports.without_plugins():
        code = app(args=None if arguments is None else list(arguments), prog_name="viewtail", standalone_mode=False)
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
            say(f"{shard}: {why}")
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


if __name__ == "__main__":
    main()
