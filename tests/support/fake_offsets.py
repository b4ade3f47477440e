"""An offset store in memory, for faults that must be placed exactly; it passes the contract of the real ones."""

from __future__ import annotations

from offsets import Owner, Taken
from viewtail.changes.errors import FencedError, StoreUnavailableError
from viewtail.changes.positions import Position


class Memory:
    """What the server would hold: one row."""

    def __init__(self) -> None:
        self.fence = 0
        self.position: Position | None = None
        self.is_away = False  # set it to have every call fail


class FakeOffsets:
    """One owner's hand on the row."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._fence = 0

    def take(self) -> Taken:
        self._check_server()
        self._memory.fence += 1
        self._fence = self._memory.fence
        return Taken(Owner("", 0, self._fence), self._memory.position)

    def save(self, position: Position) -> None:
        self.save_rows()
        self._memory.position = position

    def save_rows(self) -> None:
        self._check_server()
        if self._fence != self._memory.fence:
            raise FencedError("taken over by another owner; this one stands by")

    def settle(self) -> None:
        """Nothing to do: `save` is never late."""

    def confirm(self) -> None:
        """It is durable."""

    def close(self) -> None:
        self.settle()

    def abandon(self) -> None:
        """Nothing to end."""

    def _check_server(self) -> None:
        if self._memory.is_away:
            raise StoreUnavailableError("the offset store is away; trying again")
