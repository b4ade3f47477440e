"""Reads the state of each pipeline and view from viewtail's own tables.

A pipeline reports into `pipeline_status` while it works, and rarely while nothing happens, so that viewtail's own
writes do not feed themselves. Whether anybody runs it is asked of its lease, not of a clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from offsets import dead_letters, fan_outs, migrations, pipelines, view_parts, views
from offsets.fan_outs import FanOut
from offsets.pauses import Pause
from offsets.pipelines import PipelineRow, Report
from offsets.view_parts import PartRecord
from offsets.views import KEPT, State, ViewRecord
from projectors.catalog import Catalog
from viewtail.changes.pipelines import DEFAULT_SOURCE, PipelineId, PipelineState
from viewtail.changes.positions import Position, ReadPosition
from viewtail.operations.health import Judged
from viewtail.servers.sessions import Connection

RECENT_S = 90.0  # reports of a pipeline that runs are at most a minute old
READ_QUERIES = 6  # of `read`, however many pipelines and views there are
BUSY_ABOVE_S = 1.0  # a pipeline with a larger lag is left alone by what can wait
_FROM_WELL = (State.FILLED, State.BACKFILLING, State.NEW, State.RELEASED, State.PAUSED, State.HALTED)
_NO_REPORT = Report(
    state=PipelineState.STARTING,
    error=None,
    lag_ms=0,
    rows_per_second=0,
    applied_row_count=0,
    reconnect_count=0,
    owner="",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewStatus:
    """One view."""

    name: str
    state: State
    reason: str | None  # why it is halted, or paused
    filled_percent: float | None  # None when it cannot be told; 100 when filled
    row_count: int  # filling: rows read; filled: rows that its last backfill wrote, see docs/reference.md
    row_estimate: int
    rows_per_second: float  # of the backfill
    eta_s: float | None
    parked: int
    paused: Pause | None = None
    proven_through: str | None = None  # UTC: through this moment it was compared with its table, and equal
    declaration: str = ""  # the hash of the one that it is kept by
    parts: tuple[PartRecord, ...] = ()  # those of its tables that are paused, or resumed a moment ago


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutStatus:
    """A changed row of another table whose change is being brought to the many entities that depend on it."""

    view: str
    table: str
    key: str
    done: int
    about: int | None  # entities that depend on it; None: not known

    def __str__(self) -> str:
        return fan_outs.in_words(self.table, self.key, self.done, self.about)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus(Judged):
    """One pipeline and its views."""

    name: str
    state: str  # down, starting, running, retrying, halted, paused
    position: str | None  # 'binlog.000012:345'
    gtid: str | None  # where the source has such
    lag_s: float
    rows_per_second: int
    applied_row_count: int
    reconnect_count: int
    error: str | None
    owner: str | None
    reported_s_ago: float | None
    views: tuple[ViewStatus, ...]
    owned_since: str | None = None  # UTC
    fence: int = 0  # how often it was taken over
    waiting: int | None = None  # changes behind its position, where the source can count them
    paused: Pause | None = None  # also before its process has seen it, and while none runs
    fan_outs: tuple[FanOutStatus, ...] = ()

    def view_states(self) -> Sequence[tuple[str, int]]:
        return [(view.state, view.parked) for view in self.views]


def read(connection: Connection, database: str, read_position: ReadPosition) -> list[PipelineStatus]:
    """Every pipeline that ever ran with this database, by name. Empty when viewtail never ran.

    It asks READ_QUERIES questions.
    """
    with connection.cursor() as cursor:
        if not migrations.are_there(cursor, database):
            return []
        rows = pipelines.read(cursor, database)
        parked = dead_letters.counts(cursor, database)
        of: dict[int, list[ViewStatus]] = {}
        parts: dict[int, list[PartRecord]] = {}
        for part in view_parts.read(cursor, database):
            parts.setdefault(part.view_id, []).append(part)
        for view in views.read(cursor, database):
            of_view = _view(view, parked.get(view.id, 0))
            of.setdefault(view.pipeline_id, []).append(replace(of_view, parts=tuple(parts.get(view.id, ()))))
        fanning: dict[int, list[FanOutStatus]] = {}
        for pipeline, fan_out in fan_outs.under_way(cursor, database):
            fanning.setdefault(pipeline, []).append(_fan_out(fan_out))
    connection.commit()
    return [_pipeline(row, of.get(row.id, ()), fanning.get(row.id, ()), read_position) for row in rows]


def pipelines_now(catalog: Catalog) -> dict[str, PipelineStatus]:
    """Return every pipeline that ever ran with the catalog's database, by name."""
    with catalog.servers.asking_own() as connection:
        pipelines = read(connection, catalog.database, catalog.servers.read_position)
    return {pipeline.name: pipeline for pipeline in pipelines}


def positions_now(catalog: Catalog) -> dict[str, Position]:
    """Return the offset of every pipeline that has one, by name."""
    with catalog.servers.asking_own() as connection, connection.cursor() as cursor:
        return pipelines.positions(cursor, catalog.database, catalog.servers.read_position)


def is_replaced(pipeline: PipelineStatus, others: Sequence[PipelineStatus]) -> bool:
    """Return whether it is down, and one of the other kind of source that reported since keeps each of its views."""
    since = [other for other in others if _may_replace(other, pipeline)]
    kept = {view.name for other in since for view in other.views if view.state in KEPT}
    return pipeline.state == "down" and bool(pipeline.views) and kept.issuperset(view.name for view in pipeline.views)


