"""Tables of tenants that come and go, views over them in every store, random writers, and a reader that looks on.

Each row says what it is: whoever writes it gives it a number that is above all before, and a text made of its key and
that number. The changes of one account come one after another, whether they change its rows or its table. So a reader
knows which of two states is the older one, and a row that was never written. Nothing of viewtail is imported: a mistake
of its own cannot excuse itself here.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError

import pymysql
import redis

from stack import Server
from tests.support import binlog_truth
from tests.support.indices import Indices
from tests.support.watcher import Reader
from tests.support.world import Content
from tests.support.writing import RandomWriters

VIEWS = """
from viewtail import Entity, IndexTable, MySQLTable, RedisHash, SearchIndex

invoice = Entity("app.org{account_id:int}_invoice", key=["account_id", "allowed_id"])
member = Entity("tenant_{tenant}.user")


def is_even(row):
    return row["n"] % 2 == 0


views = [
    IndexTable("tn_number", invoice, value=["number", "n"]),
    IndexTable("tn_even", invoice, value=["number", "n"], where=is_even),
    IndexTable("tn_email", member, value=["number", "n"]),
    MySQLTable("tn_whole", invoice, columns=["account_id", "allowed_id", "number", "n"],
               indexes={"allowed_idx": ["allowed_id", "account_id"]}),
    RedisHash("tn_invoice", invoice, fields=["number", "n"]),
    RedisHash("tn_member", member, fields=["number", "n"]),
]
searches = [SearchIndex("tn_invoice", invoice, fields={"number": "keyword", "n": "long"})]
"""
WITH_SEARCH = VIEWS + "\nviews += searches\n"

ACCOUNTS, IDS = 12, 30
TENANTS = ("a", "b", "c")
NUMBER = "number VARCHAR(40) NOT NULL, n BIGINT NOT NULL"
INVOICE = f"(allowed_id BIGINT UNSIGNED PRIMARY KEY, {NUMBER}, note VARCHAR(20))"
USER = f"(id INT PRIMARY KEY, {NUMBER})"
LONGER = "w" * 40  # behind the text of a row whose table was widened
INDEX = "tn_invoice"  # of Elasticsearch
Place = tuple[str, int]  # a file of the binlog, and a position in it
Floor = Mapping[tuple["Holder", int], int]  # by key, the least number that a later row may have
Holder = int | str  # an account, or a tenant with a schema of its own


def text_of(holder: Holder, row: int, n: int) -> str:
    return f"{holder}-{row}-{n}"


def is_text_of(text: str, holder: Holder, row: int, n: int) -> bool:
    """The empty one is that of a column which was dropped and came back."""
    return not text or text.removesuffix(LONGER) == text_of(holder, row, n)


def table_of(holder: Holder) -> str:
    return f"app.org{holder}_invoice" if isinstance(holder, int) else f"tenant_{holder}.user"


@dataclass(slots=True, kw_only=True)
class TenantWorld:
    """The servers, and how to look into them."""

    mysql: Server
    redis: Server
    elasticsearch: Server | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _locks: Mapping[Holder, threading.RLock] = field(
        default_factory=lambda: {holder: threading.RLock() for holder in (*range(ACCOUNTS), *TENANTS)}
    )

    def connect(self) -> Any:
        return pymysql.connect(host="127.0.0.1", port=self.mysql.port, user="root", autocommit=False)

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_wait_timeout = 20")
                yield cursor
            connection.commit()
        finally:
            connection.close()

    def number(self) -> int:
        """Above all before; asked for by whoever holds the account."""
        return next(self._numbers)

    @contextmanager
    def held(self, *holders: Holder) -> Iterator[None]:
        """Nobody else changes these meanwhile."""
        with ExitStack() as stack:
            for holder in sorted({*holders}, key=str):
                stack.enter_context(self._locks[holder])
            yield

    def make(self, chance: random.Random, accounts: Iterable[int]) -> None:
        """Begin anew."""
        with self.cursor() as cursor:
            for database in ("viewtail", "app", *(f"tenant_{tenant}" for tenant in TENANTS)):
                cursor.execute(f"DROP DATABASE IF EXISTS {database}")
            cursor.execute("CREATE DATABASE app")
            for account in accounts:
                cursor.execute(f"CREATE TABLE {table_of(account)} {INVOICE}")
                self.insert(cursor, table_of(account), account, chance.sample(range(IDS), 20))
            for tenant in TENANTS[:2]:
                cursor.execute(f"CREATE DATABASE tenant_{tenant}")
                cursor.execute(f"CREATE TABLE {table_of(tenant)} {USER}")
                self.insert(cursor, table_of(tenant), tenant, range(3))
        client = redis.Redis(port=self.redis.port)
        client.flushall()
        client.close()
        if self.elasticsearch is not None:
            Indices(self.elasticsearch).drop_all()

    def insert(self, cursor: Any, table: str, holder: Holder, rows: Iterable[int]) -> None:
        """Rows for the views of `holder`, whatever the table is called now."""
        n = self.number()
        values = ", ".join(f"({row}, '{text_of(holder, row, n)}', {n})" for row in rows)
        if values:
            key = "allowed_id" if isinstance(holder, int) else "id"
            cursor.execute(f"INSERT INTO {table} ({key}, number, n) VALUES {values}")

    def accounts(self, cursor: Any, prefix: str = "org") -> list[int]:
        """Those that have a table; another prefix: tables that wait for a name."""
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'app' "
            f"AND table_name REGEXP '^{prefix}[0-9]+_invoice$'"
        )
        return sorted(int(name[len(prefix) :].partition("_")[0]) for (name,) in cursor.fetchall())

    def tenants(self, cursor: Any) -> list[str]:
        cursor.execute(
            "SELECT table_schema FROM information_schema.tables WHERE table_schema LIKE 'tenant\\_%' "
            "AND table_name = 'user'"
        )
        return sorted(name.removeprefix("tenant_") for (name,) in cursor.fetchall())

    def is_filled(self) -> bool:
        """As viewtail's own table says: asked again and again while nothing else happens."""
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
        return 6 if self.elasticsearch is None else 7

    # -- what must be, and what is ------------------------------------------------------------------------------

    def expected(self) -> Content:
        invoices: dict[tuple[Holder, int], tuple[str, int]] = {}
        members: dict[tuple[Holder, int], tuple[str, int]] = {}
        with self.cursor() as cursor:
            for account in self.accounts(cursor):
                cursor.execute(f"SELECT allowed_id, number, n FROM {table_of(account)}")
                invoices |= {(account, row): (number, n) for row, number, n in cursor.fetchall()}
            for tenant in self.tenants(cursor):
                cursor.execute(f"SELECT id, number, n FROM {table_of(tenant)}")
                members |= {(tenant, row): (number, n) for row, number, n in cursor.fetchall()}
        content = {
            "mysql:tn_number": invoices,
            "mysql:tn_even": {key: row for key, row in invoices.items() if row[1] % 2 == 0},
            "mysql:tn_whole": invoices,
            "mysql:tn_email": members,
            "redis:tn_invoice": invoices,
            "redis:tn_member": members,
        }
        return content if self.elasticsearch is None else {**content, "elasticsearch:tn_invoice": invoices}

    def actual(self) -> Content:
        content: dict[str, dict[Any, Any]] = {}
        with self.cursor() as cursor:
            for view in ("tn_number", "tn_even", "tn_whole", "tn_email"):
                cursor.execute(f"SELECT {_KEYS.get(view, 'account_id, allowed_id')}, number, n FROM viewtail.{view}")
                content[f"mysql:{view}"] = {
                    (holder, row): (number, n) for holder, row, number, n in cursor.fetchall() if n is not None
                }
        client = redis.Redis(port=self.redis.port)
        for view in ("tn_invoice", "tn_member"):
            content[f"redis:{view}"] = _redis_content(client, view)
        client.close()
        if self.elasticsearch is not None:
            content["elasticsearch:tn_invoice"] = self._documents(self.elasticsearch)
        return content

    def _documents(self, server: Server) -> dict[Any, Any]:
        indices = Indices(server)
        indices.ask("POST", f"/{INDEX}/_refresh")
        hits = indices.ask("GET", f"/{INDEX}/_search?size=10000")["hits"]["hits"]
        return {_key_of(hit["_id"]): (hit["_source"]["number"], hit["_source"]["n"]) for hit in hits}


