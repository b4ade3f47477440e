"""Rows with rows of other tables: `Entity(related=...)`.

A row is read in one snapshot, level by level: the entity's rows, then one SELECT a related table for all of them. Which
rows a change touches, its images tell where they hold the entity's key; else the tables are asked, from the changed row
upward (climbing.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, ClassVar, TypeAlias

import orjson

from ingest.canonical.rows import TableRows
from projectors.binding import Describe, functions_read
from projectors.derived import DerivedRows, KeyPage, LookedUp, Part, Touched
from projectors.derived.climbing import Way, described, what_of, what_text
from projectors.derived.joins import Groups, TooManyRowsError, child_rows, number_rows
from projectors.derived.roles import Roles
from projectors.derived.tree import Columns, Growing, Node, Numbers, below, group_columns
from projectors.function_flow import Uses
from projectors.views import Entity, View
from viewtail.changes.batches import Refused, Row, RowChanges, Unreadable, unreadable_in
from viewtail.changes.rendering import json_value
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key

ROOTS_AT_ONCE = 1_000
VALUES_AT_ONCE = 1_000  # of changed rows whose dependents are looked up together

Child: TypeAlias = Node | Numbers
Made: TypeAlias = bytes | Unreadable | None  # a related row, or a list of them, as JSON


def rows_of(view: View, table: Table, describe: Describe, names: frozenset[str] | None) -> DocumentRows:
    """As `registry.derived_rows`."""
    growing = Growing(describe)
    key = growing.key(table, view.entity.key)
    uses = None if names is None else {name: functions_read(view).uses.get(name) for name in names}
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
        names = tuple(column.name for column in key)
        shown = (column for child in children for column in child.shown)
        self._table = Table(
            schema=root.schema, name=root.name, columns=(*root.columns, *shown), primary_key=names or root.primary_key
        )
        self._roles = Roles(root, key, self._own, children)
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
        names = {column.name for column in columns}
        children = [child for child in self._children if any(column.name in names for column in child.shown)]
        roots = TableRows(self._root).fetch(connection, self._own, where, behind)
        rows: list[Row] = []
        size, at = 0, 0
        while at < len(roots):
            some = roots[at : at + ROOTS_AT_ONCE]
            at += len(some)
            for values in self._with_related(connection, children, some):
                rows.append(tuple([values[column.name] for column in columns]))
                size += sum([len(value) for value in rows[-1] if isinstance(value, str | bytes)])
            if size >= max_bytes and at < len(roots):
                connection.close()  # says that there are more
                break
        return rows

    def keys(self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "") -> list[Row]:
        return TableRows(self._root).fetch(connection, columns, where, behind)

    def _with_related(
        self, connection: Any, children: Sequence[Child], roots: Sequence[Row]
    ) -> Iterator[dict[str, Any]]:
        """The values of each root by column."""
        try:
            made = _made(connection, children, self._own, roots)
        except TooManyRowsError:
            if len(roots) > 1:
                half = len(roots) // 2
                yield from self._with_related(connection, children, roots[:half])
                yield from self._with_related(connection, children, roots[half:])
                return
            reason = "has more related rows than viewtail reads of one entity; declare a smaller limit="
            made = {column.name: [Unreadable(column.name, reason)] for child in children for column in child.shown}
        names = [column.name for column in self._own]
        for number, root in enumerate(roots):
            values = dict(zip(names, root, strict=True))
            size = 0
            for name, of_name in made.items():
                value = of_name[number]
                if isinstance(value, bytes):
                    size += len(value)
                    value = value.decode()
                values[name] = value
            if size > self._entity.max_bytes:
                most = f"max_bytes={self._entity.max_bytes:,}"
                values[name] = Unreadable(name, f"and what else is related have {size:,} bytes, more than {most}")
            yield values


def _own_columns(root: Table, key: Columns, uses: Uses | None, children: Sequence[Child]) -> Columns:
    """The columns of the entity's table that are read: those that are asked for, and what finds related rows."""
    needed = {*key, *(column for child in children for column in group_columns(child.hops[0]))}
    asked = (column for column in root.columns if column.kind is not Kind.UNSUPPORTED)
    needed.update(column for column in asked if uses is None or column.name in uses)
    return tuple(column for column in root.columns if column in needed)


