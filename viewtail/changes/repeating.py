"""Saying why something waits: when that is new, and now and then while it stays the same."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Repeats:
    """Limits how often the reason of one wait is repeated.

    Args:
        every_s: seconds after which the same reason is given again."""

    every_s: float
    _said: str | None = field(default=None, init=False)
    _said_at: float = field(default=0.0, init=False)

    def is_due(self, why: str | None) -> bool:
        """Whether to say this now; asked at each look, with None where nothing keeps it waiting."""
        now = time.monotonic()
        if why == self._said and now - self._said_at < self.every_s:
            return False
        self._said, self._said_at = why, now
        return why is not None
