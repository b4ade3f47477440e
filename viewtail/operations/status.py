"""How each pipeline and view is doing, from viewtail's own tables: written by `run`, read by `status`.

A pipeline reports into `pipeline_status` while it works, and rarely while nothing happens, so that viewtail's own
writes do not feed themselves. Whether anybody runs it is asked of its lease, not of a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, fields, replace
from math import inf
from typing import Any

import pymysql

from offsets import migrations, pauses
from offsets.lease import is_held, is_trying, lock_name
from offsets.mysql import Session, transaction
from offsets.pauses import Pause
from projectors.catalog import Catalog
from viewtail.changes.pipelines import DEFAULT_SOURCE, PipelineId
from viewtail.changes.positions import Position, ReadPosition
from viewtail.changes.retrying import GIVEN_UP, PAUSED, STOPPED
from viewtail.operations.health import Judged
from viewtail.servers.sessions import quote

RECENT_S = 90.0  # reports of a pipeline that runs are at most a minute old
READ_QUERIES = 4  # of `read`, however many pipelines and views there are
BUSY_ABOVE_S = 1.0  # a pipeline with a larger lag is left alone by what can wait
_FROM_WELL = ("filled", "filling", "new", "paused", "halted")  # states of a view


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a pipeline reports of itself; the columns of `pipeline_status` by name."""

    state: str
    error: str | None
    lag_ms: int
    rows_per_second: int
    applied_row_count: int
    reconnect_count: int
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewStatus:
    """One view."""

    name: str
    state: str  # new, filling, filled, halted, paused
    reason: str | None  # why it is halted, or paused
    filled_percent: float | None  # None when it cannot be told; 100 when filled
    row_count: int  # filling: rows read; filled: rows that its last backfill wrote, see docs/operations.md
    row_estimate: int
    rows_per_second: float  # of the backfill
    eta_s: float | None
    parked: int
    paused: Pause | None = None
    proven_through: str | None = None  # UTC: through this moment it was compared with its table, and equal


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

    def view_states(self) -> Sequence[tuple[str, int]]:
        return [(view.state, view.parked) for view in self.views]


def save(session: Session, database: str, pipeline: str, report: Report, *, unless_owned: bool = False) -> bool:
    """Replace a pipeline's report; `unless_owned`: not where somebody holds its lease, whose report it is then.

    Returns whether it did.
    """
    with transaction(session, "reporting the status") as cursor:
        names = [field.name for field in fields(Report)]
        values = astuple(replace(report, error=report.error and report.error[:2000]))
        updates = ", ".join(f"{name} = %s" for name in names)
        cursor.execute(
            f"INSERT INTO {quote(database, 'pipeline_status')} (pipeline_id, {', '.join(names)}) "
            f"SELECT id, {', '.join(['%s'] * len(names))} FROM {quote(database, 'pipeline')} WHERE name = %s "
            f"ON DUPLICATE KEY UPDATE {updates}, updated_at = CURRENT_TIMESTAMP(6)",
            (*values, pipeline, *values),
        )
        # Asked last: whoever becomes the owner from now on waits for the row, and writes over it.
        if unless_owned and is_held(cursor, database, pipeline):
            cursor.connection.rollback()
            return False
    return True


def read(connection: pymysql.Connection[Any], database: str, read_position: ReadPosition) -> list[PipelineStatus]:
    """Every pipeline that ever ran with this database, by name. Empty when viewtail never ran.

    Tables of an earlier viewtail show no position: the next `run` migrates them. It asks READ_QUERIES questions.
    """
    with connection.cursor() as cursor:
        present = migrations.visible_columns(cursor, database)
        if not {"pipeline", "pipeline_status", "view", "dead_letter"} <= present.keys():
            return []
        position = "p.position" if "position" in present["pipeline"] else "NULL"
        paused = pauses.OF_PIPELINE if "paused_at" in present["pipeline"] else pauses.NONE
        cursor.execute(
            f"SELECT p.id, p.name, {position}, s.state, s.error, s.lag_ms, "
            "s.rows_per_second, s.applied_row_count, s.reconnect_count, s.owner, "
            f"TIMESTAMPDIFF(MICROSECOND, s.updated_at, CURRENT_TIMESTAMP(6)) / 1e6, p.fence, {paused} "
            f"FROM {quote(database, 'pipeline')} p LEFT JOIN {quote(database, 'pipeline_status')} s "
            "ON s.pipeline_id = p.id ORDER BY p.name",
            (),
        )
        rows = list(cursor.fetchall())
        owned = _owned(cursor, database, [row[1] for row in rows])
        views = _views(cursor, database, present["view"])
        found = [_pipeline(row, owned[row[1]], views.get(row[0], ()), read_position) for row in rows]
    connection.commit()
    return found


