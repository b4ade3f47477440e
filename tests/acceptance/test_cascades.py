"""What foreign keys do without a row event, on servers that log none of it: a running viewtail mends its views at once.

The rows were backfilled and have not changed since, and no round comes: only the parents' rows tell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis
from elasticsearch import Elasticsearch

import stack.mariadb
import stack.mysql
import stack.redis
from stack import Server
from tests.support.running import Run, addresses, wait_for

pytestmark = pytest.mark.mariadb
SCHEMA, STORE = "cascades", "cascades_views"
# Views are of shop, stall, price and genre alone.
TABLES = f"""
CREATE DATABASE {SCHEMA} CHARACTER SET utf8mb4;
CREATE TABLE {SCHEMA}.country (code VARCHAR(8) PRIMARY KEY);
CREATE TABLE {SCHEMA}.city (
  id INT PRIMARY KEY, country VARCHAR(8) NOT NULL,
  FOREIGN KEY (country) REFERENCES {SCHEMA}.country (code) ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE {SCHEMA}.shop (
  id INT PRIMARY KEY, name VARCHAR(20), city INT,
  FOREIGN KEY (city) REFERENCES {SCHEMA}.city (id) ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE {SCHEMA}.square (id INT PRIMARY KEY);
CREATE TABLE {SCHEMA}.stall (
  square INT, number INT, name VARCHAR(20), PRIMARY KEY (square, number),
  FOREIGN KEY (square) REFERENCES {SCHEMA}.square (id) ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE {SCHEMA}.price (
  id INT PRIMARY KEY, square INT, stall INT,
  FOREIGN KEY (square, stall) REFERENCES {SCHEMA}.stall (square, number) ON DELETE SET NULL ON UPDATE CASCADE);
CREATE TABLE {SCHEMA}.genre (
  id INT PRIMARY KEY, name VARCHAR(20), above INT,
  FOREIGN KEY (above) REFERENCES {SCHEMA}.genre (id) ON DELETE CASCADE)
"""
ROWS = f"""
INSERT INTO {SCHEMA}.country VALUES ('aa'), ('bb'), ('cc');
INSERT INTO {SCHEMA}.city VALUES (1, 'aa'), (2, 'aa'), (3, 'bb'), (4, 'cc'), (5, 'cc');
INSERT INTO {SCHEMA}.shop
  WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) SELECT i, 'a shop', 1 + i % 5 FROM n;
INSERT INTO {SCHEMA}.square VALUES (1), (2), (3), (4);
INSERT INTO {SCHEMA}.stall VALUES (1, 1, 'a'), (1, 2, 'b'), (2, 1, 'c'), (2, 2, 'd'), (3, 1, 'e'), (4, 1, 'f');
INSERT INTO {SCHEMA}.price VALUES (1, 1, 1), (2, 1, 2), (3, 2, 1), (4, 2, 2), (5, 3, 1), (6, 4, 1), (7, NULL, NULL);
INSERT INTO {SCHEMA}.genre VALUES (1, 'all', NULL), (2, 'some', 1), (3, 'few', 2), (4, 'other', NULL)
"""
# As README says: MariaDB tells such a user nothing of a key's rules in information_schema.
GRANTS = (
    "CREATE USER viewtail",
    "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO viewtail",
    f"GRANT SELECT ON {SCHEMA}.* TO viewtail",
    "GRANT ALL ON viewtail.* TO viewtail",
    f"GRANT ALL ON {STORE}.* TO viewtail",
)
VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash, RedisSet, SearchIndex

shop, stall, price, genre = (Entity("{SCHEMA}." + name) for name in ("shop", "stall", "price", "genre"))
views = [
    IndexTable("shop_by_city", shop, value="city"),
    IndexTable("shop_by_name", shop, value="name"),
    RedisHash("shop", shop, fields=["name"]),
    RedisSet("shops", shop, key="in:{{city}}"),
    SearchIndex("NAME-shop", shop, fields={{"name": "keyword", "city": "long"}}),
    IndexTable("stall_by_name", stall, value="name"),
    RedisHash("stall", stall, fields=["name"]),
    SearchIndex("NAME-stall", stall, fields={{"name": "keyword"}}),
    IndexTable("price_by_stall", price, value=["square", "stall"]),
    RedisHash("price", price, fields=["id", "square", "stall"]),
    SearchIndex("NAME-price", price, fields={{"square": "long", "stall": "long"}}),
    IndexTable("genre_by_name", genre, value="name"),
    RedisHash("genre", genre, fields=["name", "above"]),
]
"""


class World:
    """Views that were backfilled, and went through one round of the cleaner."""

    def __init__(self, folder: Path, source: Server, redis_server: Server, search: Server) -> None:
        self.source = source
        self.prefix = f"cascades-{source.port}"  # of indices that another source has not written to
        self.redis = redis.Redis(port=redis_server.port, decode_responses=True)
        self.documents = Elasticsearch(search.url)
        for statement in [*TABLES.split(";\n"), *ROWS.split(";\n")]:
            self.ask(statement)
        for statement in GRANTS:
            self.ask(statement)
        url = source.url.replace("//root@", "//viewtail@")
        environ = addresses(source, redis_server, search)
        environ |= {"VIEWTAIL_SOURCE__URL": url, "VIEWTAIL_MYSQL__URL": f"{url}/{STORE}"}
        self.parent_changed_at = 0.0
        self.run = Run(folder, VIEWS.replace("NAME", self.prefix), environ)

    def start(self) -> None:
        self.run.start(VIEWTAIL_CLEANER__SHARE="0.5", VIEWTAIL_CLEANER__REST_S="3600")
        wait_for("a round is over", lambda: self.proven() == 13, timeout_s=200)

    def proven(self) -> int:
        return len(self.ask(f"SELECT 1 FROM {STORE}.view WHERE proven_at IS NOT NULL"))

    def changes_parent(self, sql: str) -> None:
        self.ask(sql)
        self.parent_changed_at = time.monotonic()

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        connection = pymysql.connect(host=self.source.host, port=self.source.port, user="root", autocommit=True)
        with connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def table(self, sql: str) -> set[tuple[Any, ...]]:
        return set(self.ask(sql.format(f"{SCHEMA}.")))

    def index(self, sql: str) -> set[tuple[Any, ...]]:
        return set(self.ask(sql.format(f"{STORE}.")))

    def hashes(self, view: str) -> set[str]:
        """The keys of a view in Redis."""
        return {name.partition(":")[2] for name in map(str, self.redis.keys(f"{view}:*"))}

    def members(self) -> set[str]:
        """Of all sets in Redis."""
        return {str(one) for name in self.redis.keys("in:*") for one in self.redis.smembers(str(name))}

    def found(self, view: str) -> set[str]:
        """The keys of a view in Elasticsearch."""
        return {hit["_id"] for hit in self.hits(view)}

    def hits(self, view: str) -> list[Any]:
        self.documents.indices.refresh(index=f"{self.prefix}-{view}")
        found: list[Any] = self.documents.search(index=f"{self.prefix}-{view}", size=1000)["hits"]["hits"]
        return found

    def soon(self, what: str, condition: Callable[[], bool]) -> None:
        """No round comes: only a parent's row can tell. How soon is printed; 5 s where nothing else keeps it busy."""
        wait_for(what, condition)
        print(f"right {what} {time.monotonic() - self.parent_changed_at:.1f} s after its parent's row changed")


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, elasticsearch_server: Server
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("cascades")
    redis_server = stack.redis.start(folder / "redis")  # of one source
    if request.param == "mysql":
        source = stack.mysql.start(folder / "mysql", options=["--innodb-native-foreign-keys=ON"])
    else:
        source = stack.mariadb.start(folder / "mariadb")
    found = World(folder, source, redis_server, elasticsearch_server)
    try:
        try:
            found.start()
        except AssertionError:
            print(found.run.log[-6000:])
            print(found.run.command("status").stdout, found.ask(f"SELECT id, proven_at FROM {STORE}.view"))
            raise
        yield found
    finally:
        found.run.kill()
        source.kill()
        redis_server.kill()


def assert_shops(world: World) -> None:
    there = world.table("SELECT id FROM {}shop")
    texts = {str(key) for (key,) in there}
    world.soon("by city", lambda: world.index("SELECT id FROM {}shop_by_city WHERE city IS NOT NULL") == there)
    world.soon("by name", lambda: world.index("SELECT id FROM {}shop_by_name WHERE name IS NOT NULL") == there)
    world.soon("in Redis", lambda: world.hashes("shop") == texts)
    world.soon("in sets", lambda: world.members() == texts)
    world.soon("in Elasticsearch", lambda: world.found("shop") == texts)


def assert_stalls(world: World) -> None:
    there = world.table("SELECT square, number FROM {}stall")
    texts = {f"{square}:{number}" for square, number in there}
    by_name = "SELECT square, number FROM {}stall_by_name WHERE name IS NOT NULL"
    world.soon("by name", lambda: world.index(by_name) == there)
    world.soon("in Redis", lambda: world.hashes("stall") == texts)
    world.soon("in Elasticsearch", lambda: world.found("stall") == texts)


def assert_prices(world: World) -> None:
    def shown() -> set[tuple[Any, ...]]:
        rows = [world.redis.hmget(f"price:{key}", "id", "square", "stall") for key in world.hashes("price")]
        return {tuple(None if one is None else int(one) for one in row) for row in rows}

    def documents() -> set[tuple[Any, ...]]:
        return {
            (int(hit["_id"]), hit["_source"].get("square"), hit["_source"].get("stall")) for hit in world.hits("price")
        }

    there = world.table("SELECT id, square, stall FROM {}price")
    by_stall = "SELECT id, square, stall FROM {}price_by_stall WHERE square IS NOT NULL"
    world.soon("by stall", lambda: world.index(by_stall) == {row for row in there if row[1] is not None})
    world.soon("in Redis", lambda: shown() == there)
    world.soon("in Elasticsearch", lambda: documents() == there)


def test_children_leave_the_views_when_their_parent_goes(world: World) -> None:
    world.changes_parent(f"DELETE FROM {SCHEMA}.city WHERE id = 4")
    assert_shops(world)

    def recorded(kind: str) -> dict[str, dict[str, int]]:
        told = json.loads(world.run.command("replays", "--json", "--limit", "1000").stdout)
        return {one["view"]: one["progress"]["differing"] for one in told if one["kind"] == kind}

    wait_for("it is recorded", lambda: recorded("cascade").get("mysql:shop_by_city") == {"extra": 100})
    assert recorded("mend") == {} and "the cleaner wrote entities again" not in world.run.log, "nothing was wrong"


def test_they_leave_when_a_parent_of_their_parent_goes(world: World) -> None:
    world.changes_parent(f"DELETE FROM {SCHEMA}.country WHERE code = 'aa'")
    assert not world.table("SELECT id FROM {}shop WHERE city IN (1, 2)")
    assert_shops(world)


def test_they_leave_when_their_parent_got_another_key_and_went_then(world: World) -> None:
    world.ask(f"UPDATE {SCHEMA}.city SET id = 60 WHERE id = 3")
    world.changes_parent(f"DELETE FROM {SCHEMA}.city WHERE id = 60")
    assert_shops(world)


def test_a_child_whose_reference_became_null_shows_that(world: World) -> None:
    world.changes_parent(f"DELETE FROM {SCHEMA}.stall WHERE square = 1 AND number = 2")
    assert (2, None, None) in world.table("SELECT id, square, stall FROM {}price")
    assert_prices(world)
    world.changes_parent(f"DELETE FROM {SCHEMA}.square WHERE id = 3")
    assert (5, None, None) in world.table("SELECT id, square, stall FROM {}price")
    assert_stalls(world)
    assert_prices(world)


def test_children_show_the_key_that_their_parent_got(world: World) -> None:
    world.changes_parent(f"UPDATE {SCHEMA}.stall SET number = 9 WHERE square = 2 AND number = 2")
    assert (4, 2, 9) in world.table("SELECT id, square, stall FROM {}price")
    assert_stalls(world)
    assert_prices(world)


def test_children_whose_own_key_changed_with_it_are_shown_under_the_new_one_alone(world: World) -> None:
    world.changes_parent(f"UPDATE {SCHEMA}.square SET id = 40 WHERE id = 4")
    assert (40, 1) in world.table("SELECT square, number FROM {}stall")
    assert (6, 40, 1) in world.table("SELECT id, square, stall FROM {}price")
    assert_stalls(world)
    assert_prices(world)


def test_all_below_a_row_of_a_tree_leave_with_it(world: World) -> None:
    world.changes_parent(f"DELETE FROM {SCHEMA}.genre WHERE id = 1")
    assert world.table("SELECT id FROM {}genre") == {(4,)}
    world.soon("by name", lambda: world.index("SELECT id FROM {}genre_by_name WHERE name IS NOT NULL") == {(4,)})
    world.soon("in Redis", lambda: world.hashes("genre") == {"4"})


def test_a_parent_that_was_altered_still_tells(world: World) -> None:
    world.ask(f"ALTER TABLE {SCHEMA}.city ADD COLUMN note VARCHAR(20) FIRST")
    world.changes_parent(f"DELETE FROM {SCHEMA}.city WHERE id = 5")
    assert_shops(world)


def test_what_came_while_the_cleaner_was_off_is_told_by_check_and_why_and_mended_by_verify(world: World) -> None:
    assert world.run.stop() == 0
    world.run.start()  # without a cleaner, as all commands of tests
    wait_for("it runs again", world.run.is_well)
    said = world.run.command("check").stdout
    assert "does not log what this key's cascades change here, so views would miss it" in " ".join(said.split())
    world.changes_parent(f"DELETE FROM {SCHEMA}.square WHERE id = 2")
    done = world.run.command("wait", "mysql:stall_by_name", "2:1")
    assert done.returncode == 0, done.stderr
    done = world.run.command("why", "mysql:stall_by_name", "2:1")
    assert done.returncode == 1, f"{done.stdout}{done.stderr}"
    assert "WRONG: the view shows it, and the table has no such row" in done.stdout
    done = world.run.command("verify", "--repair")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert_stalls(world)
    assert_prices(world)
