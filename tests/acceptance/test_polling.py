"""`viewtail run` over tables that are polled, as a user meets it: no binlog is read, no right but SELECT is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, running, wait_for

VIEWS = """
from viewtail import Entity, IndexTable, RedisJson

account = Entity("bank.account", key="entity_id", version="version", append_only=True, order="event_id")
views = [
    IndexTable("account_by_balance", account, value="balance"),
    RedisJson("account", account, fields=["balance"], key="account:{entity_id}"),
]
"""
TABLE = (
    "CREATE TABLE bank.account (event_id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, entity_id VARCHAR(40) NOT NULL, "
    "version BIGINT UNSIGNED NOT NULL, balance INT, UNIQUE (entity_id, version))"
)
NEWEST = (
    "SELECT entity_id, balance FROM bank.account a WHERE version = "
    "(SELECT MAX(version) FROM bank.account b WHERE b.entity_id = a.entity_id) ORDER BY entity_id"
)

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]


class Polled:
    def __init__(self, mysql: Server, redis_server: Server, run: Run) -> None:
        self.mysql, self.run = mysql, run
        self.redis = redis.Redis(host="127.0.0.1", port=redis_server.port)

    def event(self, entity: str, version: int, balance: int) -> str:
        return f"INSERT INTO bank.account (entity_id, version, balance) VALUES ('{entity}', {version}, {balance})"

    def add(self, entity: str, version: int, balance: int) -> None:
        ask(self.mysql, self.event(entity, version, balance))

    def is_equal(self) -> bool:
        rows = ask(self.mysql, NEWEST)
        index = ask(self.mysql, "SELECT entity_id, balance FROM viewtail.account_by_balance ORDER BY entity_id")
        documents = [json.loads(self.redis.get(f"account:{name}") or b"{}").get("balance") for name, _ in rows]
        return index == rows and documents == [balance for _, balance in rows]


@pytest.fixture
def polled(mysql_server: Server, redis_server: Server, tmp_path: Path) -> Iterator[Polled]:
    for statement in (
        "DROP DATABASE IF EXISTS viewtail",
        "DROP DATABASE IF EXISTS bank",
        "CREATE DATABASE bank",
        "CREATE DATABASE viewtail",
        TABLE,
        "DROP USER IF EXISTS poller, keeper",
        "CREATE USER poller IDENTIFIED BY 'p'",
        "CREATE USER keeper IDENTIFIED BY 'k'",
        "GRANT SELECT ON bank.* TO poller",
        "GRANT SELECT ON performance_schema.* TO poller",
        "GRANT ALL ON viewtail.* TO keeper",
    ):
        ask(mysql_server, statement)
    redis.Redis(host="127.0.0.1", port=redis_server.port).flushall()
    at = f"127.0.0.1:{mysql_server.port}"
    settings = {
        **addresses(mysql_server, redis_server),
        "VIEWTAIL_SOURCE__URL": f"mysql://poller:p@{at}",
        "VIEWTAIL_SOURCE__MODE": "poll",
        "VIEWTAIL_MYSQL__URL": f"mysql://keeper:k@{at}/viewtail",
    }
    for number in range(50):
        ask(mysql_server, f"INSERT INTO bank.account (entity_id, version, balance) VALUES ('e{number}', 1, {number})")
    with running(tmp_path, VIEWS, settings) as run:
        yield Polled(mysql_server, redis_server, run)


def test_what_cannot_be_polled_is_refused_with_what_to_do(polled: Polled) -> None:
    wait_for("they are filled", polled.is_equal)
    assert polled.run.stop() == 0
    views = polled.run.folder / "views.py"
    views.write_text(VIEWS.replace(', order="event_id"', ""))
    polled.run.start()
    assert polled.run.process is not None and polled.run.process.wait(30) == 2
    assert "no entity says by which column" in polled.run.log


def test_an_order_that_is_not_the_column_with_the_ids_is_found_by_check(polled: Polled) -> None:
    (polled.run.folder / "views.py").write_text(VIEWS.replace('order="event_id"', 'order="version"'))
    done = polled.run.command("check", "--json")
    (ids,) = (one for one in json.loads(done.stdout)["findings"] if one["what"] == "ids of bank.account")
    assert done.returncode == 1 and ids["level"] == "fail"
    assert "AUTO_INCREMENT event_id, and views.py says order='version'" in ids["seen"]
    assert "order='event_id'" in ids["mend"]


def test_a_bounded_wait_is_named_in_status_with_its_risk(polled: Polled) -> None:
    wait_for("they are filled", polled.is_equal)
    assert "MISSED" not in polled.run.command("status").stdout
    assert polled.run.stop() == 0
    ask(polled.mysql, "REVOKE SELECT ON performance_schema.* FROM poller")
    polled.run._environment["VIEWTAIL_SOURCE__POLL_WAIT_S"] = "2.5"
    polled.run.start()
    polled.add("e1", 2, 1_000)
    wait_for("they follow", polled.is_equal)
    said = polled.run.command("status").stdout
    assert "a row is MISSED" in said and "longer than 2.5 s" in said and "performance_schema" in said


def test_views_of_a_polled_table_are_filled_and_follow_it(polled: Polled) -> None:
    wait_for("they are filled", polled.is_equal)
    polled.add("e1", 2, 1_000)
    polled.add("new", 1, 5)
    wait_for("they follow", polled.is_equal)
    slow = pymysql.connect(host="127.0.0.1", port=polled.mysql.port, user="root")
    slow.query(polled.event("slow", 1, 9))
    polled.add("e2", 2, 2_000)
    wait_for("they follow while a transaction is open", polled.is_equal)
    assert polled.run.stop() == 0
    slow.commit()
    polled.add("e2", 3, 3_000)
    polled.run.start()
    wait_for("what came meanwhile", polled.is_equal)
    for command in (("wait", "mysql:account_by_balance"), ("verify",), ("status",), ("check",)):
        done = polled.run.command(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    why: dict[str, Any] = json.loads(polled.run.command("why", "redis:account", "e2", "--json").stdout)
    assert why["verdict"] == "current"
