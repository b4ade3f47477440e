"""Reads an index table over a list: keys by value, and the values of an entity, from both tables in one statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pymysql

from projectors.stores import Held, StoredRow, slices
from projectors.stores.index_tables.elements import elements, packed
from projectors.stores.index_tables.lists import entities_of, values_of
from projectors.stores.index_tables.reading import KEYS_A_QUERY, ROWS_A_PAGE, IndexTableReader
from projectors.stores.index_tables.table import table_name
from projectors.stores.index_tables.views import VERSION
from projectors.views import BoundView
from viewtail.changes.tables import Kind
from viewtail.changes.writes import Key
from viewtail.servers.literals import beyond, literal, one_of, selected
from viewtail.servers.sessions import Connection, quote


class ListReader(IndexTableReader):
    """Reads a view over a list. The content of a row is the entity's values, each once, sorted."""

    def __init__(self, connection: Connection, database: str, view: BoundView) -> None:
        super().__init__(connection, database, view)
        self._values, self._entities = values_of(view), entities_of(view)
        (self._element,) = self._values.values

    def _content(self, values: tuple[Any, ...]) -> dict[str, Any]:
        return {self._element.name: list(values)}

    def pages(self, after: Key | None = None) -> Iterator[list[StoredRow]]:
        return map(self.rows, self._keys_behind(after))

    def shown_keys(self) -> Iterator[list[Key]]:
        return self._keys_behind(None)

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        return {key: held for some in slices(keys, KEYS_A_QUERY) for key, held in self._held(some).items()}

    def form_of(self, key: Key, values: tuple[Any, ...] | bytes) -> Any:
        assert isinstance(values, tuple)
        return elements(values[0], self._element) or None

    @property
    def has_order(self) -> bool:
        """False: `between` would return the values, but callers compare with a row, whose list has another form."""
        return False

    def keys_with(self, values: Sequence[Any], limit: int) -> list[Key]:
        key = self.view.key
        (value,) = values
        order = ", ".join(quote(column.name) for column in key)
        equal = f"{quote(self._element.name)} = {literal(value, self._element)}"
        return self._ask(
            f"SELECT {', '.join(map(selected, key))} FROM {self._table(self._values)} "
            f"WHERE {' AND '.join([equal, *self._own_keys])} ORDER BY {order} LIMIT {limit:d}"
        )

    def _held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        width = len(self.view.key)
        columns, name = ", ".join(map(selected, self.view.key)), quote(self._element.name)
        wanted = one_of(self.view.key, keys)
        # One statement reads both tables as of the same moment.
        rows = self._ask(
            f"SELECT {columns}, {VERSION}, {name}, NULL FROM {self._table(self._entities)} WHERE {wanted} UNION ALL "
            f"SELECT {columns}, NULL, NULL, {name} FROM {self._table(self._values)} WHERE {wanted}"
        )
        # MariaDB returns a large integer as DECIMAL, because the other half of the UNION has a NULL there.
        as_stored = int if self._element.kind is Kind.INTEGER else _as_it_is
        versions: dict[Key, tuple[int, str | None]] = {}
        values: dict[Key, list[Any]] = {}
        for row in rows:
            key, (version, listed, value) = row[:width], row[width:]
            if version is None:
                values.setdefault(key, []).append(as_stored(value))
            else:
                versions[key] = int(version), listed
        return {key: self._held_in(*versions.get(key, (0, None)), values.get(key, ())) for key in {*versions, *values}}

    def _held_in(self, version: int, listed: str | None, values: Sequence[Any]) -> Held:
        shown = tuple(sorted(values))
        fault = "" if packed(shown) == listed else "its rows are not those of its list: somebody changed one of them"
        return Held(version, shown or None, fault, mark=version)

    def _keys_behind(self, after: Key | None) -> Iterator[list[Key]]:
        key = self.view.key
        order = ", ".join(quote(column.name) for column in key)
        while True:
            where = "TRUE" if after is None else beyond(key, after)
            page = self._ask(
                f"SELECT DISTINCT {', '.join(f'{selected(column)} AS {quote(column.name)}' for column in key)} "
                f"FROM {self._table(self._values)} WHERE {where} ORDER BY {order} LIMIT {ROWS_A_PAGE}"
            )
            yield page
            if len(page) < ROWS_A_PAGE:
                return
            after = page[-1]

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(query)
                rows = list(cursor.fetchall())
            self._connection.commit()
        except pymysql.err.MySQLError as error:
            raise self._failure(error) from None
        return rows

    def _table(self, view: BoundView) -> str:
        return quote(self._database, table_name(view))


def _as_it_is(value: Any) -> Any:
    return value
