"""Pausing one part of a view, one table of an entity of many, and resuming it.

A paused part keeps what it shows while all others go on. The pipeline's owner notices both within seconds. When a part
is resumed, the owner lets its changes through again, makes its rows right, and deletes the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from math import inf
from threading import Event

from ingest.canonical.parts import exists
from offsets import runs
from offsets.copies import Copies
from offsets.keepers import known_views
from offsets.view_parts import PartRecord, PartState, ViewParts
from offsets.views import State, ViewRecord
from projectors.catalog import Catalog
from projectors.paused_parts import part_in
from projectors.views import View
from viewtail.changes.errors import MisuseError, StopRequested, UnknownNameError
from viewtail.changes.patterns import Part
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.rendering import render_key
from viewtail.changes.repeating import Repeats, looks
from viewtail.operations.parts import part_of

SAY_AGAIN_S = 30.0


def check_may_pause(catalog: Catalog, view: View, given: str) -> None:
    """Raises MisuseError for a view no part of which can be paused, UnknownNameError for a part without a table."""
    pattern = view.entity.pattern
    if pattern is not None and pattern.source:
        raise MisuseError(
            f"{view.id}: it draws on several servers, where one table of many cannot be paused. To pause all of one "
            f"server: viewtail pause --pipeline {pattern.source[0]}.0.{view.store}"
        )
    part = part_of(view, given)
    if catalog.servers.kind.polls:
        raise MisuseError(
            f"{view.id}: its tables are polled, and one of them cannot be paused there. Pause the view: viewtail pause "
            f"{view.id}"
        )
    with closing(catalog.servers.open_source()) as connection:
        if not exists(connection, part):
            raise UnknownNameError(f"--part {given!r}: there is no table {part.full_name}")


def pause(catalog: Catalog, view: View, given: str, *, by: str, reason: str | None) -> tuple[PartRecord | None, Part]:
    """Pause a part; returns its record where it was paused already, and the part.

    Raises MisuseError where a copy is beside the view, or is to be made.
    """
    part, pattern = part_of(view, given), view.entity.pattern
    assert pattern is not None
    with _records(catalog, view) as (parts, kept):
        live = {pipeline: record for pipeline, record in kept.items() if record.state is not State.RELEASED}
        if not live:
            raise MisuseError(f"{view.id}: no run has seen it yet, so there is nothing to pause. Start: viewtail run")
        before = _records_of(parts, live, view, part)
        if before and all(record.state is PartState.PAUSED for record in before):
            return before[0], part
        for pipeline, record in live.items():
            asked = PartRecord(
                view_id=record.id,
                view=view.id,
                part=render_key(part.values, pattern.columns),
                given=given,
                table=part.full_name,
                state=PartState.PAUSED,
                reason=reason,
                by=by,
                since="",
            )
            _pause(Copies(parts.session, catalog.database, pipeline), asked)
        runs.record(parts.session, catalog.database, runs.PAUSED, view.id, f"part {given}", reason or "")
    return None, part


def _pause(copies: Copies, asked: PartRecord) -> None:
    if not copies.pause_part(asked):
        raise MisuseError(
            f"{asked.view}: a second copy of it is there, or is to be made, and would lack what readers have of the "
            f"table. First end that: viewtail rebuild {asked.view} --abort, or wait until `viewtail status` shows none"
        )


def resume(catalog: Catalog, view: View, part: Part) -> bool:
    """Have a part kept again; False: it was not paused."""
    with _records(catalog, view) as (parts, kept):
        found = _records_of(parts, kept, view, part)
        for record in found:
            if record.state is PartState.PAUSED:
                parts.resume(record)
        if any(record.state is PartState.PAUSED for record in found):
            runs.record(parts.session, catalog.database, runs.RESUMED, view.id, f"part {found[0].given}")
        return bool(found)


def wait(catalog: Catalog, view: View, part: Part, stop: Event, say: Callable[[str], None]) -> str:
    """Return when the rows of a part that was resumed are right: ''; or why that is not awaited.

    A large part has its whole view filled again. Raises StopRequested, MisuseError.
    """
    repeats = Repeats(SAY_AGAIN_S)
    for _ in looks(stop, inf):
        with _records(catalog, view) as (parts, kept):
            record = next(iter(_records_of(parts, kept, view, part)), None)
        if record is not None and record.state is PartState.PAUSED:
            raise MisuseError(f"{view.id}: {record}, so it was paused again meanwhile")
        if record is not None:
            doing = f"`viewtail run` has read the rows of {part.full_name} again"
        else:
            states = {one.state for one in kept.values()}
            if states <= {State.FILLED}:
                return ""
            if stands := states & {State.PAUSED, State.HALTED}:
                return f"the view is {min(stands)}; its rows are read when it goes on"
            doing = "the view is filled again, of which the table is a large part"
        if repeats.is_due(doing):
            say(f"{view.id}: waiting until {doing}. One runs? viewtail status. Ctrl-C ends this command alone")
    raise StopRequested


def _records_of(parts: ViewParts, kept: Mapping[str, ViewRecord], view: View, part: Part) -> list[PartRecord]:
    """The records of a part, of each pipeline that keeps the view; those that are paused first."""
    ids = {record.id for record in kept.values()}
    found = parts.of(view.id) if kept else []
    of_part = [record for record in found if record.view_id in ids and part_in(view, record) == part]
    return sorted(of_part, key=lambda record: record.state is not PartState.PAUSED)


@contextmanager
def _records(catalog: Catalog, view: View) -> Iterator[tuple[ViewParts, dict[str, ViewRecord]]]:
    """The records of parts, and what is kept of the view that readers see, by pipeline: without those of topics."""
    with closing(catalog.session()) as session:
        known = known_views(session, catalog.database).items()
        of_view = {pipeline: record for (pipeline, name), record in known if name == view.id}
        kept = {name: record for name, record in of_view.items() if PipelineId.parse(name).is_default}
        yield ViewParts(session, catalog.database), kept
