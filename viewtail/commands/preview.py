"""`viewtail preview`: what operations/preview.py finds, and how it is printed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict

from projectors.stores.registry import store_of
from projectors.views import BoundView
from viewtail import declarations
from viewtail.changes.counting import counted
from viewtail.commands.fill_plan import reading_line
from viewtail.commands.output import print_json, print_remark, shown
from viewtail.composition import deployed_to_ask
from viewtail.operations import preview as operation
from viewtail.operations.fill_plan import reading_of
from viewtail.operations.preview import Content, Difference, Preview
from viewtail.servers.patience import COMMAND
from viewtail.settings import Settings

SHOWN = 20  # entities


def preview(loaded: Settings, name: str, *, sample: int, as_json: bool) -> int:
    """Print what views.py would change in a view; returns the exit code: 1 where rows could not be projected."""
    catalog = deployed_to_ask(loaded, [declarations.chosen(loaded, name)], COMMAND)
    (view,) = catalog.views
    seen = operation.preview(catalog, view, sample)
    with closing(catalog.session()) as session:
        reading = reading_of(catalog, view, catalog.known_views(session))
    if not seen.has_place:
        print_remark(
            f"{view.id}: its place in {store_of(view.view).title} is not made yet, as it is declared. The next "
            "`viewtail run` makes it, and every row comes"
        )
    if as_json:
        print_json({**_as_json(view, seen), "backfill": asdict(reading)})
    else:
        print("\n".join(_lines(view, seen)))
        print(f"\nA backfill of the view: {reading_line(reading)}")
    return 1 if seen.refused else 0


def _as_json(view: BoundView, seen: Preview) -> dict[str, object]:
    return {
        "view": view.id,
        "sampled": seen.row_count,
        "same": seen.same_count,
        "differences": [{"key": each.key, "before": each.before, "after": each.after} for each in seen.differences],
        "refused": [{"key": key, "reason": reason} for key, reason in seen.refused.items()],
    }


def changed(before: Content, after: Content) -> Iterator[str]:
    """The fields that would change, as a diff."""
    for name in dict.fromkeys((*before, *after)):
        if name in before and name in after and before[name] == after[name]:
            continue
        if name in before:
            yield f"- {name}: {shown(before[name])}"
        if name in after:
            yield f"+ {name}: {shown(after[name])}"


def _lines(view: BoundView, seen: Preview) -> Iterator[str]:
    kinds = [_kind(difference) for difference in seen.differences]
    yield (
        f"{view.id}: of {counted(seen.row_count, 'rows')} of {view.table.full_name}, "
        f"{kinds.count('changes'):,} would change, {kinds.count('comes'):,} would come, {kinds.count('goes'):,} would "
        f"go, {_staying(seen.same_count)}"
    ) + (f", {len(seen.refused):,} could not be projected" if seen.refused else "")
    for difference in seen.differences[:SHOWN]:
        yield f"\n{difference.key} {_kind(difference)}"
        yield from changed(difference.before or {}, difference.after or {})
    if len(seen.differences) > SHOWN:
        yield f"\nand {len(seen.differences) - SHOWN:,} more: --json lists all"
    for key, reason in list(seen.refused.items())[:SHOWN]:
        yield f"\n{key} could not be projected, and would be parked: {reason}"


def _staying(count: int) -> str:
    return "1 stays as it is" if count == 1 else f"{count:,} stay as they are"


def _kind(difference: Difference) -> str:
    if difference.before is None:
        return "comes"
    return "goes" if difference.after is None else "changes"