def _may_replace(other: PipelineStatus, pipeline: PipelineStatus) -> bool:
    is_newer = other.state != "down" or _age_s(other) < _age_s(pipeline)
    return is_newer and _is_of_default(other) != _is_of_default(pipeline)


def _is_of_default(pipeline: PipelineStatus) -> bool:
    return PipelineId.parse(pipeline.name).source == DEFAULT_SOURCE


def _age_s(pipeline: PipelineStatus) -> float:
    return inf if pipeline.reported_s_ago is None else pipeline.reported_s_ago


def as_one(views: Sequence[ViewStatus]) -> ViewStatus:
    """One view of several pipelines: as it is where it is least well. One of them backfilled it for all."""
    worst = max(views, key=lambda view: _FROM_WELL.index(view.state))
    return replace(
        worst,
        filled_percent=None if worst.filled_percent is None else min(map(_percent, views)),
        eta_s=None if worst.filled_percent is None else max(_etas_s(views), default=None),
        reason=next(filter(None, (view.reason for view in views)), None),
        row_count=sum(view.row_count for view in views),
        row_estimate=max(view.row_estimate for view in views),
        rows_per_second=max(view.rows_per_second for view in views),
        parked=sum(view.parked for view in views),
        proven_through=None if None in {view.proven_through for view in views} else worst.proven_through,
    )


def _etas_s(views: Sequence[ViewStatus]) -> list[float]:
    return [view.eta_s for view in views if view.eta_s is not None]


def _percent(view: ViewStatus) -> float:
    return view.filled_percent or 0.0


def _pipeline(
    row: PipelineRow, views: Sequence[ViewStatus], fanning: Sequence[FanOutStatus], read_position: ReadPosition
) -> PipelineStatus:
    report = row.report or _NO_REPORT
    position = None if row.position is None else read_position(row.position)
    status = PipelineStatus(
        name=row.name,
        state=report.state,
        position=None if position is None else str(position),
        gtid=None if position is None else position.details().get("gtid"),
        lag_s=_lag_s(row, report),
        rows_per_second=report.rows_per_second,
        applied_row_count=report.applied_row_count,
        reconnect_count=report.reconnect_count,
        error=report.error,
        owner=None if row.report is None else report.owner,
        reported_s_ago=row.reported_s_ago,
        views=tuple(views),
        fence=row.fence,
        paused=row.pause,
        fan_outs=tuple(fanning),
    )
    if row.is_run:
        return status
    return replace(status, state="down", rows_per_second=0, error=_down(report.state, row.reported_s_ago))


def _lag_s(row: PipelineRow, report: Report) -> float:
    if row.pause is not None and report.state == PipelineState.PAUSED:
        return row.pause.lag_s
    # Of one that is down: a change that came right behind its last report waits since then.
    return report.lag_ms / 1000 + (0 if row.is_run else row.reported_s_ago or 0)


def _down(state: str | None, reported_s_ago: float | None) -> str:
    if state == PipelineState.GIVEN_UP:
        return (
            "its process gave it up, and no other has taken it. Projectors that run take it when the broker answers. "
            "If none runs: viewtail run"
        )
    if state == PipelineState.STOPPED:
        return "viewtail was stopped. Start it: viewtail run"
    if reported_s_ago is None or reported_s_ago > RECENT_S:
        return "no viewtail runs this pipeline. Start one: viewtail run"
    return (
        f"no viewtail runs this pipeline, though one did {reported_s_ago:.0f} s ago: it may be starting, or waiting "
        "for its servers. If none is: viewtail run"
    )


def _fan_out(of: FanOut) -> FanOutStatus:
    return FanOutStatus(view=of.view, table=of.table, key=of.key, done=of.done, about=of.about)


def _view(row: ViewRecord, parked: int) -> ViewStatus:
    count, estimate = row.row_count, row.row_estimate
    rate = count / row.fill_s if row.fill_s else 0.0
    percent: float | None = None
    is_filling = row.state == State.BACKFILLING
    if row.state == State.FILLED:
        percent = 100.0
    elif is_filling and estimate:
        percent = min(99.9, 100 * count / estimate)
    return ViewStatus(
        name=row.name,
        state=row.state,
        reason=row.reason,
        filled_percent=percent,
        row_count=count,
        row_estimate=estimate,
        rows_per_second=rate,
        eta_s=max(0.0, (estimate - count) / rate) if is_filling and rate and estimate else None,
        parked=parked,
        paused=row.pause,
        declaration=row.declaration,
        proven_through=None if row.proven_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row.proven_s)),
    )


def each_view(pipelines: Sequence[PipelineStatus]) -> list[tuple[str, ViewStatus]]:
    """Each view once a source, and that source where it is not the default one."""
    of_view: dict[tuple[str, str], list[ViewStatus]] = {}
    for pipeline in pipelines:
        identity = PipelineId.parse(pipeline.name)
        where = "" if identity.is_default else pipeline.name if identity.source == DEFAULT_SOURCE else identity.source
        for view in pipeline.views:
            of_view.setdefault((where, view.name), []).append(view)
    return [(where, as_one(views)) for (where, _), views in of_view.items()]
