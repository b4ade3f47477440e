"""`viewtail verify`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.completing import view_names
from viewtail.cli.each import in_each
from viewtail.cli.options import DryRun, Json, MaxRows, MaxThreads, PartOf

Verified = Annotated[
    list[str] | None,
    typer.Argument(metavar="[VIEW...]", help="The views; by default all of them.", autocompletion=view_names),
]
Repair = Annotated[bool, typer.Option("--repair", help="Write what is wrong again, through the guard.")]
Sample = Annotated[
    float | None,
    typer.Option(
        metavar="PERCENT", help="Compare a sample of the rows, and say what that proves.", min=0.0001, max=100
    ),
]


def verify(
    context: typer.Context,
    view: Verified = None,
    repair: Repair = False,
    dry_run: DryRun = False,
    sample: Sample = None,
    part: PartOf = None,
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

    --part compares one tenant of views whose entity is many tables, and proves nothing of the others.
    """
    if part is not None:
        if repair or dry_run or sample is not None:
            raise typer.BadParameter(
                "it compares one tenant and writes nothing; to write it again: viewtail replay VIEW --part",
                param_hint="--part",
            )
        from viewtail.commands.parts import verify_part

        return in_each(context.obj, verify_part, view or [], part, as_json=json)
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
    return in_each(context.obj, command, view or [], options)
