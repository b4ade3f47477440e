"""A pace that waits while the source is busy: its statements at once, and a replica's lag."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pymysql

from projectors.pace import Pace
from viewtail.changes.errors import ViewtailError
from viewtail.servers.sessions import Connection

MAX_THREADS_RUNNING = 25  # as pt-online-schema-change has it by default
MAX_REPLICA_LAG_S = 5.0
LOOK_EVERY_S = 1.0
_WAIT_S = 0.5


@dataclass(eq=False, kw_only=True)
class ConsideratePace(Pace):
    """A limit that also waits while the source is busy.

    Args:
        open_source: a session on the server that is read.
        say: is told why it waits.
        max_threads_running: statements that the source runs at once.
    """

    open_source: Callable[[], Connection]
    say: Callable[[str], None]
    max_threads_running: int = MAX_THREADS_RUNNING
    _session: Connection | None = None
    _looked_at: float = float("-inf")

    def after(self, rows: int) -> None:
        super().after(rows)
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return
        has_said = False
        while not self.stop.is_set() and (why := self._why_wait()) is not None:
            if not has_said:
                self.say(why)
            has_said = True
            self.stop.wait(_WAIT_S)
        self._looked_at = time.monotonic()

    def close(self) -> None:
        if self._session is not None and self._session.open:
            self._session.close()

    def _why_wait(self) -> str | None:
        """Why the source has no time now; None too where it does not say."""
        with suppress(pymysql.err.MySQLError, ViewtailError):
            if self._session is None or not self._session.open:
                self._session = self.open_source()
                self._session.autocommit(True)
            with self._session.cursor() as cursor:
                cursor.execute("SHOW GLOBAL STATUS LIKE 'Threads_running'")
                (_, running), *_ = cursor.fetchall()
            if int(running) > self.max_threads_running:
                return f"the source runs {running} statements at once, more than {self.max_threads_running}"
            lag_s = _replica_lag_s(self._session)
            if lag_s > MAX_REPLICA_LAG_S:
                return f"the source is a replica, and {lag_s:.0f} s behind its primary"
        return None


def _replica_lag_s(session: Connection) -> float:
    """0.0 where the server is no replica, or does not let the user ask."""
    with suppress(pymysql.err.MySQLError), session.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute("SHOW REPLICA STATUS")
        found = [row.get("Seconds_Behind_Source", row.get("Seconds_Behind_Master")) for row in cursor.fetchall()]
        return max((float(one) for one in found if one is not None), default=0.0)
    return 0.0
