"""Tells from parents' rows what foreign keys did to rows of views' tables without a change in the stream.

Where the server does not log cascades, the pipeline's source follows the parent tables too, up to those that all begins
with, and no view is of them for that. A parent's delete or key update says what became of its children's rows: they are
gone, or columns of theirs have other values. The table itself says which rows have other values. Which are gone only
the view can tell: by the value that they had, where the store has an index over it, else by all of its keys. Here it is
noted what is to be looked for; the cleaner looks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, TypeVar

from projectors.observer import Observer
from projectors.projection import parts_of
from projectors.stores.registry import store_of
from projectors.views import BoundView
from viewtail.changes.batches import DELETE, INSERT, Batch, Followed, Row, RowChanges, pairs
from viewtail.changes.tables import TEXTS_IN_BINARY, Column, ForeignKey, Kind, Table
from viewtail.servers.literals import rows_with
from viewtail.servers.sessions import quote

MOST_LOOKS = 1_000  # of one kind and view; more are one look through all of the view

TableName = tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A change of a row did this to rows of a table. `columns` are of that table, and `of` are the changed row's."""

    table: TableName
    is_gone: bool
    changed: frozenset[tuple[str, str | None]] = frozenset()  # column and of; None: it is NULL now
    held: frozenset[tuple[str, str]] = frozenset()  # column and of: what it was, as far as that is known


def effects(keys: Collection[ForeignKey], first: Effect) -> list[Effect]:
    """All that comes of a first effect, over several levels."""
    known: dict[Effect, None] = {}
    waiting = [first]
    while waiting:
        cause = waiting.pop()
        for key in keys:
            effect = _effect(key, cause) if key.parent == cause.table else None
            if effect is not None and effect not in known:
                known[effect] = None
                waiting.append(effect)
    return list(known)


def _effect(key: ForeignKey, cause: Effect) -> Effect | None:
    """What a foreign key does to its table's rows; None: nothing."""
    moved, held = _referring(key, cause.changed), _referring(key, cause.held)
    nulls = dict.fromkeys(key.columns).items()
    match cause.is_gone, key.on_delete if cause.is_gone else key.on_update:
        case True, "CASCADE":
            return Effect(table=key.table, is_gone=True, held=held)
        case False, "CASCADE" if moved:
            return Effect(table=key.table, is_gone=False, changed=moved, held=held)
        case is_gone, "SET NULL" if is_gone or moved:
            return Effect(table=key.table, is_gone=False, changed=frozenset(nulls), held=held)
    return None


def _referring(key: ForeignKey, values: Iterable[tuple[str, T]]) -> frozenset[tuple[str, T]]:
    """The values of the columns that a foreign key refers to, as those of its own columns."""
    of = dict(values)
    pairs_of_columns = zip(key.columns, key.referenced, strict=True)
    return frozenset((own, of[referenced]) for own, referenced in pairs_of_columns if referenced in of)


@dataclass(slots=True)
class Looks:
    """A view is to be looked through for these."""

    values: set[tuple[tuple[str, ...], tuple[Any, ...]]] = field(default_factory=set)  # columns and what they are now
    shown_with: set[tuple[Any, ...]] = field(default_factory=set)  # first values in the view of rows that had these
    is_any_changed: bool = False  # rows have other values, too many for `values`
    is_any_gone: bool = False  # rows are gone that only all keys of the view tell

    def add(self, other: Looks) -> None:
        self.values |= other.values
        self.shown_with |= other.shown_with
        self.is_any_changed |= other.is_any_changed or len(self.values) > MOST_LOOKS
        self.is_any_gone |= other.is_any_gone or len(self.shown_with) > MOST_LOOKS
        if self.is_any_changed:
            self.values.clear()
        if self.is_any_gone:
            self.shown_with.clear()

    def condition(self, table: Table) -> str:
        """SQL, of the table's rows that may have other values; '' of none."""
        if self.is_any_changed:
            return "TRUE"
        columns = {column.name: column for column in table.stored.columns}
        return " OR ".join(
            sorted(
                " AND ".join(_is(columns[name], value) for name, value in zip(names, values, strict=True))
                for names, values in self.values
                if all(name in columns for name in names)
            )
        )


