"""A view of one table in each store: what readers find, what the copy beside holds, and how to damage it.

Everything is read raw; nothing of viewtail is imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from stack import Server
from tests.support.indices import Indices
from tests.support.running import Run, addresses, running, wait_for

STORES = [
    pytest.param("mysql", marks=pytest.mark.mysql),
    pytest.param("redis", marks=pytest.mark.redis),
    pytest.param("elasticsearch", marks=pytest.mark.elasticsearch),
]

LISTS = pytest.param("list", marks=pytest.mark.mysql)  # an index table over a list: two tables
TABLES = pytest.param("table", marks=pytest.mark.mysql)  # a whole table: its tombstones are in a second one

VIEWS = {
    "mysql": 'IndexTable("people", Entity("shop.user"), value="email")',
    "table": 'MySQLTable("people", Entity("shop.user"), columns=["id", "email"], indexes={"email_idx": ["email"]})',
    "list": 'IndexTable("people", Entity("shop.user"), value="tags", each="VARCHAR(60)")',
    "redis": 'RedisHash("people", Entity("shop.user"), fields=["email"])',
    "generations": 'RedisHash("people", Entity("shop.user"), fields=["email"], key="people:{generation}:{id}")',
    "sets": 'RedisSortedSet("people", Entity("shop.user"), key="of:{email}", score="id")',
    "elasticsearch": 'SearchIndex("people", Entity("shop.user"), fields={"email": "keyword"})',
}
Rows = dict[int, str]


def declared(*stores: str) -> str:
    """A views.py with the views of these stores."""
    views = ", ".join(VIEWS[store] for store in stores)
    classes = "Entity, IndexTable, MySQLTable, RedisHash, RedisSortedSet, SearchIndex"
    return f"from viewtail import {classes}\nviews = [{views}]\n"


class Shop:
    """The table shop.user, with so many rows."""

    def __init__(self, server: Server, rows: int) -> None:
        self.server = server
        self.execute(
            "SET lock_wait_timeout = 20",
            "DROP DATABASE IF EXISTS shop",
            "DROP DATABASE IF EXISTS viewtail",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.user (id INT PRIMARY KEY, email VARCHAR(60), n INT NOT NULL DEFAULT 0)",
            "INSERT INTO shop.user (id, email) VALUES " + ",".join(f"({i}, 'e{i}')" for i in range(rows)),
        )

    def connect(self) -> Any:
        return pymysql.connect(host="127.0.0.1", port=self.server.port, user="root", autocommit=True)

    def execute(self, *statements: str) -> None:
        connection = self.connect()
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        connection = self.connect()
        with connection.cursor() as cursor:
            cursor.execute(query)
            found = list(cursor.fetchall())
        connection.close()
        return found

    def wanted(self) -> Rows:
        return dict(self.rows("SELECT id, email FROM shop.user WHERE email IS NOT NULL"))

    def states(self) -> dict[str, str]:
        return dict(self.rows("SELECT name, state FROM viewtail.view"))


class Place:
    """The view of one store."""

    store: str

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    def shown(self) -> Rows:
        """What readers find."""
        raise NotImplementedError

    def copy(self, number: int) -> Rows:
        """What the copy of that number holds, which lies beside the live one."""
        raise NotImplementedError

    def copies(self) -> set[int]:
        """The numbers of the copies of which anything is there, beside the live one."""
        raise NotImplementedError

    def damage(self, key: int, email: str) -> None:
        """Write behind viewtail's back."""
        raise NotImplementedError

    def spoil(self, number: int, key: int) -> None:
        """Have the copy of that number, beside the live one, hold 'wrong' for a key, at the version that it has."""
        raise NotImplementedError

    def clear(self) -> None:
        """Nothing of it stays."""

    def one(self, key: int) -> Callable[[], str | None]:
        """A reader of one key, over a connection that stays; None where the view does not show it."""
        raise NotImplementedError


