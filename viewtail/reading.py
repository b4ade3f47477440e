"""Reading views from Python and from the command line: settings and declarations in, records out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest.canonical import describe
from operations import reading
from projectors.binding import bind
from projectors.stores import SearchPage, ViewReader
from projectors.stores.registry import store_of
from projectors.views import BoundView, View
from servers.sessions import open_session
from viewtail import declarations
from viewtail.composition import Deployment, open_store_session
from viewtail.settings import Settings, load


class Rows(list[dict[str, Any]]):
    """Canonical rows, and what there is to know about them."""

    def __init__(self, rows: Iterable[dict[str, Any]], *, has_more: bool, remark: str | None) -> None:
        super().__init__(rows)
        self.has_more = has_more  # the index has more keys than the limit
        self.remark = remark  # why rows may be missing: the view is half filled, or halted


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One view, ready to be read."""

    settings: Settings
    view: BoundView
    remark: str | None  # why it may be incomplete or old

    @classmethod
    def of(cls, settings: Settings, views: Sequence[View], name: str) -> Reader:
        """Describe the view's table and look up its state. Raises MisuseError for an unknown name."""
        view = reading.choose(views, name)
        settings.check_stores([view])
        with closing(open_session(settings.source_address(), role="source")) as connection:
            (bound,) = bind([view], lambda schema, table: describe(connection, schema, table))
        remark = reading.remark(
            lambda: open_store_session(settings), settings.store_address(), settings.store_database, view
        )
        return cls(settings=settings, view=bound, remark=remark)

    def find(self, values: Sequence[Any], limit: int) -> Rows:
        """Canonical rows by indexed value."""
        deployment = Deployment(settings=self.settings, views=[self.view])
        found = reading.find(deployment.open_source, self._open, self.view, values, limit)
        return Rows(found.rows, has_more=found.has_more, remark=self.remark)

    def get(self, key: Any) -> reading.Record | None:
        """The view's record of one key."""
        found_key = reading.key_of(key, self.view)
        with closing(self._open()) as reader:
            return reading.get(reader, found_key)

    def search(self, query: str, *, fields: Sequence[str] | None = None, page: int = 1, size: int = 10) -> SearchPage:
        """One page of documents by query."""
        reading.require_search(self.view.view)
        with closing(self._open()) as reader:
            return reader.search(query, fields=fields, page=page, size=size)

    def printable(self, record: reading.Record) -> dict[str, Any]:
        """A record's content as a terminal shows it."""
        return store_of(self.view.view).printable(self.view, record.content)

    def _open(self) -> ViewReader:
        store = store_of(self.view.view)
        return store.reader(self.settings.access(store), self.view)


def open_reader(view: str | View, settings: Settings | None, environ: Mapping[str, str] | None = None) -> Reader:
    """A reader of a view, by its name in the views of the settings or as declared."""
    loaded = settings or load(None, os.environ if environ is None else environ)
    views = [view] if isinstance(view, View) else declarations.load(loaded.views)
    return Reader.of(loaded, views, view.id if isinstance(view, View) else view)


def reader_for_command(config: Path | None, name: str) -> Reader:
    """A reader for a command: settings from --config and the environment."""
    settings = load(config, os.environ)
    return Reader.of(settings, declarations.load(settings.views), name)
