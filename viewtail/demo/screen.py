"""What the demo prints: headings and lines, and on a terminal a part that is drawn again and again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from viewtail.demo.rows import Behind, City

console = Console(highlight=False, soft_wrap=True, legacy_windows=False)
_BAR = 24  # cells
_ROWS_A_CELL = 8


def heading(number: int, text: str) -> None:
    """A step."""
    console.print(f"\n[bold cyan]{number}  {escape(text)}[/]")


def line(text: str = "", style: str = "") -> None:
    """A line of a step."""
    console.print(Text(f"  {text}" if text else "", style))


def command(text: str, prompt: str = "$") -> None:
    """A statement or a command that the demo has just run."""
    console.print(Text.assemble("  ", (f"{prompt} ", "dim"), (text, "bold")))


def listing(name: str, text: str) -> None:
    """A file."""
    line(name, "dim")
    for one in text.rstrip().splitlines():
        console.print(Text.assemble("  ", ("│ ", "dim"), _coloured(one)))


def shown(store: str, city: City, seconds: float, question: str) -> None:
    """That a store shows a change."""
    console.print(
        Text.assemble(
            ("  ✓ ", "green"),
            f"{store:<14}",
            (f"{city.country} {city.population:>10,}", "bold"),
            (f"{duration(seconds):>10}", "green"),
            (f"   {question}", "dim"),
        )
    )


def done(text: str) -> None:
    """Something that came true."""
    console.print(Text.assemble(("  ✓ ", "green"), text))


def struck(text: str) -> None:
    """Something that was done to viewtail."""
    console.print(Text.assemble(("  ✗ ", "bold red"), (text, "red")))


@contextmanager
def area() -> Iterator[Callable[[Table], None]]:
    """A place where a table is drawn again and again; nothing without a terminal."""
    if not sys.stdout.isatty():
        yield lambda _: None
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda drawn: live.update(drawn, refresh=True)


Row = tuple[str, int | None, Behind]  # a store, its worker's process, how far it is behind


def load_table(rate: float, rows: Sequence[Row]) -> Table:
    """The stores under load."""
    keys = "\n  k: kill a worker   Enter: go on   q: end"
    table = Table(box=None, pad_edge=False, padding=(0, 2), caption=keys, caption_justify="left", caption_style="dim")
    table.add_column(f"  {rate:,.0f} changes/s", style="bold")
    table.add_column("worker", justify="right")
    table.add_column("rows behind", justify="right")
    table.add_column("by", justify="right", min_width=8)
    table.add_column("", min_width=_BAR)
    for store, pid, behind in rows:
        cells = min(_BAR, -(-behind.rows // _ROWS_A_CELL))
        table.add_row(
            f"  {store}",
            Text("killed", "bold red") if pid is None else str(pid),
            str(behind.rows),
            duration(behind.oldest_s),
            Text("█" * cells, "red" if pid is None else "yellow"),
        )
    return table


def short(path: Path) -> str:
    """A path as it is typed: from the working directory, or from the home."""
    for folder, name in ((Path.cwd(), ""), (Path.home(), "~")):
        if path.is_relative_to(folder):
            return str(Path(name, path.relative_to(folder)))
    return str(path)


def duration(seconds: float) -> str:
    """A short time as a person reads it."""
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _coloured(code: str) -> Text:
    text = Text(code)
    text.highlight_regex(r"\b(from|import)\b", "magenta")
    text.highlight_regex(r'"[^"]*"', "green")
    text.highlight_regex(r"\b(Entity|IndexTable|RedisHash|SearchIndex|Topic)\b", "cyan")
    return text
