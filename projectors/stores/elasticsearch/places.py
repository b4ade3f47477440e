"""The owners of the indices of search views, for callers that ask or decide about them."""

from __future__ import annotations

from typing import Any

from elasticsearch import Elasticsearch

from projectors.stores.elasticsearch.index import make_ready, marks, of_others, path, why_refused
from projectors.stores.elasticsearch.requests import Refused, ask
from projectors.stores.owners import Claimant, PlaceOwner, Places
from projectors.views import BoundView
from viewtail.changes.errors import StoreError


class SearchPlaces(Places):
    """Reads and changes the owners in the mappings of a view's indices, of all copies."""

    def __init__(self, client: Elasticsearch, claimant: Claimant | None) -> None:
        self._client, self._claimant = client, claimant

    def others(self, view: BoundView) -> list[PlaceOwner]:
        return of_others(self._claimant, self._marks(view.view.id))

    def own(self, view: BoundView) -> PlaceOwner | None:
        owners = [PlaceOwner.of_json(mark.get("owner")) for mark in self._marks(view.view.id).values()]
        return next((owner for owner in owners if self._is_ours(owner)), None)

    def refusal(self, view: BoundView) -> str | None:
        return why_refused(self._claimant, view.view.id, self._marks(view.view.id))

    def take_over(self, view: BoundView, taken: str) -> None:
        assert self._claimant is not None
        owner = self._claimant.owner(view.view.id, taken).as_json()
        for index, mark in self._marks(view.view.id).items():
            left = {name: value for name, value in mark.items() if name != "released_by"}
            self._note(index, {**left, "owner": owner})

    def clear(self, view: BoundView) -> None:
        """Delete every index of the view, and create the one that will be filled."""
        for index in self._marks(view.view.id):
            self._ask("deleting an index", "DELETE", f"{path(index)}?ignore_unavailable=true")
        make_ready(self._client, view, self._claimant)

    def release(self, view: str) -> None:
        for index, mark in self._marks(view).items():
            if self._is_ours(PlaceOwner.of_json(mark.get("owner"))):
                left = {name: value for name, value in mark.items() if name != "owner"}
                self._note(index, {**left, "released_by": mark["owner"]["deployment"]})

    def close(self) -> None:
        self._client.close()

    def _is_ours(self, owner: PlaceOwner | None) -> bool:
        return self._claimant is not None and self._claimant.is_owner(owner)

    def _marks(self, view: str) -> dict[str, dict[str, Any]]:
        try:
            return marks(self._client, {view})
        except Refused as refused:
            raise _failed("looking whose indices are", refused) from None

    def _note(self, index: str, mark: dict[str, Any]) -> None:
        self._ask("noting whose an index is", "PUT", f"{path(index)}/_mapping", {"_meta": {"viewtail": mark}})

    def _ask(self, doing: str, method: str, target: str, body: dict[str, Any] | None = None) -> None:
        try:
            ask(self._client, doing, method, target, body)
        except Refused as refused:
            raise _failed(doing, refused) from None


def _failed(doing: str, refused: Refused) -> StoreError:
    return StoreError(f"Elasticsearch: {doing} failed: {refused.status} {refused.kind}")
