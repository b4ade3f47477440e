"""Whose hands the demo is in: a person's at a terminal, or nobody's, where it runs through by itself."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

ENTER, KILL, END, NOTHING = "enter", "kill", "end", ""
_KEYS = {"\n": ENTER, "\r": ENTER, " ": ENTER, "k": KILL, "K": KILL, "q": END, "Q": END, "\x1b": END, "\x04": END}
FIRST_KILL_AFTER_S, AFTER_HEALING_S, PAUSE_S = 2.0, 1.5, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Of the time under load: since it began, workers killed, since the last of them was healed."""

    seconds: float
    kills: int
    healed_s: float | None


class Hands(Protocol):
    """What says how the demo goes on."""

    def goes_on(self, to: str) -> bool:
        """Wait until the next step, which `to` names, is wanted; False: the end is."""
        ...

    def meanwhile(self, pause_s: float, moment: Moment) -> str:
        """ENTER, KILL, END or NOTHING, after that pause at the latest."""
        ...


class Person:
    """Keys of a terminal, each taken as it is pressed."""

    def goes_on(self, to: str) -> bool:
        sys.stdout.write(f"\n\x1b[2m  Enter: {to}   q: end\x1b[0m")
        sys.stdout.flush()
        while (key := _pressed(3600)) not in (ENTER, END):
            pass
        sys.stdout.write("\r\x1b[2K\x1b[1A")
        sys.stdout.flush()
        return key == ENTER

    def meanwhile(self, pause_s: float, moment: Moment) -> str:
        return _pressed(pause_s)


class Nobody:
    """Kills one worker, and goes on once that is healed."""

    def goes_on(self, to: str) -> bool:
        time.sleep(PAUSE_S)
        return True

    def meanwhile(self, pause_s: float, moment: Moment) -> str:
        time.sleep(pause_s)
        if not moment.kills:
            return KILL if moment.seconds >= FIRST_KILL_AFTER_S else NOTHING
        return ENTER if moment.healed_s is not None and moment.healed_s >= AFTER_HEALING_S else NOTHING


@contextmanager
def hands(*, is_sure: bool) -> Iterator[Hands]:
    """A person's where there is a terminal, unless the person wants to watch only."""
    if is_sure or not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield Nobody()
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield Person()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(within_s: float) -> str:
    if not select.select([sys.stdin], [], [], within_s)[0]:
        return NOTHING
    # Not sys.stdin.read: it would keep what was typed ahead, and select would not know of it.
    typed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
    return END if not typed else _KEYS.get(typed[0], NOTHING)
