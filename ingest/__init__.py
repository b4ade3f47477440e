"""Sources: the binlog tailer, and reading canonical rows under a watermark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from changes.batches import Batch
from changes.positions import Position


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a source reports while it is read. Its thread writes, other threads read."""

    is_at_end: bool = False  # nothing was waiting on the socket when everything received had been delivered
    reconnect_count: int = 0
    trouble: str | None = None  # why it is not reading at the moment
    # XA transactions that hold the offset back; when the oldest was prepared, us
    prepared: tuple[int, int] = (0, 0)
    received_at: float = field(default_factory=time.monotonic)  # when bytes last came, heartbeats included


@dataclass(frozen=True, slots=True)
class GoOn:
    """Read on after this position.

    `kept` is the version up to which the store shows its writes: a backfill that ended above it is lost there. None:
    the witness does not tell.
    """

    position: Position
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """The store lost writes that the offset says are durable: read again after this position. `kept` as in GoOn."""

    position: Position
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class BackfillAgain:
    """The store lost writes that the source no longer has: backfill its views, and read on after this position."""

    position: Position
    reason: str
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """The store holds another server's writes, which this server continues: begin an epoch above that one."""

    above: int


Resuming: TypeAlias = GoOn | ReadAgain | BackfillAgain | BeginEpoch


class Source(Protocol):
    """An ordered stream of changes from one server."""

    progress: Progress

    def now(self) -> Position:
        """The server's present end of stream, as a place to begin from."""

    def read(self, after: Position) -> Iterator[Batch]:
        """Whole committed transactions after `after`, in order, until `interrupt`; reconnects by itself.

        Raises SourceError when the stream cannot be continued without losing changes.
        """

    def check(self, after: Position) -> None:
        """Raises HistoryGoneError when the changes after a position are no longer there to be read."""

    def resume(self, offset: Position, kept: Position) -> Resuming:
        """Where to go on, when the saved offset is `offset` and the store shows that it kept all up to `kept`.

        Raises HistoryGoneError where this source does not continue what the store holds.
        """

    def interrupt(self) -> None:
        """Called from another thread: the read in progress ends soon."""
