"""Sources: the binlog tailer, and reading canonical rows under a watermark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from changes.batches import Batch
from changes.positions import Position


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a source tells of itself while it is read; written by its thread, read by others."""

    is_at_end: bool = False  # nothing was waiting on the socket when everything received had been delivered
    reconnect_count: int = 0
    trouble: str | None = None  # why it is not reading at the moment
    # XA transactions that hold the offset back; when the oldest was prepared, us
    prepared: tuple[int, int] = (0, 0)
    received_at: float = field(default_factory=time.monotonic)  # when bytes last came, heartbeats included


class Source(Protocol):
    """An ordered stream of changes from one server."""

    progress: Progress

    def now(self) -> Position:
        """The server's present end of stream, as a place to begin from."""

    def read(self, after: Position) -> Iterator[Batch]:
        """Whole committed transactions after `after`, in order, until `interrupt`; reconnects by itself.

        Raises SourceError when the stream cannot be gone on from without losing changes.
        """

    def check(self, after: Position) -> None:
        """Raises HistoryGoneError when the changes after a position are no longer there to be read."""

    def interrupt(self) -> None:
        """Called from another thread: the read in progress ends soon."""
