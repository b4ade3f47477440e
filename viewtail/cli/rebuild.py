"""`viewtail rebuild` and `viewtail preview`: their options."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.each import in_each
from viewtail.cli.options import Json, ViewName, Yes

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
    from viewtail.commands.durations import seconds_of

    if [hold, rollback, abort].count(True) > 1:
        raise typer.BadParameter("give one of --hold, --rollback and --abort", param_hint="--hold")
    if accept_parked and (rollback or abort):
        raise typer.BadParameter(
            "it has no effect with --rollback or --abort: leave it out", param_hint="--accept-parked"
        )
    if rollback:
        return in_each(context.obj, commands.roll_back, view, within_s=within, as_json=json)
    if abort:
        return in_each(context.obj, commands.abort, view, within_s=within, is_yes=yes)
    return in_each(
        context.obj,
        commands.rebuild,
        view,
        keep_s=seconds_of("--keep", keep),
        is_held=hold,
        is_hurried=hurry,
        accepts_parked=accept_parked,
        within_s=within,
        as_json=json,
    )


SampledRows = Annotated[int, typer.Option("--sample", metavar="N", help="Rows to look at.", min=1, max=10_000)]


def preview(context: typer.Context, view: ViewName, sample: SampledRows = 100, json: Json = False) -> int:
    """Show what the declaration in views.py would change in a view, on a sample of real rows.

    For an edited views.py, before you restart `viewtail run` with it. The command writes nothing. It exits 1 when rows
    of the sample could not be projected.
    """
    from viewtail.commands.preview import preview as command

    return in_each(context.obj, command, view, sample=sample, as_json=json)
