"""Handles rows that would be rewritten unchanged: it reads a block, and one statement sets the block's new version.

An upsert of an existing row costs the server more than an INSERT of a new one, and much more than an UPDATE of a range
of keys. The rows stay locked from the read to the UPDATE, so nobody changes one of them in between. READ COMMITTED
locks no gaps: a row that comes into the range in between would get a version that is not its own. So the changed rows
are counted, and if there are too many, everything must be rolled back.

The server changes one block and reads the one after the next, while the next is parsed and compared here."""

from __future__ import annotations

from itertools import zip_longest
from operator import add, itemgetter, lt
from typing import NamedTuple

import pymysql

from ingest.canonical import select_list
from ingest.canonical.rows import Fetch
from projectors.stores import Item
from projectors.stores.index_tables.reading import has_values, stored_columns
from projectors.stores.index_tables.table import VERSION, table_name
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

    items: list[Item]
    where: str
    rows: Fetch


class _Found(NamedTuple):
    """The result for a block whose stored rows equal its items."""

    older: int  # how many rows have an older version
    version: int  # the version that these rows get


class Unchanged:
    """Finds unchanged rows of one view whose table has everything about an entity in one row."""

    def __init__(self, database: str, view: BoundView) -> None:
        self._key = view.key
        self._columns = stored_columns(view)
        self._table = f"{quote(database, table_name(view))} FORCE INDEX (PRIMARY)"
        self._select = f"SELECT {select_list(self._columns)} FROM {self._table}"
        self._order = f"ORDER BY {', '.join(quote(column.name) for column in view.key)}"
        self._shown = f"({has_values(view)})"
        self._nothing = (None, (None,) * len(view.values))

    def left(self, connection: Connection, items: list[Item]) -> list[Item]:
        """Set versions in the open transaction; returns the items that must still be upserted. `items` are in key
        order.

        Items without values are always returned: nothing tells their rows from tombstones of other keys in the range.
        Raises ChangedMeanwhileError, pymysql's errors and those of `Fetch`: the caller then rolls back. No answer is
        pending at that point."""
        wanted, left = items, list[Item]()
        values = [item[1][1] for item in items]
        if any(nothing in values for nothing in self._nothing):
            wanted = [item for item in items if item[1][1] not in self._nothing]
            left = [item for item in items if item[1][1] in self._nothing]
        blocks = [self._block(connection, wanted[at : at + ROWS_A_LOOK]) for at in range(0, len(wanted), ROWS_A_LOOK)]
        looked_at = misses = older = 0
        update = Flight(connection)  # the UPDATE of the previous block, if it has `older` rows
        for following in blocks[:1]:
            following.rows.send()
            following.rows.receive()
        for block, following in zip_longest(blocks, blocks[1:]):
            if following is not None:
                following.rows.send()
            try:
                same = self._found(block)
            finally:  # no answer stays pending, whatever is raised
                changed = update.land()
                if following is not None:
                    following.rows.receive()
            _check(changed, older)
            older = 0 if same is None else same.older
            if same is not None and older:
                update.send(self._raising(block, same.version).encode())
                update.flush()
            looked_at += len(block.items)
            left += block.items if same is None else ()
            misses = misses + 1 if same is None else 0
            if misses == MOST_MISSES:
                break
        _check(update.land(), older)
        return [*left, *wanted[looked_at:]]

    def _block(self, connection: Connection, items: list[Item]) -> _Block:
        where = within(self._key, items[0][0], items[-1][0])
        # Tombstones are read, so they are locked too: the UPDATE would otherwise wait for rows that the SELECT had
        # released.
        limit = f"{self._order} LIMIT {len(items) * 2} FOR UPDATE"
        return _Block(items, where, Fetch(connection, f"{self._select} WHERE {where} {limit}", self._columns))

    def _found(self, block: _Block) -> _Found | None:
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
        return _Found(older, versions[0])

    def _raising(self, block: _Block, version: int) -> str:
        """The statement that sets the version of the block's rows."""
        set_ = f"SET {VERSION} = {version:d} WHERE {block.where} AND {self._shown} AND {VERSION} < {version:d}"
        return f"UPDATE {self._table} {set_}"


def _check(changed: list[int | pymysql.err.MySQLError], older: int) -> None:
    """Check the answer of at most one UPDATE, which had to change `older` rows."""
    for count in changed:
        if isinstance(count, pymysql.err.MySQLError):
            raise count
        if count != older:
            raise ChangedMeanwhileError
