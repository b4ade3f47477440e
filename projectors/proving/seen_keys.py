"""Remembers which keys a pass saw in the table, so that their rows are not asked for again behind it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from viewtail.changes.writes import Key

MOST_SEEN = 16_000_000  # of 8 bytes; keys beyond are not remembered
_PARTS = 256


class SeenKeys:
    """Keys as 64 random bits each: the keyed hash of a key's text (PEP 456). Not thread-safe.

    A key that was not seen is taken for one that was with a probability of one in a million million."""

    def __init__(self, name_of: Callable[[Key], str]) -> None:
        """`name_of` renders a key: the hash of a number would not be random."""
        self._name_of = name_of
        self._parts = [array("q") for _ in range(_PARTS)]
        self._count = 0

    def add(self, keys: Iterable[Key]) -> None:
        for name in map(self._name_of, keys):
            if self._count == MOST_SEEN:
                return
            number = hash(name)
            self._parts[number % _PARTS].append(number)
            self._count += 1

    def settle(self) -> None:
        """No more are added; `unseen` may be asked from now on."""
        self._parts = [array("q", sorted(part)) for part in self._parts]

    def unseen(self, keys: Sequence[Key]) -> list[Key]:
        """Those of these keys that were not added."""
        return [key for key in keys if not self._has(hash(self._name_of(key)))]

    def _has(self, number: int) -> bool:
        part = self._parts[number % _PARTS]
        at = bisect_left(part, number)
        return at < len(part) and part[at] == number
