"""Reading an index table: keys by value, rows by key, and its rows in pages of keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pymysql

from changes.errors import StoreError, StoreUnavailableError
from changes.writes import Key
from projectors.stores import StoredRow, ViewReader
from projectors.stores.index_tables.table import VERSION, table_name
from projectors.views import BoundView
from servers.literals import beyond, literal, one_of, selected
from servers.sessions import Connection, number_of, quote

ROWS_A_PAGE = 20_000  # looked at by one query
KEYS_A_QUERY = 500


class IndexTableReader(ViewReader):
    """One index table, on a session of the reader's own."""

    def __init__(self, connection: Connection, database: str, view: BoundView) -> None:
        self.view = view
        self._connection = connection
        self._database = database

    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        found: dict[Key, StoredRow] = {}
        for start in range(0, len(keys), KEYS_A_QUERY):
            wanted = one_of(self.view.key, keys[start : start + KEYS_A_QUERY])
            found.update((row.key, row) for row in self._read([wanted]))
        return [found[key] for key in keys if key in found]

    def pages(self, after: Key | None = None) -> Iterator[list[StoredRow]]:
        while True:
            behind = [] if after is None else [beyond(self.view.key, after)]
            page = self._read([_has_values(self.view), *behind], f" LIMIT {ROWS_A_PAGE}")
            yield page
            if len(page) < ROWS_A_PAGE:
                return
            after = page[-1].key

    def keys_with(self, values: Sequence[Any], limit: int) -> list[Key]:
        """Read from the index alone; nothing is found by NULL alone."""
        if all(value is None for value in values):
            return []
        pairs = zip(self.view.values, values, strict=False)
        conditions = [f"{quote(column.name)} <=> {literal(value, column)}" for column, value in pairs]
        keys = ", ".join(map(selected, self.view.key))
        return self._ask(f"SELECT {keys} {_from(self._database, self.view, conditions)} LIMIT {limit:d}")

    def close(self) -> None:
        self._connection.close()

    def _read(self, conditions: Sequence[str], limit: str = "") -> list[StoredRow]:
        """Rows that are shown: one whose values are all NULL may be a tombstone."""
        columns = ", ".join(map(selected, (*self.view.key, *self.view.values)))
        rows = self._ask(f"SELECT {VERSION}, {columns} {_from(self._database, self.view, conditions)}{limit}")
        names = [column.name for column in self.view.values]
        width = len(self.view.key)
        return [
            StoredRow(row[1 : width + 1], row[0], dict(zip(names, row[width + 1 :], strict=True)))
            for row in rows
            if any(value is not None for value in row[width + 1 :])
        ]

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        name = self.view.id
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(query)
                found = list(cursor.fetchall())
            self._connection.commit()  # an open transaction would hold up the next ALTER TABLE
        except pymysql.err.MySQLError as error:
            number = number_of(error)
            if number in (1049, 1146):
                raise StoreError(f"view {name} has no table yet; `viewtail run` creates and backfills it") from None
            if number in (1044, 1142):
                why = f"the store's user may not read it ({number}); see `viewtail check`"
                raise StoreError(f"view {name}: {why}") from None
            why = f"the index table cannot be read now (MySQL error {number}); try again"
            raise StoreUnavailableError(f"view {name}: {why}") from None
        return found


def present_columns(connection: Connection, database: str, view: BoundView) -> frozenset[str]:
    """The names of the columns of its table; none where there is no table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
            (database, table_name(view)),
        )
        return frozenset(name for (name,) in cursor.fetchall())


def stale_keys(database: str, view: BoundView, after: Key | None, version: int) -> str:
    """SELECT of (key..., version) of what is shown and older, among the next ROWS_A_PAGE rows after a key."""
    names = [f"k{at}" for at in range(len(view.key))]
    keys = ", ".join(f"{selected(column)} AS {name}" for column, name in zip(view.key, names, strict=True))
    page = f"SELECT {keys}, {VERSION} AS v, {_has_values(view)} AS is_shown {_behind(database, view, after)}"
    return f"SELECT {', '.join(names)}, v FROM ({page} LIMIT {ROWS_A_PAGE}) AS page WHERE is_shown AND v < {version}"


def end_of_page(database: str, view: BoundView, after: Key | None) -> str:
    """SELECT of the key that ends the page after a key; no row when the table ends before it."""
    keys = ", ".join(map(selected, view.key))
    return f"SELECT {keys} {_behind(database, view, after)} LIMIT 1 OFFSET {ROWS_A_PAGE - 1}"


def _behind(database: str, view: BoundView, after: Key | None) -> str:
    return _from(database, view, [] if after is None else [beyond(view.key, after)])


def _from(database: str, view: BoundView, conditions: Sequence[str]) -> str:
    where = " AND ".join(f"({condition})" for condition in conditions)
    order = ", ".join(quote(column.name) for column in view.key)
    return f"FROM {quote(database, table_name(view))} WHERE {where or 'TRUE'} ORDER BY {order}"


def _has_values(view: BoundView) -> str:
    return " OR ".join(f"{quote(column.name)} IS NOT NULL" for column in view.values)
