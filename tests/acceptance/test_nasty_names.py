"""Names that SQL, PyMySQL, str.format or a store could take for something else go the whole way, on both servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote as in_url

import pymysql
import pytest
import redis

from stack import Server
from tests.support.running import Run, addresses, running, wait_for
from viewtail.changes.tables import full_name
from viewtail.servers.sessions import quote

SCHEMA = "sch%s.ma {x}`'\" %"
STORE = "view%(tail)s.{0}`'\""
NAMES = (
    *("50%%", "%(view)s", "t.x", "`ticks`", "double\"quote it's", " lead in", "{id} {} %s", "42", "ÜBER ☃"),
    *("back\\slash;-- a/b:c=*?$1(d, e)", "x" * 64, "line\nbreak"),
)
TABLES = {number: (table, NAMES[number - 1], NAMES[number - 2]) for number, table in enumerate(NAMES)}  # key, value
ROWS = 4


class World:
    """A table of each name, whose key and value columns have others, and views of each in every store."""

    def __init__(self, server: Server, run: Run, redis_port: int) -> None:
        self.server, self.run, self.redis = server, run, redis.Redis(port=redis_port, decode_responses=True)

    def ask(self, *statements: str) -> list[tuple[Any, ...]]:
        return ask(self.server, *statements)

    def good(self, *arguments: str, code: int = 0) -> str:
        done = self.run.command(*arguments, timeout_s=300)
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def has(self, number: int, key: int, value: str | None) -> bool:
        """Whether the index table and the hash show that value."""
        _, key_column, value_column = TABLES[number]
        indexed = f"SELECT {quote(value_column)} FROM {quote(STORE, NAMES[number])} WHERE {quote(key_column)} = {key}"
        shown = self.redis.hget(f"h{number}:{key}", value_column)
        return [row[0] for row in self.ask(indexed)] == [value] and shown == value


def ask(server: Server, *statements: str) -> list[tuple[Any, ...]]:
    connection: Any = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def create(table: str, key: str, value: str) -> str:
    return (
        f"CREATE TABLE {quote(SCHEMA, table)} ({quote(key)} INT PRIMARY KEY, {quote(value)} VARCHAR(40), "
        f"INDEX {quote(table)} ({quote(value)}))"
    )


CHOSEN = [NAMES.index(name) for name in ("%(view)s", "t.x", "{id} {} %s")]


def declared() -> str:
    lines = ["from viewtail import Entity, IndexTable, RedisHash", "views = []"]
    for number, (table, _, value) in TABLES.items():
        lines.append(f"entity = Entity({SCHEMA!r}, {table!r})")
        lines.append(f"views.append(IndexTable({table!r}, entity, value={value!r}))")
        lines.append(f"views.append(RedisHash('h{number}', entity, fields=[{value!r}]))")
    return "\n".join(lines)


@pytest.fixture(scope="module", params=["mysql_server", "mariadb_server"])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, redis_server: Server
) -> Iterator[World]:
    server: Server = request.getfixturevalue(request.param)
    redis.Redis(port=redis_server.port).flushall()
    ask(server, f"CREATE DATABASE {quote(SCHEMA)} CHARACTER SET utf8mb4")
    for table, key, value in TABLES.values():
        values = ", ".join(f"({row}, 'v{row} %s')" for row in range(ROWS))
        ask(server, create(table, key, value), f"INSERT INTO {quote(SCHEMA, table)} VALUES {values}")
    environment = addresses(server, redis_server) | {"VIEWTAIL_MYSQL__URL": f"{server.url}/{in_url(STORE, safe='')}"}
    with running(tmp_path_factory.mktemp("names"), declared(), environment) as run:
        found = World(server, run, redis_server.port)
        wait_for("all is well", run.is_well)
        yield found
    ask(server, f"DROP DATABASE {quote(SCHEMA)}", f"DROP DATABASE {quote(STORE)}")


def test_check_finds_all_that_it_needs(world: World) -> None:
    world.good("check")


def test_init_writes_views_of_such_a_table_and_names_all_others(world: World, tmp_path: Path) -> None:
    beginning = Run(tmp_path, "", world.run.environment())
    (tmp_path / "views.py").unlink()
    done = beginning.command("init", "--schema", SCHEMA)
    assert done.returncode == 0, done.stderr
    assert f"{len(TABLES) - 1} more tables can have views" in done.stdout
    assert (done := beginning.command("check")).returncode == 0, done.stdout + done.stderr


def test_views_are_filled_follow_changes_and_are_emptied_with_their_tables(world: World) -> None:
    for number, (table, key, value) in TABLES.items():
        assert world.has(number, 2, "v2 %s")
        world.ask(
            f"UPDATE {quote(SCHEMA, table)} SET {quote(value)} = 'new' WHERE {quote(key)} = 2",
            f"ALTER TABLE {quote(SCHEMA, table)} ADD `more%s` INT",
            f"INSERT INTO {quote(SCHEMA, table)} ({quote(key)}, {quote(value)}) VALUES (77, 'last')",
        )
    for number in TABLES:
        wait_for(f"the change of {NAMES[number]!r}", lambda: world.has(number, 77, "last"))  # noqa: B023
        assert world.has(number, 2, "new")
    for table, key, value in TABLES.values():
        values = ", ".join(f"({row}, 'v{row} %s')" for row in range(ROWS))
        insert = f"INSERT INTO {quote(SCHEMA, table)} ({quote(key)}, {quote(value)}) VALUES {values}"
        world.ask(f"TRUNCATE TABLE {quote(SCHEMA, table)}", insert)
    for number in TABLES:
        wait_for(f"{NAMES[number]!r} is emptied", lambda: world.has(number, 77, None))  # noqa: B023
        wait_for(f"{NAMES[number]!r} is filled", lambda: world.has(number, 3, "v3 %s"))  # noqa: B023
    wait_for("all is well", world.run.is_well)


@pytest.mark.parametrize("number", CHOSEN)
def test_commands_read_explain_and_erase_an_entity(world: World, number: int) -> None:
    table, key, value = TABLES[number]
    (row,) = json.loads(world.good("find", f"mysql:{table}", "v1 %s", "--json"))["rows"]
    assert (row[key], row[value]) == (1, "v1 %s")
    for view in (f"mysql:{table}", f"redis:h{number}"):
        assert "v1 %s" in world.good("get", view, "1")
        assert "CURRENT" in world.good("why", view, "1")
    world.good("replay", f"redis:h{number}", "--where", f"{quote(key)} = 1 AND {quote(value)} LIKE 'v1 %'", "--yes")
    world.ask(f"DELETE FROM {quote(SCHEMA, table)} WHERE {quote(key)} = 0")
    for name in (full_name(SCHEMA, table), quote(table)):
        world.good("forget", name, "0", "--yes")


def test_verify_compares_every_view(world: World) -> None:
    world.good("verify")


@pytest.mark.parametrize("store", ["mysql", "redis"])
def test_a_view_is_rebuilt_beside_and_swapped(world: World, store: str) -> None:
    number = CHOSEN[2]
    view = {"mysql": f"mysql:{NAMES[number]}", "redis": f"redis:h{number}"}[store]
    world.good("rebuild", view, "--yes")
    assert "v1 %s" in world.good("get", view, "1")


def test_topics_and_documents_have_such_columns(
    tmp_path: Path, mysql_server: Server, elasticsearch_server: Server, kafka_server: Server
) -> None:
    schema, table, columns = "names % {} `x`", "table %s.{0}", ("k%(e)y`", *(name for name in NAMES if "." not in name))
    shown = [name for name in columns[1:] if name == name.strip() and not name.startswith("_")]
    views = f"""
