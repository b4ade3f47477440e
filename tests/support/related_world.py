"""A schema with every way in which one row may refer to another, views over it, and what they must hold.

What a document must be is asked here row by row, with one plain SELECT for each thing that belongs to it. Nothing of
viewtail is imported.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pymysql
import redis

from stack import Server
from tests.support.asking import ask

VIEWS = """
from viewtail import Count, Entity, IndexTable, Many, Max, Min, One, RedisHash, RedisJson, Sum

country = One("rel.country", on="country_id", columns=["id", "name"])
address = {"related": {"country": country}, "columns": ["id", "city"]}
person = Entity("rel.person", related={
    "billing": One("rel.address", on="billing_id", **address),
    "shipping": One("rel.address", on="shipping_id", **address),
    "boss": One("rel.person", on="boss_id", columns=["id", "name"], related={
        "boss": One("rel.person", on="boss_id", columns=["id", "name"]),
    }),
    "staff": Many("rel.person", by="boss_id", order_by="-name", columns=["id", "name"]),
    "tags": Many("rel.tag", through="rel.person_tag", by="person_id", to="tag_id", columns=["id", "name"],
                 related={"used": Count("rel.person_tag", by="tag_id")}),
    "notes": Many("rel_too.note", by="person_id", columns=["id", "text"]),
    "payments": Many("rel.payment", by="person_id", order_by=["-at", "kind"], columns=["id", "amount", "at"]),
    "payment_count": Count("rel.payment", by="person_id"),
    "paid": Sum("rel.payment", "amount", by="person_id"),
    "counted": Sum("rel.payment", "big", by="person_id"),
    "first_at": Min("rel.payment", "at", by="person_id"),
    "most": Max("rel.payment", "amount", by="person_id"),
    "cash": Sum("rel.payment", "amount", by="person_id", where="kind = 'cash' AND amount > 0 OR kind IS NULL"),
    "cards": Count("rel.payment", by="person_id", where="kind IN ('card', 'debit') AND NOT amount < 0"),
})
NAMES = ["id", "name", "billing", "shipping", "boss", "staff", "tags", "notes", "payments", "payment_count", "paid",
         "counted", "first_at", "most", "cash", "cards"]
category = Entity("rel.category", related={
    "parent": One("rel.category", on="parent_id", columns=["id", "name"], related={
        "parent": One("rel.category", on="parent_id", columns=["id", "name"], related={
            "parent": One("rel.category", on="parent_id", columns=["id", "name"]),
        }),
    }),
})
ticket = Entity("rel.ticket", related={
    "seat": One("rel.seat", on=["hall", "row_no"], columns=["hall", "row_no", "name"]),
})
seat = Entity("rel.seat", related={
    "tickets": Many("rel.ticket", by=["hall", "row_no"], columns=["id"]),
    "ticket_count": Count("rel.ticket", by=["hall", "row_no"]),
})
price = Entity("rel.price", related={
    "currency": One("rel.currency", on="currency_code", to="code", columns=["code", "name"]),
})
author = Entity("rel.author", related={
    "books": Many("rel.book", by="author", columns=["id", "title"]),
    "book_count": Count("rel.book", by="author"),
})
thing = Entity("rel.thing", related={
    "day": One("rel.day", on="d", columns=["d", "about"]),
    "slot": One("rel.slot", on="at", columns=["at", "about"]),
    "whose": One("rel.owner", on="owner", columns=["id", "about"]),
    "stage": One("rel.step", on="step", columns=["at", "about"]),
})

