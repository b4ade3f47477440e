"""What a process group takes, as /proc says: processor time by the clock, and peak memory.

A child that ended counts with the process that waited for it.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from bench.measured import peak_memory_mib

_TICKS_A_S = os.sysconf("SC_CLK_TCK")
_EVERY_S = 0.1
_LOOK_AGAIN = 10  # samples, until new processes are looked for: to look takes a while
_TIMES = slice(11, 15)  # behind the name: user and system time, own and of ended children


class Timeline:
    """Processor seconds that a group had used, by the clock."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._used_s: list[float] = []

    def add(self, at: float, used_s: float) -> None:
        self._at.append(at)
        self._used_s.append(used_s)

    def between(self, begin: float, end: float) -> float:
        """Processor seconds between two times of the clock (time.time)."""
        return self._used_at(end) - self._used_at(begin)

    def _used_at(self, moment: float) -> float:
        at = min(max(bisect_left(self._at, moment), 1), len(self._at) - 1)
        (before, after), (low, high) = self._at[at - 1 : at + 1], self._used_s[at - 1 : at + 1]
        return low + (high - low) * min(max((moment - before) / (after - before), 0.0), 1.0)


@contextmanager
def recorded(group: int) -> Iterator[Timeline]:
    """Write the processor time of a process group down, ten times a second."""
    timeline = Timeline()
    is_over = threading.Event()

    def record() -> None:
        for number in count():
            if number % _LOOK_AGAIN == 0:
                found = members(group)
            timeline.add(time.time(), sum(map(_processor_s, found)))
            if is_over.wait(_EVERY_S):
                return

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    try:
        yield timeline
    finally:
        is_over.set()
        thread.join()


def memory_mib(group: int) -> float:
    """The sum of the largest resident memories that the group's processes ever had."""
    return sum(peak_memory_mib(str(pid)) for pid in members(group))


def members(group: int) -> list[int]:
    """The processes of the group that live."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _stat(name)[2:3] == [str(group)]]


def _processor_s(pid: int) -> float:
    return sum(map(int, _stat(str(pid))[_TIMES])) / _TICKS_A_S


def _stat(pid: str) -> list[str]:
    """The fields of proc(5) stat behind the name; none of a process that is gone or dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] in "ZX" else fields
