"""Canonical rows under a watermark: in chunks by key range, or by a set of keys.

Each SELECT has a fresh snapshot in which the watermark is visible, so every row is at least as new as the watermark.
Backfill, its sweep and whatever compares a view with its table read this way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import pymysql

from ingest.canonical.rows import ReadableRows, TableRows, fetch_rows, reading, source_error
from ingest.canonical.tables import parts_of
from viewtail.changes.batches import Row
from viewtail.changes.errors import SnapshotTooOldError, StopRequested, TablesChangedError, TemporaryError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key
from viewtail.servers.literals import beyond, rows_with, where_all
from viewtail.servers.sessions import SNAPSHOT, Connection, quote

CHUNK_ROWS = 24_000  # as many as a batch of the stream; at 4,000 a tenth of the time is commits
CHUNK_BYTES = 8 << 20  # two chunks are in memory: one is read while the other is written
_FIRST_CHUNK_ROWS = 1_500
_COUNT = Column(name="count", kind=Kind.INTEGER, declared="bigint", is_nullable=False)
_KEYS_A_QUERY = 1_000  # as many as a page of a store's keys


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows in key order."""

    rows: list[Row]
    last_key: tuple[Any, ...]  # the values of the table's paging key in the last row; of a pattern its table first
    read_at: float  # monotonic, when its reading began
    is_last: bool


