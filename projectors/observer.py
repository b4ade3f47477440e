"""What looks on while a pipeline works: it is told after the write, by one small interface."""

from __future__ import annotations

from collections.abc import Sequence

from viewtail.changes.batches import Batch
from viewtail.changes.writes import ViewWrites


class Observer:
    """Called in the pipeline's own thread, so each call must be quick, and may not fail."""

    def on_written(self, writes: Sequence[ViewWrites]) -> None:
        """The sink has applied these, but for single keys that it refused."""

    def on_passed(self, batch: Batch) -> None:
        """The sink has applied all rows of this batch. The offset may be behind it: a batch may come twice."""
