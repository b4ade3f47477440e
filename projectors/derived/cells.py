"""The newest cells of rows that a table of cells holds, read as if each row were one of a table with a column a cell.

One SELECT for all keys that are asked for; each cell is one step in the unique key (row, column name, ref key).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

from ingest.canonical.rows import fetch_rows, select_list
from projectors.derived import DerivedRows, Part
from viewtail.changes.batches import Refused, Row, RowChanges, unreadable_in
from viewtail.changes.tables import Column, Table
from viewtail.changes.writes import Key
from viewtail.servers.literals import exactly
from viewtail.servers.sessions import quote


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

    @property
    def condition(self) -> str:
        """SQL, of the cells that are read."""
        return " OR ".join(f"({exactly(self._column(self.by), cell)})" for cell in self.names)

    @property
    def unique(self) -> list[tuple[str, ...]]:
        """The unique keys by which a cell of a row and name is the newest for certain, and is found at once."""
        wanted = {*self.key, self.by, self.newest}
        return [key for key in self.canonical.unique_keys if set(key) == wanted and key[-1] == self.newest]

    def belongs(self, columns: Sequence[str]) -> Callable[[Row], bool] | None:
        if self.by not in columns:  # rows that are made of the cells
            return None
        name_at, names = columns.index(self.by), frozenset(self.names)
        return lambda row: row[name_at] in names

    def touched(self, events: Sequence[RowChanges | Refused]) -> dict[Key, int]:
        """Each key under the version of the last change of one of its cells."""
        keys: dict[Key, int] = {}
        for event in events:
            columns = event.followed.columns
            at, belongs = [columns.index(name) for name in self.key], self.belongs(columns)
            for row in event.rows:
                key = tuple([row[place] for place in at])
                if (belongs is None or belongs(row)) and unreadable_in(key) is None:
                    keys[key] = max(event.version, keys.get(key, 0))
        return keys

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
        mine = f"{where} AND ({self.condition})" if where else f" WHERE {self.condition}"
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