class CanonicalRows:
    """Rows of one table, or such as are made of several. Not thread-safe; opens a session when first asked.

    Args:
        readable: how the rows are read.
        columns: the names of the columns of each row, in ordinal order.
        open_source: a session on the tailed server.
        shows: whether the snapshot of a cursor's transaction has the watermark of a version; None: any will do.
        stop: ends the wait for a snapshot.
        chunk_rows: the most rows of a chunk.
        chunk_bytes: the most bytes of a chunk, as the server sends them.
        only: SQL, of the rows that are the entity's; '' of all. Others are as if they were not there.
        condition: SQL, of the rows that `after` gives; '' of all.
    """

    def __init__(  # noqa: PLR0913 - what is read, how much of it and in which snapshot: three callers, each another part
        self,
        readable: ReadableRows,
        columns: Sequence[str],
        *,
        open_source: Callable[[], Connection],
        shows: Callable[[Any, int], bool] | None,
        stop: threading.Event,
        chunk_rows: int = CHUNK_ROWS,
        chunk_bytes: int = CHUNK_BYTES,
        only: str = "",
        condition: str = "",
    ) -> None:
        self._readable = readable
        self._table = table = readable.table
        self._has_snapshots = shows is not None or readable.needs_snapshot or bool(table.parts)
        self._only = only
        self._condition = condition
        self._open = open_source
        self._shows = shows
        self._stop = stop
        self.chunk_rows, self.chunk_bytes = chunk_rows, chunk_bytes
        by_name = {column.name: column for column in table.columns}
        self._paging = [by_name[name] for name in table.paging_key]
        wanted = [by_name[name] for name in columns]
        # Paging columns that nobody wants are read behind the row and cut off again.
        self._columns = [*wanted, *(column for column in self._paging if column not in wanted)]
        self._width = len(wanted)
        self._key_at = [self._columns.index(column) for column in self._paging]
        self._connection: Connection | None = None
        self._limit = _FIRST_CHUNK_ROWS  # rows of the next chunk, if `chunk_rows` is not less
        self._growth = 2.0

    def after(self, key: tuple[Any, ...] | None, version: int) -> Chunk | None:
        """The rows after a key, None from the beginning; None where none follow.

        A chunk is cut at `chunk_bytes`, which costs a session: chunks grow until one is cut, and slowly from then on.
        The tables of a pattern are read one after the other, and a key has the name of its table before it.
        """
        if not self._table.parts:
            return self._after(self._readable, key, version)
        for table, of_table in self._parts_after(key):
            chunk = self._after(TableRows(table), of_table, version)
            if chunk is not None:
                is_last = chunk.is_last and table.name == self._table.parts[-1]
                return replace(chunk, last_key=(table.name, *chunk.last_key), is_last=is_last)
        return None

    def _parts_after(self, key: tuple[Any, ...] | None) -> Iterator[tuple[Table, tuple[Any, ...] | None]]:
        """Yield the tables of a pattern that may have rows after a key, each with the key in it."""
        for table in self._table.each:
            if key is None or table.name > key[0]:
                yield table, None
            elif table.name == key[0]:
                yield table, key[1:]

    def _after(self, readable: ReadableRows, key: tuple[Any, ...] | None, version: int) -> Chunk | None:
        limit = min(self._limit, self.chunk_rows)
        where = where_all(self._only, self._condition, "" if key is None else beyond(self._paging, key))
        behind = f" ORDER BY {self._order} LIMIT {limit}"
        rows, read_at = self._snapshot(
            version, lambda session: readable.fetch(session, self._columns, where, behind, self.chunk_bytes)
        )
        is_cut = len(rows) < limit and self._connection is not None and not self._connection.open
        if is_cut:
            self._growth = 1.1
            self._limit = len(rows) * 3 // 4 + 1
        else:
            self._limit = min(int(limit * self._growth) + 1, self.chunk_rows)
        if not rows:
            return None
        last = tuple(rows[-1][at] for at in self._key_at)
        if len(self._columns) > self._width:
            rows = [row[: self._width] for row in rows]
        return Chunk(rows, last, read_at, is_last=not is_cut and len(rows) < limit)

    def key_after(self, key: tuple[Any, ...] | None, rows: int, version: int) -> tuple[Any, ...] | None:
        """The paging key of the row that is so many rows behind a key; None where there are fewer."""
        if not self._table.parts:
            return self._key_after(self._readable, key, rows, version)
        for table, of_table in self._parts_after(key):
            key_in_table = self._key_after(TableRows(table), of_table, rows, version)
            if key_in_table is not None:
                return (table.name, *key_in_table)
            rows -= self._count_after(table, of_table, version)
            if rows <= 0:  # some were added meanwhile
                rows = 1
        return None

    def _count_after(self, table: Table, key: tuple[Any, ...] | None, version: int) -> int:
        where = where_all(self._only, "" if key is None else beyond(self._paging, key))
        statement = f"SELECT COUNT(*) FROM {quote(table.schema, table.name)}{where}"
        ((count,),), _ = self._snapshot(version, lambda session: fetch_rows(session, statement, [_COUNT]))
        return int(count)

    def _key_after(
        self, readable: ReadableRows, key: tuple[Any, ...] | None, rows: int, version: int
    ) -> tuple[Any, ...] | None:
        where = where_all(self._only, "" if key is None else beyond(self._paging, key))
        behind = f" ORDER BY {self._order} LIMIT 1 OFFSET {rows - 1:d}"
        keys, _ = self._snapshot(version, lambda session: readable.keys(session, self._paging, where, behind))
        return keys[0] if keys else None

    def having(self, columns: Sequence[Column], keys: Sequence[Key], version: int) -> list[Row]:
        """The rows with these keys over some columns."""
        where = where_all(self._only, rows_with(columns, keys))
        rows, _ = self._snapshot(version, lambda session: self._readable.fetch(session, self._columns, where))
        return [row[: self._width] for row in rows]

    def absent(self, columns: Sequence[Column], keys: Sequence[Key], version: int) -> set[Key]:
        """Find the keys over some columns that no row has."""

        def present(where: str) -> list[Row]:
            return self._snapshot(version, lambda session: self._readable.keys(session, columns, where))[0]

        return absent_keys(columns, keys, present, self._only)

    def close(self) -> None:
        if self._connection is not None and self._connection.open:
            self._connection.close()
        self._connection = None

    @property
    def _order(self) -> str:
        return ", ".join(quote(column.name) for column in self._paging)

    def _snapshot(self, version: int, read: Callable[[Connection], list[Row]]) -> tuple[list[Row], float]:
        """Rows, and when their snapshot was taken. Where `read` closed the session, there were more."""
        while True:
            read_at = time.monotonic()
            connection = self._session()
            try:
                if not self._has_snapshots:  # a SELECT has one of its own
                    return read(connection), read_at
                with connection.cursor() as cursor:
                    cursor.execute(SNAPSHOT)
                    if self._shows is None or self._shows(cursor, version):
                        self._check_parts(connection)
                        rows = read(connection)
                        if connection.open:
                            connection.commit()
                        return rows, read_at
                connection.commit()
            except pymysql.err.MySQLError as error:
                self.close()
                raise source_error(error, connection) from None
            except SnapshotTooOldError:
                self.close()
            except TemporaryError:
                self.close()
                raise
            if self._stop.wait(0.05):
                raise StopRequested

    def _check_parts(self, connection: Connection) -> None:
        """A table that has rows in this snapshot was there before it; only one that is known is read."""
        parts = self._table.parts
        if parts and (present := tuple(parts_of(connection, self._table.schema, self._table.name))) != parts:
            differing = ", ".join(sorted({*parts} ^ {*present}))
            raise TablesChangedError(
                f"other tables match {self._table.full_name} than when this began: {differing} came or went. A "
                "pipeline goes on with those that there are now; a command is to be repeated"
            )

    def _session(self) -> Connection:
        if self._connection is None or not self._connection.open:
            self._connection = self._open()
            self._connection.autocommit(self._shows is None)
            with self._connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return self._connection


def absent_keys(
    columns: Sequence[Column], keys: Sequence[Key], present: Callable[[str], list[Row]], only: str = ""
) -> set[Key]:
    """Find the keys over some columns that no row has; `present` gives the keys of rows that meet a condition."""
    absent: set[Key] = set()
    for start in range(0, len(keys), _KEYS_A_QUERY):
        some = keys[start : start + _KEYS_A_QUERY]
        where = where_all(only, rows_with(columns, some))
        absent |= set(some) - {tuple(row) for row in present(where)}
    return absent


def row_order(table: Table) -> str:
    """Name the order in which chunks are read; where it is another, the last key of an interrupted reading is void."""
    columns = {column.name: column for column in table.columns}
    key = [columns[name] for name in table.paging_key]
    parts = ((one.name, one.kind.value, one.collation or "", "unsigned" * one.is_unsigned) for one in key)
    order = ", ".join(" ".join(part).strip() for part in parts)
    return f"{order} of tables {crc32(','.join(table.parts).encode()):08x}" if table.parts else order


def reading_of(table: Table, names: Sequence[str]) -> object:
    """Describe how these columns are read: where it is equal, reading goes on with another description of the table."""
    return [reading(column) for column in table.columns if column.name in names], row_order(table)
