"""Parts that are set aside: tables of an entity of many that a view is not kept with, while it goes on with all others.

Whatever reads rows, or keys of a store, leaves such a part alone: `Table.aside` has it, as the view was bound. The
stream's rows of it are passed over (projection.py). So a view keeps what it showed of the part, until that is read
again: operations/parts_again.py. offsets/view_parts.py has the states.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from offsets.mysql import Session
from offsets.view_parts import MOST_ASIDE, PartRecord, PartState, ViewParts
from projectors.views import BoundView, View
from viewtail.changes.patterns import Part, Pattern
from viewtail.changes.rendering import parse_key, render_key
from viewtail.changes.writes import Key


def written(pattern: Pattern, part: Part) -> str:
    """A part as `--part` takes it: 'account_id=123'."""
    return ",".join(f"{name}={value}" for name, value in zip(pattern.names, part.values, strict=True))


def record_of(
    view: View, part: Part, pipeline: str, state: PartState, reason: str = "", by: str | None = None
) -> PartRecord:
    """A part of a view that is to be set aside."""
    pattern = view.entity.pattern
    assert pattern is not None, "a part is one of many tables"
    given = written(pattern, part)
    return PartRecord(
        pipeline=pipeline,
        view=view.id,
        part=render_key(part.values, pattern.columns),
        table=part.full_name,
        entity=pattern.full_name,
        given=given,
        state=state,
        reason=reason.replace("viewtail replay VIEW", f"viewtail replay {view.id} --part {given}"),
        by=by,
        since="",
    )


def why_not_aside(view: BoundView, part: Part | None) -> str | None:
    """Why this part of a view cannot be set aside for itself; None where it can."""
    pattern, aside = view.table.pattern, view.table.aside
    if pattern is None or part is None or not pattern.sets_aside or not part.name:  # "": a whole schema
        return "what it was about is not one of many tables whose names keys begin with"
    if len(aside) >= MOST_ASIDE:
        return f"{len(aside)} tables are set aside already, as many as may be"
    if not [one for one in view.table.parts if one.values != part.values and one.values not in aside]:
        return "no other table is left that tells the columns"
    return None


def with_aside(views: Iterable[BoundView], records: Collection[PartRecord]) -> list[BoundView]:
    """The views with the parts set aside that these are, and no others: whoever reads a part again relies on that."""
    return [_with_aside(view, records) for view in views]


def _with_aside(view: BoundView, records: Collection[PartRecord]) -> BoundView:
    aside = aside_of(view.view, records)
    return view if aside == view.table.aside else view.with_aside(aside)


def aside_of(view: View, records: Iterable[PartRecord]) -> frozenset[Key]:
    """The values of a view's parts that are set aside."""
    pattern = view.entity.pattern
    if pattern is None or not pattern.sets_aside:
        return frozenset()
    return frozenset(
        parse_key(record.part, pattern.columns)
        for record in records
        if record.is_aside and record.view == view.id and record.entity == pattern.full_name
    )


def left_out(views: Sequence[View], records: Iterable[PartRecord]) -> Mapping[tuple[str, str], Collection[Key]]:
    """By entity's table, the values of those of its tables that some view is not kept with: nobody describes these."""
    patterns = {pattern.full_name: pattern for view in views if (pattern := view.entity.pattern) is not None}
    found: dict[tuple[str, str], set[Key]] = {}
    for record in records:
        pattern = patterns.get(record.entity)
        if record.is_aside and pattern is not None and pattern.sets_aside:
            values = parse_key(record.part, pattern.columns)
            found.setdefault((pattern.schema, pattern.name), set()).add(values)
    return found


def records_for(views: Sequence[View], session: Session, database: str) -> list[PartRecord]:
    """What is set aside, where a view is of tables of which some may be; nobody is asked for others."""
    if not any(view.entity.pattern is not None and view.entity.pattern.sets_aside for view in views):
        return []
    return ViewParts(session, database).all()
