"""SIGTERM and Ctrl-C as one call, made in a thread of its own.

A handler runs between two instructions of the main thread, perhaps while that thread holds the very lock the handler
wants; a second signal in the midst of the first then waits for itself for ever.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

STOPPING = {signal.SIGTERM, signal.SIGINT}


def on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` for each stopping signal from now on. Call this before any other thread is started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)

    def wait() -> None:
        while True:
            signal.sigwait(STOPPING)
            stop()

    threading.Thread(target=wait, name="signals", daemon=True).start()
