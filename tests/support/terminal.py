"""A program in a terminal, keys pressed for it, and what the screen shows: enough of ECMA-48 for rich's output."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fcntl import ioctl

_ESCAPE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")
_COLUMNS_OF_TAB = 8

Line = tuple[tuple[str, str], ...]  # each character with its style: 'bold;36'


@dataclass
class Screen:
    """All lines that a terminal of so many columns has shown, those that scrolled away too."""

    columns: int
    lines: list[list[tuple[str, str]]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: str = ""
    _rest: str = ""  # an escape sequence that is cut short

    def feed(self, text: str) -> None:
        """What the program wrote."""
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                match = _ESCAPE.match(text, at)
                if match is None:
                    self._rest = text[at:]
                    return
                self._escape(match[1], match[2])
                at = match.end()
                continue
            self._character(text[at])
            at += 1

    def shown(self) -> list[Line]:
        """The lines, without blanks at their ends."""
        found = []
        for line in self.lines:
            end = len(line)
            while end and line[end - 1][0] == " ":
                end -= 1
            found.append(tuple(line[:end]))
        return found

    def text(self) -> list[str]:
        """The same, without styles."""
        return ["".join(character for character, _ in line) for line in self.shown()]

    def _character(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row += 1
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character >= " ":
            if self.column == self.columns:
                self.row, self.column = self.row + 1, 0
            line = self._line()
            line.extend([(" ", "")] * (self.column + 1 - len(line)))
            line[self.column] = (character, self.style)
            self.column += 1
        self._line()

    def _line(self) -> list[tuple[str, str]]:
        while len(self.lines) <= self.row:
            self.lines.append([])
        return self.lines[self.row]

    def _escape(self, given: str, command: str) -> None:
        if command == "m":
            self._styled(given)
        elif command == "A":
            self.row = max(0, self.row - int(given or 1))
        elif command == "K":
            del self._line()[0 if given == "2" else self.column :]
        elif command not in "hl":  # the cursor is hidden or shown
            raise AssertionError(f"an escape sequence that this terminal does not know: {given}{command}")

    def _styled(self, given: str) -> None:
        parts = [part for part in self.style.split(";") if part]
        for part in given.split(";") if given else ["0"]:
            parts = [] if part in ("0", "") else [*parts, part]
        self.style = ";".join(parts)


@dataclass(frozen=True, slots=True)
class Frame:
    """The screen at a time, in seconds since the program began."""

    at: float
    lines: list[Line]


@dataclass(frozen=True, slots=True)
class Session:
    """What a program showed until it ended, and its exit code."""

    frames: list[Frame]
    code: int

    @property
    def text(self) -> list[str]:
        """All lines as they stood at the end."""
        return ["".join(character for character, _ in line) for line in self.frames[-1].lines]


Press = Callable[[str], str]  # by what was written since the last key, the keys to press now, or ''


def played(
    argv: Sequence[str], environ: Mapping[str, str], press: Press, *, columns: int, within_s: float, cwd: str
) -> Session:
    """Run a program in a terminal, press keys, and keep what it showed. It is killed when it takes longer."""
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        argv, env=environ, cwd=cwd, stdin=follower, stdout=follower, stderr=follower, start_new_session=True
    )
    os.close(follower)
    try:
        frames = _frames(leader, Screen(columns), press, within_s)
        return Session(frames, process.wait(10))
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def _frames(leader: int, screen: Screen, press: Press, within_s: float) -> list[Frame]:
    began_at = time.monotonic()
    frames, since = list[Frame](), ""
    while time.monotonic() - began_at < within_s:
        if select.select([leader], [], [], 0.05)[0]:
            try:
                read = os.read(leader, 65536)
            except OSError:  # EIO: the program has ended
                return frames
            text = read.decode(errors="replace")
            screen.feed(text)
            since += text
            frames.append(Frame(time.monotonic() - began_at, screen.shown()))
        if keys := press(since):
            os.write(leader, keys.encode())
            since = ""
    raise AssertionError("\n".join(["it did not end; the screen:", *screen.text()]))


class Demonstrator:
    """Presses the keys of `viewtail demo`: each step, one worker killed under load, and on."""

    def __init__(self, *, wait_s: float) -> None:
        self._wait_s = wait_s
        self._due: tuple[float, str] | None = None
        self._was_killed = False

    def __call__(self, since: str) -> str:
        """The key that is due, if any."""
        if self._due is None and (key := self._next(since)):
            self._due = (time.monotonic() + self._wait_s, key)
        if self._due is None or time.monotonic() < self._due[0]:
            return ""
        key, self._due = self._due[1], None
        return key

    def _next(self, since: str) -> str:
        hint, table = since.rfind("  Enter: "), since.rfind("rows behind")
        if hint > table and "k: kill" not in since[max(0, hint - 30) : hint]:
            return "\n"
        if table == -1:
            return ""
        if not self._was_killed:
            self._was_killed = True
            return "k"
        return "\n" if "all are right after" in since else ""
