"""Views that several pipelines keep, one a partition of their source: who fills them, and when they are filled.

Each partition has changes of some of a view's keys, a backfill has rows of all. So the pipeline of the first partition
leads: it backfills once for all. Before its watermark every other one must get the view's changes, or those between
would be missing. So a sibling whose view is new waits until it is past a watermark of its own, and then says `filling`:
that it is ready. The leader begins when all are, and its end makes those `filled` that were ready before its watermark.
A view that is new again in any of them is backfilled again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from offsets.mysql import Session, reading
from projectors.view_life import ViewLife
from projectors.view_states import BackfillProgress, Event, State
from viewtail.changes.pipelines import PipelineId
from viewtail.servers.sessions import quote


class _Record(NamedTuple):
    """A view as one pipeline has it."""

    pipeline: str
    pipeline_id: int
    view: str
    state: str
    fingerprint: str
    watermark: int

    def is_ready(self, fingerprint: str) -> bool:
        """Whether its pipeline gets the view's changes, or will not: then it is halted, and new again after that."""
        return self.fingerprint == fingerprint and self.state != State.NEW


@dataclass(frozen=True, slots=True)
class Siblings:
    """The pipelines of a source and a store, seen from one of them.

    Args:
        pipelines: asks how many parts the source has now.
        now: a version that the pipeline is past.
    """

    identity: PipelineId
    database: str
    pipelines: Callable[[PipelineId], Sequence[PipelineId]]
    now: Callable[[], int]

    def to_backfill(self, life: ViewLife, session: Session, mine: list[str]) -> list[str]:
        """Of the views that need a backfill here, `mine`, those that this pipeline runs now."""
        if self.identity.partition:
            self._say_ready(life, mine)
            return []
        names = {one.name for one in self.pipelines(self.identity)} - {self.identity.name}
        if not names:
            return mine
        records = self._records(session, names)
        self._begin_again(life, set(life.views) - set(mine), records)
        return [view for view in life.to_backfill() if self._are_ready(life, view, names, records)]

    @staticmethod
    def _are_ready(life: ViewLife, view: str, names: Collection[str], records: Sequence[_Record]) -> bool:
        fingerprint = life.views[view].fingerprint
        return {one.pipeline for one in records if one.view == view and one.is_ready(fingerprint)} == names

    @staticmethod
    def _begin_again(life: ViewLife, views: Collection[str], records: Sequence[_Record]) -> None:
        """A view that is filled here, and not with a sibling, lacks what that one lost."""
        lacking = {one.view for one in records if one.state in (State.NEW, State.BACKFILLING)}
        life.states.move(Event.LOST, sorted(lacking.intersection(views)))

    def _say_ready(self, life: ViewLife, views: Sequence[str]) -> None:
        records = life.states.read_all(views)
        new = [view for view in views if records[view].state is State.NEW and life.gets_changes(view)]
        if new:
            version = self.now()
            for view in new:
                life.states.begin_backfill(view, version, 0, "")

    def _records(self, session: Session, names: Collection[str]) -> list[_Record]:
        with reading(session, "reading the views of sibling pipelines") as cursor:
            return records_of(cursor, self.database, names)


def records_of(cursor: Any, database: str, pipelines: Collection[str]) -> list[_Record]:
    """Every view of these pipelines."""
    cursor.execute(
        "SELECT p.name, p.id, v.name, v.state, v.fingerprint, COALESCE(v.watermark_version, 0) "
        f"FROM {quote(database, 'view')} v JOIN {quote(database, 'pipeline')} p ON p.id = v.pipeline_id "
        "WHERE p.name IN %(names)s",
        {"names": sorted(pipelines)},
    )
    return [_Record(*row) for row in cursor.fetchall()]


@dataclass(eq=False)
class SharedProgress(BackfillProgress):
    """The progress of a backfill that fills the view for all siblings."""

    siblings: Callable[[], Collection[str]]  # names of the other pipelines

    def finish(self, end: int, kept_count: int | None) -> None:
        """As BackfillProgress, with those siblings that were ready before the watermark."""
        names = self.siblings()
        with self._ending(kept_count) as cursor:
            table = quote(self.database, "view")
            cursor.execute(
                f"SELECT watermark_version FROM {table} WHERE pipeline_id = %s AND name = %s FOR UPDATE",
                (self.owner.id, self.view),
            )
            (watermark,) = cursor.fetchone()
            for one in records_of(cursor, self.database, names) if names else ():
                if one.view == self.view and one.state == State.BACKFILLING and one.watermark <= (watermark or 0):
                    # The rows are the leader's: what its witness shows counts for them.
                    self._finish(cursor, one.pipeline_id, 0, 0)
            self._finish(cursor, self.owner.id, end, kept_count)
