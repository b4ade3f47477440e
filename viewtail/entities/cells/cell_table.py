"""The table of cells: one row a cell, which is written once and never changed.

The unique key (row_key, column_name, ref_key) keeps all promises: one of two writers of a cell comes through, and a
column's newest cell is one step in the index away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from viewtail.changes.errors import MisuseError, StoreError
from viewtail.changes.tables import full_name, names_of
from viewtail.servers.facts import ServerFacts
from viewtail.servers.sessions import Connection, quote

MOST_KEY = 128  # characters of a row key: Elasticsearch takes 512 bytes
MOST_NAME = 64  # the longest name of a column
MOST_REF = (1 << 62) - 1  # twice this is the largest version that a view stores
COLUMNS = "added_at, row_key, column_name, ref_key, body"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell as it is in the table.

    Args:
        added_at: its number in the order in which cells were added; concurrent ones may be in either order.
        body: JSON."""

    added_at: int
    row_key: str
    column_name: str
    ref_key: int
    body: Any


@dataclass(frozen=True, slots=True)
class CellTable:
    """Statements over one such table; `name` is 'database.table'."""

    name: str

    def __post_init__(self) -> None:
        if (names := names_of(self.name)) is None:
            raise MisuseError(f"{self.name!r}: name the table with its database, as in jog.cell")
        object.__setattr__(self, "name", full_name(*names))

    @property
    def quoted(self) -> str:
        """The table's name for SQL statements."""
        return quote(*self.schema_and_table)

    @property
    def schema_and_table(self) -> tuple[str, str]:
        """'jog.cell' -> ('jog', 'cell')"""
        names = names_of(self.name)
        assert names is not None
        return names

    @property
    def quoted_triggers(self) -> str:
        """The table beside it, in which triggers keep how far they have come."""
        schema, name = self.schema_and_table
        return quote(schema, f"{name}_trigger")

    def ddl(self, facts: ServerFacts) -> str:
        """Return the statement that creates the table where it is missing."""
        text = f"CHARACTER SET utf8mb4 COLLATE {facts.binary_collation} NOT NULL"  # 'a' and 'a ' are two rows
        return (
            f"CREATE TABLE IF NOT EXISTS {self.quoted} (\n"
            "  -- Readers of cells know it by this name. viewtail: ignore VT106\n"
            "  added_at BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'In the order of adding',\n"
            f"  row_key VARCHAR({MOST_KEY}) {text} COMMENT 'Whose cell it is',\n"
            f"  column_name VARCHAR({MOST_NAME}) {text} COMMENT 'Which one',\n"
            "  ref_key BIGINT NOT NULL COMMENT 'Of the cells of a row and column the largest is the newest',\n"
            # Stored as text: MySQL's JSON type changes some numbers to their neighbours.
            "  -- viewtail: ignore VT109\n"
            "  body LONGTEXT CHARACTER SET utf8mb4 NOT NULL COMMENT 'What it holds' CHECK (JSON_VALID(body)),\n"
            "  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When it was added',\n"
            "  -- Its name is in the errors of servers. viewtail: ignore VT108\n"
            "  UNIQUE KEY cell (row_key, column_name, ref_key)\n"
            ") ENGINE=InnoDB COMMENT 'Cells, which never change'"
        )

    def trigger_ddl(self, facts: ServerFacts) -> str:
        """Return the statement that creates the table beside it where that is missing."""
        text = f"CHARACTER SET utf8mb4 COLLATE {facts.binary_collation} NOT NULL"
        return (
            f"CREATE TABLE IF NOT EXISTS {self.quoted_triggers} (\n"
            "  -- A row a function. viewtail: ignore VT302\n"
            f"  name VARCHAR({MOST_NAME}) {text} PRIMARY KEY COMMENT 'Whose progress it is',\n"
            "  position MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL COMMENT 'Which cells its function was called for',\n"
            "  saved_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)\n"
            "    COMMENT 'When it last moved'\n"
            ") ENGINE=InnoDB COMMENT 'How far triggers over cells have come'"
        )

    def insert(self, connection: Connection, row_key: str, column_name: str, ref_key: int, body: bytes) -> None:
        """Insert a cell. Raises PyMySQL's errors: 1062 where the cell is there."""
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {self.quoted} (row_key, column_name, ref_key, body) VALUES (%s, %s, %s, %s)",
                (row_key, column_name, ref_key, body.decode()),
            )

    def at(self, connection: Connection, row_key: str, column_name: str, ref_key: int | None) -> Cell | None:
        """The cell of that ref key; None asks for the newest one."""
        of_ref, values = ("", ()) if ref_key is None else (" AND ref_key = %s", (ref_key,))
        cells = self._cells(
            connection,
            f"WHERE row_key = %s AND column_name = %s{of_ref} ORDER BY ref_key DESC LIMIT 1",
            (row_key, column_name, *values),
        )
        return cells[0] if cells else None

    def newest(self, connection: Connection, row_key: str) -> list[Cell]:
        """The newest cell of each column of a row."""
        return self._cells(
            connection,
            "WHERE row_key = %s AND (column_name, ref_key) IN "
            f"(SELECT column_name, MAX(ref_key) FROM {self.quoted} WHERE row_key = %s GROUP BY column_name)",
            (row_key, row_key),
        )

    def _cells(self, connection: Connection, behind: str, values: Sequence[object]) -> list[Cell]:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {COLUMNS} FROM {self.quoted} {behind}", values)
            return [
                Cell(added_at=added_at, row_key=row, column_name=column, ref_key=ref, body=body_of(body, added_at))
                for added_at, row, column, ref, body in cursor.fetchall()
            ]


def body_of(text: str, added_at: int) -> Any:
    """Return the body of a cell from its text. Raises StoreError where another program wrote what is no JSON."""
    try:
        return orjson.loads(text)
    except ValueError:
        raise StoreError(f"the body of the cell whose added_at is {added_at} is no JSON that can be read") from None
