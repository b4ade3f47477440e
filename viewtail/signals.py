"""SIGTERM and Ctrl-C as one call, made in a thread of its own.

A handler runs between two instructions of the main thread, perhaps while that thread holds the very lock the handler
wants; a second signal in the midst of the first then waits for itself for ever.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

STOPPING = {signal.SIGTERM, signal.SIGINT}
EXIT_STOPPED = 130  # the exit code of a command that SIGTERM or Ctrl-C ended
NOTHING_FOUND = -1  # of a command in one deployment: what is sought may be in another


def end_at_once() -> None:
    """SIGTERM ends the process with code 0 from now on, until `on_stop`: nothing runs that would have to be finished.

    Without a handler the first process of a container would not notice it at all. An exception would be lost where it
    comes while an object is being destroyed, and the process would go on.
    """

    signal.signal(signal.SIGTERM, lambda *_: end_now(0))


def end_now(code: int) -> NoReturn:
    """End the process, whatever its threads still do: nothing of that would have to be finished."""
    with suppress(Exception):  # a line is just being written
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@contextmanager
def kept_from_threads() -> Iterator[None]:
    """Threads that are started meanwhile get no stopping signal: `on_stop` may come later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def not_blocked() -> None:
    """Stopping signals reach this process, also where the one that began it keeps them from its own threads."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


class _Asked:
    """Whom a stopping signal is for. One thread waits for all of a process: of several the kernel would choose."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._was_asked = False
        self._thread: threading.Thread | None = None

    def begin(self, stop: Callable[[], None]) -> None:
        with self._lock:
            self._stop, self._was_asked = stop, False
            if self._thread is None:
                self._thread = threading.Thread(target=self._wait, name="signals", daemon=True)
                self._thread.start()

    def end(self) -> bool:
        with self._lock:
            was_asked, self._stop, self._was_asked = self._was_asked, None, False
            return was_asked

    def _wait(self) -> None:
        while True:
            number = signal.sigwait(STOPPING)
            with self._lock:
                stop, self._was_asked = self._stop, self._stop is not None
            if stop is None:  # it came as the last one ended: the main thread takes it as any other
                signal.pthread_kill(threading.main_thread().ident or 0, number)
            else:
                stop()


_asked = _Asked()


def on_stop(stop: Callable[[], None]) -> None:
    """Call `stop`, and nothing given before, for each stopping signal from now on.

    Threads started before must be `kept_from_threads`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    _asked.begin(stop)


def off_stop() -> bool:
    """Signals do what they did before `on_stop`. Whether one came since, which `stop` may have heard too late."""
    was_asked = _asked.end()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    return was_asked
