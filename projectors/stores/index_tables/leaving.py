"""Removes data from MySQL: the index table of a view that is no longer declared. Finds what is left of one entity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql

from projectors.stores.index_tables import places
from projectors.stores.index_tables.sink import DDL_WAIT_S
from projectors.stores.index_tables.table import (
    INDEX,
    MARK,
    SUFFIX,
    PresentTable,
    name_beside,
    present_tables,
    table_name,
)
from projectors.stores.index_tables.views import INVISIBLE_VERSION, VERSION
from projectors.stores.index_tables.whole import is_whole
from projectors.stores.leaving import Holds, LeftoverParts, Part, Retired, Trace, Traces
from projectors.views import BoundView
from viewtail.changes.counting import counted
from viewtail.changes.errors import StoreError, StoreUnavailableError
from viewtail.changes.writes import Key
from viewtail.servers.facts import facts_of
from viewtail.servers.literals import one_of, selected
from viewtail.servers.sessions import Connection, lacks_rights, number_of, quote, value_of

_COUNTED = 1_000_000  # rows; counting more is not worth the wait
_LOCK_WAIT = 1205
_TABLE_MISSING = (1049, 1051, 1146)


class IndexTableLeftover(LeftoverParts):
    """The tables of a retired view and its copies: one, or two. One statement drops them all."""

    kind = "table"

    def __init__(self, open_: Callable[[], Connection], database: str, retired: Retired) -> None:
        self._open, self._database, self._retired = open_, database, retired
        self._connection: Connection | None = None
        second = f"{retired.name}{SUFFIX}"
        self._first = [retired.name, *(name_beside(retired.name, copy) for copy in retired.copies)]
        self._second = [second, *(name_beside(second, copy) for copy in retired.copies)]

    def parts(self) -> Iterator[Part]:
        names = [*self._first, *self._second]
        with self._mapped("looking for the table") as connection:
            present = present_tables(connection, facts_of(connection), self._database, names)
        others = self._retired.folded_others
        for name in self._first:
            if (table := present.get(name)) is not None:
                yield Part(name, _why_not(table) or _other(others.get(name.casefold())) or None)
        for name in self._second:
            second = present.get(name)
            # If a view has that name, the table is that view's, whether the view remains or was retired too.
            if second is not None and second.is_second and name.casefold() not in others:
                yield Part(name)

    def label(self, name: str) -> str:
        return super().label(quote(self._database, name))

    def described(self, name: str) -> str:
        with self._mapped("counting rows") as connection:
            first = f"SELECT 1 FROM {quote(self._database, name)} LIMIT {_COUNTED + 1}"
            count = int(value_of(connection, f"SELECT COUNT(*) FROM ({first}) AS counted"))
        return f"{f'more than {_COUNTED:,} rows' if count > _COUNTED else counted(count, 'rows')}, tombstones too"

    def drop(self, went_on: Callable[[int], None]) -> None:
        """Drop all in one statement: a list without its second table would be no view."""
        if names := self.to_drop():
            went_on(0)
            self._drop(names)
            went_on(len(names))

    def remove(self, name: str) -> None:
        self._drop([name])

    def _drop(self, names: Sequence[str]) -> None:
        with self._mapped("dropping the table") as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION lock_wait_timeout = {DDL_WAIT_S}")
            cursor.execute(f"DROP TABLE {', '.join(quote(self._database, name) for name in names)}")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _mapped(self, doing: str) -> Iterator[Connection]:
        if self._connection is None:
            self._connection = self._open()
        with _mapped(f"{self.label(self._retired.name)}: {doing}"):
            yield self._connection
            self._connection.commit()


class IndexTableTraces(Traces):
    """Finds the row of an entity; its values are NULL in a tombstone, and if the entity has none.

    A view over a list has a second table with one row per value, and none for an entity without values."""

    def __init__(self, connection: Connection, database: str, view: BoundView) -> None:
        self._connection, self._database, self._view = connection, database, view

    def of(self, key: Key) -> list[Trace]:
        if is_whole(self._view):
            return self._of_whole(key)
        rows_of = places.rows_of(self._view)
        first = self._entity(table_name(rows_of), [column.name for column in rows_of.values], key)
        return [first, *(self._values(name, key, first.version) for name in places.table_names(self._view)[1:])]

    def _of_whole(self, key: Key) -> list[Trace]:
        """Both tables show what they have by a row that is there."""
        names = places.table_names(self._view)
        return [self._row(name, holds, key) for name, holds in zip(names, (Holds.VALUES, Holds.TOMBSTONE), strict=True)]

    def _row(self, name: str, holds: Holds, key: Key) -> Trace:
        place, rows = f"table {quote(self._database, name)}", self._rows(name, [INVISIBLE_VERSION], key)
        return Trace(place=place, holds=holds, version=rows[0][0]) if rows else Trace(place=place, holds=Holds.NOTHING)

    def _entity(self, name: str, values: Sequence[str], key: Key) -> Trace:
        rows = self._rows(name, [VERSION, *values], key)
        place = f"table {quote(self._database, name)}"
        if not rows:
            return Trace(place=place, holds=Holds.NOTHING)
        version, *row_values = rows[0]
        has_values = any(value is not None for value in row_values)
        return Trace(place=place, holds=Holds.VALUES if has_values else Holds.TOMBSTONE, version=version)

    def _values(self, name: str, key: Key, version: int | None) -> Trace:
        """Find the rows that follow from the entity's row; they are written with it, so they have its version."""
        holds = Holds.VALUES if self._rows(name, [], key) else Holds.NOTHING
        return Trace(place=f"table {quote(self._database, name)}", holds=holds, version=version)

    def _rows(self, name: str, columns: Sequence[str], key: Key) -> list[tuple[Any, ...]]:
        """These columns of an entity's rows; empty if the table does not exist."""
        of_key = self._view.key
        shown = ", ".join([*map(selected, of_key), *map(quote, columns)])
        try:
            with _mapped(f"view {self._view.id}: reading its table"), self._connection.cursor() as cursor:
                cursor.execute(f"SELECT {shown} FROM {quote(self._database, name)} WHERE {one_of(of_key, [key])}")
                rows = [row[len(key) :] for row in cursor.fetchall() if row[: len(key)] == key]
                self._connection.commit()
        except _NoTable:
            return []
        return rows

    def close(self) -> None:
        self._connection.close()


