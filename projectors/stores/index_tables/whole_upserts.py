"""Writes a MySQLTable view: the guarded upsert of rows or tombstones, then what follows where a key has both.

Rows and tombstones of a key are in two tables, so no upsert sees both. Each write puts its own row first, and then
deletes the older of the two, in one transaction; nobody else sees what is in between. The DELETE locks what it reads.
So of two writers of one key the later one waits, and meets what the other has committed: the newest write stays,
whoever comes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from projectors.stores import Item, takes_equal_versions
from projectors.stores.index_tables.upserts import BLOCKS, Upsert, one_of_keys
from projectors.stores.index_tables.whole import WholeShape
from viewtail.changes.tables import Column, Kind
from viewtail.servers.facts import ServerFacts
from viewtail.servers.pipelined import Prepared
from viewtail.servers.sessions import Connection, quote

# Numbers in a range of keys, for each that was written: a range costs the server a tenth of a list, and more where it
# is full of other keys' tombstones.
MOST_SPREAD = 4
_RANGE = 0


class WholeUpsert(Upsert):
    """The statements that write one view on one connection."""

    is_alone = False

    def __init__(self, shape: WholeShape, facts: ServerFacts, max_bytes: int) -> None:
        super().__init__(shape.rows, facts, max_bytes)
        self.view = shape.view
        self._tombstones = Upsert(shape.tombstones, facts, max_bytes)
        self._rows = _Following(shape, is_of_rows=True)
        self._deletes = _Following(shape, is_of_rows=False)

    def make_ready(self, connection: Connection, rows: int) -> None:
        """Prepare all block sizes: how many of the rows are deletes is known only when nothing can be prepared."""
        for size in self.sizes(rows):
            super().make_ready(connection, size)
            self._rows.make_ready(connection, size)
        for size in self._tombstones.sizes(rows):  # of few parameters, so larger ones than the rows may have
            self._tombstones.make_ready(connection, size)
            self._deletes.make_ready(connection, size)

    def executions(self, items: list[Item]) -> Iterator[tuple[list[Item], bytes | None]]:
        """Yield two or three statements per block: an upsert, and what follows from it."""
        deletes = [item for item in items if item[1][1] is None]
        rows = [item for item in items if item[1][1] is not None] if deletes else items
        yield from self._rows.behind(super().executions(rows))
        yield from self._deletes.behind(self._tombstones.executions(deletes))

    def parameters(self, item: Item) -> tuple[Any, ...]:
        return super().parameters(item) if item[1][1] is not None else self._tombstones.parameters(item)

    def forget(self) -> None:
        super().forget()
        for part in (self._tombstones, self._rows, self._deletes):
            part.forget()


class _Following:
    """The statements that follow the upserts of rows, or of tombstones."""

    def __init__(self, shape: WholeShape, *, is_of_rows: bool) -> None:
        # Of two equal versions what was there stays; where they are taken too, what was written last.
        has_row_precedence = is_of_rows is takes_equal_versions(shape.view)
        key, dead = shape.view.key, f"{shape.tombstones.table}."
        self._statements = {
            size: _resolving(shape, one_of_keys(dead, key, size), has_row_precedence) for size in BLOCKS
        }
        self._of_range = _resolving(shape, _in_range(dead, key), has_row_precedence)
        self._has_numbers = key[-1].kind is Kind.INTEGER
        self._prepared: dict[int, tuple[Prepared, ...]] = {}  # by size of the block; _RANGE: of a range of keys

    def make_ready(self, connection: Connection, size: int) -> None:
        for name, statements in ((size, self._statements[size]), (_RANGE, self._of_range)):
            prepared = self._prepared.get(name)
            if prepared is None or prepared[0].connection is not connection:
                self._prepared[name] = tuple(Prepared(connection, statement) for statement in statements)

    def behind(self, blocks: Iterator[tuple[list[Item], bytes | None]]) -> Iterator[tuple[list[Item], bytes | None]]:
        """Yield each block, and behind it what follows for its keys."""
        for items, execution in blocks:
            yield items, execution
            if execution is None:
                continue
            (*same, first), (*others, last) = items[0][0], items[-1][0]
            if self._has_numbers and same == others and last - first < MOST_SPREAD * len(items):
                name, values = _RANGE, [*same, first, last]
            else:
                name, values = len(items), [value for key, _ in items for value in key]
            for prepared in self._prepared[name]:
                yield items, prepared.packed(values)

    def forget(self) -> None:
        for prepared in self._prepared.values():
            for statement in prepared:
                statement.close()
        self._prepared = {}


def _in_range(of: str, key: Sequence[Column]) -> str:
    """The condition for keys that differ in the last column, between two values of it."""
    *same, last = (f"{of}{quote(column.name)}" for column in key)
    return " AND ".join([*(f"{name} = ?" for name in same), f"{last} BETWEEN ? AND ?"])


def _resolving(shape: WholeShape, keys: str, has_row_precedence: bool) -> tuple[str, ...]:
    """The statements that leave the newer one of row and tombstone of each key; with precedence, the row of equals.

    `keys` is a condition on the tombstones. It may name more keys than were written: what is committed of them is
    resolved already."""
    live, dead = shape.rows.table, shape.tombstones.table  # an alias would be looked for in the session's database
    version, died = f"{live}.{quote(shape.rows.version_name)}", f"{dead}.{quote(shape.tombstones.version_name)}"
    is_same = " AND ".join(f"{live}.{name} = {dead}.{name}" for name in (quote(c.name) for c in shape.view.key))
    # The tombstones first: there are few, and most keys have none.
    both = (
        f"FROM {dead} FORCE INDEX (PRIMARY) STRAIGHT_JOIN {live} FORCE INDEX (PRIMARY) ON {is_same} WHERE ({keys}) AND"
    )
    if not has_row_precedence:
        return (f"DELETE {live} {both} {died} >= {version}",)
    return f"DELETE {dead} {both} {version} >= {died}", f"DELETE {live} {both} {died} > {version}"
