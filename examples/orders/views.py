"""Views of orders with all that belongs to them, from eight tables (schema `shop`), as `make demo-orders` loads them.

Keep them up to date with: VIEWTAIL_VIEWS=examples.orders.views:views viewtail run
"""

from collections.abc import Mapping
from typing import Any

from viewtail import Count, Entity, Group, IndexTable, Many, Max, One, RedisHash, RedisJson, SearchIndex, Sum

order = Entity(
    "shop.order",
    related={
        "customer": One("shop.customer", on="customer_id", related={"country": One("shop.country", on="country_iso")}),
        "lines": Many(
            "shop.order_line",
            by="order_id",
            order_by="line_no",
            related={
                "product": One(
                    "shop.product",
                    on="product_id",
                    related={"department": One("shop.department", on="department_id")},
                )
            },
        ),
        "campaigns": Many("shop.campaign", through="shop.order_campaign", by="order_id", to="campaign_id"),
        "line_count": Count("shop.order_line", by="order_id"),
        "total": Sum("shop.order_line", "amount", by="order_id"),
    },
)

customer = Entity(
    "shop.customer",
    related={
        "order_count": Count("shop.order", by="customer_id"),
        "last_order": Max("shop.order", "ordered_at", by="customer_id"),
    },
)


sold = Group(
    "shop.order_line", by="product_id", values={"orders": Count(), "quantity": Sum("quantity"), "amount": Sum("amount")}
)


def order_document(row: Mapping[str, Any]) -> dict[str, Any]:
    """An order as its page shows it, and as one looks for it."""
    return {
        "order_id": row["id"],
        "ordered_at": row["ordered_at"],
        "status": row["status"],
        "who": row["customer"] and who(row["customer"]),
        "lines": [line(each) for each in row["lines"]],
        "campaigns": [each["name"] for each in row["campaigns"]],
        "line_count": row["line_count"],
        "total": row["total"],
    }


def who(customer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": customer["name"],
        "city": customer["city"],
        "country": customer["country"] and customer["country"]["name"],
    }


def line(line: Mapping[str, Any]) -> dict[str, Any]:
    product = line["product"]
    return {
        "title": product and product["title"],
        "department": product and product["department"] and product["department"]["name"],
        "quantity": line["quantity"],
        "amount": line["amount"],
    }


def by_country(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"country": row["customer"] and row["customer"]["country_iso"], "total": row["total"]}


tables_and_keys = [
    RedisJson("order", order, document=order_document),
    RedisHash("customer", customer, fields=["name", "order_count", "last_order"]),
    RedisHash("sold", sold, fields=["orders", "quantity", "amount"]),  # HGETALL sold:1082185
    IndexTable("order_by_country", order, of=by_country, values={"country": "VARCHAR(2)", "total": "DECIMAL(12,2)"}),
]

searches = [
    SearchIndex(
        "orders",
        order,
        document=order_document,
        fields={
            "order_id": "long",
            "ordered_at": "keyword",
            "status": "keyword",
            "who": {"properties": {"name": {"type": "text"}, "city": {"type": "text"}, "country": {"type": "keyword"}}},
            "lines": {
                "properties": {
                    "title": {"type": "text"},
                    "department": {"type": "keyword"},
                    "quantity": {"type": "integer"},
                    "amount": {"type": "double"},
                }
            },
            "campaigns": "keyword",
            "line_count": "integer",
            "total": "double",
        },
    ),
]

views = [*tables_and_keys, *searches]
