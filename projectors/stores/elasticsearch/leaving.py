"""Removes data from Elasticsearch: the index of a view that is no longer declared. Finds what is left of one entity.

An index is a view's by its mark, `_meta.viewtail.view`, whatever its name; its aliases are deleted with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from elasticsearch import Elasticsearch

from projectors.stores.elasticsearch.documents import id_of
from projectors.stores.elasticsearch.index import DELETED, OURS, IndexNames, mark_in, path, take_note_off, why_stays
from projectors.stores.elasticsearch.requests import INDEX_GONE, Refused, ask, unrefused
from projectors.stores.elasticsearch.unique import NOBODYS, as_own
from projectors.stores.leaving import Holds, LeftoverParts, Part, Retired, Trace, Traces
from projectors.stores.owners import NOBODY, Claimant
from projectors.views import BoundView
from viewtail.changes.counting import counted
from viewtail.changes.errors import StoreError
from viewtail.changes.writes import Key


class SearchLeftover(LeftoverParts):
    """The indices with the view's mark, closed and hidden ones too."""

    kind = "index"

    def __init__(self, client: Elasticsearch, view: str, retired: Retired, claimant: Claimant = NOBODY) -> None:
        """Only indices of the deployment `claimant` are dropped."""
        self._client, self._view, self._retired, self._claimant = client, view, retired, claimant
        self._aliases: dict[str, list[str]] = {}

    def parts(self) -> Iterator[Part]:
        wanted = "features=aliases,mappings&expand_wildcards=all&filter_path=*.mappings._meta,*.aliases"
        for index, content in self._ask("looking at indices", "GET", f"/{quote(OURS, safe=',')}?{wanted}").items():
            self._aliases[index] = sorted(content.get("aliases", {}))
            mark = mark_in(content)
            if mark.get("view") == self._view:
                why = why_stays(self._claimant, self._view, mark)
                yield Part(index, why, is_of_another=why is not None)
            elif index == f"viewtail-{self._retired.name}":
                yield Part(index, "does not carry viewtail's mark of the view (_meta.viewtail.view)")

    def described(self, name: str) -> str:
        documents = counted(self._ask(f"counting {name}", "GET", f"{path(name)}/_count").get("count", 0), "documents")
        aliases = ", ".join(self._aliases[name]) or "none"
        return f"{documents}, tombstones and the witness too, and its aliases: {aliases}"

    def drop(self, went_on: Callable[[int], None]) -> None:
        super().drop(went_on)
        with unrefused("taking a note off an index"):
            take_note_off(self._client, self._retired.name)

    def remove(self, name: str) -> None:
        self._ask(f"deleting {name}", "DELETE", f"{path(name)}?ignore_unavailable=true")

    def close(self) -> None:
        self._client.close()

    def _ask(self, doing: str, method: str, target: str) -> dict[str, Any]:
        with unrefused(doing):
            try:
                return ask(self._client, doing, method, target)
            except Refused as refused:
                if refused.status != 404:
                    raise
        return {}


class SearchTraces(Traces):
    """Finds the document of an entity; a tombstone has only a version and a flag."""

    def __init__(self, client: Elasticsearch, view: BoundView) -> None:
        self._client, self._names, self._id_of = client, IndexNames(view), id_of(view)
        self._source = view.source[0] if view.is_unique_over_sources else ""

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
        own = as_own(document, self._source) if self._source else document
        if own is None:
            return [Trace(place=place, holds=Holds.NOTHING)]
        if NOBODYS in own:
            return [Trace(place=place, holds=Holds.FOREIGN)]
        is_deleted = own["_source"] == {DELETED: True}
        holds, stays = (Holds.TOMBSTONE, _IN_SEGMENTS) if is_deleted else (Holds.VALUES, "")
        return [
            Trace(place=place, holds=holds, version=int(own["_version"]), stays=stays, until=_UNTIL if stays else "")
        ]

    def close(self) -> None:
        self._client.close()


_IN_SEGMENTS = "documents that were written over, in segments on disk that no search and no get reads"
_UNTIL = "Elasticsearch merges their segments; POST /INDEX/_forcemerge?only_expunge_deletes=true asks for that now"
