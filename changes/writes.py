"""What a projection hands to a sink: per view and key one write, the newest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

Key = tuple[Any, ...]  # the entity key's values, in key order, as docs/types.md lists them


class Write(NamedTuple):
    """One write of one key: newer wins, in the store."""

    version: int
    values: tuple[Any, ...] | bytes | None
    # None: a tombstone. A tuple: the values of the view's columns or fields, in the order declared.
    # bytes: a document made by a user's function, as one JSON object (UTF-8).


class Parked(NamedTuple):
    """A key that a projection or a sink refused. Holds no row values but the key itself."""

    view: str
    key: str  # rendered
    version: int
    reason: str


@dataclass(slots=True, eq=False)
class ViewWrites:
    """The coalesced writes of one view."""

    view: str  # the view's name
    writes: dict[Key, Write]
