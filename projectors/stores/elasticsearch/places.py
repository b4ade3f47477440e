"""The owners of the indices of search views, for callers that ask or decide about them."""

from __future__ import annotations

from typing import Any

from elasticsearch import Elasticsearch

from projectors.stores.elasticsearch.index import make_ready, marks, owners_in, path, why_refused
from projectors.stores.elasticsearch.requests import ask, unrefused
from projectors.stores.owners import Claimant, PlaceOwner, Places
from projectors.views import BoundView


class SearchPlaces(Places):
    """Reads and changes the owners in the mappings of a view's indices, of all copies."""

    def __init__(self, client: Elasticsearch, claimant: Claimant) -> None:
        super().__init__(claimant)
        self._client = client

    def owners(self, view: BoundView) -> list[PlaceOwner]:
        return owners_in(self._marks(view.view.id).values())

    def refusal(self, view: BoundView) -> str | None:
        return why_refused(self._claimant, view.view.id, self._marks(view.view.id))

    def take_over(self, view: BoundView, taken: str) -> None:
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
            if any(map(self._claimant.is_owner, owners_in([mark]))):
                left = {name: value for name, value in mark.items() if name != "owner"}
                self._note(index, {**left, "released_by": mark["owner"]["deployment"]})

    def close(self) -> None:
        self._client.close()

    def _marks(self, view: str) -> dict[str, dict[str, Any]]:
        with unrefused("looking whose indices are"):
            return marks(self._client, {view})

    def _note(self, index: str, mark: dict[str, Any]) -> None:
        self._ask("noting whose an index is", "PUT", f"{path(index)}/_mapping", {"_meta": {"viewtail": mark}})

    def _ask(self, doing: str, method: str, target: str, body: dict[str, Any] | None = None) -> None:
        with unrefused(doing):
            ask(self._client, doing, method, target, body)
