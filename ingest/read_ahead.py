"""The first of a pipeline's two stages: reads and decodes in a thread while the other stage writes.

What piles up while the writer is busy is handed over as one batch: small and at once when it is idle, large when it is
behind. The queue counts bytes, not items.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from ingest import Source
from ingest.limits import Limits
from viewtail.changes.batches import Batch
from viewtail.changes.positions import Position

TICK_S = 0.5  # after so long without a batch, None is handed over, so that timers can be looked at


def tick_s() -> float:
    """The usual one."""
    return TICK_S


class ReadAhead:
    """Batches of a source, read in a thread; a context manager, so that the thread ends with the loop.

    The hand-over is a SimpleQueue, whose lock is held for no longer than an append: with a condition the woken thread
    would meet the lock of the one that woke it, which is a fifth of a lone row's way through the pipeline.

    `tick_s` is asked each time that a batch is waited for; 0: there is something else to do.
    """

    def __init__(self, source: Source, after: Position, limits: Limits, tick_s: Callable[[], float] = tick_s) -> None:
        self._source = source
        self._after = after
        self._limits = limits
        self._tick_s = tick_s
        self._waiting: SimpleQueue[Batch | None] = SimpleQueue()  # None: the last has been handed over
        # Two counts, each written by one thread alone, in place of one under a lock.
        self._put_bytes = 0
        self._taken_bytes = 0
        self._has_room = threading.Event()
        self._first: Batch | None = None  # was taken out, and too large for the batch formed last
        self._formed: Batch | None = None  # comes next
        self._formed_bytes = 0  # of the batch that was handed over last
        self._is_done = False
        self._error: BaseException | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name="read", daemon=True)

    def __enter__(self) -> ReadAhead:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        while self._thread.is_alive():
            self._has_room.set()
            self._source.interrupt()
            self._thread.join(0.05)

    def _read(self) -> None:
        try:
            for batch in self._source.read(self._after):
                self._wait_for_room()
                if self._is_closed:
                    return
                self._put_bytes += batch.byte_count
                self._waiting.put(batch)
        except BaseException as error:  # handed to the writing stage, which raises it in its own thread
            self._error = error
        finally:
            self._waiting.put(None)

    def _wait_for_room(self) -> None:
        while self._is_full() and not self._is_closed:
            self._has_room.clear()
            # Asked again, or room made in between would go unnoticed.
            if self._is_full() and not self._is_closed:
                self._has_room.wait()

    def _is_full(self) -> bool:
        return self._put_bytes - self._taken_bytes > self._limits.waiting_bytes

    def __iter__(self) -> Iterator[Batch | None]:
        """Batches in order, None for each tick without one; raises what ended the reading, behind all that was read."""
        while True:
            try:
                batch = self._formed or self._form(self._tick_s())
            except Empty:
                yield None
                continue
            if batch is None:
                break
            self._formed = None
            self._formed_bytes = batch.byte_count
            yield batch
        if self._error is not None:
            raise self._error

    def following(self) -> Batch | None:
        """The batch that comes next, if as much waits as the last one had; it does not grow any more then."""
        if self._formed is None and self._put_bytes - self._taken_bytes > self._formed_bytes:
            with contextlib.suppress(Empty):
                self._formed = self._form(0)
        return self._formed

    def _form(self, timeout_s: float) -> Batch | None:
        """Make one batch of what waits; None behind the last. Raises Empty."""
        first, self._first = self._first, None
        if first is None and not self._is_done:
            first = self._waiting.get(timeout_s > 0, timeout_s)
            self._is_done = first is None
        if first is None:
            return None
        some = self._with_what_waits(first)
        self._taken_bytes += sum(batch.byte_count for batch in some)
        if not self._has_room.is_set():
            self._has_room.set()
        return _merged(some)

    def _with_what_waits(self, first: Batch) -> list[Batch]:
        """Add as much as fits into one batch. Pieces of a large transaction stay among themselves."""
        some, rows, size = [first], first.row_count, first.byte_count
        while not self._waiting.empty():
            following = self._waiting.get()
            if following is None:
                self._is_done = True
                break
            rows += following.row_count
            size += following.byte_count
            is_of_another_kind = (following.end is None) is not (some[-1].end is None)
            if rows > self._limits.batch_rows or size > self._limits.batch_bytes or is_of_another_kind:
                self._first = following
                break
            some.append(following)
        return some


def _merged(some: list[Batch]) -> Batch:
    first = some[0]
    if len(some) == 1:
        return first
    if (telling := next((batch for batch in some if batch.is_telling), None)) is not None:
        first.oldest_commit_us = telling.oldest_commit_us  # what nobody waits for may be much older
    for batch in some[1:]:
        first.changes += batch.changes
        first.row_count += batch.row_count
        first.byte_count += batch.byte_count
        first.refused += batch.refused
        first.halts += batch.halts
        first.table_changes += batch.table_changes
        first.watermarks += batch.watermarks
        first.is_quiet = first.is_quiet and batch.is_quiet
        first.is_milestone = first.is_milestone or batch.is_milestone
    first.end = some[-1].end
    return first
