"""How many connections a pipeline has to MySQL, and to its store: as many for sixty views as for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
import pytest
import redis
from elasticsearch import Elasticsearch

from stack import Server
from tests.support.connections import connections_of
from tests.support.running import Run, addresses, wait_for
from viewtail.operations.sessions import BUSY, CLEANER, PIPELINE

SCHEMA, STORE = "counted", "counted_views"
VIEWS = 60
CLEANING = {"VIEWTAIL_CLEANER__SHARE": "0.8", "VIEWTAIL_CLEANER__REST_S": "1"}
SETTING = {
    "redis": "VIEWTAIL_REDIS__URL",
    "elasticsearch": "VIEWTAIL_ELASTICSEARCH__URL",
    "kafka": "VIEWTAIL_KAFKA__URL",
}
DECLARED = {
    "mysql": 'IndexTable(f"counted{n}", thing, value="name")',
    "redis": 'RedisHash(f"counted{n}", thing, fields=["name"])',
    "elasticsearch": 'SearchIndex(f"counted{n}", thing, fields={"name": "keyword"})',
    "kafka": 'Topic(f"counted{n}", thing)',
}
# Of one store: the pipeline's sink, four backfills, the cleaner's look, its round and what it mends; Elasticsearch's
# bulk requests go out side by side, and a topic's producer and readers know each broker by two connections.
TO_A_STORE = {"redis": 8, "elasticsearch": 30, "kafka": 30}


@dataclass
class World:
    """Sixty views of one kind over a table of three rows, and the most connections their pipeline was seen with."""

    run: Run
    mysql: Server
    store: str
    port: int  # of the store
    client: redis.Redis | Elasticsearch | None
    most: Counter[int] = field(default_factory=Counter)  # by port

    def ask(self, *statements: str) -> list[tuple[object, ...]]:
        server = pymysql.connect(host=self.mysql.host, port=self.mysql.port, user="root", autocommit=True)
        with server as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def counting(self, condition: Callable[[], bool]) -> Callable[[], bool]:
        """The condition, which counts each time it is asked."""

        def counted() -> bool:
            pid = self.run.workers().get(self.store)
            if pid is not None:
                self.most |= connections_of(pid)
            return condition()

        return counted

    def now(self) -> int:
        """Connections to MySQL."""
        return connections_of(self.run.workers()[self.store])[self.mysql.port]

    def are_filled(self) -> bool:
        return self.ask(f"SELECT state, COUNT(*) FROM {STORE}.view GROUP BY state") == [("filled", VIEWS)]

    def damage(self) -> None:
        """The first row, in every view."""
        if isinstance(self.client, redis.Redis):
            for n in range(VIEWS):
                self.client.hset(f"counted{n}:1", "name", "damaged")
        elif isinstance(self.client, Elasticsearch):
            operations: list[dict[str, object]] = []
            for one in self._documents():
                place = {"_index": one["_index"], "_id": "1", "version": one["_version"]}
                operations += [{"index": {**place, "version_type": "external_gte"}}, {"name": "damaged"}]
            assert not self.client.bulk(operations=operations)["errors"]
        elif self.store == "mysql":
            self.ask(*(f"UPDATE {STORE}.counted{n} SET name = 'damaged' WHERE id = 1" for n in range(VIEWS)))

    def are_all(self, name: str) -> bool:
        """Whether the first row has that name in every view; topics are not read."""
        if isinstance(self.client, redis.Redis):
            return {self.client.hget(f"counted{n}:1", "name") for n in range(VIEWS)} == {name.encode()}
        if isinstance(self.client, Elasticsearch):
            return all(one.get("_source") == {"name": name} for one in self._documents())
        if self.store == "mysql":
            tables = " UNION ".join(f"SELECT name FROM {STORE}.counted{n} WHERE id = 1" for n in range(VIEWS))
            return self.ask(tables) == [(name,)]
        return self.run.is_well()

    def _documents(self) -> list[dict[str, object]]:
        assert isinstance(self.client, Elasticsearch)
        wanted = [{"_index": f"viewtail-counted{n}", "_id": "1"} for n in range(VIEWS)]
        return list(self.client.mget(docs=wanted)["docs"])


@pytest.fixture(params=DECLARED)
def world(request: pytest.FixtureRequest, tmp_path: Path, mysql_server: Server) -> Iterator[World]:
    store: str = request.param
    environment = {**addresses(mysql_server), "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{STORE}", **CLEANING}
    server = mysql_server if store == "mysql" else request.getfixturevalue(f"{store}_server")
    if store in SETTING:
        environment[SETTING[store]] = server.url
    client = {"redis": lambda: redis.Redis(port=server.port), "elasticsearch": lambda: Elasticsearch(server.url)}
    declared = f'thing = Entity("{SCHEMA}.thing")\nviews = [{DECLARED[store]} for n in range({VIEWS})]\n'
    run = Run(tmp_path, f"from viewtail import *\n{declared}", environment)
    found = World(run, mysql_server, store, server.port, client[store]() if store in client else None)
    found.ask(f"DROP DATABASE IF EXISTS {SCHEMA}", f"DROP DATABASE IF EXISTS {STORE}", f"CREATE DATABASE {SCHEMA}")
    found.ask(
        f"CREATE TABLE {SCHEMA}.thing (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL)",
        f"INSERT INTO {SCHEMA}.thing VALUES (1, 'one'), (2, 'two'), (3, 'three')",
    )
    run.start()
    try:
        yield found
    except BaseException:
        print(run.log[-6000:])
        raise
    finally:
        run.kill()
        if isinstance(found.client, Elasticsearch):
            made = [f"viewtail-counted{n}" for n in range(VIEWS)]
            found.client.indices.delete(index=made, ignore_unavailable=True)


def test_a_pipeline_has_as_many_connections_for_sixty_views_as_for_one(world: World) -> None:
    """The cleaner looks at all of them and mends them all; then it keeps none of what it opened for that."""
    wait_for("all are filled", world.counting(world.are_filled), timeout_s=200)
    world.ask(f"UPDATE {SCHEMA}.thing SET name = 'first' WHERE id = 1")
    wait_for("all have it", world.counting(lambda: world.are_all("first")))
    world.damage()
    wait_for("all are mended", world.counting(lambda: world.are_all("first")))
    wait_for("it is at rest", lambda: world.now() <= (PIPELINE + CLEANER).total)
    assert world.most[world.mysql.port] <= (PIPELINE + CLEANER + BUSY).total
    if world.store != "mysql":
        assert 0 < world.most[world.port] <= TO_A_STORE[world.store]