_KEYS = {"tn_email": "tenant, id"}


def _redis_content(client: Any, view: str) -> dict[Any, Any]:
    keys = [*client.scan_iter(match=f"{view}:*", count=5000)]
    with client.pipeline(transaction=False) as look:
        for key in keys:
            look.hmget(key, "number", "n")
        answers: list[Any] = look.execute()
    return {
        _key_of(key.decode().partition(":")[2]): (number.decode(), int(n))
        for key, (number, n) in zip(keys, answers, strict=True)
        if n is not None  # it went between the two looks
    }


def _key_of(text: str) -> tuple[Holder, int]:
    holder, _, row = text.partition(":")
    return (int(holder) if holder.isdecimal() else holder), int(row)


# -- writers -----------------------------------------------------------------------------------------------------


class TenantWriters(RandomWriters):
    """Changes of the rows of every account and tenant; one without a table just now takes none."""

    def __init__(self, world: TenantWorld, seed: int, threads: int = 3) -> None:
        super().__init__(world.connect, seed, threads)
        self._world = world
        self._held: dict[int, Sequence[Holder]] = {}

    def _transact(self, connection: Any, chance: random.Random, at: int) -> None:
        holders: list[Holder] = [*range(ACCOUNTS), *TENANTS]
        self._held[at] = chance.sample(holders, chance.choice((1, 1, 2)))
        with self._world.held(*self._held[at]):
            try:
                super()._transact(connection, chance, at)
            except BaseException:
                connection.rollback()  # before somebody else has them
                raise
        self._stop.wait(0.002)

    def _change(self, chance: random.Random, execute: Callable[..., Any], at: int) -> None:
        holder = chance.choice(self._held[at])
        change = chance.choice(_CHANGES)
        change(self._world, chance, execute, holder)


