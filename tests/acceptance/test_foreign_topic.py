"""Views over a topic that a Debezium connector writes: filled from the topic itself, and followed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import redis

import stack.connect
from stack import Server
from tests.support.debezium import CONVERTER
from tests.support.published import Topic
from tests.support.running import Run, running, wait_for
from viewtail.changes.envelope import Message

SCHEMA, TOPIC = "foreign_topic", "dbz.foreign_topic.user"
VIEWS = f"""
from viewtail import Entity, RedisHash

views = [RedisHash("{SCHEMA}", Entity("{SCHEMA}.user"), fields=["name"])]
"""


def message(key: int, op: str, pos: int, *, before: str | None = None, after: str | None = None) -> Message:
    """In the connector's default JSON form."""

    def image(name: str | None) -> dict[str, Any] | None:
        return None if name is None else {"id": key, "name": name}

    source = {
        "version": "3.6.1.Final", "connector": "mysql", "name": "dbz", "ts_ms": 1_700_000_000_000, "db": SCHEMA,
        "snapshot": "true" if op == "r" else "false", "sequence": None, "table": "user", "server_id": 1, "gtid": None,
        "file": "binlog.000003", "pos": pos, "row": 0, "thread": None, "query": None,
    }  # fmt: skip
    value = {"before": image(before), "after": image(after), "source": source, "op": op, "ts_ms": 1_700_000_000_001}
    return json.dumps({"id": key}).encode(), json.dumps(value).encode(), 0


