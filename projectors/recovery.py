"""Where a pipeline goes on at a start, and after its store failed: the source answers, and this acts on the answer.

A store that lost what it had acknowledged (its witness is behind the offset) gets it again from the source; where the
source no longer has it, the store's views are backfilled again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from changes.errors import AnotherServerError
from changes.positions import Position
from ingest import BackfillAgain, BeginEpoch, ReadAgain, Source
from projectors.stores import Sink, guarded
from projectors.view_life import ViewLife

_log = structlog.get_logger("viewtail.pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a pipeline needs to find where to go on."""

    source: Source
    sink: Sink
    life: ViewLife
    raise_epoch_above: Callable[[int], int]  # returns the epoch that the source is in then

    def begin(self, offset: Position) -> Position:
        """Prepare the store; returns where to read from.

        Raises HistoryGoneError when the source's history is over, AnotherServerError when the pipeline must be taken
        again under a new epoch.
        """
        guard = guarded(self.sink)
        if guard is not None and (missing := guard.missing()):
            self.life.lost(missing)
        for view, reason in self.sink.prepare().items():
            self.life.refused(view, reason)
        if guard is None:
            return offset
        kept = guard.witness(offset)
        if kept is None:
            self.sink.write([], offset)
            return offset
        found = self.source.resume(offset, kept)
        if isinstance(found, BeginEpoch):
            raise AnotherServerError(
                f"the store holds what was read from another server in epoch {found.above}, and this one continues it: "
                f"the pipeline is taken again under epoch {self.raise_epoch_above(found.above)}"
            )
        if found.kept is not None:
            self.life.kept_only(found.kept)
        if isinstance(found, BackfillAgain):
            _log.error(
                "the source no longer has what the store lost: its views are backfilled again",
                reason=found.reason,
            )
            self.life.lost(self.life.running)
        elif isinstance(found, ReadAgain):
            _log.warning("store is behind the offset: reading again", store_has=str(kept), offset=str(offset))
        return found.position
