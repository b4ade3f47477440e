"""What foreign keys did to rows of views' tables without a change in the stream, as their parents' rows tell it.

Where the server does not log cascades, the pipeline's source follows the parent tables too, up to those that all begins
with, and no view is of them for that. A parent's delete or key update says what became of its children's rows: they are
gone, or columns of theirs have other values. The table itself says which rows have other values. Which are gone only
the view can tell: by the value that they had, where the store has an index over it, else by all of its keys. Here it is
noted what is to be looked for; the cleaner looks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from changes.batches import DELETE, INSERT, UPDATE, Followed, RowChanges, pairs
from changes.tables import TEXTS_IN_BINARY, Column, ForeignKey, Kind, Table
from projectors.stores.registry import store_of
from projectors.views import BoundView
from servers.literals import rows_with
from servers.sessions import quote

MOST_LOOKS = 1_000  # of one kind and view; more are one look through all of the view
ALL_ROWS = "TRUE"

TableName = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a change of a row did to rows of a table. `columns` are of that table, and `of` are the changed row's."""

    table: TableName
    is_gone: bool
    changed: frozenset[tuple[str, str | None]] = frozenset()  # column and of; None: it is NULL now
    held: frozenset[tuple[str, str]] = frozenset()  # column and of: what it was, as far as that is known


def effects(keys: Collection[ForeignKey], first: Effect) -> list[Effect]:
    """All that comes of a first effect, over several levels."""
    found: dict[Effect, None] = {}
    waiting = [first]
    while waiting:
        cause = waiting.pop()
        for key in keys:
            effect = _effect(key, cause) if key.parent == cause.table else None
            if effect is not None and effect not in found:
                found[effect] = None
                waiting.append(effect)
    return list(found)


def _effect(key: ForeignKey, cause: Effect) -> Effect | None:
    columns = list(zip(key.columns, key.referenced, strict=True))
    values, before = dict(cause.changed), dict(cause.held)
    touched = [pair for pair in columns if pair[1] in values]
    if not cause.is_gone and not touched:
        return None
    rule = key.on_delete if cause.is_gone else key.on_update
    if rule not in ("CASCADE", "SET NULL"):
        return None
    is_gone = cause.is_gone and rule == "CASCADE"
    changed: list[tuple[str, str | None]] = [(column, None) for column, _ in columns]
    if rule == "CASCADE":
        changed = [(column, values[of]) for column, of in touched]
    return Effect(
        table=key.table,
        is_gone=is_gone,
        changed=frozenset(() if is_gone else changed),
        held=frozenset((column, before[of]) for column, of in columns if of in before),
    )


@dataclass(slots=True)
class Looks:
    """What is to be looked for in one view."""

    conditions: set[str] = field(default_factory=set)  # SQL, of the table's rows that may have other values
    shown_with: set[tuple[Any, ...]] = field(default_factory=set)  # first values in the view of rows that are gone
    is_any_gone: bool = False  # rows are gone that only all keys of the view tell

    def add(self, other: Looks) -> None:
        self.conditions |= other.conditions
        self.shown_with |= other.shown_with
        if len(self.conditions) > MOST_LOOKS:
            self.conditions = {ALL_ROWS}
        if len(self.shown_with) > MOST_LOOKS:
            self.shown_with, self.is_any_gone = set(), True
        self.is_any_gone |= other.is_any_gone


