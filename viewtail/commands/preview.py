"""`viewtail preview`: what operations/preview.py finds, and how it is printed."""

from __future__ import annotations

from collections.abc import Iterator

from projectors.views import BoundView
from viewtail import declarations
from viewtail.changes.counting import counted
from viewtail.commands.output import print_json, shown
from viewtail.composition import deployed_to_ask
from viewtail.operations import preview as operation
from viewtail.operations.preview import Content, Difference, Preview
from viewtail.servers.patience import COMMAND
from viewtail.settings import Settings

SHOWN = 20  # entities


def preview(loaded: Settings, name: str, *, sample: int, as_json: bool) -> int:
    """Print what views.py would change in a view; returns the exit code: 1 where rows could not be projected."""
    catalog = deployed_to_ask(loaded, [declarations.chosen(loaded, name)], COMMAND)
    (view,) = catalog.views
    found = operation.preview(catalog, view, sample)
    if as_json:
        print_json(_as_json(view, found))
    else:
        print("\n".join(_lines(view, found)))
    return 1 if found.refused else 0


def _as_json(view: BoundView, found: Preview) -> dict[str, object]:
    return {
        "view": view.id,
        "sampled": found.row_count,
        "same": found.same_count,
        "differences": [{"key": one.key, "before": one.before, "after": one.after} for one in found.differences],
        "refused": [{"key": key, "reason": reason} for key, reason in found.refused.items()],
    }


def _changed(before: Content, after: Content) -> Iterator[str]:
    """The fields that would change, as a diff."""
    for name in dict.fromkeys((*before, *after)):
        if name in before and name in after and before[name] == after[name]:
            continue
        if name in before:
            yield f"- {name}: {shown(before[name])}"
        if name in after:
            yield f"+ {name}: {shown(after[name])}"


def _lines(view: BoundView, found: Preview) -> Iterator[str]:
    kinds = [_kind(one) for one in found.differences]
    yield (
        f"{view.id}: of {counted(found.row_count, 'rows')} of {view.table.full_name}, "
        f"{kinds.count('changes'):,} would change, {kinds.count('comes'):,} would come, {kinds.count('goes'):,} would "
        f"go, {_staying(found.same_count)}"
    )
    for one in found.differences[:SHOWN]:
        yield f"\n{one.key} {_kind(one)}"
        yield from _changed(one.before or {}, one.after or {})
    if len(found.differences) > SHOWN:
        yield f"\nand {len(found.differences) - SHOWN:,} more: --json lists all"
    for key, reason in list(found.refused.items())[:SHOWN]:
        yield f"\n{key} could not be projected, and would be parked: {reason}"


def _staying(count: int) -> str:
    return "1 stays as it is" if count == 1 else f"{count:,} stay as they are"


def _kind(one: Difference) -> str:
    if one.before is None:
        return "comes"
    return "goes" if one.after is None else "changes"
