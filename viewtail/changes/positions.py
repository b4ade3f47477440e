"""A place in a source's stream of changes, always between two transactions.

What it is made of is the source's own matter: above the source a position is compared, kept as text, and shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias


class Position(Protocol):
    """Equal positions are equal objects. `str` of one is what people read."""

    @property
    def epoch(self) -> int:
        """The number of the source's history."""

    @property
    def version(self) -> int:
        """The version of the newest change up to here; it never decreases along the stream."""

    @property
    def order(self) -> tuple[int, ...]:
        """Orders positions of one source as the stream does: several may be of one version."""

    def to_text(self) -> str:
        """One line, for offsets and witnesses; the source's `ReadPosition` is the inverse."""

    def details(self) -> Mapping[str, str]:
        """Other facts that people may search for, by name."""


ReadPosition: TypeAlias = "Callable[[str | bytes], Position]"  # raises ValueError for what is no position's text
