"""Which keys of a view were there and were not written again, without a look at each of them.

A sweep is after the few keys that a backfill did not write. Redis tells the names of keys in half of the time that it
takes to look into each. So the names that were written and the names that are there are added up, each as a random
number of 64 bits, in the sum that its own last bits choose of PARTS. Where two sums are equal, the same names are in
both, but for a chance of one in 2^52; the keys of the other parts are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PARTS = 1 << 12  # of a million keys, one that comes or goes meanwhile costs a look at 250; more sums leave the cache


class NameSums:
    """Sums of names, by part. A name that is added twice is one that differs, and is looked at."""

    def __init__(self) -> None:
        self.count = 0
        self._sums = [0] * PARTS

    def add(self, names: Sequence[bytes]) -> None:
        """These are there, or were written."""
        self.count += len(names)
        sums = self._sums
        for number in map(hash, names):  # Python's is a keyed one of 64 bits (PEP 456)
            sums[number % PARTS] += number

    def differing(self, others: NameSums) -> frozenset[int]:
        """The parts in which not the same names were added."""
        pairs = zip(self._sums, others._sums, strict=True)
        return frozenset(at for at, (mine, theirs) in enumerate(pairs) if mine != theirs)


def of_parts(names: Iterable[bytes], parts: frozenset[int]) -> list[bytes]:
    """Those whose part is among `parts`."""
    return [name for name in names if hash(name) % PARTS in parts]
