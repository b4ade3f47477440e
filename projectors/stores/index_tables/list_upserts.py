"""Writes an index table over a list: the guarded upsert of versions and lists, then the rows that follow from the
lists.

All statements are sent before the first answer is read, so the server decides: it makes an entity's rows from the list
that is stored after the upsert, whether that is the new one or a newer write's. The row of the version is locked by
then, so two writers of one entity do not interfere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from projectors.stores import Item, Unfit
from projectors.stores.index_tables.elements import elements, packed
from projectors.stores.index_tables.lists import ListShape, values_of
from projectors.stores.index_tables.upserts import BLOCKS, Upsert, one_of_keys
from viewtail.servers.facts import ServerFacts
from viewtail.servers.pipelined import Prepared
from viewtail.servers.sessions import Connection, quote


class ListUpsert(Upsert):
    """The statements that write one view on one connection."""

    is_alone = is_row_whole = False

    def __init__(self, shape: ListShape, facts: ServerFacts, max_bytes: int) -> None:
        super().__init__(shape.entities, facts, max_bytes)
        self.view = shape.view
        (self._element,) = values_of(shape.view).values
        self._follow = {size: _follow(shape, size) for size in BLOCKS}
        self._following: dict[int, tuple[Prepared, ...]] = {}

    def make_ready(self, connection: Connection, rows: int) -> None:
        """Prepare all block sizes: how many rows can be packed is known only when nothing can be prepared any more."""
        for size in [block for block in self._statements if block <= rows]:
            super().make_ready(connection, size)
            prepared = self._following.get(size)
            if prepared is None or prepared[0].connection is not connection:
                self._following[size] = tuple(Prepared(connection, statement) for statement in self._follow[size])

    def executions(self, items: list[Item]) -> Iterator[tuple[list[Item], bytes | None]]:
        """Yield three statements per block: the upsert, and two that replace the rows that follow from it."""
        rows, fitting = [], []
        for item in items:
            try:
                rows.append(self._row(item))
                fitting.append(item)
            except Unfit:
                yield [item], None
        at = 0
        for written, execution in super().executions(rows):
            some = fitting[at : at + len(written)]
            at += len(written)
            yield some, execution
            if execution is not None:
                keys = [value for key, _ in written for value in key]
                for prepared in self._following[len(written)]:
                    yield some, prepared.packed(keys)

    def why_unfit(self, item: Item) -> str:
        try:
            self._row(item)
        except Unfit as error:
            return str(error)
        return super().why_unfit(item)

    def forget(self) -> None:
        super().forget()
        for prepared in self._following.values():
            for statement in prepared:
                statement.close()
        self._following = {}

    def _row(self, item: Item) -> Any:
        """The item as it is written to the table of versions and lists."""
        key, (version, values) = item
        if values is None:
            return item
        assert isinstance(values, tuple)
        return key, (version, (packed(elements(values[0], self._element)),))


def _follow(shape: ListShape, size: int) -> tuple[str, str]:
    """The two statements that replace the rows of `size` entities by those of their lists."""
    table, entities, key = shape.values.table, shape.entities.table, shape.view.key
    (value,) = shape.values.value_names
    (definition,) = (value_column for value_column in shape.values.columns if value_column.name == value)
    keys = [quote(column.name) for column in key]
    type_, collation, _ = definition.shape
    text = f" CHARACTER SET utf8mb4 COLLATE {collation}" if collation else ""
    each = (
        f"JSON_TABLE(kept.{quote(value)}, '$[*]' COLUMNS (value {type_}{text} PATH '$' ERROR ON EMPTY ERROR ON ERROR))"
    )
    clear = f"DELETE {table} FROM {table} FORCE INDEX (PRIMARY) WHERE {one_of_keys('', key, size)}"
    come = (
        f"INSERT INTO {table} ({', '.join(keys)}, {quote(value)}) "
        f"SELECT {', '.join(f'kept.{name}' for name in keys)}, listed.value "
        f"FROM {entities} AS kept FORCE INDEX (PRIMARY) JOIN {each} AS listed WHERE {one_of_keys('kept.', key, size)}"
    )
    return clear, come
