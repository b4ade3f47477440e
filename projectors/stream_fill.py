"""Fills a view whose store keeps every change, in the order of the stream, while the pipeline goes on.

Nothing guards such a store, so no row may come behind a later change of its key. Rows are read in chunks, each between
two watermarks: the pipeline notes the keys that change from before the first one on. At the second one it writes the
rows of the chunk whose keys did not change: they are as they were read, and whatever changed was written as a change.
How far this has come is durable in the same step as the rows, so a row is not written twice.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog

from ingest.canonical.chunks import Chunk, row_order
from offsets.fill_keys import key_from_text, key_text
from offsets.views import ViewRecord
from projectors import failpoints
from projectors.backfill import Backfill
from projectors.projection import Projected
from projectors.stores import Publisher
from projectors.views import BoundView
from viewtail.changes.batches import Batch, Origin
from viewtail.changes.errors import StopRequested
from viewtail.changes.rendering import key_renderer, render_key
from viewtail.changes.writes import KeptChange, Key, Parked, ViewWrites

_log = structlog.get_logger("viewtail.backfill")

WAIT_S = 0.25
WRITE_AGAIN_AFTER_S = 300.0


@dataclass(slots=True, eq=False)
class Window:
    """What the pipeline and one filling share; guarded by the lock of `Windows`."""

    view: BoundView
    changed: set[Any] = field(default_factory=set)  # keys, since it was opened
    parked: set[str] = field(default_factory=set)  # rendered keys
    token: str | None = None  # at this watermark the rows are written
    rows: ViewWrites | None = None
    refused: list[Parked] = field(default_factory=list)  # rows that cannot be projected
    note: str = ""  # how far the filling is then
    is_written: bool = False
    is_void: bool = False  # the pipeline began again: the rows are to be read again


class Windows:
    """The fillings of one pipeline. Its thread calls `take_part`, `written` and `begin_again`; fillings the others."""

    def __init__(self, sink: Publisher, is_halted: Callable[[str], bool] = lambda _: False) -> None:
        self._sink = sink
        self._is_halted = is_halted
        self._changed = threading.Condition()
        self._windows: dict[str, Window] = {}
        self._taking_part: list[Window] = []

    # -- the pipeline ---------------------------------------------------------------------------------------------

    def take_part(self, batch: Batch, projected: Projected) -> None:
        """Note which keys changed, and add the rows whose turn it is to what is written."""
        if not self._windows:
            return
        tokens = {mark.token: mark.version for mark in batch.watermarks}
        with self._changed:
            for window in self._windows.values():
                self._note(window, projected)
                if window.token in tokens and batch.end is not None and not window.is_void:
                    self._add(window, tokens[window.token], batch.oldest_commit_us, projected)

    @staticmethod
    def _note(window: Window, projected: Projected) -> None:
        for found in projected.writes:
            if found.view == window.view.id:
                window.changed.update(change.key for change in found.changes)
        window.parked.update(letter.key for letter in projected.parked if letter.view == window.view.id)

    def _add(self, window: Window, version: int, committed_us: int, projected: Projected) -> None:
        assert window.rows is not None
        if self._is_halted(window.view.id):
            window.is_void = True
            self._changed.notify_all()
            return
        render = key_renderer(window.view.key)
        is_versioned = window.view.view.entity.version is not None
        origin = Origin(committed_us=committed_us)
        rows = [
            change._replace(version=change.version if is_versioned else version, origin=origin)
            for change in window.rows.changes
            if change.key not in window.changed and (not window.parked or render(change.key) not in window.parked)
        ]
        if rows:
            projected.writes.append(ViewWrites(window.view.id, None, rows))
        if window.refused:
            known = {*window.parked, *(render(key) for key in window.changed)}
            projected.parked.extend(letter for letter in window.refused if letter.key not in known)
        self._sink.fills[window.view.id] = window.note
        self._taking_part.append(window)

    def written(self) -> None:
        """What `take_part` added is durable."""
        if self._taking_part:
            with self._changed:
                for window in self._taking_part:
                    window.is_written = True
                self._taking_part.clear()
                self._changed.notify_all()

    def begin_again(self) -> None:
        """The pipeline reads again from what turned out to be durable."""
        with self._changed:
            self._taking_part.clear()
            for window in self._windows.values():
                window.is_written = window.note != "" and self._sink.fills.get(window.view.id) == window.note
                window.is_void = not window.is_written
            self._changed.notify_all()

    # -- the fillings ---------------------------------------------------------------------------------------------

    def open(self, view: BoundView, since: Window | None = None) -> Window:
        """From now on the view's changed keys are noted; and those that were noted `since` another was opened."""
        with self._changed:
            window = self._windows[view.id] = Window(view)
            if since is not None:
                window.changed, window.parked = since.changed, since.parked
            return window

    def close(self, view: str) -> None:
        with self._changed:
            self._windows.pop(view, None)

    def offer(self, window: Window, token: str, projected: Projected, note: str) -> None:
        """Let these rows be written at the watermark `token`, which nobody has written yet."""
        with self._changed:
            window.rows = projected.writes[0] if projected.writes else ViewWrites(window.view.id, None)
            window.refused, window.note = projected.parked, note
            window.token = token

    def wait(self, window: Window, stop: threading.Event) -> bool:
        """Whether the rows were written; False: they must be read again."""
        deadline = time.monotonic() + WRITE_AGAIN_AFTER_S
        with self._changed:
            while not (window.is_written or window.is_void):
                if stop.is_set():
                    raise StopRequested
                if time.monotonic() > deadline and window not in self._taking_part:
                    window.token = None  # it may come yet, and the rows are read again
                    return False
                self._changed.wait(WAIT_S)
            return window.is_written

    def fill_of(self, view: str) -> str:
        """How far the filling of a view has come, durably; '' where it has not begun."""
        with self._changed:
            return self._sink.fills.get(view, "")

    def place_of(self, view: str) -> str:
        """Which topic of its name it is; known once the pipeline has prepared its sink."""
        return self._sink.incarnations().get(view, "")

    def keys(self, view: str) -> Iterator[list[tuple[Key, int]]]:
        """As Publisher.keys."""
        return self._sink.keys(view)

    def forget(self, view: str) -> None:
        """It is filled, or begins anew."""
        with self._changed:
            self._sink.fills.pop(view, None)


