"""Keeps a backfill from writing rows that it read before a statement took them away.

A row's delete leaves a tombstone that such a write meets. A TRUNCATE or DROP PARTITION leaves some only for the keys
that are shown, so a chunk that was read before it must not be written after it: it is read again.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class BackfillGate:
    """Shared by a pipeline and its backfills; one lock a view."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._closed_at: dict[str, float] = {}  # monotonic
        self._bound_at: dict[str, float] = {}  # monotonic

    @contextmanager
    def closed(self, view: str) -> Iterator[None]:
        """While rows are taken away: no chunk is written, and none later that was read by now."""
        with self._locks[view]:
            self._closed_at[view] = time.monotonic()
            yield

    @contextmanager
    def binding(self, view: str) -> Iterator[None]:
        """While a view is bound to its table anew: `closed`, and backfills from before do not go on."""
        with self.closed(view):
            self._bound_at[view] = time.monotonic()
            yield

    def is_bound_since(self, view: str, bound_at: float) -> bool:
        """Whether the view was bound anew after a time."""
        return bound_at <= self._bound_at.get(view, float("-inf"))

    @contextmanager
    def open(self, view: str, read_at: float) -> Iterator[bool]:
        """While a chunk is written; False where it was read before rows were taken away."""
        with self._locks[view]:
            yield read_at > self._closed_at.get(view, float("-inf"))
