"""Fills views from the stream itself, without their tables: it is read again from its beginning.

For topics that another program writes, and for viewtail's own where a setting says so. What they hold of the table is
all that viewtail knows: nothing is swept, and each partition fills its own keys. A view is filled when what was the
end, as reading began, is passed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

import structlog

from ingest import Source
from offsets.backfills import BackfillProgress
from offsets.views import State, ViewRecord, ViewStates
from projectors.outcomes import DONE, STOPPED, End, Outcome
from projectors.view_life import ViewLife
from projectors.watermarks import LocalWaiter
from viewtail.changes.batches import STREAM_END
from viewtail.changes.errors import SourceError
from viewtail.changes.positions import Position

_log = structlog.get_logger("viewtail.backfill")

WAIT_S = 300.0


def is_needed(source: Source) -> bool:
    """Return whether views of this source are filled so, also where some of what has been read is no longer there."""
    try:
        return source.beginning() is not None
    except SourceError:
        return True


def refuse(source: Source, states: ViewStates, records: dict[str, ViewRecord]) -> dict[str, ViewRecord]:
    """Halt new views that the stream cannot fill; returns the records as they are then.

    Redeclared ones are among them: read again, a row has the version that the view has, so it would stay as it is.
    """
    new = [record.name for record in records.values() if record.state is State.NEW]
    if not new:
        return records
    try:
        if source.beginning() is None:
            return records
        for name in states.redeclared:
            states.halt(
                name,
                "its declaration or its table changed, and it is filled from its topic: rows that did not change "
                "since would stay as the earlier declaration made them. Declare it under another name, which is "
                "filled anew",
            )
    except SourceError as error:
        for name in new:
            states.halt(name, f"{error}. Then run: viewtail replay {name}")
    return states.read_all(list(records))


def begin(source: Source, states: ViewStates, records: Mapping[str, ViewRecord], offset: Position) -> Position | None:
    """Where to begin for views that are new: before all of the stream. They are being filled from then on.

    `offset` is where reading would begin without them: up to there the other views show the stream.
    """
    new = [record for record in records.values() if record.state is State.NEW]
    is_any_other = any(record.state in (State.FILLED, State.BACKFILLING) for record in records.values())
    beginning = source.beginning(offset if is_any_other else None) if new else None
    if beginning is not None:
        for record in new:
            states.begin_backfill(record.name, (record.watermark_version or 0) + 1, 0, "")
    return beginning


def finish(
    life: ViewLife,
    views: Collection[str],
    waiter: LocalWaiter,
    progress: Callable[[str], BackfillProgress],
    stop: threading.Event,
) -> Outcome:
    """Wait until the views that are being filled are; the pipeline begins again where some are new."""
    records = life.states.read_all(views)
    if any(record.state is State.NEW for record in records.values()):
        return Outcome(End.DESCRIBE_AGAIN, f"new views: {', '.join(sorted(views))}")
    version = waiter.wait([STREAM_END], stop, WAIT_S)
    if stop.is_set():
        return STOPPED
    if version is None:
        return DONE  # it is far behind, and looked at again
    for name in records:
        progress(name).finish(version, None)
        _log.info("view filled from the topic", view=name)
    return DONE
