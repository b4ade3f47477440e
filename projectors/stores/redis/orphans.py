"""Memberships that a reader found although the entity's own key does not name those sets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Orphans:
    """The sets that contain one entity without its key naming them."""

    member: bytes
    sets: tuple[bytes, ...]
