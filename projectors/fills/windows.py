"""Hands the rows of a filling to a pipeline that appends every change, which writes them.

From the moment when a filling opens a window, the pipeline notes the keys that change. At a watermark it writes those
of the filling's rows whose keys did not change: they are as they were read, and whatever changed was written as a
change. How far the filling has come is durable in the same step as the rows, so a row is not written twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from projectors.projection import Projected
from projectors.stores import Publisher
from projectors.views import BoundView
from viewtail.changes.batches import Batch, Origin
from viewtail.changes.errors import StopRequested
from viewtail.changes.rendering import key_renderer
from viewtail.changes.writes import KeptChange, Key, Parked, ViewWrites

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

    def unchanged(self) -> list[KeptChange]:
        """Its rows whose keys neither changed nor were parked since it was opened."""
        assert self.rows is not None
        rows = [change for change in self.rows.changes if change.key not in self.changed]
        if not self.parked:
            return rows
        render = key_renderer(self.view.key)
        return [change for change in rows if render(change.key) not in self.parked]

    def unchanged_refused(self) -> list[Parked]:
        """The same of the rows that cannot be projected."""
        if not self.refused:
            return []
        known = {*self.parked, *map(key_renderer(self.view.key), self.changed)}
        return [letter for letter in self.refused if letter.key not in known]


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

    def note(self, projected: Projected) -> None:
        """Note which keys changed, of a part of a batch that is written ahead of it."""
        with self._changed:
            for window in self._windows.values():
                self._note(window, projected)

    @staticmethod
    def _note(window: Window, projected: Projected) -> None:
        for writes in projected.writes:
            if writes.view == window.view.id:
                window.changed.update(change.key for change in writes.changes)
        window.parked.update(letter.key for letter in projected.parked if letter.view == window.view.id)

    def _add(self, window: Window, version: int, committed_us: int, projected: Projected) -> None:
        if self._is_halted(window.view.id):
            window.is_void = True
            self._changed.notify_all()
            return
        origin = Origin(committed_us=committed_us)
        if window.view.view.entity.version is not None:  # each row has its own
            rows = [change._replace(origin=origin) for change in window.unchanged()]
        else:
            rows = [change._replace(version=version, origin=origin) for change in window.unchanged()]
        if rows:
            projected.writes.append(ViewWrites(window.view.id, None, rows))
        projected.parked += window.unchanged_refused()
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
        """Return whether the rows were written; False: they must be read again."""
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
