"""The newest cells of rows that a table of cells holds, read as if each row were one of a table with a column a cell.

One SELECT for all keys that are asked for; each cell is one step in the unique key (row, column name, ref key).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from viewtail.changes.tables import Column, Table
from viewtail.servers.literals import exactly
from viewtail.servers.sessions import quote


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestCells:
    """Which columns of a table of cells make which columns of a row.

    Args:
        key: those that name the row.
        by: the one that names the cell.
        newest: of the cells of a row and name the one with the largest value counts.
        body: what the cell holds.
        names: of the cells that are read, as they are in `by`.
    """

    table: Table
    key: tuple[str, ...]
    by: str
    newest: str
    body: str
    names: tuple[str, ...]

    @property
    def rows(self) -> Table:
        """The table that the rows would be of: its key, and a column a name, NULL where there is no such cell."""
        body = self._column(self.body)
        cells = (replace(body, name=name, is_nullable=True, default=None) for name in self.names)
        columns = (*(self._column(name) for name in self.key), *cells)
        return replace(self.table, columns=columns, primary_key=self.key, unique_keys=(), unique_names=())

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the table of cells that rows are made of, in its order."""
        wanted = {*self.key, self.by, self.newest, self.body}
        return tuple(column.name for column in self.table.columns if column.name in wanted)

    @property
    def condition(self) -> str:
        """SQL, of the cells that are read."""
        return " OR ".join(f"({exactly(self._column(self.by), cell)})" for cell in self.names)

    @property
    def unique(self) -> list[tuple[str, ...]]:
        """The unique keys by which a cell of a row and name is the newest for certain, and is found at once."""
        wanted = {*self.key, self.by, self.newest}
        return [key for key in self.table.unique_keys if set(key) == wanted and key[-1] == self.newest]

    def select(self, expressions: str, where: str, behind: str = "") -> str:
        """A SELECT over such rows. `where`, as `where_all` gives it, and `behind` are of the key alone."""
        name = quote(self.table.schema, self.table.name)
        key = ", ".join(map(quote, self.key))
        mine = f"{where} AND ({self.condition})" if where else f" WHERE {self.condition}"
        keys = f"SELECT DISTINCT {key} FROM {name}{mine}{behind}"
        cells = "".join(f", {self._cell(cell)} AS {quote(cell)}" for cell in self.names)
        key_of = ", ".join(f"k.{quote(one)}" for one in self.key)
        return f"SELECT {expressions} FROM (SELECT {key_of}{cells} FROM ({keys}) k) r{behind}"

    def _cell(self, cell: str) -> str:
        name, newest = quote(self.table.schema, self.table.name), quote(self.newest)
        of_row = " AND ".join(f"{name}.{quote(one)} = k.{quote(one)}" for one in self.key)
        return (
            f"(SELECT {quote(self.body)} FROM {name} WHERE {of_row} AND {exactly(self._column(self.by), cell)} "
            f"ORDER BY {newest} DESC LIMIT 1)"
        )

    def _column(self, name: str) -> Column:
        found = self.table.column(name)
        assert found is not None, name
        return found