class Table(Place):
    """In MySQL."""

    store = "mysql"

    def shown(self) -> Rows:
        return self._read("people")

    def copy(self, number: int) -> Rows:
        return self._read(f"people__viewtail_{number}")

    def _read(self, table: str) -> Rows:
        return dict(self.shop.rows(f"SELECT id, email FROM viewtail.{table} WHERE email IS NOT NULL"))

    def copies(self) -> set[int]:
        names = self.shop.rows("SHOW TABLES FROM viewtail LIKE 'people\\_\\_viewtail\\_%'")
        return {int(name.rpartition("_")[2]) for (name,) in names}

    def damage(self, key: int, email: str) -> None:
        self.shop.execute(
            f"INSERT INTO viewtail.people VALUES ({key}, '{email}', 5) ON DUPLICATE KEY UPDATE email = '{email}'"
        )

    def spoil(self, number: int, key: int) -> None:
        self.shop.execute(f"UPDATE viewtail.people__viewtail_{number} SET email = 'wrong' WHERE id = {key}")

    def one(self, key: int) -> Callable[[], str | None]:
        cursor = self.shop.connect().cursor()

        def read() -> str | None:
            cursor.execute(f"SELECT email FROM viewtail.people WHERE id = {key}")
            row = cursor.fetchone()
            return None if row is None else row[0]

        return read


class Whole(Table):
    """In MySQL, with all columns of its table."""

    def damage(self, key: int, email: str) -> None:
        self.shop.execute(
            f"INSERT INTO viewtail.people (id, email, viewtail_version) VALUES ({key}, '{email}', 5) "
            f"ON DUPLICATE KEY UPDATE email = '{email}', viewtail_version = 5"
        )

    def copies(self) -> set[int]:
        names = {name for (name,) in self.shop.rows("SHOW TABLES FROM viewtail LIKE 'people%'")}
        first, second = ({name.removeprefix(of) for name in names if name.startswith(of)} for of in _BESIDE)
        assert first == second, "a copy has two tables"
        return set(map(int, first))


class Lists(Table):
    """In MySQL, a list an entity: its email, and `all`. Whoever reads finds both tables of one copy."""

    def __init__(self, shop: Shop) -> None:
        super().__init__(shop)
        of_email = "IF(email IS NULL, NULL, JSON_ARRAY(email, 'all'))"
        shop.execute(f"ALTER TABLE shop.user ADD tags JSON AS ({of_email}) STORED")

    def shown(self) -> Rows:
        return self._read("")

    def copy(self, number: int) -> Rows:
        return self._read(f"__viewtail_{number}")

    def _read(self, behind: str) -> Rows:
        found = self.shop.rows(
            f"SELECT id, tags, NULL FROM viewtail.people{behind} "
            f"UNION ALL SELECT id, NULL, tags FROM viewtail.people__version{behind} WHERE tags IS NOT NULL"
        )
        values = {(key, value) for key, value, listed in found if listed is None}
        listed = {(key, one) for key, _, listed in found if listed is not None for one in json.loads(listed)}
        assert values == listed, f"the tables are not of one copy: {sorted(values ^ listed)[:5]}"
        return {key: value for key, value in values if value != "all"}

    def copies(self) -> set[int]:
        names = {name for (name,) in self.shop.rows("SHOW TABLES FROM viewtail LIKE 'people%'")}
        first, second = ({name.removeprefix(of) for name in names if name.startswith(of)} for of in _BESIDE)
        assert first == second, "a copy has two tables"
        return set(map(int, first))

    def damage(self, key: int, email: str) -> None:
        self.shop.execute(
            "BEGIN",  # readers find both tables of one state
            f"DELETE FROM viewtail.people WHERE id = {key}",
            f"INSERT INTO viewtail.people (id, tags) VALUES ({key}, 'all'), ({key}, '{email}')",
            "INSERT INTO viewtail.people__version (id, tags, version) "
            f"""VALUES ({key}, '["all", "{email}"]', 5) AS new ON DUPLICATE KEY UPDATE tags = new.tags""",
            "COMMIT",
        )

    def one(self, key: int) -> Callable[[], str | None]:
        cursor = self.shop.connect().cursor()

        def read() -> str | None:
            cursor.execute(f"SELECT tags FROM viewtail.people WHERE id = {key} AND tags <> 'all'")
            row = cursor.fetchone()
            return None if row is None else row[0]

        return read


_BESIDE = ("people__viewtail_", "people__version__viewtail_")


