"""Reads an index table: keys by value, rows by key, and all rows in pages of keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pymysql

from ingest.canonical import fetch_rows, select_list
from projectors.stores import Held, StoredRow, ViewReader, slices
from projectors.stores.index_tables.computed import whole_table_column
from projectors.stores.index_tables.table import plain_type, table_name
from projectors.stores.index_tables.unique import IS_LIVE, owners
from projectors.stores.index_tables.views import version_of
from projectors.stores.index_tables.whole import is_whole
from projectors.views import BoundView
from viewtail.changes.errors import (
    SourceError,
    SourceUnavailableError,
    StoreError,
    StoreUnavailableError,
    ViewtailError,
)
from viewtail.changes.tables import Column, Kind
from viewtail.changes.writes import Key
from viewtail.servers.literals import beyond, equals, literal, one_of, selected, up_to
from viewtail.servers.sessions import Connection, mend_of_denial, number_of, quote

ROWS_A_PAGE = 20_000  # examined by one query
KEYS_A_QUERY = 500

_TEXTS = (Kind.TEXT, Kind.ENUM, Kind.SET)
# Kinds of key columns that both tables sort alike, whatever their collations are.
_ORDERED = frozenset({Kind.INTEGER, Kind.BYTES, Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP, Kind.DECIMAL})


class IndexTableReader(ViewReader):
    """Reads one index table, on a session of its own."""

    def __init__(self, connection: Connection, database: str, view: BoundView) -> None:
        self.view, self.foreign = view, []
        self._connection = connection
        self._database = database
        self._stored = stored_columns(view)
        self._names = [column.name for column in view.values]
        self._version = version_of(view)

    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        by_key = self.held(keys)
        shown = [(key, by_key[key]) for key in keys if key in by_key]
        return [
            StoredRow(key, held.version or 0, self._content(held.content))
            for key, held in shown
            if held.content is not None
        ]

    def pages(self, after: Key | None = None) -> Iterator[list[StoredRow]]:
        width = len(self.view.key)
        for page in self._paged(after, self._stored):
            yield [StoredRow(row[:width], row[-1], self._content(row[width:-1])) for row in page]

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        by_key: dict[Key, Held] = {}
        width = len(self.view.key)
        for some in slices(keys, KEYS_A_QUERY):
            for row in self._fetched([one_of(self.view.key, some)]):
                version, content = row[-1], row[width:-1]
                by_key[row[:width]] = Held(version, self._shown(content), mark=version)
        return by_key

    def form_of(self, key: Key, values: tuple[Any, ...] | bytes) -> Any:
        assert isinstance(values, tuple)
        return self._shown(values)

    def _shown(self, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The values; None if all are NULL, since such a row shows nothing and may be a tombstone."""
        return None if all(value is None for value in values) else values

    def shown_keys(self) -> Iterator[list[Key]]:
        return self._paged(None, self._stored[: len(self.view.key)])

    def members(self, content: Any) -> dict[str, Any]:
        return {} if content is None else self._content(content)

    def _content(self, values: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self._names, values, strict=True))

    def _paged(self, after: Key | None, columns: Sequence[Column]) -> Iterator[list[tuple[Any, ...]]]:
        """Pages of the rows behind a key that show something; `columns` begin with those of the key."""
        width = len(self.view.key)
        own = self._own_keys if columns is not self._stored else []  # readers see the rows of all sources
        while True:
            behind = [] if after is None else [beyond(self.view.key, after)]
            page = self._fetched([has_values(self.view), *own, *behind], columns, f" LIMIT {ROWS_A_PAGE}")
            yield page
            if len(page) < ROWS_A_PAGE:
                return
            after = page[-1][:width]

    @property
    def _own_keys(self) -> list[str]:
        """The condition that a key is of the view's source: it looks up its own rows alone. None where it has none."""
        source = self.view.source
        return [equals(self.view.key[: len(source)], source)] if source else []

    @property
    def has_order(self) -> bool:
        key = self.view.key
        is_paging_key = tuple(column.name for column in key) == self.view.table.paging_key
        return is_paging_key and _ORDERED.issuperset(column.kind for column in key)

    def between(self, after: Key | None, upto: Key | None, newest: int) -> tuple[dict[Key, Any], dict[Key, int]]:
        key = self.view.key
        conditions = [f"{has_values(self.view)} OR {self._version} > {newest:d}"]
        conditions += [] if after is None else [beyond(key, after)]
        conditions += [] if upto is None else [up_to(key, upto)]
        width = len(key)
        rows = self._fetched(conditions)
        shown = {row[:width]: row[width:-1] for row in rows if self._shown(row[width:-1]) is not None}
        return shown, {row[:width]: row[-1] for row in rows}

    def _fetched(
        self, conditions: Sequence[str], columns: Sequence[Column] | None = None, limit: str = ""
    ) -> list[tuple[Any, ...]]:
        """Read rows with the reader of canonical rows, which is faster; by default all columns and the version."""
        columns = self._stored if columns is None else columns
        statement = f"SELECT {select_list(columns)} {_from(self._database, self.view, conditions)}{limit}"
        try:
            rows = fetch_rows(self._connection, statement, columns)
            self._connection.commit()  # an open transaction would hold up the next ALTER TABLE
            return rows
        except pymysql.err.MySQLError as error:
            raise self._failure(error) from None
        except ViewtailError as error:
            if isinstance(error.__context__, pymysql.err.MySQLError):  # what the reader of canonical rows met
                raise self._failure(error.__context__) from None
            raise self._unreadable(error) from None

    def _unreadable(self, error: ViewtailError) -> ViewtailError:
        if isinstance(error, SourceUnavailableError):
            return StoreUnavailableError(f"view {self.view.id}: {error}")
        return StoreError(f"view {self.view.id}: {error}") if isinstance(error, SourceError) else error

    def keys_with(self, values: Sequence[Any], limit: int) -> list[Key]:
        """Read keys from the index alone; values that are all NULL find nothing."""
        if all(value is None for value in values):
            return []
        pairs = zip(self.view.values, values, strict=False)
        conditions = [f"{quote(column.name)} <=> {literal(value, column)}" for column, value in pairs]
        return self._fetched([*conditions, *self._own_keys], self._stored[: len(self.view.key)], f" LIMIT {limit:d}")

    def owners(self, keys: Sequence[Key]) -> dict[Key, str]:
        try:
            found = owners(self._connection, self._database, self.view, keys)
            self._connection.commit()
            return found
        except pymysql.err.MySQLError as error:
            raise self._failure(error) from None

    def close(self) -> None:
        self._connection.close()

    def _failure(self, error: pymysql.err.MySQLError) -> StoreError | StoreUnavailableError:
        name, number = self.view.id, number_of(error)
        if number in (1049, 1146):
            return StoreError(
                f"view {name} has no table: it is new, or somebody dropped it. `viewtail run` creates and backfills "
                f"it, a dropped one at the next change of the view; at once: viewtail replay {name}"
            )
        if (mend := mend_of_denial(error)) is not None:
            return StoreError(f"view {name} cannot be read: {number} {error.args[-1]}. {mend}")
        return StoreUnavailableError(
            f"view {name}: the index table cannot be read now (MySQL error {number}); try again"
        )


