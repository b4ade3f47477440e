"""What the demo shows: one refreshed table a phase on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
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


# -- the live phase ----------------------------------------------------------------------------------------------


def live_table(seconds: float, written: str, pipelines: Sequence[tuple[str, str, str, str]]) -> RenderableType:
    """`pipelines`: name, writes a second, lag now, largest lag."""
    table = Table(box=None, pad_edge=False, padding=(0, 3))
    for title in ("  pipeline", "writes/s", "lag", "largest lag"):
        table.add_column(title, justify="left" if title.endswith("pipeline") else "right")
    for name, *cells in pipelines:
        table.add_row(f"  {name}", *cells)
    return Group(f"  {seconds:4.0f} s   {written}", table)


def live_lines(seconds: float, written: str, pipelines: Sequence[tuple[str, str, str, str]]) -> list[str]:
    parts = [f"{name} {rate} writes/s, lag {lag}" for name, rate, lag, _ in pipelines]
    return [f"{seconds:4.0f} s  {written} | " + " | ".join(parts)]


class Rates:
    """Writes a second and lag of each pipeline, from one look at its metrics to the next."""

    def __init__(self, metrics: Callable[[], dict[str, dict[str, float]]]) -> None:
        self._metrics = metrics
        self._seen: dict[str, list[tuple[float, float]]] = {}
        self._lag_s: dict[str, float] = {}
        self._largest_s: dict[str, float] = {}

    def look(self) -> None:
        for name, found in self._metrics().items():
            seen = self._seen.setdefault(name, [])
            count = found.get("viewtail_writes_total", 0.0)
            if not seen or seen[-1][1] != count:
                seen.append((time.monotonic(), count))
            del seen[:-6]
            self._lag_s[name] = found.get("viewtail_lag_seconds", 0.0)
            self._largest_s[name] = max(self._largest_s.get(name, 0.0), self._lag_s[name])

    def rows(self) -> list[tuple[str, str, str, str]]:
        return [
            (
                name,
                f"{self._rate(name):,.0f}",
                _milliseconds(self._lag_s[name]),
                _milliseconds(self._largest_s[name]),
            )
            for name in self._seen
        ]

    def _rate(self, name: str) -> float:
        (first_at, first), (last_at, last) = self._seen[name][0], self._seen[name][-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
