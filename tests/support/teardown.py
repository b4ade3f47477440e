"""An alarm for what is torn down behind a test that failed: pytest-timeout gives its own up as soon as one has.

Without it a fixture that waits for ever then, for a session that the failed test left open, would end only with the
time of the whole run, and nothing would say where.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Generator
from types import FrameType

import pytest


class BoundedTeardown:
    """A pytest plugin: each teardown may take so many seconds, and is broken off, with an error, at each such time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        if signal.getitimer(signal.ITIMER_REAL)[0]:  # the test passed, and its own time goes on
            return (yield)
        before = signal.signal(signal.SIGALRM, self._end)
        signal.setitimer(signal.ITIMER_REAL, self._seconds, self._seconds)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _end(self, number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(file=sys.__stderr__)
        pytest.fail(f"teardown took longer than {self._seconds:.0f} s: see where, above")
