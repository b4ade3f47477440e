"""Orders with all that belongs to them, in nine tables, views over them, and random writers.

What the views must hold is put together here from plain joins, and read back from the stores raw. Nothing of viewtail
is imported: a mistake of its own cannot excuse itself here.

The rows are in two halves, which never refer to each other. In the ledger half one transaction commits after another,
and each leaves all documents as they are then in a `Ledger`: so it is known which documents there ever were, and in
which order. In the other half threads write at once, and no id is used twice.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pymysql
import redis

from stack import Server
from tests.support.indices import Indices
from tests.support.world import Content
from tests.support.writing import RandomWriters

VIEWS = """
from viewtail import Count, Entity, Group, IndexTable, Many, Max, Min, One, RedisHash, RedisJson, SearchIndex, Sum

order = Entity("docs.order", related={
    "customer": One("docs.customer", on="customer_id", related={"country": One("docs.country", on="country_id")}),
    "lines": Many("docs.order_line", by="order_id", order_by=["line_no", "-id"], related={
        "product": One("docs.product", on="product_id", related={"category": One("docs.category", on="category_id")}),
    }),
    "tags": Many("docs.tag", through="docs.order_tag", by="order_id", to="tag_id", order_by="name"),
    "line_count": Count("docs.order_line", by="order_id"),
    "total": Sum("docs.order_line", "amount", by="order_id"),
    "paid": Sum("docs.order_line", "amount", by="order_id", where="status = 'paid' AND amount > 0"),
    "least": Min("docs.order_line", "amount", by="order_id"),
    "newest": Max("docs.order_line", "n", by="order_id"),
})
customer = Entity("docs.customer", related={
    "order_count": Count("docs.order", by="customer_id"),
    "newest": Max("docs.order", "n", by="customer_id"),
}, at_most_every=0.2)

sold = Group("docs.order_line", by=["product_id", "status"], values={
    "lines": Count(), "amount": Sum("amount"), "newest": Max("n"), "dear": Count(where="amount >= 50"),
}, at_most_every=0.2)


def category(row):
    return row and {"id": row["id"], "name": row["name"], "n": row["n"]}


def product(row):
    return row and {"id": row["id"], "title": row["title"], "n": row["n"], "category": category(row["category"])}


def line(row):
    return {"id": row["id"], "line_no": row["line_no"], "amount": row["amount"], "status": row["status"], "n": row["n"],
            "product": product(row["product"])}


def who(row):
    return row and {"id": row["id"], "name": row["name"], "n": row["n"], "country": category(row["country"])}


def document(row):
    return {
        "id": row["id"], "note": row["note"], "n": row["n"], "customer": who(row["customer"]),
        "lines": [line(each) for each in row["lines"]],
        "tags": [{"id": each["id"], "name": each["name"], "n": each["n"]} for each in row["tags"]],
        "line_count": row["line_count"], "total": row["total"], "paid": row["paid"], "least": row["least"],
        "newest": row["newest"],
    }


def country(row):
    country = row["customer"] and row["customer"]["country"]
    return {"country": country and country["name"], "total": row["total"]}


def titles(row):
    return [each["product"]["title"] for each in row["lines"] if each["product"]]


