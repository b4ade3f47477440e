"""Finds the keys of a view that exist and were not written again, without reading each of them.

A sweep looks for the few keys that a backfill did not write. Redis lists the names of keys in half of the time that it
takes to look into each. So the names that were written are kept as 64-bit numbers, and so are the names that exist; if
both add up to the same sum, they are the same names, but for a chance of one in 2^64. Otherwise the names that exist
and were not written are found by their numbers, and only those are read."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import cast

import msgpack

NAMES_A_PASS = 500_000  # in a set at once, which takes 32 MB; more names are split into passes


class WrittenNames:
    """The names that were written, as numbers."""

    def __init__(self) -> None:
        self.total = 0
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, numbers: Sequence[int]) -> None:
        """Add names that were written. A name's number is the `hash` of its text, a keyed 64-bit one (PEP 456).

        Names that are not UTF-8 belong to others; their bytes are lone surrogates in that text."""
        self.total += sum(numbers)
        self._numbers.extend(numbers)

    def missing_from(self, pages: Sequence[bytes]) -> Iterator[list[str]]:
        """Yield for each page the names in it that were never added; a list may be empty.

        The pages are packed by the script NAMES. Each is read once per NAMES_A_PASS names."""
        passes = 1 + len(self) // NAMES_A_PASS
        for part in range(passes):
            written = {number for number in self._numbers if number % passes == part}
            for packed in pages:
                names = _unpacked(packed)
                yield [name for name in names if (number := hash(name)) % passes == part and number not in written]


def total_of(packed: bytes) -> int:
    """The sum that `WrittenNames.total` would have for the names in a page."""
    return sum(map(hash, _unpacked(packed)))


def _unpacked(packed: bytes) -> list[str]:
    return cast("list[str]", msgpack.unpackb(packed, unicode_errors="surrogateescape"))
