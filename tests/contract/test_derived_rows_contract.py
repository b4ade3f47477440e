"""What every implementation of derived rows promises: cells, and a row with rows of other tables."""

from __future__ import annotations

import json
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis

from ingest import Committed
from ingest.binlog.continuity import shows
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from ingest.canonical.chunks import CanonicalRows
from projectors.binding import bind
from projectors.derived import Touched, touched_keys
from projectors.derived.reading import DerivedReader, Slice, committed
from projectors.projection import Projections, followed_tables
from projectors.related import Many, One
from projectors.stores.redis.views import RedisJson
from projectors.views import Entity
from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, running, wait_for
from viewtail.changes.batches import Batch, Row
from viewtail.changes.writes import Key
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import Connection, MySQLAddress, open_session

Rows = dict[Key, tuple[Any, ...]]  # with JSON parsed


class World(ABC):
    """Tables of one implementation, with the changes of them."""

    tables: ClassVar[tuple[str, ...]]
    entity: Entity
    changes: ClassVar[tuple[tuple[str, set[Key]], ...]]  # each with the keys that it touches, in this order
    json_at: ClassVar[tuple[int, ...]]
    absent: ClassVar[Key]
    mark: ClassVar[str]
    marked = 1_000_000

    def __init__(self, server: Server) -> None:
        self.server = server
        ask(server, "DROP DATABASE IF EXISTS made")
        ask(server, "CREATE DATABASE made")
        for statement in self.tables:
            ask(server, statement)
        self.address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        with open_session(self.address, role="source") as session:
            (self.view,) = bind([RedisJson("made", self.entity, document=self.document)], partial(describe, session))
            self._shows = partial(shows, facts=facts_of(session))
        self.followed = followed_tables([self.view])
        self.projections = Projections([self.view], self.followed)
        self.begin = self.source().now()
        self.reader = DerivedReader(self.open, self._shows, threading.Event())

    def open(self) -> Connection:
        return open_session(self.address, role="source")

    def slices(self, touched: Touched, changes: Committed) -> Iterator[Slice]:
        assert self.view.derived is not None
        versions = touched_keys(self.view.derived, touched, partial(self.reader.in_snapshot, changes))
        return self.reader.slices(self.view.derived, self.view.needed, versions, changes)

    def source(self) -> BinlogSource:
        own = frozenset({"viewtail"})
        return BinlogSource(self.address, self.followed, watermark_schema="viewtail", own_schemas=own, epoch=1)

    def batches(self) -> Iterator[Batch]:
        """All that was committed until now, and a change that touches no key."""
        self.marked += 1
        ask(self.server, self.mark.format(self.marked))
        source = self.source()
        for batch in source.read(self.begin):
            self.begin = batch.end or self.begin
            yield batch
            if any(self.marked in row for change in batch.changes for row in change.rows):
                source.interrupt()
                return

    def chunks(self, chunk_rows: int, chunk_bytes: int = 1 << 20) -> CanonicalRows:
        return CanonicalRows(
            self.view.rows,
            self.view.needed,
            open_source=self.open,
            shows=None,
            stop=threading.Event(),
            chunk_rows=chunk_rows,
            chunk_bytes=chunk_bytes,
        )

    def parsed(self, rows: Iterator[Row] | list[Row]) -> Rows:
        """By key, which the row begins with."""
        found: Rows = {}
        for row in rows:
            values = [json.loads(value) if at in self.json_at and value else value for at, value in enumerate(row)]
            assert tuple(row[:1]) not in found
            found[tuple(row[:1])] = tuple(values)
        return found

    @staticmethod
    @abstractmethod
    def document(row: Any) -> Any: ...

    @abstractmethod
    def random_change(self, chance: random.Random) -> str: ...

    @abstractmethod
    def expected(self) -> Rows:
        """By other means."""