views = [
    RedisJson("document", order, document=document),
    RedisHash("customer", customer, fields=["name", "order_count", "newest"]),
    RedisHash("sold", sold, fields=["lines", "amount", "newest", "dear"]),
    IndexTable("order_country", order, of=country, values={"country": "VARCHAR(30)", "total": "DECIMAL(20,2)"}),
    IndexTable("order_title", order, of=titles, value="title", each="VARCHAR(40)"),
]
searches = [
    SearchIndex("document", order, document=document, fields={
        "id": "integer", "note": "keyword", "n": "long", "customer": {"type": "object", "enabled": False},
        "lines": {"type": "object", "enabled": False}, "tags": {"type": "object", "enabled": False},
        "line_count": "long", "total": "double", "paid": "double", "least": "double", "newest": "long",
    }),
]
"""
WITH_SEARCH = VIEWS + "\nviews += searches\n"

TABLES = {
    "country": "(id INT PRIMARY KEY, name VARCHAR(30) NOT NULL, n BIGINT NOT NULL)",
    "customer": (
        "(id INT PRIMARY KEY, name VARCHAR(30) NOT NULL, country_id INT, n BIGINT NOT NULL, unused INT, "
        "KEY (country_id))"
    ),
    "category": "(id INT PRIMARY KEY, name VARCHAR(30) NOT NULL, n BIGINT NOT NULL)",
    "product": (
        "(id INT PRIMARY KEY, title VARCHAR(30) NOT NULL, category_id INT, n BIGINT NOT NULL, unused INT, "
        "KEY (category_id))"
    ),
    "order": (
        "(id INT PRIMARY KEY, customer_id INT, note VARCHAR(30), n BIGINT NOT NULL, unused INT, KEY (customer_id))"
    ),
    "order_line": (
        "(id INT PRIMARY KEY, order_id INT NOT NULL, line_no INT NOT NULL, product_id INT, amount DECIMAL(10,2), "
        "status VARCHAR(10) NOT NULL, n BIGINT NOT NULL, unused INT, KEY (order_id), KEY (product_id))"
    ),
    "tag": "(id INT PRIMARY KEY, name VARCHAR(30) NOT NULL, n BIGINT NOT NULL)",
    "order_tag": "(order_id INT NOT NULL, tag_id INT NOT NULL, PRIMARY KEY (order_id, tag_id), KEY (tag_id))",
}
APART = 1_000_000  # ids from here on are those of the other half
LEDGER_ORDERS = 40
LEDGER_CUSTOMERS = 8
LEDGER_PRODUCTS = 6
STATUSES = ("paid", "open")
SEARCH_INDICES = ("document",)
_SOLD = """
SELECT product_id, status, COUNT(*), SUM(amount), MAX(n), COUNT(CASE WHEN amount >= 50 THEN 1 END)
FROM docs.order_line WHERE product_id BETWEEN %s AND %s GROUP BY product_id, status"""
Documents = dict[int, dict[str, Any]]

_ROOTS = """
SELECT o.id, o.note, o.n, c.id, c.name, c.n, k.id, k.name, k.n FROM docs.`order` o
LEFT JOIN docs.customer c ON c.id = o.customer_id LEFT JOIN docs.country k ON k.id = c.country_id
WHERE o.id BETWEEN %s AND %s"""
_LINES = """
SELECT l.order_id, l.id, l.line_no, l.amount, l.status, l.n, p.id, p.title, p.n, c.id, c.name, c.n
FROM docs.order_line l LEFT JOIN docs.product p ON p.id = l.product_id
LEFT JOIN docs.category c ON c.id = p.category_id WHERE l.order_id BETWEEN %s AND %s
ORDER BY l.order_id, l.line_no, l.id DESC"""
_TAGS = """
SELECT x.order_id, t.id, t.name, t.n FROM docs.order_tag x JOIN docs.tag t ON t.id = x.tag_id
WHERE x.order_id BETWEEN %s AND %s ORDER BY x.order_id, t.name, t.id"""
_NUMBERS = """
SELECT order_id, COUNT(*), SUM(amount), SUM(CASE WHEN status = 'paid' AND amount > 0 THEN amount END), MIN(amount),
MAX(n) FROM docs.order_line WHERE order_id BETWEEN %s AND %s GROUP BY order_id"""
_CUSTOMERS = """
SELECT c.id, c.name, (SELECT COUNT(*) FROM docs.`order` o WHERE o.customer_id = c.id),
(SELECT MAX(o.n) FROM docs.`order` o WHERE o.customer_id = c.id) FROM docs.customer c WHERE c.id BETWEEN %s AND %s"""


def documents(cursor: Any, first: int = 0, last: int = 2 * APART) -> Documents:
    """Each order as its document shows it, by joins in one transaction of the cursor's connection."""
    cursor.execute(_ROOTS, (first, last))
    found: Documents = {}
    for i, note, n, *customer in cursor.fetchall():
        country = _named(*customer[3:])
        who = None if customer[0] is None else {**(_named(*customer[:3]) or {}), "country": country}
        numbers = {"line_count": 0, "total": None, "paid": None, "least": None, "newest": None}
        found[i] = {"id": i, "note": note, "n": n, "customer": who, "lines": [], "tags": [], **numbers}
    cursor.execute(_LINES, (first, last))
    for order, i, line_no, amount, status, n, product, title, product_n, *category in cursor.fetchall():
        line = {"id": i, "line_no": line_no, "amount": _text(amount), "status": status, "n": n, "product": None}
        if product is not None:
            line["product"] = {"id": product, "title": title, "n": product_n, "category": _named(*category)}
        if order in found:
            found[order]["lines"].append(line)
    cursor.execute(_TAGS, (first, last))
    for order, *tag in cursor.fetchall():
        if order in found:
            found[order]["tags"].append(_named(*tag))
    cursor.execute(_NUMBERS, (first, last))
    for order, count, total, paid, least, newest in cursor.fetchall():
        if order in found:
            amounts = {"total": _text(total), "paid": _text(paid), "least": _text(least)}
            found[order] |= {"line_count": count, **amounts, "newest": newest}
    return found


