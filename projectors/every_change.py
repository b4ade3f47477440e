"""Projection for stores that keep every change: in stream order, uncoalesced, with before and after images.

An update that changes nothing the view shows is a change too. A change of the key is a delete of the old one and an
insert of the new one, and `where` makes a row come and go in the same way. Only within one row event, whose rows share
a version, are the changes of one key a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from projectors.binding import functions_read, shows_all
from projectors.projection import Projected, Projections, RowByRow, RowRefusedError
from projectors.stores import Store
from projectors.views import BoundView
from viewtail.changes.batches import (
    DELETE,
    INSERT,
    UNKNOWN,
    Batch,
    Followed,
    Forms,
    Origin,
    Refused,
    Row,
    RowChanges,
    Unreadable,
    pairs,
    unreadable_in,
)
from viewtail.changes.tables import Column
from viewtail.changes.writes import Form, KeptChange, Key, Parked, ViewWrites

Image: TypeAlias = tuple[Any, ...] | bytes | None  # what a view shows of a row; None: nothing
_OP_WHERE_SHOWN = {True: "update", False: "insert"}  # of a row that the view shows now, by whether it did before
_MOST_FORMS = 100  # a reader that connects again makes new ones
Plain: TypeAlias = Callable[[int, int, list[Row], Origin, list[KeptChange]], bool]


def projections_for(store: Store, views: Sequence[BoundView], followed: dict[tuple[str, str], Followed]) -> Projections:
    """The projections that a store's sink is to be given."""
    return (EveryChange if store.keeps_every_change else Projections)(views, followed)


def with_forms(
    followed: dict[tuple[str, str], Followed], views: Sequence[BoundView], former: Mapping[str, Sequence[Column]]
) -> dict[tuple[str, str], Followed]:
    """The same tables, whose rows may have the form that their table had when they changed.

    Args:
        former: by view, columns that its table had.
    """
    formed = {}
    for name, table in followed.items():
        of_table = [view for view in views if view.derived is None and (view.table.schema, view.table.name) == name]
        kept = [column for view in of_table if shows_all(view.view) for column in former.get(view.id, ())]
        fixed = frozenset(column for view in of_table for column in _fixed(view)) | _read_again(views, name)
        forms = Forms(fixed=fixed, former=tuple(dict.fromkeys(kept)))
        formed[name] = replace(table, forms=forms)
    return formed


def _read_again(views: Sequence[BoundView], name: tuple[str, str]) -> frozenset[str]:
    """The columns of a table that rows of several tables are read by: there is no row in the form that it had."""
    parts = [part for view in views if view.derived is not None for part in view.derived.parts]
    return frozenset(
        column for part in parts if (part.table.schema, part.table.name) == name for column in part.columns
    )


def _fixed(view: BoundView) -> Iterator[str]:
    """The columns without which a change means nothing: its key, and what says whether the view shows it."""
    entity = view.view.entity
    yield from (column.name for column in view.key)
    yield from (name for name, _ in entity.only)
    yield from functions_read(view.view).columns & {*view.needed}
    if entity.version is not None:
        yield entity.version


def in_form(view: BoundView, form: Followed) -> BoundView:
    """The view of rows in a form that its table had."""
    columns = form.table.columns
    shown = [column.name for column in columns] if shows_all(view.view) else view.view.shown
    values = tuple(column.in_store for name in shown if (column := form.table.column(name)) is not None)
    needed = tuple(column.name for column in columns if column.name in (*view.needed, *shown))
    return replace(view, table=form.table, values=values, needed=needed)


class EveryChange(Projections):
    """All projections of a pipeline whose store keeps every change."""

    def __init__(self, views: Sequence[BoundView], followed: dict[tuple[str, str], Followed]) -> None:
        super().__init__(views, followed)
        self._images = {view.id: _Images(view, self._by_view[view.id].followed.columns) for view in views}
        self._in_forms: dict[Followed, list[tuple[str, _Images, Form | None]]] = {}

    def _followers(self, followed: Followed) -> list[tuple[str, _Images, Form | None]]:
        """The views of a table that get its changes, with what makes them of rows of that form."""
        views = [projection.view for projection in self._of_table(followed.described)]
        if followed.of is None:
            return [(view.id, self._images[view.id], None) for view in views]
        if followed not in self._in_forms:
            if len(self._in_forms) >= _MOST_FORMS:
                self._in_forms.clear()
            self._in_forms[followed] = [_in_form(view, followed) for view in views]
        running = {view.id for view in views}
        return [follower for follower in self._in_forms[followed] if follower[0] in running]

    def of(self, batch: Batch) -> Projected:
        """Every change, in stream order; the views of one table follow each other event by event."""
        runs: list[ViewWrites] = []
        parked: list[Parked] = []
        events: list[RowChanges | Refused] = [*batch.changes]
        if batch.refused:
            events = sorted([*events, *batch.refused], key=lambda event: event.version)
        followed: Followed | None = None
        views: list[tuple[str, _Images, Form | None]] = []
        into: list[KeptChange] = []
        for event in events:
            if event[0] is not followed:
                followed = event[0]
                views = self._followers(followed)
                into = []
                if len(views) == 1:
                    runs.append(ViewWrites(views[0][0], None, into, views[0][2]))
            origin = batch.origin_of(event)
            for view, images, form in views:
                if len(views) > 1:
                    into = []
                    runs.append(ViewWrites(view, None, into, form))
                images.changes(event, origin, into, parked)
        return Projected([run for run in runs if run.changes], parked, self._touched(batch))

    def of_derived(self, view: str, versions: Mapping[Key, int], rows: Mapping[Key, Row], origin: Origin) -> Projected:
        """One change of each key: what it is now. What it was before is not known."""
        into: list[KeptChange] = []
        parked: list[Parked] = []
        images = self._images[view]
        for key, version in sorted(versions.items(), key=lambda of: of[1]):
            images.add_newest(key, rows.get(key), version, origin, into, parked)
        return Projected([ViewWrites(view, None, into)] if into else [], parked)

    def of_rows(self, view: str, rows: list[Row], version: int) -> Projected:
        """Canonical rows that a backfill read under a watermark of `version`."""
        parked: list[Parked] = []
        event = RowChanges(self._by_view[view].followed, INSERT, version, rows)
        inserts: list[KeptChange] = []
        self._images[view].changes(event, UNKNOWN, inserts, parked)
        reads = [change._replace(op="read") for change in inserts]
        return Projected([ViewWrites(view, None, reads)] if reads else [], parked)


