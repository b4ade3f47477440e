"""One `viewtail run` over two sources: the binlog of one is tailed, the tables of the other are polled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.polled import COLUMNS
from tests.support.running import Run, addresses, running, wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]

VIEWS = """
import os
from viewtail import Entity, IndexTable, RedisHash, RedisJson
from viewtail.several import Source, Sources

user = Entity("shop.user")
account = Entity("bank.account", key="entity_id", version="version", append_only=True, order="event_id")

sources = Sources(
    shop=Source(
        os.environ["SHOP"],
        [IndexTable("by_email", user, value="email"), RedisHash("user", user, fields=["email"])],
    ),
    bank=Source(
        os.environ["BANK"],
        [IndexTable("by_balance", account, value="balance"), RedisJson("account", account, fields=["balance"])],
        mode="poll",
        poll_s=0.05,
    ),
)
"""


class Both:
    """Views of both, beside their tables."""

    def __init__(self, mysql: Server, redis_server: Server, run: Run) -> None:
        self.mysql, self.run = mysql, run
        self.redis = redis.Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True)

    def is_equal(self) -> bool:
        users = dict(ask(self.mysql, "SELECT id, email FROM shop.user"))
        newest = dict(ask(self.mysql, "SELECT entity_id, balance FROM bank.account ORDER BY version"))
        emails = dict(
            ask(self.mysql, "SELECT id, email FROM viewtail_shop.by_email WHERE email IS NOT NULL")  # no tombstones
        )
        assert emails == users
        assert dict(ask(self.mysql, "SELECT entity_id, balance FROM viewtail_bank.by_balance")) == newest
        assert {int(key[5:]): self.redis.hget(key, "email") for key in self.redis.keys("user:*")} == users
        documents = {key[8:]: json.loads(str(self.redis.get(key))) for key in self.redis.keys("account:*")}
        assert {key: found["balance"] for key, found in documents.items()} == newest
        return True

    def status(self) -> list[dict[str, Any]]:
        said = self.run.command("status", "--json").stdout
        return [one for line in said.replace("}\n{", "}\0{").split("\0") for one in json.loads(line)["pipelines"]]


@pytest.fixture
def both(mysql_server: Server, redis_server: Server, tmp_path: Path) -> Iterator[Both]:
    for statement in (
        *(f"DROP DATABASE IF EXISTS {name}" for name in ("shop", "bank", "viewtail_shop", "viewtail_bank")),
        *(f"CREATE DATABASE {name}" for name in ("shop", "bank")),
        "CREATE TABLE shop.user (id INT PRIMARY KEY, email VARCHAR(50))",
        f"CREATE TABLE bank.account {COLUMNS}",
        "DROP USER IF EXISTS poller",
        "CREATE USER poller IDENTIFIED BY 'p'",
        "GRANT SELECT ON bank.* TO poller",
        "GRANT SELECT ON performance_schema.* TO poller",
        "INSERT INTO shop.user VALUES (1, 'one'), (2, 'two')",
        "INSERT INTO bank.account (entity_id, version, balance) VALUES ('a', 1, 5), ('b', 1, 6)",
    ):
        ask(mysql_server, statement)
    redis.Redis(host="127.0.0.1", port=redis_server.port).flushall()
    at = f"127.0.0.1:{mysql_server.port}"
    settings = addresses(mysql_server, redis_server)
    del settings["VIEWTAIL_SOURCE__URL"]
    settings |= {
        "VIEWTAIL_VIEWS": "views:sources",
        "VIEWTAIL_MYSQL__URL": f"mysql://root@{at}",
        "SHOP": f"mysql://root@{at}",
        "BANK": f"mysql://poller:p@{at}",
    }
    with running(tmp_path, VIEWS, settings) as run:
        yield Both(mysql_server, redis_server, run)


def test_a_poller_and_a_tailer_keep_the_views_of_their_sources_in_one_run(both: Both) -> None:
    wait_for("they are filled", both.is_equal)
    ask(both.mysql, "UPDATE shop.user SET email = 'uno' WHERE id = 1")
    ask(both.mysql, "INSERT INTO bank.account (entity_id, version, balance) VALUES ('a', 2, 50), ('c', 1, 7)")
    wait_for("they follow", both.is_equal)
    positions = [one["position"] for one in both.status()]
    assert sum("bank.account up to id" in one for one in positions) == 2 and len(positions) == 4
    both.run.kill()
    ask(both.mysql, "DELETE FROM shop.user WHERE id = 2")
    ask(both.mysql, "INSERT INTO bank.account (entity_id, version, balance) VALUES ('a', 3, 51)")
    both.run.start()
    wait_for("what came meanwhile", both.is_equal)
    assert both.redis.get("account:a") is not None and not both.redis.exists("user:2")
    for command in (("verify",), ("check",), ("status",)):
        done = both.run.command(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert "-- shop: read by its binlog" in done.stderr and "-- bank: polled" in done.stderr


def test_a_command_that_names_a_view_is_about_the_source_that_has_it(both: Both) -> None:
    wait_for("they are filled", both.is_equal)
    for command in (("get", "account", "a"), ("verify", "account"), ("why", "account", "b"), ("verify", "user")):
        done = both.run.command(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert "nothing of that name is here" in done.stderr and "error" not in done.stderr
    _, row = both.run.command("get", "account", "a").stdout.splitlines()
    assert row.split("\t")[::2] == ["a", "5"]
    nobody = both.run.command("verify", "acount")
    assert nobody.returncode == 2 and "shop: no view is called 'acount'" in nobody.stderr, nobody.stderr
    assert "bank: no view is called 'acount'; did you mean account?" in nobody.stderr, nobody.stderr
    assert both.run.command("get", "account", "z").returncode == 1
