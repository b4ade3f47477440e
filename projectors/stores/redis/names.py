"""Which keys of a view were there and were not written again, without a look at each of them.

A sweep is after the few keys that a backfill did not write. Redis tells the names of keys in half of the time that it
takes to look into each. So the names that were written are kept as numbers of 64 bits, and so are those that are
there; where both add up to the same, they are the same names, but for a chance of one in 2^64. Else the names that are
there and were not written are found among them, by their numbers, and looked at.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import cast

import msgpack

NAMES_A_PASS = 500_000  # in a set at once, 32 MB of it; of more names each pass takes a part


class Names:
    """Names that were written, as numbers."""

    def __init__(self) -> None:
        self.total = 0
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, numbers: Sequence[int]) -> None:
        """Names with these numbers were written. A name's is its `hash` as text, a keyed one of 64 bits (PEP 456).

        Names that are no UTF-8 are others'; their bytes are lone surrogates in that text.
        """
        self.total += sum(numbers)
        self._numbers.extend(numbers)

    def missing_from(self, pages: Sequence[bytes]) -> Iterator[list[str]]:
        """The names in these pages that were never added: some of each page's, also where there are none.

        The pages are as the script NAMES packs them, and are gone through once for each NAMES_A_PASS names.
        """
        passes = 1 + len(self) // NAMES_A_PASS
        for part in range(passes):
            written = {number for number in self._numbers if number % passes == part}
            for packed in pages:
                names = _unpacked(packed)
                yield [name for name in names if (number := hash(name)) % passes == part and number not in written]


def total_of(packed: bytes) -> int:
    """What `Names.total` would be of the names in a page."""
    return sum(map(hash, _unpacked(packed)))


def _unpacked(packed: bytes) -> list[str]:
    return cast("list[str]", msgpack.unpackb(packed, unicode_errors="surrogateescape"))
