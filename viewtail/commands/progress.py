"""Shows how far a long command is: a bar with rate and estimate on a terminal, a plain line now and then otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

SAY_EVERY_S = 5.0


class Say(Protocol):
    """It is called often, and shows the progress now and then."""

    def __call__(self, done: int, total: int, more: str = "") -> None: ...


@contextmanager
def progress(title: str, unit: str) -> Iterator[Say]:
    """Show progress on stderr. `total` may be an estimate, and 0 where there is none."""
    if not sys.stderr.isatty():
        yield _Lines(title, unit)
        return
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[at]}")),
        TimeRemainingColumn(compact=True),
    )
    began = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, at="")

        def say(done: int, total: int, more: str = "") -> None:
            rate = done / max(time.monotonic() - began, 0.001)
            bar.update(task, completed=done, total=max(total, done) or None, at=f"{done:,} {unit}, {rate:,.0f}/s{more}")

        yield say


class _Lines:
    """Plain lines, the first after a while."""

    def __init__(self, title: str, unit: str) -> None:
        self._title, self._unit = title, unit
        self._began = self._said_at = time.monotonic()

    def __call__(self, done: int, total: int, more: str = "") -> None:
        now = time.monotonic()
        if now - self._said_at < SAY_EVERY_S:
            return
        self._said_at = now
        rate = done / (now - self._began)
        of = f" of about {total:,}" if total > done else ""
        left = f", {(total - done) / rate:,.0f} s left" if total > done and rate else ""
        print(
            f"viewtail: {self._title}: {done:,}{of} {self._unit}, {rate:,.0f} a second{left}{more}",
            file=sys.stderr,
            flush=True,
        )