class Keys(Place):
    """In Redis."""

    store = "redis"

    def __init__(self, shop: Shop, server: Server) -> None:
        super().__init__(shop)
        self.client = redis.Redis(port=server.port)

    def clear(self) -> None:
        self.client.flushall()

    def shown(self) -> Rows:
        return self._read("people:*", lambda name: name.removeprefix("people:"))

    def copy(self, number: int) -> Rows:
        behind = f"}}:{number}"
        return self._read(f"{{people:*{behind}", lambda name: name.removeprefix("{people:").removesuffix(behind))

    def _read(self, match: str, key_of: Callable[[str], str]) -> Rows:
        names = list(self.client.scan_iter(match=match, count=5000))
        with self.client.pipeline(transaction=False) as asked:
            for name in names:
                asked.hget(name, "email")
            found = asked.execute()
        return {int(key_of(name.decode())): email.decode() for name, email in zip(names, found, strict=True) if email}

    def copies(self) -> set[int]:
        names = [name.decode() for name in self.client.scan_iter(match="{people:*", count=5000)]
        numbers = [name.rpartition(":")[2].rstrip("t") for name in names]
        return {int(number) for number in numbers if number}

    def damage(self, key: int, email: str) -> None:
        self.client.hset(f"people:{key}", mapping={"email": email, "_version": f"{5:019d}"})

    def spoil(self, number: int, key: int) -> None:
        self.client.hset(f"{{people:{key}}}:{number}", "email", "wrong")

    def one(self, key: int) -> Callable[[], str | None]:
        def read() -> str | None:
            found: Any = self.client.hget(f"people:{key}", "email")
            return None if found is None else found.decode()

        return read


class Generations(Keys):
    """In Redis, with the number of its copy in each key."""

    def pointer(self) -> int:
        """The number that readers put into keys."""
        found: Any = self.client.get("people:generation")
        return int(found)

    def shown(self) -> Rows:
        return self.copy(self.pointer())

    def copy(self, number: int) -> Rows:
        before = f"people:{number}:"
        return self._read(f"{before}*", lambda name: name.removeprefix(before))

    def copies(self) -> set[int]:
        names = [name.decode().lstrip("{") for name in self.client.scan_iter(match="*people:*:*", count=5000)]
        return {int(name.split(":")[1]) for name in names} - {self.pointer()}

    def damage(self, key: int, email: str) -> None:
        name = f"people:{self.pointer()}:{key}"
        self.client.hset(name, mapping={"email": email, "_version": f"{5:019d}"})

    def one(self, key: int) -> Callable[[], str | None]:
        """As docs/views.md says: the pointer and the key at once, and again where the pointer has moved."""
        number = self.pointer()

        def read() -> str | None:
            nonlocal number
            while True:
                with self.client.pipeline(transaction=True) as asked:
                    asked.get("people:generation")
                    asked.hget(f"people:{number}:{key}", "email")
                    now, found = asked.execute()
                if int(now) == number:
                    return None if found is None else found.decode()
                number = int(now)

        return read


_ALL_SETS = """
local found = {}
for _, name in ipairs(redis.call('KEYS', 'of:*')) do
  found[#found + 1] = {name, redis.call('ZRANGE', name, 0, -1, 'WITHSCORES')}
end
return found
"""


class Sets(Keys):
    """In Redis: each email is a sorted set of the users with it."""

    def shown(self) -> Rows:
        """All sets as of one moment: a user that changes sets is in one of them."""
        found: Rows = {}
        sets: Any = self.client.eval(_ALL_SETS, 0)  # type: ignore[no-untyped-call]
        for name, members in sets:
            for member, score in zip(members[::2], members[1::2], strict=True):
                assert int(member) == float(score) and int(member) not in found, "it is in one set, with its score"
                found[int(member)] = name.decode().removeprefix("of:").replace("%20", " ")
        return found

    def copy(self, number: int) -> Rows:
        behind = f"}}:{number}"
        names = list(self.client.scan_iter(match=f"{{people:*{behind}", count=5000))
        with self.client.pipeline(transaction=False) as asked:
            for name in names:
                asked.hmget(name, "set", "member", "in")
            rows = [row for row in asked.execute() if row[2] is not None]
        assert all(float(member) == float(score) for _, member, score in rows)
        return {int(member): name.decode().removeprefix("of:").replace("%20", " ") for name, member, _ in rows}

    def damage(self, key: int, email: str) -> None:
        place = f"people:{key}"
        former: Any = self.client.hget(place, "set")
        if former is not None:
            self.client.zrem(former, str(key))
        self.client.zadd(f"of:{email}", {str(key): key})
        self.client.hset(place, mapping={"set": f"of:{email}", "member": str(key), "_version": f"{5:019d}"})