def _put(world: TenantWorld, chance: random.Random, execute: Callable[..., Any], holder: Holder) -> None:
    key, row, n = _key(holder), chance.randrange(IDS), world.number()
    execute(
        f"INSERT INTO {table_of(holder)} ({key}, number, n) VALUES (%s, %s, %s) AS new "
        "ON DUPLICATE KEY UPDATE number = new.number, n = new.n",
        (row, text_of(holder, row, n), n),
    )


def _put_a_long_one(world: TenantWorld, chance: random.Random, execute: Callable[..., Any], holder: Holder) -> None:
    """Refused unless the table was widened."""
    row, n = chance.randrange(IDS), world.number()
    execute(
        f"REPLACE INTO {table_of(holder)} ({_key(holder)}, number, n) VALUES (%s, %s, %s)",
        (row, text_of(holder, row, n) + LONGER, n),
    )


def _change_many(world: TenantWorld, chance: random.Random, execute: Callable[..., Any], holder: Holder) -> None:
    first, key, n = chance.randrange(IDS), _key(holder), world.number()
    execute(
        f"UPDATE {table_of(holder)} SET number = CONCAT(%s, '-', {key}, '-', %s), n = %s WHERE {key} BETWEEN %s AND %s",
        (str(holder), n, n, first, first + 4),
    )


def _move(world: TenantWorld, chance: random.Random, execute: Callable[..., Any], holder: Holder) -> None:
    row, key, n = chance.randrange(IDS), _key(holder), world.number()
    execute(
        f"UPDATE IGNORE {table_of(holder)} SET {key} = %s, number = %s, n = %s WHERE {key} = %s",
        (row, text_of(holder, row, n), n, chance.randrange(IDS)),
    )


def _remove(world: TenantWorld, chance: random.Random, execute: Callable[..., Any], holder: Holder) -> None:
    execute(f"DELETE FROM {table_of(holder)} WHERE {_key(holder)} = %s", (chance.randrange(IDS),))


def _change_what_no_view_uses(
    world: TenantWorld, chance: random.Random, execute: Callable[..., Any], holder: Holder
) -> None:
    if isinstance(holder, int):
        execute(f"UPDATE {table_of(holder)} SET note = %s", (f"note {chance.randrange(99)}",))


def _key(holder: Holder) -> str:
    return "allowed_id" if isinstance(holder, int) else "id"


_CHANGES = (_put, _put, _put, _put_a_long_one, _change_many, _move, _remove, _remove, _change_what_no_view_uses)


# -- a reader ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Last:
    """What a key showed last, and whether it is gone since."""

    n: int
    is_gone: bool
    version: int | None


