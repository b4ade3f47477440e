"""Takes over the index that another tool keeps under a search view's name.

The index is cloned to viewtail's own name for it, which links its files and copies none of them, and gets viewtail's
fields; one request then leads readers there. A former index behind an alias stays, and refuses writes; one that had the
view's name itself goes with that request, since an alias takes its name. Documents keep the versions that they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elasticsearch import Elasticsearch

from projectors.stores import Adoption
from projectors.stores.elasticsearch.index import (
    CLONED_SETTINGS,
    IndexNames,
    aliases_of,
    mark_in,
    path,
    put_mapping,
    unlike_declared,
    why_refused,
)
from projectors.stores.elasticsearch.requests import Refused, ask
from projectors.stores.owners import Claimant
from projectors.views import BoundView
from viewtail.changes.errors import StoreError, StoreUnavailableError

CLONED_WITHIN = "60s"


class IndexAdoption(Adoption):
    """Adopts the index of one view, over a client of its own."""

    def __init__(self, client: Elasticsearch, view: BoundView, claimant: Claimant) -> None:
        self._client, self._view, self._claimant = client, view, claimant
        self._names = IndexNames(view)

    def refusal(self) -> str | None:
        indices = self._looked(self._names.alias)
        if self._is_ours(indices):
            return why_refused(self._claimant, self._view.view.id, {name: mark_in(of) for name, of in indices.items()})
        why = "there is neither such an index nor an alias" if not indices else self._why_not(indices)
        return None if why is None else f"{self._names.label}: {why}"

    def _why_not(self, indices: dict[str, Any]) -> str | None:
        if len(indices) > 1:
            return f"the alias leads to several indices: {', '.join(sorted(indices))}. Give the view an alias of one"
        ((index, content),) = indices.items()
        alias, settings = content.get("aliases", {}).get(self._names.alias, {}), content["settings"]["index"]
        if {"filter", "index_routing", "search_routing"} & alias.keys():
            return "the alias has a filter or a routing, which viewtail's has not. Give the view an alias without them"
        if mark_in(content):
            return f"the index {index} is another viewtail view's"
        if settings.get("number_of_shards") != "1":
            return (
                f"the index {index} has {settings.get('number_of_shards')} shards, and a view is kept in one. Shrink "
                f"it first: POST /{index}/_shrink/TARGET, and lead the alias there"
            )
        if unlike := unlike_declared(self._view, content.get("mappings", {}).get("properties", {})):
            return (
                f"the index {index} has another mapping, which an index keeps for good: {'; '.join(unlike)}. Declare "
                "the fields as they are there; or declare the view under a new name, let `viewtail run` fill it, and "
                "lead the readers there"
            )
        there = self._looked(self._names.index).get(self._names.index)
        if there is not None and not self._is_clone(there, index):
            return f"there is an index {self._names.index} that viewtail did not make. Delete it if nobody needs it"
        return None

    def steps(self) -> list[str]:
        indices = self._looked(self._names.alias)
        if not indices or self._is_ours(indices):
            return []
        index, alias, own = next(iter(indices)), self._names.alias, self._names.index
        swapped = (
            f"make {alias} an alias of {own}, in one step, in which the index {alias} goes"
            if index == alias
            else f"lead the alias {alias} from {index} to {own}, in one step; {index} stays, and refuses writes"
        )
        return [
            f"have the index {index} refuse writes, and clone it to {own}, which links its files",
            f"add viewtail's fields to the mapping of {own}",
            swapped,
        ]

    def take(self) -> None:
        indices = self._looked(self._names.alias)
        if self._is_ours(indices):
            return
        index, own = next(iter(indices)), self._names.index
        with self._told():
            ask(self._client, "deleting a clone", "DELETE", f"{path(own)}?ignore_unavailable=true")
            self._block_writes(index, is_blocked=True)
            try:
                self._clone(index)
                put_mapping(self._client, self._view, self._claimant)
            except BaseException:
                self._block_writes(index, is_blocked=None)
                raise
            leave: dict[str, Any] = {"remove": {"index": index, "alias": self._names.alias}}
            if index == self._names.alias:
                leave = {"remove_index": {"index": index}}
            add = [{"add": {"index": own, "alias": name, **what}} for name, what in aliases_of(self._view).items()]
            ask(self._client, "leading readers to the clone", "POST", "/_aliases", {"actions": [leave, *add]})

    def _block_writes(self, index: str, *, is_blocked: bool | None) -> None:
        ask(self._client, "changing settings", "PUT", f"{path(index)}/_settings", {"index.blocks.write": is_blocked})

    def _clone(self, index: str) -> None:
        target = f"{path(index)}/_clone{path(self._names.index)}?wait_for_active_shards=1&timeout={CLONED_WITHIN}"
        answer = ask(self._client, "cloning an index", "PUT", target, {"settings": CLONED_SETTINGS})
        if not answer.get("shards_acknowledged"):
            raise StoreUnavailableError(
                f"{self._names.label}: the clone of {index} was not ready within {CLONED_WITHIN}. See GET "
                "/_cluster/allocation/explain, then give the same command again"
            )

    def _is_ours(self, indices: dict[str, Any]) -> bool:
        mark = mark_in(indices.get(self._names.index, {}))
        return list(indices) == [self._names.index] and mark.get("view") == self._view.view.id

    @staticmethod
    def _is_clone(content: dict[str, Any], of: str) -> bool:
        source = content["settings"]["index"].get("resize", {}).get("source", {})
        return bool(source.get("name") == of)

    def _looked(self, name: str) -> dict[str, Any]:
        with self._told():
            return ask(self._client, "looking at an index", "GET", f"{path(name)}?ignore_unavailable=true")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except Refused as refused:
            said = f"{refused.status} {refused.kind}: {refused.reason[:300]}"
            raise StoreError(f"{self._names.label}: its index cannot be adopted: {said}") from None

    def close(self) -> None:
        self._client.close()
