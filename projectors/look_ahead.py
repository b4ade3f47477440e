"""Projects the batch that comes next while the store is busy with the one at hand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from projectors.projection import Projected, Projections
from viewtail.changes.batches import Batch
from viewtail.changes.writes import ViewWrites


class LookAhead:
    """Of one reading of the source. `following` gives the batch that comes next, where it is known already."""

    def __init__(self, projections: Projections, following: Callable[[], Batch | None] = lambda: None) -> None:
        self._projections = projections
        self.following = following
        self._ahead: Batch | None = None  # was projected before its turn
        self._projected = Projected([])
        self._halted_count = 0  # then: what was projected for a view that is halted since must not be written

    def look(self) -> Sequence[ViewWrites]:
        """Project the next batch; returns its writes, or nothing where they are not known or were returned before."""
        following = None if self._ahead is not None else self.following()
        if following is None or following.halts or following.table_changes:
            return ()
        with contextlib.suppress(Exception):  # it is raised when the batch's turn comes
            self._projected, self._halted_count = self._projections.of(following), self._projections.halted_count
            self._ahead = following
            return self._projected.writes
        return ()

    def projected(self, batch: Batch) -> Projected:
        """The writes of a batch whose turn it is."""
        ahead, self._ahead = self._ahead, None
        if ahead is batch and self._halted_count == self._projections.halted_count:
            return self._projected
        return self._projections.of(batch)