views = [
    RedisJson("person", person, document=lambda row: dict(row), columns=NAMES),
    IndexTable("person_paid", person, values={"country": "VARCHAR(80)", "paid": "DECIMAL(30,4)"}, of=lambda row: {
        "country": row["billing"] and row["billing"]["country"] and row["billing"]["country"]["name"],
        "paid": row["paid"]}),
    RedisHash("paid", person, fields=["name", "payment_count", "paid", "first_at"]),
    RedisJson("category", category, document=lambda row: {"id": row["id"], "parent": row["parent"]}),
    RedisJson("ticket", ticket, document=lambda row: {"id": row["id"], "seat": row["seat"]}),
    RedisJson("seat", seat, document=lambda row: {"tickets": row["tickets"], "ticket_count": row["ticket_count"]}),
    RedisJson("price", price, document=lambda row: {"id": row["id"], "currency": row["currency"]}),
    RedisJson("author", author, document=lambda row: {
        "name": row["name"], "books": row["books"], "book_count": row["book_count"]}),
    RedisJson("thing", thing, document=lambda row: {
        "id": row["id"], "day": row["day"], "slot": row["slot"], "whose": row["whose"] and row["whose"]["about"],
        "stage": row["stage"]}),
]
"""
TABLES = """
CREATE TABLE rel.country (id INT PRIMARY KEY, name VARCHAR(30));
CREATE TABLE rel.address (id BIGINT PRIMARY KEY, city VARCHAR(30), country_id SMALLINT UNSIGNED, KEY (country_id));
CREATE TABLE rel.person (id INT PRIMARY KEY, name VARCHAR(30), boss_id INT, billing_id INT, shipping_id BIGINT,
unused INT, KEY (boss_id), KEY (billing_id), KEY (shipping_id));
CREATE TABLE rel.tag (id INT PRIMARY KEY, name VARCHAR(30));
CREATE TABLE rel.person_tag (id INT PRIMARY KEY AUTO_INCREMENT, person_id INT, tag_id INT, KEY (person_id), KEY
(tag_id));
CREATE TABLE rel_too.note (id INT PRIMARY KEY, person_id INT, text TEXT, KEY (person_id));
CREATE TABLE rel.payment (id INT PRIMARY KEY, person_id INT, amount DECIMAL(12,4), big BIGINT UNSIGNED, at
DATETIME(3), kind VARCHAR(10), KEY (person_id));
CREATE TABLE rel.category (id INT PRIMARY KEY, name VARCHAR(30), parent_id INT, KEY (parent_id));
CREATE TABLE rel.seat (hall INT, row_no INT, name VARCHAR(30), PRIMARY KEY (hall, row_no));
CREATE TABLE rel.ticket (id INT PRIMARY KEY, hall INT, row_no INT, KEY (hall, row_no));
CREATE TABLE rel.currency (id INT PRIMARY KEY, code VARCHAR(5) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT
NULL UNIQUE, name VARCHAR(30));
CREATE TABLE rel.price (id INT PRIMARY KEY, currency_code VARCHAR(5) CHARACTER SET utf8mb4 COLLATE
utf8mb4_general_ci, KEY (currency_code));
CREATE TABLE rel.author (name VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, about
VARCHAR(30));
CREATE TABLE rel.book (id INT PRIMARY KEY, author VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci,
title VARCHAR(30), KEY (author));
CREATE TABLE rel.day (d DATE PRIMARY KEY, about VARCHAR(30));
CREATE TABLE rel.slot (at DATETIME(3) PRIMARY KEY, about VARCHAR(30));
CREATE TABLE rel.owner (id BINARY(4) PRIMARY KEY, about VARCHAR(30));
CREATE TABLE rel.step (at DECIMAL(8,3) PRIMARY KEY, about VARCHAR(30));
CREATE TABLE rel.thing (id INT PRIMARY KEY, d DATE, at DATETIME(3), owner BINARY(4), step DECIMAL(8,3), KEY (d), KEY
(at), KEY (owner), KEY (step));
"""
ROWS = """
INSERT INTO rel.country VALUES (1, 'Chile'), (2, 'Ghana');
INSERT INTO rel.address VALUES (1, 'Arica', 1), (2, 'Accra', 2), (3, 'Nowhere', NULL), (4, 'Lost', 99);
INSERT INTO rel.person VALUES (1, 'ada', NULL, 1, 2, 0), (2, 'bob', 1, 2, 2, 0), (3, 'cid', 2, 99, NULL, 0), (4,
'dot', 1, 3, 4, 0), (5, NULL, 5, NULL, NULL, 0);
INSERT INTO rel.tag VALUES (1, 'new'), (2, 'vip'), (3, 'none');
INSERT INTO rel.person_tag (person_id, tag_id) VALUES (1, 2), (1, 1), (1, 2), (2, 2), (3, 99), (99, 1), (NULL, 1);
INSERT INTO rel_too.note VALUES (1, 1, 'first'), (2, 1, NULL), (3, NULL, 'nobody'), (4, 99, 'gone');
INSERT INTO rel.payment VALUES (1, 1, 10.5, 18446744073709551615, '2026-01-02 03:04:05.678', 'cash'), (2, 1, -3.25,
18446744073709551615, '2026-01-02 03:04:05.678', 'card'), (3, 1, NULL, NULL, NULL, 'cash'), (4, 2, 0.0001, 7,
'2025-12-31 00:00:00', NULL), (5, 2, 1, 1, '2025-12-31 00:00:00.001', 'debit'),
(6, 3, NULL, NULL, '2026-02-01 00:00:00', 'cash'), (7, NULL, 5, 5, NULL, 'card');
INSERT INTO rel.category VALUES (1, 'all', NULL), (2, 'food', 1), (3, 'fruit', 2), (4, 'apples', 3),
(5, 'green ones', 4), (6, 'its own', 6);
INSERT INTO rel.seat VALUES (1, 1, 'front'), (1, 2, 'back'), (2, 1, 'other');
INSERT INTO rel.ticket VALUES (1, 1, 1), (2, 1, 1), (3, 2, NULL), (4, NULL, 1), (5, 9, 9), (6, 2, 1);
INSERT INTO rel.currency VALUES (1, 'EUR', 'Euro'), (2, 'chf', 'Franc');
INSERT INTO rel.price VALUES (1, 'EUR'), (2, 'eur'), (3, 'CHF'), (4, 'usd'), (5, NULL), (6, 'Eur  ');
INSERT INTO rel.author VALUES ('Ada', 'x'), ('BOB', 'y'), ('cid', 'z');
INSERT INTO rel.book VALUES (1, 'ada', 'a'), (2, 'ADA', 'b'), (3, 'Bob ', 'c'), (4, NULL, 'd'), (5, 'eve', 'e');
INSERT INTO rel.day VALUES ('2026-01-01', 'new year'), ('2026-12-25', 'christmas');
INSERT INTO rel.slot VALUES ('2026-01-01 10:00:00', 'ten'), ('2026-01-01 10:00:00.500', 'a bit later');
INSERT INTO rel.owner VALUES ('ab', 'short'), (X'00FF00FF', 'binary');
INSERT INTO rel.step VALUES (1.5, 'one and a half'), (-2, 'minus two');
INSERT INTO rel.thing VALUES (1, '2026-01-01', '2026-01-01 10:00:00', 'ab', 1.5),
(2, '2026-12-25', '2026-01-01 10:00:00.5', X'00FF00FF', -2), (3, NULL, NULL, NULL, NULL),
(4, '2020-01-01', '2020-01-01', 'none', 9);
"""
CHANGES = {
    "values of what is referred to": (
        "UPDATE rel.country SET name = 'Chile!' WHERE id = 1",
        "UPDATE rel.address SET city = 'Tema' WHERE id = 2",
        "UPDATE rel.person SET name = 'Ada' WHERE id = 1",
        "UPDATE rel.tag SET name = 'VIP' WHERE id = 2",
        "UPDATE rel_too.note SET text = 'second' WHERE id = 2",
        "UPDATE rel.payment SET amount = 11, kind = NULL WHERE id = 1",
        "UPDATE rel.category SET name = 'FOOD' WHERE id = 2",
        "UPDATE rel.category SET name = 'itself' WHERE id = 6",
        "UPDATE rel.seat SET name = 'FRONT' WHERE hall = 1 AND row_no = 1",
        "UPDATE rel.currency SET name = 'EURO' WHERE id = 1",
        "UPDATE rel.book SET title = 'B' WHERE id = 2",
        "UPDATE rel.day SET about = 'first' WHERE d = '2026-01-01'",
        "UPDATE rel.slot SET about = 'later' WHERE about = 'a bit later'",
        "UPDATE rel.owner SET about = 'SHORT' WHERE id = 'ab\\0\\0'",
        "UPDATE rel.step SET about = '-2' WHERE at = -2",
    ),
    "references": (
        "UPDATE rel.address SET country_id = 2 WHERE id = 1",
        "UPDATE rel.person SET billing_id = 3, shipping_id = 1 WHERE id = 1",
        "UPDATE rel.person SET boss_id = 3 WHERE id = 2",
        "UPDATE rel.person SET boss_id = NULL WHERE id = 4",
        "UPDATE rel.person_tag SET tag_id = 3 WHERE person_id = 2",
        "UPDATE rel.person_tag SET person_id = 4 WHERE person_id = 99",
        "UPDATE rel_too.note SET person_id = 2 WHERE id IN (1, 3)",
        "UPDATE rel.payment SET person_id = IF(person_id = 1, 2, 1) WHERE person_id IN (1, 2)",
        "UPDATE rel.category SET parent_id = 1 WHERE id = 4",
        "UPDATE rel.ticket SET row_no = 2 WHERE id = 1",
        "UPDATE rel.ticket SET hall = 1 WHERE id = 4",
        "UPDATE rel.price SET currency_code = 'EuR' WHERE id = 4",
        "UPDATE rel.price SET currency_code = NULL WHERE id = 1",
        "UPDATE rel.book SET author = 'CID' WHERE id = 1",
        "UPDATE rel.book SET author = 'bob' WHERE id = 4",
        "UPDATE rel.thing SET d = '2026-12-25', owner = X'00ff00ff', step = 1.5 WHERE id = 4",
        "UPDATE rel.thing SET at = '2026-01-01 10:00:00.500' WHERE id = 4",
    ),
    "keys that others refer to": (
        "UPDATE rel.country SET id = 99 WHERE id = 2",
        "UPDATE rel.address SET id = 77 WHERE id = 1",
        "UPDATE rel.currency SET code = 'usd' WHERE id = 2",
        "UPDATE rel.currency SET code = 'eur' WHERE id = 1",
        "UPDATE rel.author SET name = 'eve' WHERE name = 'cid'",
        "UPDATE rel.author SET name = 'ADA' WHERE name = 'ada'",
        "UPDATE rel.seat SET row_no = 9, hall = 9 WHERE hall = 1 AND row_no = 1",
        "UPDATE rel.person SET id = 9 WHERE id = 5",
        "UPDATE rel.day SET d = '2020-01-01' WHERE d = '2026-01-01'",
    ),
    "rows that go": (
        "DELETE FROM rel.country WHERE id = 1",
        "DELETE FROM rel.address WHERE id = 3",
        "DELETE FROM rel.person WHERE id = 2",
        "DELETE FROM rel.person_tag WHERE person_id = 1 AND tag_id = 2 LIMIT 1",
        "DELETE FROM rel.tag WHERE id = 1",
        "DELETE FROM rel_too.note WHERE id = 2",
        "DELETE FROM rel.payment WHERE person_id = 1",
        "DELETE FROM rel.category WHERE id = 2",
        "DELETE FROM rel.seat WHERE hall = 2",
        "DELETE FROM rel.ticket WHERE id = 2",
        "DELETE FROM rel.currency WHERE id = 1",
        "DELETE FROM rel.author WHERE name = 'BOB'",
        "DELETE FROM rel.owner",
    ),
    "rows that come": (
        "INSERT INTO rel.country VALUES (1, 'Chad')",
        "INSERT INTO rel.address VALUES (99, 'found', 1), (1, 'again', 99)",
        "INSERT INTO rel.person VALUES (2, 'bea', 1, 77, 99, 0)",
        "INSERT INTO rel.person_tag (person_id, tag_id) VALUES (2, 3), (2, 2)",
        "INSERT INTO rel.tag VALUES (1, 'again')",
        "INSERT INTO rel_too.note VALUES (9, 2, 'new')",
        "INSERT INTO rel.payment VALUES (90, 1, 1.1, 1, '2026-03-01', 'debit'), (91, 2, 49999999.9999, 2, NULL, '')",
        "INSERT INTO rel.category VALUES (2, 'again', 5)",
        "INSERT INTO rel.seat VALUES (2, 1, 'again')",
        "INSERT INTO rel.ticket VALUES (20, 2, 1)",
        "INSERT INTO rel.currency VALUES (9, 'EUR', 'again')",
        "INSERT INTO rel.author VALUES ('bob', 'again')",
        "INSERT INTO rel.owner VALUES ('ab', 'again')",
        "REPLACE INTO rel.person VALUES (1, 'ada', 2, 77, 77, 0)",
    ),
    "many rows at once": (
        "UPDATE rel.person SET boss_id = 1, unused = 1",
        "UPDATE rel.payment SET amount = amount + 1, person_id = 1",
        "UPDATE rel.person_tag SET tag_id = 1",
        "UPDATE rel.category SET name = CONCAT(name, '.'), parent_id = 1",
        "UPDATE rel.ticket SET hall = 1, row_no = 2",
        "UPDATE rel.book SET author = 'ADA'",
    ),
}
Row = dict[str, Any]
Shown = dict[str, dict[str, Any]]  # view -> key -> content


@dataclass(slots=True)
class RelatedWorld:
    """The servers."""

    server: Server
    redis_server: Server

    def make(self) -> None:
        """Tables and rows as they are at first; empty stores."""
        for name in ("viewtail", "rel", "rel_too"):
            self.do(f"DROP DATABASE IF EXISTS {name}")
        for name in ("rel", "rel_too"):
            self.do(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        for statement in f"{TABLES}{ROWS}".strip().removesuffix(";").split(";\n"):
            self.do(statement)
        redis.Redis(port=self.redis_server.port).flushall()

    def do(self, statement: str) -> None:
        ask(self.server, statement)

    def expected(self) -> Shown:
        """What each view must hold."""
        return self._asked(_Model.views)

    def people(self) -> dict[str, Row]:
        """What the view `person` must hold."""
        return self._asked(_Model.people)

    def _asked(self, what: Callable[[_Model], Shown]) -> Shown:
        connection: Any = pymysql.connect(
            host="127.0.0.1",
            port=self.server.port,
            user="root",
            autocommit=True,
            charset="utf8mb4",
            cursorclass=pymysql.cursors.DictCursor,
        )
        try:
            return what(_Model(connection.cursor()))
        finally:
            connection.close()

    def actual(self) -> Shown:
        """What each view holds."""
        client = redis.Redis(port=self.redis_server.port)
        shown: Shown = {name: {} for name in ("person", "paid", *_KEPT)}
        for key in client.scan_iter(count=1000):
            name, _, rendered = key.decode().partition(":")
            if name in shown:
                if name == "paid":
                    answer: Any = client.hgetall(key)
                    content = {field.decode(): value.decode() for field, value in answer.items()}
                else:
                    text: Any = client.get(key)
                    content = json.loads(text)
                content.pop("_version")
                shown[name][rendered] = content
        client.close()
        rows = ask(self.server, "SELECT id, country, paid FROM viewtail.person_paid")
        shown["person_paid"] = {
            str(i): [country, _value(paid)] for i, country, paid in rows if (country, paid) != (None, None)
        }
        return shown

    def is_equal(self) -> bool:
        """Whether all views hold what they must; fails with what differs."""
        expected, actual = self.expected(), self.actual()
        for view, wanted in expected.items():
            for key in wanted.keys() | actual[view].keys():
                told = f"{view} {key}: should be {wanted.get(key)}, is {actual[view].get(key)}"
                assert wanted.get(key) == actual[view].get(key), told
        return True


class _Model:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def views(self) -> Shown:
        documents = self.people()
        shown: Shown = {
            "person": documents,
            "paid": {key: _hash(document) for key, document in documents.items()},
            "person_paid": {key: paid for key, row in documents.items() if (paid := _paid(row)) != [None, None]},
        }
        for name, (table, key, document) in _KEPT.items():
            rows = self.rows(f"SELECT * FROM rel.{table}")
            shown[name] = {":".join(str(row[column]) for column in key): document(self, row) for row in rows}
        return shown

    def people(self) -> dict[str, Row]:
        return {str(row["id"]): self.person(row) for row in self.rows("SELECT * FROM rel.person")}

    def rows(self, statement: str, *values: Any) -> list[Row]:
        self._cursor.execute(statement, values)
        return [{name: _value(value) for name, value in row.items()} for row in self._cursor.fetchall()]

    def one(self, statement: str, *values: Any) -> Row | None:
        found = self.rows(statement, *values)
        assert len(found) < 2
        return found[0] if found else None

    def person(self, row: Row) -> Row:
        i = row["id"]
        numbers = self.one(
            "SELECT COUNT(*) AS payment_count, SUM(amount) AS paid, SUM(big) AS counted, MIN(at) AS first_at, "
            "MAX(amount) AS most, SUM(CASE WHEN kind = 'cash' AND amount > 0 OR kind IS NULL THEN amount END) AS cash, "
            "COUNT(CASE WHEN kind IN ('card', 'debit') AND NOT amount < 0 THEN 1 END) AS cards "
            "FROM rel.payment WHERE person_id = %s",
            i,
        )
        assert numbers is not None
        boss = self.one("SELECT id, name, boss_id FROM rel.person WHERE id = %s", row["boss_id"])
        if boss is not None:
            boss["boss"] = self.one("SELECT id, name FROM rel.person WHERE id = %s", boss.pop("boss_id"))
        tags = self.rows(
            "SELECT t.id, t.name, (SELECT COUNT(*) FROM rel.person_tag y WHERE y.tag_id = t.id) AS used "
            "FROM rel.person_tag x JOIN rel.tag t ON t.id = x.tag_id WHERE x.person_id = %s ORDER BY t.id",
            i,
        )
        return {
            "id": i,
            "name": row["name"],
            "billing": self.address(row["billing_id"]),
            "shipping": self.address(row["shipping_id"]),
            "boss": boss,
            "staff": self.rows("SELECT id, name FROM rel.person WHERE boss_id = %s ORDER BY name DESC, id", i),
            "tags": tags,
            "notes": self.rows("SELECT id, text FROM rel_too.note WHERE person_id = %s ORDER BY id", i),
            "payments": self.rows(
                "SELECT id, amount, at FROM rel.payment WHERE person_id = %s ORDER BY at DESC, kind, id", i
            ),
            **numbers,
        }

    def address(self, i: int | None) -> Row | None:
        address = self.one("SELECT * FROM rel.address WHERE id = %s", i)
        if address is not None:
            address["country"] = self.one("SELECT id, name FROM rel.country WHERE id = %s", address.pop("country_id"))
        return address

    def category(self, row: Row, depth: int = 3) -> Row:
        parent = self.one("SELECT * FROM rel.category WHERE id = %s", row["parent_id"])
        if depth and parent is not None:
            parent = {"id": parent["id"], "name": parent["name"], **self.category(parent, depth - 1)}
            parent.pop("of", None)
        return {"parent": parent} if depth else {}

    def categories(self, row: Row) -> Row:
        return {"id": row["id"], **self.category(row)}

    def ticket(self, row: Row) -> Row:
        seat = self.one("SELECT * FROM rel.seat WHERE hall = %s AND row_no = %s", row["hall"], row["row_no"])
        return {"id": row["id"], "seat": seat}

    def seat(self, row: Row) -> Row:
        of = (row["hall"], row["row_no"])
        tickets = self.rows("SELECT id FROM rel.ticket WHERE hall = %s AND row_no = %s ORDER BY id", *of)
        return {"tickets": tickets, "ticket_count": len(tickets)}

    def price(self, row: Row) -> Row:
        join = "JOIN rel.currency c ON c.code = p.currency_code"
        currency = self.one(f"SELECT c.code, c.name FROM rel.price p {join} WHERE p.id = %s", row["id"])
        return {"id": row["id"], "currency": currency}

    def author(self, row: Row) -> Row:
        join = "JOIN rel.book b ON b.author = a.name"
        books = self.rows(f"SELECT b.id, b.title FROM rel.author a {join} WHERE a.name = %s ORDER BY b.id", row["name"])
        return {"name": row["name"], "books": books, "book_count": len(books)}

    def thing(self, row: Row) -> Row:
        def joined(columns: str, table: str, key: str, of: str) -> Row | None:
            join = f"JOIN rel.{table} x ON x.{key} = t.{of}"
            return self.one(f"SELECT {columns} FROM rel.thing t {join} WHERE t.id = %s", row["id"])

        owner = joined("x.about", "owner", "id", "owner")
        return {
            "id": row["id"],
            "day": joined("x.*", "day", "d", "d"),
            "slot": joined("x.*", "slot", "at", "at"),
            "whose": owner and owner["about"],
            "stage": joined("x.*", "step", "at", "step"),
        }


_KEPT: dict[str, tuple[str, tuple[str, ...], Callable[[_Model, Row], Row]]] = {
    "category": ("category", ("id",), _Model.categories),
    "ticket": ("ticket", ("id",), _Model.ticket),
    "seat": ("seat", ("hall", "row_no"), _Model.seat),
    "price": ("price", ("id",), _Model.price),
    "author": ("author", ("name",), _Model.author),
    "thing": ("thing", ("id",), _Model.thing),
}


def _value(value: Any) -> Any:
    """As docs/types.md has it in JSON; fractions of a second as the columns here have them."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.isoformat(" ", "milliseconds")
    if isinstance(value, date):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _paid(document: Mapping[str, Any]) -> list[Any]:
    billing = document["billing"]
    return [billing and billing["country"] and billing["country"]["name"], document["paid"]]


def _hash(document: Mapping[str, Any]) -> dict[str, str]:
    names = ("name", "payment_count", "paid", "first_at")
    return {name: str(document[name]) for name in names if document[name] is not None}