def _made(connection: Any, children: Sequence[Child], columns: Columns, rows: Sequence[Row]) -> dict[str, list[Any]]:
    """What belongs to some rows, by name: of a Node a JSON text as bytes, of Numbers their values.

    Raises TooManyRowsError.
    """
    at = {column.name: number for number, column in enumerate(columns)}
    made: dict[str, list[Any]] = {}
    for child in children:
        group_at = [at[column.name] for column in group_columns(child.hops[0])]
        group_of = [tuple([row[number] for number in group_at]) for row in rows]
        wanted = [group for group in dict.fromkeys(group_of) if None not in group and unreadable_in(group) is None]
        if isinstance(child, Node):
            made[child.name] = _node_values(connection, child, group_of, wanted)
        else:
            made.update(_number_values(connection, child, group_of, wanted))
    return made


def _node_values(connection: Any, node: Node, group_of: Sequence[Key], wanted: Sequence[Key]) -> list[Made]:
    groups = child_rows(connection, node, wanted) if wanted else Groups([], {})
    nested = _made(connection, node.children, node.read, groups.rows) if groups.rows else {}
    texts = _texts(node, groups.rows, nested)
    by_group: dict[Key, Made] = {}
    for group, numbers in groups.of.items():
        by_group[group] = _listed(node, [texts[number] for number in numbers]) if node.is_many else texts[numbers[0]]
    absent: Made = b"[]" if node.is_many else None
    return [by_group.get(group, absent) for group in group_of]


def _listed(node: Node, texts: Sequence[Any]) -> Made:
    if len(texts) > node.limit:
        return Unreadable(node.path, f"has more than limit={node.limit:,} rows")
    if Unreadable.made and (bad := unreadable_in(texts)) is not None:
        return bad
    return b"[%b]" % b",".join(texts)


def _texts(node: Node, rows: Sequence[Row], nested: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Each row as a JSON text, or what in it cannot be read."""
    names = [column.name for column in node.columns]
    at = {column.name: number for number, column in enumerate(node.read)}
    own_at = [at[name] for name in names]
    converts = [json_value(column) for column in node.columns]
    is_plain = not any(converts) and not nested and own_at == list(range(len(node.read)))
    fields = {column.name: json_value(column) for child in node.children for column in child.shown}
    texts: list[Any] = []
    for number, row in enumerate(rows):
        if Unreadable.made and (bad := unreadable_in(row) or unreadable_in(of[number] for of in nested.values())):
            texts.append(Unreadable(f"{node.path}.{bad.column}", bad.cause))
            continue
        if is_plain:
            texts.append(orjson.dumps(dict(zip(names, row, strict=True))))
            continue
        record = {
            name: row[place] if convert is None or row[place] is None else convert(row[place])
            for name, place, convert in zip(names, own_at, converts, strict=True)
        }
        for name, of_name in nested.items():
            value = of_name[number]
            convert = fields[name]
            record[name] = value if convert is None or value is None else convert(value)
        texts.append(orjson.dumps(record))
    return texts


def _number_values(
    connection: Any, numbers: Numbers, group_of: Sequence[Key], wanted: Sequence[Key]
) -> dict[str, list[Any]]:
    groups = number_rows(connection, numbers, wanted) if wanted else Groups([], {})
    by_group = {group: groups.rows[at[0]] for group, at in groups.of.items()}
    absent = tuple(None if column.is_nullable else 0 for column in numbers.shown)
    values = [by_group.get(group, absent) for group in group_of]
    return {column.name: [row[at] for row in values] for at, column in enumerate(numbers.shown)}
