"""Rows with rows of other tables: `Entity(related=...)`.

A row is read in one snapshot, level by level: the entity's rows, then one SELECT a related table for all of them. Which
rows a change touches, its images tell where they hold the entity's key; else the tables are asked, from the changed row
upward (climbing.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, TypeAlias

import orjson

from ingest.canonical.rows import TableRows
from projectors.binding import Describe, functions_read
from projectors.derived import Dependents, DerivedRows, KeyPage, Part, Touched
from projectors.derived.climbing import Way, described, what_of, what_text
from projectors.derived.joins import Groups, TooManyRowsError, child_rows, number_rows
from projectors.derived.tree import Columns, Growing, Hop, Node, Numbers, below, group_columns
from projectors.function_flow import Uses
from projectors.views import Entity, View
from viewtail.changes.batches import Refused, Row, RowChanges, Unreadable, pairs, unreadable_in
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


@dataclass(frozen=True, slots=True)
class _Role:
    """A table in one place of the tree."""

    way: str  # names the way up from it; '': it is the entity's table
    on: tuple[str, ...]  # the columns that others refer to
    used: tuple[str, ...]  # those that the rows depend on
    tells_key: bool  # `on` holds the entity's key


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
        further = {column for child in children for column in group_columns(child.hops[0])}
        self._own = tuple(
            column
            for column in root.columns
            if column in key
            or column in further
            or (column.kind is not Kind.UNSUPPORTED and (uses is None or column.name in uses))
        )
        names = tuple(column.name for column in key)
        shown = (column for child in children for column in child.shown)
        self._table = Table(
            schema=root.schema, name=root.name, columns=(*root.columns, *shown), primary_key=names or root.primary_key
        )
        self._ways: dict[str, Way] = {}
        self._roles: dict[tuple[str, str], list[_Role]] = {}
        self._parts = [] if problems else self._take_roles()

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
    def looked_up(self) -> Iterator[tuple[Table, Columns]]:
        """Tables with the columns by which their rows are found: each needs an index over them."""
        for above, child in below(self._children):
            hops = (*(hop for node in above for hop in node.hops), *child.hops)
            yield child.hops[-1].far, child.hops[-1].far_on
            if len(child.hops) > 1:
                yield child.hops[0].far, child.hops[0].far_on
            for level in Way.along(hops, self._key).levels:
                yield level.table, level.on

    # -- which rows a change touches -----------------------------------------------------------------------------

    def _take_roles(self) -> list[Part]:
        own = tuple(column.name for column in self._own)
        key = tuple(column.name for column in self._key)
        self._roles[self._root.schema, self._root.name] = [_Role("", key, own, tells_key=True)]
        tables = {(self._root.schema, self._root.name): self._root}
        keys: dict[tuple[str, str], list[tuple[str, ...]]] = {}
        if set(key) != set(self._root.primary_key):
            keys[self._root.schema, self._root.name] = [key]
        for above, child in below(self._children):
            hops = tuple(hop for node in above for hop in node.hops)
            for number, hop in enumerate(child.hops):
                hops = (*hops, hop)
                name = (hop.far.schema, hop.far.name)
                tables[name] = hop.far
                way = Way.along(hops, self._key)
                self._ways[f"{child.path}#{number}"] = way
                self._roles.setdefault(name, []).append(
                    _Role(
                        f"{child.path}#{number}",
                        on=tuple(column.name for column in hop.far_on),
                        used=_used(child, number),
                        tells_key=not way.levels,
                    )
                )
                if (relied := _relied_on(child, hop)) is not None:
                    keys.setdefault(name, []).append(relied)
        return [self._part(table, keys.get(name, [])) for name, table in tables.items()]

    def _part(self, table: Table, keys: Sequence[tuple[str, ...]]) -> Part:
        used = {name for role in self._roles[table.schema, table.name] for name in (*role.used, *role.on)}
        columns = tuple(column.name for column in table.columns if column.name in used)
        return Part(table, columns, tuple(dict.fromkeys(keys)))

    def touched(self, events: Sequence[RowChanges | Refused]) -> Touched:
        """Keys that images hold; the others by the values of the changed rows that others refer to."""
        versions: dict[Key, int] = {}
        looked_up: dict[str, dict[Key, int]] = {}
        for event in events:
            table = event.followed.table
            for role in self._roles[table.schema, table.name]:
                into = versions if role.tells_key else looked_up.setdefault(role.way, {})
                for value in _values_changed(event, role):
                    into[value] = event.version  # events come in order
        return Touched(versions, list(_dependents(looked_up)))

    def dependents(self, connection: Any, what: str, cursor: str | None, limit: int) -> KeyPage:
        name, values = what_of(what)
        return self._ways[name].page(connection, values, cursor, limit)

    def described(self, what: str) -> str:
        name, values = what_of(what)
        return described(self._ways[name], values)

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


def _used(child: Child, number: int) -> tuple[str, ...]:
    """The columns of the table that a hop of a child leads to on which the rows depend."""
    hop = child.hops[number]
    if number < len(child.hops) - 1:
        columns: Sequence[Column] = (*hop.far_on, *child.hops[number + 1].near_on)
    elif isinstance(child, Node):
        columns = (*hop.far_on, *child.read, *(column for column, _ in child.order))
    else:
        of_condition = () if child.condition is None else child.condition.columns
        columns = (*hop.far_on, *child.over, *of_condition)
    return tuple(dict.fromkeys(column.name for column in columns))


def _relied_on(child: Child, hop: Hop) -> tuple[str, ...] | None:
    """The unique key, beside the primary one, without which a One is of several rows."""
    names = tuple(column.name for column in hop.far_on)
    is_one = isinstance(child, Node) and not child.is_many
    return names if is_one and set(names) != set(hop.far.primary_key) else None


def _values_changed(event: RowChanges | Refused, role: _Role) -> Iterator[Key]:
    """What others refer to changed rows by: of both images of each row that is another one in what is used."""
    columns = event.followed.columns
    used_at, on_at = [columns.index(name) for name in role.used], [columns.index(name) for name in role.on]
    for before, after in pairs(event.kind, event.rows):
        if before is not None and after is not None and all(before[at] == after[at] for at in used_at):
            continue
        for image in (before, after):
            if image is not None:
                value = tuple([image[at] for at in on_at])
                if None not in value and unreadable_in(value) is None:
                    yield value


def _dependents(looked_up: Mapping[str, Mapping[Key, int]]) -> Iterator[Dependents]:
    for way, of_way in looked_up.items():
        values = list(of_way)
        for at in range(0, len(values), VALUES_AT_ONCE):
            some = values[at : at + VALUES_AT_ONCE]
            yield Dependents(what_text(way, some), max(of_way[value] for value in some))


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
