"""Swaps two copies of a view: one request moves the alias that readers use from one index to the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elasticsearch import Elasticsearch

from changes.errors import StoreError
from projectors.stores import Swapping
from projectors.stores.elasticsearch.index import PRESENT, Names, path
from projectors.stores.elasticsearch.requests import Refused, ask
from projectors.views import BoundView


class AliasSwapping(Swapping):
    """Over a client of its own."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client

    def swap(self, live: BoundView, beside: BoundView, upto: int) -> bool:
        """What was acknowledged is searchable before the alias moves."""
        names, new = Names(live), Names(beside)
        with _told(live):
            ask(self._client, "refreshing", "POST", f"{path(new.index)}/_refresh")
            actions = [{"remove": {"index": index, "alias": names.alias}} for index in self._with(names.alias)]
            add = {"add": {"index": new.index, "alias": names.alias, "filter": PRESENT}}
            others = [one for one in actions if one["remove"]["index"] != new.index]
            ask(self._client, "moving the alias", "POST", "/_aliases", {"actions": [*others, add]})
        return True

    def is_swapped(self, live: BoundView, beside: BoundView) -> bool:
        with _told(live):
            return self._with(Names(live).alias) == [Names(beside).index]

    def drop(self, live: BoundView, beside: BoundView) -> None:
        """Delete its index, and its alias with it."""
        with _told(beside):
            target = f"{path(Names(beside).index)}?ignore_unavailable=true"
            ask(self._client, "deleting an index", "DELETE", target)

    def close(self) -> None:
        self._client.close()

    def _with(self, alias: str) -> list[str]:
        """The indices that an alias leads to."""
        found: dict[str, Any] = ask(
            self._client, "looking at an alias", "GET", f"{path(alias)}?ignore_unavailable=true"
        )
        return sorted(found)


@contextmanager
def _told(view: BoundView) -> Iterator[None]:
    try:
        yield
    except Refused as refused:
        said = f"{refused.status} {refused.kind}: {refused.reason[:300]}"
        raise StoreError(f"{Names(view).label}: its copies cannot be swapped or dropped: {said}") from None
