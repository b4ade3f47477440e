"""The parts of views that an operator paused: each one table of an entity of many, whose rows a view leaves alone.

`leave_alone` says it to the views as their pipeline is taken; from there on `BoundView.paused` is all that writers and
sweeps know of it. A part that was resumed is made right before the stream goes on, and then its record goes. What an
owner was killed in, the next one does again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import structlog

from offsets import Owner
from offsets.mysql import Session
from offsets.view_parts import PartRecord, PartState, ViewParts
from projectors.views import BoundView, View
from viewtail.changes.copy_ids import view_of
from viewtail.changes.errors import MisuseError, StopRequested
from viewtail.changes.patterns import Part
from viewtail.changes.rendering import parse_key

if TYPE_CHECKING:
    from projectors.table_changes import TableChanges

_log = structlog.get_logger("viewtail.pipeline")


def part_in(view: View, record: PartRecord) -> Part | None:
    """The part that a record is of; None where the view is of other tables by now."""
    pattern = view.entity.pattern
    if pattern is None or view_of(record.view) != view.id:
        return None
    with suppress(MisuseError):
        part = pattern.of(parse_key(record.part, pattern.columns))
        return part if part is not None and part.full_name == record.table else None
    return None


def values_of(view: View, record: PartRecord) -> tuple[Any, ...] | None:
    """What the keys of a record's part begin with."""
    part = part_in(view, record)
    return None if part is None else part.values


def without_paused(view: BoundView, records: Iterable[PartRecord]) -> BoundView:
    """The view, which leaves these parts as they are shown."""
    values = (values_of(view.view, record) for record in records)
    return replace(view, paused=frozenset(found for found in values if found is not None))


@dataclass(slots=True, kw_only=True, eq=False)
class OwnedParts:
    """The records of one pipeline, as they were when it was taken."""

    parts: ViewParts | None = None  # on the session of the pipeline's thread; None: of a pipeline without such views
    owner: Owner | None = None
    pipeline: str = ""
    paused: frozenset[PartRecord] = frozenset()
    resumed: set[PartRecord] = field(default_factory=set)  # to be made right

    def leave_alone(self, views: Sequence[BoundView]) -> list[BoundView]:
        """The views, which leave alone what is paused in them.

        A view may be of other tables by now: what is paused of those of before is paused no more.
        """
        by_id = {view.view.id: view.view for view in views}
        for record in self.paused:
            view = by_id.get(view_of(record.view))
            if view is not None and part_in(view, record) is None and self.parts is not None:
                self.parts.end(record, self.owner)
                _log.warning("a table is paused no more: the view is of others", view=record.view, table=record.table)
        return [without_paused(view, self.paused) for view in views]

    def are_others(self, session: Session) -> bool:
        """Return whether an operator paused or resumed a part since. Called on another thread's session."""
        if self.parts is None:
            return False
        now = ViewParts(session, self.parts.database).of_pipeline(self.pipeline)
        paused, resumed = _sorted(now)
        return paused != self.paused or not resumed <= self.resumed

    def make_right(self, changes: TableChanges, version: int) -> None:
        """Let the parts that were resumed show what their tables have, as of the place at which the stream goes on.

        All that was passed over has that version at most, and what comes next a larger one.
        """
        assert self.parts is not None or not self.resumed
        for record in sorted(self.resumed, key=lambda record: (record.view, record.part)):
            try:
                for view in [*changes.life.views.values()]:
                    if (part := part_in(view.view, record)) is not None:
                        changes.make_right(view, part, version)
            except StopRequested:
                return
            assert self.parts is not None
            has_ended = self.parts.end(record, self.owner)
            self.resumed.discard(record)
            if has_ended:  # nobody paused it again meanwhile
                _log.info("a table of many gets changes again", view=record.view, table=record.table)


def owned_parts(session: Session, database: str, owner: Owner, pipeline: str) -> OwnedParts:
    """The parts of a pipeline that was just taken."""
    parts = ViewParts(session, database)
    paused, resumed = _sorted(parts.of_pipeline(pipeline))
    return OwnedParts(parts=parts, owner=owner, pipeline=pipeline, paused=paused, resumed=set(resumed))


def _sorted(records: Iterable[PartRecord]) -> tuple[frozenset[PartRecord], frozenset[PartRecord]]:
    """Those that are paused, and those that were resumed."""
    all_records = frozenset(records)
    paused = frozenset(record for record in all_records if record.state is PartState.PAUSED)
    return paused, all_records - paused
