"""A small world for convergence tests: canonical tables, views over them, random writers.

What the views must hold is computed here from plain SELECTs, in the most straightforward way, and read back from the
stores raw. Nothing of viewtail is imported: a mistake of its own cannot excuse itself here.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql
import redis

from stack import Server
from tests.support.indices import Indices
from tests.support.watcher import Watched
from tests.support.writing import RandomWriters

VIEWS = """
from viewtail import Entity, IndexTable, RedisHash, RedisJson, RedisSet, SearchIndex

user = Entity("conv.user")
pair = Entity("conv.pair")
cell = Entity("conv.cell", key=("row_key", "col"), version="ref", append_only=True)


def document(row):
    return {"email": row["email"], "n": row["n"], "tag": (row["email"] or "")[:3]}


def is_even(row):
    return row["n"] % 2 == 0


views = [
    IndexTable("ix_email", user, value="email"),
    IndexTable("ix_even", user, value="n", where=is_even),
    IndexTable("ix_pair", pair, value=["v", "w"]),
    RedisHash("user", user, fields=["email", "n"]),
    RedisJson("document", user, document=document),
    RedisHash("pair", pair, fields=["v", "w"]),
    RedisHash("cell", cell, fields=["body"]),
    RedisSet("by_n", user, key="n:{n}"),
    SearchIndex("user", user, fields={"email": "keyword", "n": "integer"}),
    SearchIndex("even", user, fields={"email": "keyword", "n": "integer", "tag": "keyword"},
                document=document, where=is_even),
]
"""

TABLES = (
    "CREATE TABLE conv.user (id INT PRIMARY KEY, email VARCHAR(60), n INT NOT NULL)",
    """CREATE TABLE conv.pair (a VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin, b INT, v VARCHAR(30),
       w DECIMAL(10,2), PRIMARY KEY (a, b))""",
    """CREATE TABLE conv.cell (added BIGINT AUTO_INCREMENT PRIMARY KEY, row_key VARCHAR(20) NOT NULL,
       col VARCHAR(10) NOT NULL, ref BIGINT NOT NULL, body VARCHAR(100))""",
    "CREATE TABLE conv.unfollowed (id INT PRIMARY KEY, v VECTOR(3), g GEOMETRY)",
)
SEARCH_INDICES = ("user", "even")
Content = Mapping[str, Mapping[Any, Any]]  # view -> key -> what it shows


@dataclass(slots=True, kw_only=True)
class World:
    """The servers, and how to look into them."""

    mysql: Server
    redis: Server
    elasticsearch: Server

    @property
    def indices(self) -> Indices:
        return Indices(self.elasticsearch)

    @property
    def watched(self) -> Watched:
        return Watched("viewtail.ix_email", "user", lambda ids: self.indices.stored("user", ids))

    def connect(self) -> Any:
        return pymysql.connect(host="127.0.0.1", port=self.mysql.port, user="root", autocommit=False)

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """One transaction, closed whatever happens: one left open would keep its tables from being dropped."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                yield cursor
            connection.commit()
        finally:
            connection.close()

    def make(self, users: int) -> None:
        """Begin anew: empty stores, `users` rows in conv.user."""
        with self.cursor() as cursor:
            cursor.execute("SET lock_wait_timeout = 20")
            for database in ("conv", "viewtail"):
                cursor.execute(f"DROP DATABASE IF EXISTS {database}")
            cursor.execute("CREATE DATABASE conv")
            for table in TABLES:
                cursor.execute(table)
            for at in range(0, users, 500):
                rows = ",".join(f"({i},'e{i}',{i})" for i in range(at, min(users, at + 500)))
                cursor.execute(f"INSERT INTO conv.user VALUES {rows}")
        redis.Redis(port=self.redis.port).flushall()
        self.indices.drop(SEARCH_INDICES)

    def search(self, method: str, path: str, body: Any = None) -> Any:
        return self.indices.ask(method, path, body)

    # -- what must be, and what is ------------------------------------------------------------------------------

    def expected(self) -> Content:
        with self.cursor() as cursor:
            cursor.execute("SELECT id, email, n FROM conv.user")
            users = cursor.fetchall()
            cursor.execute("SELECT a, b, v, w FROM conv.pair")
            pairs = cursor.fetchall()
            cursor.execute("SELECT row_key, col, body FROM conv.cell ORDER BY ref")
            cells = {(row, col): body for row, col, body in cursor.fetchall()}
        by_n: dict[int, set[str]] = {}
        for i, _, n in users:
            by_n.setdefault(n, set()).add(str(i))
        return {
            "mysql:ix_email": {(i,): (email,) for i, email, _ in users if email is not None},
            "mysql:ix_even": {(i,): (n,) for i, _, n in users if n % 2 == 0},
            "mysql:ix_pair": {(a, b): (v, w) for a, b, v, w in pairs},
            "redis:user": {f"user:{i}": fields(email=email, n=n) for i, email, n in users},
            "redis:document": {f"document:{i}": document(email, n) for i, email, n in users},
            "redis:pair": {f"pair:{escaped(a)}:{b}": fields(v=v, w=w) for a, b, v, w in pairs},
            "redis:cell": {f"cell:{a}:{b}": fields(body=body) for (a, b), body in cells.items()},
            "redis:n": {f"n:{n}": ids for n, ids in by_n.items()},
            "elasticsearch:user": {str(i): columns(email=email, n=n) for i, email, n in users},
            "elasticsearch:even": {str(i): document(email, n) for i, email, n in users if n % 2 == 0},
        }

    def actual(self, stores: Iterable[str] = ("mysql", "redis", "elasticsearch")) -> Content:
        look = {
            "mysql": self._index_tables,
            "redis": self._redis_keys,
            "elasticsearch": lambda: self.indices.contents(SEARCH_INDICES),
        }
        return {view: content for store in stores for view, content in look[store]().items()}

    def _index_tables(self) -> dict[str, dict[Any, Any]]:
        found: dict[str, dict[Any, Any]] = {}
        with self.cursor() as cursor:
            for name, keys in (("ix_email", 1), ("ix_even", 1), ("ix_pair", 2)):
                cursor.execute(f"SELECT * FROM viewtail.{name}")
                rows = cursor.fetchall()
                found[f"mysql:{name}"] = {
                    row[:keys]: row[keys:-1] for row in rows if any(value is not None for value in row[keys:-1])
                }
        return found

    def _redis_keys(self) -> dict[str, dict[Any, Any]]:
        found: dict[str, dict[Any, Any]] = {f"redis:{name}": {} for name in ("user", "document", "pair", "cell", "n")}
        client = redis.Redis(port=self.redis.port)
        names = {raw: raw.decode().partition(":")[0] for raw in client.scan_iter(count=5000)}
        keys = [raw for raw in names if f"redis:{names[raw]}" in found]  # no tombstones, no witness
        with client.pipeline(transaction=False) as look:
            for raw in keys:
                {"document": look.get, "n": look.smembers}.get(names[raw], look.hgetall)(raw)
            answers: list[Any] = look.execute()
        client.close()
        for raw, answer in zip(keys, answers, strict=True):
            if names[raw] == "n":
                found["redis:n"][raw.decode()] = {member.decode() for member in answer}
                continue
            if names[raw] == "document":
                content = json.loads(answer) if answer else {}
            else:
                content = {field.decode(): value.decode() for field, value in answer.items()}
            assert len(content.pop("_version")) == 19
            found[f"redis:{names[raw]}"][raw.decode()] = content
        return found


