"""Which place a view has: one table, or two for a view over a list. Other modules need not ask for the kind of view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from projectors.stores import ViewReader
from projectors.stores.index_tables.list_reading import ListReader
from projectors.stores.index_tables.list_upserts import ListUpsert
from projectors.stores.index_tables.lists import ListShape, element_of, entities_of
from projectors.stores.index_tables.reading import IndexTableReader
from projectors.stores.index_tables.table import COLLATION, IndexTableShape, PresentTable, table_name
from projectors.stores.index_tables.upserts import Upsert
from projectors.views import BoundView
from viewtail.servers.facts import ServerFacts
from viewtail.servers.sessions import Connection

AnyShape: TypeAlias = IndexTableShape | ListShape


def rows_of(view: BoundView) -> BoundView:
    """The view whose table has one row per entity, with its version."""
    return view if element_of(view) is None else entities_of(view)


def table_names(view: BoundView) -> tuple[str, ...]:
    """The table with one row per entity, then the table that follows from it, if there is one."""
    first, last = table_name(rows_of(view)), table_name(view)
    return (first,) if first == last else (first, last)


def shape_of(
    database: str, view: BoundView, collation: str = COLLATION, present: Mapping[str, PresentTable] | None = None
) -> AnyShape:
    """The shape of the place, compared with the tables that exist. Raises DeclarationError if it can have none."""
    if element_of(view) is None:
        return IndexTableShape(database, view, collation, (present or {}).get(table_name(view)))
    return ListShape(database, view, collation, present)


def reader_of(connection: Connection, database: str, view: BoundView) -> ViewReader:
    """A reader of the view, over this session."""
    return (IndexTableReader if element_of(view) is None else ListReader)(connection, database, view)


def writer_of(shape: AnyShape, facts: ServerFacts, max_bytes: int) -> Upsert:
    """The statements that write the view."""
    return ListUpsert(shape, facts, max_bytes) if isinstance(shape, ListShape) else Upsert(shape, facts, max_bytes)
