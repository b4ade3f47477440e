"""A server with lower_case_table_names = 1: names in capitals are those of the tables that views are of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

import stack.mariadb
import stack.mysql
from ingest.canonical.tables import describe
from projectors.binding import bind
from projectors.masking import with_masks
from projectors.related import One
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisJson
from projectors.views import Entity
from stack import Server
from tests.support.running import Run, addresses, running, wait_for
from viewtail.changes.masks import Masks
from viewtail.servers.sessions import MySQLAddress, open_session

LOWER = "--lower-case-table-names=1"
VIEWS = """
from viewtail import Entity, IndexTable, RedisHash

views = [
    IndexTable("ByName", Entity("Shop.USER"), value="name"),
    RedisHash("user", Entity("shop.user"), fields=["name"]),
    RedisHash("part", Entity("SHOP.Part"), fields=["name"]),
]
"""
TABLES = (
    "CREATE DATABASE Shop",
    "CREATE TABLE SHOP.User (id INT PRIMARY KEY, name VARCHAR(20))",
    """CREATE TABLE shop.Part (id INT PRIMARY KEY, name VARCHAR(20)) PARTITION BY RANGE (id)
       (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (100))""",
    "INSERT INTO SHOP.USER VALUES (1, 'Ada'), (2, 'Bob')",
    "INSERT INTO SHOP.PART VALUES (1, 'bolt'), (11, 'nut')",
)


class World:
    def __init__(self, server: Server, run: Run, port: int) -> None:
        self.server, self.run, self.redis = server, run, redis.Redis(port=port, decode_responses=True)

    def ask(self, *statements: str) -> list[tuple[Any, ...]]:
        connection: Any = pymysql.connect(host="127.0.0.1", port=self.server.port, user="root", autocommit=True)
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def show(self, users: dict[int, str]) -> bool:
        """Whether both views of the users show these; fails with what they show instead."""
        kept = dict(self.ask("SELECT id, name FROM ViewTail.ByName WHERE name IS NOT NULL"))
        shown = {key: self.redis.hget(f"user:{key}", "name") for key in range(1, 9)}
        assert (kept, {key: name for key, name in shown.items() if name is not None}) == (users, users)
        return True

    def parts(self) -> list[str | None]:
        return [self.redis.hget(f"part:{key}", "name") for key in (1, 11)]

    def states(self) -> set[str]:
        return {state for (state,) in self.ask("SELECT state FROM viewtail.view")}


def started(kind: str, folder: Path) -> Server:
    if kind == "mysql":  # which has the setting for life
        stack.mysql.initialize(folder / "data", [LOWER])
        return stack.mysql.start(folder, options=[LOWER])
    return stack.mariadb.start(folder, options=[LOWER])


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, redis_server: Server
) -> Iterator[World]:
    redis.Redis(port=redis_server.port).flushall()
    server = started(request.param, tmp_path_factory.mktemp("lower"))
    environment = {**addresses(server, redis_server), "VIEWTAIL_MYSQL__URL": f"{server.url}/ViewTail"}
    environment["VIEWTAIL_SOURCE__DATABASE"] = "ViewTail"
    try:
        found = World(server, Run(tmp_path_factory.mktemp("run"), VIEWS, environment), redis_server.port)
        found.ask(*TABLES)
        with running(found.run.folder, VIEWS, environment) as run:
            found.run = run
            wait_for("all is well", run.is_well)
            yield found
    finally:
        server.kill()


def test_statements_that_name_a_table_in_capitals_are_followed(world: World) -> None:
    wait_for("the views are filled", lambda: world.show({1: "Ada", 2: "Bob"}))
    world.ask("TRUNCATE Shop.USER", "INSERT INTO Shop.User VALUES (3, 'Cy')")
    wait_for("the views are emptied", lambda: world.show({3: "Cy"}))
    world.ask("USE SHOP", "TRUNCATE TABLE USER", "INSERT INTO USER VALUES (4, 'Di')")
    wait_for("the views are emptied from a database in capitals", lambda: world.show({4: "Di"}))
    world.ask(
        "CREATE TABLE Shop.FRESH LIKE Shop.USER",
        "INSERT INTO Shop.Fresh VALUES (5, 'Ed')",
        "RENAME TABLE Shop.USER TO Shop.Former, SHOP.fresh TO SHOP.User",
    )
    wait_for("another table took its place", lambda: world.show({5: "Ed"}))
    world.ask("ALTER TABLE SHOP.USER ADD COLUMN town VARCHAR(9)", "INSERT INTO shop.USER (id, name) VALUES (6, 'Flo')")
    wait_for("a column came", lambda: world.show({5: "Ed", 6: "Flo"}))
    world.ask(
        "CREATE TABLE shop.one (id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO shop.one VALUES (1, 'gear')",
        "ALTER TABLE SHOP.PART EXCHANGE PARTITION p0 WITH TABLE SHOP.ONE",
        "ALTER TABLE SHOP.PART TRUNCATE PARTITION p1",
    )
    wait_for("partitions were exchanged and emptied", lambda: world.parts() == ["gear", None])
    wait_for("all is well", world.run.is_well)
    assert "differs in case" not in world.run.log
    assert world.states() == {"filled"}


def test_commands_take_the_declared_names(world: World) -> None:
    wait_for("all is well", world.run.is_well)
    world.ask("REPLACE INTO SHOP.USER (id, name) VALUES (7, 'Gus')")
    wait_for("the row is shown", lambda: world.redis.hget("user:7", "name") == "Gus")
    for arguments in (
        ("check",),
        ("verify",),
        ("find", "mysql:ByName", "Gus"),
        ("why", "mysql:ByName", "7"),
        ("rebuild", "mysql:ByName", "--yes"),
        ("init", "--schema", "Shop", "--force"),
    ):
        done = world.run.command(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    (world.run.folder / "views.py").write_text(VIEWS)


def test_the_contract_check_knows_the_setting(world: World, tmp_path: Path) -> None:
    file = tmp_path / "change.sql"
    file.write_text(
        "CREATE TABLE Shop.Next LIKE Shop.USER; RENAME TABLE SHOP.USER TO Shop.Gone, shop.NEXT TO shop.USER;\n"
        "ALTER TABLE SHOP.User DROP COLUMN name"
    )
    done = world.run.command("contract", "check", str(file), "--json")
    effects = json.loads(done.stdout)["effects"]
    assert {(one["line"], one["breaks"]) for one in effects} == {(1, False), (2, True)}, effects
    assert {one["view"] for one in effects} == {"mysql:ByName", "redis:user"}


def test_a_mask_holds_for_the_one_table_whichever_case_its_name_is_written_in(world: World) -> None:
    masking = IndexTable("m", Entity("Shop.User", masked={"name": "hash"}), value="name")
    related = {"user": One("shop.user", on="id")}
    document = RedisJson("d", Entity("shop.PART", related=related), document=lambda row: {"name": row["user"]["name"]})
    address = MySQLAddress(host=world.server.host, port=world.server.port, user="root", io_timeout_s=20)
    with closing(open_session(address, role="source")) as connection:
        _, bound = bind(with_masks([masking, document]), partial(describe, connection), Masks(secret=b"of this test"))
    of_user = bound.table.column("user")
    assert of_user is not None
    assert [field.name for field in of_user.fields if field.mask is not None] == ["name"]
