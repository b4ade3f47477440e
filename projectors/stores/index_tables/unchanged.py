"""Handles rows that would be rewritten unchanged: it reads a block, and one statement sets the block's new version.

An upsert of an existing row costs the server more than an INSERT of a new one, and much more than an UPDATE of a range
of keys. The rows stay locked from the read to the UPDATE, so nobody changes one of them in between. READ COMMITTED
locks no gaps: a row that comes into the range in between would get a version that is not its own. So the changed rows
are counted, and if there are too many, everything must be rolled back.

The server changes one block and reads the one after the next, while the next is parsed and compared here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add, itemgetter, lt
from typing import NamedTuple

import pymysql

from ingest.canonical import select_list
from ingest.canonical.rows import Fetch
from projectors.stores import Item, slices
from projectors.stores.index_tables.reading import has_values, stored_columns
from projectors.stores.index_tables.table import table_name
from projectors.stores.index_tables.views import version_of
from projectors.stores.index_tables.whole import is_whole
from projectors.views import BoundView
from viewtail.servers.literals import within
from viewtail.servers.pipelined import Flight
from viewtail.servers.sessions import Connection, quote

ROWS_A_LOOK = 1_000  # if one row differs, the whole block is upserted
MOST_MISSES = 2  # consecutive blocks that differ; then reading more does not pay


_version = itemgetter(-1)


class ChangedMeanwhileError(Exception):
    """Rows appeared between the read and the UPDATE."""


class _Block(NamedTuple):
    """Some of the items, and the stored rows in the range of their keys."""

    items: Sequence[Item]
    where: str
    rows: Fetch


class _Same(NamedTuple):
    """The result for a block whose stored rows equal its items."""

    older: int  # how many rows have an older version
    version: int  # the version that these rows get


class _Raising:
    """The UPDATE under way, at most one: it sets the version of the rows of a block that have an older one."""

    def __init__(self, connection: Connection) -> None:
        self._flight = Flight(connection)
        self._older = 0

    def send(self, statement: str, older: int) -> None:
        """Send the UPDATE, which must change `older` rows."""
        self._flight.send(statement.encode())
        self._flight.flush()
        self._older = older

    def land(self) -> list[int | pymysql.err.MySQLError]:
        """Read the answer, if one is pending."""
        return self._flight.land()

    def check(self, changed: list[int | pymysql.err.MySQLError]) -> None:
        """Raise the error in an answer, or ChangedMeanwhileError if another number of rows changed."""
        for count in changed:
            if isinstance(count, pymysql.err.MySQLError):
                raise count
            if count != self._older:
                raise ChangedMeanwhileError


class Unchanged:
    """Finds unchanged rows of one view whose table has everything about an entity in one row."""

    def __init__(self, database: str, view: BoundView) -> None:
        self._key = view.key
        self._columns = stored_columns(view)
        self._table = f"{quote(database, table_name(view))} FORCE INDEX (PRIMARY)"
        self._select = f"SELECT {select_list(self._columns)} FROM {self._table}"
        self._order = f"ORDER BY {', '.join(quote(column.name) for column in view.key)}"
        self._shown = f"({has_values(view)})"
        self._nothing = (None, None if is_whole(view) else (None,) * len(view.values))
        self._version = version_of(view)

    def left(self, connection: Connection, items: list[Item]) -> list[Item]:
        """Set versions in the open transaction; returns the items that must still be upserted. `items` are in key
        order.

        Items without values are always returned: nothing tells their rows from tombstones of other keys in the range.
        Raises ChangedMeanwhileError, pymysql's errors and those of `Fetch`: the caller then rolls back. No answer is
        pending at that point."""
        wanted, left = self._by_values(items)
        blocks = [self._block(connection, some) for some in slices(wanted, ROWS_A_LOOK)]
        raising = _Raising(connection)
        looked_at = misses = 0
        for block, same in self._compared(blocks, raising):
            looked_at += len(block.items)
            if same is None:
                left += block.items
                misses += 1
                if misses == MOST_MISSES:
                    break
                continue
            misses = 0
            if same.older:
                raising.send(self._raising(block, same.version), same.older)
        raising.check(raising.land())
        return [*left, *wanted[looked_at:]]

    def _by_values(self, items: list[Item]) -> tuple[list[Item], list[Item]]:
        """The items with values, and those without."""
        values = [item[1][1] for item in items]
        if not any(nothing in values for nothing in self._nothing):
            return items, []
        wanted = [item for item in items if item[1][1] not in self._nothing]
        return wanted, [item for item in items if item[1][1] in self._nothing]

    def _compared(self, blocks: list[_Block], raising: _Raising) -> Iterator[tuple[_Block, _Same | None]]:
        """Yield each block with its result. The next block is read, and the former one changed, meanwhile."""
        for first in blocks[:1]:
            first.rows.send()
            first.rows.receive()
        for number, block in enumerate(blocks, 1):
            following = blocks[number : number + 1]
            for other in following:
                other.rows.send()
            try:
                same = self._same(block)
            finally:  # no answer stays pending, whatever is raised
                changed = raising.land()
                for other in following:
                    other.rows.receive()
            raising.check(changed)
            yield block, same

    def _block(self, connection: Connection, items: Sequence[Item]) -> _Block:
        where = within(self._key, items[0][0], items[-1][0])
        # Tombstones are read, so they are locked too: the UPDATE would otherwise wait for rows that the SELECT had
        # released.
        limit = f"{self._order} LIMIT {len(items) * 2} FOR UPDATE"
        return _Block(items, where, Fetch(connection, f"{self._select} WHERE {where} {limit}", self._columns))

    def _same(self, block: _Block) -> _Same | None:
        """Compare a block with its stored rows; None unless the rows of the range are exactly these."""
        keys, writes = zip(*block.items, strict=True)
        versions, values = zip(*writes, strict=True)
        rows = block.rows.rows()
        if len(rows) > len(keys):
            rows = [row for row in rows if row[len(self._key) : -1] != self._nothing[1]]
        if [row[:-1] for row in rows] != list(map(add, keys, values)):
            return None
        older: int = sum(map(lt, map(_version, rows), versions))
        if older and len(set(versions)) > 1:  # the view has a version column, so one UPDATE cannot set the versions
            return None
        return _Same(older, versions[0])

    def _raising(self, block: _Block, version: int) -> str:
        """The statement that sets the version of the block's rows."""
        set_ = (
            f"SET {self._version} = {version:d} WHERE {block.where} AND {self._shown} AND {self._version} < {version:d}"
        )
        return f"UPDATE {self._table} {set_}"
