"""The entities of a pipeline's views that changed a moment ago: the cleaner looks at those first.

A key passes three places. It arrives when it is written, it is fresh when it has settled, and it is seen once it was
taken. Who takes gets the fresh ones first, of these the newest: where more changes than can be looked at, what is
looked at changed seconds ago, and the rest is left to a round. Then come those that were seen longest ago.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Sequence
from itertools import islice

from projectors.observer import Observer
from viewtail.changes.writes import Key, ViewWrites

KEPT_S = 60.0  # after its last change
SETTLED_S = 1.5  # before: Elasticsearch would refresh an index for each look at what it was just given
AGAIN_AFTER_S = 1.0  # after a look; not above SETTLED_S, which is all that keeps a fresh key from being taken twice
MOST_KEYS = 20_000  # of all views together; a backfill or a drain changes more in a second than can be looked at


class RecentKeys(Observer):
    """The pipeline's loop adds, the cleaner takes; both in threads of their own."""

    def __init__(self) -> None:
        self._views: defaultdict[str, _Keys] = defaultdict(_Keys)
        self._lock = threading.Lock()

    def on_written(self, writes: Sequence[ViewWrites]) -> None:
        now = time.monotonic()
        with self._lock:
            for of_view in writes:
                keys = self._views[of_view.view]
                keys.add(of_view.writes, now, MOST_KEYS // len(self._views))

    def take(self, most: int) -> dict[str, list[Key]]:
        """Take at most so many of each view that are to be looked at now; none of them again within AGAIN_AFTER_S."""
        now = time.monotonic()
        with self._lock:
            taken = {view: keys.take(most, now) for view, keys in self._views.items()}
        return {view: keys for view, keys in taken.items() if keys}


class _Keys:
    """The keys of one view. Each call costs as much as the keys that it moves, however many are kept."""

    def __init__(self) -> None:
        self._arriving: OrderedDict[Key, float] = OrderedDict()  # when they changed, as in the two others
        self._fresh: OrderedDict[Key, float] = OrderedDict()
        self._seen: OrderedDict[Key, tuple[float, float]] = OrderedDict()  # and were looked at; longest ago first

    def add(self, written: Collection[Key], now: float, bound: int) -> None:
        most = bound // 2  # the other half is for those that can be taken
        if len(self._arriving) + len(written) > most:
            self._settle(now)
        if (room := most - len(self._arriving)) > 0:
            for key in islice(written, room):
                self._arriving.setdefault(key, now)  # one that changes all the time settles, too
        while len(self._arriving) + len(self._fresh) + len(self._seen) > bound:
            (self._seen or self._fresh or self._arriving).popitem(last=False)

    def take(self, most: int, now: float) -> list[Key]:
        self._settle(now)
        taken: list[Key] = []
        while self._fresh and len(taken) < most:
            key, changed_at = self._fresh.popitem()
            if now - changed_at < KEPT_S:
                taken.append(key)
                self._seen[key] = changed_at, now
        while self._seen and len(taken) < most:
            key, (changed_at, looked_at) = next(iter(self._seen.items()))
            if now - looked_at < AGAIN_AFTER_S:
                break
            del self._seen[key]
            if now - changed_at < KEPT_S:
                taken.append(key)
                self._seen[key] = changed_at, now
        return taken

    def _settle(self, now: float) -> None:
        while self._arriving:
            key, changed_at = next(iter(self._arriving.items()))
            if now - changed_at < SETTLED_S:
                return
            del self._arriving[key]
            if key in self._seen:
                self._seen[key] = changed_at, self._seen[key][1]  # its turn stays
            else:
                self._fresh[key] = changed_at
