"""Rows that would be written again as they are: a block of them is read, and gets its new version by one statement.

An upsert of a row that is there costs the server more than an INSERT of a new one, and much more than an UPDATE of a
range of keys. The rows stay locked from the read to the UPDATE, so nobody changes one of them in between. READ
COMMITTED locks no gaps: a row that comes into the range in between would be given a version that is not its own, so
the rows that the UPDATE changed are counted, and where there is one too many all is to be rolled back.
"""

from __future__ import annotations

from operator import add, itemgetter, lt

from ingest.canonical import fetch_rows, select_list
from projectors.stores import Item
from projectors.stores.index_tables.reading import has_values, stored_columns
from projectors.stores.index_tables.table import VERSION, table_name
from projectors.views import BoundView
from servers.literals import within
from servers.sessions import Connection, quote

ROWS_A_LOOK = 1_000  # where one of them differs, all of them are upserted
MOST_MISSES = 2  # blocks one after the other; then a look is not worth its price


_version = itemgetter(-1)


class ChangedMeanwhileError(Exception):
    """Rows came between the read and the UPDATE."""


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
        Raises ChangedMeanwhileError, pymysql's errors and those of `fetch_rows`: then roll back.
        """
        wanted, left = items, []
        if any(map(self._nothing.__contains__, (values for _, (_, values) in items))):
            wanted = [item for item in items if item[1][1] not in self._nothing]
            left = [item for item in items if item[1][1] in self._nothing]
        return left if wanted and self._are_there(connection, wanted) else items

    def _are_there(self, connection: Connection, items: list[Item]) -> bool:
        """Whether the rows of these keys' range are these and no others; then they have their versions."""
        keys, writes = zip(*items, strict=True)
        versions, values = zip(*writes, strict=True)
        where = within(self._key, keys[0], keys[-1])
        # Tombstones are locked too, and left out here: the UPDATE would wait for what the SELECT let go of.
        limit = f"{self._order} LIMIT {len(keys) * 2} FOR UPDATE"
        rows = fetch_rows(connection, f"{self._select} WHERE {where} {limit}", self._columns)
        if len(rows) > len(keys):
            rows = [row for row in rows if row[len(self._key) : -1] != self._nothing[1]]
        if [row[:-1] for row in rows] != list(map(add, keys, values)):
            return False
        older = sum(map(lt, map(_version, rows), versions))
        if older and len(set(versions)) > 1:  # a version column; where all is as it was, nothing is to be done
            return False
        if older:
            self._raise_to(connection, versions[0], older, f"{where} AND {self._shown}")
        return True

    def _raise_to(self, connection: Connection, version: int, older: int, where: str) -> None:
        with connection.cursor() as cursor:
            set_ = f"SET {VERSION} = {version:d} WHERE {where} AND {VERSION} < {version:d}"
            if cursor.execute(f"UPDATE {self._table} {set_}") != older:
                raise ChangedMeanwhileError
