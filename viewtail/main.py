"""The command line as a whole: its commands, in the order of its help, and how it is entered.

A command's options and its help are in viewtail/cli/, what it does in viewtail/commands/. Exit codes: 0 good, 1
something is wrong, 2 misuse.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from viewtail import light_imports, signals
from viewtail.changes.errors import MisuseError
from viewtail.cli import (
    adopt,
    archive,
    audit,
    contract,
    cutover,
    dead_letters,
    demo,
    forget,
    lint,
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
from viewtail.cli.ending import ended
from viewtail.cli.group import Commands, Group
from viewtail.interpreter import tune_command

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
    epilog="See it work: viewtail demo. A first time: viewtail init, check, run. Then: viewtail status.",
    no_args_is_help=True,
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


def _version(context: typer.Context, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
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
    demo.demo,
    starting.init,
    starting.check,
    lint.lint,
    running.run,
    status.status,
    serving.console,
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
    audit.audit,
    adopt.adopt,
    rebuild.rebuild,
    cutover.cutover,
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
    signals.not_blocked()
    tune_command()
    sys.exit(_main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    return ended(lambda: _command(arguments))


def _command(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    for word in words:
        if word.encode(errors="replace").decode() != word:
            raise MisuseError(f"the argument {word!a} is not UTF-8, and no server would take it as it is")
    are_users_models = _WITH_MODELS_OF_USERS & {*words}
    with nullcontext() if are_users_models else light_imports.without_plugins():
        code = app(args=None if arguments is None else list(arguments), prog_name="viewtail", standalone_mode=False)
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