class OfCells(World):
    tables = (
        (
            "CREATE TABLE made.cell (id BIGINT AUTO_INCREMENT PRIMARY KEY, row_key VARCHAR(20) NOT NULL, "
            "name VARCHAR(20) NOT NULL, ref BIGINT NOT NULL, body LONGTEXT, UNIQUE KEY (row_key, name, ref))"
        ),
        (
            "INSERT INTO made.cell (row_key, name, ref, body) VALUES ('r1', 'user', 1, '{}'), ('r2', 'user', 1, '{}'), "
            "('r3', 'other', 1, '{}'), ('r2', 'theme', 1, '{}'), ('r5', 'user', 1, '{}')"
        ),
    )
    entity = Entity("made.cell", key="row_key", columns_by="name", newest="ref", body="body", codec="json")
    changes = (
        ("INSERT INTO made.cell (row_key, name, ref, body) VALUES ('r4', 'user', 1, '{}')", {("r4",)}),
        ("INSERT INTO made.cell (row_key, name, ref, body) VALUES ('r1', 'other', 9, '{}')", set()),
        ("UPDATE made.cell SET row_key = 'r6' WHERE row_key = 'r1' AND name = 'user'", {("r1",), ("r6",)}),
        ("UPDATE made.cell SET name = 'theme' WHERE row_key = 'r3'", {("r3",)}),
        ("DELETE FROM made.cell WHERE row_key = 'r2'", {("r2",)}),
    )
    json_at = (1, 2)
    absent = ("none",)
    mark = "INSERT INTO made.cell (row_key, name, ref) VALUES ('end', 'mark', {})"

    @staticmethod
    def document(row: Any) -> Any:
        return {"theme": row["theme"], "user": row["user"]}

    def random_change(self, chance: random.Random) -> str:
        row, name = f"r{chance.randrange(12)}", chance.choice(("user", "theme", "other"))
        if chance.random() < 0.3:
            return f"DELETE FROM made.cell WHERE row_key = '{row}' ORDER BY ref DESC LIMIT {chance.randint(1, 3)}"
        if chance.random() < 0.2:
            return f"UPDATE IGNORE made.cell SET row_key = 'r{chance.randrange(12)}' WHERE row_key = '{row}'"
        ref = chance.randrange(10_000)
        return (
            f"REPLACE INTO made.cell (row_key, name, ref, body) VALUES ('{row}', '{name}', {ref}, '{{\"n\": {ref}}}')"
        )

    def expected(self) -> Rows:
        newest: dict[str, dict[str, Any]] = {}
        for row, name, body in ask(self.server, "SELECT row_key, name, body FROM made.cell ORDER BY ref"):
            if name in ("user", "theme"):
                newest.setdefault(row, {})[name] = json.loads(body)
        return {(row,): (row, cells.get("theme"), cells.get("user")) for row, cells in newest.items()}


class OfOrders(World):
    tables = (
        "CREATE TABLE made.`order` (id BIGINT PRIMARY KEY, customer VARCHAR(20))",
        (
            "CREATE TABLE made.order_line (id BIGINT AUTO_INCREMENT PRIMARY KEY, order_id BIGINT NOT NULL, "
            "product_id BIGINT, KEY (order_id), KEY (product_id))"
        ),
        "CREATE TABLE made.product (id BIGINT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO made.`order` VALUES (1, 'ada'), (2, 'bob'), (3, 'eve')",
        "INSERT INTO made.product VALUES (10, 'pen'), (11, 'ink'), (12, 'unused')",
        "INSERT INTO made.order_line (id, order_id, product_id) VALUES (1, 1, 10), (2, 2, 10), (3, 2, 11), (4, 9, 11)",
    )
    entity = Entity(
        "made.order",
        related={
            "lines": Many("made.order_line", by="order_id", related={"product": One("made.product", on="product_id")})
        },
    )
    changes = (
        ("UPDATE made.product SET name = 'pencil' WHERE id = 10", {(1,), (2,)}),
        ("UPDATE made.product SET name = 'x' WHERE id = 12", set()),
        ("DELETE FROM made.product WHERE id = 11", {(2,), (9,)}),
        ("INSERT INTO made.order_line (order_id, product_id) VALUES (3, 12)", {(3,)}),
        ("UPDATE made.order_line SET order_id = 1 WHERE order_id = 2 AND product_id = 11", {(1,), (2,)}),
        ("INSERT INTO made.`order` VALUES (9, 'late')", {(9,)}),
        ("DELETE FROM made.`order` WHERE id = 1", {(1,)}),
    )
    json_at = (2,)
    absent = (99,)
    mark = "INSERT INTO made.product VALUES ({}, 'mark')"

    @staticmethod
    def document(row: Any) -> Any:
        return {"customer": row["customer"], "lines": row["lines"]}

    def random_change(self, chance: random.Random) -> str:
        order, product = chance.randrange(12), chance.randrange(6)
        return chance.choice((
            f"REPLACE INTO made.`order` VALUES ({order}, 'c{chance.randrange(99)}')",
            f"DELETE FROM made.`order` WHERE id = {order}",
            f"INSERT INTO made.order_line (order_id, product_id) VALUES ({order}, {product})",
            f"UPDATE made.order_line SET order_id = {order} WHERE product_id = {product} ORDER BY id LIMIT 1",
            f"UPDATE made.order_line SET product_id = {product} WHERE order_id = {order} ORDER BY id LIMIT 1",
            f"DELETE FROM made.order_line WHERE order_id = {order} ORDER BY id LIMIT 2",
            f"REPLACE INTO made.product VALUES ({product}, 'p{chance.randrange(99)}')",
            f"DELETE FROM made.product WHERE id = {product}",
        ))  # fmt: skip

    def expected(self) -> Rows:
        products = {key: {"id": key, "name": name} for key, name in ask(self.server, "SELECT * FROM made.product")}
        lines: dict[int, list[Any]] = {}
        for key, order, product in ask(self.server, "SELECT id, order_id, product_id FROM made.order_line ORDER BY id"):
            line = {"id": key, "order_id": order, "product_id": product, "product": products.get(product)}
            lines.setdefault(order, []).append(line)
        orders = ask(self.server, "SELECT id, customer FROM made.`order`")
        return {(key,): (key, customer, lines.get(key, [])) for key, customer in orders}


