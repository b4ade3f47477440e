"""Changes one row of each table, and waits until the documents show it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from examples.comparing import Stores
from examples.orders import joins
from viewtail.demo.process import DemoError

SHOWN_WITHIN_S = 30.0
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """Statements of one transaction, and how an order's document differs then."""

    table: str
    what: str
    statements: tuple[str, ...]
    is_in: Callable[[Document], bool]


@dataclass(frozen=True, slots=True)
class Seen:
    """How long a commit took to be seen, by store."""

    change: Change
    seconds: dict[str, float]


def changes(stores: Stores, order: int) -> Iterator[Change]:
    """One of each table that an order's document is made of; each goes by what is there then."""
    ((customer, country),) = joins.asked(
        stores.mysql,
        "SELECT c.id, c.country_iso FROM shop.customer c JOIN shop.order o ON o.customer_id = c.id WHERE o.id = %s",
        order,
    )
    ((product,),) = joins.asked(
        stores.mysql, "SELECT product_id FROM shop.order_line WHERE order_id = %s AND line_no = 1", order
    )
    ((campaign,),) = joins.asked(stores.mysql, "SELECT campaign_id FROM shop.order_campaign WHERE order_id = %s", order)
    yield Change(
        "order",
        "it is packed",
        (f"UPDATE shop.order SET status = 'packed' WHERE id = {order}",),
        lambda document: document["status"] == "packed",
    )
    yield Change(
        "order_line",
        "another quantity and amount",
        (f"UPDATE shop.order_line SET quantity = 77, amount = 123.45 WHERE order_id = {order} AND line_no = 1",),
        lambda document: document["lines"][0]["amount"] == "123.45",
    )
    yield Change(
        "product",
        "another title",
        (f"UPDATE shop.product SET title = 'Fresh this week' WHERE id = {product}",),
        lambda document: document["lines"][0]["title"] == "Fresh this week",
    )
    yield Change(
        "customer",
        "moves to Winterthur",
        (f"UPDATE shop.customer SET city = 'Winterthur' WHERE id = {customer}",),
        lambda document: document["who"]["city"] == "Winterthur",
    )
    yield Change(
        "country",
        "another name",
        (f"UPDATE shop.country SET name = 'Republic of Somewhere' WHERE iso = '{country}'",),
        lambda document: document["who"]["country"] == "Republic of Somewhere",
    )
    yield Change(
        "campaign",
        "another name",
        (f"UPDATE shop.campaign SET name = 'Spring' WHERE id = {campaign}",),
        lambda document: "Spring" in document["campaigns"],
    )
    yield Change(
        "order_campaign",
        "the order has no campaign",
        (f"DELETE FROM shop.order_campaign WHERE order_id = {order} AND campaign_id = {campaign}",),
        lambda document: "Spring" not in document["campaigns"],
    )
    yield Change(
        "department",
        "a new one, and the product moves to it",
        (
            "INSERT INTO shop.department VALUES (900, 'Window')",
            f"UPDATE shop.product SET department_id = 900 WHERE id = {product}",
        ),
        lambda document: document["lines"][0]["department"] == "Window",
    )


def shipped(order: int) -> Change:
    """The last change of an order."""
    return Change(
        "order",
        "it is shipped",
        (f"UPDATE shop.order SET status = 'shipped' WHERE id = {order}",),
        lambda document: document["status"] == "shipped",
    )


def seen(stores: Stores, order: int, change: Change) -> Seen:
    """Commit a change, and look until every store shows it."""
    connection = stores.mysql
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for statement in change.statements:
            cursor.execute(statement)
    connection.commit()
    began = time.monotonic()
    looks = {"redis": _in_redis, **({} if stores.elasticsearch is None else {"elasticsearch": _in_elasticsearch})}
    seconds: dict[str, float] = {}
    while len(seconds) < len(looks):
        for store, look in looks.items():
            if store not in seconds and change.is_in(look(stores, order)):
                seconds[store] = time.monotonic() - began
        if time.monotonic() - began > SHOWN_WITHIN_S:
            missing = ", ".join(looks.keys() - seconds.keys())
            raise DemoError(f"{missing} did not show a change of shop.{change.table} within {SHOWN_WITHIN_S:.0f} s")
        time.sleep(0.0005)
    return Seen(change, seconds)


def _in_redis(stores: Stores, order: int) -> Document:
    text = stores.redis.get(f"order:{order}")
    assert isinstance(text, bytes)
    document: Document = json.loads(text)
    return document


def _in_elasticsearch(stores: Stores, order: int) -> Document:
    """By id, which shows what was written at once; searches show it after the next refresh."""
    assert stores.elasticsearch is not None
    document: Document = stores.elasticsearch.get(index="orders", id=str(order))["_source"]
    return document