def pipelines_now(catalog: Catalog) -> dict[str, PipelineStatus]:
    """By name, every pipeline that ever ran with the catalog's database."""
    with catalog.servers.asking_own() as connection:
        return {one.name: one for one in read(connection, catalog.database, catalog.servers.read_position)}


def positions_now(catalog: Catalog) -> dict[str, Position]:
    """By name, the offset of every pipeline that has one."""
    with catalog.servers.asking_own() as connection:
        return positions(connection, catalog.database, catalog.servers.read_position)


def positions(connection: pymysql.Connection[Any], database: str, read_position: ReadPosition) -> dict[str, Position]:
    """By name, the offset of every pipeline that has one."""
    with connection.cursor() as cursor:
        if "position" not in migrations.columns(cursor, database).get("pipeline", []):
            return {}
        cursor.execute(f"SELECT name, position FROM {quote(database, 'pipeline')} WHERE position IS NOT NULL")
        found = {name: read_position(text) for name, text in cursor.fetchall()}
    connection.commit()
    return found


def is_replaced(one: PipelineStatus, others: Sequence[PipelineStatus]) -> bool:
    """Whether it is down, and each of its views is kept from the other kind of source by one that reported since."""
    since = [other for other in others if _is_newer(other, one) and _is_of_default(other) != _is_of_default(one)]
    kept = {view.name for other in since for view in other.views if view.state in ("filling", "filled")}
    return one.state == "down" and bool(one.views) and kept.issuperset(view.name for view in one.views)


def _is_newer(one: PipelineStatus, other: PipelineStatus) -> bool:
    return one.state != "down" or _age_s(one) < _age_s(other)


def _is_of_default(one: PipelineStatus) -> bool:
    return PipelineId.parse(one.name).source == DEFAULT_SOURCE


def _age_s(one: PipelineStatus) -> float:
    return inf if one.reported_s_ago is None else one.reported_s_ago


def as_one(views: Sequence[ViewStatus]) -> ViewStatus:
    """One view of several pipelines: as it is where it is least well. One of them backfilled it for all."""
    worst = max(views, key=lambda one: _FROM_WELL.index(one.state))
    is_not_told = worst.filled_percent is None
    return replace(
        worst,
        reason=next((one.reason for one in views if one.reason), None),
        row_count=sum(one.row_count for one in views),
        row_estimate=max(one.row_estimate for one in views),
        filled_percent=None if is_not_told else min(one.filled_percent or 0.0 for one in views),
        rows_per_second=max(one.rows_per_second for one in views),
        eta_s=None if is_not_told else max((one.eta_s for one in views if one.eta_s is not None), default=None),
        parked=sum(one.parked for one in views),
        proven_through=None if any(one.proven_through is None for one in views) else worst.proven_through,
    )


def _owned(cursor: Any, database: str, pipelines: Sequence[str]) -> dict[str, bool]:
    """Whether somebody has each of them now."""
    if not pipelines:
        return {}
    names = [lock_name(database, name) for name in pipelines]
    cursor.execute(f"SELECT {', '.join(['IS_USED_LOCK(%s) IS NOT NULL'] * len(names))}", names)
    return dict(zip(pipelines, map(bool, cursor.fetchone()), strict=True))


