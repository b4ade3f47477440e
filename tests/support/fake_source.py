"""A scripted source, for histories that must be exact; it passes the contract of the real one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from ingest import BackfillAgain, GoOn, Progress, ReadAgain, Resuming
from viewtail.changes.batches import Batch
from viewtail.changes.errors import HistoryGoneError
from viewtail.changes.positions import Position


class FakeSource:
    """Hands out its batches after a position, then waits for more or for `interrupt`."""

    def __init__(self, begin: Position, batches: Sequence[Batch]) -> None:
        self._begin = begin
        self._batches = list(batches)
        self._interrupted = threading.Event()
        self.purged_up_to = begin
        self.progress = Progress()

    def beginning(self, shown: Position | None = None) -> None:
        return None

    def is_compacted(self) -> bool:
        return False

    def now(self) -> Position:
        ends = [batch.end for batch in self._batches if batch.end is not None]
        return ends[-1] if ends else self._begin

    def check(self, after: Position) -> None:
        if after.version < self.purged_up_to.version:
            raise HistoryGoneError(f"the changes after {after} are gone")

    def resume(self, offset: Position, kept: Position) -> Resuming:
        if kept.epoch > offset.epoch:
            raise HistoryGoneError(f"the store holds writes of epoch {kept.epoch}")
        if kept.version >= offset.version:
            return GoOn(offset, kept.version)
        try:
            self.check(kept)
        except HistoryGoneError as error:
            return BackfillAgain(offset, str(error), kept.version)
        return ReadAgain(kept, kept.version)

    def read(self, after: Position) -> Iterator[Batch]:
        self._interrupted.clear()
        self.check(after)
        for batch in self._batches:
            if self._interrupted.is_set():
                return
            if batch.end is not None and batch.end.version > after.version:
                yield batch
        self._interrupted.wait()

    def interrupt(self) -> None:
        self._interrupted.set()
