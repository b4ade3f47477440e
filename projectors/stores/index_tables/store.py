"""Everything about views that are MySQL tables as a store: it is called `mysql`, and its settings are [mysql]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from projectors.stores import MIXED, Adoption, AuditedPlace, Choice, Example, Sink, Store, Unfit, ViewReader, plain
from projectors.stores.index_tables.views import MAX_NAME_LENGTH, IndexTable, MySQLTable, version_of
from projectors.views import BoundView, View
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column
from viewtail.changes.writes import Key
from viewtail.servers.addresses import MYSQL
from viewtail.servers.login import MySQLUrl, Server

if TYPE_CHECKING:
    from offsets import OffsetStore
    from offsets.mysql import Session
    from projectors.stores.access import Access
    from projectors.stores.index_tables.releasing import TableRelease
    from projectors.stores.index_tables.sink import MySQLSink
    from projectors.stores.index_tables.swapping import TableSwapping
    from projectors.stores.leaving import Leftover, Retired, Traces
    from viewtail.changes.findings import Finding
    from viewtail.servers.sessions import Connection


_COPIES_TRIED = 100  # numbers of copies rise; a pattern that has a later one's name has those before too, as a rule


class MySQLSettings(Server):
    """The MySQL server of the index tables and of viewtail's own tables."""

    url: MySQLUrl | None = Field(
        default=None, description="mysql://USER:PASSWORD@HOST:PORT/DATABASE; by default the source, database viewtail"
    )


