"""The entities of a pipeline's views that changed a moment ago: the cleaner looks at those first."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from changes.writes import Key, ViewWrites

KEPT_S = 60.0
SETTLED_S = 1.5  # before: Elasticsearch would refresh an index for each look at what it was just given
MOST_KEYS = 20_000  # of all views together; a backfill or a drain changes more in a second than can be looked at


class RecentKeys:
    """The pipeline's loop adds, the cleaner takes a look; both in threads of their own."""

    def __init__(self) -> None:
        self._batches: deque[tuple[float, str, list[Key]]] = deque()
        self._count = 0
        self._lock = threading.Lock()

    def saw(self, writes: Sequence[ViewWrites]) -> None:
        """These were written."""
        now = time.monotonic()
        with self._lock:
            for found in writes:
                keys = list(found.writes)
                self._batches.append((now, found.view, keys))
                self._count += len(keys)
            while self._count > MOST_KEYS:
                self._count -= len(self._batches.popleft()[2])

    def by_view(self) -> dict[str, list[Key]]:
        """Those of the last minute, each once; without those of the last moment."""
        now = time.monotonic()
        least, most = now - KEPT_S, now - SETTLED_S
        found: dict[str, dict[Key, None]] = {}
        with self._lock:
            while self._batches and self._batches[0][0] < least:
                self._count -= len(self._batches.popleft()[2])
            for at, view, keys in self._batches:
                if at > most:
                    break
                found.setdefault(view, {}).update(dict.fromkeys(keys))
        return {view: list(keys) for view, keys in found.items()}
