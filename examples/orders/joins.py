"""The same answers from the tables, by plain joins: what the views should hold, put together without viewtail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pymysql

from examples.comparing import Rows

_ROOTS = """
SELECT o.id, DATE_FORMAT(o.ordered_at, '%%Y-%%m-%%d %%H:%%i:%%s'), o.status, c.name, c.city, k.name, c.country_iso,
       t.line_count, t.total
FROM shop.order o
LEFT JOIN shop.customer c ON c.id = o.customer_id LEFT JOIN shop.country k ON k.iso = c.country_iso
LEFT JOIN (SELECT order_id, COUNT(*) AS line_count, SUM(amount) AS total FROM shop.order_line {where_line}
           GROUP BY order_id) t ON t.order_id = o.id
{where}"""
_LINES = """
SELECT l.order_id, p.title, d.name, l.quantity, l.amount FROM shop.order_line l
LEFT JOIN shop.product p ON p.id = l.product_id LEFT JOIN shop.department d ON d.id = p.department_id
{where_line} ORDER BY l.order_id, l.line_no"""
_CAMPAIGNS = """
SELECT x.order_id, c.name FROM shop.order_campaign x JOIN shop.campaign c ON c.id = x.campaign_id
{where_line} ORDER BY x.order_id, c.id"""
_CUSTOMERS = """
SELECT c.id, c.name, COUNT(o.id), DATE_FORMAT(MAX(o.ordered_at), '%Y-%m-%d %H:%i:%s')
FROM shop.customer c LEFT JOIN shop.order o ON o.customer_id = c.id GROUP BY c.id, c.name"""
_SOLD = "SELECT product_id, COUNT(*), SUM(quantity), SUM(amount) FROM shop.order_line {where} GROUP BY product_id"


def documents(connection: pymysql.Connection[Any], keys: Sequence[int] = ()) -> Rows:
    """Each order as its document shows it, of some orders or of all."""
    return {key: document for key, document, _ in _orders(connection, keys)}


def countries(connection: pymysql.Connection[Any]) -> Rows:
    """Each order's country and total, as the index table has them."""
    return {
        key: {"country": country, "total": document["total"]}
        for key, document, country in _orders(connection, ())
        if country is not None or document["total"] is not None
    }


def customers(connection: pymysql.Connection[Any]) -> Rows:
    """Each customer as its hash shows it."""
    return {
        str(key): {"name": name, "order_count": str(count)} | ({} if last is None else {"last_order": last})
        for key, name, count, last in asked(connection, _CUSTOMERS)
    }


def sold(connection: pymysql.Connection[Any], *products: int) -> Rows:
    """What was sold of some products or of each, as its hash shows it."""
    return {
        str(product): {"orders": str(orders), "quantity": str(quantity), "amount": f"{amount:f}"}
        for product, orders, quantity, amount in asked(connection, _SOLD.format(where=_where("product_id", products)))
    }


def _orders(
    connection: pymysql.Connection[Any], keys: Sequence[int]
) -> Iterator[tuple[str, dict[str, Any], str | None]]:
    """Key, document, and the code of the customer's country; all of one snapshot."""
    wheres = {"where": _where("o.id", keys), "where_line": _where("order_id", keys)}
    with connection.cursor() as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    lines: dict[int, list[dict[str, Any]]] = {}
    for key, title, department, quantity, amount in _each(connection, _LINES.format(**wheres)):
        line = {"title": title, "department": department, "quantity": quantity, "amount": f"{amount:f}"}
        lines.setdefault(key, []).append(line)
    campaigns: dict[int, list[str]] = {}
    for key, name in _each(connection, _CAMPAIGNS.format(**wheres)):
        campaigns.setdefault(key, []).append(name)
    rows = list(_each(connection, _ROOTS.format(**wheres)))
    connection.commit()
    for key, ordered_at, status, name, city, country, iso, count, total in rows:
        document = {
            "order_id": key,
            "ordered_at": ordered_at,
            "status": status,
            "who": None if name is None else {"name": name, "city": city, "country": country},
            "lines": lines.get(key, []),
            "campaigns": campaigns.get(key, []),
            "line_count": count or 0,
            "total": None if total is None else f"{total:f}",
        }
        yield str(key), document, iso


def _where(column: str, keys: Sequence[int]) -> str:
    return f"WHERE {column} IN ({', '.join(map(str, keys))})" if keys else ""


def _each(connection: pymysql.Connection[Any], statement: str) -> Iterator[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement.replace("%%", "%"))
        yield from cursor.fetchall()


def asked(connection: pymysql.Connection[Any], statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of one statement, in a transaction of its own."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        rows = list(cursor.fetchall())
    connection.commit()
    return rows


def without_nulls(documents: Rows) -> Rows:
    """As an index of Elasticsearch and this program compare them; see examples/comparing.py."""
    return {key: _shown(document) for key, document in documents.items()}


def _shown(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if value is not None}
