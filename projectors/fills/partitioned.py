"""Views that several pipelines keep, one a partition of their source: the first partition's fills them for all.

Each partition has changes of some of a view's keys, a filling has rows of all. Before the watermark of the first
partition's filling every other pipeline must get the view's changes, or those between would be missing. So a pipeline
whose view is new waits until it is past a watermark of its own, and then marks the view as `filling`: it is ready. The
first one begins when all are, and its end makes those `filled` that were ready before its watermark. A view that is new
again in any of them is filled again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from offsets import keepers
from offsets.keepers import Keeper
from offsets.mysql import Session, reading
from offsets.views import Event, State
from projectors.view_life import ViewLife
from viewtail.changes.pipelines import PipelineId


@dataclass(frozen=True, slots=True)
class PartitionedFill:
    """Which views one of these pipelines fills.

    Args:
        partitions: asks for the pipelines of all partitions that the source has now.
        now: a version that the pipeline is past.
    """

    identity: PipelineId
    database: str
    partitions: Callable[[PipelineId], Sequence[PipelineId]]
    now: Callable[[], int]

    def views_to_fill(self, life: ViewLife, session: Session, mine: list[str]) -> list[str]:
        """Of the views that are to be filled here, `mine`, those that this pipeline fills now."""
        if self.identity.partition:
            self._mark_ready(life, mine)
            return []
        names = {one.name for one in self.partitions(self.identity)} - {self.identity.name}
        if not names:
            return mine
        records = self._records(session, names)
        self._begin_again(life, set(life.views) - set(mine), records)
        return [view for view in life.to_backfill() if self._are_ready(life, view, names, records)]

    @staticmethod
    def _are_ready(life: ViewLife, view: str, names: Collection[str], records: Sequence[Keeper]) -> bool:
        """Return whether all get the view's changes, or will not: then it is halted, and new again after that."""
        fingerprint = life.views[view].fingerprint
        ready = {
            row.name
            for row, record in records
            if record.name == view and record.fingerprint == fingerprint and record.state is not State.NEW
        }
        return ready == names

    @staticmethod
    def _begin_again(life: ViewLife, views: Collection[str], records: Sequence[Keeper]) -> None:
        """A view that is filled here, and not in another partition, lacks what that one lost."""
        lacking = {record.name for _, record in records if record.state in (State.NEW, State.BACKFILLING)}
        life.states.move(Event.LOST, sorted(lacking.intersection(views)))

    def _mark_ready(self, life: ViewLife, views: Sequence[str]) -> None:
        records = life.states.read_all(views)
        new = [view for view in views if records[view].state is State.NEW and life.gets_changes(view)]
        if new:
            version = self.now()
            for view in new:
                life.states.begin_backfill(view, version, 0, "")

    def _records(self, session: Session, names: Collection[str]) -> list[Keeper]:
        with reading(session, "reading the views of the other partitions") as cursor:
            return keepers.read(cursor, self.database, of=names)
