"""What the examples stand on: real servers in a folder of their own, a `viewtail run`, and its verdict at the end."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import stack
from examples.demo import servers
from examples.demo.running import CHECKOUT, DemoError, Run, command, environment
from examples.demo.screen import heading, line
from stack.server import Server, free_port

WELL_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Servers by the names they were asked for, and the settings of viewtail."""

    directory: Path
    servers: Mapping[str, Server]
    settings: Mapping[str, str]
    run: Run

    def viewtail(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command beside the run."""
        return subprocess.run(
            command(*arguments), env=environment(self.settings), cwd=CHECKOUT, capture_output=True, text=True
        )

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
    started: dict[str, Server] = {}
    run: Run | None = None
    try:
        heading("Real servers")
        for name, kind in wanted.items():
            server = servers.PREPARE[kind](directory / name)
            server.start()
            started[name] = server
            line(f"{name:<15} {server.url}")
        settings = {**prepare(started), "VIEWTAIL_METRICS__PORT": str(free_port())}
        run = Run(directory, settings, stays=False)
        yield Stage(directory, started, settings, run)
    finally:
        if run is not None:
            run.stop()
        for server in started.values():
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def played(example: str, play: Callable[[], int]) -> int:
    """The exit code of an example; what it cannot do it says in one line."""
    try:
        views = play()
    except (DemoError, stack.StackError) as error:
        print(f"\n{example}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{example}: interrupted; everything it started is stopped", file=sys.stderr)
        return 130
    print(f"\n{example}: {views} views equal their tables")
    return 0


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