def customers(cursor: Any, first: int = 0, last: int = 2 * APART) -> dict[int, dict[str, str]]:
    """Each customer as its hash shows it."""
    cursor.execute(_CUSTOMERS, (first, last))
    return {
        i: {"name": name, "order_count": str(count)} | ({} if newest is None else {"newest": str(newest)})
        for i, name, count, newest in cursor.fetchall()
    }


def sold(cursor: Any, first: int = 0, last: int = 2 * APART) -> dict[str, dict[str, str]]:
    """What was sold of each product, by status, as its hash shows it."""
    cursor.execute(_SOLD, (first, last))
    return {
        f"{product}:{status}": {"lines": str(lines), "newest": str(newest), "dear": str(dear)}
        | ({} if amount is None else {"amount": f"{amount:f}"})
        for product, status, lines, amount, newest, dear in cursor.fetchall()
    }


def _named(i: int | None, name: str, n: int) -> dict[str, Any] | None:
    return None if i is None else {"id": i, "name": name, "n": n}


def _text(amount: Any) -> str | None:
    return None if amount is None else f"{amount:f}"


def country_of(document: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """What `order_country` has of a document; both None where it has nothing."""
    country = (document["customer"] or {}).get("country")
    return (country and country["name"], document["total"])


def titles_of(document: Mapping[str, Any]) -> list[str]:
    """What `order_title` has of a document."""
    return sorted({line["product"]["title"] for line in document["lines"] if line["product"]})


@dataclass(slots=True)
class Ledger:
    """What each key of the ledger half was, one state after another, as JSON; None: it was not there."""

    states: dict[str, list[str | None]] = field(default_factory=dict)
    _keys: tuple[str, ...] = (
        *(f"order {i}" for i in range(LEDGER_ORDERS)),
        *(f"customer {i}" for i in range(LEDGER_CUSTOMERS)),
        *(f"sold {i}:{status}" for i in range(LEDGER_PRODUCTS) for status in STATUSES),
    )

    def note(self, cursor: Any) -> None:
        """What the ledger half is now, in the transaction of the cursor."""
        orders = documents(cursor, 0, LEDGER_ORDERS - 1)
        now = {f"order {i}": canonical(document) for i, document in orders.items()}
        of_customers = customers(cursor, 0, LEDGER_CUSTOMERS - 1)
        now |= {f"customer {i}": canonical(content) for i, content in of_customers.items()}
        of_products = sold(cursor, 0, LEDGER_PRODUCTS - 1)
        now |= {f"sold {key}": canonical(content) for key, content in of_products.items()}
        for key in self._keys:
            states = self.states.setdefault(key, [None])  # before it is filled
            if states[-1] != now.get(key):
                states.append(now.get(key))

    @property
    def count(self) -> int:
        return sum(len(states) for states in self.states.values())


def canonical(content: Any) -> str:
    """Content as a text, equal where it is equal."""
    return json.dumps(content, sort_keys=True)


@dataclass(slots=True, kw_only=True)
class OrderWorld:
    """The servers, and how to look into them."""

    mysql: Server
    redis: Server
    elasticsearch: Server | None = None
    replica: Server | None = None  # of MySQL

    def connect(self) -> Any:
        return pymysql.connect(host="127.0.0.1", port=self.mysql.port, user="root", autocommit=False)

    def is_filled(self) -> bool:
        """Whether every view is, as viewtail's own table says: asked again and again while nothing else happens."""
        with self.cursor() as cursor:
            cursor.execute("SELECT COUNT(*), SUM(state = 'filled') FROM viewtail.view")
            count, filled = cursor.fetchone()
        return bool(count == self.view_count and filled == count)

    def is_known(self) -> bool:
        """Whether viewtail's own tables have every view, and its second copies where there are any."""
        with self.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM viewtail.view")
            return bool(cursor.fetchone()[0] >= self.view_count)

    @property
    def view_count(self) -> int:
        return 5 if self.elasticsearch is None else 6

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                yield cursor
            connection.commit()
        finally:
            connection.close()

    def connect_to_write(self) -> Any:
        """What a killed session committed all the same is to be seen, also in the midst of a transaction."""
        connection = self.connect()
        connection.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.commit()
        return connection

    def make_tables(self) -> None:
        """Begin anew: empty tables, empty stores."""
        with self.cursor() as cursor:
            cursor.execute("SET lock_wait_timeout = 20")
            for database in ("docs", "viewtail"):
                cursor.execute(f"DROP DATABASE IF EXISTS {database}")
            cursor.execute("CREATE DATABASE docs")
            for name, columns in TABLES.items():
                cursor.execute(f"CREATE TABLE docs.`{name}` {columns}")
        redis.Redis(port=self.redis.port).flushall()
        if self.elasticsearch is not None:
            Indices(self.elasticsearch).drop(SEARCH_INDICES)

    def make(self, chance: random.Random, orders: int) -> None:
        """Begin anew, with `orders` orders in the half that many write."""
        self.make_tables()
        with self.cursor() as cursor:
            for first, count in ((0, 0), (APART, orders)):
                few = max(6, count // 20)
                for name, title in (("country", "name"), ("category", "name"), ("tag", "name")):
                    _insert(cursor, name, ("id", title, "n"), [(first + i, f"{name} {i}", 1) for i in range(6)])
                rows: list[tuple[Any, ...]] = [(first + i, f"c{i}", first + chance.randrange(6), 1) for i in range(few)]
                _insert(cursor, "customer", ("id", "name", "country_id", "n"), rows)
                rows = [(first + i, f"p{i}", first + chance.randrange(6), 1) for i in range(few)]
                _insert(cursor, "product", ("id", "title", "category_id", "n"), rows)
                rows = [(first + i, first + chance.randrange(few), f"o{i}", 1) for i in range(count)]
                _insert(cursor, "order", ("id", "customer_id", "note", "n"), rows)
                rows = [
                    (first + 2 * i + at, first + i, at, first + chance.randrange(few), chance.randrange(999) / 100, 1)
                    for i in range(count)
                    for at in range(2)
                ]
                columns = ("id", "order_id", "line_no", "product_id", "amount", "n")
                _insert(cursor, "order_line", columns, rows, status="paid")

    # -- what must be, and what is ------------------------------------------------------------------------------

    def expected(self) -> Content:
        with self.cursor() as cursor:
            orders, of_customers, of_products = documents(cursor), customers(cursor), sold(cursor)
        countries = {i: country_of(document) for i, document in orders.items()}
        content: dict[str, dict[Any, Any]] = {
            "redis:document": {str(i): document for i, document in orders.items()},
            "redis:customer": {str(i): content for i, content in of_customers.items()},
            "redis:sold": of_products,
            "mysql:order_country": {i: values for i, values in countries.items() if values != (None, None)},
            "mysql:order_title": {i: titles for i, document in orders.items() if (titles := titles_of(document))},
        }
        if self.elasticsearch is not None:
            content["elasticsearch:document"] = content["redis:document"]
        return content

    def actual(self) -> Content:
        content = {**self._redis_keys(), **self._index_tables()}
        if self.elasticsearch is not None:
            content |= Indices(self.elasticsearch).contents(SEARCH_INDICES)
        return content

    def _redis_keys(self) -> dict[str, dict[Any, Any]]:
        client = redis.Redis(port=self.redis.port)
        content: dict[str, dict[Any, Any]] = {"redis:document": {}, "redis:customer": {}, "redis:sold": {}}
        names = tuple(f"{view.partition(':')[2]}:".encode() for view in content)
        keys = [key for key in client.scan_iter(count=5000) if key.startswith(names)]
        with client.pipeline(transaction=False) as look:
            for key in keys:
                (look.get if key.startswith(b"document:") else look.hgetall)(key)
            answers: list[Any] = look.execute()
        client.close()
        for key, answer in zip(keys, answers, strict=True):
            name, _, i = key.decode().partition(":")
            content[f"redis:{name}"][i] = shown(answer)
        return content

    def _index_tables(self) -> dict[str, dict[Any, Any]]:
        with self.cursor() as cursor:
            cursor.execute("SELECT id, country, total FROM viewtail.order_country")
            countries = {i: (country, _text(total)) for i, country, total in cursor.fetchall()}
            cursor.execute("SELECT id, title FROM viewtail.order_title ORDER BY title")
            titles: dict[int, list[str]] = {}
            for i, title in cursor.fetchall():
                titles.setdefault(i, []).append(title)
        return {
            "mysql:order_country": {i: values for i, values in countries.items() if values != (None, None)},
            "mysql:order_title": {i: sorted(found) for i, found in titles.items()},
        }


def shown(answer: Any) -> dict[str, Any] | None:
    """What a Redis key shows, without its version; None where there is none."""
    if not answer:
        return None
    content: dict[str, Any]
    if isinstance(answer, bytes):
        content = json.loads(answer)
    else:
        content = {name.decode(): value.decode() for name, value in answer.items()}
    assert len(content.pop("_version")) == 19
    return content


def _insert(cursor: Any, table: str, columns: Sequence[str], rows: Iterable[tuple[Any, ...]], **same: Any) -> None:
    names = ", ".join((*columns, *same))
    marks = ", ".join(["%s"] * (len(columns) + len(same)))
    cursor.executemany(
        f"INSERT INTO docs.`{table}` ({names}) VALUES ({marks})", [(*row, *same.values()) for row in rows]
    )


# -- writers -----------------------------------------------------------------------------------------------------


class Half:
    """The ids of one half, and changes of its rows. With `is_reused` an id comes back after its row was deleted."""

    def __init__(self, first: int, orders: int, *, is_reused: bool) -> None:
        few = LEDGER_PRODUCTS if is_reused else max(6, orders // 20)
        self._first = first
        self._is_reused = is_reused
        self._lock = threading.Lock()
        self._count = {
            "order": orders,
            "order_line": 3 * orders if is_reused else 2 * orders,
            "customer": LEDGER_CUSTOMERS if is_reused else few,
            "product": few,
        }
        self.done: Counter[str] = Counter()

    def some(self, table: str, chance: random.Random) -> int:
        """The id of a row that may be there."""
        count = self._count.get(table, 6)
        if not self._is_reused and chance.random() < 0.5:
            return self._first + count - 1 - chance.randrange(min(count, 200))  # rows that are written again and again
        return self._first + chance.randrange(count)

    def new(self, table: str, chance: random.Random) -> int:
        """The id of a row that is added."""
        if self._is_reused:
            return self.some(table, chance)
        with self._lock:
            self._count[table] = self._count.get(table, 6) + 1
            return self._first + self._count[table] - 1

    def change(self, chance: random.Random, execute: Callable[..., Any]) -> None:
        kinds = [kind for kind in _CHANGES if self._is_reused or kind not in _ONLY_REUSED]
        kind = chance.choice(kinds)
        kind(self, chance, execute)
        self.done[kind.__name__.strip("_")] += 1


def _add_an_order(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    i = half.new("order", chance)
    values = (i, half.some("customer", chance), f"o{chance.randrange(99)}")
    execute("INSERT IGNORE INTO docs.`order` (id, customer_id, note, n) VALUES (%s, %s, %s, 1)", values)
    for at in range(chance.choice((0, 1, 3))):
        _add_a_line(half, chance, execute, of=i, at=at)


def _add_a_line(
    half: Half, chance: random.Random, execute: Callable[..., Any], of: int | None = None, at: int | None = None
) -> None:
    amount = chance.choice((None, chance.randrange(-500, 9999) / 100))
    line_no = chance.randrange(4) if at is None else at
    values = (
        half.new("order_line", chance),
        half.some("order", chance) if of is None else of,
        line_no,
        half.some("product", chance),
        amount,
        chance.choice(STATUSES),
    )
    execute(
        "INSERT INTO docs.order_line (id, order_id, line_no, product_id, amount, status, n) VALUES "
        "(%s, %s, %s, %s, %s, %s, 1) AS new ON DUPLICATE KEY UPDATE order_id = new.order_id, "
        "product_id = new.product_id, amount = new.amount, n = order_line.n + 1",
        values,
    )


def _change_a_line(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    values = (chance.randrange(9999) / 100, chance.choice(STATUSES), half.some("order_line", chance))
    execute("UPDATE docs.order_line SET amount = %s, status = %s, n = n + 1 WHERE id = %s", values)


def _change_what_no_view_uses(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    table = chance.choice(("order", "order_line", "product", "customer"))
    execute(f"UPDATE docs.`{table}` SET unused = %s WHERE id = %s", (chance.randrange(99), half.some(table, chance)))


def _move_a_line(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    values = (half.some("order", chance), half.some("order_line", chance))
    execute("UPDATE docs.order_line SET order_id = %s, n = n + 1 WHERE id = %s", values)


def _move_all_lines(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    values = (half.some("order", chance), half.some("order", chance))
    execute("UPDATE docs.order_line SET order_id = %s, n = n + 1 WHERE order_id = %s", values)


def _swap_two_parents(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    a, b = half.some("order", chance), half.some("order", chance)
    execute(
        "UPDATE docs.order_line SET order_id = IF(order_id = %s, %s, %s), n = n + 1 WHERE order_id IN (%s, %s)",
        (a, b, a, a, b),
    )
    c, d = half.some("customer", chance), half.some("customer", chance)
    execute(
        "UPDATE docs.`order` SET customer_id = IF(customer_id = %s, %s, %s), n = n + 1 WHERE id IN (%s, %s) "
        "AND customer_id IN (%s, %s)",
        (c, d, c, a, b, c, d),
    )


def _move_a_group(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    """All rows of a group go into another one."""
    to, from_ = chance.sample(STATUSES, 2)
    values = (to, half.some("product", chance), from_)
    execute("UPDATE docs.order_line SET status = %s, n = n + 1 WHERE product_id = %s AND status = %s", values)


def _empty_a_group(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    values = (half.some("product", chance), chance.choice(STATUSES))
    execute("DELETE FROM docs.order_line WHERE product_id = %s AND status = %s", values)


def _delete_a_line(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    execute("DELETE FROM docs.order_line WHERE id = %s", (half.some("order_line", chance),))


def _delete_parent_first(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    i = half.some("order", chance)
    execute("DELETE FROM docs.`order` WHERE id = %s", (i,))
    if chance.random() < 0.7:
        execute("DELETE FROM docs.order_line WHERE order_id = %s", (i,))
        execute("DELETE FROM docs.order_tag WHERE order_id = %s", (i,))


def _delete_children_first(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    i = half.some("order", chance)
    execute("DELETE FROM docs.order_tag WHERE order_id = %s", (i,))
    execute("DELETE FROM docs.order_line WHERE order_id = %s", (i,))
    execute("DELETE FROM docs.`order` WHERE id = %s", (i,))


def _another_product(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    product = chance.choice((None, half.some("product", chance)))
    values = (product, half.some("order_line", chance))
    execute("UPDATE docs.order_line SET product_id = %s, n = n + 1 WHERE id = %s", values)


def _another_customer(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    customer = chance.choice((None, half.some("customer", chance), half.some("customer", chance)))
    execute("UPDATE docs.`order` SET customer_id = %s, n = n + 1 WHERE id = %s", (customer, half.some("order", chance)))


def _another_category(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    values = (half.some("category", chance), half.some("product", chance))
    execute("UPDATE docs.product SET category_id = %s, n = n + 1 WHERE id = %s", values)


def _another_country(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    values = (half.some("country", chance), half.some("customer", chance))
    execute("UPDATE docs.customer SET country_id = %s, n = n + 1 WHERE id = %s", values)


def _rename(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    table = chance.choice(("country", "customer", "category", "product", "product", "tag"))
    column = "title" if table == "product" else "name"
    values = (f"{table} {chance.randrange(99)}", half.some(table, chance))
    execute(f"UPDATE docs.{table} SET {column} = %s, n = n + 1 WHERE id = %s", values)


def _rename_many_products(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    i = half.some("product", chance)
    title = f"all {chance.randrange(99)}"
    execute("UPDATE docs.product SET title = %s, n = n + 1 WHERE id BETWEEN %s AND %s", (title, i, i + 2))


def _change_an_order(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    note = chance.choice((None, f"ü{chance.randrange(99)}"))
    execute("UPDATE docs.`order` SET note = %s, n = n + 1 WHERE id = %s", (note, half.some("order", chance)))


def _tag(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    values = (half.some("order", chance), half.some("tag", chance))
    execute("INSERT IGNORE INTO docs.order_tag VALUES (%s, %s)", values)


def _untag(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    execute("DELETE FROM docs.order_tag WHERE order_id = %s LIMIT 1", (half.some("order", chance),))


def _tag_otherwise(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    values = (half.some("tag", chance), half.some("order", chance))
    execute("UPDATE IGNORE docs.order_tag SET tag_id = %s WHERE order_id = %s", values)


def _delete_what_is_referred_to(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    table = chance.choice(("customer", "product", "category", "country", "tag"))
    execute(f"DELETE FROM docs.{table} WHERE id = %s", (half.some(table, chance),))


def _add_what_is_referred_to(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    table = chance.choice(("customer", "product", "category", "country", "tag"))
    column = "title" if table == "product" else "name"
    values = (half.new(table, chance), f"{table} again", 1)
    execute(f"INSERT IGNORE INTO docs.{table} (id, {column}, n) VALUES (%s, %s, %s)", values)


def _another_key(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    table = chance.choice(("order", "order_line", "product", "customer"))
    values = (half.some(table, chance), half.some(table, chance))
    execute(f"UPDATE IGNORE docs.`{table}` SET id = %s, n = n + 1 WHERE id = %s", values)


def _replace(half: Half, chance: random.Random, execute: Callable[..., Any]) -> None:
    values = (half.some("order", chance), half.some("customer", chance), f"r{chance.randrange(99)}")
    execute("REPLACE INTO docs.`order` (id, customer_id, note, n) VALUES (%s, %s, %s, 1)", values)


_ONLY_REUSED = (_another_key, _replace, _empty_a_group)
_CHANGES: list[Callable[..., None]] = [
    _add_an_order,
    _add_an_order,
    _add_a_line,
    _add_a_line,
    _change_a_line,
    _change_what_no_view_uses,
    _move_a_line,
    _move_all_lines,
    _swap_two_parents,
    _move_a_group,
    _empty_a_group,
    _delete_a_line,
    _delete_parent_first,
    _delete_children_first,
    _another_product,
    _another_customer,
    _another_category,
    _another_country,
    _rename,
    _rename_many_products,
    _change_an_order,
    _tag,
    _tag,
    _untag,
    _tag_otherwise,
    _delete_what_is_referred_to,
    _add_what_is_referred_to,
    _another_key,
    _replace,
]
KINDS = frozenset(kind.__name__.strip("_") for kind in _CHANGES)


class OrderWriters(RandomWriters):
    """The first thread writes in the ledger half, the others in the other one."""

    def __init__(self, world: OrderWorld, seed: int, orders: int, threads: int = 3) -> None:
        super().__init__(world.connect_to_write, seed, threads)
        self._world = world
        self._ledger_lock = threading.Lock()
        self.ledger = Ledger()
        self._is_noted = False
        self._halves = (Half(0, LEDGER_ORDERS, is_reused=True), Half(APART, orders, is_reused=False))

    @property
    def kinds(self) -> set[str]:
        """The kinds of changes that were made."""
        return {kind for half in self._halves for kind in [*half.done]}

    def alone(self, *statements: str, pause_s: float = 0.0) -> None:
        """Statements that commit by themselves, and a pause behind each, between two transactions of the ledger."""
        with self._ledger_lock, self._world.cursor() as cursor:
            cursor.execute("SET lock_wait_timeout = 20")
            self._note_what_is(cursor)
            self._is_noted = False
            for statement in statements:
                cursor.execute(statement)
                self._stop.wait(pause_s)
            self._note_what_is(cursor)

    def _transact(self, connection: Any, chance: random.Random, at: int) -> None:
        if at:
            super()._transact(connection, chance, at)
            return
        with self._ledger_lock:
            self._note_what_is(connection.cursor())
            super()._transact(connection, chance, at)
        self._stop.wait(0.002)

    def _change(self, chance: random.Random, execute: Callable[..., Any], at: int) -> None:
        half = self._halves[bool(at)]
        if chance.random() < 0.05:
            execute("SAVEPOINT here")
            half.change(chance, execute)
            execute("ROLLBACK TO SAVEPOINT here")
        half.change(chance, execute)

    def _commit(self, connection: Any, at: int) -> None:
        if at:
            connection.commit()
            return
        self._is_noted = False
        self.ledger.note(connection.cursor())
        connection.commit()
        self._is_noted = True

    def _note_what_is(self, cursor: Any) -> None:
        """The state that an interrupted commit left, whichever it is."""
        if not self._is_noted:
            self.ledger.note(cursor)
            self._is_noted = True