@pytest.fixture(params=[OfCells, OfOrders])
def made(request: pytest.FixtureRequest, server: Server) -> Iterator[World]:
    world: World = request.param(server)
    yield world
    world.reader.close()


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


def test_each_change_touches_its_keys_and_no_others_between_its_version_and_the_batches_end(made: World) -> None:
    for statement, keys in made.changes:
        ask(made.server, statement)
        found: dict[Key, int] = {}
        for batch in made.batches():
            for touched in made.projections.of(batch).touched.values():
                assert made.view.derived is not None
                in_snapshot = partial(made.reader.in_snapshot, committed(batch))
                versions = touched_keys(made.view.derived, touched, in_snapshot)
                assert batch.end is not None
                first = min(change.version for change in batch.changes)
                assert all(first <= version <= batch.end.version for version in versions.values())
                found.update(versions)
        assert found.keys() == keys, statement


def test_what_is_written_under_the_changes_versions_ends_as_the_tables_are(made: World) -> None:
    """The stream is read late, so snapshots show more than its batches; every key that was there is known before."""
    chance = random.Random(7)
    shown: Rows = dict(made.expected())
    versions: dict[Key, int] = {}
    for _ in range(12):
        for _ in range(chance.randint(1, 15)):
            ask(made.server, made.random_change(chance))
        for batch in made.batches():
            for touched in made.projections.of(batch).touched.values():
                for part in made.slices(touched, committed(batch)):
                    rows = made.parsed([*part.rows.values()])
                    for key, version in part.versions.items():
                        assert version >= versions.get(key, 0)
                        versions[key] = version
                        shown.pop(key, None)
                        shown.update({key: rows[key]} if key in rows else {})
        assert shown == made.expected()


def test_chunks_by_key_have_every_row_once_and_so_have_keys_that_are_asked_for(made: World) -> None:
    chance = random.Random(8)
    for _ in range(60):
        ask(made.server, made.random_change(chance))
    expected = made.expected()
    assert len(expected) > 3
    for rows in (made.chunks(2), made.chunks(100), made.chunks(100, chunk_bytes=1)):
        chunks, after = [], None
        while (chunk := rows.after(after, 0)) is not None:
            chunks.append(chunk.rows)
            after = chunk.last_key
        found = made.parsed(chain.from_iterable(chunks))
        assert found == expected and [*found] == sorted(expected)
        keys = [*expected, made.absent]
        assert made.parsed(rows.having(made.view.key, keys, 0)) == expected
        assert rows.absent(made.view.key, keys, 0) == {made.absent}
        rows.close()


ALTERED = (
    "CREATE INDEX by_both ON made.order_line (order_id, product_id, id)",
    "ALTER TABLE made.order_line FORCE, ALGORITHM=COPY",
    "OPTIMIZE TABLE made.order_line",
    "TRUNCATE made.order_line",
    "RENAME TABLE made.order_line TO made.old, made.new TO made.order_line",
)


