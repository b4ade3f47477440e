"""Lists which columns with people's data go where, and in which form: for the data-protection officer.

A column is one of people's data by a tag in its comment, or because a declaration masks it. Nothing is read but the
tables' descriptions, and how far each view is filled: a store has a mask only once a backfill is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from offsets.views import State, ViewRecord
from projectors.projection import parts_of
from projectors.views import BoundView
from viewtail.changes.copy_ids import view_of
from viewtail.changes.findings import Finding, ok
from viewtail.changes.masks import Masks
from viewtail.changes.tables import Column, Table

AS_IT_IS = "as it is"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeoplesColumn:
    """A column, and a view that it goes to."""

    table: str
    column: str
    tags: list[str]  # in its comment, of those that the settings name
    view: str | None  # store:name; None: none uses it
    form: str | None  # 'hash', 'last4', 'null', 'year', or AS_IT_IS; None where no view uses it
    unmasked: str | None = None  # why the store may still have it as it is; None: it has it in this form


def peoples_columns(
    views: Sequence[BoundView], masks: Masks, known: Mapping[tuple[str, str], ViewRecord]
) -> list[PeoplesColumn]:
    """Each such column of the views' tables, by table; those that no view uses, too.

    Args:
        known: the views and copies as they are kept, by pipeline and id.
    """
    unfilled = {view.id: _unfilled(view, known.values()) for view in views}
    uses: dict[tuple[str, str], list[tuple[Column, str | None]]] = {}
    for view in views:
        for table, column, is_used in _columns(view):
            uses.setdefault((table.full_name, column.name), []).append((column, view.id if is_used else None))
    return [
        found
        for (table_name, name), of_column in sorted(uses.items())
        if any(column.mask is not None or masks.is_tagged(column) for column, _ in of_column)
        for found in _found(table_name, name, of_column, masks, unfilled)
    ]


def _unfilled(view: BoundView, known: Iterable[ViewRecord]) -> str | None:
    """Why the store may have what another declaration or table made: only a backfill replaces it."""
    for record in known:
        if view_of(record.name) != view.id:
            continue
        if record.state is not State.FILLED:
            return f"{record.state}: the store may still have it unmasked"
        if record.fingerprint != view.fingerprint:
            return "not filled again since it is masked so: the store may still have it unmasked"
    return None


def _found(
    table: str,
    name: str,
    uses: Sequence[tuple[Column, str | None]],
    masks: Masks,
    unfilled: Mapping[str, str | None],
) -> list[PeoplesColumn]:
    """The column for each view that uses it; once where none does."""
    tags = [tag for tag in uses[0][0].stored.tags if tag in masks.tags]
    forms = sorted((view, AS_IT_IS if of.mask is None else of.mask.how) for of, view in uses if view is not None)
    if not forms:
        return [PeoplesColumn(table=table, column=name, tags=tags, view=None, form=None)]
    return [
        PeoplesColumn(
            table=table,
            column=name,
            tags=tags,
            view=view,
            form=form,
            unmasked=None if form == AS_IT_IS else unfilled[view],
        )
        for view, form in forms
    ]


def _columns(view: BoundView) -> Iterator[tuple[Table, Column, bool]]:
    """Every column of the view's tables, and whether the view uses it."""
    for part in parts_of(view):
        yield from ((part.table, column, column.name in part.columns) for column in part.table.columns)


def unmasked_findings(views: Sequence[BoundView]) -> Iterator[Finding]:
    """Name the views that say they need columns of people's data as they are."""
    for view in views:
        if view.view.unmasked:
            seen = f"has {', '.join(view.view.unmasked)} as it is in {view.view.entity.table}: unmasked="
            yield ok("views", f"view {view.id}, people's data", seen)
