"""Rows that would be written again as they are: a block of them is read, and gets its new version by one statement.

An upsert of a row that is there costs the server more than an INSERT of a new one, and much more than an UPDATE of a
range of keys. The rows stay locked from the read to the UPDATE, so nobody changes one of them in between. READ
COMMITTED locks no gaps: a row that comes into the range in between would be given a version that is not its own, so
the rows that the UPDATE changed are counted, and where there is one too many all is to be rolled back.

The server changes one block and reads the one behind the next, while the next is parsed and compared here.
"""

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

ROWS_A_LOOK = 1_000  # where one of them differs, all of them are upserted
MOST_MISSES = 2  # blocks one after the other; then a look is not worth its price


_version = itemgetter(-1)


class ChangedMeanwhileError(Exception):
    """Rows came between the read and the UPDATE."""


class _Block(NamedTuple):
    """Some of the items, and the rows of the range of their keys."""

    items: list[Item]
    where: str
    rows: Fetch


class _Found(NamedTuple):
    """What a look at a block found, whose rows are as they would be written."""

    older: int  # rows with an older version
    version: int  # for these


class Unchanged:
    """Of one view whose table has all that there is of an entity in one row."""

    def __init__(self, database: str, view: BoundView) -> None:
        self._key = view.key
        self._columns = stored_columns(view)
        self._table = f"{quote(database, table_name(view))} FORCE INDEX (PRIMARY)"
        self._select = f"SELECT {select_list(self._columns)} FROM {self._table}"
        self._order = f"ORDER BY {', '.join(quote(column.name) for column in view.key)}"
        self._shown = f"({has_values(view)})"
        self._nothing = (None, (None,) * len(view.values))

    def left(self, connection: Connection, items: list[Item]) -> list[Item]:
        """Those of the items, which are in key order, that are still to be upserted, in the open transaction.

        Rows without values are among them always: nothing tells them from tombstones of other keys in the range.
        Raises ChangedMeanwhileError, pymysql's errors and those of `Fetch`: then roll back. No answer waits then.
        """
        wanted, left = items, list[Item]()
        values = [item[1][1] for item in items]
        if any(nothing in values for nothing in self._nothing):
            wanted = [item for item in items if item[1][1] not in self._nothing]
            left = [item for item in items if item[1][1] in self._nothing]
        blocks = [self._block(connection, wanted[at : at + ROWS_A_LOOK]) for at in range(0, len(wanted), ROWS_A_LOOK)]
        looked_at = misses = older = 0
        update = Flight(connection)  # of the block before, where `older` rows of it were found
        for following in blocks[:1]:
            following.rows.send()
            following.rows.receive()
        for block, following in zip_longest(blocks, blocks[1:]):
            if following is not None:
                following.rows.send()
            try:
                found = self._found(block)
            finally:  # nothing stays under way, whatever is raised
                changed = update.land()
                if following is not None:
                    following.rows.receive()
            _check(changed, older)
            older = 0 if found is None else found.older
            if found is not None and older:
                update.send(self._raising(block, found.version).encode())
                update.flush()
            looked_at += len(block.items)
            left += block.items if found is None else ()
            misses = misses + 1 if found is None else 0
            if misses == MOST_MISSES:
                break
        _check(update.land(), older)
        return [*left, *wanted[looked_at:]]

    def _block(self, connection: Connection, items: list[Item]) -> _Block:
        where = within(self._key, items[0][0], items[-1][0])
        # Tombstones are locked too, and left out here: the UPDATE would wait for what the SELECT let go of.
        limit = f"{self._order} LIMIT {len(items) * 2} FOR UPDATE"
        return _Block(items, where, Fetch(connection, f"{self._select} WHERE {where} {limit}", self._columns))

    def _found(self, block: _Block) -> _Found | None:
        """None unless the rows of the range are these and no others."""
        keys, writes = zip(*block.items, strict=True)
        versions, values = zip(*writes, strict=True)
        rows = block.rows.rows()
        if len(rows) > len(keys):
            rows = [row for row in rows if row[len(self._key) : -1] != self._nothing[1]]
        if [row[:-1] for row in rows] != list(map(add, keys, values)):
            return None
        older: int = sum(map(lt, map(_version, rows), versions))
        if older and len(set(versions)) > 1:  # a version column; where all is as it was, nothing is to be done
            return None
        return _Found(older, versions[0])

    def _raising(self, block: _Block, version: int) -> str:
        """The statement that gives the rows of the block their version."""
        set_ = f"SET {VERSION} = {version:d} WHERE {block.where} AND {self._shown} AND {VERSION} < {version:d}"
        return f"UPDATE {self._table} {set_}"


def _check(changed: list[int | pymysql.err.MySQLError], older: int) -> None:
    """Of at most one UPDATE, which was to change so many rows."""
    for count in changed:
        if isinstance(count, pymysql.err.MySQLError):
            raise count
        if count != older:
            raise ChangedMeanwhileError
