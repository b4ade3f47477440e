"""Keeps which incidents people were told of, and which process tells them: one that tells holds a named lock.

An incident is noted when it is first seen, and forgotten when it is over and people know: a process that begins, or
takes over, goes on where the one before was. Rows hold names, and no reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pymysql

from offsets.lease import lock_name
from offsets.mysql import Session, looking, reading, transaction, unavailable
from viewtail.servers.sessions import Connection, quote, value_of

TABLE = "pipeline_incident"
SILENT_AFTER_S = 60  # the server ends a session that asks nothing for so long, and its lock goes


class IncidentKey(NamedTuple):
    """Which incident: there is one of a kind of a pipeline, or of a view in it."""

    kind: str
    pipeline: str
    view: str  # '': it is the pipeline's


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRecord:
    """One incident, as it is noted."""

    id: int
    key: IncidentKey
    lasted_s: float  # from when it was first seen until it was last seen
    over_s: float | None  # since when it is not seen any more; None: it lasts
    is_told: bool


class TellerLock:
    """The lock of whoever tells people, held by a session of its own; it goes when the process ends or hangs."""

    def __init__(self, open_: Callable[[], Connection], database: str, source: str) -> None:
        self._open = looking(open_)
        self._name = lock_name(database, f"notify:{source}")
        self._connection: Connection | None = None

    def session(self) -> Connection | None:
        """Return the session that holds the lock, for what its owner writes; None where another process has it.

        Raises StoreUnavailableError.
        """
        try:
            if self._connection is None or not self._connection.open:
                self._connection = self._open()
                self._connection.query(f"SET SESSION wait_timeout = {SILENT_AFTER_S}")
            has = "SELECT IF(IS_USED_LOCK(%s) = CONNECTION_ID(), 1, GET_LOCK(%s, 0))"
            if value_of(self._connection, has, self._name, self._name) == 1:
                return self._connection
        except pymysql.err.MySQLError as error:
            self.close()
            raise unavailable(error, "asking who tells people of incidents") from None
        self.close()  # one that does not tell needs no session
        return None

    def close(self) -> None:
        if self._connection is not None and self._connection.open:
            self._connection.close()
        self._connection = None


def read(session: Session, database: str) -> list[IncidentRecord]:
    """Read every incident that is noted, the oldest first."""
    with reading(session, "reading incidents") as cursor:
        cursor.execute(
            "SELECT id, kind, pipeline_name, view_name, "
            "TIMESTAMPDIFF(MICROSECOND, began_at, COALESCE(over_at, CURRENT_TIMESTAMP(6))) / 1e6, "
            "TIMESTAMPDIFF(MICROSECOND, over_at, CURRENT_TIMESTAMP(6)) / 1e6, told_at IS NOT NULL "
            f"FROM {quote(database, TABLE)} ORDER BY began_at, id"
        )
        rows = cursor.fetchall()
    return [
        IncidentRecord(
            id=number,
            key=IncidentKey(kind, pipeline, view),
            lasted_s=float(lasted_s),
            over_s=None if over_s is None else float(over_s),
            is_told=bool(is_told),
        )
        for number, kind, pipeline, view, lasted_s, over_s, is_told in rows
    ]


def note(
    session: Session, database: str, *, new: Sequence[IncidentKey], again: Collection[int], over: Collection[int]
) -> None:
    """Note incidents that were not there, those by their numbers that are there again, and those that are not."""
    if not (new or again or over):
        return
    table = quote(database, TABLE)
    with transaction(session, "noting incidents") as cursor:
        for key in new:
            cursor.execute(f"INSERT IGNORE INTO {table} (kind, pipeline_name, view_name) VALUES (%s, %s, %s)", key)
        if again:
            cursor.execute(f"UPDATE {table} SET over_at = NULL WHERE id IN %s", (sorted(again),))
        if over:
            cursor.execute(f"UPDATE {table} SET over_at = CURRENT_TIMESTAMP(6) WHERE id IN %s", (sorted(over),))


def settle(session: Session, database: str, *, told: Collection[int], forgotten: Collection[int]) -> None:
    """Note that people were told of incidents, and forget those that are over and known."""
    if not (told or forgotten):
        return
    table = quote(database, TABLE)
    with transaction(session, "noting what people were told") as cursor:
        if told:
            cursor.execute(f"UPDATE {table} SET told_at = CURRENT_TIMESTAMP(6) WHERE id IN %s", (sorted(told),))
        if forgotten:
            cursor.execute(f"DELETE FROM {table} WHERE id IN %s", (sorted(forgotten),))
