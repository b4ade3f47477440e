"""The log of a first start: views of every store are made and filled, and a healthy start warns of nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pymysql
import pytest

from stack import Server
from tests.support.running import addresses, running, wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.elasticsearch, pytest.mark.kafka]

VIEWS = """
from viewtail import Entity, IndexTable, RedisHash, RedisSet, SearchIndex, Topic
user = Entity("first_start.user")
views = [
    IndexTable("ix", user, value="email"),
    IndexTable("ix_tag", user, value="tags", each="VARCHAR(60)"),
    RedisHash("first_start", user, fields=["email"]),
    RedisSet("first_start_of", user, key="users_of:{email}"),
    Topic("first_start.mysql", user),
    *(SearchIndex(f"first_start_{number}", user, fields={"email": "keyword"}) for number in range(4)),
]
"""
ROWS = 300
VIEW_COUNT = 9


def test_a_healthy_first_start_warns_of_nothing(
    mysql_server: Server, redis_server: Server, elasticsearch_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    with (
        pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root", autocommit=True) as session,
        session.cursor() as cursor,
    ):
        for statement in (
            "DROP DATABASE IF EXISTS first_start_own", "DROP DATABASE IF EXISTS first_start",
            "CREATE DATABASE first_start",
            "CREATE TABLE first_start.user (id INT PRIMARY KEY, email VARCHAR(60), tags JSON NOT NULL)",
        ):  # fmt: skip
            cursor.execute(statement)
        rows = [(number, f"e{number}", '["a", "b"]') for number in range(ROWS)]
        cursor.executemany("INSERT INTO first_start.user VALUES (%s, %s, %s)", rows)
        settings = {
            **addresses(mysql_server, redis_server, elasticsearch_server),
            "VIEWTAIL_KAFKA__URL": kafka_server.url,
            "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/first_start_own",
        }

        def filled() -> bool:
            cursor.execute("SELECT state FROM first_start_own.view")
            return [state for (state,) in cursor.fetchall()] == ["filled"] * VIEW_COUNT

        with running(tmp_path, VIEWS, settings) as run:
            wait_for("all views are filled", filled, 120)
            wait_for("all is well", run.is_well)
            said = [json.loads(line) for line in run.log.splitlines() if line.startswith("{")]
            assert [line for line in said if line["level"] not in ("info", "debug")] == []
            assert sum(line["event"] == "view backfilled" for line in said) == VIEW_COUNT
