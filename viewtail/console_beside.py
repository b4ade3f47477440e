"""The console that `viewtail run` serves: a process of its own, on an address that this one listens at.

Whatever becomes of that process, the run goes on; it is started again, and a page that loads meanwhile waits for it.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import structlog

from viewtail import own_packages
from viewtail.changes.extras import how_to_install
from viewtail.changes.retrying import PROCESS_ENDED
from viewtail.servers.addresses import listening_at
from viewtail.settings import ConsoleSettings

_log = structlog.get_logger("viewtail.run")

TRY_EVERY_S = 2.0  # for an address that is in use
END_WITHIN_S = 8.0
NEEDED = ("starlette", "uvicorn", "jinja2")


class ConsoleBeside:
    """Serves the console as soon as its address is free: of two `run` on one machine the second waits."""

    def __init__(self, own: ConsoleSettings, config: Path | None) -> None:
        self._own, self._config = own, config
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        lacking = next(filter(None, map(how_to_install, NEEDED)), "")
        if lacking:
            _log.info("no console", mend=f"to have one: {lacking}")
        elif own.port:
            self._thread = threading.Thread(target=self._run, name="console", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._stop.set()
        with self._lock:
            process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                process.terminate()
        if self._thread is not None:
            self._thread.join(END_WITHIN_S)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def _run(self) -> None:
        listening = self._listening()
        if listening is None:
            return
        with listening:
            failures = 0
            while not self._stop.is_set():
                code = self._served(listening)
                if self._stop.is_set():
                    return
                pause_s = PROCESS_ENDED.pause_s(failures)
                failures += 1
                _log.warning("the console ended, starting it again", code=code, pause_s=pause_s)
                self._stop.wait(pause_s)

    def _listening(self) -> socket.socket | None:
        """Listen; None where nobody can, or once it is to stop."""
        host, port = self._own.host, self._own.port
        was_said = False
        while not self._stop.is_set():
            try:
                return listening_at(host, port, backlog=128)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    _log.error("no console", error=f"cannot listen on {host}:{port} ({error.strerror})")
                    return None
                if not was_said:
                    mend = "for a console of both at once, set another VIEWTAIL_CONSOLE__PORT for one"
                    _log.info("the console waits: another process listens there", host=host, port=port, mend=mend)
                    was_said = True
            self._stop.wait(TRY_EVERY_S)
        return None

    def _served(self, listening: socket.socket) -> int:
        command = own_packages.command("viewtail.console.process", f"{listening.fileno()}", f"{os.getpid()}")
        if self._config is not None:
            command += ["--config", str(self._config)]
        with self._lock:
            if self._stop.is_set():
                return 0
            self._process = subprocess.Popen(
                command,
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal goes to each process of a group: it is for the run alone
            )
        return self._process.wait()
