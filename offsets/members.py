"""The processes of a deployment: a row each, and a lock that a session of the process holds while it lives.

As with leases, the server ends a session that is silent for too long, so a process that hangs counts as silent within
seconds, and no clock is compared. A row without its lock is of one that died, hangs or is cut off.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pymysql

from offsets.lease import SESSION_TIMEOUT_S, lock_name
from offsets.mysql import unavailable
from viewtail.changes.errors import StoreUnavailableError
from viewtail.servers.sessions import Connection, quote, value_of

FORGET_AFTER_S = 600.0  # a silent process


@dataclass(frozen=True, slots=True)
class Member:
    """One process."""

    name: str  # host and process id
    store: str  # whose pipelines it runs, or stands by for
    is_in_group: bool  # it shares out the source with others, in a consumer group
    started_at: str  # UTC
    is_silent: bool


class Membership:
    """Makes this process a member, over one session. Raises StoreUnavailableError."""

    def __init__(self, session: Connection, database: str, name: str) -> None:
        self._session = session
        self._table = quote(database, "pipeline_member")
        self._database = database
        self._name = name
        self._silent: dict[str, float] = {}  # since when, by name

    def begin(self, store: str, *, is_in_group: bool) -> None:
        lock = lock_name(self._database, f"member:{self._name}")
        columns = "(name, store, is_in_group, lock_name)"
        try:
            with self._session.cursor() as cursor:
                cursor.execute(f"SET SESSION wait_timeout = {SESSION_TIMEOUT_S}")
                if value_of(self._session, "SELECT GET_LOCK(%s, 0)", lock) != 1:
                    raise StoreUnavailableError(f"another session is member {self._name}; viewtail tries again")
                cursor.execute(
                    f"INSERT INTO {self._table} {columns} VALUES (%s, %s, %s, %s) "
                    "ON DUPLICATE KEY UPDATE store = VALUES(store), is_in_group = VALUES(is_in_group)",
                    (self._name, store, is_in_group, lock),
                )
            self._session.commit()
        except pymysql.err.MySQLError as error:
            raise unavailable(error, "becoming a member") from None

    def count(self, store: str) -> int:
        """Count the processes that run a store's pipelines or stand by; asked often, it keeps the session alive."""
        try:
            with self._session.cursor() as cursor:
                members = read(cursor, self._database)
                self._forget(cursor, [member.name for member in members if member.is_silent])
            self._session.commit()
        except pymysql.err.MySQLError as error:
            raise unavailable(error, "counting members") from None
        return sum(member.store == store and not member.is_silent for member in members)

    def end(self) -> None:
        try:
            with self._session.cursor() as cursor:
                cursor.execute(f"DELETE FROM {self._table} WHERE name = %s", (self._name,))
            self._session.commit()
        except pymysql.err.MySQLError as error:
            raise unavailable(error, "leaving the members") from None

    def _forget(self, cursor: Any, silent: list[str]) -> None:
        now = time.monotonic()
        self._silent = {name: self._silent.get(name, now) for name in silent}
        for name, since in self._silent.items():
            if now - since > FORGET_AFTER_S:
                gone = "name = %s AND IS_USED_LOCK(lock_name) IS NULL"
                cursor.execute(f"DELETE FROM {self._table} WHERE {gone}", (name,))


def read(cursor: Any, database: str) -> list[Member]:
    """Read all members, the silent ones too."""
    cursor.execute(
        "SELECT name, store, is_in_group, DATE_FORMAT(started_at, '%Y-%m-%d %H:%i:%s'), "
        f"IS_USED_LOCK(lock_name) IS NULL FROM {quote(database, 'pipeline_member')} ORDER BY store, started_at, name",
        (),
    )
    return [
        Member(name, store, bool(shares), at, bool(silent)) for name, store, shares, at, silent in cursor.fetchall()
    ]