def stored_columns(view: BoundView) -> list[Column]:
    """Key, value and version columns, as the view's table has them."""
    name = version_of(view)
    version = Column(name=name, kind=Kind.INTEGER, declared="bigint unsigned", is_nullable=False, is_unsigned=True)
    values = view.values if is_whole(view) else map(_as_stored, view.values)
    return [*map(_as_stored, view.key), *values, version]


def _as_stored(column: Column) -> Column:
    """A column of the source table as the index table has it: texts are in utf8mb4 there, labels are texts."""
    if column.kind not in _TEXTS:
        return column
    return replace(column, kind=Kind.TEXT, charset="utf8mb4", declared="varchar(1)")


def present_columns(connection: Connection, database: str, view: BoundView) -> dict[str, str]:
    """The columns of the view's table with their declared types; empty if there is no table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, column_type FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (database, table_name(view)),
        )
        return {name: plain_type(declared) for name, declared in cursor.fetchall()}


def present_values(view: BoundView, present: Mapping[str, str]) -> Iterator[Column]:
    """Yield the value columns that the view's table has, whatever declaration made them; see `present_columns`."""
    others = {version_of(view), *(column.name for column in view.key)}
    others |= {IS_LIVE} if view.is_unique_over_sources else set()
    of_table = {} if view.view.computed else {column.name: column for column in view.table.columns}
    for name, declared in present.items():
        column = of_table.get(name) or whole_table_column(name, declared) or view.table.column(name)
        if name not in others and column is not None:
            yield column.in_store


def stale_keys(database: str, view: BoundView, after: Key | None, version: int, part: Key = ()) -> str:
    """The SELECT of (key..., version) of older rows that are shown, among the next ROWS_A_PAGE rows after a key."""
    names = [f"k{at}" for at in range(len(view.key))]
    keys = ", ".join(f"{selected(column)} AS {name}" for column, name in zip(view.key, names, strict=True))
    page = (
        f"SELECT {keys}, {version_of(view)} AS v, {has_values(view)} AS is_shown {_behind(database, view, after, part)}"
    )
    return f"SELECT {', '.join(names)}, v FROM ({page} LIMIT {ROWS_A_PAGE}) AS page WHERE is_shown AND v < {version}"


def end_of_page(database: str, view: BoundView, after: Key | None, part: Key = ()) -> str:
    """The SELECT of the last key of the page after a key; it finds no row if the table ends before that."""
    keys = ", ".join(map(selected, view.key))
    return f"SELECT {keys} {_behind(database, view, after, part)} LIMIT 1 OFFSET {ROWS_A_PAGE - 1}"


def _behind(database: str, view: BoundView, after: Key | None, part: Key) -> str:
    """The rows after a key, of those whose key begins with the values of `part`."""
    rest = view.key[len(part) :]
    within = [equals(view.key[: len(part)], part)] if part else []
    return _from(database, view, within if after is None else [*within, beyond(rest, after[len(part) :])])


def _from(database: str, view: BoundView, conditions: Sequence[str]) -> str:
    where = " AND ".join(f"({condition})" for condition in conditions)
    order = ", ".join(quote(column.name) for column in view.key)
    return f"FROM {quote(database, table_name(view))} WHERE {where or 'TRUE'} ORDER BY {order}"


def has_values(view: BoundView) -> str:
    """The SQL condition for rows that show something."""
    if is_whole(view):
        return "TRUE"
    return " OR ".join(f"{quote(column.name)} IS NOT NULL" for column in view.values)
