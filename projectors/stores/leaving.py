"""The seam for removing data from a store: all of a view that nobody declares any more, or one entity's values.

Nothing here decides when that is right: viewtail/operations/forget.py and viewtail/operations/erase.py do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

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
        """The ids of the views that stay, by name in lower case: some servers take such names for one."""
        return {view.partition(":")[2].casefold(): view for view in self.others}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The data that a view left behind."""

    count: int = 0  # of what is dropped one by one
    dropped: Sequence[str] = ()  # a line each
    left: Sequence[str] = ()  # what is in its place and stays, and why; a line each


class Leftover(ABC):
    """The data that a view left in its store. Every method raises StoreUnavailableError (try again) or StoreError."""

    @abstractmethod
    def look(self) -> Found:
        """Find it. Changes nothing."""

    @abstractmethod
    def drop(self, went_on: Callable[[int], None]) -> None:
        """Drop what `look` says. Called again after it was cut off, it drops what is left.

        `went_on` is called with the number that was dropped in a step; it may wait, and what it raises ends the work.
        """

    def of_others(self) -> Sequence[str]:
        """A line for each thing in the view's place that another deployment owns; `look` has them among the left."""
        return ()

    def close(self) -> None:
        """Give the connection up, where one is kept between two calls."""
        return


@dataclass(frozen=True, slots=True)
class Part:
    """One thing in the place of a retired view: a table, an index, a topic."""

    name: str
    stays: str | None = None  # why it stays; '' if people need not be told, None if it is dropped
    is_of_another: bool = False  # another deployment owns it


class LeftoverParts(Leftover):
    """A leftover of a few things, each of which is dropped as a whole."""

    kind: ClassVar[str]  # of its parts, for people

    @abstractmethod
    def parts(self) -> Iterable[Part]:
        """The things in the view's place."""

    @abstractmethod
    def described(self, name: str) -> str:
        """The content of a part that is dropped, for people."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Drop this part, which may be gone already."""

    def label(self, name: str) -> str:
        """The part for people."""
        return f"{self.kind} {name}"

    def look(self) -> Found:
        parts = list(self.parts())
        lines = [f"{self.label(part.name)}: {self.described(part.name)}" for part in parts if part.stays is None]
        return Found(count=len(lines), dropped=lines, left=[self._why(part) for part in parts if part.stays])

    def drop(self, went_on: Callable[[int], None]) -> None:
        for name in self.to_drop():
            went_on(0)
            self.remove(name)
            went_on(1)

    def to_drop(self) -> list[str]:
        return [part.name for part in self.parts() if part.stays is None]

    def of_others(self) -> Sequence[str]:
        return [self._why(part) for part in self.parts() if part.is_of_another]

    def _why(self, part: Part) -> str:
        return f"{self.label(part.name)}: {part.stays}"


class Holds(StrEnum):
    """The kinds of what a place holds of an entity."""

    NOTHING = "nothing"
    TOMBSTONE = "a tombstone: the key and a version"
    VALUES = "values"
    FOREIGN = "something that viewtail did not write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The content of one place, as far as it is an entity's."""

    place: str  # for people: 'Redis key user:7'
    holds: Holds
    version: int | None = None  # of values that the guard can write over
    stays: str = ""  # what stays there though all is as it should be
    until: str = ""  # when that goes


class Traces(ABC):
    """Finds what one view holds of entities. Every method raises StoreUnavailableError (try again) or StoreError."""

    @abstractmethod
    def of(self, key: Key) -> list[Trace]:
        """The places of the view that may hold something of an entity, as of the last acknowledged write."""

    def close(self) -> None:
        """Give the connection up, where one is kept between two calls."""
        return
