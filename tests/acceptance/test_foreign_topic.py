"""Views over a topic that a Debezium connector writes: filled from the topic itself, and followed."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import redis

from changes.envelope import Message
from stack import Server
from tests.support.published import Topic
from tests.support.running import running, wait_for

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
    del expected[4]
    environment = {
        "VIEWTAIL_SOURCE__URL": kafka_server.url,
        "VIEWTAIL_SOURCE__TOPICS": TOPIC,
        "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{SCHEMA}_views",
        "VIEWTAIL_REDIS__URL": redis_server.url,
        "VIEWTAIL_METRICS__PORT": "0",
    }
    with running(tmp_path, VIEWS, environment) as run:
        wait_for("the view is filled", run.is_well, 90)
        assert shown() == expected
        topic.publish_bytes(*message(21, "c", 4000, after="new")[:2], 1)
        expected[21] = "new"
        wait_for("changes come", lambda: shown() == expected)
        client.delete(f"{SCHEMA}:7", f"{SCHEMA}:8")
        assert run.command("replay", SCHEMA).returncode == 0
        wait_for("it is read again from its beginning", lambda: shown() == expected, 60)
        wait_for("and filled", run.is_well, 60)
        assert run.stop() == 0
        (tmp_path / "views.py").write_text(VIEWS.replace('fields=["name"]', 'fields=["name", "id"]'))
        run.start()
        wait_for("a redeclared view halts", lambda: "under another name" in run.command("status").stdout, 60)
        assert shown() == expected
