"""Every view against the same joins as plain SQL, row by row, read as any program would read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from examples import comparing
from examples.comparing import Rows, Stores
from examples.orders import joins

ROWS_A_LOOK = 2000


def compare(stores: Stores) -> Iterator[tuple[str, int, list[str]]]:
    """(view, rows compared, differences) for each view."""
    documents = joins.documents(stores.mysql)
    for view, wanted, shown in (
        ("redis:order", documents, _documents(stores)),
        ("redis:customer", joins.customers(stores.mysql), _hashes(stores, "customer")),
        ("redis:sold", joins.sold(stores.mysql), _hashes(stores, "sold")),
        ("mysql:order_by_country", joins.countries(stores.mysql), _countries(stores)),
    ):
        yield view, len(wanted), comparing.differences(wanted, shown)
    if stores.elasticsearch is not None:
        wanted = joins.without_nulls(documents)
        yield "elasticsearch:orders", len(wanted), comparing.differences(wanted, searched(stores))


def _documents(stores: Stores) -> Rows:
    keys = list(stores.redis.scan_iter(match="order:*", count=5000))
    shown: Rows = {}
    for at in range(0, len(keys), ROWS_A_LOOK):
        some = keys[at : at + ROWS_A_LOOK]
        texts: Any = stores.redis.mget(some)
        for key, text in zip(some, texts, strict=True):
            shown[key.decode().removeprefix("order:")] = without_version(json.loads(text))
    return shown


def _hashes(stores: Stores, name: str) -> Rows:
    keys = list(stores.redis.scan_iter(match=f"{name}:*", count=5000))
    with stores.redis.pipeline(transaction=False) as look:
        for key in keys:
            look.hgetall(key)
        answers: list[Any] = look.execute()
    return {
        key.decode().removeprefix(f"{name}:"): without_version(
            {field.decode(): value.decode() for field, value in answer.items()}
        )
        for key, answer in zip(keys, answers, strict=True)
    }


def _countries(stores: Stores) -> Rows:
    """The entries of the index table; one whose values are NULL is a tombstone, no entry."""
    rows = joins.asked(stores.mysql, f"SELECT id, country, total FROM {comparing.DATABASE}.order_by_country")
    return {
        str(key): {"country": country, "total": None if total is None else f"{total:f}"}
        for key, country, total in rows
        if country is not None or total is not None
    }


def searched(stores: Stores) -> Rows:
    """All documents of the search index."""
    assert stores.elasticsearch is not None
    return comparing.search_documents(stores.elasticsearch, "orders")


def without_version(content: dict[str, Any]) -> dict[str, Any]:
    """What a Redis key shows of the row."""
    return {name: value for name, value in content.items() if name != "_version"}
