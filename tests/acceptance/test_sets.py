"""Views with several values an entity, and views of entities that belong together: kept by the real command line."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from stack import Server
from tests.support.running import Run, addresses, wait_for

SCHEMA, STORE = "belonging", "belonging_views"
TABLES = f"""
CREATE DATABASE {SCHEMA};
CREATE TABLE {SCHEMA}.user (
  id BIGINT NOT NULL PRIMARY KEY,
  company_id BIGINT NULL,
  role VARCHAR(20) NOT NULL,
  tags JSON NULL,
  joined_at DATETIME(3) NULL
);
CREATE TABLE {SCHEMA}.document (
  id VARCHAR(20) COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
  revision BIGINT NOT NULL,
  folder VARCHAR(20) NULL,
  numbers JSON NULL
)
"""
VIEWS = f"""
from viewtail import Entity, IndexTable, RedisSet, RedisSortedSet

user = Entity("{SCHEMA}.user")
document = Entity("{SCHEMA}.document", version="revision")
views = [
    IndexTable("user_tag", user, value="tags", each="VARCHAR(20)"),
    IndexTable("active_user_tag", user, value="tags", each="VARCHAR(20)", where=lambda row: row["role"] != "left"),
    IndexTable("document_number", document, value="numbers", each="INT"),
    RedisSet("company_users", user, key="company:{{company_id}}:users"),
    RedisSet("role_users", user, key="of:{{role}}:{{company_id}}", where=lambda row: row["role"] != "left"),
    RedisSortedSet("newest", user, key="company:{{company_id}}:newest", score="joined_at"),
    RedisSet("in_folder", document, key="folder:{{folder}}"),
]
"""
USERS, DOCUMENTS = 400, 100
TAGS, ROLES = ["a", "b", "c", "ü:{}%", "", " x "], ["admin", "left", "staff"]


class World:
    """Views of both stores, and their tables."""

    def __init__(self, folder: Path, mysql: Server, redis_server: Server) -> None:
        self.mysql = mysql
        self.redis = redis.Redis(port=redis_server.port, decode_responses=True)
        environ = addresses(mysql, redis_server)
        environ["VIEWTAIL_MYSQL__URL"] = f"{mysql.url}/{STORE}"
        self.run = Run(folder, VIEWS, environ)

    def ask(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql, arguments or None)
            return list(cursor.fetchall())

    def connect(self) -> pymysql.Connection[Any]:
        return pymysql.connect(host=self.mysql.host, port=self.mysql.port, user="root", autocommit=True)

    # -- what the views must show, by the tables alone ---------------------------------------------------------------

    def expected(self) -> dict[str, Any]:
        users = self.ask(f"SELECT id, company_id, role, tags FROM {SCHEMA}.user")
        documents = self.ask(f"SELECT id, folder, numbers FROM {SCHEMA}.document")
        epoch = self.ask(f"SELECT id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', joined_at) FROM {SCHEMA}.user")
        micros = {number: None if at is None else at / 1e6 for number, at in epoch}
        found: dict[str, Any] = {
            "user_tag": {(tag, one[0]) for one in users for tag in json.loads(one[3] or "[]")},
            "active_user_tag": {
                (tag, one[0]) for one in users if one[2] != "left" for tag in json.loads(one[3] or "[]")
            },
            "document_number": {(number, one[0]) for one in documents for number in json.loads(one[2] or "[]")},
        }
        sets: dict[str, Any] = {}
        for number, company, role, _ in users:
            if company is None:
                continue
            sets.setdefault(f"company:{company}:users", {})[str(number)] = None
            if role != "left":
                sets.setdefault(f"of:{role}:{company}", {})[str(number)] = None
            if micros[number] is not None:
                sets.setdefault(f"company:{company}:newest", {})[str(number)] = micros[number]
        for number, folder, _ in documents:
            if folder is not None:
                sets.setdefault(f"folder:{encoded(folder)}", {})[encoded(number)] = None
        return {**found, "sets": sets}

    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            name: set(self.ask(f"SELECT {column}, id FROM {STORE}.{name}"))
            for name, column in (("user_tag", "tags"), ("active_user_tag", "tags"), ("document_number", "numbers"))
        }
        sets: dict[str, Any] = {}
        for name in self.redis.scan_iter(count=1000):
            kind = self.redis.type(name)
            if kind == "set":
                sets[name] = dict.fromkeys(self.redis.smembers(name))
            elif kind == "zset":
                sets[name] = dict(self.redis.zrange(name, 0, -1, withscores=True))
        return {**found, "sets": sets}

    def is_equal(self) -> bool:
        shown, expected = self.shown(), self.expected()
        assert shown == expected, {
            name: (shown[name], expected[name]) for name in shown if shown[name] != expected[name]
        }
        return True


@pytest.fixture
def world(tmp_path: Path, mysql_server: Server, redis_server: Server) -> Iterator[World]:
    with made(tmp_path, mysql_server, redis_server) as found:
        yield found


@contextmanager
def made(folder: Path, mysql: Server, redis_server: Server) -> Iterator[World]:
    """Tables with rows; nothing runs yet."""
    found = World(folder, mysql, redis_server)
    found.redis.flushall()
    for statement in TABLES.split(";\n"):
        found.ask(statement)
    chance = random.Random(1)
    with found.connect() as connection, connection.cursor() as cursor:
        for number in range(USERS):
            insert_user(cursor.execute, chance, number)
        for number in range(DOCUMENTS):
            write_document(cursor.execute, chance, f"d:{number}", 1)
    try:
        yield found
    except BaseException:
        print(found.run.log[-6000:])
        raise
    finally:
        found.run.kill()
        for name in (SCHEMA, STORE, "viewtail"):
            found.ask(f"DROP DATABASE IF EXISTS {name}")
        found.redis.flushall()


def encoded(text: str) -> str:
    """As in rendered keys."""
    return text.replace("%", "%25").replace(":", "%3A").replace("{", "%7B").replace("}", "%7D")


def some_tags(chance: random.Random) -> str | None:
    if chance.random() < 0.1:
        return None
    return json.dumps(chance.choices(TAGS, k=chance.randint(0, 5)))


def insert_user(execute: Callable[..., Any], chance: random.Random, number: int) -> None:
    company = chance.choice([None, *range(8)])
    moment = (
        None if chance.random() < 0.1 else f"2024-01-{chance.randint(1, 28):02d} 03:04:05.{chance.randint(0, 999):03d}"
    )
    values = (number, company, chance.choice(ROLES), some_tags(chance), moment)
    execute(f"REPLACE INTO {SCHEMA}.user VALUES (%s, %s, %s, %s, %s)", values)


def write_document(execute: Callable[..., Any], chance: random.Random, name: str, revision: int) -> None:
    folder = chance.choice([None, "in", "out:{box}", "done"])
    numbers = json.dumps(chance.choices(range(-5, 5), k=chance.randint(0, 4)))
    execute(f"REPLACE INTO {SCHEMA}.document VALUES (%s, %s, %s, %s)", (name, revision, folder, numbers))


class Writer(threading.Thread):
    """Moves, deletes, inserts, other keys, rollbacks; a few a transaction."""

    def __init__(self, world: World, seed: int, share: int) -> None:
        super().__init__()
        self._chance, self._connect = random.Random(seed), world.connect
        self._users = range(share, USERS + 200, 2)  # two writers meet in no row
        self._documents = [f"d:{number}" for number in range(share, DOCUMENTS + 40, 2)]
        self._revision = 10
        self.is_over = threading.Event()
        self.count = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._connect() as connection, connection.cursor() as cursor:
                while not self.is_over.is_set():
                    try:
                        self._transaction(cursor.execute)
                    except pymysql.err.OperationalError as error:
                        # A delete of no row locks the gap, where the other writer may insert: the server rolled back.
                        if error.args[0] != 1213:  # deadlock
                            raise
        except BaseException as error:
            self.error = error

    def _transaction(self, execute: Callable[..., Any]) -> None:
        execute("BEGIN")
        for _ in range(self._chance.randint(1, 6)):
            self._step(execute)
        execute("ROLLBACK" if self._chance.random() < 0.1 else "COMMIT")
        self.count += 1

    def wrote_more(self, than: int) -> bool:
        """Whether it committed more transactions than so many. The error it ended with, if it did."""
        if self.error is not None:
            raise self.error
        return self.count > than

    def _step(self, execute: Callable[..., Any]) -> None:
        chance, number = self._chance, self._chance.choice(self._users)
        what = chance.randint(0, 6)
        if what == 0:
            execute(f"DELETE FROM {SCHEMA}.user WHERE id = %s", (number,))
        elif what == 1:
            execute(
                f"UPDATE {SCHEMA}.user SET company_id = %s WHERE id = %s", (chance.choice([None, *range(8)]), number)
            )
        elif what == 2:
            execute(f"UPDATE {SCHEMA}.user SET tags = %s WHERE id = %s", (some_tags(chance), number))
        elif what == 3:
            execute(f"UPDATE {SCHEMA}.user SET role = %s WHERE id = %s", (chance.choice(ROLES), number))
        elif what == 4:
            other = chance.choice(self._users)
            execute(f"DELETE FROM {SCHEMA}.user WHERE id = %s", (other,))
            if other != number:
                execute(f"UPDATE {SCHEMA}.user SET id = %s WHERE id = %s", (other, number))
        elif what == 5:
            insert_user(execute, chance, number)
        else:
            self._revision += 1
            write_document(execute, chance, chance.choice(self._documents), self._revision)
            if chance.random() < 0.2:
                execute(f"DELETE FROM {SCHEMA}.document WHERE id = %s", (chance.choice(self._documents),))


def test_after_live_writes_kills_deletes_and_moves_every_set_and_every_value_is_exactly_right(world: World) -> None:
    writers = [Writer(world, seed, share) for share, seed in enumerate((3, 4))]
    for writer in writers:
        writer.start()
    try:
        world.run.start(VIEWTAIL_RUN__CHUNK_ROWS="50")
        for kills in range(6):
            before = writers[0].count
            wait_for("writes go on", lambda before=before: writers[0].wrote_more(before + 40))  # type: ignore[misc]
            store = ("redis", "mysql")[kills % 2]
            wait_for("a process to kill", lambda store=store: world.run.kill_worker(store))  # type: ignore[misc]
            if kills == 3:
                world.run.kill()
                world.run.start()
    finally:
        for writer in writers:
            writer.is_over.set()
            writer.join()
    assert [writer.error for writer in writers] == [None, None]
    wait_for("all is caught up", world.run.is_well)
    wait_for("the views are as the tables", world.is_equal, timeout_s=30)

    done = world.run.command("verify", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(found["views"]) == 7
    assert all(one["is_equal"] for one in found["views"]), found


def test_damage_is_found_and_mended_and_a_truncate_empties_the_views(world: World) -> None:
    world.ask(f"REPLACE INTO {SCHEMA}.user VALUES (1, 3, 'staff', '[\"a\", \"b\"]', '2024-01-01')")
    world.ask(f"REPLACE INTO {SCHEMA}.user VALUES (2, 3, 'staff', '[\"a\"]', '2024-01-02')")
    world.run.start()
    wait_for("all views are filled", world.run.is_well)
    wait_for("the views are as the tables", world.is_equal)

    got = json.loads(world.run.command("get", "user_tag", "1", "--json").stdout)
    assert got["content"] == {"tags": ["a", "b"]}
    got = json.loads(world.run.command("get", "newest", "2", "--json").stdout)
    assert got["content"] == {"set": "company:3:newest", "member": "2", "score": 1704153600.0}
    of_company = {one[0] for one in world.ask(f"SELECT id FROM {SCHEMA}.user WHERE company_id = 3")}
    rows = json.loads(world.run.command("find", "company_users", "3", "--limit", "1000", "--json").stdout)["rows"]
    assert {row["id"] for row in rows} == of_company
    rows = json.loads(world.run.command("find", "user_tag", "b", "--limit", "1000", "--json").stdout)["rows"]
    assert {(("b", row["id"])) for row in rows} == {one for one in world.expected()["user_tag"] if one[0] == "b"}
    assert "give 2 values" in world.run.command("find", "role_users", "staff").stderr

    world.ask(f"DELETE FROM {STORE}.user_tag WHERE id = 1 AND tags = 'a'")
    world.ask(f"INSERT INTO {STORE}.user_tag (id, tags) VALUES (2, 'extra'), (99999, 'orphan')")
    world.redis.srem("company:3:users", "1")
    world.redis.zadd("company:3:newest", {"2": 5})
    done = world.run.command("verify", "user_tag", "company_users", "newest", "--json")
    assert done.returncode == 1
    assert {one["view"]: len(one["entities"]) for one in json.loads(done.stdout)["views"]} == {
        "mysql:user_tag": 3,
        "redis:company_users": 1,
        "redis:newest": 1,
    }
    assert world.run.command("verify", "--repair").returncode in (0, 1)
    wait_for("the damage is mended", world.is_equal)
    assert world.run.command("verify").returncode == 0

    world.ask(f"UPDATE {SCHEMA}.user SET tags = '{{}}' WHERE id = 1")
    reasons = "SELECT DISTINCT reason FROM belonging_views.dead_letter"
    parked = [("column tags holds an object, not a list",)]
    wait_for("the key is parked", lambda: world.ask(reasons) == parked)
    assert world.run.command("status").returncode == 1
    world.ask(f"UPDATE {SCHEMA}.user SET tags = '[\"c\"]' WHERE id = 1")
    wait_for("a later value clears it", world.is_equal)

    world.ask(f"TRUNCATE TABLE {SCHEMA}.user")
    wait_for("the views are empty", world.is_equal)
    world.ask(f"REPLACE INTO {SCHEMA}.user VALUES (1, 4, 'staff', '[\"z\"]', NULL)")
    wait_for("a row comes back", world.is_equal)


def test_a_declaration_that_changes_moves_every_entity(world: World) -> None:
    world.run.start()
    wait_for("all views are filled", world.run.is_well)
    world.run.stop()
    views = world.run.folder / "views.py"
    views.write_text(views.read_text().replace('"company:{company_id}:users"', '"firm:{company_id}"'))
    world.run.start()
    wait_for("all views are filled again", world.run.is_well)

    def is_moved() -> bool:
        shown, expected = world.shown()["sets"], world.expected()["sets"]
        wanted = {
            f"firm:{name.split(':')[1]}" if name.endswith(":users") else name: members
            for name, members in expected.items()
        }
        return bool(shown == wanted)

    wait_for("every entity is in its new set, and in no old one", is_moved)
