"""Which copy of a view is read, and which are written: `places`, from what viewtail's own tables say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from offsets import migrations, views
from offsets.copies import Copies, Copy, Stage
from offsets.mysql import Session, transaction
from offsets.views import ViewRecord
from projectors.binding import made_by
from projectors.views import BoundView, Move
from viewtail.changes.copy_ids import view_of


@dataclass(frozen=True, slots=True)
class Places:
    """A view's copies, each by the declaration that keeps it."""

    read: BoundView  # what readers see
    beside: BoundView | None  # what they do not
    written: Sequence[BoundView]  # those of the two that get changes


def places(view: BoundView, known: Mapping[str, ViewRecord], copy: Copy | None, *, is_left: bool = False) -> Places:
    """Where the copies of a declared view are.

    Args:
        known: by id, the rows of views and copies.
        copy: the record of the one beside; None: there is none.
        is_left: readers keep what a declaration made that views.py has no more: it gets no changes.
    """
    move = None if copy is None else _move(copy)
    read = replace(kept_as(view, known.get(view.id)), move=move)
    written = [] if is_left else [read]
    if copy is None:
        return Places(read, None, written)
    # One that is being built is that of the present declaration, whatever began it.
    maker = view if copy.stage is Stage.BUILDING else kept_as(view, known.get(copy.copy_id))
    beside = replace(maker, copy=copy.copy, is_beside=True, move=move)
    return Places(read, beside, written if copy.stage is Stage.DROPPING else [*written, beside])


def _move(copy: Copy) -> Move | None:
    """What both copies are bound with while they change places."""
    if copy.stage is not Stage.MOVING:
        return None
    assert copy.upto is not None, "it was noted when they began to"
    return Move(copy.live, copy.copy, copy.upto)


def kept_as(view: BoundView, known: ViewRecord | None) -> BoundView:
    """A copy of a declared view by the declaration that made it, where views.py has that."""
    if known is None:
        return replace(view, copy=1)
    return replace(made_by(view, known.declaration) or view, copy=known.copy)


def where_live(copies: Copies, bound: Sequence[BoundView]) -> list[BoundView]:
    """The declared views in the places of their live copies, as those are kept: for what writes beside a pipeline."""
    known, beside = copies.states.declarations(), copies.read()
    return [places(view, known, beside.get(view.id)).read for view in bound]


def as_live(cursor: Any, database: str, view: BoundView) -> BoundView:
    """A declared view in the place of its live copy, as that is kept: for whatever reads beside the pipelines."""
    if not migrations.are_there(cursor, database):
        return view  # no viewtail ever ran
    rows = views.read(cursor, database, names=[view.id])
    return kept_as(view, max(rows, key=lambda row: row.copy, default=None))


def everywhere(session: Session, database: str, bound: Sequence[BoundView]) -> list[BoundView]:
    """The declared views where their live copies are, and each copy beside: all places that hold what they show."""
    with transaction(session, "reading where views are") as cursor:
        known = {row.name: row for row in views.read(cursor, database)}
    live = [kept_as(view, known.get(view.id)) for view in bound]
    beside = [
        replace(kept_as(view, known[name]), is_beside=True)
        for view in bound
        for name in sorted(known)
        if view_of(name) == view.id != name
    ]
    return [*live, *beside]