class IndexTablesStore(Store):
    """MySQL tables, on the server of viewtail's own ones: rows and offset are one transaction."""

    name = "mysql"
    title = "MySQL"
    has_copies = True
    view_classes = (IndexTable, MySQLTable)
    section = MySQLSettings
    address = replace(MYSQL, example="mysql://USER:PASSWORD@HOST:3306/viewtail")
    default_address = "the source"
    has_own_tables = True
    shares_places = True
    typed_place = "index table"
    files = (
        "older values of index tables in InnoDB's pages, undo and redo logs, and in binlogs of their server",
        "InnoDB purges them and writes over their place, and the server removes its binlogs",
    )
    unhurried_rows = 1024  # four statements; each COMMIT of many rows may hold up the others: so few of them
    unhurried_rest = 6.0

    def problems(self, view: BoundView) -> Iterable[str]:
        from projectors.stores.index_tables.places import shape_of

        try:
            shape_of("viewtail", view)
        except DeclarationError as error:
            yield str(error)

    def no_unique_keys(self, view: View) -> str:
        """A list has several rows of a key, and a whole table is of one server."""
        if isinstance(view, IndexTable) and view.each is None:
            return ""
        return "with each=, an index table does not note which source a key is of"

    def problems_between(self, views: Sequence[BoundView]) -> Iterable[tuple[BoundView, str]]:
        """Pairs of views that need the same table; views of one name are refused before."""
        from projectors.stores.index_tables.places import table_names

        second = {name: view for view in views for name in table_names(view) if name != view.view.name}
        for view in views:
            if (other := second.get(view.view.name)) is not None:
                yield view, f"its table {view.view.name} is the second table of {other.id}; give one another name"

    def names_of_tables(self, view: View) -> Iterable[str]:
        from projectors.stores.index_tables.table import SUFFIX, name_beside

        for name in (view.name, f"{view.name}{SUFFIX}"):
            yield name
            yield from (name_beside(name, copy) for copy in range(1, _COPIES_TRIED))

    def indexed(self, view: BoundView) -> Sequence[Column]:
        from projectors.stores.index_tables.places import indexed_columns

        return indexed_columns(view)

    def leads_to(self, view: BoundView, row: Mapping[str, Any], wanted: Sequence[Any]) -> bool:
        from projectors.stores.index_tables.elements import elements
        from projectors.stores.index_tables.lists import element_of

        element = element_of(view)
        if element is None:
            return super().leads_to(view, row, wanted)
        try:
            return wanted[0] in elements(row[element.name], element)
        except Unfit:  # parked: it is not in the view
            return False

    def sink(self, access: Access, views: Sequence[BoundView], pipeline: str) -> MySQLSink:
        from projectors.stores.index_tables.sink import MySQLSink

        return MySQLSink(access.open_own, access.database, views)

    def with_offsets(self, access: Access, views: Sequence[BoundView], pipeline: str) -> tuple[Sink, OffsetStore]:
        """The offset is on the sink's connection: `save` commits the rows with it."""
        sink = self.sink(access, views, pipeline)
        sink.connect()
        return sink, sink.offsets(pipeline, access.read_position)

    def for_backfill(self, access: Access, view: BoundView, pipeline: str, session: Session) -> tuple[Sink, Session]:
        """The progress is saved in the transaction of the rows."""
        sink = self.sink(access, [view], pipeline)
        return sink, lambda: sink.connection

    def while_refilled(self, access: Access, view: BoundView) -> str:
        from projectors.stores.index_tables import places
        from projectors.stores.index_tables.table import present_tables
        from viewtail.servers.facts import facts_of

        with closing(access.open_own()) as connection:
            facts = facts_of(connection)
            present = present_tables(connection, facts, access.database, places.table_names(view))
            return places.shape_of(access.database, view, facts.name, present).to_come or MIXED

    def swapping(self, access: Access) -> TableSwapping:
        from projectors.stores.index_tables.swapping import TableSwapping

        return TableSwapping(access.open_own, access.database)

    def release(self, access: Access, view: BoundView) -> TableRelease | None:
        from projectors.stores.index_tables.releasing import TableRelease

        return TableRelease(access.open_own, access.database, view) if isinstance(view.view, MySQLTable) else None

    def left_behind(self, name: str, database: str) -> str:
        return (
            f"its table. To drop it: DROP TABLE `{database}`.`{name}`; and `{database}`.`{name}__version`, the second "
            "table of a view with each= and of a MySQLTable. Where it was rebuilt lately, also those whose names go on "
            "with __viewtail_N"
        )

    def leftover(self, access: Access, retired: Retired) -> Leftover:
        from projectors.stores.index_tables.leaving import IndexTableLeftover

        return IndexTableLeftover(access.open_own, access.database, retired)

    def traces(self, access: Access, view: BoundView) -> Traces:
        from projectors.stores.index_tables.leaving import IndexTableTraces

        return IndexTableTraces(access.open_own(), access.database, view)

    def connection(self, access: Access) -> Connection:
        return access.open_own()

    def reader_over(self, connection: Connection, access: Access, view: BoundView) -> ViewReader:
        from projectors.stores.index_tables.places import reader_of

        return reader_of(connection, access.database, view)

    def audited(self, access: Access, view: BoundView) -> AuditedPlace:
        from projectors.stores.index_tables.auditing import audited_table
        from projectors.stores.index_tables.lists import element_of

        if isinstance(view.view, MySQLTable) or element_of(view) is not None:
            return super().audited(access, view)
        return audited_table(self.connection(access), access.database, view)

    def adoption(self, access: Access, view: BoundView) -> Adoption:
        from projectors.stores.index_tables.adopting import TableAdoption
        from projectors.stores.index_tables.lists import element_of

        if isinstance(view.view, MySQLTable) or element_of(view) is not None:
            return super().adoption(access, view)
        return TableAdoption(access.open_own, access.database, view)

    def as_stored(self, access: Access, view: BoundView) -> BoundView | None:
        """The view with the value columns that its table has now, as far as they can be read."""
        from projectors.stores.index_tables.places import rows_of
        from projectors.stores.index_tables.reading import present_columns, present_values

        rows = rows_of(view)
        with closing(access.open_own()) as connection:
            present = present_columns(connection, access.database, rows)
        if version_of(rows) not in present:  # none, or what an earlier declaration made with each=
            return None
        if rows is not view:
            return view if view.values[0].name in present else None
        values = tuple(present_values(view, present))
        return replace(view, values=values) if values or not view.values else None

    def content(self, view: BoundView, key: Key, values: tuple[Any, ...] | bytes) -> dict[str, Any] | None:
        from projectors.stores.index_tables.elements import elements
        from projectors.stores.index_tables.lists import element_of

        if (element := element_of(view)) is not None:
            assert isinstance(values, tuple)
            listed = elements(values[0], element)
            return {element.name: list(listed)} if listed else None
        if not isinstance(view.view, MySQLTable) and all(value is None for value in values):
            return None
        return {column.name: value for column, value in zip(view.values, values, strict=True)}

    def checks(self, access: Access, views: Sequence[View]) -> Iterable[Finding]:
        from projectors.stores.index_tables.checks import checks

        return checks(access.own, access.database, has_views=bool(views))

    def grants(self, access: Access, views: Sequence[View]) -> Iterable[str]:
        from projectors.stores.index_tables.checks import PRIVILEGES, rights_to_swap
        from viewtail.servers.privileges import grants

        needed = grants(access.own, access.database, PRIVILEGES, "where index tables and offsets are kept")
        return [*needed, *rights_to_swap(access.own)] if views else needed

    def example(self, choice: Choice) -> Example | None:
        if choice.indexed is None:
            return None
        column = choice.indexed.name
        name = f"{choice.name}_by_{plain(column)}"[:MAX_NAME_LENGTH]
        return Example(
            view=IndexTable(name, choice.entity, value=column),
            declaration=f"IndexTable({name!r}, entity, value={column!r}),",
            comment=f"MySQL: which rows have this value? viewtail find {name} VALUE",
        )
