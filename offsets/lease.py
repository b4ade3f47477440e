"""Who owns a pipeline right now: a named MySQL lock, held by a session.

The lock says who should run, the fence (offsets/mysql.py) makes it safe. A lock costs no binlog writes; it goes
when its session ends: at once when the owner dies, and after `SESSION_TIMEOUT_S` when the owner is stopped or cut
off, because the server ends sessions that are silent for so long.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any

import pymysql

from changes.errors import FencedError, StoreUnavailableError
from offsets.mysql import unavailable

SESSION_TIMEOUT_S = 6
RENEW_EVERY_S = 1.5


def lock_name(database: str, pipeline: str) -> str:
    """At most 64 characters, MySQL's limit for a lock name."""
    name = f"viewtail:{database}:{pipeline}"
    return name if len(name) <= 64 else "viewtail:" + hashlib.sha256(name.encode()).hexdigest()[:48]


class Lease:
    """The lock of one pipeline; `is_lost` is set as soon as the owner can no longer be sure of it."""

    def __init__(self, open_: Callable[[], pymysql.Connection[Any]], database: str, pipeline: str) -> None:
        self._open = open_
        self._name = lock_name(database, pipeline)
        self._pipeline = pipeline
        self._connection: pymysql.Connection[Any] | None = None
        self._renewing: threading.Thread | None = None
        self._stop = threading.Event()
        self.is_lost = threading.Event()

    def acquire(self, timeout_s: int) -> bool:
        """Wait up to `timeout_s` seconds for the lock; False when another owner has it still."""
        try:
            if self._connection is None or not self._connection.open:
                self._connection = self._open()
                self._ask(f"SET SESSION wait_timeout = {SESSION_TIMEOUT_S}")
            if self._ask("SELECT GET_LOCK(%s, %s)", self._name, timeout_s) != 1:
                return False
        except pymysql.err.MySQLError as error:
            self._drop()
            raise unavailable(error, f"taking the lease of pipeline {self._pipeline}") from None
        self.is_lost.clear()
        self._stop.clear()
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._renewing.start()
        return True

    def check(self) -> None:
        """Raises FencedError when the lease went; the fence would find it out too, but later."""
        if self.is_lost.is_set():
            raise FencedError(f"pipeline {self._pipeline}: the lease was lost; standing by for it")

    def release(self) -> None:
        self._stop.set()
        if self._renewing is not None:
            self._renewing.join()
            self._renewing = None
        self._drop()

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_EVERY_S):
            try:
                is_ours = self._ask("SELECT IS_USED_LOCK(%s) = CONNECTION_ID()", self._name) == 1
            except (pymysql.err.MySQLError, StoreUnavailableError):
                is_ours = False
            if not is_ours:
                self.is_lost.set()
                return

    def _ask(self, statement: str, *arguments: object) -> Any:
        assert self._connection is not None
        with self._connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            row = cursor.fetchone()
        return row[0] if row else None

    def _drop(self) -> None:
        if self._connection is not None and self._connection.open:
            self._connection.close()
        self._connection = None
