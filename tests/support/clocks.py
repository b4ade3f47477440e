"""A clock that tests move by hand."""

from __future__ import annotations

import threading
import time

import pytest


class Clock(threading.Event):
    """Time passes only where somebody waits for this event, or a test says so; a core's time is spent by hand."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now, self.spent = 100.0, 0.0
        self.rested: list[float] = []
        patch.setattr(time, "monotonic", lambda: self.now)
        patch.setattr(time, "thread_time", lambda: self.spent)

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        self.rested.append(timeout)
        return self.is_set()

    def works(self, seconds: float, own_s: float = 0.0) -> None:
        """A step takes so long, and so much of a core's time."""
        self.now += seconds
        self.spent += own_s
