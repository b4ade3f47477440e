"""From the keys that a batch changed to the rows that views show of them now: for views of more than the changed row.

The rows are read in one snapshot that shows the whole batch, and are written under the versions of the changes, so the
guard settles what is read later, too: such a row may show changes that come in a later batch, which writes it again
under a higher version; and a process that comes late with an older version writes nothing. A key without a row is a
tombstone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pymysql
import structlog

from changes.batches import Batch, Refused, Row, RowChanges
from changes.errors import SourceUnavailableError, StopRequested, ViewtailError
from changes.tables import Column
from changes.writes import Key
from ingest import Committed
from ingest.canonical.newest_cells import NewestCells
from ingest.canonical.rows import fetch_rows, select_list, source_error
from servers.literals import rows_with, where_all
from servers.sessions import Connection

_log = structlog.get_logger("viewtail.pipeline")

KEYS_A_QUERY = 1_000
RETRY_S = 0.5
LOOK_EVERY_S = 0.002
SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
Shows = Callable[[Any, Committed], bool]


class ReadBack:
    """Of one pipeline. Not thread-safe; opens a session of its own when first asked.

    Args:
        open_source: a session on the server whose changes are read.
        shows: whether a snapshot of a cursor's transaction has some changes.
        stop: ends the wait for that.
    """

    def __init__(self, open_source: Callable[[], Connection], shows: Shows, stop: threading.Event) -> None:
        self._open, self._shows, self._stop = open_source, shows, stop
        self._connection: Connection | None = None

    def rows(self, cells: NewestCells, keys: Sequence[Key], changes: Committed) -> dict[Key, Row]:
        """The rows of these keys, by key, in a snapshot that shows some changes; each of the columns of `cells.rows`.

        Keys without a row are missing.

        A server that is away is waited for. Raises StopRequested, SourceError.
        """
        table = cells.rows
        key = [column for column in table.columns if column.name in cells.key]
        found: dict[Key, Row] = {}
        wanted = {*keys}
        while True:
            try:
                connection = self._session()
                with connection.cursor() as cursor:
                    cursor.execute(SNAPSHOT)
                    if self._shows(cursor, changes):
                        for row in self._all(connection, cells, table.columns, key, keys):
                            found[tuple(row[: len(key)])] = row
                        connection.commit()
                        return {one: row for one, row in found.items() if one in wanted}  # a collation may take more
                connection.commit()
                pause_s = LOOK_EVERY_S
            except (pymysql.err.MySQLError, SourceUnavailableError) as error:
                failed = error if isinstance(error, SourceUnavailableError) else self._failed(error)
                self.close()
                if not isinstance(failed, SourceUnavailableError):
                    raise failed from None
                _log.warning("rows cannot be read back yet", error=str(failed))
                pause_s = RETRY_S
            except BaseException:
                self.close()
                raise
            if self._stop.wait(pause_s):
                raise StopRequested

    @staticmethod
    def _all(
        connection: Connection,
        cells: NewestCells,
        columns: Sequence[Column],
        key: Sequence[Column],
        keys: Sequence[Key],
    ) -> Iterator[Row]:
        for at in range(0, len(keys), KEYS_A_QUERY):
            where = where_all(rows_with(key, keys[at : at + KEYS_A_QUERY]))
            yield from fetch_rows(connection, cells.select(select_list(columns), where), columns)

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


def committed(batch: Batch) -> Committed:
    """The changes of a batch, which has some."""
    events: list[RowChanges | Refused] = [*batch.changes, *batch.refused]
    one_of_each = {bytes(event.transaction): event for event in events}
    gtids = frozenset(batch.origin_of(event).gtid for event in one_of_each.values())
    return Committed(gtids=gtids, version=max(event.version for event in events))
