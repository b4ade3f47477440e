"""Keeps how far the backfill of one view has come, in the view's row. FencedError for a stale owner of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from offsets import Owner, keepers, runs, views
from offsets.fill_keys import key_text
from offsets.mysql import Session, check_fence, transaction
from offsets.views import Event, State, move
from offsets.whole_replays import Ending
from viewtail.changes.errors import StopRequested
from viewtail.servers.sessions import quote


@dataclass(eq=False)
class BackfillProgress:
    """Each method commits `session`."""

    session: Session  # where the sink's rows wait for their commit, or any other
    database: str
    owner: Owner  # of the pipeline
    view: str
    row_order: str  # in which the rows are read
    source: str = ""  # of several that the view draws on, the one whose rows are read

    def save(self, key: tuple[Any, ...], row_count: int, kept_count: int) -> None:
        """Save that the chunk ending with `key` is durable; so many rows were read, and so many the view shows.

        Raises StopRequested where the view is not being backfilled any more: it was halted, paused or marked meanwhile.
        """
        with self._owned() as cursor:
            moved = cursor.execute(
                f"UPDATE {quote(self.database, 'view')} SET fill_key = %s, fill_row_count = %s "
                f"WHERE pipeline_id = %s AND name = %s AND state = '{State.BACKFILLING}'",
                (key_text(key, self.row_order, kept_count), row_count, self.owner.id, self.view),
            )
            if not moved:
                raise StopRequested

    def finish(self, end: int, kept_count: int | None) -> None:
        """Note that a store with a witness of version `end` or above has every row of the backfill.

        Args:
            kept_count: rows that were written; None: nobody counted.
        """
        with self._ending(kept_count) as cursor:
            self._finish(cursor, self.owner.id, end, kept_count)

    def _finish(self, cursor: Any, pipeline_id: int, end: int, kept_count: int | None) -> None:
        move(cursor, self.database, pipeline_id, Event.FINISHED, [self.view], end=end, kept_count=kept_count or 0)

    @contextmanager
    def _ending(self, kept_count: int | None) -> Iterator[Any]:
        """Fill the view in this transaction, and end a replay that asked for it."""
        with self._owned() as cursor:
            ending = Ending(cursor, self.database, self.view, self.source)
            ending.lock()
            own = views.read(cursor, self.database, names=[self.view], pipeline_id=self.owner.id)
            yield cursor
            ending.end(own[0].row_count if own else 0, kept_count)

    def is_adopted(self) -> bool:
        """Return whether something in the view's place may be another tool's, which stays."""
        return runs.is_adopted(self.session, self.database, self.view)

    def commit_rows(self) -> None:
        """Make rows durable that move no progress (the sweep's tombstones)."""
        with self._owned():
            pass

    @contextmanager
    def _owned(self) -> Iterator[Any]:
        """A cursor of a transaction that is committed only for the owner."""
        with transaction(self.session, "saving a backfill's progress") as cursor:
            # The pipeline's row first: its thread may halt this view while a batch of it holds that row.
            check_fence(cursor, self.owner)
            yield cursor


@dataclass(eq=False, kw_only=True)
class SharedProgress(BackfillProgress):
    """The progress of a backfill that fills the view for all pipelines of its source."""

    others: Callable[[], Collection[str]]  # names of the other pipelines

    def finish(self, end: int, kept_count: int | None) -> None:
        """Finish as BackfillProgress does, with those other pipelines that were ready before the watermark."""
        names = self.others()
        with self._ending(kept_count) as cursor:
            own = views.read(cursor, self.database, names=[self.view], pipeline_id=self.owner.id, lock=" FOR UPDATE")
            watermark = own[0].watermark_version or 0
            for row, view in keepers.read(cursor, self.database, names=[self.view], of=names):
                if view.state is State.BACKFILLING and (view.watermark_version or 0) <= watermark:
                    # The rows are the leader's: what its witness shows counts for them.
                    self._finish(cursor, row.id, 0, 0)
            self._finish(cursor, self.owner.id, end, kept_count)
