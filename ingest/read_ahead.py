"""The first of a pipeline's two stages: reads and decodes in a thread while the other stage writes.

What piles up while the writer is busy is handed over as one batch: small and at once when it is idle, large when it is
behind. The queue counts bytes, not items.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from changes.batches import Batch
from changes.positions import Position
from ingest import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is held between the two stages."""

    rows: int = 4000  # of a handed-over batch, which holds at least one of the source's
    bytes: int = 2 << 20  # likewise, counted as the events stood in the binlog
    waiting_bytes: int = 4 << 20  # the reading thread waits while more than this waits to be written
    tick_s: float = 0.5  # after so long without a batch, None is handed over, so that timers can be looked at


class ReadAhead:
    """Batches of a source, read in a thread; a context manager, so that the thread ends with the loop."""

    def __init__(self, source: Source, after: Position, limits: Limits) -> None:
        self._source = source
        self._after = after
        self._limits = limits
        self._waiting: deque[Batch] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._is_done = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name="read", daemon=True)

    def __enter__(self) -> Iterator[Batch | None]:
        self._thread.start()
        return self._hand_over()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        while self._thread.is_alive():
            self._source.interrupt()
            self._thread.join(0.05)

    def _read(self) -> None:
        try:
            for batch in self._source.read(self._after):
                with self._changed:
                    while self._waiting_bytes > self._limits.waiting_bytes and not self._is_closed:
                        self._changed.wait()
                    if self._is_closed:
                        return
                    self._waiting.append(batch)
                    self._waiting_bytes += batch.byte_count
                    self._changed.notify_all()
        except BaseException as error:  # handed to the writing stage, which raises it in its own thread
            self._error = error
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def _hand_over(self) -> Iterator[Batch | None]:
        while True:
            with self._changed:
                if not self._waiting and not self._is_done:
                    self._changed.wait(self._limits.tick_s)
                some = self._take()
                if some:
                    self._changed.notify_all()
                elif self._is_done:
                    break
            yield _merged(some) if some else None
        if self._error is not None:
            raise self._error

    def _take(self) -> list[Batch]:
        """What fits into one batch, called with the lock held. Pieces of a large transaction stay alone."""
        some: list[Batch] = []
        rows = size = 0
        while self._waiting:
            first = self._waiting[0]
            rows += first.row_count
            size += first.byte_count
            if some and (
                rows > self._limits.rows
                or size > self._limits.bytes
                or first.end is None
                or some[-1].end is None
            ):
                break
            some.append(self._waiting.popleft())
            self._waiting_bytes -= first.byte_count
        return some


def _merged(some: list[Batch]) -> Batch:
    first = some[0]
    if len(some) == 1:
        return first
    for batch in some[1:]:
        first.changes += batch.changes
        first.row_count += batch.row_count
        first.byte_count += batch.byte_count
        first.refused += batch.refused
        first.halts += batch.halts
        first.watermarks += batch.watermarks
        first.is_quiet = first.is_quiet and batch.is_quiet
    first.end = some[-1].end
    return first
