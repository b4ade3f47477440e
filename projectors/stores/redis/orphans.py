"""What a reader found of an entity that is a member of sets which its own key does not name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Orphans:
    """One entity."""

    member: bytes
    sets: tuple[bytes, ...]