def _pipeline(
    row: tuple[Any, ...], is_owned: bool, views: Sequence[ViewStatus], read_position: ReadPosition
) -> PipelineStatus:
    _, name, text, state, error, lag_ms, rate, applied, reconnects, owner, ago, fence, *pause = row
    is_run = is_owned or is_trying(state, ago)
    position = None if text is None else read_position(text)
    details = {} if position is None else position.details()
    paused = pauses.pause_of(pause)
    lag_s = (lag_ms or 0) / 1000
    if paused is not None and state == PAUSED:
        lag_s = paused.lag_s
    elif not is_run:
        lag_s += float(ago or 0)  # a change that came right behind its last report waits since then
    return PipelineStatus(
        name=name,
        state=(state or "starting") if is_run else "down",
        position=None if position is None else str(position),
        gtid=details.get("gtid"),
        lag_s=lag_s,
        rows_per_second=(rate or 0) if is_run else 0,
        applied_row_count=applied or 0,
        reconnect_count=reconnects or 0,
        error=error if is_run else _down(state, ago),
        owner=owner,
        reported_s_ago=None if ago is None else float(ago),
        views=tuple(views),
        fence=fence,
        paused=paused,
    )


def _down(state: str | None, reported_s_ago: float | None) -> str:
    if state == GIVEN_UP:
        return (
            "its process gave it up, and no other has taken it. Projectors that run take it when the broker answers. "
            "If none runs: viewtail run"
        )
    if state == STOPPED:
        return "viewtail was stopped. Start it: viewtail run"
    if reported_s_ago is None or reported_s_ago > RECENT_S:
        return "no viewtail runs this pipeline. Start one: viewtail run"
    return (
        f"no viewtail runs this pipeline, though one did {reported_s_ago:.0f} s ago: it may be starting, or waiting "
        "for its servers. If none is: viewtail run"
    )


def _views(cursor: Any, database: str, columns: Collection[str]) -> dict[int, list[ViewStatus]]:
    """By the number of the pipeline; `columns` are those that the table has."""
    paused = pauses.OF_VIEW if "paused_at" in columns else pauses.NONE
    proven = "DATE_FORMAT(v.proven_at, '%Y-%m-%d %H:%i:%s')" if "proven_at" in columns else "NULL"
    cursor.execute(
        "SELECT v.pipeline_id, v.name, v.state, v.reason, v.fill_row_count, v.fill_row_estimate, "
        "TIMESTAMPDIFF(MICROSECOND, v.fill_started_at, COALESCE(v.filled_at, CURRENT_TIMESTAMP(6))) / 1e6, "
        f"(SELECT COUNT(*) FROM {quote(database, 'dead_letter')} d WHERE d.view_id = v.id), {proven}, "
        f"{paused} FROM {quote(database, 'view')} v ORDER BY v.name",
    )
    found: dict[int, list[ViewStatus]] = {}
    for number, *row in cursor.fetchall():
        found.setdefault(number, []).append(_view(row))
    return found


def _view(row: Sequence[Any]) -> ViewStatus:
    name, state, reason, count, estimate, seconds, parked, proven, *pause = row
    rate = count / float(seconds) if seconds else 0.0
    percent: float | None = None
    if state == "filled":
        percent = 100.0
    elif state == "filling" and estimate:
        percent = min(99.9, 100 * count / estimate)
    return ViewStatus(
        name=name,
        state=state,
        reason=reason,
        filled_percent=percent,
        row_count=count,
        row_estimate=estimate,
        rows_per_second=rate,
        eta_s=max(0.0, (estimate - count) / rate) if state == "filling" and rate and estimate else None,
        parked=parked,
        paused=pauses.pause_of(pause),
        proven_through=proven,
    )


def each_view(pipelines: Sequence[PipelineStatus]) -> list[tuple[str, ViewStatus]]:
    """Each view once a source, and that source where it is not the default one."""
    found: dict[tuple[str, str], list[ViewStatus]] = {}
    for one in pipelines:
        identity = PipelineId.parse(one.name)
        where = "" if identity.is_default else one.name if identity.source == DEFAULT_SOURCE else identity.source
        for view in one.views:
            found.setdefault((where, view.name), []).append(view)
    return [(where, as_one(views)) for (where, _), views in found.items()]
