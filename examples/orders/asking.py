"""The same questions to a view and to the tables, side by side: that the answers are equal, and how long each took."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from examples.comparing import Stores
from examples.orders import joins
from examples.orders.comparing import without_version

TRIES = 7
_ONE_ORDER = "An order with its lines, products, departments, customer, country and campaigns"
_SOLD = "How often the product of most orders was sold, and for how much"
_OF_COUNTRY = "The ten largest orders from India"
_WITH_BANANAS = "The ten largest orders with bananas, and whose they are"
_BANANAS = """
SELECT o.id, c.name, t.total FROM shop.order o JOIN shop.customer c ON c.id = o.customer_id
JOIN (SELECT order_id, SUM(amount) AS total FROM shop.order_line WHERE order_id IN
      (SELECT l.order_id FROM shop.order_line l JOIN shop.product p ON p.id = l.product_id WHERE p.title LIKE %s)
      GROUP BY order_id) t ON t.order_id = o.id
ORDER BY t.total DESC, o.id LIMIT 10"""
_INDIA = """
SELECT o.id, SUM(l.amount) AS total FROM shop.order o JOIN shop.customer c ON c.id = o.customer_id
JOIN shop.order_line l ON l.order_id = o.id WHERE c.country_iso = 'IN'
GROUP BY o.id ORDER BY total DESC, o.id LIMIT 10"""
_INDIA_OF_VIEW = """
SELECT id, total FROM viewtail.order_by_country WHERE country = 'IN' ORDER BY total DESC, id LIMIT 10"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question, with what each side took."""

    question: str
    asked: str  # of the view
    joined: str  # of the tables
    view_s: float
    join_s: float
    is_equal: bool


def answers(stores: Stores, order: int) -> Iterator[Answer]:
    """Each question to both sides; `order` is the one that is asked for."""

    def document() -> Any:
        text = stores.redis.get(f"order:{order}")
        assert isinstance(text, bytes)
        return without_version(json.loads(text))

    def hash_of_product() -> dict[str, str]:
        values: Any = stores.redis.hgetall(f"sold:{product}")
        return without_version({name.decode(): value.decode() for name, value in values.items()})

    ((product,),) = joins.asked(
        stores.mysql, "SELECT product_id FROM shop.order_line GROUP BY 1 ORDER BY COUNT(*) DESC LIMIT 1"
    )
    yield _answer(
        _ONE_ORDER,
        f"GET order:{order}",
        "3 SELECTs of 8 tables",
        document,
        lambda: joins.documents(stores.mysql, [order])[str(order)],
    )
    yield _answer(
        _SOLD,
        f"HGETALL sold:{product}",
        "SELECT COUNT, SUM, SUM over its lines",
        hash_of_product,
        lambda: joins.sold(stores.mysql, product)[str(product)],
    )
    yield _answer(
        _OF_COUNTRY,
        "SELECT from order_by_country",
        "SELECT SUM of 3 tables",
        lambda: joins.asked(stores.mysql, _INDIA_OF_VIEW),
        lambda: joins.asked(stores.mysql, _INDIA),
    )
    client = stores.elasticsearch
    if client is not None:
        client.indices.refresh(index="orders")
        yield _answer(
            _WITH_BANANAS,
            "search of orders",
            "SELECT SUM of 4 tables, LIKE '%bananas%'",
            lambda: [
                (int(hit["_id"]), hit["_source"]["who"]["name"], hit["_source"]["total"])
                for hit in client.search(
                    index="orders",
                    size=10,
                    query={"match": {"lines.title": "bananas"}},
                    sort=[{"total": "desc"}, {"order_id": "asc"}],
                    source=["who.name", "total"],
                )["hits"]["hits"]
            ],
            lambda: [
                (order, name, f"{total:f}") for order, name, total in joins.asked(stores.mysql, _BANANAS, "%bananas%")
            ],
        )


def _answer(question: str, asked: str, joined: str, of_view: Callable[[], Any], of_tables: Callable[[], Any]) -> Answer:
    from_view, view_s = _timed(of_view)
    from_tables, join_s = _timed(of_tables)
    is_equal = from_view == from_tables
    return Answer(question=question, asked=asked, joined=joined, view_s=view_s, join_s=join_s, is_equal=is_equal)


def _timed(ask: Callable[[], Any]) -> tuple[Any, float]:
    """The answer, and the middle one of some tries."""
    took, answer = [], None
    for _ in range(TRIES):
        began = time.monotonic()
        answer = ask()
        took.append(time.monotonic() - began)
    return answer, median(took)
