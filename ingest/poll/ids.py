"""Keeps which ids of a table were read: all up to one, and runs of those above it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence


class Ids:
    """A set of positive integers that has nearly all of 1..N.

    `passed` is the largest id up to which nothing is missing any more: each was read, or will never exist."""

    __slots__ = ("_highs", "_lows", "passed")

    def __init__(self, passed: int = 0, runs: Iterable[tuple[int, int]] = ()) -> None:
        self.passed = passed
        # The first and last ids of the runs above `passed`; the runs are in order and do not touch.
        self._lows: list[int] = []
        self._highs: list[int] = []
        for low, high in runs:
            self._add_run(low, high)

    @property
    def top(self) -> int:
        """The largest id that was read or passed."""
        return self._highs[-1] if self._highs else self.passed

    @property
    def runs(self) -> list[tuple[int, int]]:
        return list(zip(self._lows, self._highs, strict=True))

    def __contains__(self, number: int) -> bool:
        if number <= self.passed:
            return True
        at = bisect_right(self._lows, number) - 1
        return at >= 0 and number <= self._highs[at]

    def add(self, numbers: Sequence[int]) -> None:
        """Add ids that were just read, in order, each once; none of them is in the set yet."""
        at = 0
        while at < len(numbers):
            begin = at
            # In a run without a gap, distance and difference are equal; it is found by halving, since most runs are
            # long.
            step = len(numbers) - at
            while step:
                if at + step < len(numbers) and numbers[at + step] - numbers[begin] == at + step - begin:
                    at += step
                else:
                    step //= 2
            self._add_run(numbers[begin], numbers[at])
            at += 1

    def _add_run(self, low: int, high: int) -> None:
        at = bisect_right(self._lows, low)
        if at and self._highs[at - 1] == low - 1:
            at -= 1
            low = self._lows.pop(at)
            self._highs.pop(at)
        if at < len(self._lows) and self._lows[at] == high + 1:
            high = self._highs.pop(at)
            self._lows.pop(at)
        if low == self.passed + 1:
            self.passed = high
        else:
            self._lows.insert(at, low)
            self._highs.insert(at, high)

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the first and last id of each gap between `passed` and `top`, in order."""
        before = self.passed
        for low, high in zip(self._lows, self._highs, strict=True):
            yield before + 1, low - 1
            before = high

    def pass_up_to(self, number: int) -> None:
        """Note that nothing can come any more up to this id."""
        if number <= self.passed:
            return
        at = bisect_right(self._lows, number)
        if at and self._highs[at - 1] >= number:
            number = self._highs[at - 1]
        del self._lows[:at], self._highs[:at]
        if self._lows and self._lows[0] == number + 1:
            number = self._highs.pop(0)
            self._lows.pop(0)
        self.passed = number