def differences(expected: Content, actual: Content) -> dict[str, list[str]]:
    """Per view that differs: what should be and what is, of up to five keys."""
    told: dict[str, list[str]] = {}
    for view, wanted in expected.items():
        found = actual.get(view, {})
        if wanted != found:
            keys = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
            told[view] = [f"{key}: should be {wanted.get(key)}, is {found.get(key)}" for key in keys[:5]]
    return told


def fields(**values: Any) -> dict[str, str]:
    """Of a hash; a NULL is an absent one."""
    return {name: str(value) for name, value in values.items() if value is not None}


def columns(**values: Any) -> dict[str, Any]:
    """Of a search document; a NULL is an absent one."""
    return {name: value for name, value in values.items() if value is not None}


def document(email: str | None, n: int) -> dict[str, Any]:
    """What the function of that name in VIEWS makes of a row."""
    return {"email": email, "n": n, "tag": (email or "")[:3]}


def escaped(text: str) -> str:
    """As in a rendered key."""
    for character, code in (("%", "%25"), ("{", "%7B"), ("}", "%7D"), (":", "%3A")):
        text = text.replace(character, code)
    return text


class Writers(RandomWriters):
    """Changes of all canonical tables."""

    def __init__(self, world: World, seed: int, threads: int = 4) -> None:
        super().__init__(world.connect, seed, threads)
        self._next_ref = 0
        self._lock = threading.Lock()

    def _change(self, chance: random.Random, execute: Callable[..., Any], at: int) -> None:  # noqa: C901
        i, kind = chance.randrange(4000), chance.random()
        if kind < 0.25:
            execute(
                "INSERT INTO conv.user VALUES (%s, %s, %s) AS new "
                "ON DUPLICATE KEY UPDATE email = new.email, n = user.n + 1",
                (i, f"e{chance.randrange(999)}", chance.randrange(99)),
            )
        elif kind < 0.4:
            email = chance.choice((None, f"ü{i}", f"x{i}"))
            execute("UPDATE conv.user SET email = %s, n = n + 1 WHERE id = %s", (email, i))
        elif kind < 0.5:
            execute("DELETE FROM conv.user WHERE id = %s", (i,))
        elif kind < 0.55:
            execute("UPDATE IGNORE conv.user SET id = %s WHERE id = %s", (chance.randrange(4000), i))
        elif kind < 0.6:
            execute("REPLACE INTO conv.user VALUES (%s, 'replaced', %s)", (i, chance.randrange(9)))
        elif kind < 0.62:
            execute("UPDATE conv.user SET n = n + 1 WHERE id BETWEEN %s AND %s", (i, i + 50))
        elif kind < 0.63:
            execute("UPDATE conv.user SET id = id + 1 WHERE id > 3900 ORDER BY id DESC")
        elif kind < 0.75:
            a = chance.choice(("abc", "ABC", "é:{}%", "x"))
            execute(
                "REPLACE INTO conv.pair VALUES (%s, %s, %s, %s)",
                (a, chance.randrange(40), f"v{chance.randrange(9)}", chance.randrange(1000) / 100),
            )
        elif kind < 0.8:
            execute("DELETE FROM conv.pair WHERE b = %s", (chance.randrange(40),))
        elif kind < 0.82:
            execute("UPDATE IGNORE conv.pair SET a = 'ABC' WHERE a = 'abc' AND b = %s", (chance.randrange(40),))
        elif kind < 0.83:
            execute("REPLACE INTO conv.unfollowed VALUES (%s, TO_VECTOR('[1,2,3]'), POINT(1, 2))", (i,))
        else:
            with self._lock:
                self._next_ref += 1
                ref = self._next_ref
            execute(
                "INSERT INTO conv.cell (row_key, col, ref, body) VALUES (%s, %s, %s, %s)",
                (f"r{chance.randrange(300)}", chance.choice("ab"), ref, f"body {ref}"),
            )
