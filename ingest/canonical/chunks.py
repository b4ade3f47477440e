"""Canonical rows under a watermark: in chunks by key range, or by a set of keys.

Each SELECT has a fresh snapshot in which the watermark is visible, so every row is at least as new as the watermark.
Backfill, its sweep and whatever compares a view with its table read this way.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql

from ingest.canonical.parts import check_tags, parts_of
from ingest.canonical.rows import ReadableRows, TableRows, fetch_rows, reading, select_of, source_error
from viewtail.changes.batches import Row
from viewtail.changes.errors import SnapshotTooOldError, StopRequested, TableGoneError, TemporaryError
from viewtail.changes.patterns import Part
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key
from viewtail.servers.literals import beyond, where_all
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
        without: of a pattern, the values of the tables whose rows `after` does not give.
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
        without: Collection[tuple[Any, ...]] = (),
    ) -> None:
        self._readable = readable
        self._table = table = readable.table
        self._pattern = table.pattern if table.part is None else None
        self._parts: list[Part] | None = None  # of a pattern, in order
        self._last_part: Part | None = None  # that rows were read of
        self._is_interrupted = False  # before the end of what was to be read
        self._has_snapshots = shows is not None or readable.needs_snapshot
        self._only = only
        self._condition = condition
        self._without = without
        self._open = open_source
        self._shows = shows
        self._stop = stop
        self.chunk_rows, self.chunk_bytes = chunk_rows, chunk_bytes
        by_name = {column.name: column for column in table.columns}
        # Of a pattern within one of its tables.
        self._paging = [by_name[name] for name in table.paging_key if name not in table.of_braces]
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
        The tables of a pattern are read one after the other, many in one chunk where they are small.
        """
        limit = min(self._limit, self.chunk_rows)
        rows, read_at = self._snapshot(version, lambda session: self._read_after(session, key, limit))
        is_cut = len(rows) < limit and self._connection is not None and not self._connection.open
        is_last = not is_cut and len(rows) < limit and not self._is_interrupted
        if is_cut:
            self._growth = 1.1
            self._limit = len(rows) * 3 // 4 + 1
        else:
            self._limit = min(int(limit * self._growth) + 1, self.chunk_rows)
        if not rows:
            return None
        last = self._place_of(rows[-1])
        if len(self._columns) > self._width:
            rows = [row[: self._width] for row in rows]
        return Chunk(rows, last, read_at, is_last=is_last)

    def _read_after(self, session: Connection, key: tuple[Any, ...] | None, limit: int) -> list[Row]:
        """The rows of one table, or of as many of a pattern's as a chunk has room for."""
        rows: list[Row] = []
        self._is_interrupted, left = False, float(self.chunk_bytes)
        for readable, of_table in self._tables_after(session, key):
            try:
                more = self._rows_of(readable, session, of_table, limit - len(rows), left)
            except SnapshotTooOldError:  # of one of many tables; what was read before it is good
                if not rows:
                    raise
                self.close()
                self._is_interrupted = True
                break
            if more:
                rows += more
                self._last_part = readable.table.part
            if self._pattern is None or len(rows) >= limit or not session.open:
                break
            left -= _bytes_about(more)
            if left <= 0:
                self._is_interrupted = True
                break
            if self._stop.is_set():
                raise StopRequested
        return rows

    def _rows_of(
        self, readable: ReadableRows, session: Connection, key: tuple[Any, ...] | None, limit: int, max_bytes: float
    ) -> list[Row]:
        where = where_all(self._only, self._condition, "" if key is None else beyond(self._paging, key))
        try:
            return readable.fetch(session, self._columns, where, f" ORDER BY {self._order} LIMIT {limit}", max_bytes)
        except TableGoneError:
            if readable.table.part is None:
                raise
            return []  # and its rows with it, which the stream says

    def _place_of(self, row: Row) -> tuple[Any, ...]:
        """What the next chunk begins behind: the paging key, and of a pattern its table first."""
        key = tuple(row[at] for at in self._key_at)
        part = self._last_part
        return key if self._pattern is None or part is None else (*part.place, *key)

    def _tables_after(
        self, session: Connection, key: tuple[Any, ...] | None
    ) -> Iterator[tuple[ReadableRows, tuple[Any, ...] | None]]:
        """Yield what may have rows after a key, each with the key in it.

        Of a pattern those that there were as the first chunk was read: all rows of a later one come in the stream.
        """
        if self._pattern is None:
            yield self._readable, key
            return
        if self._parts is None:
            parts = parts_of(session, self._pattern)
            check_tags(session, self._table, parts)
            self._parts = [part for part in parts if part.values not in self._without]
        width = len(self._parts[0].place) if self._parts else 0
        first = 0 if key is None else bisect_left(self._parts, key[:width], key=lambda part: part.place)
        for part in self._parts[first:]:
            yield (
                TableRows(self._table.at(part)),
                key[width:] if key is not None and part.place == key[:width] else None,
            )

    def key_after(self, key: tuple[Any, ...] | None, rows: int, version: int) -> tuple[Any, ...] | None:
        """The paging key of the row that is so many rows behind a key; None where there are fewer."""
        keys, _ = self._snapshot(version, lambda session: self._key_after(session, key, rows))
        return keys[0] if keys else None

    def _key_after(self, session: Connection, key: tuple[Any, ...] | None, rows: int) -> list[Row]:
        for readable, of_table in self._tables_after(session, key):
            where = where_all(self._only, "" if of_table is None else beyond(self._paging, of_table))
            behind = f" ORDER BY {self._order} LIMIT 1 OFFSET {rows - 1:d}"
            try:
                if keys := readable.keys(session, self._paging, where, behind):
                    part = readable.table.part
                    return [(*(() if part is None else part.place), *keys[0])]
                if self._pattern is not None:
                    statement = select_of(readable.table, "COUNT(*)", where)
                    ((count,),) = fetch_rows(session, statement, [_COUNT])
                    rows = max(1, rows - int(count))  # some were added meanwhile
            except TableGoneError:
                if readable.table.part is None:
                    raise
        return []

    def having(self, columns: Sequence[Column], keys: Sequence[Key], version: int) -> list[Row]:
        """The rows with these keys over some columns."""
        rows, _ = self._snapshot(
            version, lambda session: self._readable.having(session, self._columns, columns, keys, self._only)
        )
        return [row[: self._width] for row in rows]

    def absent(self, columns: Sequence[Column], keys: Sequence[Key], version: int) -> set[Key]:
        """Find the keys over some columns that no row has."""

        def present(some: Sequence[Key]) -> list[Row]:
            read = self._snapshot(
                version, lambda session: self._readable.having(session, columns, columns, some, self._only)
            )
            return read[0]

        return absent_keys(keys, present)

    def of_present_tables(self, keys: Sequence[Key]) -> list[Key]:
        """Those of these keys whose table there is, where many are one and their names begin the key."""
        if self._pattern is None or not keys:
            return list(keys)
        present = {part.values for part in parts_of(self._session(), self._pattern)}
        width = len(self._pattern.names)
        return [key for key in keys if key[:width] in present]

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

    def _session(self) -> Connection:
        if self._connection is None or not self._connection.open:
            self._connection = self._open()
            self._connection.autocommit(self._shows is None)
            with self._connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return self._connection


