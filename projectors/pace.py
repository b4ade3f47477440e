"""How fast something may go beside live traffic: a limit of rows a second, and giving way to the pipeline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

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
