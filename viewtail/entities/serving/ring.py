"""Assigns entities to processes: a hash ring over a static list of members.

It only affects speed: the table's unique keys keep every answer right, whichever process handles a command. A member
that joins or leaves the list moves about its own share of the entities, and no others."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from hashlib import blake2b

_POINTS = 128  # per member: shares differ by about a tenth


class Ring:
    """A hash ring; it is the same in every process with the same members, in any order."""

    def __init__(self, members: Iterable[str]) -> None:
        points = sorted((_hash(member, str(at)), member) for member in set(members) for at in range(_POINTS))
        self._places = [place for place, _ in points]
        self._members = [member for _, member in points]

    def owner(self, table: str, entity_id: str) -> str:
        """The member that the entity belongs to."""
        return self._members[bisect(self._places, _hash(table, entity_id)) % len(self._members)]


def _hash(*parts: str) -> int:
    return int.from_bytes(blake2b("\0".join(parts).encode(), digest_size=8).digest())
