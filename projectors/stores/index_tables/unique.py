"""An index table in which a key is of one source at a time: `unique_over_sources=True`.

Each source has a row of its own for a key, with its version, as where keys begin with the source's name: versions of
two sources are never compared, and the tombstone of one keeps out its own late writes alone. A row that shows a value
is live, which a generated column says, and a unique index lets one source's row of a key be live. So the server itself
refuses the row of a second source, whatever comes first and from whichever process.

An insert by a source that has no row of the key meets the other one's in that index: the guard then gives the version
no value, which its column refuses. Where the source has a row, a tombstone, its update would make a second live row."""

from __future__ import annotations

from collections.abc import Sequence

import pymysql

from projectors.stores import slices
from projectors.stores.index_tables.table import (
    LIVE_INDEX,
    Definition,
    IndexTableShape,
    PresentTable,
    RowsDoNotFitError,
    Shape,
    table_name,
)
from projectors.views import BoundView
from viewtail.changes.patterns import SOURCE
from viewtail.changes.writes import Key
from viewtail.servers.facts import MYSQL
from viewtail.servers.literals import one_of, selected
from viewtail.servers.sessions import Connection, number_of, quote

IS_LIVE = "is_live"
KEYS_A_QUERY = 500
DUPLICATE = 1062


class UniqueShape(IndexTableShape):
    """The table of such a view, compared with the existing one. Raises DeclarationError for a view that has none."""

    unique_indexes = frozenset({LIVE_INDEX})
    writer_name = SOURCE

    def __init__(
        self, database: str, view: BoundView, server: str = MYSQL, present: PresentTable | None = None
    ) -> None:
        super().__init__(database, view, server, present)
        if present is not None and present.is_own and present.columns.keys() != {each.name for each in self.layout}:
            raise self._unlike_others(
                f"its columns are ({', '.join(each.name for each in self.layout)})", f"({', '.join(present.columns)})"
            )

    def _check_columns(self) -> None:
        super()._check_columns()
        for column in (*self.view.key, *self.view.values):
            if column.name.lower() == IS_LIVE:
                raise self._wrong(
                    f"column {column.name}: what tells which source has a key is kept under this name; rename the "
                    "column, or index a generated one with its values"
                )

    def _lay_out(self) -> None:
        super()._lay_out()
        shows = " OR ".join(f"{quote(each.name)} IS NOT NULL" for each in self._values)
        live = Definition(
            IS_LIVE,
            Shape("tinyint", None, True),
            "1 while the row shows a value; with the unique index: in one source at a time",
            made_by=f"IF({shows}, 1, NULL)",
        )
        self.layout = [*self.columns, live]

    def failure(self, error: pymysql.err.MySQLError) -> Exception | None:
        if number_of(error) != DUPLICATE:
            return super().failure(error)
        return RowsDoNotFitError(
            f"{self._label}: two sources show the same key in {self.table}, which was without its unique index "
            f"{LIVE_INDEX} for a while: somebody dropped that, or made it anew. DROP TABLE {self.table}: each source "
            "then fills it again, and one has each key"
        )

    @property
    def indexes(self) -> dict[str, tuple[str, ...]]:
        of_key = (name for name in self.key_names if name != SOURCE)
        return {**super().indexes, LIVE_INDEX: (*of_key, IS_LIVE)}


def owners(connection: Connection, database: str, view: BoundView, keys: Sequence[Key]) -> dict[Key, str]:
    """By key, the source that has the live row of it; none of keys that no source has. Raises pymysql's errors."""
    found: dict[Key, str] = {}
    at = [number for number, column in enumerate(view.key) if column.name != SOURCE]
    columns, wanted = [view.key[number] for number in at], {tuple(key[number] for number in at): key for key in keys}
    select = f"SELECT {', '.join(map(selected, columns))}, {SOURCE} FROM {quote(database, table_name(view))}"
    with connection.cursor() as cursor:
        for some in slices([*wanted], KEYS_A_QUERY):
            cursor.execute(f"{select} WHERE {IS_LIVE} = 1 AND ({one_of(columns, some)})")
            found |= {wanted[row[:-1]]: row[-1] for row in cursor.fetchall() if row[:-1] in wanted}
    return found