def _why_not(present: PresentTable) -> str:
    """The reason why this table cannot be a view's first table that viewtail made; '' if it can."""
    if not present.is_own:
        return f"was not made by viewtail (its comment does not begin with '{MARK}')"
    if present.has_version(INVISIBLE_VERSION) and not present.is_second:
        return ""
    index = frozenset(present.indexes.get(INDEX, ()))
    is_of_values = index == frozenset(present.columns) == frozenset(present.indexes.get("PRIMARY", ()))
    if index and (present.has_version() or is_of_values):
        return ""
    return f"does not look as viewtail made it (no BIGINT UNSIGNED column {VERSION}, or no index {INDEX})"


def _other(view: str | None) -> str:
    return "" if view is None else f"view {view} has it: the names differ in case alone"


class _NoTable(StoreError):
    """The table does not exist."""


@contextmanager
def _mapped(doing: str) -> Iterator[None]:
    try:
        yield
    except pymysql.err.MySQLError as error:
        number = number_of(error)
        if number in _TABLE_MISSING:
            raise _NoTable(f"{doing} failed: the table is gone. Run the command again") from None
        if number == _LOCK_WAIT:
            raise StoreUnavailableError(
                f"{doing} waited {DDL_WAIT_S} s for a session that uses the table. End that session's transaction "
                "(SHOW PROCESSLIST), then run the command again"
            ) from None
        if lacks_rights(error):
            raise StoreError(f"{doing} is not allowed ({number}). Grant what `viewtail check` lists") from None
        raise StoreUnavailableError(f"{doing} failed with MySQL error {number}. Run the command again") from None
