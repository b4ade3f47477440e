"""The two tables of an index table over a list (`each=`), and how they become one.

`NAME` has a row for each value of an entity, and nothing else: readers find keys by value, as in any index table.
`NAME__version` has a row for each entity, with its version and its list. The guard is there, the same as that of other
index tables. What `NAME` has of an entity always follows from that list: in the transaction of a write its rows leave,
and those of the list that is there now come. A write that is not newer leaves the list as it is, and so the rows.
"""

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
    Present,
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
    """The column that one value of a view's list is in; None for a view that shows columns as they are."""
    declared = view.view
    if not isinstance(declared, IndexTable) or declared.each is None:
        return None
    return element_column(declared.values[0], declared.each)


def second_name(view: BoundView, *, is_beside: bool | None = None) -> str:
    """What the table of versions and lists is called, whether or not the view has one as it is declared now."""
    return table_name(_second(view), is_beside=is_beside)


def is_of_entities(present: Present) -> bool:
    """Whether a table has the versions and lists of entities."""
    return present.comment.startswith(MARK) and present.has_version and INDEX not in present.indexes


def entities_of(view: BoundView) -> BoundView:
    """The table of versions and lists, as a view with a row for each entity."""
    column = Column(name=view.values[0].name, kind=Kind.TEXT, declared="longtext", is_nullable=True, charset="utf8mb4")
    return replace(_second(view), values=(column,))


def _second(view: BoundView) -> BoundView:
    named = copy.copy(view.view)
    object.__setattr__(named, "name", f"{view.view.name}{SUFFIX}")
    return replace(view, view=named)


def values_of(view: BoundView) -> BoundView:
    """The table of values, as a view of them."""
    element = element_of(view)
    assert element is not None
    return replace(view, values=(element,))


class _Entities(IndexTableShape):
    """Rows of (key, list, version)."""

    def _lay_out(self) -> None:
        super()._lay_out()
        self._indexed = []

    def _type_of(self, column: Column) -> tuple[str, str | None]:
        return ("longtext", self._collation) if column in self.view.values else super()._type_of(column)


class _Values(IndexTableShape):
    """Rows of (key, value)."""

    def _lay_out(self) -> None:
        self._values = [replace(one, shape=one.shape._replace(is_nullable=False)) for one in self._values]
        self.columns = [*self._key, *self._values]
        self.primary = (*self.key_names, *self.value_names)
        self._indexed = [*self._values, *self._key]


class ListShape:
    """Both tables of one view, beside those that exist. Raises DeclarationError for a view that can have none."""

    def __init__(
        self, database: str, view: BoundView, collation: str = COLLATION, present: Mapping[str, Present] | None = None
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
        return all(one.is_there for one in self._both)

    @property
    def is_whole(self) -> bool:
        return all(one.is_whole for one in self._both)

    @property
    def to_come(self) -> str:
        """As of `IndexTableShape`."""
        return next(filter(None, (one.to_come for one in self._both)), "")

    def make_ready(self, connection: Connection) -> None:
        """`ensure`; where values do not fit any more both tables begin empty, since the view is backfilled anyway."""
        try:
            self.ensure(connection)
        except RowsDoNotFitError:
            self._begin_again(connection)

    def ensure(self, connection: Connection) -> None:
        """Create the tables, or bring them into shape. Raises PlaceRefusedError for one that is not viewtail's."""
        for one in self._both:
            one.check_own()
        if self.entities.is_there != self.values.is_there:
            self._begin_again(connection)  # rows of the one say nothing without the other's
            return
        for one in self._both:
            one.ensure(connection)

    def _begin_again(self, connection: Connection) -> None:
        for one in self._both:
            one.create_anew(connection)


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
