"""The two tables of an index table over a list (`each=`), and how they are brought into shape.

`NAME` has one row for each value of an entity, and nothing else: readers find keys by value, as in any index table.
`NAME__version` has one row for each entity, with its version and its list. It has the same guard as other index tables.
The rows of an entity in `NAME` always follow from that list: the transaction of a write deletes them and inserts those
of the list that is stored then. A write that is not newer leaves the list, and so the rows, as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from projectors.stores.index_tables.elements import element_column
from projectors.stores.index_tables.table import (
    Definition,
    IndexTableShape,
    PresentTable,
    TwoTables,
    second_name_problem,
    second_of,
    table_name,
)
from projectors.stores.index_tables.views import IndexTable
from projectors.views import BoundView
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind
from viewtail.servers.facts import MYSQL


def element_of(view: BoundView) -> Column | None:
    """The column of one value of a view's list; None for a view that shows columns as they are."""
    declared = view.view
    if not isinstance(declared, IndexTable) or declared.each is None:
        return None
    return element_column(declared.values[0], declared.each)


def entities_of(view: BoundView) -> BoundView:
    """The table of versions and lists, as a view with one row per entity."""
    column = Column(name=view.values[0].name, kind=Kind.TEXT, declared="longtext", is_nullable=True, charset="utf8mb4")
    return replace(second_of(view), values=(column,))


def values_of(view: BoundView) -> BoundView:
    """The table of values, as a view with one row per value."""
    element = element_of(view)
    assert element is not None
    return replace(view, values=(element,))


class _Entities(IndexTableShape):
    """The table with rows of (key, list, version)."""

    def _lay_out(self) -> None:
        super()._lay_out()
        self._indexed = []

    def _type_of(self, column: Column) -> tuple[str, str | None]:
        return ("longtext", self._collation) if column in self.view.values else super()._type_of(column)


class _Values(IndexTableShape):
    """The table with rows of (key, value)."""

    def _value_column(self, column: Column) -> Definition:
        definition = super()._value_column(column)
        return replace(definition, shape=definition.shape._replace(is_nullable=False))

    def _lay_out(self) -> None:
        self.columns = self.layout = [*self._key, *self._values]
        self.primary = (*self.key_names, *self.value_names)
        self._indexed = [*self._values, *self._key]


class ListShape(TwoTables):
    """Both tables of one view, compared with those that exist. Raises DeclarationError if the view can have none."""

    def __init__(
        self,
        database: str,
        view: BoundView,
        server: str = MYSQL,
        present: Mapping[str, PresentTable] | None = None,
    ) -> None:
        _check(view)
        there = present or {}
        of_entities = entities_of(view)
        self.values = _Values(database, values_of(view), server, there.get(table_name(view)))
        self.entities = _Entities(database, of_entities, server, there.get(table_name(of_entities)))
        super().__init__(view, self.entities, self.values)


def _check(view: BoundView) -> None:
    column = view.values[0]
    label = f"IndexTable({view.view.name!r})"
    if why := second_name_problem(view):
        raise DeclarationError(f"{label}: with each= {why}")
    if column.kind not in (Kind.JSON, Kind.TEXT):
        raise DeclarationError(
            f"{label}: each= is for a column that holds a JSON list, and {column.name} is {column.type_name}; leave "
            "each= out to index the column's own values"
        )
