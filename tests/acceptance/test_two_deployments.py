"""Two deployments with one Redis, one Elasticsearch and one broker: neither writes where the other one keeps a view."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from elasticsearch import Elasticsearch

from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, wait_for

SCHEMA, OWN, OTHER = "two_shop", "two_own", "two_other"
FIRST = """
from viewtail import *

user = Entity("two_shop.user")
views = [
    IndexTable("two_email", user, value="email"),
    RedisHash("two_user", user, fields=["name"]),
    RedisJson("two_card", user, fields=["name"], key="card:{id}"),
    SearchIndex("two-users", user, fields={"name": "keyword"}),
]
"""
# One of the same name, one of another name whose keys meet, one that is nobody else's.
SECOND = """
from viewtail import *

user = Entity("two_shop.user")
views = [
    IndexTable("two_email", user, value="email"),
    RedisHash("two_user", user, fields=["email"]),
    RedisHash("two_badge", user, fields=["email"], key="card:{id}"),
    RedisHash("two_own_one", user, fields=["email"]),
    SearchIndex("two-users", user, fields={"email": "keyword"}),
]
"""
REFUSED = {"redis:two_user", "redis:two_badge", "elasticsearch:two-users"}
pytestmark = [pytest.mark.mysql, pytest.mark.slow]


class Two:
    """The servers, and a `viewtail run` for each deployment."""

    def __init__(self, folder: Path, mysql: Server, redis_server: Server, elasticsearch: Server) -> None:
        self.mysql = mysql
        self.redis: Any = redis.Redis(port=redis_server.port)
        self.elastic = Elasticsearch(elasticsearch.url)
        stores = addresses(mysql, redis_server, elasticsearch)
        self.first = self._run(folder / "first", FIRST, {**stores, "VIEWTAIL_MYSQL__URL": f"{mysql.url}/{OWN}"})
        self.second = self._run(folder / "second", SECOND, {**stores, "VIEWTAIL_MYSQL__URL": f"{mysql.url}/{OTHER}"})

    @staticmethod
    def _run(folder: Path, views: str, environment: dict[str, str]) -> Run:
        folder.mkdir()
        (folder / "run.log").touch()
        return Run(folder, views, environment)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return ask(self.mysql, statement)

    def states(self, database: str) -> dict[str, str]:
        return dict(self.ask(f"SELECT name, state FROM {database}.view"))

    def reason(self, database: str, view: str) -> str:
        return str(self.ask(f"SELECT reason FROM {database}.view WHERE name = '{view}'")[0][0])

    def until(self, database: str, state: str, *views: str) -> None:
        wait_for(
            f"{views} are {state}",
            lambda: all(self.states(database).get(view) == state for view in views),
        )

    def begin_first(self) -> None:
        self.first.start()
        self.until(OWN, "filled", "mysql:two_email", "redis:two_user", "redis:two_card", "elasticsearch:two-users")

    def user(self, key: int) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.redis.hgetall(f"two_user:{key}")
        found.pop(b"_version", None)
        return found

    def document(self, key: int) -> Any:
        self.elastic.indices.refresh(index="two-users")
        return self.elastic.get(index="two-users", id=str(key))["_source"]

    def clear(self) -> None:
        self.redis.flushall()
        self.elastic.options(ignore_status=404).indices.delete(index="viewtail-two-users")


@pytest.fixture
def two(tmp_path: Path, mysql_server: Server, redis_server: Server, elasticsearch_server: Server) -> Iterator[Two]:
    found = Two(tmp_path, mysql_server, redis_server, elasticsearch_server)
    for database in (SCHEMA, OWN, OTHER):
        found.ask(f"DROP DATABASE IF EXISTS {database}")
    found.ask(f"CREATE DATABASE {SCHEMA}")
    found.ask(f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, name VARCHAR(40), email VARCHAR(40))")
    found.ask(f"INSERT INTO {SCHEMA}.user VALUES (1, 'ada', 'ada@x'), (2, 'ben', 'ben@x')")
    found.clear()
    try:
        yield found
        assert "Traceback" not in found.first.log + found.second.log
    except BaseException:
        print(found.first.log[-4000:], "\n=== second\n", found.second.log[-4000:])
        raise
    finally:
        found.first.kill()
        found.second.kill()
        found.clear()


def test_a_view_whose_place_another_deployment_has_is_refused_by_check_and_halted_by_run(two: Two) -> None:
    two.begin_first()
    checked = two.second.command("check", "--json")
    failures = {one["what"]: one for one in json.loads(checked.stdout)["findings"] if one["level"] == "fail"}
    assert checked.returncode == 1
    assert set(failures) == {f"view {view}, its place" for view in REFUSED}
    assert all(OWN in one["seen"] and "--take-over" in one["seen"] for one in failures.values())
    assert two.first.command("check").returncode == 0

    two.second.start()
    two.until(OTHER, "filled", "mysql:two_email", "redis:two_own_one")
    two.until(OTHER, "halted", *REFUSED)
    assert f"{OWN} on" in two.reason(OTHER, "redis:two_badge")
    assert "view redis:two_card" in two.reason(OTHER, "redis:two_badge")
    status = two.second.command("status")
    assert status.returncode == 1
    assert "--take-over" in status.stdout

    two.ask(f"UPDATE {SCHEMA}.user SET name = 'eve', email = 'eve@x' WHERE id = 1")
    wait_for("the first goes on", lambda: two.user(1) == {b"name": b"eve"} and two.document(1) == {"name": "eve"})
    wait_for("and the second with its own", lambda: two.redis.hget("two_own_one:1", "email") == b"eve@x")
    assert two.user(1) == {b"name": b"eve"}
    assert two.document(1) == {"name": "eve"}
    wait_for("the first is well", two.first.is_well)