@dataclass(slots=True, kw_only=True, eq=False)
class StreamFill(Backfill):
    """A backfill whose rows the pipeline itself writes."""

    windows: Windows

    def close(self) -> None:
        """The sink is the pipeline's."""

    def run(self) -> None:
        """As Backfill.run."""
        view = self.view.id
        watermark = self._now()
        place = self.windows.place_of(view)
        is_used = self.life.states.read(view).incarnation == place  # an earlier backfill was of this topic
        record, is_resumed = self._begin(watermark, place)
        assert record.watermark_version is not None
        if not is_resumed:
            self.windows.forget(view)
        try:
            last_key = self._fill(record)
            if is_used:
                self._delete_stale(record, last_key)
        finally:
            self.windows.close(view)
            self.rows.close()
        self.progress.finish(self._now(), self._kept_count)
        self.windows.forget(view)
        self.vitals.state = "filled"
        _log.info("view backfilled", view=view, rows=self._kept_count)

    def _fill(self, record: ViewRecord) -> Key | None:
        """The key of the last row."""
        after = self._last_key(record)
        while True:
            window = self.windows.open(self.view)
            version = self._now()
            chunk = self.rows.after(after, version)
            if chunk is None:
                return after
            if self._is_written(window, chunk, self.projections.of_rows(self.view.id, chunk.rows, version), record):
                after = chunk.last_key
                if chunk.is_last:
                    return after
            if self.stop.is_set() or self.life.projections.is_halted(self.view.id):
                raise StopRequested

    def _is_written(self, window: Window, chunk: Chunk, projected: Projected, record: ViewRecord) -> bool:
        """Have a chunk written, and keep how far that is for `status`; False: read it again."""
        note = self._note(record, chunk.last_key)
        with self.life.gate.open(self.view.id, chunk.read_at) as is_right:
            if self.life.gate.is_bound_since(self.view.id, self.bound_at):
                raise StopRequested
            if not is_right:
                return False
            self.watermarks.write(before=lambda token: self.windows.offer(window, token, projected, note))
        if not self.windows.wait(window, self.stop):
            return False
        self.vitals.row_count += len(chunk.rows)
        self._kept_count += sum(len(found.changes) for found in projected.writes)
        self.progress.save(chunk.last_key, self.vitals.row_count, self._kept_count)
        failpoints.reach("after chunk")
        return True

    def _delete_stale(self, record: ViewRecord, last_key: Key | None) -> None:
        """Deletes of keys that the topic has and the view no longer shows: their own deletes may have been missed."""
        self.vitals.state = "sweeping"
        numbers = itertools.count(1)
        while not self._are_swept(record, last_key or (), numbers):
            if self.stop.is_set() or self.life.projections.is_halted(self.view.id):
                raise StopRequested

    def _are_swept(self, record: ViewRecord, last_key: Key, numbers: Iterator[int]) -> bool:
        """False where the pipeline began again before a page was written."""
        since = self.windows.open(self.view)
        self._now()  # what was being written when the window was opened is in the topic
        for page in self.windows.keys(self.view.id):
            if not self._is_swept(since, dict(page), self._note(record, last_key, next(numbers))):
                return False
            if self.stop.is_set():
                raise StopRequested
        return True

    def _is_swept(self, since: Window, page: dict[Key, int], note: str) -> bool:
        window = self.windows.open(self.view, since)
        version = self._now()
        rows = self.rows.having(self.view.key, list(page), version)
        projected = self.projections.of_rows(self.view.id, rows, version)
        shown = {key for found in projected.writes for key in found.writes}
        parked = self.dead_letters.keys_of(self.view.id) | {letter.key for letter in projected.parked}
        stale = [
            KeptChange(key, stored | 1, "delete", None, None)
            for key, stored in page.items()
            if key not in shown and render_key(key, self.view.key) not in parked
        ]
        if not stale:
            return not window.is_void
        deletes = Projected([ViewWrites(self.view.id, None, stale)])
        self.watermarks.write(before=lambda token: self.windows.offer(window, token, deletes, note))
        return self.windows.wait(window, self.stop)

    def _note(self, record: ViewRecord, last_key: Key, swept: int = 0) -> str:
        """How far the filling is, for the topic; no two of one filling are the same."""
        text = key_text(last_key, row_order(self.view.table), record.watermark_version or 0)
        return f'{text[:-1]},"swept":{swept}}}' if swept else text

    def _last_key(self, record: ViewRecord) -> tuple[Any, ...] | None:
        """Where the topic itself says that this filling is; MySQL may be behind it."""
        text = self.windows.fill_of(self.view.id)
        key, order, of = key_from_text(text or None)
        return key or None if of == record.watermark_version and order == row_order(self.view.table) else None
