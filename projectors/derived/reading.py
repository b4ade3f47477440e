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
from math import inf
from typing import Any, TypeVar

import pymysql
import structlog

from ingest import Committed
from ingest.canonical.rows import source_error
from projectors.derived import DerivedRows
from viewtail.changes.batches import Batch, Refused, Row, RowChanges
from viewtail.changes.errors import SourceUnavailableError, StopRequested, ViewtailError
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
    """Rows by key, of some keys; those without a row are missing."""

    keys: Sequence[Key]
    rows: Mapping[Key, Row]
    is_last: bool


class DerivedReader:
    """Of one pipeline. Not thread-safe; opens a session of its own when first asked.

    Args:
        open_source: a session on the server whose changes are read.
        shows: whether a snapshot of a cursor's transaction has some changes.
        stop: ends the wait for that.
    """

    def __init__(self, open_source: Callable[[], Connection], shows: Shows, stop: threading.Event) -> None:
        self._open, self._shows, self._stop = open_source, shows, stop
        self._connection: Connection | None = None
        self.trouble: str | None = None  # why it waits, where that takes long

    def slices(self, derived: DerivedRows, keys: Sequence[Key], changes: Committed) -> Iterator[Slice]:
        """The rows of these keys, some SLICE_BYTES of them at a time; each of the columns of `derived.table`.

        Each slice is read in a snapshot of its own, which shows some changes. A server that is away is waited for.
        Raises StopRequested, SourceError.
        """
        left, most_bytes = keys, float(SLICE_BYTES)
        while left:
            rows, behind = self._shown(changes, partial(_some, derived=derived, keys=left, most_bytes=most_bytes))
            gone = {*behind}
            done = [key for key in left if key not in gone]
            # A collation may take more keys than were asked for. Where those alone fill a slice, all are read at once.
            most_bytes = SLICE_BYTES if done else inf
            left = behind
            if done:
                yield Slice(done, {key: rows[key] for key in done if key in rows}, is_last=not left)

    def _shown(self, changes: Committed, read: Callable[[Connection], T]) -> T:
        """What `read` reads in a snapshot that shows some changes."""
        began, pause_s = time.monotonic(), LOOK_EVERY_S
        while True:
            try:
                connection = self._session()
                with connection.cursor() as cursor:
                    cursor.execute(SNAPSHOT)
                    if self._shows(cursor, changes):
                        found = read(connection)
                        if connection.open:
                            connection.commit()
                        self.trouble = None
                        return found
                connection.commit()
                self._not_shown(time.monotonic() - began)
                pause_s = min(2 * pause_s, LOOK_AT_MOST_EVERY_S)
            except (pymysql.err.MySQLError, SourceUnavailableError) as error:
                failed = error if isinstance(error, SourceUnavailableError) else self._failed(error)
                self.close()
                if not isinstance(failed, SourceUnavailableError):
                    raise failed from None
                _log.warning("rows cannot be read back yet", error=str(failed))
                self.trouble = str(failed)
                pause_s = RETRY_S
            except BaseException:
                self.close()
                raise
            if self._stop.wait(pause_s):
                raise StopRequested

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


def _some(
    connection: Connection, *, derived: DerivedRows, keys: Sequence[Key], most_bytes: float
) -> tuple[dict[Key, Row], Sequence[Key]]:
    """Rows by key, about `most_bytes` of them, and the keys that are left."""
    columns = derived.table.columns
    key = [column for column in columns if column.name in derived.table.primary_key]
    found: dict[Key, Row] = {}
    size, at = 0, 0
    while at < len(keys) and size < most_bytes:
        where = where_all(rows_with(key, keys[at : at + KEYS_A_QUERY]))
        rows = derived.fetch(connection, columns, where, max_bytes=most_bytes)
        found.update((tuple(row[: len(key)]), row) for row in rows)
        if not connection.open:  # there were more bytes, and which keys have no row is not known
            return found, [one for one in keys[at:] if one not in found]
        size += sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
        at += KEYS_A_QUERY
    return found, keys[at:]


def committed(batch: Batch) -> Committed:
    """The changes of a batch, which has some."""
    events: list[RowChanges | Refused] = [*batch.changes, *batch.refused]
    one_of_each = {bytes(event.transaction): event for event in events}
    gtids = frozenset(batch.origin_of(event).gtid for event in one_of_each.values())
    return Committed(gtids=gtids, version=max(event.version for event in events))
