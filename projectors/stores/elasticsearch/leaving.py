"""Removes data from Elasticsearch: the index of a view that is no longer declared. Finds what is left of one entity.

An index is a view's by its mark, `_meta.viewtail.view`, whatever its name; its aliases are deleted with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from elasticsearch import Elasticsearch

from projectors.stores.elasticsearch.documents import id_of
from projectors.stores.elasticsearch.index import DELETED, OURS, IndexNames, mark_in, path, why_stays
from projectors.stores.elasticsearch.requests import INDEX_GONE, Refused, ask
from projectors.stores.leaving import Found, Holds, Leftover, Retired, Trace, Traces
from projectors.stores.owners import Claimant
from projectors.views import BoundView
from viewtail.changes.counting import counted
from viewtail.changes.errors import StoreError
from viewtail.changes.writes import Key


class SearchLeftover(Leftover):
    """All indices with the view's mark."""

    def __init__(self, client: Elasticsearch, view: str, retired: Retired, claimant: Claimant | None = None) -> None:
        """Only indices of the deployment `claimant` are dropped."""
        self._client, self._view, self._retired, self._claimant = client, view, retired, claimant

    def look(self) -> Found:
        lines, left = [], []
        for index, content in self._indices().items():
            if (why := self._why_not(index, content)) is not None:
                left += [f"index {index}: {why}"] if why else []
                continue
            aliases = ", ".join(sorted(content.get("aliases", {}))) or "none"
            count = self._ask(f"counting {index}", "GET", f"{path(index)}/_count").get("count", 0)
            documents = counted(count, "documents")
            lines.append(f"index {index}: {documents}, tombstones and the witness too, and its aliases: {aliases}")
        return Found(count=len(lines), dropped=lines, left=left)

    def drop(self, went_on: Callable[[int], None]) -> None:
        for index, content in self._indices().items():
            if self._why_not(index, content) is None:
                went_on(0)
                self._ask(f"deleting {index}", "DELETE", f"{path(index)}?ignore_unavailable=true")
                went_on(1)

    def of_others(self) -> Sequence[str]:
        ours = {index: mark_in(content) for index, content in self._indices().items() if self._has_mark(content)}
        whys = {index: why_stays(self._claimant, self._view, mark) for index, mark in ours.items()}
        return [f"index {index}: {why}" for index, why in whys.items() if why is not None]

    def close(self) -> None:
        self._client.close()

    def _indices(self) -> dict[str, Any]:
        """The indices by name, closed and hidden ones too."""
        wanted = "features=aliases,mappings&expand_wildcards=all&filter_path=*.mappings._meta,*.aliases"
        return self._ask("looking at indices", "GET", f"/{quote(OURS, safe=',')}?{wanted}")

    def _why_not(self, index: str, content: dict[str, Any]) -> str | None:
        """Why an index stays; '' if that needs no reason, None if it is this deployment's index of the view."""
        if self._has_mark(content):
            return why_stays(self._claimant, self._view, mark_in(content))
        if index == f"viewtail-{self._retired.name}":
            return "does not carry viewtail's mark of the view (_meta.viewtail.view)"
        return ""

    def _has_mark(self, content: dict[str, Any]) -> bool:
        return mark_in(content).get("view") == self._view

    def _ask(self, doing: str, method: str, target: str) -> dict[str, Any]:
        try:
            return ask(self._client, doing, method, target)
        except Refused as refused:
            if refused.status == 404:
                return {}
            raise StoreError(f"Elasticsearch: {doing} failed: {refused.status} {refused.kind}") from None


class SearchTraces(Traces):
    """Finds the document of an entity; a tombstone has only a version and a flag."""

    def __init__(self, client: Elasticsearch, view: BoundView) -> None:
        self._client, self._names, self._id_of = client, IndexNames(view), id_of(view)

    def of(self, key: Key) -> list[Trace]:
        identity = self._id_of(key)
        place = f"Elasticsearch document {identity} of the index {self._names.index}"
        target = f"{path(self._names.index)}/_doc/{quote(identity, safe='')}"
        try:
            document = ask(self._client, "reading", "GET", target)
        except Refused as refused:
            if refused.status == 404 and refused.kind in ("", INDEX_GONE):
                return [Trace(place=place, holds=Holds.NOTHING)]
            raise StoreError(f"{self._names.label}: reading failed: {refused.status} {refused.kind}") from None
        is_deleted = document["_source"] == {DELETED: True}
        holds, stays = (Holds.TOMBSTONE, _IN_SEGMENTS) if is_deleted else (Holds.VALUES, "")
        return [
            Trace(
                place=place, holds=holds, version=int(document["_version"]), stays=stays, until=_UNTIL if stays else ""
            )
        ]

    def close(self) -> None:
        self._client.close()


_IN_SEGMENTS = "documents that were written over, in segments on disk that no search and no get reads"
_UNTIL = "Elasticsearch merges their segments; POST /INDEX/_forcemerge?only_expunge_deletes=true asks for that now"
