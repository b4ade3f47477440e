"""Views of bodies, kept by the real command line: index tables of values that a function takes out of them."""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pymysql
import pytest

from stack import Server
from tests.support.running import Run, addresses, wait_for

SCHEMA, STORE = "bodies", "bodies_views"
CODECS: dict[str, Callable[[Any], bytes]] = {
    "json": lambda body: json.dumps(body).encode(),
    "zlib+json": lambda body: zlib.compress(json.dumps(body).encode()),
    "zlib+msgpack": lambda body: zlib.compress(msgpack.packb(body)),
    "zlib+pickle": lambda body: zlib.compress(pickle.dumps(body, 2)),
}
TABLES = {  # by table: the type of its body, and the codec
    "typed": ("JSON", "json"),
    "text": ("LONGTEXT", "json"),
    "plain": ("MEDIUMBLOB", "json"),
    "packed": ("MEDIUMBLOB", "zlib+json"),
    "msgpack": ("MEDIUMBLOB", "zlib+msgpack"),
    "pickled": ("MEDIUMBLOB", "zlib+pickle"),
}
VIEWS = f"""
from viewtail import Entity, IndexTable

def mail(row):
    return row["body"] and row["body"].get("email")

def person(row):
    body = row["body"] or {{}}
    return {{"city": body.get("city"), "age": body.get("age"), "credit": body.get("credit")}}

def tags(row):
    return row["body"] and row["body"].get("tags")

views = []
for table, codec in {[(table, codec) for table, (_, codec) in TABLES.items()]!r}:
    entity = Entity(f"{SCHEMA}.{{table}}", body="body", codec=codec)
    views += [
        IndexTable(f"{{table}}_email", entity, values={{"email": "VARCHAR(20)"}}, of=mail),
        IndexTable(
            f"{{table}}_person", entity, values={{"city": "VARCHAR(20)", "age": "INT", "credit": "DECIMAL(8,2)"}},
            of=person, where=lambda row: row["kind"] != "left",
        ),
        IndexTable(f"{{table}}_tag", entity, value="tag", each="VARCHAR(5)", of=tags),
    ]
"""
ROWS = 60


def body_of(number: int) -> dict[str, Any] | None:
    if number % 10 == 0:
        return None
    body: dict[str, Any] = {"email": f"ä{number}@x", "city": f"city {number % 5}", "age": number, "credit": 1.25}
    if number % 3:
        body["tags"] = [f"t{number % 4}", "all", "all"]
    if number % 7 == 0:
        body["email"] = None
    return body