def _is(column: Column, value: Any) -> str:
    return f"{quote(column.name)} IS NULL" if value is None else rows_with([column], [[value]])


@dataclass(frozen=True, slots=True)
class _Concern:
    """An effect concerns a view like this. Rows are those of the parent: the values of its `columns`."""

    view: str
    is_gone: bool  # rows left the view, or are in it under another key
    is_any: bool  # rows of the view are made of several: what became of which of them is not told
    known_at: tuple[int, ...]  # of the first values that the view showed of them, in the parent's former row
    names: tuple[str, ...]  # of columns with other values
    values_at: tuple[int | None, ...]  # of those values, in the parent's row as it is now; None: NULL

    def looks(self, rows: Sequence[tuple[Row, Row]]) -> Looks:
        """For these rows of the parent, before and now."""
        if self.is_any:
            return Looks(is_any_changed=True, is_any_gone=True)
        looks = Looks(is_any_gone=self.is_gone and not self.known_at)
        if self.known_at:  # with other values, too: they may change once more, or go, before somebody looks
            looks.shown_with = self._shown_with(rows)
        if self.names:
            looks.values = {(self.names, self._values(now)) for _, now in rows}
        return looks

    def _shown_with(self, rows: Sequence[tuple[Row, Row]]) -> set[Row]:
        shown = {tuple([was[at] for at in self.known_at]) for was, _ in rows}
        return {values for values in shown if None not in values}  # nothing refers to NULL

    def _values(self, now: Row) -> Row:
        return tuple([None if at is None else now[at] for at in self.values_at])


def _concern(view: BoundView, effect: Effect, columns: Sequence[str]) -> _Concern:
    """`columns` are the parent's, as the stream has them."""
    changed = sorted(effect.changed, key=lambda change: change[0])
    held = dict(effect.held)
    known = (columns.index(held[name]) for name in _indexed(view, held))
    return _Concern(
        view=view.id,
        is_gone=effect.is_gone or any(column.name in dict(changed) for column in view.key),
        is_any=view.derived is not None,
        known_at=tuple(known),
        names=tuple(name for name, _ in changed),
        values_at=tuple(None if of is None else columns.index(of) for _, of in changed),
    )


def _indexed(view: BoundView, held: Collection[str]) -> list[str]:
    """The first columns that keys are found by in the view, as far as their former values are known."""
    if not view.view.has_index or view.view.computed:  # whose values are not those that a row refers by
        return []
    columns = store_of(view.view).indexed(view)
    exact = {column.name for column in columns if _is_exact(column) and not view.is_masked(column.name)}
    known = [column.name for column in takewhile(lambda column: column.name in exact.intersection(held), columns)]
    return [] if view.view.needs_all_values and len(known) < len(columns) else known


def _is_exact(column: Column) -> bool:
    """Return whether equal values are the same: a child's text may differ from its parent's in case."""
    return column.charset is None or column.declared in TEXTS_IN_BINARY


@dataclass(frozen=True, slots=True)
class _Parent:
    """A table of the stream that foreign keys refer to."""

    name: TableName
    columns: tuple[str, ...]  # that are referred to, as far as the stream has them
    pick: Callable[[Row], Row]  # their values

    def rows(self, change: RowChanges) -> dict[frozenset[str], list[tuple[Row, Row]]]:
        """The rows that went or got another key, before and now, by the columns that changed."""
        if change.kind == DELETE:
            return {frozenset(): [(was, was) for was in map(self.pick, change.rows)]}
        moved: dict[frozenset[str], list[tuple[Row, Row]]] = {}
        for before, after in pairs(change.kind, change.rows):
            assert before is not None and after is not None  # no insert
            was, now = self.pick(before), self.pick(after)
            if was != now:
                each = zip(self.columns, was, now, strict=True)
                moved.setdefault(frozenset(name for name, old, new in each if old != new), []).append((was, now))
        return moved


