"""First looks at some entities of any view of a pipeline: which of them may differ from their rows.

However many views a pipeline keeps, this has three connections: to the source, to viewtail's own tables, and to the
store. It waits for nothing and mends nothing; what is found differing may only be under way (comparison.py).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pymysql

from ingest.canonical.chunks import CanonicalRows
from offsets.keepers import keepers
from offsets.mysql import OwnSession
from projectors.catalog import Catalog
from projectors.projection import Projections, followed_tables
from projectors.proving.comparison import Comparison
from projectors.read_and_written import kept_as
from projectors.stores import Store, ViewReader
from projectors.views import BoundView
from viewtail.changes.errors import MisuseError
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key, Write


@dataclass(frozen=True, slots=True)
class _Kept:
    """A view as it is looked at."""

    bound: BoundView  # as the pipeline had it when it was first looked at
    comparison: Comparison


class FirstLooks:
    """At views of one store, for one thread. After an error it is to be closed: the next look connects again."""

    def __init__(self, catalog: Catalog, store: Store, stop: threading.Event, chunk_rows: int) -> None:
        self._catalog, self._store, self._stop, self._chunk_rows = catalog, store, stop, chunk_rows
        self._own, self._source = catalog.session(), OwnSession(catalog.servers.open_source)
        self._access = catalog.access(store)
        self._connection: Any = None
        self._reader: ViewReader | None = None  # one of them
        self._views: dict[str, _Kept] = {}

    def suspects(self, view: BoundView, keys: Sequence[Key]) -> list[Key]:
        """Return those of these keys that are shown otherwise than their rows are now."""
        comparison = self._comparison(view)
        # What versions these may have is not known here: a round sees one that is too large.
        rows = comparison.rows.having(comparison.view.key, keys, 0)
        expected = comparison.projected(rows, MAX_VERSION)
        wanted = {
            key: expected.writes.get(key, Write(MAX_VERSION, None))
            for key in keys
            if comparison.name_of(key) not in expected.parked
        }
        return comparison.reader.unequal(wanted)

    def close(self) -> None:
        reader, self._reader, self._connection, self._views = self._reader, None, None, {}
        if reader is not None:
            reader.close()  # and all others: they are over one connection
        for session in (self._own, self._source):
            with suppress(pymysql.err.MySQLError):
                session.close()

    def _comparison(self, view: BoundView) -> Comparison:
        kept = self._views.get(view.id)
        if kept is None or kept.bound is not view:  # its table changed
            kept = self._views[view.id] = _Kept(view, self._made(view))
        return kept.comparison

    def _made(self, bound: BoundView) -> Comparison:
        pipelines = [pipeline.name for pipeline in self._catalog.pipelines() if pipeline.store == self._store.name]
        kept = keepers(self._own, self._catalog.database, bound.id, pipelines)
        if not kept:
            raise MisuseError(f"view {bound.id} was never backfilled. {self._catalog.to_begin(self._own)}")
        view = replace(kept_as(bound, kept[0].view), paused=bound.paused)
        if self._connection is None:
            self._connection = self._store.connection(self._access)
        self._reader = self._store.reader_over(self._connection, self._access, view)
        return Comparison(
            view=view,
            rows=CanonicalRows(
                view.rows,
                view.needed,
                open_source=self._source,
                shows=None,
                stop=self._stop,
                only=view.condition,
                chunk_rows=self._chunk_rows,
            ),
            reader=self._reader,
            projections=Projections([view], followed_tables([view])),
            now=_never,
            parked=_never,
        )


def _never() -> Any:
    raise AssertionError("a first look waits for nothing")
