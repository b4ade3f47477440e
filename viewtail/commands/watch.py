"""`viewtail status --watch`: the status, asked again and again, on a screen of its own until Ctrl-C.

A thread asks MySQL over one session, which is opened again when it is lost: READ_QUERIES questions a look, and none of
the source. What is shown is what was found last, with its age, so a server that hangs does not hold the screen up.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pymysql
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from viewtail import declarations, settings
from viewtail.changes.errors import MisuseError, StoreUnavailableError, ViewtailError, once
from viewtail.commands.sparkline import History
from viewtail.commands.status_page import STYLES, shown_age, shown_rate
from viewtail.composition import judged
from viewtail.operations.findings import Findings
from viewtail.operations.remarks import remarks, told
from viewtail.operations.status import PipelineStatus, ViewStatus, each_view, read
from viewtail.servers.patience import QUESTION
from viewtail.servers.sessions import Connection, MySQLAddress, open_session, session_error
from viewtail.signals import on_stop
from viewtail.sources import read_position

_DRAWN_A_SECOND = 2
_LAG_WIDTH = 20  # characters of a sparkline
_MOST_OF_IT = 3  # lines of what to do take at most one of so many, and an error of MySQL so many
_OLD_S = 3.0  # beyond the time between two looks: then the screen says how old it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The findings of the last look, and the error of the newest attempt."""

    found: Findings | None = None
    at: float = 0.0  # monotonic, of `found`
    error: str | None = None
    lags: Mapping[str, History] = field(default_factory=dict)  # by pipeline


def watch(loaded: settings.Settings, every_s: float) -> int:
    """Show the status until Ctrl-C; exit code 0 then."""
    console = Console()
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        raise MisuseError(
            "--watch draws on a terminal, and this output is none that can be drawn on. For programs: viewtail status "
            "--json, as often as you like"
        )
    stop = threading.Event()
    on_stop(stop.set)
    looking = _Looking(loaded, every_s, stop)
    threading.Thread(target=looking.run, name="looking", daemon=True).start()
    page = _Page(looking, every_s)
    with Live(page, console=console, screen=True, refresh_per_second=_DRAWN_A_SECOND):
        while not stop.wait(1.0):
            if looking.failure is not None:
                break
    if looking.failure is not None:
        raise looking.failure
    return 0


class _Looking:
    """Looks every few seconds; `seen` is replaced as a whole, so that another thread may read it."""

    def __init__(self, loaded: settings.Settings, every_s: float, stop: threading.Event) -> None:
        self.seen = Seen()
        self.failure: BaseException | None = None  # a fault of ours
        self._loaded, self._every_s, self._stop = loaded, every_s, stop
        self._declared = declarations.declared_sources(loaded)
        self._address = replace(loaded.asked_with(QUESTION).store_address(), database=None)

    @property
    def server(self) -> MySQLAddress:
        return self._address

    def run(self) -> None:
        connection: Connection | None = None
        try:
            while not self._stop.is_set():
                try:
                    connection = connection or open_session(self._address, role="store")
                    self._look(connection)
                except ViewtailError as error:
                    self.seen = replace(self.seen, error=once(error))
                    _close(connection)
                    connection = None
                self._stop.wait(self._every_s)
        except BaseException as error:
            self.failure = error
        finally:
            _close(connection)

    def _look(self, connection: Connection) -> None:
        try:
            pipelines = read(connection, self._loaded.store_database, read_position)
        except pymysql.err.MySQLError as error:
            raise session_error(error, self._address, "store") from None
        except (OSError, ValueError) as error:  # of a session that was cut in the midst of an answer
            raise StoreUnavailableError(f"MySQL's answer was cut off: {type(error).__name__}") from None
        findings = judged(self._loaded, Findings(pipelines=pipelines), self._declared)
        now = time.monotonic()
        lags = {
            each.name: self.seen.lags.get(each.name, History()).with_one(
                now, None if each.state == "down" else each.lag_s
            )
            for each in findings.pipelines
        }
        self.seen = Seen(found=findings, at=now, lags=lags)


def _close(connection: Connection | None) -> None:
    if connection is not None:
        with suppress(pymysql.err.MySQLError, OSError):
            connection.close()


# --- The screen ---


@dataclass(frozen=True, slots=True)
class _Column:
    """One column: `text` makes it of a row."""

    title: str
    text: Callable[..., str]
    is_right: bool = False


_PIPELINE_COLUMNS = (
    _Column("pipeline", lambda pipeline, _: pipeline.name),
    _Column("state", lambda pipeline, _: pipeline.condition),
    _Column("lag", lambda pipeline, _: "-" if pipeline.state == "down" else f"{pipeline.lag_s:.1f} s", is_right=True),
    _Column("lag lately", lambda _, drawn: drawn),
    _Column("rows/s", lambda pipeline, _: f"{shown_rate(pipeline):,}", is_right=True),
    _Column("parked", lambda pipeline, _: str(sum(view.parked for view in pipeline.views)), is_right=True),
    _Column("reported", lambda pipeline, _: shown_age(pipeline.reported_s_ago), is_right=True),
)
_VIEW_COLUMNS = (
    _Column("view", lambda where, view: f"{view.name} ({where})" if where else view.name),
    _Column("state", lambda _, view: view.state),
    _Column("filled", lambda _, view: _filled(view) + ("" if view.eta_s is None else f", {view.eta_s:,.0f} s left")),
    _Column("rows filled", lambda _, view: f"{view.row_count:,}", is_right=True),
    _Column("parked", lambda _, view: str(view.parked), is_right=True),
    _Column("proven", lambda _, view: _ago(view.proven_through), is_right=True),
)


