"""Looking again and again at what is waited for, and saying why it waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

_FIRST_S, _AT_MOST_S = 0.002, 0.1  # between two looks


def looks(stop: threading.Event, within_s: float) -> Iterator[None]:
    """One step a look, ever less often, until `stop` is set or the time is over; there is one at least."""
    deadline, pause_s = time.monotonic() + within_s, _FIRST_S
    while True:
        yield
        if time.monotonic() > deadline or stop.wait(pause_s):
            return
        pause_s = min(_AT_MOST_S, 1.5 * pause_s)


@dataclass(slots=True)
class Repeats:
    """Limits how often the reason of one wait is repeated.

    Args:
        every_s: seconds after which the same reason is given again."""

    every_s: float
    _said: str | None = field(default=None, init=False)
    _said_at: float = field(default=0.0, init=False)

    def is_due(self, why: str | None) -> bool:
        """Return whether to say this now; asked at each look, with None where nothing keeps it waiting."""
        now = time.monotonic()
        if why == self._said and now - self._said_at < self.every_s:
            return False
        self._said, self._said_at = why, now
        return why is not None
