"""`viewtail adopt` where the names of the view's keys may be anything: what else is under such names is not its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from offsets.lease import lock_name
from stack import Server
from tests.support.running import Run, addresses

SHOP, OWN = "shop_slugs", "slugs_viewtail"
VIEWS = f"""
from viewtail import Entity, RedisHash, RedisJson

page = Entity("{SHOP}.page")
views = [
    RedisHash("user", page, fields=["title"]),
    RedisJson("doc", page, fields=["title"]),
]
"""
OTHERS = ("user:index", "user:online", "user:count", "doc:list", "doc:text", "doc:broken", "doc:queue")


@pytest.fixture
def ask(mysql_server: Server) -> Iterator[Any]:
    with (
        pymysql.connect(host=mysql_server.host, port=mysql_server.port, user="root", autocommit=True) as connection,
        connection.cursor() as cursor,
    ):

        def ask(sql: str) -> list[tuple[Any, ...]]:
            cursor.execute(sql)
            return list(cursor.fetchall())

        ask(f"CREATE DATABASE {SHOP}")
        ask(f"CREATE DATABASE {OWN}")
        ask(f"CREATE TABLE {SHOP}.page (slug VARCHAR(40) COLLATE utf8mb4_bin PRIMARY KEY, title VARCHAR(40) NOT NULL)")
        ask(f"INSERT INTO {SHOP}.page VALUES ('a', 'A'), ('b', 'B'), ('c', 'C')")
        yield ask
        ask(f"DROP DATABASE {SHOP}")
        ask(f"DROP DATABASE {OWN}")


@pytest.fixture
def keys(redis_server: Server) -> Iterator[redis.Redis]:
    client = redis.Redis(port=redis_server.port)
    client.flushall()
    for slug, title in (("a", "A"), ("b", "wrong"), ("gone", "Gone")):
        client.hset(f"user:{slug}", mapping={"title": title})
        client.set(f"doc:{slug}", json.dumps({"title": title}))
    client.set("doc:versioned", json.dumps({"title": "x", "_version": "12"}))
    client.zadd("user:index", {"a": 1})
    client.sadd("user:online", "a")
    client.set("user:count", 3)
    client.set("doc:list", "[1]")
    client.set("doc:text", '"text"')
    client.set("doc:broken", "a{")
    client.set("doc:begun", "{a")
    client.rpush("doc:queue", "a")
    yield client
    client.flushall()


def adopted(run: Run, *options: str) -> dict[str, dict[str, Any]]:
    done = run.command("adopt", "user", "doc", "--json", *options, timeout_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return {view["view"]: view for view in json.loads(done.stdout)["views"]}


def test_extra_keys_of_any_kind_stay_and_only_those_of_the_views_form_are_ever_dropped(
    ask: Any, keys: redis.Redis, mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    environ = addresses(mysql_server, redis_server) | {"VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{OWN}"}
    run = Run(tmp_path, VIEWS, environ)
    others = {name: keys.dump(name) for name in OTHERS}

    views = adopted(run)
    assert {name: keys.dump(name) for name in OTHERS} == others
    assert {view["extra_left"] for view in views.values()} == {4, 7}, views
    assert keys.hget("user:gone", "title") == b"Gone" and keys.hget("user:b", "title") == b"B"
    assert json.loads(keys.get("doc:gone"))["title"] == "Gone" and json.loads(keys.get("doc:versioned"))

    ask(f"SELECT GET_LOCK('{lock_name(OWN, 'adopt')}', 0)")
    done = run.command("adopt", "user")
    assert done.returncode == 2 and "another viewtail adopt" in done.stderr
    ask(f"SELECT RELEASE_LOCK('{lock_name(OWN, 'adopt')}')")

    views = adopted(run, "--drop-extra")  # a view that was adopted is compared again
    assert {name: keys.dump(name) for name in OTHERS} == others
    assert {view["extra_left"] for view in views.values()} == {3, 5}, views
    assert keys.exists("doc:begun")
    assert not keys.exists("user:gone", "doc:gone", "doc:versioned")
    assert keys.hget("user:c", "title") == b"C"
