"""How fast something may go beside live traffic: a limit of rows a second, a source that has time, and giving way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pymysql

from changes.errors import ViewtailError
from servers.sessions import Connection

MAX_THREADS_RUNNING = 25  # as pt-online-schema-change has it by default
MAX_REPLICA_LAG_S = 5.0
LOOK_EVERY_S = 1.0
_WAIT_S = 0.5

# Of work that gives way. Each chunk is a transaction, and rows of the pipeline wait behind it: so it has few rows, as
# the store says, and most of the time there is none (measured: bench/operators.py, docs/performance.md).
REST = 2.0  # times as long as a step took, where no store says another
MOST_RESTED_S = 5.0
LIVE_WITHIN_S = 1.0  # a pipeline that had no change for so long does not mind
LATE_ABOVE_S = 1.0
LATE_REST = 20.0  # times as long as a step took, for one that is late: then the next step comes all the same
MOST_WAITED_S = 10.0
LOOK_AGAIN_S = 0.05


@dataclass(eq=False)
class Pace:
    """A limit: at most so many rows a second on the average; 0: as many as there are."""

    rows_a_second: float
    stop: threading.Event
    _began_at: float = field(default_factory=time.monotonic)
    _count: int = 0

    def begin(self) -> None:
        """A step begins now."""

    def after(self, rows: int) -> None:
        """So many rows were read: wait as long as the limit asks for."""
        self._count += rows
        if self.rows_a_second:
            ahead_s = self._count / self.rows_a_second - (time.monotonic() - self._began_at)
            if ahead_s > 0:
                self.stop.wait(ahead_s)


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


@dataclass(eq=False, kw_only=True)
class GivingWay(Pace):
    """Work that nobody waits for: behind each step a rest, and a longer one while the pipeline is late.

    Args:
        changes: how many changes the pipeline has had; None: it is not known, and each rest is taken.
        lag_s: of that pipeline.
        rest: times as long as the step took.
    """

    rows_a_second: float = 0
    changes: Callable[[], int] | None = None
    lag_s: Callable[[], float] = lambda: 0.0
    rest: float = REST
    _step_at: float = field(default_factory=time.monotonic)  # when the present step began
    _seen: int = -1
    _live_at: float = 0.0

    def begin(self) -> None:
        """A step begins now; else it begins when the rest before it ends."""
        self._step_at = time.monotonic()

    def after(self, rows: int) -> None:
        super().after(rows)
        now = time.monotonic()
        if self.is_live():
            took_s = now - self._step_at
            self.stop.wait(min(self.rest * took_s, MOST_RESTED_S))
            upto = now + min(LATE_REST * took_s, MOST_WAITED_S)
            while self.lag_s() > LATE_ABOVE_S and (left_s := upto - time.monotonic()) > 0 and not self.stop.is_set():
                self.stop.wait(min(left_s, LOOK_AGAIN_S))
        self.begin()

    def is_live(self) -> bool:
        """Whether changes come; asked now and then."""
        if self.changes is None:
            return True
        now = time.monotonic()
        if (count := self.changes()) != self._seen:
            self._seen, self._live_at = count, now
        return now - self._live_at < LIVE_WITHIN_S or self.lag_s() > LATE_ABOVE_S
