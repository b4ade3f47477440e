"""SIGTERM and Ctrl-C as one call, made in a thread of its own.

A handler runs between two instructions of the main thread, perhaps while that thread holds the very lock the handler
wants; a second signal in the midst of the first then waits for itself for ever.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = {signal.SIGTERM, signal.SIGINT}


def end_at_once() -> None:
    """SIGTERM ends the process with code 0 from now on, until `on_stop`: nothing runs that would have to be finished.

    Without a handler the first process of a container would not notice it at all.
    """

    def end(*_: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)


@contextmanager
def kept_from_threads() -> Iterator[None]:
    """Threads that are started meanwhile get no stopping signal: `on_stop` may come later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` for each stopping signal from now on. Threads started before must be `kept_from_threads`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)

    def wait() -> None:
        while True:
            signal.sigwait(STOPPING)
            stop()

    threading.Thread(target=wait, name="signals", daemon=True).start()
