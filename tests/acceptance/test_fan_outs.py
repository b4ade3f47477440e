"""A product that every order has changes while workers are killed: each order shows it in the end, in every store."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from elasticsearch import Elasticsearch

from stack import Server
from tests.support.asking import ask
from tests.support.running import DIED, addresses, running, wait_for

pytestmark = [pytest.mark.redis, pytest.mark.slow]

ORDERS = 3_000

VIEWS = """
from viewtail import Entity, IndexTable, Many, One, RedisJson, SearchIndex

order = Entity(
    "fan.order",
    related={"lines": Many("fan.line", by="order_id", related={"product": One("fan.product", on="product_id")})},
)


def names(row):
    return {"names": [line["product"]["name"] for line in row["lines"]]}


def first_name(row):
    return row["lines"][0]["product"]["name"] if row["lines"] else None


views = [
    RedisJson("fan", order, document=names),
    IndexTable("fan", order, values={"name": "VARCHAR(40)"}, of=first_name),
]
"""
SELDOM = """
from viewtail import Count, Group, IndexTable, RedisHash

lines = Group("fan.line", by="product_id", values={"n": Count()}, at_most_every=1)
views = [RedisHash("fan", lines, fields=["n"]), IndexTable("fan", lines, value="n")]
"""
SEARCHED = '\nviews.append(SearchIndex("fan", order, document=names, fields={"names": "keyword"}))\n'


@pytest.mark.parametrize("step", ["before page:3", "after page:5", "after cursor:2", "after write:6"])
@pytest.mark.parametrize(
    "kind", [pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def test_a_hot_row_comes_to_all_that_depend_on_it_whatever_is_killed(
    kind: str, step: str, request: pytest.FixtureRequest, redis_server: Server, tmp_path: Path
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    is_searched = kind == "mysql" and step.startswith("after page")
    search: Server | None = request.getfixturevalue("elasticsearch_server") if is_searched else None
    _make_tables(server)
    client: Any = redis.Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True)
    client.flushall()
    found = {**addresses(server, redis_server, search), "VIEWTAIL_RUN__FAN_OUT_ABOVE": "50"}

    def in_redis() -> set[str]:
        values = client.mget([f"fan:{number}" for number in range(ORDERS - 1)])
        return {json.loads(value)["names"][0] if value else "" for value in values}

    def in_table() -> set[str]:
        return {name for (name,) in ask(server, f"SELECT name FROM viewtail.fan WHERE id < {ORDERS - 1}")}

    def in_index(name: str) -> int:
        assert search is not None
        with Elasticsearch(search.url) as client:
            client.indices.refresh(index="fan")
            return int(client.count(index="fan", query={"term": {"names": name}})["count"])

    with running(tmp_path, VIEWS + (SEARCHED if is_searched else ""), found) as run:
        wait_for("they are filled", run.is_filled)
        assert in_redis() == in_table() == {"p0"}
        run.stop()
        run.start(VIEWTAIL_FAILPOINT=step)
        stores = {"redis", "mysql", *(["elasticsearch"] if is_searched else [])}
        wait_for("it runs", lambda: run.workers().keys() == stores)
        ask(server, "UPDATE fan.product SET name = 'p1' WHERE id = 7")
        ask(server, f"UPDATE fan.line SET product_id = 8 WHERE id = {ORDERS - 1}")
        ask(server, "UPDATE fan.product SET name = 'p2' WHERE id = 7")
        # They may come to little or nothing in a life, and wait longer and longer for the next one.
        wait_for("each was killed", lambda: all(f'"pipeline":"{store}","code":-9' in run.log for store in stores), 120)
        run.kill()
        run.start()
        wait_for("the last is shown everywhere", lambda: in_redis() == in_table() == {"p2"}, 120)
        if is_searched:
            wait_for("found, too", lambda: in_index("p2") == ORDERS - 1 and in_index("q0") == 1, 120)
        wait_for("nothing is left of it", lambda: run.command("wait", "redis:fan").returncode == 0)
        for command in (("verify",), ("status",)):
            done = run.command(*command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert json.loads(run.command("status", "--json").stdout)["fan_outs"] == []


@pytest.mark.mysql
@pytest.mark.parametrize("step", ["before page:1", "after page:2", "after cursor:1", "after write:3"])
def test_what_is_written_at_most_every_so_often_lacks_nothing_whatever_is_killed(
    step: str, mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    _make_tables(mysql_server)
    store: Any = redis.Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True)
    store.flushall()
    products, lines = (7, 8, 9), ORDERS

    def wanted() -> list[int]:
        rows = dict(ask(mysql_server, "SELECT product_id, COUNT(*) FROM fan.line GROUP BY product_id"))
        return [rows[product] for product in products]

    with running(tmp_path, SELDOM, addresses(mysql_server, redis_server)) as run:
        wait_for("they are filled", run.is_filled)
        run.stop()
        run.start(VIEWTAIL_FAILPOINT=step)
        deadline = time.monotonic() + 120
        while run.log.count(DIED) < 3:
            assert time.monotonic() < deadline, run.log
            ask(mysql_server, f"INSERT INTO fan.line VALUES ({lines}, 0, {products[lines % 3]})")
            lines += 1
            time.sleep(0.02)
        run.kill()
        run.start()
        for view in ("redis:fan", "mysql:fan"):
            wait_for("nothing waits", lambda view=view: run.command("wait", view).returncode == 0)  # type: ignore[misc]
        assert [int(store.hget(f"fan:{product}", "n")) for product in products] == wanted()
        shown = dict(ask(mysql_server, "SELECT product_id, n FROM viewtail.fan"))
        assert [shown[product] for product in products] == wanted()
        verify = run.command("verify")
        assert verify.returncode == 0, (verify.stdout, verify.stderr)


def _make_tables(server: Server) -> None:
    for database in ("fan", "viewtail"):
        ask(server, f"DROP DATABASE IF EXISTS {database}")
    for statement in (
        "CREATE DATABASE fan",
        "CREATE TABLE fan.`order` (id INT PRIMARY KEY)",
        (
            "CREATE TABLE fan.line (id INT PRIMARY KEY, order_id INT NOT NULL, product_id INT NOT NULL, "
            "KEY (order_id), KEY (product_id))"
        ),
        "CREATE TABLE fan.product (id INT PRIMARY KEY, name VARCHAR(40) NOT NULL)",
        "INSERT INTO fan.product VALUES (7, 'p0'), (8, 'q0')",
        "INSERT INTO fan.`order` VALUES " + ", ".join(f"({number})" for number in range(ORDERS)),
        "INSERT INTO fan.line VALUES " + ", ".join(f"({number}, {number}, 7)" for number in range(ORDERS)),
    ):
        ask(server, statement)
