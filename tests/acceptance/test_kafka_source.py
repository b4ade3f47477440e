"""Through Kafka: a tailer publishes a table, and processes that share its partitions keep views equal to the table."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from stack import Server
from tests.support.running import Run, wait_for

SCHEMA, DATABASE = "through_kafka", "through_kafka_views"
VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash, Topic

user = Entity("{SCHEMA}.user")
views = [
    Topic("{SCHEMA}.user", user, partitions=4),
    IndexTable("user_by_email", user, value="email"),
    RedisHash("{SCHEMA}", user, fields=["email", "visits"]),
]
"""


@dataclass
class Fleet:
    """The servers, and the processes over them."""

    mysql: Server
    redis: Server
    kafka: Server
    folder: Path
    runs: ExitStack

    def tailer(self) -> Run:
        return self._run("tailer", "tail", self.mysql.url)

    def projector(self, name: str) -> Run:
        return self._run(name, "project", self.kafka.url)

    def _run(self, name: str, role: str, source: str) -> Run:
        folder = self.folder / name
        folder.mkdir()
        run = Run(
            folder,
            VIEWS,
            {
                "VIEWTAIL_SOURCE__URL": source,
                "VIEWTAIL_MYSQL__URL": f"{self.mysql.url}/{DATABASE}",
                "VIEWTAIL_REDIS__URL": self.redis.url,
                "VIEWTAIL_KAFKA__URL": self.kafka.url,
                "VIEWTAIL_METRICS__PORT": "0",
            }
            if role == "tail"
            else {
                "VIEWTAIL_SOURCE__URL": source,
                "VIEWTAIL_MYSQL__URL": f"{self.mysql.url}/{DATABASE}",
                "VIEWTAIL_REDIS__URL": self.redis.url,
                "VIEWTAIL_METRICS__PORT": "0",
            },
        )
        run.start("--role", role)
        self.runs.callback(run.kill)
        return run

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def connect(self) -> pymysql.Connection[Any]:
        return pymysql.connect(host="127.0.0.1", port=self.mysql.port, user="root", autocommit=True)

    def table(self) -> dict[int, tuple[str, int]]:
        return {row[0]: (row[1], row[2]) for row in self.query(f"SELECT id, email, visits FROM {SCHEMA}.user")}

    def index_table(self) -> dict[int, str]:
        return dict(self.query(f"SELECT id, email FROM {DATABASE}.user_by_email WHERE email IS NOT NULL"))  # type: ignore[arg-type]

    def hashes(self) -> dict[int, tuple[str, int]]:
        client = redis.Redis(port=self.redis.port)
        names = [name for name in client.scan_iter(f"{SCHEMA}:*", 1000) if not name.endswith(b":t")]
        pipe = client.pipeline(transaction=False)
        for name in names:
            pipe.hmget(name, "email", "visits")
        return {
            int(name.rpartition(b":")[2]): (email.decode(), int(visits))
            for name, (email, visits) in zip(names, pipe.execute(), strict=True)
            if email is not None
        }

    def are_equal(self) -> bool:
        table = self.table()
        assert self.index_table() == {key: email for key, (email, _) in table.items()}
        assert self.hashes() == table
        return True


class Writer:
    """Changes rows until it is stopped."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        rng = random.Random(5)
        with closing(self._fleet.connect()) as connection, connection.cursor() as cursor:
            number = 0
            while not self._stop.wait(0.002):
                number += 1
                key = rng.randrange(2000)
                if number % 7 == 0:
                    cursor.execute(f"DELETE FROM {SCHEMA}.user WHERE id = %s", (key,))
                elif number % 97 == 0:
                    cursor.execute(
                        f"UPDATE IGNORE {SCHEMA}.user SET id = id + 10000 WHERE id BETWEEN %s AND %s", (key, key + 3)
                    )
                else:
                    cursor.execute(
                        f"INSERT INTO {SCHEMA}.user VALUES (%s, %s, 1) "
                        "ON DUPLICATE KEY UPDATE email = VALUES(email), visits = visits + 1",
                        (key, f"{number}@example.org"),
                    )

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def fleet(mysql_server: Server, redis_server: Server, kafka_server: Server, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as runs:
        made = Fleet(mysql_server, redis_server, kafka_server, tmp_path, runs)
        made.query(f"DROP DATABASE IF EXISTS {SCHEMA}")
        made.query(f"DROP DATABASE IF EXISTS {DATABASE}")
        made.query(f"CREATE DATABASE {SCHEMA}")
        made.query(f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, email VARCHAR(60) NOT NULL, visits INT NOT NULL)")
        rows = ", ".join(f"({key}, '{key}@example.org', 0)" for key in range(1500))
        made.query(f"INSERT INTO {SCHEMA}.user VALUES {rows}")
        yield made


def test_views_equal_their_table_while_members_come_and_go(fleet: Fleet) -> None:
    tailer = fleet.tailer()
    one = fleet.projector("one")
    two = fleet.projector("two")
    writer = Writer(fleet)
    try:
        wait_for("both are members", lambda: "partitions taken" in one.log and "partitions taken" in two.log)
        wait_for("all views are filled", one.is_well, 60)
        two.kill()
        three = fleet.projector("three")
        began = time.monotonic()
        wait_for("the one that is left, and the one that came, share all", lambda: "partitions taken" in three.log)
        print("rebalanced within", time.monotonic() - began)
        time.sleep(1)
    finally:
        writer.stop()
        for run in (tailer, one, two):
            print(run.folder.name, run.log[-3000:])
    wait_for("views equal their table", fleet.are_equal)
    assert [run.stop() for run in (one, three, tailer)] == [0, 0, 0]
