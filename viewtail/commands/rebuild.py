"""`viewtail rebuild`: what operations/rebuild.py does, and what it prints."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from offsets.copies import Copy, Stage
from offsets.pauses import this_person
from projectors.catalog import Catalog
from projectors.proving.view_access import ViewAccess
from projectors.stores.registry import store_of
from projectors.throttle import LiveTrafficThrottle, Throttles
from projectors.views import BoundView
from viewtail import declarations
from viewtail.changes.counting import agreeing, counted
from viewtail.changes.errors import StopRequested
from viewtail.changes.repeating import Repeats
from viewtail.commands.agreeing import agreed
from viewtail.commands.output import print_json, print_remark
from viewtail.composition import deployed_to_work
from viewtail.operations import rebuild as operation
from viewtail.settings import Settings
from viewtail.signals import EXIT_STOPPED, on_stop

SAY_EVERY_S = 5.0
REMARK_AGAIN_S = 30.0


def rebuild(  # noqa: PLR0913 - the options of the command
    loaded: Settings,
    name: str,
    *,
    keep_s: int,
    is_held: bool,
    is_hurried: bool,
    accepts_parked: bool,
    within_s: float | None,
    as_json: bool,
) -> int:
    """Build a second copy of a view and swap it in; returns the exit code."""
    catalog, view = _deployed(loaded, name)
    with _operation(catalog, view, within_s) as (asked, ending):
        try:
            proof, by = partial(compared_copy, catalog, accepts_parked=accepts_parked), this_person()
            copy = asked.rebuild(proof, by, keep_s=keep_s, is_held=is_held, is_hurried=is_hurried)
        except StopRequested:
            if ending.is_late:
                return ending.late(
                    "Readers have the view as it was, unless `viewtail status` says that the swap was made meanwhile. "
                    "The copy is still asked for: a running viewtail builds it and keeps it up to date. The same "
                    f"command goes on; to drop the copy: viewtail rebuild {view.id} --abort"
                )
            return _stopped(view, "the copy stays and is kept up to date. The same command goes on")
    return _tell(copy, as_json=as_json)


def roll_back(loaded: Settings, name: str, *, within_s: float | None, as_json: bool) -> int:
    """Have readers get the former copy again; returns the exit code."""
    catalog, view = _deployed(loaded, name)
    with _operation(catalog, view, within_s) as (asked, ending):
        try:
            copy = asked.roll_back()
        except StopRequested:
            what = "`viewtail status` says whether readers have it by now. The same command goes on"
            return ending.late(what) if ending.is_late else _stopped(view, what)
    return _tell(copy, as_json=as_json)


def abort(loaded: Settings, name: str, *, within_s: float | None, is_yes: bool) -> int:
    """Drop the copy that readers do not see; returns the exit code."""
    catalog, view = _deployed(loaded, name)
    quiet = operation.Operation(catalog=catalog, view=view, say=lambda _: None, stop=threading.Event())
    quiet.require_copy()
    if not agreed(f"Drop the copy of {view.id} that readers do not see?", is_yes=is_yes):
        print_remark("nothing was changed")
        return 1
    with _operation(catalog, view, within_s) as (asked, ending):
        try:
            is_built_again = asked.abort()
        except StopRequested:
            what = "the copy is dropped all the same, by a running viewtail: viewtail status"
            return ending.late(what) if ending.is_late else _stopped(view, what)
    if is_built_again:
        print(
            f"{view.id}: the copy beside it is dropped. views.py declares the view otherwise than readers have it, so "
            "`viewtail run` builds another copy at once, and swaps it in. To keep what readers have: take the change "
            "out of views.py, and restart `viewtail run`"
        )
    else:
        print(f"{view.id}: the copy beside it is dropped. Readers have the view as before")
    return 0


def _deployed(loaded: Settings, name: str) -> tuple[Catalog, BoundView]:
    catalog = deployed_to_work(loaded, [declarations.chosen(loaded, name)])
    return catalog, catalog.views[0]


def compared_copy(
    catalog: Catalog, copy: BoundView, stop: threading.Event, *, is_hurried: bool, accepts_parked: bool = False
) -> Sequence[str]:
    """A whole pass of `viewtail verify` over the copy, which writes nothing."""
    store = store_of(copy.view)
    most_rows = 0 if is_hurried else store.unhurried_rows
    throttle = Throttles() if is_hurried else LiveTrafficThrottle(stop=stop, rest=store.unhurried_rest)
    with ViewAccess(catalog, copy, stop, print_remark, chunk_rows=most_rows) as beside:
        return operation.compared(beside, throttle, "compare before the swap", accepts_parked=accepts_parked)


class _Ending:
    """Ends an operation before it is done: somebody stops it, or its time is over."""

    def __init__(self, view: BoundView, within_s: float | None) -> None:
        self.stop = threading.Event()
        self.is_late = False
        self._view, self._within_s = view, within_s
        self._last: operation.Progress | None = None
        self._timer = threading.Timer(within_s or 0.0, self._be_late)
        self._timer.daemon = True

    def __enter__(self) -> _Ending:
        on_stop(self.stop.set)
        if self._within_s is not None:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def seen(self, now: operation.Progress) -> None:
        self._last = now

    def late(self, what: str) -> int:
        """Say where it stands; returns the exit code."""
        last = self._last
        stands = "" if last is None else f" while {last.stage}{f', since {last.remark}' if last.remark else ''}"
        print_remark(f"{self._view.id}: not done within {self._within_s:g} s{stands}. {what}")
        return 1

    def _be_late(self) -> None:
        self.is_late = not self.stop.is_set()
        self.stop.set()


@contextmanager
def _operation(
    catalog: Catalog, view: BoundView, within_s: float | None
) -> Iterator[tuple[operation.Operation, _Ending]]:
    with _Ending(view, within_s) as ending, _progress(view) as show:

        def say(now: operation.Progress) -> None:
            ending.seen(now)
            show(now)

        yield operation.Operation(catalog=catalog, view=view, say=say, stop=ending.stop), ending


@contextmanager
def _progress(view: BoundView) -> Iterator[operation.Say]:
    """A bar on a terminal, a line now and then otherwise."""
    if not sys.stderr.isatty():
        yield _Lines(view)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar, bar.add_task(view.id, total=None, told=""))


class _Remarks:
    def __init__(self) -> None:
        self._repeats = Repeats(REMARK_AGAIN_S)

    def say(self, remark: str | None) -> None:
        if self._repeats.is_due(remark):
            print_remark(remark)


class _Bar:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task, self._remarks = bar, task, _Remarks()

    def __call__(self, now: operation.Progress) -> None:
        self._remarks.say(now.remark)
        copy = now.copy
        total = None if copy is None else max(copy.row_count, copy.row_estimate) or None
        done = (0 if copy is None else copy.row_count) if now.moved_count is None else now.moved_count
        self._bar.update(self._task, total=total, completed=done, told=_told(now))


class _Lines:
    """Plain lines: each stage, and how far it is now and then."""

    def __init__(self, view: BoundView) -> None:
        self._view, self._remarks = view, _Remarks()
        self._stage, self._said_at = "", 0.0

    def __call__(self, now: operation.Progress) -> None:
        self._remarks.say(now.remark)
        if now.stage != self._stage or time.monotonic() - self._said_at > SAY_EVERY_S:
            self._stage, self._said_at = now.stage, time.monotonic()
            print_remark(f"{self._view.id}: {_told(now)}")


def _told(now: operation.Progress) -> str:
    copy = now.copy
    if copy is None:
        return now.stage
    if now.moved_count is not None:
        about = max(now.moved_count, copy.row_count)  # tombstones are moved too
        are = agreeing(now.moved_count, "are")
        return f"{now.stage}: {now.moved_count:,} of about {counted(about, 'entities')} {are} in place"
    left = "" if copy.eta_s is None else f", {copy.eta_s:.0f} s left"
    rows = f"{copy.row_count:,} of about {counted(copy.row_estimate, 'rows')}"
    return f"{now.stage}, {copy.state}: {rows}, {copy.rows_per_second:,.0f}/s{left}"


def _stopped(view: BoundView, what: str) -> int:
    print_remark(f"{view.id}: stopped; {what}")
    return EXIT_STOPPED


def _tell(copy: Copy, *, as_json: bool) -> int:
    if as_json:
        kept_s = None if copy.kept_s is None else max(0, round(copy.kept_s))
        told = {
            "view": copy.view,
            "stage": copy.stage,
            "live_copy": copy.live,
            "copy_beside": copy.copy,
            "kept_s": kept_s,
        }
        print_json(told)
    elif copy.is_newest:
        print(
            f"{copy.view}: copy {copy.copy} is filled and kept up to date; readers have copy {copy.live}. To swap: "
            f"viewtail rebuild {copy.view}. To drop copy {copy.copy}: viewtail rebuild {copy.view} --abort"
        )
    elif copy.stage in (Stage.DROPPING, Stage.ENDED) or (copy.kept_s is not None and copy.kept_s <= 0):
        print(f"{copy.view}: readers have copy {copy.live}. Copy {copy.copy} is not kept, and is dropped")
    else:
        kept = "" if copy.kept_s is None else f" for {max(0.0, copy.kept_s) / 3600:.1f} h"
        print(
            f"{copy.view}: readers have copy {copy.live}. Copy {copy.copy} is kept up to date{kept}. To go back to it: "
            f"viewtail rebuild {copy.view} --rollback. To drop it now, or before another rebuild: viewtail rebuild "
            f"{copy.view} --abort"
        )
    return 0
