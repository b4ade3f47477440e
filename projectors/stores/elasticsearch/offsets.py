"""The offset of a pipeline whose store's witness lags behind: the offset never passes the witness.

Recovery treats a store that has less than the offset says as one that lost data. A process that was killed between two
moves of the witness has lost nothing, so the offset must wait for the witness."""

from __future__ import annotations

from contextlib import suppress

from offsets import OffsetStore, Taken
from projectors.stores.elasticsearch.sink import ElasticsearchSink
from viewtail.changes.errors import ViewtailError
from viewtail.changes.positions import Position


class FollowingOffsets:
    """An OffsetStore that saves what `sink` wrote once the witness has moved there, and everything else at once."""

    def __init__(self, offsets: OffsetStore, sink: ElasticsearchSink) -> None:
        self._offsets = offsets
        self._sink = sink
        self._late: Position | None = None  # the witness has not reached it

    def take(self) -> Taken:
        self._late = None
        return self._offsets.take()

    def save(self, position: Position) -> None:
        self._late = position if position == self._sink.unkept else None
        if self._late is None:
            self._offsets.save(position)

    def settle(self) -> None:
        """Move the witness, and save the offset if it arrived; nothing if the store was prepared again meanwhile."""
        late, self._late = self._late, None
        if late is not None:
            if self._sink.unkept is not None:
                self._move_witness()
            if late == self._sink.kept:
                self._offsets.save(late)
        self._offsets.settle()

    def _move_witness(self) -> None:
        try:
            self._sink.settle()
        except ViewtailError:
            self._sink.unkept = None  # during a shutdown nobody waits for a second try
            raise

    def confirm(self) -> None:
        if self._late is not None and self._sink.unkept is not None:
            self._sink.settle()  # if it fails, the sink moves the witness when it is prepared again
        self.settle()
        self._offsets.confirm()

    def save_rows(self) -> None:
        self._offsets.save_rows()

    def close(self) -> None:
        with suppress(ViewtailError):  # the offset stays: a few more changes are read again
            self.settle()
        self._offsets.close()

    def abandon(self) -> None:
        self._offsets.abandon()
