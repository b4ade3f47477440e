"""Joins views with the pipelines that keep them: one pipeline a view, or one for each part of the source."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from offsets import migrations, pipelines, views
from offsets.mysql import Session, reading
from offsets.pipelines import PipelineRow
from offsets.views import KEPT, ViewRecord
from viewtail.changes.pipelines import DEFAULT_SOURCE, PipelineId

_MOST_NAMES = 3  # in a sentence


class Keeper(NamedTuple):
    """A pipeline that keeps a view, and the view as it has it."""

    pipeline: PipelineRow
    view: ViewRecord


def read(
    cursor: Any, database: str, *, names: Collection[str] | None = None, of: Collection[str] | None = None
) -> list[Keeper]:
    """Read the views of these names that pipelines `of` these names keep, or all; ordered by the source's parts."""
    records = views.read(cursor, database, names=names)
    if not records:
        return []
    rows = {row.id: row for row in pipelines.read(cursor, database, of)}
    keepers = [Keeper(rows[record.pipeline_id], record) for record in records if record.pipeline_id in rows]
    return sorted(keepers, key=lambda keeper: keeper.pipeline.identity)


def keepers(session: Session, database: str, view: str, of: Collection[str]) -> list[Keeper]:
    """Pick those of these pipelines that keep the view."""
    with reading(session, f"looking for the pipelines of {view}") as cursor:
        return read(cursor, database, names=[view], of=of)


def known_views(session: Session, database: str) -> dict[tuple[str, str], ViewRecord]:
    """Read every view and copy, by pipeline and id; none where viewtail never ran."""
    with reading(session, "reading the views' states") as cursor:
        if not migrations.are_there(cursor, database):
            return {}
        return {(keeper.pipeline.name, keeper.view.name): keeper.view for keeper in read(cursor, database)}


def to_begin(processes: Collection[str]) -> str:
    """What to do about a view that no run has seen, while these processes keep others."""
    if not processes:
        return "No viewtail that keeps it runs. Start one: viewtail run"
    names = sorted(processes)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (
        f"The viewtail that runs ({', '.join(names[:_MOST_NAMES])}{more}) does not keep it: it was started with an "
        "older views.py, or for other views. Restart it with this one"
    )


def kept_as_before(view: str, changed: str = "views.py") -> str:
    """What to do about a view that the running viewtail keeps by an older declaration, or as its table was."""
    return (
        f"{changed} has changed since the running viewtail read it: {view} is kept as it was declared before. Restart "
        "`viewtail run`"
    )


def processes_now(cursor: Any, database: str, source: str = "") -> set[str]:
    """The processes that run pipelines now, by host and process id; where a source is named, those of that one."""
    if not migrations.are_there(cursor, database):
        return set()
    return {
        pipeline.report.owner
        for pipeline in {keeper.pipeline.name: keeper.pipeline for keeper in read(cursor, database)}.values()
        if pipeline.is_run and pipeline.report is not None and pipeline.report.owner
        if source in ("", pipeline.identity.source)
    }


def kept_elsewhere(
    session: Session,
    database: str,
    pipeline: PipelineId,
    names: Collection[str],
    is_alike: Callable[[str], bool],
) -> Keeper | None:
    """Find one of these views that is kept from a topic or a named source, with its pipeline.

    For the pipeline of such a one: from the source that has no name. Where both are binlogs, as `is_alike` tells from
    an offset, the view's keys are others than they were, whether its pipeline runs or not.
    """
    with reading(session, "reading who keeps a view") as cursor:
        all_keepers = read(cursor, database, names=names)
    is_default = pipeline.source == DEFAULT_SOURCE
    for row, view in all_keepers:
        is_other = (row.identity.source == DEFAULT_SOURCE) != is_default
        is_kept = row.is_held and view.state in KEPT
        if is_other and (is_kept or (row.position is not None and is_alike(row.position))):
            return Keeper(row, view)
    return None
