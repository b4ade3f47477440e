"""Projection for stores that keep every change: in stream order, uncoalesced, with before and after images.

An update that changes nothing the view shows is a change too. A change of the key is a delete of the old one and an
insert of the new one, and `where` makes a row come and go in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from changes.batches import INSERT, Batch, Followed, Refused, Row, RowChanges, pairs, unreadable_in
from changes.writes import KeptChange, Parked, ViewWrites, Write
from projectors.projection import Projected, Projections, RowByRow, RowRefusedError
from projectors.stores import Store
from projectors.views import BoundView

Image: TypeAlias = tuple[Any, ...] | bytes | None  # what a view shows of a row; None: nothing


def projections_for(store: Store, views: Sequence[BoundView], followed: dict[tuple[str, str], Followed]) -> Projections:
    """The projections that a store's sink is to be given."""
    return (EveryChange if store.keeps_every_change else Projections)(views, followed)


class EveryChange(Projections):
    """All projections of a pipeline whose store keeps every change."""

    def __init__(self, views: Sequence[BoundView], followed: dict[tuple[str, str], Followed]) -> None:
        super().__init__(views, followed)
        self._images = {view.id: _Images(view, followed[view.table.schema, view.table.name].columns) for view in views}

    def of(self, batch: Batch) -> Projected:
        """Every change, in stream order; the views of one table follow each other event by event."""
        runs: list[ViewWrites] = []
        parked: list[Parked] = []
        events: list[RowChanges | Refused] = [*batch.changes]
        if batch.refused:
            events = sorted([*events, *batch.refused], key=lambda event: event.version)
        for event in events:
            for projection in self._of_table(event.followed):
                view = projection.view.id
                if not runs or runs[-1].view != view:
                    runs.append(ViewWrites(view, {}, []))
                _add(runs[-1], self._images[view].changes(event, parked))
        return Projected([run for run in runs if run.changes], parked)

    def of_rows(self, view: str, rows: list[Row], version: int) -> Projected:
        """Canonical rows that a backfill read under a watermark of `version`."""
        parked: list[Parked] = []
        found = ViewWrites(view, {}, [])
        event = RowChanges(self._by_view[view].followed, INSERT, version, rows)
        _add(found, (change._replace(op="read") for change in self._images[view].changes(event, parked)))
        return Projected([found] if found.changes else [], parked)


def _add(run: ViewWrites, changes: Iterator[KeptChange]) -> None:
    assert isinstance(run.changes, list)
    for change in changes:
        run.changes.append(change)
        run.writes[change.key] = Write(change.version, change.after)


class _Images(RowByRow):
    """One view's changes, with what the view shows of the row before and after."""

    def changes(self, event: RowChanges | Refused, parked: list[Parked]) -> Iterator[KeptChange]:
        """Of one row event; rows that cannot be projected go to `parked`."""
        _, kind, version, rows = event[:4]
        for before, after in pairs(kind, rows):
            try:
                yield from self._one(before, after, version)
            except RowRefusedError as refusal:
                parked.append(self.parked(before, after, version, refusal))

    def _one(self, before: Row | None, after: Row | None, version: int) -> Iterator[KeptChange]:
        if before is not None and after is not None and self.key(before) != self.key(after):
            yield from self._one(before, None, version)
            before = None
        row = after if after is not None else before
        if row is None or (after is None and self._is_append_only):
            return  # a row delete of an append-only table is archiving
        was_shown, old = self._before(before, version)
        new = None if after is None else self._image(after, version)
        if was_shown or new is not None:
            self._require_readable([row[at] for at in self._key_at], version)
            op = "delete" if new is None else "update" if was_shown else "insert"
            yield KeptChange(self.key(row), self._version_of(before, after, version), op, old, new)

    def _version_of(self, before: Row | None, after: Row | None, version: int) -> int:
        """The event's, or with a version column the row's; a delete is one above it."""
        if self._version_at is None:
            return version
        if after is None:
            assert before is not None
            return self.version(before) + 1
        version = self.version(after)
        if before is not None:
            self.require_raised(version, before)
        return version

    def _before(self, row: Row | None, version: int) -> tuple[bool, Image]:
        """Whether the view showed the row, and as what; an image that cannot be made stops no change."""
        try:
            image = None if row is None else self._image(row, version)
        except RowRefusedError:
            return True, None
        return image is not None, image

    def _image(self, row: Row, version: int) -> Image:
        self._require_readable([row[at] for at in self._needed_at], version)
        return self.values(row, version)

    def _require_readable(self, values: list[Any], version: int) -> None:
        if (bad := unreadable_in(values)) is not None:
            raise RowRefusedError(bad.reason, version)
