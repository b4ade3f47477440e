"""Fills a view from the canonical rows while the pipeline goes on.

One watermark W is committed on the source's primary and its version is learned from the stream. Then the table is read
by key in chunks, each in a fresh snapshot in which the watermark is visible, and every row is written with W's version
(or its own, with a version column). Later changes are newer and earlier ones older, so the guard settles every race:
no pause, no reconciliation. At the end keys that the store shows with an older version, and the table no longer has,
are swept away, guarded in the same way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NoReturn, TypeAlias

import pymysql
import structlog

from changes.batches import Followed, Row
from changes.errors import TemporaryError
from changes.rendering import render_key
from changes.tables import Column
from changes.writes import Key, Parked, ViewWrites
from ingest.canonical import fetch_rows, reading, select_list
from projectors import failpoints
from projectors.backfill_gate import FillGate
from projectors.bound_views import BoundView
from projectors.dead_letters import DeadLetters
from projectors.projection import Projected, Projections
from projectors.registry import FILLING, FillProgress, Registry, ViewRecord
from projectors.stores import Sink
from projectors.watermarks import Watermarks
from servers.sessions import quote

_log = structlog.get_logger("viewtail.backfill")

CHUNK_ROWS = 24_000  # as many as a batch of the stream; at 4,000 a tenth of the time is commits
FIRST_CHUNK_ROWS = 1_500
CHUNK_BYTES = 8 << 20  # two chunks are in memory: one is read while the other is written
PARKED_IN_A_ROW = 100  # so many refusals without one success halt the view
CHUNK_AGE_LIMIT_S = 3600.0  # a chunk read longer ago is read again, never written: tombstones outlive it
WATERMARK_WAIT_S = 300.0
KEYS_A_QUERY = 500


@dataclass(slots=True, kw_only=True)
class FillVitals:
    """How far a fill is; read by reports."""

    view: str
    row_count: int = 0
    row_estimate: int = 0
    started_at: float = field(default_factory=time.monotonic)
    state: str = "waiting for its watermark"


class Stopped(Exception):
    """The fill was asked to stop; it resumes at its last finished chunk."""


@dataclass(slots=True, kw_only=True, eq=False)
class Backfill:
    """Fills one view once. `run` resumes where an earlier one was stopped or killed."""

    view: BoundView
    bound_at: float  # monotonic, not later
    followed: Followed
    projections: Projections
    sink: Sink
    progress: FillProgress
    registry: Registry
    dead_letters: DeadLetters
    watermarks: Watermarks
    open_source: Callable[[], pymysql.Connection[Any]]  # the tailed server, and no other
    on_halt: Callable[[str], None]  # the view is halted: the pipeline gives it no more writes
    is_halted: Callable[[str], bool]  # whether the pipeline gives it none
    stop: threading.Event
    gate: FillGate
    vitals: FillVitals
    chunk_rows: int = CHUNK_ROWS
    _parked_in_a_row: int = 0

    def run(self) -> None:
        """Raises Stopped, StoreUnavailableError or SourceUnavailableError; call again to go on.

        AnotherServerError: the source's address leads elsewhere; call again when what that means has been decided.
        """
        with self.gate.open(self.view.id, self.bound_at) as is_right:
            if not is_right:
                raise Stopped  # its table changed since; the next one is of the table as it is now
            if self.sink.missing():
                self.registry.fill_anew([self.view.id])  # what an interrupted fill wrote is gone
            self.sink.prepare()
        incarnation = self.sink.incarnation()
        record = self._begin(self._now(), incarnation)
        assert record.watermark_version is not None
        chunks = _Chunks(self, record)
        try:
            self._fill(chunks)
            self._sweep(chunks, record.watermark_version)
        finally:
            chunks.close()
        # The store's witness passes this after every row of the fill: one that comes back with less has lost some.
        end = self._now()
        if self.sink.incarnation() != incarnation:
            self._begin_again("the store was restarted amid a fill")
        self.progress.finish(end)
        self.vitals.state = "filled"
        _log.info("view filled", view=self.view.id, rows=self.progress.kept_count)

    def _now(self) -> int:
        """The version of a new watermark, once the pipeline has written everything before it."""
        tokens: list[str] = []
        while not self.stop.is_set():
            tokens.append(self.watermarks.write())
            seen = self.watermarks.wait_for_any(tokens, self.stop, WATERMARK_WAIT_S)
            if seen is not None:
                if self.gate.is_bound_since(self.view.id, self.bound_at):
                    raise Stopped  # what it would read is not as this fill knows it
                return seen
            if self.stop.is_set():
                break
            # The pipeline is as far behind as that, or could not read the watermark: another one finds out.
            _log.warning(
                "watermark not passed yet", view=self.view.id, waited_s=len(tokens) * WATERMARK_WAIT_S
            )
        raise Stopped

    def _begin_again(self, why: str) -> NoReturn:
        _log.warning("filling from the beginning", view=self.view.id, why=why)
        self.registry.fill_anew([self.view.id])
        raise Stopped

    def _begin(self, watermark_version: int, incarnation: str) -> ViewRecord:
        record = self.registry.read(self.view.id)
        if record.state == FILLING and record.fill_incarnation != incarnation:
            self._begin_again("the store was restarted amid a fill")
        if record.state == FILLING and record.fill_order not in ("", fill_order(self.view)):
            self._begin_again("rows are in another order than when the fill was interrupted")
        if record.state != FILLING:
            estimate = self._estimate()
            self.dead_letters.clear_view(self.view.id)
            self.registry.begin_fill(self.view.id, watermark_version, estimate, incarnation)
            record = self.registry.read(self.view.id)
            if record.state != FILLING:
                raise Stopped  # halted between the watermark and now
            if self.is_halted(self.view.id):
                self.registry.fill_anew(
                    [self.view.id]
                )  # and marked to be filled since, but it gets no changes yet
                raise Stopped
            self.vitals.row_estimate = estimate
        self.vitals.row_count = record.fill_row_count
        self.progress.kept_count = record.fill_kept_count
        self.vitals.row_estimate = self.vitals.row_estimate or self._estimate()
        self.vitals.state = "filling"
        self.vitals.started_at = time.monotonic()
        _log.info(
            "filling", view=self.view.id, rows_before=record.fill_row_count, about=self.vitals.row_estimate
        )
        return record

    def _fill(self, chunks: _Chunks) -> None:
        for chunk in chunks:
            with self.gate.open(self.view.id, chunk.read_at) as is_right:
                if self.gate.is_bound_since(self.view.id, self.bound_at):
                    raise Stopped
                if not is_right or time.monotonic() - chunk.read_at > CHUNK_AGE_LIMIT_S:
                    chunks.read_again()
                    continue
                writes = chunk.projected.writes
                refused = self.sink.write(writes, None)
                self._park(writes, chunk.projected.parked + refused)
                self.progress.kept_count += _shown_count(writes) - len(refused)
                self.vitals.row_count += chunk.row_count
                self.progress.save(chunk.last_key, self.vitals.row_count)
            failpoints.reach("after chunk")
            if self.stop.is_set():
                raise Stopped

    def _park(self, writes: list[ViewWrites], parked: list[Parked]) -> None:
        """Dead letters for what was refused; a fill that does nothing but refuse halts the view."""
        if not parked:
            self._parked_in_a_row = 0
            return
        self.dead_letters.record(parked)
        has_success = sum(len(found.writes) for found in writes) > len(parked)
        self._parked_in_a_row = 0 if has_success else self._parked_in_a_row + len(parked)
        if self._parked_in_a_row >= PARKED_IN_A_ROW:
            reason = (
                f"{self._parked_in_a_row} keys in a row could not be filled in, the last because: "
                f"{parked[-1].reason}. Mend that, then fill the view again: viewtail replay {self.view.id}"
            )
            _log.error("view halted", view=self.view.id, reason=reason)
            self.registry.halt(self.view.id, reason)
            self.on_halt(self.view.id)
            raise Stopped

    def _sweep(self, chunks: _Chunks, version: int) -> None:
        """Tombstones for present keys that are older than the fill and not in the table.

        A key that is parked keeps what it has: that it could not be applied does not mean that it is gone.
        """
        self.vitals.state = "sweeping"
        is_column = self.view.view.entity.version is not None
        # With a version column the stored versions say nothing about W: every present key is looked up.
        below = (1 << 63) - 1 if is_column else version
        for page in self.sink.keys_below(self.view.id, below):
            parked = self.dead_letters.keys_of(self.view.id)
            if parked:
                page = [one for one in page if render_key(one[0], self.view.key) not in parked]
            if is_column:
                absent = chunks.absent_keys([key for key, _ in page], version)
                if absent:
                    # The stream may bring a row before a query shows it; now it must.
                    absent = chunks.absent_keys(sorted(absent), self._now())
                stale = {key: (stored | 1, None) for key, stored in page if key in absent}
            else:
                stale = {key: (version, None) for key, _ in page}
            if stale:
                self.sink.write([ViewWrites(self.view.id, stale)], None)  # type: ignore[arg-type]
                self.progress.commit_rows()
            if self.stop.is_set():
                raise Stopped

    def _estimate(self) -> int:
        connection = self.open_source()
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT table_rows FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
                    (self.view.table.schema, self.view.table.name),
                )
                row = cursor.fetchone()
            return int(row[0] or 0) if row else 0
        finally:
            connection.close()


def _shown_count(writes: list[ViewWrites]) -> int:
    return sum(write[1] is not None for found in writes for write in found.writes.values())


@dataclass(frozen=True, slots=True)
class _Chunk:
    projected: Projected
    row_count: int
    last_key: tuple[Any, ...]
    read_at: float  # monotonic, when its reading began
    is_last: bool


class _Chunks:
    """Pages of canonical rows in primary-key order, the next one read while the present one is written."""

    def __init__(self, fill: Backfill, record: ViewRecord) -> None:
        assert record.watermark_version is not None
        self._fill = fill
        self._version = record.watermark_version
        table = fill.view.table
        by_name = {column.name: column for column in table.columns}
        paging = _paging(fill.view)
        self._columns = [by_name[name] for name in fill.followed.columns]
        # Paging columns that no view needs are read behind the row and cut off again.
        self._extra = [column for column in paging if column not in self._columns]
        self._read_columns = [*self._columns, *self._extra]
        self._key_at = [self._read_columns.index(column) for column in paging]
        self._paging = paging
        self._connection: pymysql.Connection[Any] | None = None
        self._after: tuple[Any, ...] | None = record.fill_key
        self._limit = min(FIRST_CHUNK_ROWS, fill.chunk_rows)  # rows of the next chunk
        self._growth = 2.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="chunk")

    def __iter__(self) -> Iterator[_Chunk]:
        ahead = self._pool.submit(self._make, self._after)
        while (chunk := ahead.result()) is not None:
            before, self._after = self._after, chunk.last_key
            self._is_rejected = False
            if not chunk.is_last:
                ahead = self._pool.submit(self._make, chunk.last_key)
            yield chunk
            if self._is_rejected:
                self._after = before
                ahead = self._pool.submit(self._make, before)
            elif chunk.is_last:
                return

    def _make(self, after: tuple[Any, ...] | None) -> _Chunk | None:
        """The chunk after a key, read and projected while the one before it is written; None where nothing follows."""
        rows, read_at, rows_follow = self._read(after)
        if not rows:
            return None
        last = tuple(rows[-1][at] for at in self._key_at)
        if self._extra:
            rows = [row[: len(self._columns)] for row in rows]
        projected = self._fill.projections.of_rows(self._fill.view.id, rows, self._version)
        return _Chunk(projected, len(rows), last, read_at, not rows_follow)

    def read_again(self) -> None:
        """The chunk just given is too old to be written."""
        self._is_rejected = True

    def _read(self, after: tuple[Any, ...] | None) -> tuple[list[Row], float, bool]:
        """One chunk, when its reading began, and whether more may follow.

        A chunk is cut at CHUNK_BYTES, which costs a connection. Chunks grow until one is cut, and slowly from then on.
        """
        limit = self._limit
        rows, read_at = self._snapshot(
            self._version,
            lambda connection: self._statement(connection, after, limit),
            self._read_columns,
            CHUNK_BYTES,
        )
        is_cut = len(rows) < limit and self._connection is not None and not self._connection.open
        if is_cut:
            self._growth = 1.1
        self._limit = (
            len(rows) * 3 // 4 + 1 if is_cut else min(int(limit * self._growth) + 1, self._fill.chunk_rows)
        )
        return rows, read_at, is_cut or len(rows) == limit

    def _snapshot(
        self,
        version: int,
        statement: Statement,
        columns: Sequence[Column],
        max_bytes: int | None = None,
    ) -> tuple[list[Row], float]:
        """Rows of a snapshot of their own in which the watermark of `version` is visible, and when it was taken.

        Those behind `max_bytes` are missing; the connection is closed then.
        """
        while True:
            read_at = time.monotonic()
            connection = self._session()
            try:
                with connection.cursor() as cursor:
                    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                    if self._fill.watermarks.is_visible(cursor, version):
                        rows = fetch_rows(connection, statement(connection), columns, max_bytes)
                        if connection.open:
                            connection.commit()
                        return rows, read_at
                connection.commit()
            except (pymysql.err.MySQLError, TemporaryError):
                self._drop()
                raise
            if self._fill.stop.wait(0.05):
                raise Stopped

    def _statement(
        self, connection: pymysql.Connection[Any], after: tuple[Any, ...] | None, limit: int
    ) -> str:
        table = quote(self._fill.view.table.schema, self._fill.view.table.name)
        where = "" if after is None else f" WHERE {_beyond(connection, self._paging, after)}"
        order = ", ".join(quote(column.name) for column in self._paging)
        return f"SELECT {select_list(self._read_columns)} FROM {table}{where} ORDER BY {order} LIMIT {limit}"

    def absent_keys(self, keys: Sequence[Key], version: int) -> set[Key]:
        """Which of these entity keys the table does not have, in snapshots that show the watermark of `version`."""
        view = self._fill.view
        return absent_keys(view, keys, lambda statement: self._snapshot(version, statement, view.key)[0])

    def _session(self) -> pymysql.Connection[Any]:
        if self._connection is None or not self._connection.open:
            self._connection = self._fill.open_source()
            with self._connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None and self._connection.open:
            self._connection.close()
        self._connection = None

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._drop()


def _paging(view: BoundView) -> list[Column]:
    columns = {column.name: column for column in view.table.columns}
    return [columns[name] for name in view.table.paging_key]


def fill_order(view: BoundView) -> str:
    """In which order a fill reads rows; where it is another, the last key of a fill says nothing."""
    return ", ".join(
        " ".join(
            (column.name, column.kind.value, column.collation or "", "unsigned" * column.is_unsigned)
        ).strip()
        for column in _paging(view)
    )


def reads_alike(before: BoundView, now: BoundView) -> bool:
    """Whether a fill of the one can be gone on with as a fill of the other: the same SELECT, in the same order."""
    columns = [
        [reading(column) for column in one.table.columns if column.name in one.needed]
        for one in (before, now)
    ]
    return columns[0] == columns[1] and fill_order(before) == fill_order(now)


def _beyond(connection: pymysql.Connection[Any], columns: Sequence[Column], after: tuple[Any, ...]) -> str:
    """The expanded comparison: MySQL reads far too much for `(a, b) > (x, y)`."""
    parts = []
    for at in range(len(columns)):
        terms = [_term(connection, columns[before], "=", after[before]) for before in range(at)]
        terms.append(_term(connection, columns[at], ">", after[at]))
        parts.append("(" + " AND ".join(terms) + ")")
    # The first column's bound by itself lets the optimizer begin its range at the right place.
    return f"{_term(connection, columns[0], '>=', after[0])} AND ({' OR '.join(parts)})"


# Made on the connection that it is for.
Statement: TypeAlias = "Callable[[pymysql.Connection[Any]], str]"


def absent_keys(view: BoundView, keys: Sequence[Key], read: Callable[[Statement], list[Row]]) -> set[Key]:
    """Which of these entity keys the table does not have; `read` gives the rows of a SELECT of the key columns."""
    table = quote(view.table.schema, view.table.name)
    absent: set[Key] = set()
    for start in range(0, len(keys), KEYS_A_QUERY):
        some = keys[start : start + KEYS_A_QUERY]

        def statement(connection: pymysql.Connection[Any], some: Sequence[Key] = some) -> str:
            wanted = " OR ".join(f"({_equal(connection, view.key, key)})" for key in some)
            return f"SELECT {select_list(view.key)} FROM {table} WHERE {wanted}"

        absent |= set(some) - {tuple(row) for row in read(statement)}
    return absent


def _equal(connection: pymysql.Connection[Any], columns: Sequence[Column], key: Key) -> str:
    """The condition for the row with a key. A collation may take others for equal: compare what comes."""
    return " AND ".join(
        _term(connection, column, "=", value) for column, value in zip(columns, key, strict=True)
    )


def _term(connection: pymysql.Connection[Any], column: Column, comparison: str, value: Any) -> str:
    if isinstance(value, bytes):
        literal = f"X'{value.hex()}'"
    else:
        # A decimal without exponent, or MySQL would compare doubles.
        literal = f"{value:f}" if isinstance(value, Decimal) else connection.escape(value)
    return f"{quote(column.name)} {comparison} {literal}"
