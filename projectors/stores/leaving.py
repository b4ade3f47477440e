"""The seam for what must leave a store: all of a view that nobody declares any more, or one entity's values.

Nothing here decides when that is right: viewtail/operations/forget.py and viewtail/operations/erase.py do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from offsets.views import Place as Place  # its `entity`, and what its store must know besides the view's name
from viewtail.changes.writes import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A view that nobody declares any more, as viewtail's own tables know it."""

    name: str  # within its store
    places: Sequence[Place]  # where it is, and was before its declaration changed
    others: Mapping[str, Sequence[Place]]  # by id: the store's views that stay
    read_by: Sequence[str]  # pipelines whose source has the view's name
    copies: Sequence[int] = ()  # the numbers of those that may be beside the one that readers had; `places` has theirs

    @property
    def folded_others(self) -> Mapping[str, str]:
        """By name in lower case, the ids of the views that stay: some servers take such names for one."""
        return {one.partition(":")[2].casefold(): one for one in self.others}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a view left behind."""

    count: int = 0  # of what is dropped one by one
    dropped: Sequence[str] = ()  # a line each
    left: Sequence[str] = ()  # what is in its place and stays, and why; a line each


class Leftover(ABC):
    """What a view left in its store. Every method raises StoreUnavailableError (try again) or StoreError."""

    @abstractmethod
    def look(self) -> Found:
        """Nothing is changed."""

    @abstractmethod
    def drop(self, went_on: Callable[[int], None]) -> None:
        """Drop what `look` says. Again after it was cut off, it drops what is left.

        `went_on` is told how many were dropped in a step; it may wait, and what it raises ends the work.
        """

    def of_others(self) -> Sequence[str]:
        """What is in its place and belongs to another deployment, a line each; it is among what `look` leaves."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Give the connection up."""


class Holds(StrEnum):
    """What a place holds of an entity."""

    NOTHING = "nothing"
    TOMBSTONE = "a tombstone: the key and a version"
    VALUES = "values"
    FOREIGN = "something that viewtail did not write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one place holds of an entity."""

    place: str  # for people: 'Redis key user:7'
    holds: Holds
    version: int | None = None  # of values that the guard can write over
    stays: str = ""  # what stays there though all is as it should be
    until: str = ""  # when that goes


class Traces(ABC):
    """What one view holds of entities. Every method raises StoreUnavailableError (try again) or StoreError."""

    @abstractmethod
    def of(self, key: Key) -> list[Trace]:
        """Each place of the view that may hold something of an entity, as of the last acknowledged write."""

    @abstractmethod
    def close(self) -> None:
        """Give the connection up."""
