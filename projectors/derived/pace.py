"""How large a page of a fan-out is: changes that come meanwhile wait for one of them.

The time that a page may take follows from the changes beside it, its keys from the pages before. A fixed time would be
wrong where the machine is busy, since round trips alone take it, and a fixed number of keys where rows are large.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf

FIRST_KEYS, FEWEST_KEYS, MOST_KEYS = 20, 10, 1_000  # of a page
# A page takes so long: beside changes by what one of their batches takes; the longer none came, the more.
LEAST_S, MOST_BESIDE_S, MOST_S = 0.004, 0.05, 0.2
BESIDE_BATCHES, QUIET_PART = 1.5, 0.05


@dataclass(slots=True)
class Pace:
    """How many keys a page of one view has, by what one of them took before."""

    _key_s: float | None = None  # what a page costs whatever its size is a part of it

    def keys(self, page_s: float) -> int:
        """As many as a page of so many seconds has."""
        return FIRST_KEYS if self._key_s is None else max(FEWEST_KEYS, min(MOST_KEYS, int(page_s / self._key_s)))

    def note(self, keys: int, took_s: float) -> None:
        """A page of so many keys took so long. One page tells little: it may have waited for a disk."""
        key_s = took_s / keys
        self._key_s = key_s if self._key_s is None else max(0.5 * self._key_s, min(1.5 * self._key_s, key_s))


@dataclass(slots=True)
class Live:
    """The changes beside which pages are written."""

    _took_s: float = 0.0  # a batch of them, on the average of the last few
    _at: float = -inf  # the last one's end, monotonic

    def note(self, took_s: float) -> None:
        """A batch was written, and took so long."""
        self._took_s += (took_s - self._took_s) / 8
        self._at = time.monotonic()

    def page_s(self) -> float:
        """How long a page may take now."""
        quiet_s = time.monotonic() - self._at
        beside_s = min(MOST_BESIDE_S, BESIDE_BATCHES * self._took_s)
        return min(MOST_S, max(LEAST_S, beside_s, QUIET_PART * quiet_s))
