"""What leaves MySQL: the index table of a view that nobody declares any more, and one entity's values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from changes.errors import StoreError, StoreUnavailableError
from changes.writes import Key
from projectors.stores.index_tables.sink import DDL_WAIT_S
from projectors.stores.index_tables.table import INDEX, MARK, VERSION, Present, present_tables, table_name
from projectors.stores.leaving import Found, Holds, Leftover, Retired, Trace, Traces
from projectors.views import BoundView
from servers.facts import facts_of
from servers.literals import one_of, selected
from servers.sessions import Connection, number_of, quote, value_of

_COUNTED = 1_000_000  # rows; more of them are not worth the wait
_LOCK_WAIT = 1205
_TABLE_MISSING = (1049, 1051, 1146)


class IndexTableLeftover(Leftover):
    """One table. It goes in one statement."""

    def __init__(self, open_: Callable[[], Connection], database: str, retired: Retired) -> None:
        self._open, self._database, self._retired = open_, database, retired
        self._connection: Connection | None = None
        self._label = f"table {quote(database, retired.name)}"

    def look(self) -> Found:
        present = self._present()
        if present is None:
            return Found()
        if why := self._why_not(present):
            return Found(left=(f"{self._label}: {why}",))
        with self._mapped("counting rows") as connection:
            counted = f"SELECT 1 FROM {quote(self._database, self._retired.name)} LIMIT {_COUNTED + 1}"
            count = int(value_of(connection, f"SELECT COUNT(*) FROM ({counted}) AS counted"))
        rows = f"more than {_COUNTED:,}" if count > _COUNTED else f"{count:,}"
        return Found(count=1, dropped=(f"{self._label}: {rows} rows, tombstones too",))

    def drop(self, went_on: Callable[[int], None]) -> None:
        present = self._present()
        if present is None or self._why_not(present):
            return
        went_on(0)
        with self._mapped("dropping the table") as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION lock_wait_timeout = {DDL_WAIT_S}")
            cursor.execute(f"DROP TABLE {quote(self._database, self._retired.name)}")
        went_on(1)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _present(self) -> Present | None:
        name = self._retired.name
        with self._mapped("looking for the table") as connection:
            return present_tables(connection, facts_of(connection), self._database, [name]).get(name)

    def _why_not(self, present: Present) -> str:
        """Why the table stays; '' where it is a leftover."""
        version = present.columns.get(VERSION)
        if not present.comment.startswith(MARK):
            return f"was not made by viewtail (its comment does not begin with '{MARK}')"
        if version is None or version.type != "bigint unsigned" or INDEX not in present.indexes:
            return f"does not look as viewtail made it (no BIGINT UNSIGNED column {VERSION}, or no index {INDEX})"
        if (other := self._retired.folded_others.get(self._retired.name.casefold())) is not None:
            return f"view {other} has it: the names differ in case alone"
        return ""

    @contextmanager
    def _mapped(self, doing: str) -> Iterator[Connection]:
        if self._connection is None:
            self._connection = self._open()
        with _mapped(f"{self._label}: {doing}"):
            yield self._connection
            self._connection.commit()


class IndexTableTraces(Traces):
    """A row an entity; its values are NULL in a tombstone, and where the entity has none."""

    def __init__(self, connection: Connection, database: str, view: BoundView) -> None:
        self._connection, self._database, self._view = connection, database, view

    def of(self, key: Key) -> list[Trace]:
        view = self._view
        columns = ", ".join(map(selected, (*view.key, *view.values)))
        query = f"SELECT {VERSION}, {columns} FROM {quote(self._database, table_name(view))}"
        rows: list[tuple[Any, ...]] = []
        try:
            with _mapped(f"view {view.id}: reading its table"), self._connection.cursor() as cursor:
                cursor.execute(f"{query} WHERE {one_of(view.key, [key])}")
                rows = [row for row in cursor.fetchall() if row[1 : len(key) + 1] == key]
                self._connection.commit()
        except _NoTable:
            pass
        place = f"table {quote(self._database, table_name(view))}"
        if not rows:
            return [Trace(place=place, holds=Holds.NOTHING)]
        has_values = any(value is not None for value in rows[0][len(key) + 1 :])
        return [Trace(place=place, holds=Holds.VALUES if has_values else Holds.TOMBSTONE, version=rows[0][0])]

    def close(self) -> None:
        self._connection.close()


class _NoTable(StoreError):
    """There is no such table."""


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
        if number in (1044, 1142):
            raise StoreError(f"{doing} is not allowed ({number}). Grant what `viewtail check` lists") from None
        raise StoreUnavailableError(f"{doing} failed with MySQL error {number}. Run the command again") from None
