"""The two tables of an index table over a list (`each=`), and how they are brought into shape.

`NAME` has one row for each value of an entity, and nothing else: readers find keys by value, as in any index table.
`NAME__version` has one row for each entity, with its version and its list. It has the same guard as other index tables.
The rows of an entity in `NAME` always follow from that list: the transaction of a write deletes them and inserts those
of the list that is stored then. A write that is not newer leaves the list, and so the rows, as they are."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

from projectors.stores.index_tables.elements import element_column
from projectors.stores.index_tables.table import (
    COLLATION,
    INDEX,
    MARK,
    IndexTableShape,
    PresentTable,
    RowsDoNotFitError,
    table_name,
)
from projectors.stores.index_tables.views import IndexTable
from projectors.views import BoundView
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind
from viewtail.servers.sessions import Connection

SUFFIX = "__version"
MAX_NAME_LENGTH = 64 - len(SUFFIX)


def element_of(view: BoundView) -> Column | None:
    """The column of one value of a view's list; None for a view that shows columns as they are."""
    declared = view.view
    if not isinstance(declared, IndexTable) or declared.each is None:
        return None
    return element_column(declared.values[0], declared.each)


def second_name(view: BoundView, *, is_beside: bool | None = None) -> str:
    """The name that the table of versions and lists has, whether or not the view has one as it is declared now."""
    return table_name(_second(view), is_beside=is_beside)


def is_of_entities(present: PresentTable) -> bool:
    """Return whether a table is one of versions and lists."""
    return present.comment.startswith(MARK) and present.has_version and INDEX not in present.indexes


def entities_of(view: BoundView) -> BoundView:
    """The table of versions and lists, as a view with one row per entity."""
    column = Column(name=view.values[0].name, kind=Kind.TEXT, declared="longtext", is_nullable=True, charset="utf8mb4")
    return replace(_second(view), values=(column,))


def _second(view: BoundView) -> BoundView:
    named = copy.copy(view.view)
    object.__setattr__(named, "name", f"{view.view.name}{SUFFIX}")
    return replace(view, view=named)


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

    def _lay_out(self) -> None:
        self._values = [
            replace(definition, shape=definition.shape._replace(is_nullable=False)) for definition in self._values
        ]
        self.columns = [*self._key, *self._values]
        self.primary = (*self.key_names, *self.value_names)
        self._indexed = [*self._values, *self._key]


class ListShape:
    """Both tables of one view, compared with those that exist. Raises DeclarationError if the view can have none."""

    def __init__(
        self,
        database: str,
        view: BoundView,
        collation: str = COLLATION,
        present: Mapping[str, PresentTable] | None = None,
    ) -> None:
        self.view = view
        _check(view)
        there = present or {}
        of_entities = entities_of(view)
        self.values = _Values(database, values_of(view), collation, there.get(table_name(view)))
        self.entities = _Entities(database, of_entities, collation, there.get(table_name(of_entities)))
        self._both = (self.entities, self.values)

    @property
    def is_there(self) -> bool:
        return all(shape.is_there for shape in self._both)

    @property
    def is_whole(self) -> bool:
        return all(shape.is_whole for shape in self._both)

    @property
    def to_come(self) -> str:
        """See `IndexTableShape.to_come`."""
        return next(filter(None, (shape.to_come for shape in self._both)), "")

    def make_ready(self, connection: Connection) -> None:
        """Run `ensure`; if values do not fit any more, empty both tables, since the view is backfilled anyway."""
        try:
            self.ensure(connection)
        except RowsDoNotFitError:
            self._begin_again(connection)

    def ensure(self, connection: Connection) -> None:
        """Create the tables, or bring them into shape. Raises PlaceRefusedError for a table that is not viewtail's."""
        for shape in self._both:
            shape.check_own()
        if self.entities.is_there != self.values.is_there:
            self._begin_again(connection)  # one table's rows mean nothing without the other's
            return
        for shape in self._both:
            shape.ensure(connection)

    def _begin_again(self, connection: Connection) -> None:
        for shape in self._both:
            shape.create_anew(connection)


def _check(view: BoundView) -> None:
    name, column = view.view.name, view.values[0]
    label = f"IndexTable({name!r})"
    if len(name) > MAX_NAME_LENGTH:
        raise DeclarationError(
            f"{label}: with each= there is a second table, {name}{SUFFIX}, whose name must have at most 64 characters: "
            f"shorten the view's to {MAX_NAME_LENGTH}"
        )
    if column.kind not in (Kind.JSON, Kind.TEXT):
        raise DeclarationError(
            f"{label}: each= is for a column that holds a JSON list, and {column.name} is {column.type_name}; leave "
            "each= out to index the column's own values"
        )
