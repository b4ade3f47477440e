"""New views filled from compacted topics of viewtail's own, for a team that cannot read the canonical table."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import elasticsearch
import pymysql
import pytest
import redis
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]

import stack.mysql
from stack import Server
from tests.support import topic_log
from tests.support.asking import ask
from tests.support.events import user_table
from tests.support.published import Topic, change, messages
from tests.support.running import Run, addresses, running, wait_for

SCHEMA, OWN = "bootstrap", "bootstrap_own"
USER = f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, email VARCHAR(60) NOT NULL, visits INT NOT NULL)"
PUBLISHED = f"""
from viewtail import Entity, Topic

views = [
    Topic("{SCHEMA}.user", Entity("{SCHEMA}.user"), partitions=2, config={{
        "segment.ms": 200, "min.cleanable.dirty.ratio": 0.001, "max.compaction.lag.ms": 500,
    }}),
]
"""
VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash, SearchIndex

user, log = Entity("{SCHEMA}.user"), Entity("{SCHEMA}.log")

views = [
    IndexTable("user_by_email", user, value="email"),
    RedisHash("{SCHEMA}", user, fields=["email", "visits"]),
    SearchIndex("{SCHEMA}", user, fields={{"email": "keyword", "visits": "long"}}),
    RedisHash("{SCHEMA}_log", log, fields=["name"]),
]
"""
EARLY = 300  # rows that are deleted before anybody reads the topic
pytestmark = [pytest.mark.mysql, pytest.mark.kafka, pytest.mark.slow]


class Writer:
    """Inserts, changes, deletes and moves rows until it is stopped."""

    def __init__(self, server: Server) -> None:
        self._server, self._stop = server, threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        chance = random.Random(12)
        address = {"host": "127.0.0.1", "port": self._server.port, "user": "root"}
        with closing(pymysql.connect(**address, autocommit=True)) as connection, connection.cursor() as cursor:
            while not self._stop.wait(0.003):
                key, kind = 1000 + chance.randrange(300), chance.random()
                if kind < 0.25:
                    cursor.execute(f"DELETE FROM {SCHEMA}.user WHERE id = %s", (key,))
                elif kind < 0.35:
                    moved = 1000 + chance.randrange(300)
                    cursor.execute(f"UPDATE IGNORE {SCHEMA}.user SET id = %s WHERE id = %s", (moved, key))
                else:
                    cursor.execute(
                        f"INSERT INTO {SCHEMA}.user VALUES (%s, %s, 1) AS new "
                        "ON DUPLICATE KEY UPDATE email = new.email, visits = user.visits + 1",
                        (key, f"{chance.randrange(10**6)}@example.org"),
                    )


def configure(kafka: Server, kind: ResourceType, name: str, setting: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.url.removeprefix("kafka://")})
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    for future in admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])]).values():
        future.result(10)


@pytest.fixture(scope="module")
def team_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The other team's own server: with the tables as they are defined, and not a row in them."""
    server = stack.mysql.start(tmp_path_factory.mktemp("team"))
    ask(server, f"CREATE DATABASE {SCHEMA}")
    ask(server, USER)
    ask(server, f"CREATE TABLE {SCHEMA}.log (id BIGINT PRIMARY KEY, name VARCHAR(40))")
    yield server
    server.kill()


@pytest.fixture
def tailer(mysql_server: Server, kafka_server: Server, tmp_path: Path) -> Iterator[Run]:
    for name in (SCHEMA, OWN):
        ask(mysql_server, f"DROP DATABASE IF EXISTS {name}")
    ask(mysql_server, f"CREATE DATABASE {SCHEMA}")
    ask(mysql_server, USER)
    rows = ", ".join(f"({key}, '{key}@example.org', 0)" for key in range(2 * EARLY))
    ask(mysql_server, f"INSERT INTO {SCHEMA}.user VALUES {rows}")
    folder = tmp_path / "tailer"
    folder.mkdir()
    own = {"VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{OWN}", "VIEWTAIL_KAFKA__URL": kafka_server.url}
    with running(folder, PUBLISHED, {**addresses(mysql_server), **own}) as run:
        wait_for("the topic is filled", run.is_well, 60)
        yield run
        assert run.stop() == 0


def kept(kafka: Server) -> dict[int, int]:
    """By key, how many messages the topic still has of it, tombstones too."""
    found: defaultdict[int, int] = defaultdict(int)
    for one in topic_log.told(kafka, f"{SCHEMA}.user"):
        found[one.key[0]] += 1
    return found


