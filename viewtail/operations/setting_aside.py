"""Pausing one part of a view, one table of an entity of many, and keeping one again that was set aside.

    part_of        which table is meant
    pause_part     it gets no changes from now on, and keeps what it shows
    let_through    the pipeline that keeps the view lets its changes through again
    read_again     its rows are read again; keys that have no row are buried

What changed while it was set aside is in its table: the rows are read under a watermark that comes after the pipeline
said that it lets changes through, so what changes later comes with the stream. Until all is read the part's row in
viewtail's own tables stays, whoever dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from math import inf
from threading import Event

from ingest.canonical.parts import parts_of
from offsets.view_parts import MOST_ASIDE, PartRecord, PartState, ViewParts
from offsets.views import KEPT, ViewRecord, ViewStates
from offsets.views import Event as Moved
from projectors import parts_aside
from projectors.catalog import Catalog, bound_to_tables
from projectors.views import View
from viewtail.changes.copy_ids import view_of
from viewtail.changes.errors import DeclarationError, MisuseError, StopRequested, UnknownNameError, ViewtailError
from viewtail.changes.patterns import Part
from viewtail.changes.rendering import render_key
from viewtail.changes.repeating import Repeats, looks
from viewtail.operations.parts import part_of

SAY_AGAIN_S = 30.0


def check_may_pause(catalog: Catalog, view: View) -> None:
    """Raises MisuseError for a view no part of which can be set aside."""
    pattern = view.entity.pattern
    if catalog.servers.kind.polls:
        raise MisuseError(
            f"{view.id}: its tables are polled, and one of many cannot be paused there yet. Pause the view: viewtail "
            f"pause {view.id}"
        )
    if pattern is not None and pattern.source:
        raise MisuseError(
            f"{view.id}: it draws on several servers, and one table of many cannot be paused there yet. Pause the "
            f"pipelines of a server: viewtail pause --pipeline NAME"
        )


def record_of(records: Sequence[PartRecord], view: View, part: Part) -> PartRecord | None:
    """What viewtail's own tables say of a part; None: it is as any other."""
    name = render_key(part.values, view.entity.pattern.columns) if view.entity.pattern is not None else ""
    return next((record for record in records if (record.view, record.part) == (view.id, name)), None)


def pause_part(catalog: Catalog, view: View, given: str, *, by: str, reason: str | None = None) -> PartRecord:
    """Set a part aside; returns it as it was before where it was set aside already. `state` of a new one is paused.

    Raises MisuseError, UnknownNameError for what is no part, or cannot be paused.
    """
    check_may_pause(catalog, view)
    part, pattern = part_of(view, given), view.entity.pattern
    assert pattern is not None
    with closing(catalog.servers.open_source()) as connection:
        there = {one.values for one in parts_of(connection, pattern)}
    if part.values not in there:
        raise UnknownNameError(f"--part {given!r}: there is no table {part.full_name}")
    with closing(catalog.session()) as session:
        kept = [pipeline for pipeline, name in catalog.known_views(session) if name == view.id]
        if not kept:
            raise MisuseError(f"{view.id}: no run has seen it yet, so there is nothing to pause. Start: viewtail run")
        parts = ViewParts(session, catalog.database)
        records = parts.of(view.id)
        before = record_of(records, view, part)
        if before is not None and before.is_aside:
            return before
        aside = parts_aside.aside_of(view, records)
        if len(aside) >= MOST_ASIDE:
            raise MisuseError(
                f"{view.id}: {len(aside)} tables are set aside already, as many as may be. Pause the view: viewtail "
                f"pause {view.id}"
            )
        if not there - aside - {part.values}:
            raise MisuseError(
                f"{view.id}: no other table would be left, and one must tell the columns. Pause the view: viewtail "
                f"pause {view.id}"
            )
        record = parts_aside.record_of(view, part, kept[0], PartState.PAUSED, reason or "", by)
        parts.set_aside([record])
        return record


def let_through(catalog: Catalog, view: View, part: Part, stop: Event, say: Callable[[str], None]) -> PartRecord | None:
    """Have the pipeline let the changes of a part through again; None where it is not set aside.

    Raises ViewtailError where its table does not fit the view still, or nobody runs the pipeline; StopRequested.
    """
    with closing(catalog.session()) as session:
        parts = ViewParts(session, catalog.database)
        record = record_of(parts.of(view.id), view, part)
        if record is None or record.state is PartState.FILLING:
            return record
        if record.is_aside:
            _check_fits(catalog, view, record, parts.all())
            parts.move([record], PartState.RESUMED)
        return _when_let_through(view, part, parts, stop, say)


def _check_fits(catalog: Catalog, view: View, record: PartRecord, records: Sequence[PartRecord]) -> None:
    """Raises ViewtailError where the view could not be kept with the part as its table is now."""
    others = [other for other in records if (other.entity, other.part) != (record.entity, record.part)]
    try:
        bound_to_tables(catalog.servers, [view], others)
    except DeclarationError as error:
        raise ViewtailError(
            f"{record.table} does not fit {view.id} still: {error}. Mend the table, then repeat this command"
        ) from None


def _when_let_through(
    view: View, part: Part, parts: ViewParts, stop: Event, say: Callable[[str], None]
) -> PartRecord | None:
    repeats = Repeats(SAY_AGAIN_S)
    for _ in looks(stop, inf):
        record = record_of(parts.of(view.id), view, part)
        if record is None or record.state is PartState.FILLING:
            return record
        if record.state is PartState.MISFIT:
            raise ViewtailError(f"{record}")
        if record.state is PartState.PAUSED:
            raise ViewtailError(f"{record.table} was paused meanwhile, by {record.by}")
        if repeats.is_due("waiting"):
            say(f"{view.id}: waiting until its pipeline lets changes of {record.table} through. One runs? viewtail run")
    raise StopRequested


def ended(catalog: Catalog, record: PartRecord) -> bool:
    """All rows of a part were read again: it is as any other. False where it was set aside again meanwhile.

    A copy beside did not get these rows: it is backfilled again as a whole.
    """
    with closing(catalog.session()) as session:
        for pipeline, name in catalog.known_views(session):
            if view_of(name) == record.view != name:
                ViewStates(session, catalog.database, pipeline).move(Moved.REPLAYED, [name], where=_is_kept)
        return ViewParts(session, catalog.database).end(record)


def _is_kept(copy: ViewRecord) -> bool:
    return copy.state in KEPT
