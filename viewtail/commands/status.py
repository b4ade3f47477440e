"""`viewtail status`: how each pipeline and view is doing, and what to do where something is not well."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pymysql
import structlog
from rich.text import Text

from changes.errors import MisuseError, ViewtailError
from changes.pipelines import DEFAULT_SOURCE, PipelineId
from operations.status import BEHIND_S, PipelineStatus, ViewStatus, as_one, positions, read
from projectors.stores.registry import STORES
from servers.sessions import Connection, open_session, session_error
from viewtail import declarations, settings
from viewtail.commands.output import print_json, print_table
from viewtail.sources import read_position

_log = structlog.get_logger("viewtail.status")

_RATE_IS_FRESH_S = 10.0
_ANSWER_WITHIN_S = 8.0
_RIGHT = frozenset({"lag", "waiting", "rows/s", "rows", "filled", "parked", "reported"})
_STYLES = {"running": "green", "filled": "green", "filling": "cyan", "new": "cyan", "down": "red", "halted": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the tables say, and what the declarations add to it."""

    pipelines: Sequence[PipelineStatus]
    not_run: Sequence[str]  # views that are declared, and that no `run` has seen yet
    retired: Sequence[str]  # views that a `run` once kept, and that are not declared any more

    @property
    def is_well(self) -> bool:
        return bool(self.pipelines) and not self.not_run and all(one.is_well for one in self.pipelines)


def status(config: Path | None, *, as_json: bool) -> int:
    """Print every pipeline and view; the exit code is 1 when one is down, behind, halted or has parked keys."""
    loaded = settings.load(config)
    # Who asks wants to know now; a server that hangs is an answer.
    address = replace(loaded.store_address(), database=None, io_timeout_s=_ANSWER_WITHIN_S)
    database = loaded.store_database
    with closing(open_session(address, role="store")) as connection:
        try:
            pipelines = _with_waiting(loaded, connection, read(connection, database, read_position))
        except pymysql.err.MySQLError as error:
            raise session_error(error, address, "store") from None
    found = _of_this_source(loaded, _compared(pipelines, _declared(loaded)))
    if as_json:
        pipelines_now = [{**asdict(one), "is_well": one.is_well} for one in found.pipelines]
        told = {"is_well": found.is_well, "pipelines": pipelines_now}
        print_json({**told, "not_run": found.not_run, "retired": found.retired})
    elif not pipelines:
        print(f"viewtail has not run yet with the database {database} at {address}. Start it with: viewtail run")
    else:
        _print(found)
    return 0 if found.is_well else 1


def _with_waiting(
    loaded: settings.Settings, connection: Connection, pipelines: Sequence[PipelineStatus]
) -> list[PipelineStatus]:
    """How many changes wait behind each position: where the source counts them, and answers."""
    waiting: Mapping[str, int] = {}
    try:
        at = positions(connection, loaded.store_database, read_position)
        waiting = loaded.source_kind.waiting(loaded.source_access(), at)
    except ViewtailError as error:
        _log.warning("the source does not say what waits in it", error=str(error))
    return [replace(one, waiting=waiting.get(one.name)) for one in pipelines]


def _declared(loaded: settings.Settings) -> set[str] | None:
    """The ids of the declared views; None when views.py cannot be loaded: `status` shows the rest all the same."""
    try:
        return {view.id for view in declarations.load(loaded.views)}
    except MisuseError:
        return None


def _compared(pipelines: Sequence[PipelineStatus], declared: set[str] | None) -> Findings:
    known = {view.name for one in pipelines for view in one.views}
    if declared is None:
        return Findings(pipelines=pipelines, not_run=[], retired=[])
    kept = [
        replace(one, views=tuple(view for view in one.views if view.name in declared))
        for one in pipelines
        if _is_shown(one, declared)
    ]
    return Findings(pipelines=kept, not_run=sorted(declared - known), retired=sorted(known - declared))


def _of_this_source(loaded: settings.Settings, found: Findings) -> Findings:
    """Where changes come from Kafka: without what followed the binlog before that; topics are others' to publish."""
    if not loaded.source_kind.is_shared_out:
        return found
    published = {store.name for store in STORES if store.keeps_every_change}
    of_binlog = {PipelineId.of(store.name).name for store in STORES} - published
    return replace(
        found,
        pipelines=[one for one in found.pipelines if one.name not in of_binlog or one.state != "down"],
        not_run=[view for view in found.not_run if view.partition(":")[0] not in published],
    )