@pytest.mark.parametrize("statement", ALTERED)
def test_a_table_that_is_altered_when_a_snapshot_was_taken_is_read_in_another(server: Server, statement: str) -> None:
    made = OfOrders(server)
    derived = made.view.derived
    assert derived is not None
    ask(server, "CREATE TABLE made.new LIKE made.order_line")
    ask(server, "INSERT INTO made.new SELECT * FROM made.order_line")
    shown: list[Any] = []

    def shows(*of: Any) -> bool:
        shown.append(of)
        if len(shown) == 1:
            ask(server, statement)
        return True

    keys = dict.fromkeys([(1,), (2,), (3,)], 1)
    reader = DerivedReader(made.open, shows, threading.Event())
    if "RENAME" in statement:
        ask(server, "INSERT INTO made.new (order_id, product_id) VALUES (3, 11)")
    with closing(reader):
        (part,) = reader.slices(derived, made.view.needed, keys, Committed(gtids=frozenset(), version=1))
    assert made.parsed([*part.rows.values()]) == made.expected() and reader.trouble is None


@pytest.mark.parametrize("statement", ALTERED)
def test_a_chunk_of_a_table_that_is_altered_when_its_snapshot_was_taken_is_read_in_another(
    server: Server, statement: str
) -> None:
    made = OfOrders(server)
    ask(server, "CREATE TABLE made.new LIKE made.order_line")
    shown: list[Any] = []

    def shows(*of: Any) -> bool:
        shown.append(of)
        if len(shown) == 1:
            ask(server, statement)
        return True

    rows = CanonicalRows(made.view.rows, made.view.needed, open_source=made.open, shows=shows, stop=threading.Event())
    with closing(rows):
        chunk = rows.after(None, 1)
    assert chunk is not None and made.parsed([*chunk.rows]) == made.expected()


VIEWS = """
from viewtail import Entity, Many, One, RedisJson

order = Entity(
    "made.order",
    related={
        "lines": Many("made.order_line", by="order_id", related={"product": One("made.product", on="product_id")})
    },
)


def document(row):
    return {"customer": row["customer"], "lines": row["lines"]}


views = [RedisJson("order", order, document=document)]
"""


@pytest.mark.redis
def test_a_row_with_rows_of_other_tables_is_filled_kept_compared_and_mended(
    server: Server, redis_server: Server, tmp_path: Path
) -> None:
    ask(server, "DROP DATABASE IF EXISTS viewtail")
    made = OfOrders(server)
    ask(server, "FLUSH BINARY LOGS")  # what is read back by time must not begin before the table was made
    store = redis.Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True)
    store.flushall()

    def is_equal() -> bool:
        documents = {key: json.loads(store.get(key) or "{}") for key in store.keys("order:*") if key[-2:] != ":t"}
        shown = {(int(key[6:]),): (int(key[6:]), found["customer"], found["lines"]) for key, found in documents.items()}
        assert shown == made.expected()
        return True

    def succeeds(run: Run, *arguments: str) -> str:
        done = run.command(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def settled(run: Run) -> bool:
        succeeds(run, "wait", "redis:order")
        return is_equal()

    with running(tmp_path, VIEWS, addresses(server, redis_server)) as run:
        wait_for("it is filled", is_equal)
        wait_for("status says so", run.is_filled)
        for statement, _ in made.changes:
            ask(server, statement)
            assert settled(run), statement
        since = ask(server, "SELECT UTC_TIMESTAMP()")[0][0].isoformat() + "Z"  # MariaDB counts seconds
        ask(server, "UPDATE made.product SET name = 'crayon' WHERE id = 10")
        succeeds(run, "wait", "redis:order")
        assert json.loads(succeeds(run, "why", "redis:order", "2", "--json"))["verdict"] == "current"
        store.delete("order:2")
        store.copy("order:3", "order:77")
        found = run.command("verify", "redis:order")
        assert found.returncode == 1 and "1 extra, 1 missing" in found.stdout, found.stdout
        succeeds(run, "replay", "redis:order", "--since", since)
        assert "order:2" in store.keys("order:*"), "a product changed, and its line tells the order"
        succeeds(run, "verify", "redis:order", "--repair")
        assert is_equal()
        ask(server, "TRUNCATE made.order_line")
        wait_for("it is filled again", is_equal)
        ask(server, "INSERT INTO made.order_line (order_id, product_id) VALUES (2, 10)")
        assert settled(run)
        succeeds(run, "rebuild", "redis:order", "--yes")
        ask(server, "UPDATE made.product SET name = 'chalk' WHERE id = 10")
        assert settled(run)
        for command in (("verify",), ("check",), ("preview", "redis:order")):
            succeeds(run, *command)
        wait_for("status reports the restart behind it", lambda: run.command("status").returncode == 0)