def _ago(moment: str | None) -> str:
    """Return how long ago, in few characters: the view was proven through then."""
    if moment is None:
        return "-"
    age_s = (datetime.now(UTC) - datetime.fromisoformat(moment).replace(tzinfo=UTC)).total_seconds()
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if age_s >= length_s:
            return f"{age_s // length_s:.0f}{unit}"
    return f"{max(age_s, 0):.0f}s"


class _Page:
    """Draws what was seen last, in whatever size the terminal has at the moment."""

    def __init__(self, looking: _Looking, every_s: float) -> None:
        self._looking, self._every_s = looking, every_s

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        seen = self._looking.seen
        lines = list(self._heading(seen, console, width))
        if seen.found is None:
            yield from _cut(lines, height)
            return
        pipelines, views = _worst_first(seen.found)
        notes = _folded([*told(seen.found.pipelines), *remarks(seen.found)], console, width)
        if not pipelines:
            notes.insert(0, Text("viewtail has not run yet with this database. Start it with: viewtail run"))
        rest = height - len(lines)
        shown_notes = _first(notes, max(rest // _MOST_OF_IT, rest - len(pipelines) - len(views) - 6))
        rest -= len(shown_notes) + (1 if shown_notes else 0) + 5  # blank lines and titles
        pipeline_room = max(2, min(len(pipelines), rest - min(len(views), rest // 2)))
        yield from _cut(lines, height)
        marks = _marks(console)
        drawn = [(each, seen.lags[each.name].drawn(_LAG_WIDTH, time.monotonic(), marks)) for each in pipelines]
        if pipelines:
            yield from _table(_PIPELINE_COLUMNS, drawn, pipeline_room, "pipelines")
        if views:
            yield Text("")
            yield from _table(_VIEW_COLUMNS, views, max(2, rest - min(len(pipelines), pipeline_room)), "views")
        if shown_notes:
            yield Text("")
            yield from shown_notes

    def _heading(self, seen: Seen, console: Console, width: int) -> Iterator[Text]:
        clock = time.strftime("%H:%M:%S")
        yield Text(f"viewtail status at {clock}, every {self._every_s:g} s. Ctrl-C ends it", style="bold")
        age_s = time.monotonic() - seen.at
        if seen.found is None:
            yield Text(f"asking {self._looking.server}", style="cyan")
        elif seen.error is not None or age_s > self._every_s + _OLD_S:
            yield Text(f"MySQL does not answer. What stands below is {age_s:.0f} s old", style="red")
        if seen.error is not None:
            yield from Text(seen.error, style="red").wrap(console, width)[:_MOST_OF_IT]
        yield Text("")


def _worst_first(findings: Findings) -> tuple[list[PipelineStatus], list[tuple[str, ViewStatus]]]:
    pipelines = sorted(findings.pipelines, key=lambda pipeline: (pipeline.keeps_up, pipeline.name))
    views = sorted(each_view(findings.pipelines), key=_rank)
    return pipelines, views


def _rank(view_of_source: tuple[str, ViewStatus]) -> tuple[bool, bool, bool, str]:
    view = view_of_source[1]
    return view.state != "halted", not view.parked, view.state == "filled", view.name


def _filled(view: ViewStatus) -> str:
    return "-" if view.filled_percent is None else f"{view.filled_percent:.0f} %"


def _table(columns: Sequence[_Column], rows: Sequence[tuple[object, ...]], room: int, what: str) -> RenderResult:
    """A line a row, and one that says how many are left out where there is no room."""
    table = Table(box=None, pad_edge=False, expand=False, header_style="bold")
    for column in columns:
        justify = "right" if column.is_right else "left"
        table.add_column(column.title, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    shown = rows if len(rows) <= room else rows[: room - 1]
    for row in shown:
        cells = [column.text(*row) for column in columns]
        state = cells[1]
        table.add_row(cells[0], Text(state, STYLES.get(state, "yellow")), *(Text(cell) for cell in cells[2:]))
    yield table
    if len(shown) < len(rows):
        yield Text(f"and {len(rows) - len(shown)} more {what}", style="yellow")


def _folded(notes: Sequence[str], console: Console, width: int) -> list[Text]:
    return [line for note in notes for line in Text(note).wrap(console, width)]


def _first(lines: list[Text], room: int) -> list[Text]:
    if len(lines) <= room:
        return lines
    return [*lines[: max(0, room - 1)], Text("... viewtail status has the rest", style="yellow")]


def _cut(lines: Sequence[Text], height: int) -> Sequence[Text]:
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines[:height]


def _marks(console: Console) -> str:
    is_wide = (console.encoding or "").lower().startswith("utf") and os.environ.get("TERM") != "linux"
    return "▁▂▃▄▅▆▇█" if is_wide else "_.-=+*#@"