def absent_keys(keys: Sequence[Key], present: Callable[[Sequence[Key]], list[Row]]) -> set[Key]:
    """Find the keys that no row has; `present` gives those of some keys that one has."""
    absent: set[Key] = set()
    for start in range(0, len(keys), _KEYS_A_QUERY):
        some = keys[start : start + _KEYS_A_QUERY]
        absent |= set(some) - {tuple(row) for row in present(some)}
    return absent


def _bytes_about(rows: Sequence[Row]) -> int:
    """What rows take as the server sends them, about: by some of them."""
    some = rows[:: max(1, len(rows) // 8)]
    size = sum(len(value) if isinstance(value, str | bytes) else 8 for row in some for value in row)
    return size * len(rows) // max(1, len(some))


def row_order(table: Table) -> str:
    """Name the order in which chunks are read; where it is another, the last key of an interrupted reading is void."""
    columns = {column.name: column for column in table.columns}
    key = [columns[name] for name in table.paging_key]
    parts = ((one.name, one.kind.value, one.collation or "", "unsigned" * one.is_unsigned) for one in key)
    order = ", ".join(" ".join(part).strip() for part in parts)
    return order if table.pattern is None else f"tables {table.pattern.full_name}, {order}"


def reading_of(table: Table, names: Sequence[str]) -> object:
    """Describe how these columns are read: where it is equal, reading goes on with another description of the table."""
    return [reading(column) for column in table.columns if column.name in names], row_order(table)
