"""The two tables of a MySQLTable view, and how they are brought into shape.

`NAME` has a row for each entity that is there: its columns, with the types that the entity's table has, and the version
in an invisible column, which `SELECT *` leaves out. `NAME__version` has the tombstones: the key and version of each
entity that was deleted. Readers need no filter, and see one table.

Of an entity's row and its tombstone the newer one counts. No transaction of a sink leaves a row beside a newer
tombstone; an older tombstone may stay beside a row. A key that is a text, or has labels, is VARCHAR in a binary
collation, as in index tables: under another one an update from abc to ABC loses the entity."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pymysql

from projectors.stores import PlaceRefusedError
from projectors.stores.index_tables.other_kind import nearest_collation, nearest_type
from projectors.stores.index_tables.table import (
    INVISIBLE,
    MARK_OF_WHOLE,
    Definition,
    IndexTableShape,
    PresentTable,
    Shape,
    TwoTables,
    plain_type,
    second_name_problem,
    second_of,
    table_name,
)
from projectors.stores.index_tables.views import INVISIBLE_VERSION, MySQLTable
from projectors.views import BoundView
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import TEXTS_IN_BINARY, Column, Kind
from viewtail.servers.facts import MYSQL
from viewtail.servers.sessions import number_of

_WITHOUT_LENGTH = (Kind.JSON, Kind.GEOMETRY, Kind.VECTOR)  # an index of other kinds than those here takes them
_LONG = re.compile("(tiny|medium|long|)(text|blob)")
_TOO_LONG = frozenset({1071, 1118})


def is_whole(view: BoundView) -> bool:
    """Return whether the view is a whole table."""
    return isinstance(view.view, MySQLTable)


def tombstones_of(view: BoundView) -> BoundView:
    """The table of tombstones, as a view without values. No column of the rows has the name of its versions either."""
    return replace(second_of(view, INVISIBLE_VERSION), values=())


def key_collations(view: BoundView) -> list[tuple[str, str]]:
    """The key columns whose texts the entity's table compares otherwise than by their bytes, with the collation."""
    return [
        (column.name, column.collation)
        for column in view.key
        if column.collation is not None and not column.collation.endswith("_bin")
    ]


