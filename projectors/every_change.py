"""Projection for stores that keep every change: in stream order, uncoalesced, with before and after images.

An update that changes nothing the view shows is a change too. A change of the key is a delete of the old one and an
insert of the new one, and `where` makes a row come and go in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from changes.batches import DELETE, INSERT, Batch, Followed, Refused, Row, RowChanges, Unreadable
from changes.rendering import render_key
from changes.writes import KeptChange, Parked, ViewWrites, Write
from projectors.bound_views import BoundView
from projectors.projection import Projected, Projections, RowByRow, RowRefusedError
from projectors.stores import Store


def projections_for(
    store: Store, views: Sequence[BoundView], followed: dict[tuple[str, str], Followed]
) -> Projections:
    """The projections that a store's sink is to be given."""
    return (EveryChange if store.keeps_every_change else Projections)(views, followed)


class EveryChange(Projections):
    """All projections of a pipeline whose store keeps every change."""

    def __init__(self, views: Sequence[BoundView], followed: dict[tuple[str, str], Followed]) -> None:
        super().__init__(views, followed)
        self._images = {
            view.id: _Images(view, followed[view.table.schema, view.table.name].columns) for view in views
        }

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


class _Images:
    """One view's changes, with what the view shows of the row before and after."""

    def __init__(self, view: BoundView, columns: tuple[str, ...]) -> None:
        entity = view.view.entity
        self._view = view
        self._rows = RowByRow(view, columns, view.view.document)
        self._has_version_column = entity.version is not None
        self._is_append_only = entity.append_only
        self._key_at = [columns.index(column.name) for column in view.key]
        self._needed_at = [columns.index(name) for name in view.needed]

    def changes(self, event: RowChanges | Refused, parked: list[Parked]) -> Iterator[KeptChange]:
        """Of one row event; rows that cannot be projected go to `parked`."""
        _, kind, version, rows = event[:4]
        for before, after in _pairs(kind, rows):
            try:
                yield from self._one(before, after, version)
            except RowRefusedError as refused:
                row = after if after is not None else before
                parked.append(
                    Parked(
                        self._view.id,
                        self._rendered(row, version),
                        refused.version or version,
                        refused.reason,
                    )
                )

    def _one(self, before: Row | None, after: Row | None, version: int) -> Iterator[KeptChange]:
        if before is not None and after is not None and self._rows.key(before) != self._rows.key(after):
            yield from self._one(before, None, version)
            before = None
        if after is None and self._is_append_only:
            return  # archiving
        was_shown, old = (False, None) if before is None else self._before(before, version)
        new = None if after is None else self._after(after, version)
        if new is None and not was_shown:
            return
        op = "delete" if new is None else "update" if was_shown else "insert"
        row = after if after is not None else before
        assert row is not None
        self._require_readable(row, self._key_at, version)
        if self._has_version_column:
            version = self._rows.version(row) + (after is None)
            if before is not None and after is not None:
                self._rows.require_raised(version, before)
        yield KeptChange(self._rows.key(row), version, op, old, new)

    def _before(self, row: Row, version: int) -> tuple[bool, tuple[object, ...] | bytes | None]:
        """Whether the view showed the row, and as what; an image that cannot be made stops no change."""
        try:
            image = self._after(row, version)
        except RowRefusedError:
            return True, None
        return image is not None, image

    def _after(self, row: Row, version: int) -> tuple[object, ...] | bytes | None:
        self._require_readable(row, self._needed_at, version)
        return self._rows.values(row, version)

    def _require_readable(self, row: Row, at: list[int], version: int) -> None:
        bad = next((row[one] for one in at if isinstance(row[one], Unreadable)), None)
        if bad is not None:
            raise RowRefusedError(
                f"column {bad.column} holds bytes that are invalid in its character set", version
            )

    def _rendered(self, row: Row | None, version: int) -> str:
        if row is None or any(isinstance(row[at], Unreadable) for at in self._key_at):
            return f"(unreadable key, version {version})"
        return render_key(self._rows.key(row), self._view.key)


def _pairs(kind: int, rows: Sequence[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """(before, after) of each row of an event."""
    if kind == INSERT:
        yield from ((None, row) for row in rows)
    elif kind == DELETE:
        yield from ((row, None) for row in rows)
    else:
        yield from zip(rows[::2], rows[1::2], strict=True)
