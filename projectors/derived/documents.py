"""Rows with rows of other tables: `Entity(related=...)`.

A row is read in one snapshot, level by level: the entity's rows, then one SELECT a related table for all of them. Which
rows a change touches, its images tell where they hold the entity's key; else the tables are asked, from the changed row
upward (climbing.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf
from typing import Any, ClassVar

from ingest.canonical.rows import TableRows, fetch_bounded, select_list, select_of
from projectors.binding import Describe, uses_of
from projectors.derived import DerivedRows, KeyPage, LookedUp, Part, Touched
from projectors.derived.climbing import Way, described, what_of, what_text
from projectors.derived.joins import TooManyRowsError
from projectors.derived.roles import Roles
from projectors.derived.texts import Belonging, Child, Values, belonging_to, values_of
from projectors.derived.tree import Columns, Growing, Node, below, group_columns, referring
from projectors.related import Uses
from projectors.views import Entity, View
from viewtail.changes.batches import Refused, Row, RowChanges, Unreadable, bytes_of
from viewtail.changes.tables import Column, Kind, Table

ROOTS_AT_ONCE = 1_000
VALUES_AT_ONCE = 1_000  # of changed rows whose dependents are looked up together


def rows_of(view: View, table: Table, describe: Describe, _: frozenset[str] | None) -> DocumentRows:
    """As `registry.derived_rows`."""
    growing = Growing(describe)
    key = growing.key(table, view.entity.key)
    uses = uses_of(view)
    children = growing.children(table, key, view.entity.related, uses)
    return DocumentRows(view.entity, table, key, uses, children, growing.problems)


class DocumentRows(DerivedRows):
    """The rows of an entity's table with what belongs to them.

    Args:
        key: of the entity.
        uses: the names that are asked of a row; None: all.
        children: what belongs to it.
        problems: of the declaration.
    """

    needs_snapshot: ClassVar[bool] = True

    def __init__(
        self,
        entity: Entity,
        root: Table,
        key: Columns,
        uses: Uses | None,
        children: tuple[Child, ...],
        problems: Sequence[str],
    ) -> None:
        self._entity, self._root, self._key, self._children = entity, root, key, children
        self._problems = problems
        self._own = _own_columns(root, key, uses, children)
        self._belonging = () if problems else belonging_to(self._own, children)
        names = tuple(column.name for column in key)
        shown = (column for child in children for column in child.shown)
        self._table = Table(
            schema=root.schema, name=root.name, columns=(*root.columns, *shown), primary_key=names or root.primary_key
        )
        self._roles = Roles(root, key, (*self._own, *referring(children)), children)
        self._parts = self._roles.parts

    @property
    def table(self) -> Table:
        return self._table

    @property
    def parts(self) -> Sequence[Part]:
        return self._parts

    @property
    def bodies(self) -> tuple[str, ...]:
        body = self._entity.body
        return () if body is None or all(column.name != body for column in self._own) else (body,)

    def problems(self) -> Iterator[str]:
        yield from self._problems

    @property
    def looked_up(self) -> Sequence[LookedUp]:
        look_ups: list[LookedUp] = []
        for above, child in below(self._children):
            limit = child.limit if isinstance(child, Node) and child.is_many else None
            for hop in child.hops:
                look_ups.append(LookedUp(hop.far, hop.far_on, is_upward=False, limit=limit))
                limit = None  # the first of two hops has as many rows
            hops = (*(hop for node in above for hop in node.hops), *child.hops)
            levels = Way.along(hops, self._key).levels
            look_ups += [LookedUp(level.table, level.on, is_upward=True) for level in levels]
        return list(dict.fromkeys(look_ups))

    # -- which rows a change touches -----------------------------------------------------------------------------

    def touched(self, events: Sequence[RowChanges | Refused]) -> Touched:
        return self._roles.touched(events)

    def dependents(self, connection: Any, what: str, cursor: str | None, limit: int) -> KeyPage:
        name, values = what_of(what)
        return self._roles.ways[name].page(connection, values, cursor, limit)

    def each(self, what: str) -> Sequence[str]:
        name, values = what_of(what)
        return [what_text(name, [value]) for value in values]

    def about(self, connection: Any, what: str) -> int | None:
        name, values = what_of(what)
        return self._roles.ways[name].about(connection, values)

    def described(self, what: str) -> str:
        name, values = what_of(what)
        return described(self._roles.ways[name], values)

    # -- what the rows are ---------------------------------------------------------------------------------------

    def fetch(
        self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "", max_bytes: float = inf
    ) -> list[Row]:
        own = self._own_with(columns)
        statement = f"{select_of(self._root, select_list(own), where)}{behind}"
        roots, is_cut = fetch_bounded(connection, statement, own, max_bytes)
        rows: list[Row] = []
        size = 0
        for at in range(0, len(roots), ROOTS_AT_ONCE):
            if rows and size >= max_bytes:
                is_cut = True
                break
            shown = self._shown(connection, columns, own, roots[at : at + ROOTS_AT_ONCE])
            size += bytes_of(chain.from_iterable(shown))
            rows += zip(*shown, strict=True)
        if is_cut:
            connection.close()  # says that there are more
        return rows

    def _own_with(self, columns: Sequence[Column]) -> Columns:
        """The columns of the root that are read: who reads an entity asks for some that no view has."""
        names = {column.name for column in columns}
        return tuple(dict.fromkeys([*self._own, *(column for column in self._root.columns if column.name in names)]))

    def _shown(
        self, connection: Any, columns: Sequence[Column], own: Columns, roots: Sequence[Row]
    ) -> list[Sequence[Any]]:
        """The values of each of these columns, of some roots."""
        names = {column.name for column in columns}
        belonging = [child for child in self._belonging if any(column.name in names for column in child.shown)]
        values = {column.name: [root[number] for root in roots] for number, column in enumerate(own)}
        values.update(self._related(connection, belonging, roots))
        return [values[column.name] for column in columns]

    def keys(self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "") -> list[Row]:
        return TableRows(self._root).fetch(connection, columns, where, behind)

    def _related(self, connection: Any, belonging: Sequence[Belonging], roots: Sequence[Row]) -> Values:
        """What belongs to each root."""
        try:
            values = values_of(connection, belonging, roots)
        except TooManyRowsError:
            if len(roots) > 1:
                middle = len(roots) // 2
                first, second = (
                    self._related(connection, belonging, some) for some in (roots[:middle], roots[middle:])
                )
                return {name: [*of_name, *second[name]] for name, of_name in first.items()}
            reason = "has more related rows than viewtail reads of one entity; declare a smaller limit="
            return {column.name: [Unreadable(column.name, reason)] for child in belonging for column in child.shown}
        if bytes_of(chain.from_iterable(values.values())) > self._entity.max_bytes:  # of all together
            self._refuse_large(values, len(roots))
        return values

    def _refuse_large(self, values: Values, count: int) -> None:
        for at in range(count):
            size = bytes_of([of_name[at] for of_name in values.values()])
            if size > self._entity.max_bytes:
                most = f"max_bytes={self._entity.max_bytes:,}"
                name = max(values, key=lambda name: bytes_of([values[name][at]]))
                values[name][at] = Unreadable(name, f"and what else is related have {size:,} bytes, more than {most}")


def _own_columns(root: Table, key: Columns, uses: Uses | None, children: Sequence[Child]) -> Columns:
    """The columns of the entity's table that are read: those that are asked for, and what finds related rows."""
    needed = {*key, *(column for child in children for column in group_columns(child.hops[0]))}
    asked = (column for column in root.columns if column.kind is not Kind.UNSUPPORTED)
    needed.update(column for column in asked if uses is None or column.name in uses)
    return tuple(column for column in root.columns if column in needed)
