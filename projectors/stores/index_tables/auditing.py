"""Reads the table that another tool keeps under the name of an index table: without versions, with SELECT alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from projectors.stores import AuditedPlace, Held, slices
from projectors.stores.index_tables.reading import (
    KEYS_A_QUERY,
    IndexTableReader,
    has_values,
    present_columns,
    stored_columns,
)
from projectors.stores.index_tables.table import table_name
from projectors.views import BoundView
from viewtail.changes.errors import StoreError
from viewtail.changes.tables import Column, Kind
from viewtail.changes.writes import Key
from viewtail.servers.literals import beyond, one_of, up_to
from viewtail.servers.sessions import Connection, quote

_TIMES = (Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP)


class AuditedTable(IndexTableReader):
    """Reads the columns that the view declares.

    The other tool's may have more digits of a second, or fewer: Debezium's JDBC sink makes all DATETIME(6). A time is
    compared as one of the declared type, unless that would cut digits that say something.
    """

    def __init__(self, connection: Connection, database: str, view: BoundView) -> None:
        super().__init__(connection, database, view)
        self._stored = stored_columns(view)[:-1]
        self._times = [(at, column.scale) for at, column in enumerate(self._stored) if column.kind in _TIMES]

    def _fetched(
        self, conditions: Sequence[str], columns: Sequence[Column] | None = None, limit: str = ""
    ) -> list[tuple[Any, ...]]:
        rows = super()._fetched(conditions, columns, limit)
        for at, digits in self._times if columns is None else ():
            rows = [(*row[:at], with_digits(row[at], digits), *row[at + 1 :]) for row in rows]
        return rows

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        width = len(self.view.key)
        return {
            row[:width]: Held(None, self._shown(row[width:]))
            for some in slices(keys, KEYS_A_QUERY)
            for row in self._fetched([one_of(self.view.key, some)])
        }

    def between(
        self, after: Key | None, upto: Key | None, newest: int
    ) -> tuple[dict[Key, tuple[object, ...]], dict[Key, int]]:
        key, width = self.view.key, len(self.view.key)
        conditions = [has_values(self.view)]
        conditions += [] if after is None else [beyond(key, after)]
        conditions += [] if upto is None else [up_to(key, upto)]
        return {row[:width]: row[width:] for row in self._fetched(conditions)}, {}


def with_digits(time: str | None, digits: int) -> str | None:
    """A time with so many digits of a second, or with more where those are not 0."""
    if time is None:
        return None
    whole, _, fraction = time.partition(".")
    fraction = fraction.rstrip("0").ljust(digits, "0")
    return f"{whole}.{fraction}" if fraction else whole


def audited_table(connection: Connection, database: str, view: BoundView) -> AuditedPlace:
    """What stands under the view's name in viewtail's database. Raises StoreError where nothing comparable does."""
    table = quote(database, table_name(view))
    present = {name.lower(): name for name in present_columns(connection, database, view)}
    if not present:
        raise StoreError(
            f"{view.id}: there is no table {table}. Name the database that it is in: VIEWTAIL_MYSQL__URL=mysql://.../DB"
        )
    *declared, version = (column.name for column in stored_columns(view))
    if missing := [name for name in declared if name.lower() not in present]:
        raise StoreError(
            f"{view.id}: the table {table} has no column {', '.join(missing)}, so it is not compared. Declare the "
            "columns that it has, or give the view another name"
        )
    others = [name for lower, name in present.items() if lower not in {*map(str.lower, declared), version.lower()}]
    return AuditedPlace(
        title=f"MySQL, the table {table}",
        reader=AuditedTable(connection, database, view),
        undeclared=dict.fromkeys(others),
    )
