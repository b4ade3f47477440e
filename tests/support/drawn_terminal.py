"""A program on a terminal of its own, and what a person would see there, where it draws full screens as rich does."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# The terminal becomes the controlling one, so that Ctrl-C typed there is a signal.
_BEGIN = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")
_HOME = "\x1b[H"


class Terminal:
    """`argv` runs on it; `close` ends that."""

    def __init__(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str], columns: int = 80, lines: int = 24
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN, *argv],
            cwd=folder,
            env={**environment, "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._output = b""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        while True:
            select.select([self._ours], [], [])
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # nobody has the other end any more
                return
            if not piece:
                return
            self._output += piece

    @property
    def output(self) -> str:
        """Everything, escape sequences too."""
        return self._output.decode(errors="replace")

    def screens(self) -> list[list[str]]:
        """Each screen that was drawn in full, as lines of text; a line ends where its text does."""
        pieces = self.output.split(_HOME)[1:-1]
        return [[line.rstrip() for line in _ESCAPE.sub("", piece).split("\n")] for piece in pieces]

    def screen(self) -> str:
        """The last one."""
        found = self.screens()
        return "\n".join(found[-1]) if found else ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def end(self, timeout_s: float = 10) -> int:
        """The exit code, once it has ended by itself."""
        code = self.process.wait(timeout_s)
        deadline = time.monotonic() + 2
        while self._reading.is_alive() and time.monotonic() < deadline:
            self._reading.join(0.1)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self._reading.join(2)
        os.close(self._ours)