def _is_shown(pipeline: PipelineStatus, declared: set[str]) -> bool:
    """Whether it keeps a declared view, or has just begun and knows none yet."""
    if not pipeline.views:
        return pipeline.state != "down"
    return any(view.name in declared for view in pipeline.views)


def _print(found: Findings) -> None:
    pipelines = [_pipeline_row(one) for one in found.pipelines]
    views = [_view_row(where, view) for where, view in _views(found.pipelines)]
    _table(("pipeline", "state", "lag", "waiting", "rows/s", "position", "reported"), pipelines)
    print()
    _table(("view", "state", "filled", "rows", "parked"), views)
    for line in _remarks(found):
        print(f"\n{line}")


def _pipeline_row(one: PipelineStatus) -> tuple[str, ...]:
    is_behind = one.state == "running" and one.lag_s > BEHIND_S
    return (
        one.name,
        "behind" if is_behind else one.state,
        f"{one.lag_s:.1f} s",
        "-" if one.waiting is None else f"{one.waiting:,}",
        # An idle pipeline reports rarely: what it said of a busy moment is not true of now.
        f"{one.rows_per_second if (one.reported_s_ago or 0) < _RATE_IS_FRESH_S else 0:,}",
        one.position or "-",
        "-" if one.reported_s_ago is None else f"{one.reported_s_ago:.0f} s ago",
    )


def _views(pipelines: Sequence[PipelineStatus]) -> list[tuple[str, ViewStatus]]:
    """Each view once a source, and that source where it is not the default one."""
    found: dict[tuple[str, str], list[ViewStatus]] = {}
    for one in pipelines:
        identity = PipelineId.parse(one.name)
        where = "" if identity.is_default else one.name if identity.source == DEFAULT_SOURCE else identity.source
        for view in one.views:
            found.setdefault((where, view.name), []).append(view)
    return [(where, as_one(views)) for (where, _), views in found.items()]


def _view_row(where: str, view: ViewStatus) -> tuple[str, ...]:
    filled = "-" if view.filled_percent is None else f"{view.filled_percent:.0f} %"
    if view.eta_s is not None:
        filled += f", {view.rows_per_second:,.0f}/s, {view.eta_s:.0f} s left"
    name = f"{view.name} ({where})" if where else view.name
    return (name, view.state, filled, f"{view.row_count:,}", str(view.parked))


def _remarks(found: Findings) -> list[str]:
    """A line for everything that is not well; each ends with what to do."""
    lines = []
    for one in found.pipelines:
        if one.error:
            lines.append(f"pipeline {one.name}: {one.error}")
        elif one.state == "running" and one.lag_s > BEHIND_S:
            lines.append(
                f"pipeline {one.name}: {one.lag_s:.0f} s behind. While lag falls it is catching up; when it rises, the "
                "store is slower than the changes come: docs/operations.md, Behind"
            )
    for _, view in _views(found.pipelines):
        if view.reason:
            lines.append(f"view {view.name} is halted: {view.reason}")
        if view.parked:
            lines.append(
                f"view {view.name}: {view.parked} keys could not be applied; all others were. See the table "
                f"dead_letter for the reasons; when they are mended: viewtail replay {view.name}"
            )
    lines += [f"view {name} is declared, but no run has seen it yet. Start one: viewtail run" for name in found.not_run]
    lines += [
        f"view {name} is not declared any more. The next `viewtail run` leaves it, and what it shows, as it is. To get "
        f"it back, declare it again: viewtail backfills it. Or forget it: viewtail forget {name}"
        for name in found.retired
    ]
    return lines


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Colours on a terminal; columns of plain text otherwise, never cut."""
    if sys.stdout.isatty():
        coloured: list[list[str | Text]] = [
            [row[0], Text(row[1], _STYLES.get(row[1], "yellow")), *row[2:]] for row in rows
        ]
        print_table(titles, coloured, right=_RIGHT)
        return
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = (
            text.rjust(width) if title in _RIGHT else text.ljust(width)
            for title, text, width in zip(titles, row, widths, strict=True)
        )
        print("  ".join(cells).rstrip())
