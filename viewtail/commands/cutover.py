"""`viewtail cutover`: what operations/cutover.py does, and what it prints."""

from __future__ import annotations

import threading
from dataclasses import asdict
from functools import partial

from viewtail import declarations
from viewtail.changes.counting import counted
from viewtail.changes.errors import StopRequested
from viewtail.changes.repeating import Repeats
from viewtail.commands.output import print_json, print_remark
from viewtail.commands.progress import progress
from viewtail.composition import deployed_to_work
from viewtail.interpreter import tune_command
from viewtail.operations.cutover import Cutover, Standing
from viewtail.settings import Settings
from viewtail.signals import EXIT_STOPPED, on_stop

SAY_AGAIN_S = 30.0


def show(loaded: Settings, name: str, *, as_json: bool) -> int:
    """Say what is proven, and what is missing; the exit code is 1 where something is."""
    standing = _cutover(loaded, name, threading.Event()).look()
    if as_json:
        print_json(asdict(standing))
    else:
        _print(standing)
    return 1 if standing.missing else 0


def go(loaded: Settings, name: str, *, within_s: int | None, is_read_only: bool, as_json: bool) -> int:
    """Release the table; the exit code is 1 where its time is over before that."""
    tune_command()
    stop, is_late = threading.Event(), threading.Event()
    on_stop(stop.set)
    cutover = _cutover(loaded, name, stop)

    def be_late() -> None:
        is_late.set()
        stop.set()

    timer = threading.Timer(within_s or 0, be_late)
    timer.daemon = True
    if within_s is not None:
        timer.start()
    try:
        record = cutover.go(is_read_only=is_read_only)
    except StopRequested:
        late = f"not done within {within_s} s" if is_late.is_set() else "stopped"
        print_remark(f"{cutover.view.id}: {late}; nothing was changed, and the view is kept up to date as before")
        return 1 if is_late.is_set() else EXIT_STOPPED
    finally:
        timer.cancel()
    if as_json:
        print_json({"view": cutover.view.id, "record": record})
    else:
        print(f"{cutover.view.id}: {record}. Take it out of views.py, and restart `viewtail run`")
    return 0


def abort(loaded: Settings, name: str) -> int:
    """End a cutover that is under way."""
    cutover = _cutover(loaded, name, threading.Event())
    was = "the cutover is aborted" if cutover.abort() else "no cutover is under way"
    print(f"{cutover.view.id}: {was}. Nothing was changed, and the view is kept up to date as before")
    return 0


def _cutover(loaded: Settings, name: str, stop: threading.Event) -> Cutover:
    catalog = deployed_to_work(loaded, [declarations.chosen(loaded, name)])
    repeats = Repeats(SAY_AGAIN_S)
    (view,) = catalog.views

    def say(what: str) -> None:
        if repeats.is_due(what):
            print_remark(f"{view.id}: {what}")

    compared = partial(progress, f"{view.id}: comparing", "rows")
    return Cutover(catalog=catalog, view=view, stop=stop, say=say, progress=compared)


def _print(standing: Standing) -> None:
    if standing.released is not None:
        finish = f"without a record. Finish it: viewtail cutover {standing.view} --go"
        print(f"{standing.view}: {standing.record or f'{standing.released}, {finish}'}")
        return
    proven = standing.proven_through
    proof = f"equal to its table through {proven}" if proven else "never compared with its table as a whole"
    print(f"{standing.view}: {standing.place}, {counted(standing.rows, 'rows')}, {proof}")
    for line in standing.missing:
        print(f"  missing: {line}")
    for line in standing.remarks:
        print(f"  remark:  {line}")
    if not standing.missing:
        print(
            f"  Ready. Stop the application's writes of the old tables, then: viewtail cutover {standing.view} --go. "
            "It compares all once more, and releases the table"
        )
