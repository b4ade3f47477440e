"""Being told to stop: an event that also calls those who wait for something else than itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stop(threading.Event):
    """An event that makes calls when it is set, so that no thread has to look for it now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._told: list[Callable[[], None]] = []
        self._listing = threading.Lock()

    def set(self) -> None:
        super().set()
        with self._listing:
            told = [*self._told]
        for call in told:
            call()

    @contextmanager
    def telling(self, call: Callable[[], None]) -> Iterator[None]:
        """`call` is made for each `set` meanwhile, in the thread that sets it, and at once where it is set already.

        It must not raise, nor wait.
        """
        with self._listing:
            self._told.append(call)
        try:
            if self.is_set():
                call()
            yield
        finally:
            with self._listing:
                self._told.remove(call)