class Cascades(Observer):
    """The loop of one pipeline reports what the parents' rows did; the cleaner takes what is to be looked for."""

    def __init__(self, keys: Sequence[ForeignKey], views: Iterable[BoundView], followed: Iterable[Followed]) -> None:
        """`followed` are all tables of the pipeline's source."""
        names = {key.parent for key in keys}
        self._keys = keys
        self._views = list(views)
        self._parents = {table: _parent(table, keys) for table in followed if _name(table.table) in names}
        self._concerns: dict[tuple[TableName, int, frozenset[str]], list[_Concern]] = {}
        self._looks: dict[str, Looks] = {}
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        """Return whether no foreign key changes rows without a change in the stream."""
        return not self._keys

    def on_passed(self, batch: Batch) -> None:
        for change in batch.changes:
            if change.kind != INSERT and (parent := self._parents.get(change.followed)) is not None:
                for moved, rows in parent.rows(change).items():
                    for concern in self._concerned(parent, change.kind, moved):
                        self.put(concern.view, concern.looks(rows))

    def due(self) -> list[str]:
        """The views in which something is to be looked for."""
        with self._lock:
            return list(self._looks)

    def take(self, view: str) -> Looks:
        """Take what is to be looked for in a view; it is not due any more."""
        with self._lock:
            return self._looks.pop(view, Looks())

    def put(self, view: str, looks: Looks) -> None:
        """This is to be looked for, too."""
        with self._lock:
            self._looks.setdefault(view, Looks()).add(looks)

    def _concerned(self, parent: _Parent, kind: int, moved: frozenset[str]) -> list[_Concern]:
        known = self._concerns.get((parent.name, kind, moved))
        if known is None:
            first = Effect(
                table=parent.name,
                is_gone=kind == DELETE,
                changed=frozenset((name, name) for name in moved),
                held=frozenset((name, name) for name in parent.columns),
            )
            known = [
                _concern(view, effect, parent.columns)
                for effect in effects(self._keys, first)
                for view in self._views
                if _is_concerned(view, effect)
            ]
            self._concerns[parent.name, kind, moved] = known
        return known


def _parent(followed: Followed, keys: Iterable[ForeignKey]) -> _Parent:
    name = _name(followed.table)
    referenced = {column for key in keys if key.parent == name for column in key.referenced}
    known = {column.name for column in followed.table.columns if column.mask is None}
    at = [number for number, column in enumerate(followed.columns) if column in referenced & known]
    return _Parent(
        name, tuple(followed.columns[number] for number in at), lambda row: tuple([row[number] for number in at])
    )


def _name(table: Table) -> TableName:
    return table.names


def _is_concerned(view: BoundView, effect: Effect) -> bool:
    part = next((part for part in parts_of(view) if _name(part.table) == effect.table), None)
    if part is None:
        return False
    if effect.is_gone:
        return not view.view.entity.append_only  # there it is archiving
    # What is computed from changed columns changes with them.
    computed = {column.name for column in part.table.columns if column.is_generated}
    return not computed.union(name for name, _ in effect.changed).isdisjoint(part.columns)


def followed_parents(
    keys: Iterable[ForeignKey], followed: Collection[TableName], describe: Callable[[TableName], Table | None]
) -> dict[TableName, Followed]:
    """The parents that no view has followed, each with the columns that are referred to.

    `describe` gives None for a table that cannot be seen. A parent that views follow is followed as they need it: what
    its reader needs besides could halt them.
    """
    referenced: dict[TableName, set[str]] = {}
    for key in keys:
        if key.parent not in followed:
            referenced.setdefault(key.parent, set()).update(key.referenced)
    tables = {name: describe(name) for name in referenced}
    return {
        name: Followed(table, tuple(column.name for column in table.columns if _is_read(column, referenced[name])))
        for name, table in tables.items()
        if table is not None
    }


def _is_read(column: Column, referenced: Collection[str]) -> bool:
    return column.name in referenced and column.kind is not Kind.UNSUPPORTED
