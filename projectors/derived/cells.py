"""The newest cells of rows that a table of cells holds, read as if each row were one of a table with a column a cell.

One SELECT for all keys that are asked for; each cell is one step in the unique key (row, column name, ref key).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

from ingest.canonical.rows import fetch_rows, select_list
from projectors.binding import Describe, unknown_column
from projectors.derived import DerivedRows, KeyPage, Part, Touched
from projectors.masking import not_plain
from projectors.views import View
from viewtail.changes.batches import Refused, Row, RowChanges, unreadable_in
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key
from viewtail.servers.literals import exactly
from viewtail.servers.sessions import quote


def rows_of(view: View, table: Table, _: Describe, names: frozenset[str] | None) -> NewestCells:
    """As `registry.derived_rows`; where the declaration names no columns, `problems` says so."""
    entity = view.entity
    assert entity.columns_by is not None and entity.newest is not None and entity.body is not None
    return NewestCells(
        canonical=table,
        key=entity.key,
        by=entity.columns_by,
        newest=entity.newest,
        body=entity.body,
        names=tuple(sorted((names or frozenset()).difference(entity.key))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestCells(DerivedRows):
    """Which columns of a table of cells make which columns of a row.

    Args:
        canonical: the table of cells.
        key: those that name the row.
        by: the one that names the cell.
        newest: of the cells of a row and name the one with the largest value counts.
        body: what the cell holds.
        names: of the cells that are read, as they are in `by`.
    """

    needs_snapshot: ClassVar[bool] = False
    canonical: Table
    key: tuple[str, ...]
    by: str
    newest: str
    body: str
    names: tuple[str, ...]

    @property
    def table(self) -> Table:
        """The table that the rows would be of: its key, and a column a name, NULL where there is no such cell."""
        body = self._column(self.body)
        cells = (replace(body, name=name, is_nullable=True, default=None) for name in self.names)
        columns = (*(self._column(name) for name in self.key), *cells)
        return replace(self.canonical, columns=columns, primary_key=self.key, unique_keys=(), unique_names=())

    @property
    def parts(self) -> Sequence[Part]:
        """The table of cells."""
        wanted = {*self.key, self.by, self.newest, self.body}
        columns = tuple(column.name for column in self.canonical.columns if column.name in wanted)
        return [Part(self.canonical, columns, tuple(self.unique))]

    @property
    def bodies(self) -> tuple[str, ...]:
        return self.names

    def problems(self) -> Iterator[str]:
        table = self.canonical
        missing = [name for name in (*self.key, self.by, self.newest, self.body) if table.column(name) is None]
        yield from (unknown_column(table, name, "column") for name in missing)
        if missing:
            return
        yield from self._masked()
        by, newest = self._column(self.by), self._column(self.newest)
        if by.kind is not Kind.TEXT:
            yield f"columns_by: column {by.name} of {table.full_name} is {by.type_name}; cells are named by a text"
        if newest.kind is not Kind.INTEGER or newest.is_nullable:
            it = f"column {newest.name} of {table.full_name}"
            yield f"newest: {it} is {newest.type_name}; it must be a NOT NULL integer"
        if not self.names:
            yield "which cells it reads is not certain: name them, columns=['CELL', ...]"
        if not self.unique:
            yield (
                f"{table.full_name} has no unique key ({', '.join((*self.key, by.name, newest.name))}), so which cell "
                "of a row is the newest is not certain, and each would be looked for in the whole table"
            )

    def _masked(self) -> Iterator[str]:
        for column in map(self._column, (*self.key, self.by, self.newest, self.body)):
            if column.mask is not None:
                yield not_plain(column, self.canonical, "cells are named, chosen or decoded by it")

    @property
    def unique(self) -> list[tuple[str, ...]]:
        """The unique keys by which a cell of a row and name is the newest for certain, and is found at once."""
        wanted = {*self.key, self.by, self.newest}
        return [key for key in self.canonical.unique_keys if set(key) == wanted and key[-1] == self.newest]

    def touched(self, events: Sequence[RowChanges | Refused]) -> Touched:
        """Each key under the version of the last change of one of its cells."""
        versions: dict[Key, int] = {}
        names = frozenset(self.names)
        for event in events:
            columns, version = event.followed.columns, event.version
            key_at, name_at = [columns.index(name) for name in self.key], columns.index(self.by)
            for row in event.rows:
                if row[name_at] in names:
                    key = tuple([row[at] for at in key_at])
                    if unreadable_in(key) is None:
                        versions[key] = max(version, versions.get(key, 0))
        return Touched(versions)

    def dependents(self, connection: Any, what: str, cursor: str | None, limit: int) -> KeyPage:
        """None: each cell names its row."""
        return KeyPage((), None)

    def described(self, what: str) -> str:
        return what

    def fetch(
        self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "", max_bytes: float = inf
    ) -> list[Row]:
        """In one SELECT, in which each cell is one step in the unique key."""
        key = ", ".join(map(quote, self.key))
        cells = "".join(f", {self._cell(cell)} AS {quote(cell)}" for cell in self.names)
        key_of = ", ".join(f"k.{quote(name)}" for name in self.key)
        rows = f"SELECT {key_of}{cells} FROM ({self._keys(key, where, behind)}) k"
        return fetch_rows(connection, f"SELECT {select_list(columns)} FROM ({rows}) r{behind}", columns, max_bytes)

    def keys(self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "") -> list[Row]:
        return fetch_rows(connection, self._keys(select_list(columns), where, behind), columns)

    def _keys(self, expressions: str, where: str, behind: str) -> str:
        of_cells = " OR ".join(f"({exactly(self._column(self.by), cell)})" for cell in self.names)
        mine = f"{where} AND ({of_cells})" if where else f" WHERE {of_cells}"
        return f"SELECT DISTINCT {expressions} FROM {self._name}{mine}{behind}"

    def _cell(self, cell: str) -> str:
        of_row = " AND ".join(f"{self._name}.{quote(name)} = k.{quote(name)}" for name in self.key)
        return (
            f"(SELECT {quote(self.body)} FROM {self._name} WHERE {of_row} AND {exactly(self._column(self.by), cell)} "
            f"ORDER BY {quote(self.newest)} DESC LIMIT 1)"
        )

    @property
    def _name(self) -> str:
        return quote(self.canonical.schema, self.canonical.name)

    def _column(self, name: str) -> Column:
        column = self.canonical.column(name)
        assert column is not None, name
        return column