def _in_form(view: BoundView, followed: Followed) -> tuple[str, _Images, Form]:
    then = in_form(view, followed)
    return view.id, _Images(then, followed.columns), Form(then.table, then.values)


class _Images(RowByRow):
    """One view's changes, with what the view shows of the row before and after."""

    def __init__(self, view: BoundView, columns: tuple[str, ...]) -> None:
        super().__init__(view, columns)
        declared = view.view
        is_plain = declared.entity.version is None and declared.where is None and declared.document is None
        self._plain = _compile_plain(view, columns) if is_plain else None

    def changes(
        self, event: RowChanges | Refused, origin: Origin, into: list[KeptChange], parked: list[Parked]
    ) -> None:
        """Append those of one row event; rows that cannot be projected go to `parked`."""
        kind, version, rows = event[1:4]
        if self._plain is not None and not Unreadable.made and self._plain(kind, version, rows, origin, into):
            return
        changes: list[KeptChange] = []
        for before, after in pairs(kind, rows):
            try:
                if before is not None and after is not None and self.key(before) != self.key(after):
                    self._add(before, None, version, origin, changes)
                    self._add(None, after, version, origin, changes)
                else:
                    self._add(before, after, version, origin, changes)
            except RowRefusedError as refusal:
                parked.append(self.parked(before, after, version, refusal))
        into += _once_a_key(changes) if self._version_at is None else changes

    def _add(self, before: Row | None, after: Row | None, version: int, origin: Origin, into: list[KeptChange]) -> None:
        """The change of one row that keeps its key, if the view shows any of it."""
        if after is None and self._is_append_only:
            return  # a row delete of an append-only table is archiving
        row = before if after is None else after
        assert row is not None
        was_shown, old = self._before(before, version)
        new = None if after is None else self._image(after, version)
        if was_shown or new is not None:
            self._require_readable([row[at] for at in self._key_at], version)
            op = "delete" if new is None else _OP_WHERE_SHOWN[was_shown]
            into.append(KeptChange(self.key(row), self._version_of(before, after, version), op, old, new, origin))

    def add_newest(
        self, key: Key, row: Row | None, version: int, origin: Origin, into: list[KeptChange], parked: list[Parked]
    ) -> None:
        """The row that a key has now, or that it has none that the view shows."""
        try:
            image = None if row is None else self._image(row, version)
        except RowRefusedError as refusal:
            assert row is not None
            parked.append(self.parked(None, row, version, refusal))
            return
        into.append(KeptChange(key, version, "delete" if image is None else "update", None, image, origin))

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
        """Return whether the view showed the row, and as what; an image that cannot be made stops no change."""
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


def _once_a_key(changes: list[KeptChange]) -> list[KeptChange]:
    """The changes of one row event: those of one key as one, from its first before to its last after."""
    if len({change.key for change in changes}) == len(changes):
        return changes
    by_key: dict[Key, KeptChange] = {}
    was_there: dict[Key, bool] = {}
    for change in changes:
        first = by_key.get(change.key, change)
        is_new = not was_there.setdefault(change.key, first.op != "insert")
        op = "delete" if change.op == "delete" else "insert" if is_new else "update"
        by_key[change.key] = change._replace(op=op, before=first.before)
    # One that came and went within the event was never there.
    return [change for change in by_key.values() if change.op != "delete" or was_there[change.key]]


def _compile_plain(view: BoundView, columns: tuple[str, ...]) -> Plain:
    """Compiled: appends all changes of one event; False for an update that has a key twice, or moves a row."""

    def picked(of: str, names: Sequence[str]) -> str:
        return f"({''.join(f'{of}[{columns.index(name)}], ' for name in names)})"

    keys, values = [column.name for column in view.key], tuple(column.name for column in view.values)
    image = {of: of if values == columns else picked(of, values) for of in ("row", "before", "after")}
    source = f"""
def changes(kind, version, rows, origin, into):
    if kind == {INSERT}:
        for row in rows:
            into.append(new(change, ({picked("row", keys)}, version, "insert", None, {image["row"]}, origin)))
    elif kind == {DELETE}:
        for row in rows:
            into.append(new(change, ({picked("row", keys)}, version, "delete", {image["row"]}, None, origin)))
    else:
        olds, news = rows[::2], rows[1::2]
        keys = [{picked("row", keys)} for row in olds]
        if keys != [{picked("row", keys)} for row in news] or len(set(keys)) < len(keys):
            return False
        for key, before, after in zip(keys, olds, news):
            into.append(new(change, (key, version, "update", {image["before"]}, {image["after"]}, origin)))
    return True
"""
    namespace: dict[str, Any] = {"new": tuple.__new__, "change": KeptChange}
    exec(compile(source, f"<changes {view.id}>", "exec"), namespace)
    plain: Plain = namespace["changes"]
    return plain
