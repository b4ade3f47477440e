"""Throttles: how fast work may go that reads many rows beside live traffic.

Work goes in steps. It tells its throttle when a step begins and how many rows the step read, and goes on when the
throttle returns. Each throttle limits by one thing; `Throttles` composes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pymysql

from viewtail.changes.errors import ViewtailError
from viewtail.servers.sessions import Connection

LOOK_EVERY_S = 1.0  # at a busy source, or a busy pipeline

MAX_THREADS_RUNNING = 25  # as pt-online-schema-change has it by default
MAX_REPLICA_LAG_S = 5.0
_WAIT_S = 0.5

MOST_RESTED_S = 5.0
LIVE_WITHIN_S = 1.0  # a pipeline that had no change for so long does not mind
LATE_ABOVE_S = 1.0
LATE_REST = 20.0  # times as long as a step took, for one that is late: then the next step comes all the same
MOST_WAITED_S = 10.0
_LOOK_AGAIN_S = 0.05

LIVE_PART = 20  # less than one change in a hundred meets a step then (measured: bench/cleaning.py)
MOST_LIVE_REST_S = 20.0  # a store's pages stay open for minutes, and what changed a moment ago is looked at for one
MOST_BESIDE = 10  # times its own processor time; what takes longer waited for the pipeline, and was no work


class Throttle:
    """The interface; by itself it limits nothing."""

    def begin(self) -> None:
        """A step begins now. Without this call it begins when the last `after` returned."""

    def after(self, rows: int) -> None:
        """A step read so many rows: return when the next one may begin, or when the work is to stop."""

    def close(self) -> None: ...


class Throttles(Throttle):
    """All of these, one after the other. One that measures its steps (live traffic) counts waits of those before it."""

    def __init__(self, *parts: Throttle) -> None:
        self._parts = parts

    def begin(self) -> None:
        for part in self._parts:
            part.begin()

    def after(self, rows: int) -> None:
        for part in self._parts:
            part.after(rows)
        self.begin()

    def close(self) -> None:
        for part in self._parts:
            part.close()


@dataclass(eq=False)
class RateThrottle(Throttle):
    """Lets at most so many rows a second pass, on the average; 0: there is no limit."""

    rows_a_second: float
    stop: threading.Event
    _count: int = 0

    def __post_init__(self) -> None:
        self._began_at = time.monotonic()

    def after(self, rows: int) -> None:
        self._count += rows
        if self.rows_a_second:
            ahead_s = self._count / self.rows_a_second - (time.monotonic() - self._began_at)
            if ahead_s > 0:
                self.stop.wait(ahead_s)


@dataclass(eq=False, kw_only=True)
class SourceLoadThrottle(Throttle):
    """Waits while the source runs many statements, or lags as a replica."""

    stop: threading.Event
    open_source: Callable[[], Connection]
    say: Callable[[str], None]  # is told why it waits
    max_threads_running: int = MAX_THREADS_RUNNING
    _session: Connection | None = None
    _looked_at: float = float("-inf")

    def after(self, rows: int) -> None:
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return
        if not self.stop.is_set() and (why := self._why_wait()) is not None:
            self.say(why)
            while not self.stop.wait(_WAIT_S) and self._why_wait() is not None:
                pass
        self._looked_at = time.monotonic()

    def close(self) -> None:
        if self._session is not None and self._session.open:
            self._session.close()

    def _why_wait(self) -> str | None:
        """Return why the source has no time now; None too where it does not say."""
        with suppress(pymysql.err.MySQLError, ViewtailError):
            if self._session is None or not self._session.open:
                self._session = self.open_source()
                self._session.autocommit(True)
            with self._session.cursor() as cursor:
                cursor.execute("SHOW GLOBAL STATUS LIKE 'Threads_running'")
                (_, running), *_ = cursor.fetchall()
            if int(running) > self.max_threads_running:
                return f"the source runs {running} statements at once, more than {self.max_threads_running}"
            lag_s = replica_lag_s(self._session)
            if lag_s > MAX_REPLICA_LAG_S:
                return f"the source is a replica, and {lag_s:.0f} s behind its primary"
        return None


def replica_lag_s(session: Connection) -> float:
    """Return 0.0 where the server is no replica, or does not let the user ask."""
    with suppress(pymysql.err.MySQLError), session.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute("SHOW REPLICA STATUS")
        lags = [row.get("Seconds_Behind_Source", row.get("Seconds_Behind_Master")) for row in cursor.fetchall()]
        return max((float(lag_s) for lag_s in lags if lag_s is not None), default=0.0)
    return 0.0


@dataclass(eq=False)
class LiveTraffic:
    """Tells whether changes come to a pipeline now, and whether it is late."""

    count: Callable[[], int]  # of the changes that it has had
    lag_s: Callable[[], float] = lambda: 0.0
    _seen: int = -1
    _seen_at: float = 0.0

    def is_live(self) -> bool:
        """Return whether changes came in the last second, or since the last call."""
        now = time.monotonic()
        if (count := self.count()) != self._seen:
            self._seen, self._seen_at = count, now
        return now - self._seen_at < LIVE_WITHIN_S or self.is_late()

    def is_late(self) -> bool:
        return self.lag_s() > LATE_ABOVE_S


@dataclass(eq=False, kw_only=True)
class LiveTrafficThrottle(Throttle):
    """Rests behind each step, for work that nobody waits for; longer while the pipeline is late.

    Each step is a transaction, and rows of the pipeline wait behind it: so most of the time there is none.
    """

    stop: threading.Event
    rest: float  # times as long as the step took
    most_rested_s: float = MOST_RESTED_S
    is_live: Callable[[], bool] = lambda: True  # whether changes come: else there is no rest
    is_late: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._step_at = time.monotonic()

    def after(self, rows: int) -> None:
        now = time.monotonic()
        if self.is_live():
            took_s = now - self._step_at
            self.stop.wait(min(self.rest * took_s, self.most_rested_s))
            upto = now + min(LATE_REST * took_s, MOST_WAITED_S)
            while self.is_late() and (left_s := upto - time.monotonic()) > 0 and not self.stop.is_set():
                self.stop.wait(min(left_s, _LOOK_AGAIN_S))
        self.begin()


@dataclass(eq=False, kw_only=True)
class CpuShareThrottle(Throttle):
    """Lets a thread work for a share of one core's time: less while changes come, not at all beside a busy pipeline.

    What the servers do for it counts as its own time: a live change waits behind that as well.
    """

    share: float
    stop: threading.Event
    is_busy: Callable[[], bool]  # whether the pipeline has other things to do
    is_live: Callable[[], bool] = lambda: False  # whether changes come, and a LIVE_PART of the share is left
    owing_s: float = 0.0  # of its rest, at the most: a little work is done at once
    _owed_s: float = 0.0

    def __post_init__(self) -> None:
        self._at = self._step_at = time.monotonic()
        self._spent_at = time.thread_time()

    def begin(self) -> None:
        """A step begins now: what took time until now was waiting."""
        self._step_at = time.monotonic()

    def waited(self, seconds: float) -> None:
        """So much of this step was waiting."""
        self._step_at += seconds

    def after(self, rows: int) -> None:
        now, own_s = time.monotonic(), time.thread_time() - self._spent_at
        spent_s = max(own_s, min(now - self._step_at, MOST_BESIDE * own_s))
        self._owed_s = max(0.0, self._owed_s - (now - self._at)) + spent_s * (1 / self.share - 1)
        self._at = now
        self.stop.wait(max(0.0, self._owed_s - self.owing_s))
        upto = now + min(MOST_LIVE_REST_S, spent_s * (LIVE_PART / self.share - 1))
        while self.is_live() and (left_s := upto - time.monotonic()) > 0:
            if self.stop.wait(min(left_s, LOOK_EVERY_S)):
                return
        while self.is_busy() and not self.stop.wait(LOOK_EVERY_S):
            pass
        self._spent_at = time.thread_time()
        self.begin()
