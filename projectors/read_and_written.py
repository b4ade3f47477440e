"""Which copy of a view is read, and which are written: `ViewCopies`, from what viewtail's own tables say."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from offsets import migrations, views
from offsets.copies import Choice, Copies, Copy, Stage
from offsets.mysql import Session, transaction
from offsets.views import State, ViewRecord
from projectors.binding import declaration_hash, made_by
from projectors.views import BoundView, Move
from viewtail.changes.copy_ids import view_of


@dataclass(frozen=True, slots=True)
class Places:
    """A view's copies, each by the declaration that keeps it."""

    read: BoundView  # what readers see
    beside: BoundView | None  # what they do not
    written: Sequence[BoundView]  # those of the two that get changes


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewCopies:
    """A declared view, and what viewtail's own tables say of its copies."""

    declared: BoundView  # as views.py declares it now
    live: ViewRecord | None  # the row of the copy that readers see; None: no pipeline has kept the view yet
    copy: Copy | None = None  # the one beside; None: there is none
    beside: ViewRecord | None = None  # its row; None: no pipeline has begun it
    choice: Choice | None = None  # the last that an operator made
    is_built_beside: bool = False  # a changed declaration is built beside what readers have, not in place

    def maker(self, row: ViewRecord | None) -> BoundView | None:
        """The view by the declaration that made a copy; None: views.py has that no more.

        A copy without a row is made by the present declaration.
        """
        return self.declared if row is None else made_by(self.declared, row.declaration)

    @property
    def is_present(self) -> bool:
        """Return whether readers have what the present declaration made."""
        return self.maker(self.live) is self.declared

    @property
    def is_kept(self) -> bool:
        """Return whether readers have what a declaration of views.py keeps up to date: the present one or previous=."""
        return self.maker(self.live) is not None

    @property
    def is_redeclared(self) -> bool:
        """Return whether readers have what another declaration made than the present one."""
        # A new view shows nothing that readers could rely on, unless its declaration is there to fill it.
        return self.live is not None and not self.is_present and (self.is_kept or self.live.state is not State.NEW)

    @property
    def is_changed(self) -> bool:
        """Return whether the present declaration is to be built beside what readers have."""
        copy = self.copy
        # A view that was resumed is new, and readers have it all the same, until the copy that was begun comes.
        is_begun = copy is not None and copy.is_automatic and copy.stage is Stage.BUILDING and not self.is_kept
        return self.is_built_beside and self.live is not None and (is_begun or self.is_redeclared)

    @property
    def is_declined(self) -> bool:
        """Return whether an operator went back from the present declaration to the one that made the live copy."""
        if self.live is None or not self.is_kept:
            return False
        return self.choice == Choice(self.live.declaration, declaration_hash(self.declared.view))

    @property
    def is_chosen_again(self) -> bool:
        """Return whether views.py is back at what readers have, so that nothing is declined any more."""
        return self.choice is not None and self.live is not None and self.is_present

    @property
    def is_over(self) -> bool:
        """Return whether the copy beside is there for nothing any more."""
        if self.copy is None or self.live is None or self.beside is None:
            return False
        if self.copy.stage is Stage.BUILDING:  # the change that it is for was taken back, and nothing was missed
            return self.copy.is_automatic and self.is_present and self.live.state is not State.HALTED
        return self.copy.stage is Stage.KEPT and not self._is_way_back(self.live, self.beside)

    def _is_way_back(self, live: ViewRecord, former: ViewRecord) -> bool:
        """Return whether an operator can still have readers get the former copy."""
        maker = self.maker(former)
        if self.is_changed:  # it makes room for that of the changed declaration, unless it is that
            return maker is self.declared and self.is_declined
        return maker is not None or former.declaration == live.declaration

    def places(self) -> Places:
        """Where the copies are; a live one that nothing can keep up to date is not written."""
        move = None if self.copy is None else _move(self.copy)
        read = replace(kept_as(self.declared, self.live), move=move)
        written = [] if self.is_changed and not self.is_kept else [read]
        if self.copy is None:
            return Places(read, None, written)
        # A copy that is being built is that of the present declaration, whatever began it.
        maker = self.declared if self.copy.stage is Stage.BUILDING else kept_as(self.declared, self.beside)
        beside = replace(maker, copy=self.copy.copy, is_beside=True, move=move)
        return Places(read, beside, written if self.copy.stage is Stage.DROPPING else [*written, beside])

    def pair(self) -> tuple[BoundView, BoundView]:
        """The copy that readers see, and the one beside it."""
        places = self.places()
        assert places.beside is not None, "there is a record of it"
        return places.read, places.beside


def copies_of(copies: Copies, bound: Sequence[BoundView], built_beside: Collection[str] = ()) -> dict[str, ViewCopies]:
    """By id, the declared views with their copies as they are now; `built_beside`: see `is_built_beside`."""
    rows, records = copies.states.declarations(), copies.records()
    known = {}
    for view in bound:
        record = records.get(view.id)
        copy = None if record is None or record.stage is Stage.ENDED else record
        known[view.id] = ViewCopies(
            declared=view,
            live=rows.get(view.id),
            copy=copy,
            beside=None if copy is None else rows.get(copy.copy_id),
            choice=None if record is None else record.choice,
            is_built_beside=view.id in built_beside,
        )
    return known


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
    return [known.places().read for known in copies_of(copies, bound).values()]


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
