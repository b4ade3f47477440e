"""Several servers under one view of tenants, and under one search index."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack import Server
from tests.support.asking import ask
from tests.support.several_servers import USER, servers, wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(1500)]

TENANTS = """
from viewtail import Entity, IndexTable, RedisHash

user = Entity("tenant_{tenant}.user", sources=["eu", "us"])
views = [IndexTable("user_by_email", user, value="email"), RedisHash("user", user, fields=["email"])]
"""


def test_tenants_over_shards_join_and_leave_on_each_server(
    mysql_server: Server, mariadb_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    both = {"eu": mysql_server, "us": mariadb_server}
    for server in both.values():
        for name in ("tenant_a", "tenant_b", "tenant_c"):
            ask(server, f"DROP DATABASE IF EXISTS {name}")
        ask(server, "CREATE DATABASE tenant_a")
        ask(server, f"CREATE TABLE tenant_a.user {USER}")
        ask(server, "INSERT INTO tenant_a.user VALUES (1, 'a@x', '')")
    ask(mysql_server, "CREATE DATABASE tenant_c")
    ask(mysql_server, f"CREATE TABLE tenant_c.user {USER}")
    with servers(mysql_server, mariadb_server, redis_server, tmp_path, TENANTS) as world:

        def shown() -> set[str]:
            found = world.ask("eu", "SELECT source, tenant, id FROM viewtail.user_by_email WHERE email IS NOT NULL")
            keys = {f"user:{':'.join(map(str, key))}" for key in found}
            assert keys == {*world.redis.scan_iter(match="user:*")}
            return keys

        assert shown() == {"user:eu:a:1", "user:us:a:1"}
        world.ask("us", "CREATE DATABASE tenant_b", f"CREATE TABLE tenant_b.user {USER}")
        world.ask("us", "INSERT INTO tenant_b.user VALUES (1, 'b@x', '')")
        wait_for("a tenant joined", lambda: shown() == {"user:eu:a:1", "user:us:a:1", "user:us:b:1"})
        world.ask("eu", "DROP TABLE tenant_a.user")
        wait_for("one left, on one server", lambda: shown() == {"user:us:a:1", "user:us:b:1"})
        assert world.run.command("verify", "redis:user", "--part", "source=us,tenant=b").returncode == 0
        done = world.run.command("forget", "redis:user", "--part", "source=eu,tenant=a")
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert shown() == {"user:us:a:1", "user:us:b:1"}


SEARCH = """
from viewtail import Entity, SearchIndex

user = Entity("shop.user", sources=["eu", "us"])
views = [SearchIndex("user", user, fields={"email": "keyword", "source": "keyword"})]
"""


@pytest.mark.elasticsearch
def test_one_search_index_has_the_rows_of_both_servers(
    mysql_server: Server,
    mariadb_server: Server,
    redis_server: Server,
    elasticsearch_server: Server,
    tmp_path: Path,
) -> None:
    settings = {"VIEWTAIL_ELASTICSEARCH__URL": elasticsearch_server.url}
    with servers(mysql_server, mariadb_server, redis_server, tmp_path, SEARCH, settings) as world:

        def shown() -> dict[str, str]:
            found = json.loads(world.run.command("search", "user", "*", "--size", "50", "--json").stdout)
            return {hit["key"]: hit["document"]["source"] for hit in found["hits"]}

        both = {f"{name}:{number}": name for name in ("eu", "us") for number in (1, 2, 3)}
        wait_for("all are found", lambda: shown() == both)
        world.ask("us", "DELETE FROM shop.user WHERE id = 1", "INSERT INTO shop.user VALUES (4, 'four@x', '')")
        del both["us:1"]
        wait_for("a change is found", lambda: shown() == {**both, "us:4": "us"})
        assert world.run.background("replay", "user", "--yes", VIEWTAIL_SHARD="eu").wait() == 0
        wait_for("it is filled again", world.run.is_filled)
        assert shown() == {**both, "us:4": "us"}
        assert world.run.command("verify").returncode == 0


FOUND = """
from viewtail import Entity, IndexTable, RedisSet, RedisSortedSet

person = Entity("wide.person", sources=["eu", "us"])
views = [
    IndexTable("by_name", person, value="name"),
    IndexTable("by_tag", person, value="tags", each="VARCHAR(20)"),
    RedisSet("in_city", person, key="in:{city}"),
    RedisSortedSet("ranked", person, key="ranked:{city}", score="points"),
]
"""


def test_each_source_finds_its_rows_in_places_that_both_make_at_once_from_columns_of_other_widths(
    mysql_server: Server, mariadb_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    wide = "w" * 150
    for server, name, width in ((mysql_server, "eu", 100), (mariadb_server, "us", 200)):
        ask(server, "DROP DATABASE IF EXISTS wide")
        ask(server, "CREATE DATABASE wide")
        columns = f"id INT PRIMARY KEY, name VARCHAR({width}), tags TEXT, city VARCHAR(20), points INT"
        ask(server, f"CREATE TABLE wide.person ({columns})")
        text = wide if name == "us" else "same"
        rows = ", ".join(f"({number}, '{text}', '[\"t\"]', 'rome', {number})" for number in range(1, 6))
        ask(server, f"INSERT INTO wide.person VALUES {rows}")
    with servers(mysql_server, mariadb_server, redis_server, tmp_path, FOUND) as world:
        of_each = "SELECT source, COUNT(*), MIN(LENGTH(name)) FROM viewtail.by_name GROUP BY 1 ORDER BY 1"
        assert [*world.ask("eu", of_each)] == [("eu", 5, 4), ("us", 5, 150)], "none is parked, and none is cut"
        for view, value in (("by_name", wide), ("by_tag", "t"), ("in_city", "rome"), ("ranked", "rome")):
            done = world.run.command("find", view, value, "--limit", "2")
            expected = [("us", 2)] if view == "by_name" else [("eu", 2), ("us", 2)]
            lines = [line.split("\t")[0] for line in done.stdout.splitlines()]
            assert [(name, lines.count(name)) for name in ("eu", "us") if name in lines] == expected, done.stdout
        assert world.run.command("verify").returncode == 0
