"""What the examples share: real servers in a folder of their own, a `viewtail run`, what they show, the verdict."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pymysql

import stack
from examples import running, screen
from examples.screen import heading, line
from stack.places import CHECKOUT
from stack.server import Server, free_port
from viewtail.demo import servers
from viewtail.demo.process import DemoError, Run, environment, ran

WELL_WITHIN_S = 120.0
FILLED_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Servers by the names they were asked for, and the settings of viewtail."""

    directory: Path
    servers: Mapping[str, Server]
    settings: Mapping[str, str]
    run: Run

    def viewtail(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command beside the run; raises DemoError where it does not end."""
        try:
            return ran(arguments, environment(self.settings), CHECKOUT)
        except DemoError as error:
            raise DemoError(f"{error}.\n{self.run.log_tail()}") from error

    def wait_until_well(self) -> None:
        """Until every pipeline runs and every view is filled."""
        deadline = time.monotonic() + WELL_WITHIN_S
        while (status := self.viewtail("status")).returncode:
            self.run.require_running()
            if time.monotonic() > deadline:
                raise DemoError(f"not well within {WELL_WITHIN_S:.0f} s:\n{status.stdout}\n{self.run.log_tail()}")
            time.sleep(0.5)


@contextmanager
def stage(wanted: Mapping[str, str], prepare: Callable[[Mapping[str, Server]], Mapping[str, str]]) -> Iterator[Stage]:
    """Servers, then what the example prepares on them, then `viewtail run`; all is gone at the end.

    Args:
        wanted: kinds of servers by the names that the example has for them.
        prepare: makes tables, and returns the settings.
    """
    directory = servers.directory(is_kept=False)
    with ExitStack() as stopping:
        stopping.callback(shutil.rmtree, directory, ignore_errors=True)
        heading("Real servers")
        started: dict[str, Server] = {}
        for one in servers.start_all(wanted, directory, stopping):
            if one.server is None:
                raise DemoError(str(one.reason))
            started[one.name] = one.server
            line(f"{one.name:<15} {one.server.url:<36} up in {one.seconds:.1f} s")
        settings = {**prepare(started), "VIEWTAIL_METRICS__PORT": str(free_port()), "VIEWTAIL_CONSOLE__PORT": "0"}
        run = Run(directory, environment(settings), cwd=CHECKOUT)
        stopping.callback(run.stop)
        yield Stage(directory, started, settings, run)


def played(example: str, play: Callable[[], int]) -> int:
    """The exit code of an example that returns how many views equal their tables."""
    return ended(example, lambda: _verdict(example, play))


def _verdict(example: str, play: Callable[[], int]) -> int:
    began_at = time.monotonic()
    views = play()
    print(f"\n  {time.monotonic() - began_at:.0f} s in all\n\n{example}: {views} views equal their tables")
    return 0


def ended(example: str, play: Callable[[], int]) -> int:
    """The exit code of `play`; 1, and a line with the reason, where it cannot go on. SIGINT and SIGTERM end it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        return play()
    except (DemoError, stack.StackError) as error:
        print(f"\n{example}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{example}: interrupted; everything it started is stopped", file=sys.stderr)
        return 130


def _interrupt(*_: object) -> NoReturn:
    # make passes a signal on that reached this process too: a second one would end the cleaning up.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def load(steps: Iterable[tuple[str, int, int]]) -> None:
    """Show how tables are loaded: (table, rows so far, all)."""
    began_at = time.monotonic()
    counts: dict[str, int] = {}
    with screen.area() as area:
        for table, done, of in steps:
            counts[table] = of
            area.show(screen.bar(table, done, of), [f"{table}: {done:,} of {of:,} rows"], is_last=done == of)
    line(f"{sum(counts.values()):,} rows in {time.monotonic() - began_at:.1f} s")


def fill(run: Run, connection: pymysql.Connection[Any], counts: Mapping[str, int]) -> None:
    """Show how views are filled; `counts`: the rows of each."""
    began_at = time.monotonic()
    with screen.area() as area:
        for status in running.fills(run, connection, len(counts), FILLED_WITHIN_S):
            is_last = sum(view.state == "filled" for pipeline in status for view in pipeline.views) == len(counts)
            area.show(screen.fill_table(status, counts), screen.fill_lines(status), is_last=is_last)
    line(f"{len(counts)} views filled in {time.monotonic() - began_at:.1f} s")


def judge(comparison: Iterable[tuple[str, int, list[str]]]) -> list[str]:
    """Show (view, rows compared, differences); returns the views that differ."""
    differing = []
    for view, count, differences in comparison:
        line(f"{view:<28} {count:>9,} rows   {'equal' if not differences else 'DIFFERENT'}")
        for difference in differences:
            line(f"    {difference}")
        if differences:
            differing.append(view)
    return differing


def verified(of: Stage, count: int) -> int:
    """That `viewtail verify` finds so many views equal, and no other; raises DemoError."""
    heading("Every view against its table: viewtail verify")
    done = of.viewtail("verify")
    equal = [text for text in done.stdout.splitlines() if ": equal, " in text]
    for text in equal:
        line(text)
    if done.returncode or len(equal) != count:
        raise DemoError(f"viewtail verify ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
    return len(equal)