def is_compacted(kafka: Server) -> bool:
    """Whether deletes are gone with all that they deleted, and nothing but the newest is left of what changed once."""
    found = kept(kafka)
    assert not [key for key in found if key < EARLY], "not even tombstones are left"
    assert {found[key] for key in range(EARLY, 2 * EARLY)} == {1}
    return True


class Shown:
    """What the views show."""

    def __init__(self, mysql: Server, redis_server: Server, search: Server) -> None:
        self._mysql, self._redis = mysql, redis.Redis(port=redis_server.port, decode_responses=True)
        self._search = elasticsearch.Elasticsearch(search.url)

    def are_equal(self, table: dict[int, tuple[str, int]]) -> bool:
        found = dict(ask(self._mysql, f"SELECT id, email FROM {OWN}.user_by_email WHERE email IS NOT NULL"))
        assert found == {key: email for key, (email, _) in table.items()}
        names = [name for name in self._redis.scan_iter(f"{SCHEMA}:*", 1000) if not name.endswith(":t")]
        pipe = self._redis.pipeline(transaction=False)
        for name in names:
            pipe.hmget(name, "email", "visits")
        rows: list[Any] = pipe.execute()
        hashes = {int(name.split(":")[1]): (row[0], int(row[1])) for name, row in zip(names, rows, strict=True)}
        assert hashes == table
        self._search.indices.refresh(index=SCHEMA)
        hits = self._search.search(index=SCHEMA, size=2000)["hits"]["hits"]
        documents = {int(hit["_id"]): (hit["_source"]["email"], hit["_source"]["visits"]) for hit in hits}
        assert documents == table
        return True


def test_views_filled_from_a_compacted_topic_equal_the_table_and_what_cannot_be_filled_so_halts_alone(
    mysql_server: Server, team_mysql: Server, redis_server: Server, elasticsearch_server: Server, kafka_server: Server,
    tailer: Run, tmp_path: Path,
) -> None:  # fmt: skip
    topic = f"{SCHEMA}.user"
    configure(kafka_server, ResourceType.TOPIC, topic, "delete.retention.ms", "300")
    log = Topic(kafka_server, f"{SCHEMA}.log")  # its retention took the first rows
    log.publish(messages(user_table(), [change("insert", key, 10 + key, after=(key, "x")) for key in range(9)]))
    log.delete_before(5)
    shown = Shown(team_mysql, redis_server, elasticsearch_server)
    urls = {"VIEWTAIL_SOURCE__URL": kafka_server.url, "VIEWTAIL_MYSQL__URL": f"{team_mysql.url}/{OWN}"}
    environment = {**addresses(team_mysql, redis_server, elasticsearch_server), **urls}
    environment["VIEWTAIL_SOURCE__FILL_FROM"] = "topic"
    folder = tmp_path / "team"
    folder.mkdir()
    with ExitStack() as until_the_end:
        with Writer(mysql_server):
            ask(mysql_server, f"DELETE FROM {SCHEMA}.user WHERE id < {EARLY}")
            ask(mysql_server, f"UPDATE {SCHEMA}.user SET visits = 7 WHERE id BETWEEN {EARLY} AND {2 * EARLY - 1}")
            wait_for("the topic is compacted", lambda: is_compacted(kafka_server), 60)
            configure(kafka_server, ResourceType.TOPIC, topic, "delete.retention.ms", "600000")
            run = until_the_end.enter_context(running(folder, VIEWS, environment))
            wait_for("the views are filled", lambda: run.log.count("view filled from the topic") >= 6, 90)
            ask(mysql_server, f"DELETE FROM {SCHEMA}.user WHERE id = {EARLY}")
            wait_for("a change comes", lambda: not _has(team_mysql, EARLY))
        rows = ask(mysql_server, f"SELECT id, email, visits FROM {SCHEMA}.user")
        table = {key: (email, visits) for key, email, visits in rows}
        wait_for("the views equal the table", lambda: shown.are_equal(table))
        told = run.command("status").stdout
        assert "its retention" in told and "VIEWTAIL_SOURCE__FILL_FROM=table" in told, told
        checked = run.command("check")
        assert checked.returncode == 1 and "topic bootstrap.log fills views" in checked.stdout, checked.stdout
        assert run.stop() == 0


def _has(server: Server, key: int) -> bool:
    return bool(ask(server, f"SELECT 1 FROM {OWN}.user_by_email WHERE id = {key} AND email IS NOT NULL"))
