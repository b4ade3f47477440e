"""Reads the index that another tool keeps under the name of a search view, with the right to read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from elasticsearch import Elasticsearch

from projectors.stores import UNREADABLE, AuditedPlace, Held, Unfit
from projectors.stores.elasticsearch.documents import document_in
from projectors.stores.elasticsearch.index import (
    DELETED,
    POSITION,
    PRESENT,
    IndexNames,
    left_by_adopt,
    mapping_of,
    path,
    unlike_declared,
)
from projectors.stores.elasticsearch.reading import KEYS_A_SEARCH, DocumentReader, present_documents
from projectors.stores.elasticsearch.requests import ask, unrefused
from projectors.views import BoundView
from viewtail.changes.errors import StoreError
from viewtail.changes.writes import Key, Write


class AuditedDocuments(DocumentReader):
    """Reads one view's documents, by the name that readers use."""

    def __init__(self, client: Elasticsearch, view: BoundView, undeclared: dict[str, None]) -> None:
        super().__init__(client, view)
        self._undeclared = undeclared
        self._declared = list(mapping_of(view)[0])

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        return {
            key: Held(None, self._form(doc["_source"]))
            for page in self._documents(keys)
            for key, doc in page
            if doc is not None and not doc.get("_source", {}).get(DELETED)
        }

    def unequal(self, wanted: Mapping[Key, Write]) -> list[Key]:
        """Search, which shows what was written a moment ago a moment later: what differs is looked at again."""
        pages = self._ahead(list(wanted), KEYS_A_SEARCH, self._searched_page)
        return [key for page in pages for key in self._differing(page, wanted)]

    def _differing(self, page: list[tuple[Key, dict[str, Any] | None]], wanted: Mapping[Key, Write]) -> list[Key]:
        try:
            lines: Sequence[bytes | None] = self._encode([(key, wanted[key]) for key, _ in page])
        except (Unfit, ValueError, TypeError):  # one document cannot be written
            lines = [None] * len(page)
        return [
            key
            for (key, doc), line in zip(page, lines, strict=True)
            if not self._is_same(key, None if doc is None else doc["_source"], wanted[key], line)
        ]

    def _is_same(self, key: Key, source: dict[str, Any] | None, write: Write, line: bytes | None) -> bool:
        """Compare byte by byte first, with the fields in the order in which they are declared."""
        if source is None or write[1] is None:
            return source is None and write[1] is None
        ordered = {name: source[name] for name in self._declared if name in source}
        if line is not None and orjson.dumps(ordered) == document_in(line):
            self._note_undeclared(source)
            return True
        return not self.is_unequal(key, write, Held(None, self._form(source)))

    def _form(self, source: dict[str, Any]) -> Any:
        self._note_undeclared(source)
        declared = {name: source[name] for name in self._declared if source.get(name) is not None}
        try:
            return orjson.dumps(declared, option=orjson.OPT_SORT_KEYS)
        except TypeError:  # a number of more than 64 bits
            return UNREADABLE

    def _note_undeclared(self, source: dict[str, Any]) -> None:
        if len(source) > len(self._declared) or not source.keys() <= {*self._declared}:
            others = source.keys() - {*self._declared, DELETED, POSITION}
            self._undeclared.update(dict.fromkeys(sorted(others)))

    def shown_keys(self) -> Iterator[list[Key]]:
        pages = present_documents(
            self._client, self.view, self._names.reads, has_source=False, foreign=self.foreign, refreshes=False
        )
        return ([key for key, _ in page] for page in pages)

    def pointer_problem(self) -> str:
        return ""


def _not_compared(name: str, indices: Mapping[str, Any]) -> str | None:
    """The reason why documents that are read by id would be others than those that a search by that name finds."""
    if len(indices) > 1:
        return f"{name} leads to several indices: {', '.join(sorted(indices))}"
    (content,) = indices.values()
    alias = content.get("aliases", {}).get(name, {})
    if alias.get("filter", PRESENT) != PRESENT:
        return f"the alias {name} has a filter, so its readers see only a part of the index"
    if {"index_routing", "search_routing"} & alias.keys():
        return f"the alias {name} has a routing"
    return None


def audited_index(client: Elasticsearch, view: BoundView) -> AuditedPlace:
    """What stands under the view's name. Raises StoreError where nothing does."""
    name = view.view.name
    with unrefused("looking at an index"):
        indices = ask(client, "looking at an index", "GET", f"{path(name)}?ignore_unavailable=true")
    if not indices:
        raise StoreError(
            f"{IndexNames(view).label}: Elasticsearch has neither an index nor an alias {name}. Give the view the name "
            "that readers use"
        )
    if (why := _not_compared(name, indices)) is not None:
        raise StoreError(f"{IndexNames(view).label}: {why}. Audit a name that leads to one whole index")
    undeclared: dict[str, None] = {}
    behind = "" if list(indices) == [name] else f", an alias of {', '.join(sorted(indices))}"
    remarks = [
        f"{index}: {why}"
        for index, content in sorted(indices.items())
        for why in unlike_declared(view, content.get("mappings", {}).get("properties", {}))
    ]
    remarks += [why for index, content in sorted(indices.items()) for why in left_by_adopt(index, content)]
    return AuditedPlace(
        title=f"Elasticsearch, {name}{behind}",
        reader=AuditedDocuments(client, view, undeclared),
        undeclared=undeclared,
        remarks=tuple(remarks),
    )
