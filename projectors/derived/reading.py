"""Reads derived rows for the stream: from the keys that a batch touched to what their rows are now.

The rows are read in snapshots that show the whole batch, and are written under the versions of the changes, so the
guard settles what is read later, too: such a row may show changes that come in a later batch, which writes it again
under a higher version; and a process that comes late with an older version writes nothing. A key without a row is a
tombstone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, filterfalse
from math import inf
from operator import itemgetter
from typing import Any, TypeVar

import pymysql
import structlog

from ingest import Committed
from ingest.canonical.rows import source_error
from projectors.derived import DerivedRows
from viewtail.changes.batches import Batch, Refused, Row, RowChanges, bytes_of
from viewtail.changes.errors import SnapshotTooOldError, SourceUnavailableError, StopRequested, ViewtailError
from viewtail.changes.writes import Key
from viewtail.servers.literals import rows_with, where_all
from viewtail.servers.sessions import SNAPSHOT, Connection

_log = structlog.get_logger("viewtail.pipeline")

KEYS_A_QUERY = 1_000
RETRY_S = 0.5
SLICE_BYTES = 4 << 20  # one slice is in memory, as rows and as what views make of them
LOOK_EVERY_S, LOOK_AT_MOST_EVERY_S = 0.002, 0.05  # a commit is mostly shown at once; one that waits takes its time
TROUBLE_AFTER_S = 1.0
_NOT_SHOWN = (
    "the source does not show changes that its binlog has told, so rows cannot be read again yet. A commit that waits "
    "for a replica goes on when that answers; where the source's address stands for several servers, name one of them"
)
Shows = Callable[[Any, Committed], bool]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Slice:
    """Some of the keys that were touched, with their rows."""

    versions: Mapping[Key, int]  # of all keys of the slice
    rows: Mapping[Key, Row]  # of those that have one
    is_last: bool


class DerivedReader:
    """Reads for one pipeline. Not thread-safe; opens a session of its own when first asked.

    Args:
        open_source: a session on the server whose changes are read.
        shows: whether a snapshot of a cursor's transaction has some changes.
        stop: ends the wait for that.
    """

    def __init__(self, open_source: Callable[[], Connection], shows: Shows, stop: threading.Event) -> None:
        self._open, self._shows, self._stop = open_source, shows, stop
        self._connection: Connection | None = None
        self.trouble: str | None = None  # why it waits, where that takes long

    def slices(
        self, derived: DerivedRows, needed: Sequence[str], versions: Mapping[Key, int], changes: Committed
    ) -> Iterator[Slice]:
        """The rows of some keys, SLICE_BYTES of them at a time, with the columns of these names.

        Each slice is read in a snapshot of its own that shows the changes. What changed between two snapshots touches
        its keys again.
        Raises StopRequested, SourceError.
        """
        left, most_bytes = list(versions), float(SLICE_BYTES)
        while left:
            read = partial(rows_by_key, derived=derived, needed=needed, keys=left, most_bytes=most_bytes)
            rows, left_over = self.in_snapshot(changes, read)
            not_read = {*left_over}
            done = {key: versions[key] for key in left if key not in not_read}
            # A collation may take more keys than were asked for. Where those alone fill a slice, all are read at once.
            most_bytes = SLICE_BYTES if done else inf
            left = left_over
            if done:
                yield Slice(done, {key: rows[key] for key in done if key in rows}, is_last=not left)

    def in_snapshot(self, changes: Committed, read: Callable[[Connection], T]) -> T:
        """What `read` reads in a snapshot that shows some changes. A server that is away is waited for.

        Raises StopRequested, SourceError.
        """
        began, pause_s = time.monotonic(), LOOK_EVERY_S
        while True:
            try:
                connection = self._session()
                with connection.cursor() as cursor:
                    cursor.execute(SNAPSHOT)
                    if self._shows(cursor, changes):
                        answer = read(connection)
                        if connection.open:
                            connection.commit()
                        self.trouble = None
                        return answer
                connection.commit()
                self._not_shown(time.monotonic() - began)
                pause_s = min(2 * pause_s, LOOK_AT_MOST_EVERY_S)
            except (pymysql.err.MySQLError, SourceUnavailableError) as error:
                pause_s = self._pause_behind(error)
            except BaseException:
                self.close()
                raise
            if self._stop.wait(pause_s):
                raise StopRequested

    def _pause_behind(self, error: pymysql.err.MySQLError | SourceUnavailableError) -> float:
        """How long to wait behind an error until the rows are read again. Raises it where that does not help."""
        failed = error if isinstance(error, SourceUnavailableError) else self._failed(error)
        if isinstance(failed, SnapshotTooOldError):
            return LOOK_EVERY_S  # the session is as it was
        self.close()
        if not isinstance(failed, SourceUnavailableError):
            raise failed from None
        _log.warning("rows cannot be read back yet", error=str(failed))
        self.trouble = str(failed)
        return RETRY_S

    def _not_shown(self, for_s: float) -> None:
        if for_s < TROUBLE_AFTER_S:
            return
        if self.trouble != _NOT_SHOWN:
            _log.warning("rows cannot be read back yet", error=_NOT_SHOWN)
        self.trouble = _NOT_SHOWN

    def _failed(self, error: pymysql.err.MySQLError) -> ViewtailError:
        assert self._connection is not None
        return source_error(error, self._connection)

    def close(self) -> None:
        """Give the session up; the next reading opens another."""
        if self._connection is not None and self._connection.open:
            self._connection.close()
        self._connection = None

    def _session(self) -> Connection:
        if self._connection is None or not self._connection.open:
            self._connection = self._open()
            with self._connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return self._connection


def rows_by_key(
    connection: Connection,
    *,
    derived: DerivedRows,
    needed: Sequence[str],
    keys: list[Key],
    most_bytes: float = SLICE_BYTES,
) -> tuple[dict[Key, Row], list[Key]]:
    """Rows by key, about `most_bytes` of them, and the keys that are left."""
    columns = [column for column in derived.table.columns if column.name in needed]
    names = [column.name for column in columns]
    key_at = [names.index(name) for name in derived.table.primary_key]
    key_columns = [columns[at] for at in key_at]
    by_key: dict[Key, Row] = {}
    size, at = 0, 0
    while at < len(keys) and size < most_bytes:
        where = where_all(rows_with(key_columns, keys[at : at + KEYS_A_QUERY]))
        rows = derived.fetch(connection, columns, where, max_bytes=most_bytes)
        by_key.update(zip(_keys(rows, key_at), rows, strict=True))
        if not connection.open:  # there were more bytes, and which keys have no row is not known
            return by_key, list(filterfalse(by_key.__contains__, keys[at:]))
        size += bytes_of(chain.from_iterable(rows))
        at += KEYS_A_QUERY
    return by_key, keys[at:]


def _keys(rows: Sequence[Row], key_at: Sequence[int]) -> Iterator[Key]:
    if len(key_at) > 1:
        return map(itemgetter(*key_at), rows)
    (at,) = key_at
    return ((row[at],) for row in rows)


def committed(batch: Batch) -> Committed:
    """The changes of a batch, which has some."""
    events: list[RowChanges | Refused] = [*batch.changes, *batch.refused]
    last_events = {bytes(event.transaction): event for event in events}
    gtids = frozenset(batch.origin_of(event).gtid for event in last_events.values())
    return Committed(gtids=gtids, version=last_event(batch).version)


def last_event(batch: Batch) -> RowChanges | Refused:
    """The newest event of a batch, which has some."""
    events: list[RowChanges | Refused] = [*batch.changes, *batch.refused]
    return max(events, key=lambda event: event.version)
