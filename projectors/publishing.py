"""The pipeline of a store that appends every change exactly once: its position is committed with the changes.

Nothing guards such a store, so nothing that was published is read again, and views are filled by the pipeline itself,
in the order of the stream (`Windows`). A commit costs what 2,000 rows do, so several batches may go into one: those
that wait already, and where readers do not wait for the commit, all that come within `HELD_S`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import structlog

from projectors import failpoints
from projectors.derived.reading import committed
from projectors.fills.windows import Windows
from projectors.pipeline import Pipeline
from projectors.projection import Projected
from projectors.stores import Publisher
from viewtail.changes.batches import Batch
from viewtail.changes.positions import Position
from viewtail.changes.versions import MAX_VERSION

_log = structlog.get_logger("viewtail.pipeline")

HELD_S = 5.0  # so long a transaction stays open at most whose changes are read before its commit


@dataclass(slots=True, kw_only=True, eq=False)
class PublishingPipeline(Pipeline):
    """Publishes each change of its views once."""

    sink: Publisher
    windows: Windows = field(init=False)  # of fillings
    _open_rows: int = 0  # in the transaction that is open, without those of the batch at hand
    _most_open_rows: int = field(init=False)

    def __post_init__(self) -> None:
        Pipeline.__post_init__(self)
        self.sink.gets_changes, self.sink.lacks_from = self.life.gets_changes, self.fan_outs.lacks_from
        self.sink.unfinished = self.fan_outs.unfinished
        self.windows = Windows(self.sink, self.life.projections.is_halted)
        self._most_open_rows = self.limits.batch_rows
        self.limits = self.limits.with_at_most(self.sink.most_rows)

    def _begin_again(self, begin: Position) -> None:
        self._open_rows = 0
        # Nothing guards a topic: where the position stays before what was published (XA), no page has an older version.
        self.fan_outs.begin(begin, self.sink.newest)
        if lost := self.fan_outs.lost(self.sink.was_unfinished):
            _log.error("MySQL has lost fan-outs of topics, which are filled again", views=", ".join(lost))
            self.life.lost(lost)
        self.windows.begin_again()
        self.watermarks.waiter.begin_again()

    def _may_stop(self) -> bool:
        """Where a transaction is open, the batch that ends it is there already, or `save_now` ends it."""
        return not self._open_rows or self._unsaved is not None

    def _save_every_s(self) -> float:
        return HELD_S if self.sink.is_open else Pipeline._save_every_s(self)

    def save_now(self) -> None:
        if self._unsaved is not None:
            self._open_rows = 0  # the transaction that is open ends
        Pipeline.save_now(self)

    def _settle(self) -> None:
        """Readers have what is held, so a position must tell of it before another server is judged."""
        if self.sink.is_open:
            self.save_now()
        Pipeline._settle(self)

    def _tick_s(self) -> float:
        return self.tick_s if self.sink.is_open else Pipeline._tick_s(self)

    def _between_batches(self, *, is_idle: bool) -> None:
        """Not amid a transaction, of the source or of several batches: its position is not known yet."""
        if not self.sink.is_open:
            self.fan_outs.step(self._write_apart, may_wait=not is_idle)

    def _apply(self, batch: Batch) -> None:
        if not self._open_rows or self._unsaved is not None:  # else what the transaction began with is older
            self.vitals.oldest_waiting_us = batch.oldest_commit_us
        self._end_held(batch)
        self._make_ready(batch)
        self._leave_out_published(batch)
        projected = self._next.projected(batch)
        for part, _ in self._derived(batch, projected):
            self._add(part)
        self.windows.take_part(batch, projected)
        failpoints.reach("before write")
        self._write(projected, None)  # a batch is read once: its dead letters are recorded before it is committed
        self.sink.on_passed(batch.watermarks)
        if self._written(batch):
            self._commit_or_stay_open(batch)

    def _commit_or_stay_open(self, batch: Batch) -> None:
        """Commit with the position behind the batch, or leave the transaction open for what comes.

        It stays open amid one of the source, for a batch that waits already, and where no reader waits for the commit.
        """
        is_held = self._is_held(batch)
        stays_open = is_held or self._is_followed(batch)
        if batch.end is None or stays_open:
            self.offsets.save_rows()  # the offset stays before a transaction
        else:
            self._commit(batch, batch.end)
            self._save(batch.end)
            self.fan_outs.passed(batch)
        self._saved(batch)
        self.vitals.row_count += batch.row_count
        if is_held:
            self._unsaved = batch.end  # committed with a later batch, or by `save_now`
            if not self._open_rows:
                self._idle_saved_at = time.monotonic()  # `HELD_S` counts from the first batch that is held
        if stays_open:
            self._open_rows += batch.row_count
        if is_held or not stays_open:
            self.vitals.oldest_waiting_us = 0

    def _end_held(self, batch: Batch) -> None:
        """Commit what is held before a batch behind which nothing may tell its position.

        For statements the pipeline may have to be taken again; a piece of a transaction has no position.
        """
        if self._unsaved is not None and self.sink.is_open and (batch.table_changes or batch.end is None):
            self.save_now()

    def _add(self, part: Projected) -> None:
        """Derived rows, to the transaction that is open."""
        self.windows.note(part)
        self._write(part, None)

    def _write_apart(self, part: Projected) -> None:
        self._add(part)
        self.sink.commit()

    def _leave_out_published(self, batch: Batch) -> None:
        """A position stays before a transaction that is prepared (XA), so changes behind it may come again."""
        newest = self.sink.newest
        oldest = [change.version for change in batch.changes[:1]] + [row.version for row in batch.refused]
        if min(oldest, default=newest + 1) <= newest:
            self.fan_outs.come_to(committed(batch))  # pages show it, though it is not published again
            batch.changes = [change for change in batch.changes if change.version > newest]
            batch.refused = [row for row in batch.refused if row.version > newest]
        last = [change.version for change in batch.changes[-1:]] + [row.version for row in batch.refused[-1:]]
        self.sink.newest = max([newest, *last])

    def _is_held(self, batch: Batch) -> bool:
        """Return whether the transaction stays open since nobody waits for its end; `HELD_S` later it is committed."""
        if self.sink.is_awaited or not self._may_stay_open(batch) or self.fan_outs.lacks_from() < MAX_VERSION:
            return False
        return self._open_rows + batch.row_count <= self._most_open_rows

    def _may_stay_open(self, batch: Batch) -> bool:
        """Return whether nothing in the batch has to be durable at once."""
        return not (batch.end is None or batch.watermarks or batch.table_changes or self.stop.is_set())

    def _is_followed(self, batch: Batch) -> bool:
        """Return whether the batch that comes next goes into the same transaction.

        Only one that is sure to be applied: nothing else would end the transaction.
        """
        if not self._may_stay_open(batch):
            return False
        following = self._next.following()
        if following is None or following.end is None or not following.changes or following.table_changes:
            return False
        return self._open_rows + batch.row_count + following.row_count <= self._most_open_rows

    def _commit(self, batch: Batch, end: Position) -> None:
        """End the transaction; statements on tables ended it where there are any."""
        if not batch.table_changes:
            self.sink.write([], end, self._next.look)
        self._open_rows = 0
        self.windows.written()
        self.sink.publish_watermarks()
