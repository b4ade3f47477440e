"""`viewtail demo`, from nothing to the last line, and what is left behind: nothing, or with `--keep` everything."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError
from viewtail.demo import fetched, given, screen, servers
from viewtail.demo.course import PARIS, Course, called
from viewtail.demo.hands import hands
from viewtail.demo.place import TITLES, Place, refused
from viewtail.demo.process import stop_kept
from viewtail.demo.screen import heading, line
from viewtail.signals import EXIT_STOPPED

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the last: the terminal is closed
_TRY = {
    "mysql": "find {view} FR",
    "redis": f"get {{view}} {PARIS}",
    "elasticsearch": "search {view} Париж",
    "kafka": "schema {view}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options of the command."""

    without: frozenset[str]
    is_sure: bool  # nobody is asked
    is_kept: bool


def demo(config: Path | None, wishes: Wishes) -> int:
    """Play it; returns the exit code: 0 when every view equals its table."""
    refused(TITLES, wishes.without)
    is_given = given.is_given(config, os.environ)
    if is_given and wishes.is_kept:
        raise MisuseError("--keep is for servers that the demo starts; from yours it removes all that it made")
    for number in _ENDING:
        signal.signal(number, _interrupt)
    try:
        return _played(config, wishes, is_given=is_given)
    except KeyboardInterrupt:
        print("\nviewtail demo: interrupted; everything it started is stopped", file=sys.stderr)
        return EXIT_STOPPED


def stop() -> int:
    """End what `--keep` left running; returns the exit code."""
    stop_kept(servers.kept())
    print("stopped and removed" if servers.stop_kept() else "nothing was left running")
    return 0


def _interrupt(*_: object) -> NoReturn:
    # A terminal signals its whole group, and whoever started this may pass it on: a second one would end the cleaning.
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _played(config: Path | None, wishes: Wishes, *, is_given: bool) -> int:
    began_at = time.monotonic()
    screen.console.print("[bold]viewtail demo[/]: views of a MySQL table, kept right while it changes")
    if wishes.is_kept:
        stop_kept(servers.kept())
    folder = servers.directory(wishes.is_kept)
    with ExitStack() as at_end:
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        if wishes.is_kept:
            at_end.callback(servers.stop_kept)
        place = _place(config, folder, wishes, at_end, is_given=is_given)
        rows = at_end.enter_context(given.databases(place))
        course = Course(place, rows, at_end, stays=wishes.is_kept)
        with hands(is_sure=wishes.is_sure) as of:
            course.play(of)
        count = course.verify()
        if wishes.is_kept:
            at_end.pop_all()
            _tell_kept(place)
        else:
            course.end()
    _say_verdict(len(place.stores), count, time.monotonic() - began_at)
    return 0


def _place(config: Path | None, folder: Path, wishes: Wishes, at_end: ExitStack, *, is_given: bool) -> Place:
    heading(1, "Servers: yours" if is_given else "Real servers, for this demo alone")
    if is_given:
        place = given.place(folder, config, wishes.without)
        line(f"{', '.join(TITLES[store] for store in place.stores)}, as the settings name them")
    else:
        place = fetched.place(folder, wishes.without, None if wishes.is_kept else at_end)
    for store, why in place.lacking.items():
        line(f"{TITLES[store]:<15} is not shown: {why}", "yellow")
    return place


def _tell_kept(place: Place) -> None:
    heading(0, "Left running: things to try")
    line(f"cd {screen.short(place.folder)}")
    for words in (
        "status",
        *(_TRY[store].format(view=place.names.view(store)) for store in place.stores),
        "demo --stop",
    ):
        line(f"{called()} {words}")


def _say_verdict(views: int, rows: int, seconds: float) -> None:
    equal = f"viewtail demo: {counted(views, 'views')}, {rows:,} rows: each equals its table"
    screen.console.print(f"\n[bold green]{equal}[/]  [dim]{seconds:.0f} s[/]")
