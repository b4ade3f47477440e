"""Keeps the pipelines: a row each with its offset, fence and pause, and what its process last reported.

Whether anybody runs a pipeline is asked of its lease, not of a clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, NamedTuple

from offsets import migrations
from offsets.lease import HELD, held_values, is_held
from offsets.mysql import Session, reading, transaction
from offsets.pauses import OF_PIPELINE, Pause, pause_of
from viewtail.changes.pipelines import PipelineId, PipelineState
from viewtail.changes.positions import Position, ReadPosition
from viewtail.servers.sessions import quote

TRYING_WITHIN_S = 20.0  # a pipeline that cannot start tries, and reports, every few seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A pipeline's own report; the columns of `pipeline_status` by name."""

    state: str
    error: str | None
    lag_ms: int
    rows_per_second: int
    applied_row_count: int
    reconnect_count: int
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """One pipeline."""

    id: int
    name: str
    fence: int
    position: str | None  # as its source writes it
    pause: Pause | None
    report: Report | None  # None: its process never reported
    reported_s_ago: float | None
    is_held: bool  # a process holds its lease

    @property
    def identity(self) -> PipelineId:
        return PipelineId.parse(self.name)

    @property
    def is_run(self) -> bool:
        """Return whether a process holds its lease, or is between two attempts to begin, when it holds none."""
        is_trying = self.report is not None and self.report.state in (PipelineState.HALTED, PipelineState.RETRYING)
        return self.is_held or (is_trying and self.reported_s_ago is not None and self.reported_s_ago < TRYING_WITHIN_S)

    @property
    def trouble(self) -> str | None:
        """Why it is not running well, as it last said."""
        if self.report is None or self.report.state == PipelineState.RUNNING:
            return None
        return self.report.state if self.report.error is None else f"{self.report.state}: {self.report.error}"

    @property
    def standstill(self) -> tuple[str, str] | None:
        """Why it writes nothing, and what ends that, with the command; None where it does."""
        if not self.is_run:
            return f"no viewtail runs pipeline {self.name}", "Start one: viewtail run"
        if self.trouble is not None and self.trouble.startswith(PipelineState.PAUSED):
            return f"pipeline {self.name} is {self.trouble}", f"To go on: viewtail resume --pipeline {self.name}"
        return None

    @property
    def trouble_and_mend(self) -> str | None:
        """A sentence, where it passes nothing now."""
        if self.standstill is not None:
            return ". ".join(self.standstill)
        return None if self.trouble is None else f"pipeline {self.name} is {self.trouble}"


_REPORTED = [field.name for field in fields(Report)]


def read(cursor: Any, database: str, names: Collection[str] | None = None) -> list[PipelineRow]:
    """Read the pipelines of these names, or all that ever ran with this database; by name."""
    cursor.execute(
        f"SELECT p.id, p.name, p.fence, p.position, {HELD.format('p.name')}, "
        "TIMESTAMPDIFF(MICROSECOND, s.updated_at, CURRENT_TIMESTAMP(6)) / 1e6, "
        f"{', '.join(f's.{name}' for name in _REPORTED)}, {OF_PIPELINE} "
        f"FROM {quote(database, 'pipeline')} p LEFT JOIN {quote(database, 'pipeline_status')} s "
        f"ON s.pipeline_id = p.id WHERE {'TRUE' if names is None else 'p.name IN %(names)s'} ORDER BY p.name",
        {"names": sorted(names or ()) or [""], **held_values(database)},
    )
    return [_row(row) for row in cursor.fetchall()]


def _row(row: tuple[Any, ...]) -> PipelineRow:
    number, name, fence, position, held, ago, *more = row
    reported, pause = more[: len(_REPORTED)], more[len(_REPORTED) :]
    return PipelineRow(
        id=number,
        name=name,
        fence=fence,
        position=position,
        pause=pause_of(pause),
        report=None if ago is None else Report(**dict(zip(_REPORTED, reported, strict=True))),
        reported_s_ago=None if ago is None else float(ago),
        is_held=bool(held),
    )


def ids(session: Session, database: str, names: Collection[str]) -> dict[str, int]:
    """Return, by name, the numbers of those of these pipelines that ever ran."""
    if not names:
        return {}
    with reading(session, "looking for pipelines") as cursor:
        cursor.execute(f"SELECT name, id FROM {quote(database, 'pipeline')} WHERE name IN %s", (sorted(names),))
        return dict(cursor.fetchall())


def positions(cursor: Any, database: str, read_position: ReadPosition) -> dict[str, Position]:
    """Return, by name, the offset of every pipeline that has one; none where viewtail never ran."""
    if not migrations.are_there(cursor, database):
        return {}
    cursor.execute(f"SELECT name, position FROM {quote(database, 'pipeline')} WHERE position IS NOT NULL")
    return {name: read_position(text) for name, text in cursor.fetchall()}


def replace_position(cursor: Any, database: str, pipeline: str, position: Position) -> None:
    """Let a pipeline that nobody runs go on at another place."""
    cursor.execute(
        f"UPDATE {quote(database, 'pipeline')} SET position = %s WHERE name = %s", (position.to_text(), pipeline)
    )


class SavedOffset(NamedTuple):
    """An offset as it is in its row."""

    pipeline_id: int
    fence: int
    text: str


def saved_offsets(cursor: Any, database: str, source: str) -> list[SavedOffset]:
    """Read the offsets of all pipelines of a source that have one."""
    cursor.execute(
        f"SELECT id, fence, position FROM {quote(database, 'pipeline')} WHERE source = %s AND position IS NOT NULL",
        (source,),
    )
    return [SavedOffset(*row) for row in cursor.fetchall()]


def replace_offset(cursor: Any, database: str, before: SavedOffset, text: str) -> None:
    """Replace an offset by another text of it, unless it moved or the pipeline was taken meanwhile."""
    cursor.execute(
        f"UPDATE {quote(database, 'pipeline')} SET position = %s WHERE id = %s AND fence = %s AND position = %s",
        (text, *before),
    )


def save_report(session: Session, database: str, pipeline: str, report: Report, *, unless_owned: bool = False) -> bool:
    """Replace a pipeline's report; `unless_owned`: not where somebody holds its lease, whose report it is then.

    Returns whether it did.
    """
    with transaction(session, "reporting the status") as cursor:
        values = astuple(replace(report, error=report.error and report.error[:2000]))
        updates = ", ".join(f"{name} = %s" for name in _REPORTED)
        cursor.execute(
            f"INSERT INTO {quote(database, 'pipeline_status')} (pipeline_id, {', '.join(_REPORTED)}) "
            f"SELECT id, {', '.join(['%s'] * len(_REPORTED))} FROM {quote(database, 'pipeline')} WHERE name = %s "
            f"ON DUPLICATE KEY UPDATE {updates}, updated_at = CURRENT_TIMESTAMP(6)",
            (*values, pipeline, *values),
        )
        # Asked last: whoever becomes the owner from now on waits for the row, and writes over it.
        if unless_owned and is_held(cursor, database, pipeline):
            cursor.connection.rollback()
            return False
    return True
