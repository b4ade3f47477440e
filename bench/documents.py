"""Documents of several tables: orders with their lines, whose products are rows of a third table.

Beside viewtail a script by hand makes the same documents: a page of orders, their lines and products by IN-lists, one
bulk write. What either has written is compared with the SQL join.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import orjson
import pymysql
import redis
from elasticsearch import Elasticsearch
from elasticsearch.helpers import parallel_bulk

from bench import live
from bench.lines import AtLeast, Limit, Line, Told
from bench.measured import peak_memory_mib
from bench.setting import Place, Setting, Sizes, say, until

STORES = {"redis": "Redis", "elasticsearch": "Elasticsearch"}
LINES_AN_ORDER = 3
PRODUCTS = 20_000
RATE = 200  # changes of lines a second, live
_DRAINED = {"redis": 5_000.0, "elasticsearch": 3_000.0}  # documents/s
_SHARE_OF_SCRIPT = 0.7
_CAUGHT_UP_S, _HOT_WITHIN_S = 60.0, 1_200.0
_P50_MS, _P99_MS = 10.0, 50.0
_AT_ONCE = 1_000  # orders a page of the script, documents a look
_ROWS_A_STATEMENT = 5_000
_LIVE_AMOUNT = 1_000_000
_TABLES = (
    "CREATE TABLE bench.product (id BIGINT PRIMARY KEY, title VARCHAR(64) NOT NULL, price DECIMAL(10,2) NOT NULL)",
    "CREATE TABLE bench.orders (id BIGINT PRIMARY KEY, customer VARCHAR(64) NOT NULL, status VARCHAR(16) NOT NULL)",
    (
        "CREATE TABLE bench.order_line (id BIGINT PRIMARY KEY, order_id BIGINT NOT NULL, line_no INT NOT NULL, "
        "product_id BIGINT NOT NULL, amount INT NOT NULL, UNIQUE (order_id, line_no), INDEX (product_id))"
    ),
)
DECLARED = """from viewtail import Entity, Many, One, RedisJson, SearchIndex

order = Entity(
    "bench.orders",
    related={
        "lines": Many(
            "bench.order_line",
            by="order_id",
            order_by="line_no",
            columns=["line_no", "amount"],
            related={"product": One("bench.product", on="product_id", columns=["title", "price"])},
        )
    },
)


IN_REDIS = RedisJson("order", order, fields=["customer", "status", "lines"])
"""
VIEWS = f"""{DECLARED}
def found_by(row):
    return {{
        "customer": row["customer"],
        "titles": [line["product"]["title"] for line in row["lines"]],
        "total": sum(line["amount"] * line["product"]["price"] for line in row["lines"]),
    }}


