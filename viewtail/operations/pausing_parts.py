"""Pausing one part of a view, one table of an entity of many, and resuming it.

A paused part keeps what it shows while all others go on. The pipeline's owner notices both within seconds. When a part
is resumed, the owner lets its changes through again, makes its rows right, and deletes the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from math import inf
from threading import Event

from ingest.canonical.parts import exists
from offsets import views
from offsets.mysql import reading
from offsets.view_parts import PartRecord, PartState, ViewParts
from offsets.views import State, ViewRecord
from projectors.catalog import Catalog
from projectors.paused_parts import part_in
from projectors.views import View
from viewtail.changes.copy_ids import view_of
from viewtail.changes.errors import MisuseError, StopRequested, UnknownNameError
from viewtail.changes.patterns import Part
from viewtail.changes.rendering import render_key
from viewtail.changes.repeating import Repeats, looks
from viewtail.operations.parts import part_of

SAY_AGAIN_S = 30.0


def check_may_pause(catalog: Catalog, view: View, given: str) -> None:
    """Raises MisuseError for a view no part of which can be paused, UnknownNameError for a part without a table."""
    pattern, part = view.entity.pattern, part_of(view, given)
    assert pattern is not None, "it has parts"
    if catalog.servers.kind.polls:
        raise MisuseError(
            f"{view.id}: its tables are polled, and one of them cannot be paused there. Pause the view: viewtail pause "
            f"{view.id}"
        )
    if pattern.source:
        raise MisuseError(
            f"{view.id}: it draws on several servers, and one table of many cannot be paused there. Pause a source: "
            "viewtail pause --pipeline NAME"
        )
    with closing(catalog.servers.open_source()) as connection:
        if not exists(connection, part):
            raise UnknownNameError(f"--part {given!r}: there is no table {part.full_name}")
    with _records(catalog, view) as (_, kept):
        if any(record.name != view.id for record in kept):
            raise MisuseError(
                f"{view.id}: a second copy of it is there, which would lack what the first one shows of the table. "
                f" First end that: viewtail rebuild {view.id} --abort, or wait until `viewtail "
                "status` shows none"
            )


def pause(catalog: Catalog, view: View, given: str, *, by: str, reason: str | None) -> tuple[PartRecord | None, Part]:
    """Pause a part; returns its record where it was paused already, and the part."""
    part, pattern = part_of(view, given), view.entity.pattern
    assert pattern is not None
    with _records(catalog, view) as (parts, kept):
        live = [record for record in kept if record.name == view.id and record.state is not State.RELEASED]
        if not live:
            raise MisuseError(f"{view.id}: no run has seen it yet, so there is nothing to pause. Start: viewtail run")
        if (before := _record_of(parts, view, part)) is not None and before.state is PartState.PAUSED:
            return before, part
        for record in live:
            parts.pause(
                PartRecord(
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
            )
    return None, part


def resume(catalog: Catalog, view: View, part: Part) -> bool:
    """Have a part kept again; False: it was not paused."""
    with _records(catalog, view) as (parts, _):
        record = _record_of(parts, view, part)
        if record is not None and record.state is PartState.PAUSED:
            parts.resume(record)
        return record is not None


def wait(catalog: Catalog, view: View, part: Part, stop: Event, say: Callable[[str], None]) -> None:
    """Return when the rows of a part that was resumed are right. Raises StopRequested, MisuseError."""
    repeats = Repeats(SAY_AGAIN_S)
    with _records(catalog, view) as (parts, _):
        for _ in looks(stop, inf):
            record = _record_of(parts, view, part)
            if record is None:
                return
            if record.state is PartState.PAUSED:
                raise MisuseError(f"{view.id}: {record}, so it was paused again meanwhile")
            if repeats.is_due("waiting"):
                say(
                    f"{view.id}: waiting until `viewtail run` has read the rows of {part.full_name} again. One runs? "
                    "viewtail status. Ctrl-C ends this command alone"
                )
    raise StopRequested


def _record_of(parts: ViewParts, view: View, part: Part) -> PartRecord | None:
    found = [record for record in parts.of(view.id) if part_in(view, record) == part]
    paused = [record for record in found if record.state is PartState.PAUSED]
    return next(iter([*paused, *found]), None)


@contextmanager
def _records(catalog: Catalog, view: View) -> Iterator[tuple[ViewParts, list[ViewRecord]]]:
    """The records of parts, and the rows of the view and its copies."""
    with closing(catalog.session()) as session:
        with reading(session, "reading views") as cursor:
            kept = [record for record in views.read(cursor, catalog.database) if view_of(record.name) == view.id]
        yield ViewParts(session, catalog.database), kept
