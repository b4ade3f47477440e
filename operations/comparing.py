"""Whether a copy of a view has the keys that its table says it should, while both change.

The table is walked by its key in chunks, the copy in pages. A key that differs is looked at again for a while: the
pipeline may not have come to its last change yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

from changes.batches import Row
from changes.errors import StopRequested
from changes.rendering import render_key
from changes.writes import Key
from ingest.canonical.chunks import CanonicalRows
from projectors.every_change import projections_for
from projectors.projection import Projections, followed_tables
from projectors.stores import ViewReader
from projectors.stores.registry import store_of
from projectors.views import BoundView
from servers.sessions import Connection

LOOKS = 40
LOOK_EVERY_S = 0.5
KEYS_A_QUERY = 1_000
SHOWN = 5  # keys in a sentence


Content: TypeAlias = tuple[Any, ...] | bytes


@dataclass(slots=True, kw_only=True, eq=False)
class Keys:
    """One comparison. `parked` are the rendered keys that the view is known to lack."""

    view: BoundView
    rows: CanonicalRows
    reader: ViewReader
    projections: Projections
    parked: frozenset[str]
    stop: threading.Event

    def differences(self) -> list[str]:
        """What differs, a sentence each."""
        missing = [key for some in self._wanted() for key in self._lasting(some, self._missing)]
        extra = [key for page in self.reader.pages() for key in self._lasting([row.key for row in page], self._extra)]
        return [*self._told("lacks", missing), *self._told("has, and should not,", extra)]

    def _wanted(self) -> Iterator[list[Key]]:
        """The keys that the view should show, a chunk at a time."""
        after = None
        while (chunk := self.rows.after(after, 0)) is not None:
            yield [key for key, content in self._shown(chunk.rows).items() if not _is_bare(content)]
            after = chunk.last_key
            if chunk.is_last:
                return

    def _lasting(self, keys: Sequence[Key], differing: Callable[[Sequence[Key]], list[Key]]) -> list[Key]:
        """Those that differ, and go on to."""
        found = differing(keys)
        for _ in range(LOOKS):
            if not found:
                return []
            if self.stop.wait(LOOK_EVERY_S):
                raise StopRequested
            found = differing(found)
        return [key for key in found if render_key(key, self.view.key) not in self.parked]

    def _missing(self, keys: Sequence[Key]) -> list[Key]:
        has = {row.key for row in self.reader.rows(keys)}
        lacking = [key for key in keys if key not in has]
        return [key for key, content in self._contents(lacking).items() if not _is_bare(content)]

    def _extra(self, keys: Sequence[Key]) -> list[Key]:
        wanted = self._contents(keys)
        others = [key for key in keys if key not in wanted]
        return [row.key for row in self.reader.rows(others)]

    def _contents(self, keys: Sequence[Key]) -> dict[Key, Content]:
        """What the view should show of these keys, as the table is now."""
        found: dict[Key, Content] = {}
        for start in range(0, len(keys), KEYS_A_QUERY):
            rows = self.rows.having(self.view.key, keys[start : start + KEYS_A_QUERY], 0)
            found.update(self._shown(rows))
        return found

    def _shown(self, rows: list[Row]) -> dict[Key, Content]:
        projected = self.projections.of_rows(self.view.id, rows, 0)
        found = (item for of_view in projected.writes for item in of_view.writes.items())
        return {key: content for key, (_, content) in found if content is not None}

    def _told(self, what: str, keys: list[Key]) -> list[str]:
        if not keys:
            return []
        some = ", ".join(render_key(key, self.view.key) for key in keys[:SHOWN])
        return [f"it {what} {len(keys):,} keys, such as {some}"]


def _is_bare(content: Content) -> bool:
    """Whether all of it is NULL: some stores show such a row, others do not."""
    return isinstance(content, tuple) and all(value is None for value in content)


def different_keys(
    view: BoundView,
    open_source: Callable[[], Connection],
    open_reader: Callable[[], ViewReader],
    parked: frozenset[str],
    stop: threading.Event,
) -> list[str]:
    """What differs between a copy's keys and its table's."""
    rows = CanonicalRows(view.table, view.needed, open_source=open_source, shows=lambda *_: True, stop=stop)
    with closing(rows), closing(open_reader()) as reader:
        projections = projections_for(store_of(view.view), [view], followed_tables([view]))
        keys = Keys(view=view, rows=rows, reader=reader, projections=projections, parked=parked, stop=stop)
        return keys.differences()
