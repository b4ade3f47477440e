"""Fills a view whose store keeps every change, in the order of the stream: the pipeline itself writes its rows.

Nothing guards such a store, so no row may come behind a later change of its key. Each chunk is read between two
watermarks: from before the first one on the pipeline notes the keys that change, and at the second one it writes the
rows of the others (windows.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from ingest.canonical.chunks import Chunk, row_order
from offsets.fill_keys import key_from_text, key_text
from offsets.views import State, ViewRecord
from projectors.fills.filling import Filling
from projectors.fills.windows import Window, Windows
from projectors.projection import Projected
from viewtail.changes.writes import KeptChange, Key, ViewWrites


@dataclass(slots=True, eq=False)
class PublishedFill:
    """Through the windows of the view's pipeline, whose sink it is."""

    windows: Windows
    view: str
    _is_used: bool = False  # an earlier filling was of this topic
    _watermark: int = 0  # of the filling
    _window: Window = field(init=False)  # of the chunk at hand

    def prepare(self, filling: Filling) -> None:
        """The pipeline has prepared its sink before it passes the filling's watermark."""

    def incarnation(self) -> str:
        return self.windows.place_of(self.view)

    def begin(self, filling: Filling, before: ViewRecord, record: ViewRecord) -> Key | None:
        self._is_used = before.incarnation == self.windows.place_of(self.view)
        self._watermark = record.watermark_version or 0
        if before.state is not State.BACKFILLING:
            self.windows.forget(self.view)
        # The topic itself says where this filling is; MySQL may be behind it.
        key, order, watermark = key_from_text(self.windows.fill_of(self.view) or None)
        return key or None if watermark == self._watermark and order == row_order(filling.view.table) else None

    def version(self, filling: Filling) -> int:
        self._window = self.windows.open(filling.view)
        return filling.now()

    def write(self, filling: Filling, chunk: Chunk, projected: Projected) -> bool:
        note = self._note(filling, chunk.last_key)
        with filling.gate(chunk.read_at) as is_right:
            if not is_right:
                return False
            self._offer(filling, self._window, projected, note)
        if not self.windows.wait(self._window, filling.stop):
            return False
        filling.save(chunk, sum(len(of_view.changes) for of_view in projected.writes))
        return True

    def _offer(self, filling: Filling, window: Window, projected: Projected, note: str) -> None:
        filling.watermarks.write(before=lambda token: self.windows.offer(window, token, projected, note))

    # -- what the table no longer has -----------------------------------------------------------------------------

    def sweep(self, filling: Filling) -> bool:
        """Deletes of keys that the topic has and the view no longer shows: their own deletes may have been missed."""
        if not self._is_used:
            return False
        filling.vitals.state = "sweeping"
        numbers = itertools.count(1)
        while not self._are_swept(filling, numbers):
            filling.rest()
        return True

    def _are_swept(self, filling: Filling, numbers: Iterator[int]) -> bool:
        """False where the pipeline began again before a page was written."""
        since = self.windows.open(filling.view)
        filling.now()  # what was being written when the window was opened is in the topic
        for page in self.windows.keys(self.view):
            if not self._is_swept(filling, since, dict(page), self._note(filling, filling.last_key, next(numbers))):
                return False
            filling.rest()
        return True

    def _is_swept(self, filling: Filling, since: Window, page: dict[Key, int], note: str) -> bool:
        window = self.windows.open(filling.view, since)
        version = filling.now()
        rows = filling.rows.having(filling.view.key, list(page), version)
        projected = filling.projections.of_rows(self.view, rows, version)
        shown = {key for of_view in projected.writes for key in of_view.writes}
        refused = {letter.key for letter in projected.parked}
        stale = [
            KeptChange(key, stored | 1, "delete", None, None)
            for key, stored in filling.unparked(page, refused).items()
            if key not in shown
        ]
        if not stale:
            return not window.is_void
        self._offer(filling, window, Projected([ViewWrites(self.view, None, stale)]), note)
        return self.windows.wait(window, filling.stop)

    def _note(self, filling: Filling, last_key: Key | None, swept: int = 0) -> str:
        """How far the filling is, for the topic; no two of one filling are the same."""
        text = key_text(last_key or (), row_order(filling.view.table), self._watermark)
        return f'{text[:-1]},"swept":{swept}}}' if swept else text

    def finish(self, filling: Filling, end: int) -> None:
        filling.save_end(end)
        self.windows.forget(self.view)  # not before: cut off in between, the filling would publish its rows again

    def close(self) -> None:
        self.windows.close(self.view)