fields = {{"customer": "keyword", "titles": "text", "total": "double"}}
views = [IN_REDIS, SearchIndex("order", order, document=found_by, fields=fields)]
"""
_MAPPING = {"customer": {"type": "keyword"}, "titles": {"type": "text"}, "total": {"type": "double"}}
Document = dict[str, Any]


@dataclass(eq=False)
class Documents:
    """The measurements, and what they gave."""

    setting: Setting
    sizes: Sizes
    rounds: int
    lines: list[Line] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)

    def measure(self) -> None:
        self.off = self.setting.having(VIEWTAIL_CLEANER__SHARE="0")
        self.by_hand = {store: ByHand(self.setting, store) for store in STORES}
        rows, changes = self.sizes.orders, self.sizes.order_changes
        work = f"backfill of {rows:,} documents with {LINES_AN_ORDER * rows:,} lines to"
        self._fills = {
            store: self._line(Line(f"{work} {name}", "docs/s", "by hand", _SHARE_OF_SCRIPT))
            for store, name in STORES.items()
        }
        work = f"drain {changes:,} changed lines, each of another document, to"
        self._drains = {
            store: self._line(AtLeast(f"{work} {name}", "docs/s", "by hand", _DRAINED[store]))
            for store, name in STORES.items()
        }
        self._p50 = self._line(Limit(f"live to Redis, {RATE} changed lines a second, p50", "ms", "by hand", _P50_MS))
        self._p99 = self._line(Limit("the same, p99", "ms", "by hand", _P99_MS))
        self._prepare(VIEWS, self.sizes.orders, LINES_AN_ORDER)
        for number in range(self.rounds):
            say(f"documents, round {number + 1} of {self.rounds}")
            self._round(number)

    def _line(self, line: Line) -> Line:
        self.lines.append(line)
        return line

    def _prepare(self, views: str, rows: int, lines_an_order: int) -> None:
        """Orders with their lines; of one line each, all lines have the same product."""
        setting = self.setting
        (setting.folder / "views.py").write_text(views)
        setting.run("DROP DATABASE IF EXISTS bench", "CREATE DATABASE bench", *_TABLES, "DO 1")
        chance = random.Random(36)
        say(f"writing {rows:,} orders")
        self._insert("product", (f"({i},'title of {i}',{i % 900 + 1}.{i % 100:02})" for i in range(1, PRODUCTS + 1)))
        self._insert("orders", (f"({i},'customer {i % 5000}','paid')" for i in range(1, rows + 1)))
        most = PRODUCTS if lines_an_order > 1 else 1
        keys = ((order, number) for order in range(1, rows + 1) for number in range(1, lines_an_order + 1))
        self._insert(
            "order_line",
            (
                f"({i},{order},{number},{chance.randint(1, most)},{i % 7 + 1})"
                for i, (order, number) in enumerate(keys, 1)
            ),
        )

    def _insert(self, table: str, rows: Iterator[str]) -> None:
        with closing(self.setting.connect()) as connection, connection.cursor() as cursor:
            while some := [row for _, row in zip(range(_ROWS_A_STATEMENT), rows, strict=False)]:
                cursor.execute(f"INSERT INTO bench.{table} VALUES {','.join(some)}")

    def _round(self, number: int) -> None:
        chance = random.Random(number)
        self.setting.run("DROP DATABASE IF EXISTS viewtail", "DO 1")
        for store, line in self._fills.items():
            self._fill(store, line)
        orders = chance.sample(range(1, self.sizes.orders + 1), self.sizes.order_changes)
        changed = [(order - 1) * LINES_AN_ORDER + chance.randint(1, LINES_AN_ORDER) for order in orders]
        place = self.setting.place()
        say(f"changing {len(changed):,} lines")
        self._change(changed, 10 + number)
        self.setting.place()
        for store, line in self._drains.items():
            self._drain(store, line, orders, place)
        self._live(chance, number)

    # -- rows ----------------------------------------------------------------------------------------------------

    def _fill(self, store: str, line: Line) -> None:
        rows, by_hand = self.sizes.orders, self.by_hand[store]
        by_hand.clear()
        theirs = by_hand.fill()
        self._compare(store, BY_HAND)
        by_hand.clear()
        ours = self.off.measured("fill", store)["seconds"]
        self._compare(store, "order")
        line.add(rows / ours, rows / theirs)

    def _change(self, lines: Sequence[int], amount: int) -> None:
        """Single-row transactions from four connections; not flushed one by one, which is not what is measured."""
        self.setting.run("SET GLOBAL sync_binlog = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 2", "DO 1")

        def write(some: Sequence[int]) -> None:
            with closing(self.setting.connect()) as connection, connection.cursor() as cursor:
                for line in some:
                    cursor.execute(f"UPDATE bench.order_line SET amount = {amount} WHERE id = {line}")

        threads = [threading.Thread(target=write, args=(lines[number::4],)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.setting.run("SET GLOBAL sync_binlog = 1", "SET GLOBAL innodb_flush_log_at_trx_commit = 1", "DO 1")

    def _drain(self, store: str, line: Line, orders: Sequence[int], place: Place) -> None:
        began = time.perf_counter()
        self.by_hand[store].write_all(orders)
        theirs = time.perf_counter() - began
        rows = str(2 * len(orders))  # an update has two images
        ours = self.off.measured("drain", store, rows, place[0], str(place[1]))["seconds"]
        self._compare(store, "order")
        line.add(len(orders) / ours, len(orders) / theirs)

    def _live(self, chance: random.Random, number: int) -> None:
        seconds = self.sizes.order_s / self.rounds
        count = int(seconds * RATE)
        lines = chance.sample(range(1, LINES_AN_ORDER * self.sizes.orders + 1), 2 * count)
        say(f"live: {seconds:.0f} s by hand and as long ours")
        theirs = live.latency(self._live_by_hand(lines[:count]))
        with live.worker(self.off, "redis"):
            self._catch_up()
            ours = live.latency(self._live_ours(lines[count:], LINES_AN_ORDER))
        self._p50.add(ours.p50_ms, theirs.p50_ms)
        self._p99.add(ours.p99_ms, theirs.p99_ms)
        self._compare("redis", "order")

    def _live_by_hand(self, lines: Sequence[int]) -> list[float]:
        """The application itself writes the document behind its COMMIT."""
        took: list[float] = []
        with closing(self.setting.connect()) as connection, connection.cursor() as cursor:

            def write(at: int) -> None:
                cursor.execute(_update(lines[at], at))
                began = time.perf_counter()
                self.by_hand["redis"].write_all([order_of(lines[at])])
                took.append((time.perf_counter() - began) * 1000)

            live.on_a_clock(write, len(lines), 0, {}, RATE)
        return took

    def _live_ours(self, lines: Sequence[int], lines_an_order: int) -> list[float]:
        """The worker is running."""
        client = redis.Redis(port=self.setting.redis.port)

        def is_seen(at: int) -> bool:
            shown = client.get(f"order:{order_of(lines[at], lines_an_order)}")
            return isinstance(shown, bytes) and b'"amount":%d,' % (_LIVE_AMOUNT + at) in shown

        write = live.committer(self.setting, lambda at: _update(lines[at], at))
        changes = live.changes_of("documents", len(lines) / RATE, 0, is_seen, write, RATE)
        return [took_ms for _, took_ms in changes]

    def _catch_up(self) -> None:
        """What came while the worker was not running does not count."""
        client: Any = redis.Redis(port=self.setting.redis.port)
        name = f"customer at {time.time():.3f}"
        self.setting.run(f"UPDATE bench.orders SET customer = '{name}' WHERE id = 1", "DO 1")
        until("the worker has caught up", lambda: name.encode() in (client.get("order:1") or b""), _CAUGHT_UP_S)

    # -- what is right -------------------------------------------------------------------------------------------

    def _compare(self, store: str, view: str, rows: int | None = None) -> None:
        """All documents of a view with the SQL join. Raises RuntimeError where one is another."""
        rows = rows or self.sizes.orders
        count = wrong = 0
        of_view = _shown(self.setting, store, view)
        for some in _pages(_joined(self.setting)):
            wanted = {order: _shape(store, document) for order, document in some}
            for order, document in of_view(list(wanted)).items():
                wrong += document != wanted[order]
                count += document is not None
        if wrong or count != rows:
            raise RuntimeError(
                f"{store}: {count:,} documents of {view}, {wrong:,} of {rows:,} are not those of the join"
            )


class HotProduct(Documents):
    """A product that all orders have is changed, while lines of other orders change."""

    def measure(self) -> None:
        self.off = self.setting.having(VIEWTAIL_CLEANER__SHARE="0")
        rows, count = self.sizes.hot_orders, int(self.sizes.hot_s * RATE)
        self._prepare(f"{DECLARED}views = [IN_REDIS]\n", rows, 1)
        self.setting.run("DROP DATABASE IF EXISTS viewtail", "DO 1")
        redis.Redis(port=self.setting.redis.port).flushall()
        self.off.measured("fill", "redis")
        lines = random.Random(0).sample(range(2, rows + 1), 2 * count)
        say(f"live: {self.sizes.hot_s:.0f} s before a product of {rows:,} orders changes, and as long behind it")
        with live.worker(self.off, "redis") as process:
            self._catch_up()
            before = live.latency(self._live_ours(lines[:count], 1))
            began, memory = time.monotonic(), peak_memory_mib(str(process.pid))
            self.setting.run("UPDATE bench.product SET title = 'changed' WHERE id = 1", "DO 1")
            until("the fan-out has begun", self._is_under_way, _CAUGHT_UP_S)
            meanwhile = live.latency(self._live_ours(lines[count:], 1))
            is_beside = self._is_under_way()
            took_s = until("the fan-out is over", lambda: not self._is_under_way(), _HOT_WITHIN_S) - began
            grown = peak_memory_mib(str(process.pid)) - memory
        self._compare("redis", "order", rows)
        if not is_beside:
            say("the fan-out was over before the live changes were")
        self._line(Line(f"live beside {rows:,} documents of one changed product, p99", "ms", "before it", 2.0)).add(
            meanwhile.p99_ms, before.p99_ms
        )
        self.told.append((f"the same: until all {rows:,} documents show it", f"{took_s:.0f} s", "", ""))
        self.told.append(("the same: memory beyond that of before", f"{grown:.0f} MiB", "", ""))

    def _is_under_way(self) -> bool:
        return bool(self.setting.run("SELECT COUNT(*) FROM viewtail.fan_out WHERE written_upto IS NULL")[0])


BY_HAND = "byhand"


def order_of(line: int, lines_an_order: int = LINES_AN_ORDER) -> int:
    return (line - 1) // lines_an_order + 1


def _update(line: int, at: int) -> str:
    return f"UPDATE bench.order_line SET amount = {_LIVE_AMOUNT + at} WHERE id = {line}"


# --- By hand ---


class ByHand:
    """The script that somebody would write instead."""

    def __init__(self, setting: Setting, store: str) -> None:
        self._setting, self._store = setting, store
        self._connection = setting.connect()
        self._cursor = self._connection.cursor()
        self._redis = redis.Redis(port=setting.redis.port)
        self._elasticsearch = Elasticsearch(setting.elasticsearch.url, request_timeout=60)

    def clear(self) -> None:
        """Empty the store, viewtail's documents too."""
        if self._store == "redis":
            self._redis.flushall()
            return
        indices = self._elasticsearch.options(ignore_status=404).indices
        for name in ("viewtail-order", BY_HAND):
            indices.delete(index=name)
        settings = {"number_of_shards": 1, "number_of_replicas": 0}
        indices.create(index=BY_HAND, mappings={"dynamic": "strict", "properties": _MAPPING}, settings=settings)

    def fill(self) -> float:
        """All documents; the seconds that it took."""
        began, last = time.perf_counter(), 0
        while orders := self._orders(f"id > {last} ORDER BY id LIMIT {_AT_ONCE}"):
            self._write(orders)
            last = orders[-1][0]
        return time.perf_counter() - began

    def write_all(self, orders: Sequence[int]) -> None:
        """Those of some orders."""
        for at in range(0, len(orders), _AT_ONCE):
            self._write(self._orders(f"id IN ({','.join(map(str, orders[at : at + _AT_ONCE]))})"))

    def _orders(self, where: str) -> Any:
        self._cursor.execute(f"SELECT id, customer, status FROM bench.orders WHERE {where}")
        return self._cursor.fetchall()

    def _write(self, orders: Sequence[tuple[Any, ...]]) -> None:
        cursor = self._cursor
        cursor.execute(
            "SELECT order_id, line_no, amount, product_id FROM bench.order_line "
            f"WHERE order_id IN ({','.join(str(order[0]) for order in orders)}) ORDER BY order_id, line_no"
        )
        lines = cursor.fetchall()
        products = {line[3] for line in lines}
        cursor.execute(f"SELECT id, title, price FROM bench.product WHERE id IN ({','.join(map(str, products))})")
        product_of = {key: {"title": title, "price": price} for key, title, price in cursor.fetchall()}
        lines_of: dict[int, list[Document]] = {}
        for order, line_no, amount, product in lines:
            line = {"line_no": line_no, "amount": amount, "product": product_of.get(product)}
            lines_of.setdefault(order, []).append(line)
        documents = {
            key: _shape(self._store, {"customer": customer, "status": status, "lines": lines_of.get(key, [])})
            for key, customer, status in orders
        }
        if self._store == "redis":
            pipeline = self._redis.pipeline(transaction=False)
            for key, document in documents.items():
                pipeline.set(f"{BY_HAND}:{key}", orjson.dumps(document))
            pipeline.execute()
            return
        actions = ({"_index": BY_HAND, "_id": key, "_source": document} for key, document in documents.items())
        for is_good, answer in parallel_bulk(self._elasticsearch, actions, thread_count=4, chunk_size=500):
            if not is_good:
                raise RuntimeError(f"elasticsearch: {answer}")


