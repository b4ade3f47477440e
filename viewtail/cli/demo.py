"""`viewtail demo`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without", metavar="STORE", help="Leave a store out: redis, elasticsearch or kafka. May come more than once."
    ),
]
Watch = Annotated[bool, typer.Option("--yes", help="Run through by itself; so it does without a terminal, too.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave servers and viewtail running, and print what to try.")]
Stop = Annotated[bool, typer.Option("--stop", help="Stop and remove what --keep left running.")]
PrintCompose = Annotated[
    bool, typer.Option("--print-compose", help="Print a docker-compose.yml with such servers, and do nothing else.")
]


def demo(
    context: typer.Context,
    without: Without = None,
    yes: Watch = False,
    keep: Keep = False,
    stop: Stop = False,
    print_compose: PrintCompose = False,
) -> int:
    """See it work in a minute: change a row, kill a worker, damage a view; it ends with every row compared.

    It fetches real servers once, on Debian, without a container engine and without a change to the machine, and stops
    them at the end. An installed viewtail keeps what it fetched in ~/.cache/viewtail, which you may delete. Where
    --config or VIEWTAIL_SOURCE__URL names servers, it plays on those, in databases of its own (viewtail_demo,
    viewtail_demo_views), which it removes at the end. Exits 0 only where every view equals its table.
    """
    if print_compose:
        from viewtail.demo.fetched import compose

        print(compose(), end="")
        return 0
    from viewtail.demo import play

    if stop:
        return play.stop()
    return play.demo(context.obj, play.Wishes(without=frozenset(without or ()), is_sure=yes, is_kept=keep))
