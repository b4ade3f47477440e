"""Reads a SearchIndex whose keys are of one source at a time, as its source has it: others' documents are not its own.

A search finds the documents of all sources, as readers of the alias do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from elasticsearch import Elasticsearch

from projectors.stores import Held, SearchPage, StoredRow
from projectors.stores.elasticsearch.index import DELETED, SOURCE, VERSIONS
from projectors.stores.elasticsearch.reading import KEYS_A_PAGE, DocumentReader, Found, held_of
from projectors.stores.elasticsearch.unique import NOBODYS, as_own, plain
from projectors.views import BoundView
from viewtail.changes.writes import Key


class UniqueReader(DocumentReader):
    """Reads one view as one source has it. A tombstone, too, is that source's own."""

    def __init__(self, client: Elasticsearch, view: BoundView) -> None:
        super().__init__(client, view)
        (self._source,) = view.source

    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        found = ((key, doc) for page in self._documents(keys) for key, doc in page if doc is not None)
        return [
            StoredRow(key, int(doc["_version"]), doc["_source"])
            for key, doc in found
            if not doc["_source"].get(DELETED) and NOBODYS not in doc
        ]

    def owners(self, keys: Sequence[Key]) -> dict[Key, str]:
        found = ((key, doc) for page in self._ahead(keys, KEYS_A_PAGE, super()._page) for key, doc in page)
        return {key: owner for key, doc in found if doc is not None and (owner := doc["_source"].get(SOURCE))}

    def search(self, query: str, *, fields: Sequence[str] | None, page: int, size: int) -> SearchPage:
        found = super().search(query, fields=fields, page=page, size=size)
        hits = []
        for hit in found.hits:
            owner, versions = hit.document.get(SOURCE), hit.document.get(VERSIONS, {})
            hits.append(replace(hit, version=versions.get(owner, hit.version), document=plain(hit.document)))
        return replace(found, hits=hits)

    def _held(self, doc: dict[str, Any]) -> Held:
        held = held_of(doc)
        if NOBODYS not in doc:
            return held
        return replace(held, version=None, fault=held.fault or "it does not say which source it is of", is_foreign=True)

    def _page(self, keys: Sequence[Key]) -> list[Found]:
        return self._owned(super()._page(keys))

    def _searched_page(self, keys: Sequence[Key]) -> list[Found]:
        return self._owned(super()._searched_page(keys))

    def _owned(self, page: list[Found]) -> list[Found]:
        return [(key, doc and as_own(doc, self._source)) for key, doc in page]
