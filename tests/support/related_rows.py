"""A second implementation of derived rows, for the contract of the seam: a row with rows of other tables.

An order has its lines, and each line its product: `Many` is found by a column that holds the row's key, `One` by a
column of the row that holds its own. A product's change tells no order; the lines are asked for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

import orjson

from ingest.canonical.rows import fetch_rows, select_list
from projectors.binding import Describe, unknown_column
from projectors.derived import Dependents, DerivedRows, KeyPage, Part, Touched
from projectors.derived.registry import IMPLEMENTATIONS
from projectors.views import Entity, View
from viewtail.changes.batches import Refused, Row, RowChanges
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key
from viewtail.servers.literals import rows_with
from viewtail.servers.sessions import Connection, quote

ROWS_AT_ONCE = 100  # of the entity's table, with all that belongs to them


@dataclass(frozen=True, slots=True)
class One:
    table: str
    by: str  # of the row that it belongs to


@dataclass(frozen=True, slots=True)
class Many:
    table: str
    by: str  # its own, which holds the key of the row that they belong to
    related: Mapping[str, One]


class RelatedEntity(Entity):
    __slots__ = ("related",)
    related: Mapping[str, Many]

    def __init__(self, table: str, *, related: Mapping[str, Many]) -> None:
        super().__init__(table)
        object.__setattr__(self, "related", related)

    @property
    def tables(self) -> frozenset[tuple[str, str]]:
        children = [*self.related.values()]
        related = [*children, *(one for child in children for one in child.related.values())]
        return super().tables | {Entity(of.table).schema_and_table for of in related}

    @property
    def particulars(self) -> dict[str, Any]:
        return {"related": repr(self.related)}


def register() -> None:
    """Entities with `related` are known from now on, in this process."""
    IMPLEMENTATIONS["related"] = __name__


def rows_of(view: View, table: Table, describe: Describe, _: frozenset[str] | None) -> RelatedRows:
    assert isinstance(view.entity, RelatedEntity)
    ((name, many),) = view.entity.related.items()
    ((of_each, one),) = many.related.items()
    tables = [describe(*Entity(related.table).schema_and_table) for related in (many, one)]
    return RelatedRows(table, name, many.by, tables[0], of_each, one.by, tables[1])


@dataclass(frozen=True, slots=True)
class RelatedRows(DerivedRows):
    needs_snapshot: ClassVar[bool] = True
    root: Table
    name: str
    by: str
    child: Table
    name_in_child: str
    by_in_child: str
    grandchild: Table

    @property
    def table(self) -> Table:
        children = Column(name=self.name, kind=Kind.JSON, declared="json", is_nullable=False)
        return replace(self.root, columns=(*self.root.columns, children))

    @property
    def parts(self) -> Sequence[Part]:
        return [
            Part(table, tuple(column.name for column in table.columns), ())
            for table in (self.root, self.child, self.grandchild)
        ]

    @property
    def bodies(self) -> tuple[str, ...]:
        return ()

    def problems(self) -> Iterator[str]:
        for name in (self.by, self.by_in_child):
            if self.child.column(name) is None:
                yield unknown_column(self.child, name, "column")

    def touched(self, events: Sequence[RowChanges | Refused]) -> Touched:
        at_of = {self.root.name: self.root.primary_key[0], self.child.name: self.by}
        versions: dict[Key, int] = {}
        grandchildren: dict[Key, int] = {}
        for event in events:
            own = at_of.get(event.followed.table.name)
            into = grandchildren if own is None else versions
            at = event.followed.columns.index(own or self.grandchild.primary_key[0])
            for row in event.rows:
                into[(row[at],)] = event.version  # events come in order
        if not grandchildren:
            return Touched(versions)
        what = orjson.dumps([*grandchildren]).decode()
        return Touched(versions, [Dependents(what, max(grandchildren.values()))])

    def dependents(self, connection: Connection, what: str, cursor: str | None, limit: int) -> KeyPage:
        """Pages of lines, in the order of their key; each names its order."""
        key = self.child.primary_key[0]
        columns = [self._of_child(name) for name in (self.by, self.by_in_child, key)]
        children = self._having(connection, self.child, columns, columns[1], orjson.loads(what))
        rest = sorted(row[2] for row in children if cursor is None or row[2] > int(cursor))
        page = set(rest[:limit])
        return KeyPage([(row[0],) for row in children if row[2] in page], str(max(page)) if len(rest) > limit else None)

    def described(self, what: str) -> str:
        return f"{self.grandchild.full_name} {what}"

    def fetch(
        self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "", max_bytes: float = inf
    ) -> list[Row]:
        key = self._key(self.root)
        own = [key, *(column for column in columns if column.name != self.name)]
        roots = self.keys(connection, own, where, behind)
        rows: list[Row] = []
        size = 0
        for at in range(0, len(roots), ROWS_AT_ONCE):
            some = roots[at : at + ROWS_AT_ONCE]
            children = self._children(connection, [row[:1] for row in some])
            for root in some:
                values = {**dict(zip([column.name for column in own[1:]], root[1:], strict=True))}
                values[self.name] = orjson.dumps(children.get(root[0], [])).decode()
                rows.append(tuple(values[column.name] for column in columns))
                size += sum(len(value) for value in values.values() if isinstance(value, str))
                if size >= max_bytes and len(rows) < len(roots):
                    connection.close()  # says that there are more
                    return rows
        return rows

    def keys(self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "") -> list[Row]:
        name = quote(self.root.schema, self.root.name)
        return fetch_rows(connection, f"SELECT {select_list(columns)} FROM {name}{where}{behind}", columns)

    def _children(self, connection: Connection, roots: list[Key]) -> dict[Any, list[dict[str, Any]]]:
        names = [column.name for column in self.child.columns]
        rows = self._having(connection, self.child, self.child.columns, self._of_child(self.by), roots)
        children = [dict(zip(names, row, strict=True)) for row in rows]
        wanted = [(key,) for key in {child[self.by_in_child] for child in children} - {None}]
        key, columns = self._key(self.grandchild), self.grandchild.columns
        at, names = columns.index(key), [column.name for column in columns]
        found = self._having(connection, self.grandchild, columns, key, wanted) if wanted else []
        grandchildren = {row[at]: dict(zip(names, row, strict=True)) for row in found}
        by_root: dict[Any, list[dict[str, Any]]] = {}
        for child in sorted(children, key=lambda child: child[self.child.primary_key[0]]):
            of_it = grandchildren.get(child[self.by_in_child])
            by_root.setdefault(child[self.by], []).append({**child, self.name_in_child: of_it})
        return by_root

    @staticmethod
    def _having(
        connection: Connection, table: Table, columns: Sequence[Column], by: Column, keys: Sequence[Key]
    ) -> list[Row]:
        where = rows_with([by], keys)
        name = quote(table.schema, table.name)
        return fetch_rows(connection, f"SELECT {select_list(columns)} FROM {name} WHERE {where}", columns)

    @staticmethod
    def _key(table: Table) -> Column:
        column = table.column(table.primary_key[0])
        assert column is not None
        return column

    def _of_child(self, name: str) -> Column:
        column = self.child.column(name)
        assert column is not None
        return column