def _shape(store: str, order: Document) -> Document:
    """The document in a store."""
    lines = order["lines"]
    if store == "elasticsearch":
        total = sum(line["amount"] * line["product"]["price"] for line in lines)
        titles = [line["product"]["title"] for line in lines]
        return {"customer": order["customer"], "titles": titles, "total": str(total)}
    shown = [{**line, "product": {**line["product"], "price": str(line["product"]["price"])}} for line in lines]
    return {**order, "lines": shown}


# --- To compare ---


def _joined(setting: Setting) -> Iterator[tuple[int, Document]]:
    """Every order as the join says."""
    cursor = setting.connect().cursor(pymysql.cursors.SSCursor)
    cursor.execute(
        "SELECT o.id, o.customer, o.status, l.line_no, l.amount, p.title, p.price FROM bench.orders o "
        "LEFT JOIN bench.order_line l ON l.order_id = o.id LEFT JOIN bench.product p ON p.id = l.product_id "
        "ORDER BY o.id, l.line_no"
    )
    for (key, customer, status), rows in groupby(cursor, key=lambda row: row[:3]):
        lines = [
            {"line_no": line_no, "amount": amount, "product": {"title": title, "price": price}}
            for *_, line_no, amount, title, price in rows
            if line_no is not None
        ]
        yield key, {"customer": customer, "status": status, "lines": lines}


def _pages(documents: Iterator[tuple[int, Document]]) -> Iterator[list[tuple[int, Document]]]:
    while some := [document for _, document in zip(range(_AT_ONCE), documents, strict=False)]:
        yield some


def _shown(setting: Setting, store: str, view: str) -> Any:
    """What gives the documents of some orders, None where there is none."""
    if store == "redis":
        client = redis.Redis(port=setting.redis.port)

        def of_redis(orders: list[int]) -> dict[int, Document | None]:
            texts: Any = client.mget([f"{view}:{order}" for order in orders])
            return {order: _without_version(text) for order, text in zip(orders, texts, strict=True)}

        return of_redis
    elasticsearch = Elasticsearch(setting.elasticsearch.url, request_timeout=60)

    def of_elasticsearch(orders: list[int]) -> dict[int, Document | None]:
        answers = elasticsearch.mget(index=view, ids=[str(order) for order in orders])["docs"]
        return {int(answer["_id"]): answer.get("_source") for answer in answers}

    return of_elasticsearch


def _without_version(text: bytes | None) -> Document | None:
    if text is None:
        return None
    document: Document = json.loads(text)
    document.pop("_version", None)
    return document
