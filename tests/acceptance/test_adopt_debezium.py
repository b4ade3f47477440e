"""The table that Debezium's JDBC sink really left, some of it damaged: audited, adopted, and kept from there on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from stack import Server, connect
from tests.support.other_tools import reading
from tests.support.running import Run, addresses, wait_for

SOURCE, COPY = "left_source", "left_copy"
TOPIC, TABLE = f"left.{SOURCE}.member", f"left_{SOURCE}_member"
VIEWS = f"""
from viewtail import Entity, IndexTable

member = Entity("{SOURCE}.member")
views = [IndexTable("{TABLE}", member, value=["name", "email", "visits", "score", "born", "seen"])]
"""
ROWS = 400
COLUMNS = "id, name, email, visits, score, born, seen"


class Left:
    """The source table, and the one that the sink keeps."""

    def __init__(self, mysql: Server) -> None:
        self.mysql = mysql

    def ask(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        with (
            pymysql.connect(host=self.mysql.host, port=self.mysql.port, user="root", autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(sql, arguments or None)
            return list(cursor.fetchall())

    def make(self) -> None:
        for database in (SOURCE, COPY):
            self.ask(f"CREATE DATABASE {database}")
        self.ask(
            f"CREATE TABLE {SOURCE}.member (id INT NOT NULL PRIMARY KEY, name VARCHAR(64) NOT NULL, "
            "email VARCHAR(100) NULL, visits INT NOT NULL, score DECIMAL(10,2) NULL, born DATE NULL, seen DATETIME(3))"
        )
        rows = ", ".join(
            f"({n}, 'Name {n}', {'NULL' if n % 9 == 0 else repr(f'm{n}@x.org')}, {n % 7}, {n}.25, "
            f"'1990-01-01' + INTERVAL {n} DAY, '2024-05-06 07:08:09.123' + INTERVAL {n} SECOND)"
            for n in range(1, ROWS + 1)
        )
        self.ask(f"INSERT INTO {SOURCE}.member VALUES {rows}")

    def change(self) -> None:
        """While the sink follows."""
        self.ask(f"UPDATE {SOURCE}.member SET visits = visits + 1 WHERE id % 5 = 0")
        self.ask(f"DELETE FROM {SOURCE}.member WHERE id IN (50, 51)")
        self.ask(f"INSERT INTO {SOURCE}.member VALUES (900, 'Late', NULL, 1, NULL, NULL, NULL)")

    def damage(self) -> None:
        """When it is stopped: 2 missing, 1 extra, 4 wrong."""
        self.ask(f"DELETE FROM {COPY}.{TABLE} WHERE id IN (5, 6)")
        self.ask(f"UPDATE {COPY}.{TABLE} SET name = 'else' WHERE id = 7")
        self.ask(f"UPDATE {COPY}.{TABLE} SET visits = visits + 1 WHERE id IN (8, 10)")
        self.ask(f"UPDATE {COPY}.{TABLE} SET seen = seen + INTERVAL 7 MICROSECOND WHERE id = 15")
        self.ask(f"INSERT INTO {COPY}.{TABLE} (id, name, visits) VALUES (7001, 'stray', 0)")

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return self.ask(f"SELECT {COLUMNS} FROM {table} WHERE id < 7000 ORDER BY id")


@pytest.fixture
def left(mysql_server: Server, kafka_server: Server, tmp_path: Path) -> Iterator[Left]:
    """Debezium reads the table, its sink writes the other one; both have ended."""
    made = Left(mysql_server)
    made.make()
    admin = AdminClient({"bootstrap.servers": f"{kafka_server.host}:{kafka_server.port}"})
    for topic in admin.create_topics([NewTopic(TOPIC, 1)]).values():
        topic.result(timeout=10)
    source = {
        **connect.mysql_source(mysql_server, "left", tmp_path),
        "table.include.list": f"{SOURCE}.member",
        "snapshot.locking.mode": "none",  # other tests use the server
    }
    sink = connect.jdbc_sink(mysql_server, COPY, [TOPIC])
    plugins = [connect.debezium_mysql(), connect.debezium_jdbc()]
    worker = connect.start(tmp_path / "worker", kafka_server, {"source": source, "sink": sink}, plugins)
    try:
        of_the_sink = f"SELECT COUNT(*) FROM {COPY}.{TABLE}"
        wait_for("the sink has the snapshot", lambda: made.ask(of_the_sink) == [(ROWS,)])
        made.change()
        wait_for("the sink follows", lambda: made.rows(f"{COPY}.{TABLE}")[-1][0] == 900)
    finally:
        worker.kill()
    yield made
    for database in (SOURCE, COPY):
        made.ask(f"DROP DATABASE {database}")


@pytest.mark.kafka
def test_what_the_jdbc_sink_left_is_audited_and_adopted(left: Left, tmp_path: Path) -> None:
    print(left.ask(f"SHOW CREATE TABLE {COPY}.{TABLE}"))
    environ = addresses(left.mysql)
    environ["VIEWTAIL_MYSQL__URL"] = f"{left.mysql.url}/{COPY}"
    run = Run(tmp_path, VIEWS, environ)
    done = run.command("audit", TABLE, "--json", "--again-after", "1s")
    (view,) = json.loads(done.stdout)["views"]
    assert view["is_equal"], done.stdout[:2000]
    left.damage()
    done = run.command("audit", TABLE, "--json", "--again-after", "1s")
    (view,) = json.loads(done.stdout)["views"]
    assert view["differing"] == {"missing": 2, "extra": 1, "stale": 0, "wrong": 4}, view
    assert view["fields"] == {"visits": 2, "name": 1, "seen": 1}
    done = run.command("adopt", TABLE)
    assert "column seen is datetime(6), and datetime(3) as declared, which some of its values do not fit" in done.stderr
    left.ask(f"UPDATE {COPY}.{TABLE} SET seen = '2020-01-01' WHERE id = 15")
    found = f"SELECT 1 FROM {COPY}.{TABLE} WHERE id = %s"
    with reading({"table": lambda number: bool(left.ask(found, number))}, range(100, 400)) as missed:
        done = run.command("adopt", TABLE)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 extra key left" in done.stdout
        run.start()
        try:
            wait_for("all is well", run.is_filled)
            left.ask(f"INSERT INTO {SOURCE}.member VALUES (901, 'New', NULL, 1, 2.5, '2001-02-03', NULL)")
            left.ask(f"UPDATE {SOURCE}.member SET visits = 77, seen = '2025-01-01 01:02:03.004' WHERE id = 8")
            left.ask(f"DELETE FROM {SOURCE}.member WHERE id = 9")
            wanted = left.rows(f"{SOURCE}.member")
            wait_for("live changes are right", lambda: shown(left) == wanted)
        finally:
            run.kill()
    assert not missed


def shown(left: Left) -> list[tuple[Any, ...]]:
    return [row for row in left.rows(f"{COPY}.{TABLE}") if row[1] is not None]  # others are tombstones
