"""`--part` of verify, pause, resume and forget, and `status --by`: what operations do, and what it prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from threading import Event
from typing import Any

from offsets.pauses import this_person
from projectors.proving.view_access import ViewAccess
from projectors.views import View
from viewtail import declarations
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError, StopRequested
from viewtail.commands.output import print_json, print_remark
from viewtail.composition import deployed_to_work, own_tables
from viewtail.operations import parts, pausing_parts
from viewtail.settings import Settings
from viewtail.signals import EXIT_STOPPED, on_stop

MOST_LISTED = 20


def verify_part(loaded: Settings, names: Sequence[str], given: str, *, as_json: bool) -> int:
    """Compare one part of views with its table; returns the exit code: 1 where an entity differs, or is parked."""
    views = declarations.all_chosen(loaded, names) if names else _of_many(declarations.configured(loaded))
    told: list[dict[str, Any]] = []
    for view in views:
        part = parts.part_of(view, given)
        try:
            with _opened(loaded, view) as beside:
                compared = parts.compare(beside, part)
        except StopRequested:
            return EXIT_STOPPED
        counts = {"entities": compared.entities, "differing": len(compared.found), "parked": len(compared.parked)}
        told.append({"view": view.id, "part": given, "table": part.full_name, **counts})
        if not as_json:
            print(
                f"{view.id}, {part.full_name}: {counted(compared.entities, 'entities')} compared, "
                f"{len(compared.found):,} differ, {len(compared.parked):,} parked"
            )
        for mismatch in compared.found[:MOST_LISTED]:
            print(f"{view.id}\t{mismatch.name}\t{mismatch.difference.value}\t{mismatch.why}", file=sys.stderr)
    if as_json:
        print_json({"parts": told})
    return int(any(part["differing"] or part["parked"] for part in told))


def forget_part(loaded: Settings, name: str, given: str, *, timeout_s: float, as_json: bool) -> int:
    """Prove that a view shows nothing of a part whose table is gone; the exit code is 1 where something is left."""
    view = declarations.chosen(loaded, name)
    part = parts.part_of(view, given)
    try:
        with _opened(loaded, view, timeout_s) as beside:
            parts.require_gone(beside.catalog, view, part)
            forgotten = parts.forget(beside, part)
    except StopRequested:
        return EXIT_STOPPED
    if as_json:
        print_json({
            "view": view.id, "part": given, "erased": forgotten.buried, "letters": forgotten.letters,
            "left": list(forgotten.left),
        })  # fmt: skip
    else:
        found = f"{counted(forgotten.buried, 'keys')} were still shown, and are erased" if forgotten.buried else "empty"
        print(f"{view.id}, {part.full_name}: {found}; {counted(forgotten.letters, 'dead letters')} dropped")
        print(f"left: {'; '.join(forgotten.left) or 'nothing'}")
        print_remark("tombstones stay: the keys and versions of what was deleted, without values")
    return int(bool(forgotten.left))


def pause_part(loaded: Settings, names: Sequence[str], given: str, reason: str | None) -> int:
    """Pause one part of views; the exit code is 0."""
    by, catalog = this_person(), own_tables(loaded)
    views = declarations.chosen_of_all(loaded, names)
    for view in views:
        pausing_parts.check_may_pause(catalog, view, given)
    for view in views:
        before, part = pausing_parts.pause(catalog, view, given, by=by, reason=reason)
        if before is not None:
            print(f"{view.id}: {before}. To go on: {before.to_go_on}")
        else:
            print(
                f"{view.id}: {part.full_name} is paused. Its changes are passed over within a few seconds, and the "
                f"view keeps what it shows of it; all other tables go on. To go on: viewtail resume {view.id} "
                f"--part {given}"
            )
    return 0


def resume_part(loaded: Settings, names: Sequence[str], given: str) -> int:
    """Have one part of views kept again, and wait until that is so; the exit code is 0."""
    catalog, stop = own_tables(loaded), Event()
    on_stop(stop.set)
    try:
        named = [(view, parts.part_of(view, given)) for view in declarations.chosen_of_all(loaded, names)]
        resumed = [pausing_parts.resume(catalog, view, part) for view, part in named]
        for (view, part), was_paused in zip(named, resumed, strict=True):
            if not was_paused:
                print(f"{view.id}: {part.full_name} is not paused")
            else:
                why_not = pausing_parts.wait(catalog, view, part, stop, print_remark)
                print(
                    f"{view.id}: {part.full_name} is kept as any other table again; "
                    f"{why_not or 'its rows were read again'}"
                )
    except StopRequested:
        print_remark("it is resumed all the same: `viewtail run` reads its rows again. viewtail status has the state")
        return EXIT_STOPPED
    return 0


def status_by(loaded: Settings, by: str, *, as_json: bool) -> int:
    """List the parts of the views that have a column of that name in their tables' names; the exit code is 0."""
    views = [view for view in _of_many(declarations.configured(loaded)) if by in _names(view)]
    if not views:
        raise MisuseError(f"--by {by}: no view has {{{by}}} in the names of its tables")
    told: list[dict[str, Any]] = []
    for view in views:
        with _opened(loaded, view) as beside:
            count, listed = parts.largest(beside, MOST_LISTED)
        told.append({"view": view.id, "parts": count, "largest": [_as_json(part) for part in listed]})
        if not as_json:
            print("\n".join([f"{view.id}: {counted(count, 'tables')}", *map(_line, listed)]))
    if as_json:
        print_json({"views": told})
    return 0


def _as_json(part: parts.PartStatus) -> dict[str, Any]:
    return {
        "values": part.values, "table": part.table, "rows": part.rows, "parked": part.parked,
        "paused": part.paused or None,
    }  # fmt: skip


def _line(part: parts.PartStatus) -> str:
    parked = f", {part.parked:,} parked" if part.parked else ""
    return f"  {part.table}: about {counted(part.rows, 'rows')}{parked}{part.paused and f'; {part.paused}'}"


def _names(view: View) -> Sequence[str]:
    return () if view.entity.pattern is None else view.entity.pattern.names


def _of_many(views: Sequence[View]) -> list[View]:
    """Those whose entity is many tables. Raises MisuseError where none is."""
    of_many = [view for view in views if _names(view)]
    if not of_many:
        raise MisuseError("no view is of many tables: Entity('app.org{account_id:int}_user') is an entity of many")
    return of_many


def _opened(loaded: Settings, view: View, within_s: float | None = None) -> ViewAccess:
    catalog = deployed_to_work(loaded, [view])
    stop = Event()
    on_stop(stop.set)
    (bound,) = catalog.views
    if within_s is None:
        return ViewAccess(catalog, bound, stop, print_remark)
    return ViewAccess(catalog, bound, stop, print_remark, passed_within_s=within_s)