def test_it_is_filled_from_its_beginning_and_again_when_it_is_replayed(
    mysql_server: Server, redis_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    topic = Topic(kafka_server, TOPIC, partitions=2)
    for key in range(20):
        topic.publish_bytes(*message(key, "r", 1000, after=f"snapshot {key}")[:2], key % 2)
    topic.publish_bytes(*message(3, "u", 2000, before="snapshot 3", after="three")[:2], 1)
    topic.publish_bytes(*message(4, "d", 3000, before="snapshot 4")[:2], 0)
    topic.publish_bytes(message(4, "d", 3000)[0], None, 0)
    topic.publish_bytes(message(6, "d", 3000)[0], None, 0)  # of a delete that compaction took away
    connection = pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root")
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {SCHEMA}")
        cursor.execute(f"CREATE DATABASE {SCHEMA}")
        cursor.execute(f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, name VARCHAR(40))")
    client = redis.Redis(port=redis_server.port)

    def shown() -> dict[int, str]:
        names = client.scan_iter(f"{SCHEMA}:*")
        found = {int(name.rpartition(b":")[2]): client.hget(name, "name") for name in names if not name.endswith(b":t")}
        return {key: value.decode() for key, value in found.items() if value is not None}

    expected = {key: f"snapshot {key}" for key in range(20)} | {3: "three"}
    del expected[4], expected[6]
    environment = {
        "VIEWTAIL_SOURCE__URL": kafka_server.url,
        "VIEWTAIL_SOURCE__TOPICS": TOPIC,
        "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{SCHEMA}_views",
        "VIEWTAIL_REDIS__URL": redis_server.url,
        "VIEWTAIL_METRICS__PORT": "0",
    }
    planned = Run(tmp_path, VIEWS, environment).command("run", "--plan").stdout
    assert "it is new" in planned and "its rows come from a topic, which is read from its beginning" in planned
    with running(tmp_path, VIEWS, environment) as run:
        wait_for("the view is filled", run.is_well, 120)
        assert shown() == expected
        topic.publish_bytes(*message(6, "c", 4000, after="again")[:2], 0)
        topic.publish_bytes(*message(21, "c", 4000, after="new")[:2], 1)
        expected |= {6: "again", 21: "new"}
        wait_for("changes come", lambda: shown() == expected)
        client.delete(f"{SCHEMA}:7", f"{SCHEMA}:8")
        assert run.command("replay", "--yes", SCHEMA).returncode == 0
        wait_for("it is read again from its beginning", lambda: shown() == expected, 120)
        wait_for("and filled", run.is_well, 120)
        assert run.stop() == 0
        (tmp_path / "views.py").write_text(VIEWS.replace('fields=["name"]', 'fields=["name", "id"]'))
        assert "The next run halts it: it is filled from its topic" in run.command("run", "--plan").stdout
        run.start()
        wait_for("a redeclared view halts", lambda: "under another name" in run.command("status").stdout, 120)
        assert shown() == expected


# --- A real connector ---

LIVE, LIVE_VIEWS = "debezium_live", "debezium_live_views"
COLUMNS = ("email", "visits", "price", "made", "seen", "note")
CREATE = """CREATE TABLE {} (
    id BIGINT, part INT, email VARCHAR(60) DEFAULT 'none', visits INT NOT NULL, price DECIMAL(12,2), made DATETIME(6),
    seen TIMESTAMP(3) NULL, note TEXT, PRIMARY KEY (id, part)
)"""
DECLARED = f"""
from viewtail import Entity, IndexTable, RedisHash

user, pet = Entity("{LIVE}.user"), Entity("{LIVE}.pet")
views = [
    IndexTable("user_by_email", user, value="email"),
    RedisHash("{LIVE}_user", user, fields={COLUMNS}),
    IndexTable("pet_by_email", pet, value="email"),
    RedisHash("{LIVE}_pet", pet, fields={COLUMNS}),
]
"""
# By name of the connector: its table, and the settings that are not the default ones.
CONNECTORS = {
    "whole": ("user", {}),
    "plain": ("pet", {"key.converter.schemas.enable": "false", "value.converter.schemas.enable": "false"}),
}


class Tables:
    """Two tables that are changed at random, and what views of them show."""

    def __init__(self, mysql: Server, store: Server) -> None:
        self._connection = pymysql.connect(host=mysql.host, port=mysql.port, user="root", autocommit=True)
        self._redis = redis.Redis(port=store.port)
        self._rng = random.Random(12)
        self.query(
            f"DROP DATABASE IF EXISTS {LIVE_VIEWS}", f"DROP DATABASE IF EXISTS {LIVE}", f"CREATE DATABASE {LIVE}"
        )
        self.query(*(CREATE.format(f"{LIVE}.{table}") for table, _ in CONNECTORS.values()))

    def query(self, *statements: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def change(self, count: int) -> None:
        """Inserts, updates of several rows, of one twice, deletes, and changes of keys, the old one taken again."""
        rng = self._rng
        for number in range(count):
            key, table = rng.randrange(60), f"{LIVE}.{rng.choice(('user', 'pet'))}"
            email = rng.choice((f"'{number}@example.org'", "NULL", "'none'", "'é中😀'"))
            values = f"{email}, {number}, {rng.randrange(-999, 999)}.5, NOW(6), NOW(3), REPEAT('n', {number % 9})"
            twice = f"({key}, 2, {values}), ({key}, 2, {values})"
            self.query(
                rng.choice(
                    (
                        f"INSERT IGNORE INTO {table} VALUES ({key}, 1, {values}), ({key}, 2, {values})",
                        f"REPLACE INTO {table} VALUES ({key}, 1, {values})",
                        f"INSERT INTO {table} VALUES {twice} ON DUPLICATE KEY UPDATE visits = visits + 1",
                        f"UPDATE {table} SET visits = visits + 1, email = {email} WHERE id BETWEEN {key} AND {key + 5}",
                        f"UPDATE IGNORE {table} SET id = id + 1 WHERE id >= {key} ORDER BY id DESC LIMIT 3",
                        f"UPDATE IGNORE {table} SET part = 3 - part WHERE id = {key}",
                        f"DELETE FROM {table} WHERE id = {key}",
                    )
                )
            )

    def are_shown(self) -> bool:
        for table, _ in CONNECTORS.values():
            texts = ", ".join(f"CAST({name} AS CHAR)" for name in COLUMNS)
            rows = {row[:2]: row[2:] for row in self.query(f"SELECT id, part, {texts} FROM {LIVE}.{table}")}
            index = self.query(f"SELECT id, part, email FROM {LIVE_VIEWS}.{table}_by_email WHERE email IS NOT NULL")
            assert sorted(index) == sorted((*key, row[0]) for key, row in rows.items() if row[0] is not None)
            assert self._hashes(table) == rows
        return True

    def _hashes(self, table: str) -> dict[Any, Any]:
        names = [name for name in self._redis.scan_iter(f"{LIVE}_{table}:*") if not name.endswith(b":t")]
        found = {tuple(map(int, name.split(b":")[1:])): self._redis.hmget(name, COLUMNS) for name in names}
        return {key: tuple(None if value is None else value.decode() for value in row) for key, row in found.items()}


@contextmanager
def connectors(mysql: Server, broker: Server, folder: Path) -> Iterator[None]:
    """Debezium's MySQL source, one a table, in its default form; NULL stays NULL."""
    made = {}
    for number, (name, (table, form)) in enumerate(CONNECTORS.items()):
        (folder / name).mkdir()
        made[name] = {
            **stack.connect.mysql_source(mysql, name, folder / name),
            "database.server.id": str(184200 + number),
            "table.include.list": f"{LIVE}.{table}",
            "snapshot.locking.mode": "none",  # other tests use the server
            "topic.creation.default.partitions": "2",
            **{f"{part}.converter": CONVERTER for part in ("key", "value")},
            "value.converter.replace.null.with.default": "false",
            **form,
        }
    worker = stack.connect.start(folder / "worker", broker, made, [stack.connect.debezium_mysql()])
    try:
        yield
    finally:
        worker.kill()


def test_views_equal_the_tables_that_a_real_connector_publishes(
    mysql_server: Server, redis_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    tables = Tables(mysql_server, redis_server)
    tables.change(200)
    environment = {
        "VIEWTAIL_SOURCE__URL": kafka_server.url,
        "VIEWTAIL_SOURCE__TOPICS": ",".join(f"{name}.{LIVE}.{table}" for name, (table, _) in CONNECTORS.items()),
        "VIEWTAIL_SOURCE__REPLACE_NULL_WITH_DEFAULT": "false",
        "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{LIVE_VIEWS}",
        "VIEWTAIL_REDIS__URL": redis_server.url,
        "VIEWTAIL_METRICS__PORT": "0",
    }
    with connectors(mysql_server, kafka_server, tmp_path), running(tmp_path, DECLARED, environment) as run:
        wait_for("views show the snapshot", tables.are_shown, 120)
        tables.change(400)
        wait_for("changes come", tables.are_shown)
        wait_for("all is well, and no key is parked", run.is_well, 120)
        assert run.stop() == 0
        tables.change(100)
        run.start()
        wait_for("what changed meanwhile comes", tables.are_shown)
        assert run.stop() == 0
