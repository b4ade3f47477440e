"""Swaps two copies of a view: one request moves the readers' alias from one index to the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elasticsearch import Elasticsearch

from projectors.stores import Swapping
from projectors.stores.elasticsearch.index import (
    PRESENT,
    IndexNames,
    leaving,
    mark_in,
    marks,
    owners_in,
    path,
    take_note_off,
)
from projectors.stores.elasticsearch.requests import Refused, ask
from projectors.stores.owners import NOBODY, Claiming, taken_over
from projectors.views import BoundView
from viewtail.changes.errors import StoreError


class AliasSwapping(Swapping):
    """Swaps copies over a client of its own."""

    def __init__(self, client: Elasticsearch, claiming: Claiming = lambda: NOBODY) -> None:
        """`claiming` returns the deployment that owns both copies; indices that another deployment owns by now stay."""
        self._client = client
        self._claiming = claiming

    def swap(self, live: BoundView, beside: BoundView, upto: int, *, is_adopting: bool = False) -> bool:
        """Refresh the index, so that everything acknowledged is searchable, then move the alias."""
        names, new = IndexNames(live), IndexNames(beside)
        with _told(live):
            self._require_ours(live, marks(self._client, {live.view.id}))
            ask(self._client, "refreshing", "POST", f"{path(new.index)}/_refresh")
            led = self._led(names.alias)
            others = [each for each in led.items() if each[0] != new.index]
            leave = [action for each in others for action in self._leaving(live, *each, is_adopting=is_adopting)]
            add = {"add": {"index": new.index, "alias": names.alias, "filter": PRESENT}}
            ask(self._client, "moving the alias", "POST", "/_aliases", {"actions": [*leave, add]})
        return True

    @staticmethod
    def _leaving(live: BoundView, index: str, content: dict[str, Any], *, is_adopting: bool) -> list[dict[str, Any]]:
        """What takes readers away from an index; another tool's must have been given up for that (adopting.py), and
        an adopt, which a killed one may have left the note for, must want it now."""
        names = IndexNames(live)
        if mark_in(content).get("view") == live.view.id:
            return [{"remove": {"index": index, "alias": names.alias}}]
        if not is_adopting or names.replaced not in content.get("aliases", {}):
            raise StoreError(
                f"{names.label}: the name {names.alias} leads readers to the index {index}, which viewtail did not "
                f"make, so they are left there. To have the copy take its place: viewtail adopt {live.view.id}"
            )
        if index == names.alias:
            return [{"remove_index": {"index": index}}]
        return leaving(index, names.alias, [names.replaced])

    def is_swapped(self, live: BoundView, beside: BoundView) -> bool:
        with _told(live):
            return sorted(self._led(IndexNames(live).alias)) == [IndexNames(beside).index]

    def drop(self, live: BoundView, beside: BoundView) -> None:
        """Delete the index of `beside`, and its alias with it; another tool's index, if any, keeps its place."""
        index = IndexNames(beside).index
        with _told(beside):
            noted = marks(self._client, {beside.view.id})
            self._require_ours(beside, {name: mark for name, mark in noted.items() if name == index})
            ask(self._client, "deleting an index", "DELETE", f"{path(index)}?ignore_unavailable=true")
            take_note_off(self._client, live.view.name)

    def close(self) -> None:
        self._client.close()

    def _require_ours(self, view: BoundView, noted: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise StoreError if another deployment owns one of these indices of the view."""
        if others := self._claiming().others(owners_in(noted.values())):
            raise StoreError(taken_over(f"{IndexNames(view).label}: the index {', '.join(sorted(noted))}", others))

    def _led(self, alias: str) -> dict[str, dict[str, Any]]:
        """The indices that a name leads to, with what each has."""
        return ask(self._client, "looking at an alias", "GET", f"{path(alias)}?ignore_unavailable=true")


@contextmanager
def _told(view: BoundView) -> Iterator[None]:
    try:
        yield
    except Refused as refused:
        said = f"{refused.status} {refused.kind}: {refused.reason[:300]}"
        raise StoreError(f"{IndexNames(view).label}: its copies cannot be swapped or dropped: {said}") from None
