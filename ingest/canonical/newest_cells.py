"""The newest cells of rows that a table of cells holds, read as if each row were one of a table with a column a cell.

One SELECT for all keys that are asked for; each cell is one step in the unique key (row, column name, ref key).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from changes.tables import Column, Table
from servers.literals import exactly
from servers.sessions import quote


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

    def select(self, expressions: str, where: str, behind: str = "") -> str:
        """A SELECT over such rows. `where`, as `where_all` gives it, and `behind` are of the key alone."""
        name = quote(self.table.schema, self.table.name)
        key = ", ".join(map(quote, self.key))
        one_of = " OR ".join(f"({exactly(self._column(self.by), cell)})" for cell in self.names)
        mine = f"{where} AND ({one_of})" if where else f" WHERE {one_of}"
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


def unusable(cells: NewestCells) -> Sequence[str]:
    """Why rows cannot be read so, in words; none where they can."""
    wanted = {*cells.key, cells.by, cells.newest}
    if any(set(key) == wanted and key[-1] == cells.newest for key in cells.table.unique_keys):
        return ()
    named = ", ".join((*cells.key, cells.by, cells.newest))
    why = "so which cell of a row is the newest is not certain, and each would be looked for in the whole table"
    return (f"{cells.table.full_name} has no unique key ({named}), {why}",)