class Documents(Place):
    """In Elasticsearch."""

    store = "elasticsearch"

    def __init__(self, shop: Shop, server: Server) -> None:
        super().__init__(shop)
        self._indices = Indices(server)

    def clear(self) -> None:
        for index in self._names():
            self._indices.ask("DELETE", f"/{index}")

    def _names(self) -> list[str]:
        found = self._indices.ask("GET", "/_cat/indices?format=json")
        return [one["index"] for one in found if one["index"].endswith("-people")]

    def shown(self) -> Rows:
        return self._read("people")

    def copy(self, number: int) -> Rows:
        return self._read("viewtail-people" if number == 1 else f"viewtail.{number}-people")

    def _read(self, name: str) -> Rows:
        self._indices.ask("POST", f"/{name}/_refresh")
        hits = self._indices.ask("GET", f"/{name}/_search?size=10000")["hits"]["hits"]
        return {int(hit["_id"]): hit["_source"]["email"] for hit in hits if "email" in hit["_source"]}

    def copies(self) -> set[int]:
        live = set(self._indices.ask("GET", "/people"))
        numbers = [
            index.removesuffix("-people").removeprefix("viewtail") for index in self._names() if index not in live
        ]
        return {int(number.lstrip(".") or 1) for number in numbers}

    def damage(self, key: int, email: str) -> None:
        (index,) = self._indices.ask("GET", "/people")
        self._write(index, key, email)

    def spoil(self, number: int, key: int) -> None:
        self._write(f"viewtail.{number}-people", key, "wrong")

    def _write(self, index: str, key: int, email: str) -> None:
        (found,) = self._indices.ask("POST", f"/{index}/_mget", {"ids": [str(key)]})["docs"]
        target = f"/{index}/_doc/{key}?version_type=external_gte&version={found.get('_version', 5)}"
        self._indices.ask("PUT", target, {"email": email})

    def one(self, key: int) -> Callable[[], str | None]:
        def read() -> str | None:
            found = self._indices.ask("GET", f"/people/_doc/{key}")
            return found["_source"].get("email")

        return read


IN_REDIS: dict[str, type[Keys]] = {"redis": Keys, "generations": Generations, "sets": Sets}


def placed(request: pytest.FixtureRequest, store: str, shop: Shop) -> tuple[Place, dict[str, str]]:
    """The view of a store, and the addresses of the servers."""
    if store == "mysql":
        return Table(shop), addresses(shop.server)
    if store == "table":
        return Whole(shop), addresses(shop.server)
    if store == "list":
        return Lists(shop), addresses(shop.server)
    if store in IN_REDIS:
        redis_server: Server = request.getfixturevalue("redis_server")
        return IN_REDIS[store](shop, redis_server), addresses(shop.server, redis=redis_server)
    server: Server = request.getfixturevalue(f"{store}_server")
    return Documents(shop, server), addresses(shop.server, elasticsearch=server)


@contextmanager
def kept(request: pytest.FixtureRequest, store: str, shop: Shop, folder: Path) -> Iterator[tuple[Place, Run]]:
    """The view of a store, filled, under a running viewtail."""
    place, at = placed(request, store, shop)
    place.clear()
    with running(folder, declared(store), at) as run:
        wait_for("the view shows its table", lambda: place.shown() == shop.wanted())
        wait_for("it is filled, so nothing writes it again", lambda: {*shop.states().values()} == {"filled"})
        wait_for("all is well", run.is_well)
        yield place, run
        assert run.stop() == 0
    place.clear()


def rebuilt(run: Run, *options: str) -> dict[str, object]:
    """What `viewtail rebuild people` says."""
    done = run.command("rebuild", "people", "--json", *options)
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told
