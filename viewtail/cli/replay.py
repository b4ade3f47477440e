"""`viewtail replay` and `viewtail replays`: their options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from viewtail.cli.completing import view_names
from viewtail.cli.each import in_deployments, in_each, require_one_source
from viewtail.cli.options import All, DryRun, Json, Limit, MaxRows, PartOf, Yes

if TYPE_CHECKING:
    from viewtail.commands.which_replay import Asked

Replayed = Annotated[
    list[str] | None,
    typer.Argument(metavar="[VIEW...]", help="The views to backfill again.", autocompletion=view_names),
]
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
IsAwaited = Annotated[
    bool, typer.Option("--wait", help="Wait until whole views are backfilled, and show how far it is.")
]


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
    part: PartOf = None,
    into: Into = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    max_rows_per_second: MaxRows = 0,
    wait: IsAwaited = False,
) -> int:
    """Project canonical rows again, in place, while readers read: a view, or some entities of it.

    A whole VIEW is backfilled again by the running viewtail, within seconds; without one, by the next `viewtail run`. A
    halted view goes on after it, once you have corrected the reason.

    Some entities (--key, --keys-from, --parked, --since, --from, --where, --part) are written by the command itself,
    as their rows are now; a key without a row gets its tombstone. The same command goes on with one that was stopped.
    Old events are never sent again as they were: the view has newer versions, and would rightly refuse them. Up to
    1,000 are compared with their rows at the end. Exits 1 where one is parked, or differs still.

    With --into, every change of a Topic since a time is published again, once and in order, into a topic of its own.

    With --take-over, VIEW gets the place of another deployment's view: that one halts, what it left is dropped.

    `viewtail replays` lists what was done, when and by whom.
    """
    from viewtail.commands.replay_keys import How, Selected
    from viewtail.commands.which_replay import Asked

    selected = Selected(
        keys=key or (), keys_from=keys_from, is_parked=parked, since=since, begin=begin, end=end, where=where, part=part
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
    return _do(context.obj, asked)


def _do(config: Path | None, asked: Asked) -> int:
    """Do it in each deployment; the exit code. Raises MisuseError, BadParameter for what does not go together."""
    from viewtail.commands.which_replay import work_of

    work = work_of(asked)
    if asked.selected.begin is not None:
        require_one_source(config, "--from")
    return in_each(config, work)


def replays(context: typer.Context, limit: Limit = 20, json: Json = False) -> int:
    """List what operators had done: replays, verified, repaired and paused views; who, when, what, result."""
    from viewtail.commands.replay import replays as command

    return in_deployments(context.obj, command, limit=limit, as_json=json)