class _Rows(IndexTableShape):
    """The table with the entity's rows."""

    mark = MARK_OF_WHOLE
    computing = "columns={'NAME': 'TYPE'}, of=lambda row: ..."

    def _lay_out(self) -> None:
        super()._lay_out()
        self._indexed = []
        declared = self._declared
        by_name = {definition.name: definition for definition in (*self._key, *self._values)}
        first = [name for name in self.key_names if name not in declared.names]
        order = [*first, *declared.names] if declared.names else self._as_in_the_entity()
        self.layout = [*(by_name[name] for name in order), self._version]

    def _as_in_the_entity(self) -> list[str]:
        if self._declared.made:
            return [*self.key_names, *self.value_names]
        shown = {*self.key_names, *self.value_names}
        return [column.name for column in self.view.table.columns if column.name in shown]

    @property
    def indexes(self) -> dict[str, tuple[str, ...]]:
        return dict(self._declared.indexes)

    @property
    def _declared(self) -> MySQLTable:
        assert isinstance(self.view.view, MySQLTable)
        return self.view.view

    def check_own(self) -> None:
        super().check_own()
        unique = sorted((self._present.unique if self._present is not None else set()) - {"PRIMARY"})
        if unique:
            raise PlaceRefusedError(
                f"{self._label}: {self.table} has a unique index that viewtail did not make, {unique[0]}. A write of "
                "one row could change another one by it, since MySQL takes either for the same. DROP INDEX "
                f"{unique[0]} ON {self.table}; add it when the table is released (viewtail cutover)"
            )

    def _key_column(self, column: Column) -> Definition:
        return replace(super()._key_column(column), comment="", extra=self._extra_of(column))

    def _value_column(self, column: Column) -> Definition:
        type_ = plain_type(column.declared)
        is_text = column.kind in (Kind.TEXT, Kind.ENUM, Kind.SET) and type_ not in TEXTS_IN_BINARY
        collation = nearest_collation(column.collation or self._collation, self._server) if is_text else None
        type_, collation = nearest_type(type_, self._server) or (type_, collation)
        shape = Shape(type_, collation, column.is_nullable)
        return Definition(column.name, shape, "", self._extra_of(column))

    def _version_column(self) -> Definition:
        return replace(super()._version_column(), extra=INVISIBLE)

    def _extra_of(self, column: Column) -> str:
        return "AUTO_INCREMENT" if column.name == self._declared.auto_increment else ""

    def _check_columns(self) -> None:
        if why := second_name_problem(self.view):
            raise self._wrong(why)
        if self._declared.made:
            self._check_computed([column.name.lower() for column in self.view.values], self._key_folded)
        for column in (*self.view.key, *self.view.values):
            if column.name.lower() == INVISIBLE_VERSION:
                raise self._wrong(f"column {column.name} has the name under which viewtail keeps versions; rename it")
            if column.fields:
                raise self._wrong(
                    f"{column.name} is what related tables have, which no column holds; compute from it what the table "
                    "is to show: columns={'NAME': 'TYPE'}, of=lambda row: {...}"
                )
        for name, columns in self._declared.indexes:
            self._check_index(name, columns)
        if self._declared.auto_increment is not None:
            self._check_auto_increment(self._declared.auto_increment)

    @property
    def _key_folded(self) -> set[str]:
        return {column.name.lower() for column in self.view.key}

    def _check_index(self, name: str, columns: Sequence[str]) -> None:
        for column_name in columns:
            column = self._column(column_name)
            if column is None:
                names = ", ".join(column.name for column in (*self.view.key, *self.view.values))
                raise self._wrong(f"index {name} is over {column_name}, which the table has not; it has {names}")
            if column.kind in _WITHOUT_LENGTH or _LONG.match(column.declared.lower()):
                raise self._wrong(
                    f"index {name} is over {column_name}, a {column.type_name}, which an index cannot hold whole; "
                    "index another column, or add an index of its beginning when the table is released"
                )

    def _check_auto_increment(self, name: str) -> None:
        column = self._column(name)
        is_number = column is not None and column.kind is Kind.INTEGER and "int" in column.declared
        if column is None or not is_number or column.is_nullable:
            raise self._wrong(f"auto_increment names an integer column of the table that is NOT NULL, and not {name}")
        firsts = {self.view.key[0].name, *(columns[0] for _, columns in self._declared.indexes)}
        if name not in firsts:
            raise self._wrong(
                f"auto_increment={name!r}: MySQL gives out numbers only by the first column of the key or of an index; "
                f"add indexes={{'{name[:60]}_idx': ['{name}']}}"
            )

    def _column(self, name: str) -> Column | None:
        return next((column for column in (*self.view.key, *self.view.values) if column.name == name), None)

    def failure(self, error: pymysql.err.MySQLError) -> Exception | None:
        number = number_of(error)
        if number in _TOO_LONG:
            return self._wrong(f"MySQL refuses {self.table}: {error.args[-1]}")
        return super().failure(error)

    def _too_long(self) -> DeclarationError:
        return self._wrong("its key is longer than an index may be")


class _Tombstones(IndexTableShape):
    """The table with rows of (key, version)."""

    mark = MARK_OF_WHOLE

    def _lay_out(self) -> None:
        super()._lay_out()
        self._indexed = []

    def _check_columns(self) -> None:
        """What the rows' table has for a key, this one can have."""


class WholeShape(TwoTables):
    """Both tables of one view, compared with those that exist. Raises DeclarationError if the view can have none."""

    def __init__(
        self,
        database: str,
        view: BoundView,
        server: str = MYSQL,
        present: Mapping[str, PresentTable] | None = None,
    ) -> None:
        there, beside = present or {}, tombstones_of(view)
        self.rows = _Rows(database, view, server, there.get(table_name(view)))
        self.tombstones = _Tombstones(database, beside, server, there.get(table_name(beside)))
        super().__init__(view, self.tombstones, self.rows)
