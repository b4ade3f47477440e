"""Reading an index table: keys by value, rows by key, and its rows in pages of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pymysql

from changes.errors import StoreError, StoreUnavailableError
from changes.writes import Key
from projectors.bound_views import BoundView
from projectors.stores import StoredRow, ViewReader
from projectors.stores.index_tables.table import VERSION
from servers.literals import beyond, literal, one_of, selected
from servers.sessions import number_of, quote

Connection: TypeAlias = "pymysql.Connection[Any]"

ROWS_A_PAGE = 20_000  # looked at by one query
KEYS_A_QUERY = 500

_TABLE_OR_DATABASE_MISSING = (1049, 1146)


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
            found.update((row.key, row) for row in self._read(f"WHERE {wanted}"))
        return [found[key] for key in keys if key in found]

    def pages(self, after: Key | None = None) -> Iterator[list[StoredRow]]:
        order = ", ".join(quote(column.name) for column in self.view.key)
        shown = " OR ".join(f"{quote(column.name)} IS NOT NULL" for column in self.view.values)
        while True:
            behind = "" if after is None else f" AND {beyond(self.view.key, after)}"
            page = self._read(f"WHERE ({shown}){behind} ORDER BY {order} LIMIT {ROWS_A_PAGE}")
            yield page
            if len(page) < ROWS_A_PAGE:
                return
            after = page[-1].key

    def keys_with(self, values: Sequence[Any], limit: int) -> list[Key]:
        return self._asked(lambda: lookup(self._connection, self._database, self.view, values, limit))

    def close(self) -> None:
        self._connection.close()

    def _read(self, condition: str) -> list[StoredRow]:
        """Rows that are shown: one whose values are all NULL may be a tombstone."""
        names = [column.name for column in self.view.values]
        rows = self._asked(lambda: _select(self._connection, self._database, self.view, condition))
        width = len(self.view.key)
        return [
            StoredRow(row[1 : width + 1], row[0], dict(zip(names, row[width + 1 :], strict=True)))
            for row in rows
            if any(value is not None for value in row[width + 1 :])
        ]

    def _asked(self, read: Callable[[], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        name = self.view.id
        try:
            found = read()
            self._connection.commit()  # an open transaction would hold up the next ALTER TABLE
        except pymysql.err.MySQLError as error:
            number = number_of(error)
            if number in _TABLE_OR_DATABASE_MISSING:
                raise StoreError(f"view {name} has no table yet; `viewtail run` makes and fills it") from None
            if number in (1044, 1142):
                why = f"the store's user may not read it ({number}); see `viewtail check`"
                raise StoreError(f"view {name}: {why}") from None
            why = f"the index table cannot be read now (MySQL error {number}); try again"
            raise StoreUnavailableError(f"view {name}: {why}") from None
        return found


def lookup(
    connection: Connection, database: str, view: BoundView, values: Sequence[Any], limit: int | None = None
) -> list[Key]:
    """The keys of the entities with these values, in key order, read from the index alone.

    `values` are those of the first value columns, in viewtail's forms; nothing is found by NULL alone.
    Raises pymysql's errors as they are.
    """
    if not values or all(value is None for value in values):
        return []
    pairs = zip(view.values, values, strict=False)
    where = " AND ".join(
        f"{quote(column.name)} {'IS NULL' if value is None else '= ' + literal(value, column)}"
        for column, value in pairs
    )
    keys = ", ".join(map(selected, view.key))
    order = ", ".join(quote(column.name) for column in view.key)
    query = f"SELECT {keys} FROM {quote(database, view.view.name)} WHERE {where} ORDER BY {order}"
    with connection.cursor() as cursor:
        cursor.execute(query if limit is None else f"{query} LIMIT {limit:d}")
        return list(cursor.fetchall())


def _select(connection: Connection, database: str, view: BoundView, condition: str) -> list[tuple[Any, ...]]:
    """(version, key..., values...) of the rows that meet a condition."""
    columns = ", ".join(map(selected, (*view.key, *view.values)))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {VERSION}, {columns} FROM {quote(database, view.view.name)} {condition}")
        return list(cursor.fetchall())


def stale_keys(database: str, view: BoundView, after: Key | None, version: int) -> str:
    """SELECT of (key..., version) of what is shown and older, among the next ROWS_A_PAGE rows after a key."""
    names = [f"k{at}" for at in range(len(view.key))]
    keys = ", ".join(f"{selected(column)} AS {name}" for column, name in zip(view.key, names, strict=True))
    shown = " OR ".join(f"{quote(column.name)} IS NOT NULL" for column in view.values)
    page = f"SELECT {keys}, {VERSION} AS v, {shown} AS is_shown {_page(database, view, after)} LIMIT {ROWS_A_PAGE}"
    return f"SELECT {', '.join(names)}, v FROM ({page}) AS page WHERE is_shown AND v < {version}"


def end_of_page(database: str, view: BoundView, after: Key | None) -> str:
    """SELECT of the key that ends the page after a key; no row when the table ends before it."""
    keys = ", ".join(map(selected, view.key))
    return f"SELECT {keys} {_page(database, view, after)} LIMIT 1 OFFSET {ROWS_A_PAGE - 1}"


def _page(database: str, view: BoundView, after: Key | None) -> str:
    where = "" if after is None else f" WHERE {beyond(view.key, after)}"
    order = ", ".join(quote(column.name) for column in view.key)
    return f"FROM {quote(database, view.view.name)}{where} ORDER BY {order}"
