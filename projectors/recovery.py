"""Where a pipeline goes on at a start, and after its store failed: the source answers, and this acts on the answer.

A store that lost what it had acknowledged (its witness is behind the offset) gets it again from the source; where the
source no longer has it, the store's views are backfilled again.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from ingest import BackfillAgain, BeginEpoch, GoOn, ReadAgain, Source
from projectors.stores import Sink, publisher
from projectors.view_life import ViewLife
from viewtail.changes.errors import AnotherServerError
from viewtail.changes.positions import Position

_log = structlog.get_logger("viewtail.pipeline")


def begin(
    offset: Position, source: Source, sink: Sink, life: ViewLife, raise_epoch_above: Callable[[int], int]
) -> Position:
    """Prepare the store; returns where to read from. `raise_epoch_above` returns the epoch that the source is in then.

    Raises HistoryGoneError when the source's history is over, AnotherServerError when the pipeline must be taken
    again under a new epoch.
    """
    topics = publisher(sink)
    refused = sink.prepare(life.place_lost)
    for view, reason in refused.items():
        life.refused(view, reason)
    if topics is not None:
        life.only_in(topics.incarnations())
        life.accepted(life.views.keys() - refused.keys())
    kept = sink.witness(offset)
    if kept is None:
        if topics is not None:
            life.lost(life.projections.views)  # what is in them may be from anywhere, and nothing guards it
        sink.write([], offset)
        return offset
    answer = source.resume(offset, kept)
    if isinstance(answer, BeginEpoch):
        raise AnotherServerError(
            f"the store holds what was read from another server in epoch {answer.above}, and this one continues it: "
            f"viewtail restarts the pipeline under epoch {raise_epoch_above(answer.above)}"
        )
    _note_losses(answer, life)
    if isinstance(answer, ReadAgain):
        _log.warning("store is behind the offset: reading again", store_has=str(kept), offset=str(offset))
    if topics is not None and isinstance(answer, GoOn) and _is_ahead(kept, answer.position):
        return kept  # nothing guards a topic: what was published before the offset was saved is not read again
    return answer.position


def _is_ahead(kept: Position, of: Position) -> bool:
    return kept.epoch == of.epoch and kept.version > of.version


def _note_losses(answer: GoOn | ReadAgain | BackfillAgain, life: ViewLife) -> None:
    if answer.kept is not None:
        life.kept_only(answer.kept)
    if isinstance(answer, BackfillAgain | ReadAgain):
        life.states.lost_some()
    if isinstance(answer, BackfillAgain):
        _log.error("the source lacks what the store lost: viewtail backfills its views again", reason=answer.reason)
        life.lost(life.projections.views)
