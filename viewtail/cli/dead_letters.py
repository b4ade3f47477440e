"""`viewtail dead-letters`: its commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.completing import view_names
from viewtail.cli.each import in_deployments, in_each
from viewtail.cli.group import Commands
from viewtail.cli.options import All, Json, Limit, ViewName, Yes

OfView = Annotated[str | None, typer.Argument(metavar="[VIEW]", help="Only this view's.", autocompletion=view_names)]
LetterKeys = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY...]", help="Keys as `dead-letters list` prints them; without one, all of the view."),
]
group = Commands(
    help="Keys that could not be applied: which, why, since when. They hold no other value of a row.",
    no_args_is_help=True,
)


@group.command("list")
def list_letters(context: typer.Context, view: OfView = None, limit: Limit = 100, json: Json = False) -> int:
    """List parked keys, those that were refused last first: cause, count, first and last time.

    Exits 0 also when there are none; `viewtail status` exits 1 while there are some.
    """
    from viewtail.commands.dead_letters import list_letters as command

    return in_deployments(context.obj, command, view, limit=limit, as_json=json)


LetterKey = Annotated[str, typer.Argument(metavar="KEY", help="The key as `dead-letters list` prints it.")]


@group.command("show")
def show(context: typer.Context, view: ViewName, key: LetterKey, json: Json = False) -> int:
    """Show all that is known of one parked key.

    Exits 1 when the key is not parked.
    """
    from viewtail.commands.dead_letters import show as command

    return in_deployments(context.obj, command, view, key, as_json=json)


@group.command("redrive")
def redrive(
    context: typer.Context, view: OfView = None, key: LetterKeys = None, all_views: All = False, yes: Yes = False
) -> int:
    """Try parked keys again: their rows as they are now are projected and written.

    A key that is applied is parked no more; a key whose row is gone gets its tombstone. Without KEY all keys of the
    view; with --all those of every view. Exits 1 when a key is refused again, or differs from its row still.
    """
    from viewtail.commands.dead_letters import redrive as command

    if (view is None) != all_views:
        raise typer.BadParameter("name a VIEW, or every view with --all", param_hint="VIEW")
    return in_each(context.obj, command, view, key or [], is_yes=yes)


@group.command("drop")
def drop(context: typer.Context, view: ViewName, key: LetterKeys = None, yes: Yes = False) -> int:
    """Forget that keys were parked; the view keeps what it has for them.

    It repairs nothing: what the view shows for such a key is not what its row is now, and `viewtail verify` finds it. A
    later change of the key is applied, or parked again. The command asks first. Exits 1 when a key is not parked.
    """
    from viewtail.commands.dead_letters import drop as command

    return in_deployments(context.obj, command, view, key or [], is_yes=yes)