from viewtail import Entity, SearchIndex, Topic

entity = Entity({schema!r}, {table!r})
fields = dict.fromkeys({shown!r}, "keyword")
views = [SearchIndex("nasty", entity, fields=fields), Topic("nasty", entity, partitions=1)]
"""
    own = quote("own % {} `x`")
    environment = {
        **addresses(mysql_server, elasticsearch=elasticsearch_server),
        "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{in_url('own % {} `x`', safe='')}",
        "VIEWTAIL_KAFKA__URL": kafka_server.url,
    }
    texts = ", ".join(f"{quote(name)} VARCHAR(30)" for name in columns[1:])
    values = ", ".join(f"'of {number} %s'" for number in range(1, len(columns)))
    where = quote(schema, table)
    ask(
        mysql_server,
        f"CREATE DATABASE {quote(schema)} CHARACTER SET utf8mb4",
        f"CREATE TABLE {where} ({quote(columns[0])} INT PRIMARY KEY, {texts})",
        f"INSERT INTO {where} VALUES (1, {values})",
    )
    try:
        with running(tmp_path, views, environment) as run:
            wait_for("all is well", run.is_well)
            ask(mysql_server, f"INSERT INTO {where} VALUES (2, {values})")
            texts_shown = [f"of {at} %s" for at, name in enumerate(columns) if name in shown]

            def has(view: str, key: str) -> bool:
                done = run.command("get", view, key, "--json")
                assert done.returncode == 0, done.stdout + done.stderr
                return all(text in done.stdout for text in texts_shown)

            for view in ("elasticsearch:nasty", "kafka:nasty"):
                for key in ("1", "2"):
                    wait_for(f"{view} has {key}", lambda: has(view, key))  # noqa: B023
            done = run.command("rebuild", "elasticsearch:nasty", "--yes")
            assert done.returncode == 0, done.stdout + done.stderr
            done = run.command("verify", "elasticsearch:nasty")
            assert done.returncode == 0, done.stdout + done.stderr
    finally:
        ask(mysql_server, f"DROP DATABASE {quote(schema)}", f"DROP DATABASE IF EXISTS {own}")