@dataclass(frozen=True, slots=True)
class _Concern:
    """What one effect means for one view."""

    view: BoundView
    effect: Effect

    def looks(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Looks:
        """For one row of the parent."""
        looks, held = Looks(), {column: before[of] for column, of in self.effect.held}
        if self.effect.is_gone or self._moves_keys():
            known = self._known(held)
            if known and all(value is not None for value in known):
                looks.shown_with.add(known)
            else:
                looks.is_any_gone = True
        if not self.effect.is_gone:
            columns = {column.name: column for column in self.view.table.columns}
            parts = [
                _is(columns[name], None if of is None else after[of])
                for name, of in sorted(self.effect.changed, key=lambda one: one[0])
            ]
            looks.conditions.add(" AND ".join(parts))
        return looks

    def _moves_keys(self) -> bool:
        """Whether rows got another key, so that the view shows them under their former one too."""
        changed = {name for name, _ in self.effect.changed}
        return any(column.name in changed for column in self.view.key)

    def _known(self, held: Mapping[str, Any]) -> tuple[Any, ...]:
        """The first values that the view shows of such rows, as far as known; () where its store has no index."""
        known: list[Any] = []
        if store_of(self.view.view).has_index:
            for column in self.view.values:
                if column.name not in held or not _is_exact(column):
                    break
                known.append(held[column.name])
        return tuple(known)


def _is_exact(column: Column) -> bool:
    """Whether equal values are the same: a child's text may differ from its parent's in case."""
    return column.charset is None or column.declared in TEXTS_IN_BINARY


def _is(column: Column, value: Any) -> str:
    return f"{quote(column.name)} IS NULL" if value is None else rows_with([column], [[value]])


class Cascades:
    """Of one pipeline. Its loop reports what the parents' rows did; the cleaner takes what is to be looked for."""

    def __init__(self, keys: Sequence[ForeignKey], views: Iterable[BoundView], followed: Iterable[Followed]) -> None:
        """`followed` are all tables of the pipeline's source."""
        parents = {key.parent for key in keys}
        self._keys = keys
        self._views = list(views)
        self._parents = {one: _name(one.table) for one in followed if _name(one.table) in parents}
        self._concerns: dict[tuple[TableName, int, frozenset[str]], list[_Concern]] = {}
        self._looks: dict[str, Looks] = {}
        self._lock = threading.Lock()

    def saw(self, changes: Iterable[RowChanges]) -> None:
        """These were applied."""
        for change in changes:
            if change.kind != INSERT and change.followed in self._parents:
                for view, looks in self._looks_of(change):
                    self.put(view, looks)

    def due(self) -> list[str]:
        """The views in which something is to be looked for."""
        with self._lock:
            return list(self._looks)

    def take(self, view: str) -> Looks:
        """What is to be looked for in a view; it is not due any more."""
        with self._lock:
            return self._looks.pop(view, Looks())

    def put(self, view: str, looks: Looks) -> None:
        """This is to be looked for, too."""
        with self._lock:
            self._looks.setdefault(view, Looks()).add(looks)

    def _looks_of(self, change: RowChanges) -> Iterator[tuple[str, Looks]]:
        names = change.followed.columns
        referenced = self._referenced(self._parents[change.followed], names)
        for before, after in pairs(change.kind, change.rows):
            assert before is not None  # no insert
            if before == after:
                continue
            was = dict(zip(names, before, strict=True))
            now = was if after is None else dict(zip(names, after, strict=True))
            moved = frozenset(name for name in referenced if was[name] != now[name])
            if change.kind == UPDATE and not moved:
                continue
            for concern in self._concerned(self._parents[change.followed], change.kind, moved, referenced):
                yield concern.view.id, concern.looks(was, now)

    def _referenced(self, table: TableName, followed: Sequence[str]) -> frozenset[str]:
        return frozenset(
            name for key in self._keys if key.parent == table for name in key.referenced if name in followed
        )

    def _concerned(
        self, table: TableName, kind: int, moved: frozenset[str], referenced: frozenset[str]
    ) -> list[_Concern]:
        known = self._concerns.get((table, kind, moved))
        if known is None:
            first = Effect(
                table=table,
                is_gone=kind == DELETE,
                changed=frozenset((name, name) for name in moved),
                held=frozenset((name, name) for name in referenced),
            )
            found = effects(self._keys, first)
            known = [_Concern(view, one) for one in found for view in self._views if _is_concerned(view, one)]
            self._concerns[table, kind, moved] = known
        return known


def _name(table: Table) -> TableName:
    return table.schema, table.name


def _is_concerned(view: BoundView, effect: Effect) -> bool:
    if effect.table != _name(view.table):
        return False
    if effect.is_gone:
        return not view.view.entity.append_only  # there it is archiving
    # What is computed from changed columns changes with them.
    computed = {column.name for column in view.table.columns if column.is_generated}
    return not computed.union(name for name, _ in effect.changed).isdisjoint(view.needed)


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
        name: Followed(table, tuple(one.name for one in table.columns if _is_read(one, referenced[name])))
        for name, table in tables.items()
        if table is not None
    }


def _is_read(column: Column, referenced: Collection[str]) -> bool:
    return column.name in referenced and column.kind is not Kind.UNSUPPORTED