class World:
    """The tables as this test wrote them, and what viewtail shows of them."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.server = server
        self._connection = pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True)
        environ = addresses(server)
        environ["VIEWTAIL_MYSQL__URL"] = f"{server.url}/{STORE}"
        environ["VIEWTAIL_CLEANER__SHARE"] = "0"  # it would mend what is planted
        self.run = Run(folder, VIEWS, environ)
        self.rows: dict[str, dict[int, tuple[str, Any]]] = {table: {} for table in TABLES}
        for name in (SCHEMA, STORE):
            self.ask(f"DROP DATABASE IF EXISTS {name}")
        self.ask(f"CREATE DATABASE {SCHEMA}")
        for table, (type_, _) in TABLES.items():
            self.ask(f"CREATE TABLE {SCHEMA}.{table} (id INT PRIMARY KEY, kind VARCHAR(10), body {type_})")
        for number in range(ROWS):
            self.put(number, "left" if number % 11 == 0 else "here", body_of(number))

    def ask(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, arguments or None)
            return list(cursor.fetchall())

    def put(self, number: int, kind: str, body: dict[str, Any] | None) -> None:
        """The same row in every table."""
        for table, (type_, codec) in TABLES.items():
            self.rows[table][number] = (kind, body)
            raw = None if body is None else CODECS[codec](body)
            self._replace(table, number, kind, raw if raw is None or type_ == "MEDIUMBLOB" else raw.decode())

    def _replace(self, table: str, number: int, kind: str, raw: bytes | str | None) -> None:
        new = "kind = VALUES(kind), body = VALUES(body)"
        insert = f"INSERT INTO {SCHEMA}.{table} VALUES (%s, %s, %s) ON DUPLICATE KEY UPDATE {new}"
        self.ask(insert, number, kind, raw)

    def spoil(self, number: int, raws: dict[str, bytes | str]) -> None:
        """A body that cannot be read; what the views show of it stays."""
        for table, raw in raws.items():
            self._replace(table, number, "here", raw)

    def delete(self, number: int) -> None:
        for table in TABLES:
            self.ask(f"DELETE FROM {SCHEMA}.{table} WHERE id = %s", number)
            del self.rows[table][number]

    def move(self, number: int, to: int) -> None:
        for table in TABLES:
            self.ask(f"UPDATE {SCHEMA}.{table} SET id = %s WHERE id = %s", to, number)
            self.rows[table][to] = self.rows[table].pop(number)

    # -- what the views must show, and do ----------------------------------------------------------------------------

    def is_equal(self) -> bool:
        for table, rows in self.rows.items():
            bodies = {number: body or {} for number, (_, body) in rows.items()}
            here = {number for number, (kind, _) in rows.items() if kind != "left"}
            for view, wanted in (
                ("email", {(n, body["email"]) for n, body in bodies.items() if body.get("email") is not None}),
                ("person", {(n, b["city"], b["age"], b["credit"]) for n, b in bodies.items() if n in here and b}),
                ("tag", {(n, tag) for n, body in bodies.items() for tag in body.get("tags", ())}),
            ):
                columns = {"email": "email", "person": "city, age, credit", "tag": "tag"}[view]
                found = self.ask(f"SELECT id, {columns} FROM {STORE}.{table}_{view}")
                shown = {row for row in found if any(value is not None for value in row[1:])}
                assert shown == wanted, (table, view, shown ^ wanted)
        return True

    def json(self, *arguments: str) -> Any:
        done = self.run.command(*arguments, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def letters(self) -> dict[tuple[str, str], str]:
        """By view and key, the reason."""
        listed = self.json("dead-letters", "list", "--limit", "1000")["letters"]
        return {(one["view"], one["key"]): one["cause"] for one in listed}


@pytest.fixture(params=["mysql_server", pytest.param("mariadb_server", marks=pytest.mark.mariadb)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path, request.getfixturevalue(request.param))
    yield found
    found.run.kill()


HOSTILE = zlib.compress(b"cos\nsystem\n(S'secret'\ntR.")
BOMB = zlib.compress(b" " * (1 << 26))
UNREADABLE: list[tuple[dict[str, bytes | str], str]] = [
    ({"pickled": HOSTILE}, "it names a class or a function that makes no plain data"),
    ({"packed": BOMB, "msgpack": BOMB, "pickled": BOMB}, "it decompresses to more than 4,194,304 bytes"),
    ({"packed": CODECS["zlib+json"]({"a": "secret"})[:-4]}, "it ends too early"),
    ({"plain": CODECS["zlib+json"]({"a": "secret"}), "msgpack": CODECS["zlib+pickle"]({"a": "secret"})}, "it is no"),
    ({"typed": '["secret"]', "text": '["secret"]', "plain": b'["secret"]'}, "it holds a list, not an object (a dict)"),
]


def test_views_of_bodies_are_kept_through_all_that_happens_to_them(world: World) -> None:  # noqa: C901
    world.spoil(50, {table: raw for raws, _ in reversed(UNREADABLE) for table, raw in raws.items()})
    run = world.run
    checked = run.command("check")
    assert checked.returncode in (0, 1) and "secret" not in checked.stdout, checked.stdout
    run.start()

    def spoiled(number: int) -> set[tuple[str, str]]:
        tables = {table for raws, _ in UNREADABLE for table in raws}
        return {(f"mysql:{table}_{view}", str(number)) for table in tables for view in ("email", "person", "tag")}

    # A backfill parks what it cannot read; row 50 had no body before.
    wait_for("the views are filled", world.is_equal)
    wait_for("the bad bodies are parked", lambda: spoiled(50) <= world.letters().keys())

    # Live changes: new rows, other values, values that go, rows that move and leave.
    for number in range(100, 130):
        world.put(number, "here", body_of(number))
    for number in range(0, 40, 3):
        world.put(number, "here" if number % 2 else "left", body_of(number + 1))
    world.put(41, "here", None)
    world.delete(7)
    world.move(8, 208)
    wait_for("the views follow", world.is_equal)

    # What cannot be read parks its key by name, and the view keeps what it had.
    for at, (raws, _) in enumerate(UNREADABLE, 101):
        world.spoil(at, raws)
    letters = wait_for("they are parked", lambda: all_parked(world))
    for at, (raws, reason) in enumerate(UNREADABLE, 101):
        for table in raws:
            for view in ("email", "person", "tag"):
                assert reason in letters[f"mysql:{table}_{view}", str(at)]
    world.put(110, "here", {"email": "a secret of more than 20 characters", "city": "x", "age": 1, "credit": 1.5})
    world.put(111, "here", {"email": "fits", "city": "x", "age": 1 << 40, "credit": 1.25, "tags": ["longer than 5"]})
    letters = wait_for("values that do not fit are parked", lambda: with_misfits(world))
    assert "secret" not in json.dumps(sorted(letters.items()))
    assert run.command("status").returncode == 1

    # Mended, they leave the list.
    for number in (50, 101, 102, 103, 104, 105, 110, 111):
        world.put(number, "left" if number == 101 else "here", body_of(number))
    wait_for("the views follow again", world.is_equal)
    wait_for("nothing is parked", lambda: not world.letters())

    # Planted damage is found and mended.
    for table in TABLES:
        world.ask(f"UPDATE {STORE}.{table}_email SET email = 'planted' WHERE id = 12")
        world.ask(f"DELETE FROM {STORE}.{table}_person WHERE id = 13")
        world.ask(f"INSERT INTO {STORE}.{table}_tag (id, tag) VALUES (9999, 'extra')")
    found = {one["view"]: one for one in world.json("verify")["views"]}
    for table in TABLES:
        for view, key in (("email", "12"), ("person", "13"), ("tag", "9999")):
            assert [one["key"] for one in found[f"mysql:{table}_{view}"]["entities"]] == [key], (table, view)
    assert world.run.command("verify", "--repair").returncode == 0
    assert world.run.command("verify").returncode == 0 and world.is_equal()

    # Replayed and rebuilt, they are what they were; commands read them.
    assert run.command("replay", "mysql:pickled_email", "--yes").returncode == 0
    assert run.command("replay", "mysql:packed_person", "--key", "12").returncode == 0
    for view in ("mysql:pickled_person", "mysql:packed_tag"):
        done = run.command("rebuild", view)
        assert done.returncode == 0, done.stdout + done.stderr
    wait_for("the views are whole", world.is_equal)
    rows = world.json("find", "pickled_person", "city 2", "12")["rows"]
    assert [row["id"] for row in rows] == [
        number for number, (kind, body) in sorted(world.rows["pickled"].items())
        if body is not None and kind != "left" and (body["city"], body["age"]) == ("city 2", 12)
    ]  # fmt: skip
    assert {row["id"] for row in world.json("find", "packed_tag", "t1", "--limit", "1000")["rows"]} == {
        number for number, (_, body) in world.rows["packed"].items() if "t1" in (body or {}).get("tags", ())
    }
    assert run.command("why", "mysql:typed_email", "13").returncode == 0
    for table in TABLES:
        assert world.json("preview", f"mysql:{table}_email")["differences"] == []
    assert run.stop() == 0


def all_parked(world: World) -> dict[tuple[str, str], str]:
    letters = world.letters()
    wanted = {
        (f"mysql:{table}_{view}", str(at))
        for at, (raws, _) in enumerate(UNREADABLE, 101)
        for table in raws
        for view in ("email", "person", "tag")
    }
    assert wanted <= letters.keys(), wanted - letters.keys()
    return letters


def with_misfits(world: World) -> dict[tuple[str, str], str]:
    letters = world.letters()
    for table in TABLES:
        why = "of returned what the view cannot hold: "
        assert letters[f"mysql:{table}_email", "110"] == (
            f"{why}the value of email has 35 characters, and the view's values are VARCHAR(20)"
        )
        assert letters[f"mysql:{table}_person", "111"].startswith(f"{why}the value of age is outside the range")
        assert letters[f"mysql:{table}_tag", "111"].startswith(f"{why}value 1 of its list has 13 characters")
    return letters


def test_a_changed_function_fills_the_view_again_with_values_of_other_types(
    mysql_server: Server, tmp_path: Path
) -> None:
    world = World(tmp_path, mysql_server)
    run = world.run
    (run.folder / "views.py").write_text(VIEWS + 'views = [view for view in views if view.name == "packed_email"]\n')
    run.start()
    wait_for("it is filled", lambda: world.ask(f"SELECT email FROM {STORE}.packed_email WHERE id = 1") == [("ä1@x",)])
    assert run.stop() == 0
    changed = (
        'views = [IndexTable("packed_email", views[9].entity, values={"age": "INT", "email": "VARCHAR(3)"},\n'
        '    of=lambda row: row["body"] and (row["body"]["age"], "a"))]\n'
    )
    (run.folder / "views.py").write_text(VIEWS + changed)
    differences = world.json("preview", "packed_email")["differences"]
    assert {"key": "1", "before": {"email": "ä1@x"}, "after": {"age": 1, "email": "a"}} in differences
    run.start()
    wait_for(
        "it is filled again",
        lambda: (
            world.ask(f"SELECT age, email FROM {STORE}.packed_email WHERE id IN (1, 2) ORDER BY id")
            == [(1, "a"), (2, "a")]
        ),
    )
    assert run.command("verify").returncode == 0
    run.kill()


def test_with_previous_the_old_function_keeps_the_view_until_the_new_copy_is_swapped(
    mysql_server: Server, tmp_path: Path
) -> None:
    world = World(tmp_path, mysql_server)
    run = world.run
    before = (
        'IndexTable("packed_email", views[9].entity, values={"email": "VARCHAR(20)"},\n'
        '    of=lambda row: row["body"] and row["body"]["email"])'
    )
    (run.folder / "views.py").write_text(f"{VIEWS}views = [{before}]\n")
    run.start(VIEWTAIL_RUN__ON_CHANGE="beside")
    wait_for("it is filled", lambda: world.ask(f"SELECT email FROM {STORE}.packed_email WHERE id = 1") == [("ä1@x",)])
    assert run.stop() == 0
    changed = 'IndexTable("packed_email", views[9].entity, values={"age": "BIGINT"}, of=lambda row: 10 * row["id"]'
    (run.folder / "views.py").write_text(f"{VIEWS}views = [{changed}, previous={before})]\n")
    run.start(VIEWTAIL_RUN__ON_CHANGE="beside")
    wait_for("it is swapped", lambda: world.ask(f"SELECT age FROM {STORE}.packed_email WHERE id = 4") == [(40,)])
    world.put(1, "here", body_of(2))
    world.put(300, "here", body_of(3))
    wait_for("it is kept", lambda: world.ask(f"SELECT age FROM {STORE}.packed_email WHERE id = 300") == [(3000,)])
    assert run.command("rebuild", "packed_email", "--rollback").returncode == 0
    wait_for(
        "the former copy was kept too",
        lambda: (
            world.ask(f"SELECT id, email FROM {STORE}.packed_email WHERE id IN (1, 300) ORDER BY id")
            == [(1, "ä2@x"), (300, "ä3@x")]
        ),
    )
    assert run.command("verify").returncode == 0
    run.kill()
