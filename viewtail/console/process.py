"""The process of the console that a `viewtail run` began: it ends with that run, however that ends."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import structlog

from viewtail import logs, settings
from viewtail.changes.errors import ViewtailError
from viewtail.console.serving import serve
from viewtail.signals import end_at_once, kept_from_threads, not_blocked

_log = structlog.get_logger("viewtail.console")

LOOK_EVERY_S = 1.0


def main() -> int:
    """Serve at the socket that was handed on; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("descriptor", type=int)
    parser.add_argument("parent", type=int)
    parser.add_argument("--config", type=Path)
    given = parser.parse_args()
    not_blocked()
    end_at_once()  # while views.py is loaded; `serve` ends what is under way
    with kept_from_threads():
        threading.Thread(target=_end_with, args=(given.parent,), name="parent", daemon=True).start()

    try:
        loaded = settings.load(given.config)
        logs.configure(loaded.logs)
        serve(given.config, loaded.console, socket.socket(fileno=given.descriptor))
    except ViewtailError as error:
        _log.error("no console", error=str(error))
        return error.exit_code


def _end_with(parent: int) -> None:
    """Where the run is killed, nobody else ends this process."""
    stop = threading.Event()
    while not stop.wait(LOOK_EVERY_S):
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
            return


if __name__ == "__main__":
    sys.exit(main())
