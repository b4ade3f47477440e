"""What the examples show: one refreshed table a phase on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from viewtail.operations.status import PipelineStatus

console = Console(highlight=False, soft_wrap=True)
PLAIN_EVERY_S = 2.0


def heading(text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


def line(text: str) -> None:
    console.print(f"  {text}", markup=False)


class Area:
    """One piece of the screen that is shown again and again: `table` on a terminal, `lines` now and then otherwise."""

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._shown_at = float("-inf")
        self._shown: Sequence[str] = ()

    def show(self, table: RenderableType, lines: Sequence[str], *, is_last: bool = False) -> None:
        if self._live is not None:
            self._live.update(table, refresh=is_last)
        elif lines != self._shown and (is_last or time.monotonic() - self._shown_at >= PLAIN_EVERY_S):
            self._shown_at, self._shown = time.monotonic(), lines
            for text in lines:
                line(text)


@contextmanager
def area() -> Iterator[Area]:
    if not sys.stdout.isatty():
        yield Area(None)
        return
    with Live(console=console, refresh_per_second=8) as live:
        yield Area(live)


# -- filling -----------------------------------------------------------------------------------------------------


def bar(label: str, done: int, of: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_row(f"  {label:<24}", ProgressBar(total=max(of, 1), completed=done, width=30), f"{done:,} of {of:,}")
    return grid


def fill_table(status: Sequence[PipelineStatus], counts: Mapping[str, int]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for _, view in _views(status):
        of = counts.get(view.name, 0)
        done = of if view.state == "filled" else min(view.row_count, of)
        rate = f"{view.rows_per_second:,.0f} rows/s" if view.row_count else ""
        colour = "green" if view.state == "filled" else "cyan"
        state = f"[{colour}]{view.state}[/]"
        grid.add_row(
            f"  {view.name:<24}",
            ProgressBar(total=max(of, 1), completed=done, width=30),
            f"{done:,} rows",
            rate,
            state,
        )
    return grid


def fill_lines(status: Sequence[PipelineStatus]) -> list[str]:
    parts = [
        f"{view.name} {view.state}" + (f" {view.row_count:,} rows" if view.row_count else "")
        for _, view in _views(status)
    ]
    return [" | ".join(parts)] if parts else ["viewtail is starting"]


def _views(status: Sequence[PipelineStatus]) -> Iterator[tuple[PipelineStatus, Any]]:
    for pipeline in status:
        for view in pipeline.views:
            yield pipeline, view
