"""Which place a view has: one table, or two for a view over a list and for a whole table.

Other modules need not ask for the kind of view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from projectors.stores import ViewReader
from projectors.stores.index_tables.list_reading import ListReader
from projectors.stores.index_tables.list_upserts import ListUpsert
from projectors.stores.index_tables.lists import ListShape, element_of, entities_of
from projectors.stores.index_tables.reading import IndexTableReader
from projectors.stores.index_tables.table import IndexTableShape, PresentTable, second_name, table_name
from projectors.stores.index_tables.unique import UniqueShape
from projectors.stores.index_tables.upserts import Upsert
from projectors.stores.index_tables.views import VERSION, version_of
from projectors.stores.index_tables.whole import WholeShape, is_whole
from projectors.stores.index_tables.whole_reading import WholeReader, indexed
from projectors.stores.index_tables.whole_upserts import WholeUpsert
from projectors.views import BoundView
from viewtail.changes.tables import Column
from viewtail.servers.facts import MYSQL, ServerFacts
from viewtail.servers.sessions import Connection, quote

AnyShape: TypeAlias = IndexTableShape | ListShape | WholeShape


def rows_of(view: BoundView) -> BoundView:
    """The view whose table has one row per entity, with its version."""
    return view if element_of(view) is None else entities_of(view)


def table_names(view: BoundView) -> tuple[str, ...]:
    """The table with one row per entity, then the other one, if there is one."""
    if is_whole(view):
        return table_name(view), second_name(view)
    first, last = table_name(rows_of(view)), table_name(view)
    return (first,) if first == last else (first, last)


def removals(database: str, view: BoundView, key: str, version: int) -> Iterator[str]:
    """The statements that take away all that the tables have of a key, as long as its version is this one.

    Of a row beside a newer tombstone, that is the tombstone's."""
    first, *behind = (quote(database, name) for name in table_names(view))
    if is_whole(view):
        yield f"DELETE FROM {first} WHERE {key} AND {version_of(view)} <= {version:d}"
        yield f"DELETE FROM {behind[0]} WHERE {key} AND {version_of(view)} <= {version:d}"
        return
    yield f"DELETE FROM {first} WHERE {key} AND {VERSION} = {version:d}"
    for table in behind:
        yield f"DELETE FROM {table} WHERE {key} AND NOT EXISTS (SELECT 1 FROM {first} WHERE {key})"


def shape_of(
    database: str, view: BoundView, server: str = MYSQL, present: Mapping[str, PresentTable] | None = None
) -> AnyShape:
    """The shape of the place, compared with the tables that exist. Raises DeclarationError if it can have none."""
    if is_whole(view):
        return WholeShape(database, view, server, present)
    if element_of(view) is None:
        kind = UniqueShape if view.is_unique_over_sources else IndexTableShape
        return kind(database, view, server, (present or {}).get(table_name(view)))
    return ListShape(database, view, server, present)


def reader_of(connection: Connection, database: str, view: BoundView) -> ViewReader:
    """A reader of the view, over this session."""
    if is_whole(view):
        return WholeReader(connection, database, view)
    return (IndexTableReader if element_of(view) is None else ListReader)(connection, database, view)


def writer_of(shape: AnyShape, facts: ServerFacts, max_bytes: int) -> Upsert:
    """The statements that write the view."""
    if isinstance(shape, WholeShape):
        return WholeUpsert(shape, facts, max_bytes)
    return ListUpsert(shape, facts, max_bytes) if isinstance(shape, ListShape) else Upsert(shape, facts, max_bytes)


def indexed_columns(view: BoundView) -> Sequence[Column]:
    """The columns by whose values readers find keys."""
    if is_whole(view):
        return indexed(view)
    element = element_of(view)
    return view.values if element is None else (element,)