class TenantWatcher(Reader):
    """Looks at the content of views; `failures` is what should not have been seen.

    Where a table took another one's place, a view may show its rows before the stream has come there, and then what
    the stream says of the time between. So what it showed last is no measure: no key may go back to a state from
    before what its pipeline has passed.
    """

    EVERY_S = 0.02

    def __init__(self, world: TenantWorld) -> None:
        self._tenants = world
        self._last: dict[str, dict[Any, _Last]] = {}  # by view; each is looked at by one thread
        # What the tables had before a place in the binlog, and how far the pipelines are.
        self._floors: list[tuple[Place, Floor]] = [(("", 0), {})]
        self._passed: dict[str, Place] = {}
        self.failures: list[str] = []
        self.looks = self.changes = 0
        super().__init__(world)

    def _looks(self) -> Sequence[Callable[[], Mapping[Any, Any]]]:
        looks = [self._note_floor, self._tables, self._hashes]
        return looks if self._tenants.elasticsearch is None else [*looks, self._documents]

    def _looked(self, seen: Mapping[Any, Any]) -> None:
        """`seen`: by view, what its pipeline is past, and what it shows: by key, its text, number and version."""
        self.looks += bool(seen)
        for view, (floor, rows) in seen.items():
            self._last.setdefault(view, {})
            for key, (text, n, version) in rows.items():
                self._saw(view, key, text, n, version, floor.get(key, 0))
            for key, last in self._last[view].items():
                if key not in rows:
                    last.is_gone = True

    def _saw(self, view: str, key: tuple[Holder, int], text: str, n: int, version: int | None, floor: int) -> None:
        if not is_text_of(text, *key, n):
            self.failures.append(f"{view} {key} shows what never was: {text} with {n}")
        last = self._last[view].get(key, _Last(0, True, None))
        if (n, False) != (last.n, last.is_gone):  # a view that is halted stays where it was
            self.changes += 1
            if n < floor:
                self.failures.append(f"{view} {key} came to show {n} behind {last.n}, where {floor} was passed")
        if n < last.n and version is not None and last.version is not None and version <= last.version:
            self.failures.append(f"{view} {key} went from {last.n} to {n}, version {last.version} to {version}")
        self._last[view][key] = _Last(n, False, version)

    def _note_floor(self) -> Mapping[str, Any]:
        """A row that comes later has a number above those of now, also where there is none now."""
        floor: dict[tuple[Holder, int], int] = {}
        with self._tenants.cursor() as cursor:
            for account in range(ACCOUNTS):
                with self._tenants.held(account):
                    rows, least = dict[int, int](), self._tenants.number()
                    if account in self._tenants.accounts(cursor):
                        cursor.execute(f"SELECT allowed_id, n FROM {table_of(account)}")
                        rows = dict(cursor.fetchall())
                    cursor.connection.commit()  # what follows is of a later moment
                floor |= {(account, row): rows.get(row, least) for row in range(IDS)}
            self._floors.append((binlog_truth.end_of(self._tenants.mysql), floor))
            cursor.execute("SELECT name, position FROM viewtail.pipeline WHERE position IS NOT NULL")
            for name, position in cursor.fetchall():
                at = json.loads(position)
                self._passed[name] = (at["file"], at["end"])
        self._stop.wait(0.2)
        return {}

    def _floor_of(self, pipeline: str) -> Floor:
        """Asked for before the view is looked at."""
        passed = self._passed.get(pipeline, ("", 0))
        return next(floor for place, floor in reversed(self._floors) if place <= passed)

    def _tables(self) -> Mapping[str, Any]:
        floor = self._floor_of("mysql")
        found = {
            f"mysql:{view}": {
                (account, row): (text, n, at)
                for account, row, text, n, at in self._asked(
                    f"SELECT account_id, allowed_id, number, n, {version} FROM viewtail.{view}"
                )
                if n is not None
            }
            for view, version in (("tn_number", "version"), ("tn_whole", "viewtail_version"))
        }
        return {view: (floor, rows) for view, rows in found.items()}

    def _hashes(self) -> Mapping[str, Any]:
        keys = [(account, row) for account in range(ACCOUNTS) for row in range(0, IDS, 3)]
        floor = self._floor_of("redis")
        with self._redis.pipeline(transaction=True) as look:
            for account, row in keys:
                look.hmget(f"tn_invoice:{account}:{row}", ["number", "n", "_version"])
            answers: list[Any] = look.execute()
        found = {
            key: (text.decode(), int(n), int(version))
            for key, (text, n, version) in zip(keys, answers, strict=True)
            if n is not None
        }
        return {"redis:tn_invoice": (floor, found)}

    def _documents(self) -> Mapping[str, Any]:
        assert self._tenants.elasticsearch is not None
        ids = [f"{account}:{row}" for account in range(ACCOUNTS) for row in range(0, IDS, 3)]
        floor = self._floor_of("elasticsearch")
        try:
            docs = Indices(self._tenants.elasticsearch).ask("POST", f"/{INDEX}/_mget", {"ids": ids})["docs"]
        except HTTPError:  # it is not there yet
            return {}
        found = {
            _key_of(doc["_id"]): (doc["_source"]["number"], doc["_source"]["n"], doc["_version"])
            for doc in docs
            if doc.get("found") and not doc["_source"].get("viewtail_deleted")
        }
        return {"elasticsearch:tn_invoice": (floor, found)}
