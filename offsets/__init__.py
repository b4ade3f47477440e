"""Positions, epochs, leases and fences, kept in MySQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from viewtail.changes.positions import Position


@dataclass(frozen=True, slots=True)
class Owner:
    """The row that says who owns a pipeline: a statement that finds it under a lock is the owner's."""

    table: str  # quoted
    id: int
    fence: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The new owner of a pipeline gets this."""

    owner: Owner
    position: Position | None  # None: this pipeline never saved one


class OffsetStore(Protocol):
    """The offset of one pipeline."""

    def take(self) -> Taken:
        """Raise the fence: from now on every other owner's `save` fails."""

    def save(self, position: Position) -> None:
        """Make `position`, and what the sink wrote on the same connection, durable. Raises FencedError.

        A store may be late with a position whose rows are durable already; `settle` ends that.
        """

    def settle(self) -> None:
        """Save what is late; called when nothing happens, and before a pipeline is given up."""

    def confirm(self) -> None:
        """Return when what was saved last is durable. Raises StoreUnavailableError where it cannot be for now."""

    def save_rows(self) -> None:
        """Make what the sink wrote on the same connection durable, the offset staying where it is."""

    def close(self) -> None:
        """Save what is outstanding; raises what saving it raised. The pipeline is given up in good order."""

    def abandon(self) -> None:
        """Save nothing more: somebody else owns the pipeline, or a restart applies the changes again."""
