"""The rows that wait to be pushed to one store. Writers of the table hand them over; the store's thread takes them.

A writer never waits here and never gets an error. What comes above MOST_WAITING, or while the store is away, is
dropped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from viewtail.changes.writes import ViewWrites

MOST_WAITING = 20_000  # entities
ROWS_AT_ONCE = 500
ANNOUNCED_AT_ONCE = 2  # by so many lanes of a worker

Versions: TypeAlias = Mapping[Any, int]  # by key, the newest one


@dataclass(frozen=True, slots=True, eq=False)
class PreparedWrites:
    """The writes of some rows."""

    newest: Versions  # that object: a transaction that is tried again may write another row of one version
    writes: list[ViewWrites]
    is_whole: bool  # all rows were there
    read_at: float  # monotonic


@dataclass(frozen=True, slots=True)
class Ready:
    """Writes that are sent as soon as their rows are handed over."""

    prepared: PreparedWrites
    send: Callable[[], None]
    until: float  # monotonic


class Taken(NamedTuple):
    """The next work of the thread."""

    handed: Versions
    sent: PreparedWrites | None  # of what was handed over, where that was sent already
    coming: Sequence[Versions]  # announced


class PushQueue:
    """`announce`, `hand` and `close` may be called from any thread; the others by the store's thread."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._waiting: dict[Any, int] = {}
        self._handed: Versions | None = None  # all that waits, where it was handed over at once
        self._coming: deque[Versions] = deque(maxlen=ANNOUNCED_AT_ONCE)
        self._ready: Ready | None = None  # while the thread has nothing to do: whoever hands over has the sink
        self._sent: PreparedWrites | None = None
        self._is_away = self._is_closed = False
        self.dropped_count = 0

    def announce(self, newest: Versions) -> None:
        """Announce what is about to be committed: the same object comes to `hand` soon, or never."""
        with self._change:
            if not self._is_away and not self._waiting and len(newest) <= ROWS_AT_ONCE:
                self._coming.append(newest)
                self._change.notify()

    def hand(self, newest: Versions) -> None:
        """Hand over what was committed."""
        with self._change:
            if self._is_away or self._is_closed or len(self._waiting) + len(newest) > MOST_WAITING:
                self.dropped_count += len(newest)
                return
            if self._ready is not None and self._ready.prepared.newest is newest:
                self._send(self._ready)
            self._handed = None if self._waiting else newest
            self._waiting.update(newest)
            self._change.notify()

    def _send(self, ready: Ready) -> None:
        self._ready = None
        if time.monotonic() < ready.until:
            self._sent = ready.prepared
            with suppress(Exception):  # the thread meets it: it waits for the answer
                ready.send()

    def close(self) -> None:
        """Take nothing more, and end the thread once nothing waits."""
        with self._change:
            self._is_closed = True
            self._change.notify()

    def take(self, ready: Ready | None, within_s: float | None) -> Taken | None:
        """Wait for something to do; nothing is in it after `within_s`. None once the queue is closed and empty."""
        with self._change:
            self._is_away = False
            if not self._waiting and not self._coming and not self._is_closed:
                self._ready = ready
                self._change.wait(within_s)
            self._ready = None
            if self._is_closed and not self._waiting:
                return None
            handed = self._waiting if self._handed is None else self._handed
            coming = [announced for announced in self._coming if announced is not handed]
            taken = Taken(handed, self._sent, coming)
            self._empty()
            return taken

    def rest(self, pause_s: float) -> bool:
        """Drop what waits, and what comes within `pause_s`. False: the queue was closed."""
        with self._change:
            self._is_away = True
            self.dropped_count += len(self._waiting)
            self._empty()
            return not self._change.wait_for(lambda: self._is_closed, pause_s)

    def _empty(self) -> None:
        self._waiting, self._handed, self._sent = {}, None, None
        self._coming.clear()

    def take_dropped(self) -> int:
        """The number of entities that were dropped since the last call."""
        with self._change:
            count, self.dropped_count = self.dropped_count, 0
            return count
