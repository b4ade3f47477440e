"""Writes a row that comes alone, in each of its views: commits it at once, on a session of its own, the offset later.

A busy pipeline commits many rows with their offset. At low rates a batch is one row, and moving the offset with each
would be most of the work: one more statement, one more round trip, a larger transaction, more binlog. To keep a fenced
owner from writing, each statement gets its version to write only if it finds the owner's fence, under a lock. After a
restart the rows behind the late offset are read again; the guard makes that harmless. It does the same when some
statements of a row were committed and another one failed: the caller then writes all of them again.

This is a shortcut and decides nothing: the sink's usual way handles whatever is out of the ordinary."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pymysql

from offsets import Owner
from projectors.stores import Item
from projectors.stores.index_tables.upserts import Upsert
from viewtail.changes.errors import ViewtailError
from viewtail.servers.pipelined import Flight, Prepared
from viewtail.servers.sessions import Connection

MOST_VIEWS = 4  # one row each; with more views a transaction with the offset costs little more
REOPEN_AFTER_S = 5.0  # so that a broken session is not reopened for every row


class SingleRows:
    """Writes single rows with the owner's fence. Not thread-safe; a pipeline's sink has one."""

    def __init__(self, open_: Callable[[], Connection]) -> None:
        self._open = open_
        self._connection: Connection | None = None
        self._prepared: dict[str, tuple[Upsert, Owner, Prepared]] = {}
        self._closed_at = -REOPEN_AFTER_S

    def write(self, rows: Sequence[tuple[Upsert, Item]], owner: Owner) -> bool:
        """Write the rows; True if all are durable. Otherwise the caller writes them in the usual way."""
        try:
            connection = self._living()
            if connection is None:
                return False
            packed = [
                self._ready(connection, upsert, owner).packed((*upsert.parameters(item), owner.id, owner.fence))
                for upsert, item in rows
            ]
            flight = Flight(connection)
            if len(packed) > 1:  # each commit waits for the disk
                flight.send(b"BEGIN")
            for execution in packed:
                flight.execute(execution)
            if len(packed) > 1:
                flight.send(b"COMMIT")
            answers = flight.land()
        except UnicodeEncodeError:
            return False
        except (pymysql.err.MySQLError, ViewtailError):
            self.close()
            self._closed_at = time.monotonic()
            return False
        return all(isinstance(answer, int) for answer in answers)

    def close(self) -> None:
        connection, self._connection, self._prepared = self._connection, None, {}
        if connection is not None and connection.open:
            connection.close()

    def _living(self) -> Connection | None:
        if self._connection is None and time.monotonic() - self._closed_at >= REOPEN_AFTER_S:
            self._connection = self._open()
            self._connection.autocommit(True)
        return self._connection

    def _ready(self, connection: Connection, upsert: Upsert, owner: Owner) -> Prepared:
        known = self._prepared.get(upsert.view.id)
        if known is not None and known[0] is upsert and known[1] == owner:
            return known[2]
        if known is not None:
            known[2].close()
        prepared = Prepared(connection, upsert.owned_by(owner))
        self._prepared[upsert.view.id] = (upsert, owner, prepared)
        return prepared
