"""Views over the newest cells of several columns of a row, which are read again at each change."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, running, wait_for
from viewtail import settings
from viewtail.cells import Cells

VIEWS = """
from viewtail import Entity, IndexTable, RedisJson

person = Entity("jog.cell", key="row_key", columns_by="column_name", newest="ref_key", body="body", codec="json")


def card(row):
    return {"user": row["users"], "settings": row["settings"]}


def theme(row):
    return (row["settings"] or {}).get("theme")


views = [
    RedisJson("person", person, document=card),
    IndexTable("person_theme", person, values={"theme": "VARCHAR(20)"}, of=theme),
]
"""
NAMES = {"users": "user", "settings": "settings"}

pytestmark = [pytest.mark.redis, pytest.mark.slow]


class Jog:
    def __init__(self, server: Server, redis_server: Server, run: Run, cells: Cells) -> None:
        self.server, self.run, self.cells = server, run, cells
        self.redis = redis.Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True)

    def put(self, row: str, column: str, ref: int) -> None:
        self.cells.put_cell(row, column, ref, {"of": f"{row} {column} {ref}", "theme": f"t{ref}"})

    def cards(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for row, column, body in ask(self.server, "SELECT row_key, column_name, body FROM jog.cell ORDER BY ref_key"):
            if column in NAMES:
                found.setdefault(row, {"user": None, "settings": None})[NAMES[column]] = json.loads(body)
        return found

    def is_equal(self) -> bool:
        cards = self.cards()
        keys = [key for key in self.redis.keys("person:*") if not key.endswith(":t")]
        shown = {key.removeprefix("person:"): json.loads(self.redis.get(key) or "{}") for key in keys}
        for document in shown.values():
            document.pop("_version")
        assert shown == cards
        themes = dict(ask(self.server, "SELECT row_key, theme FROM viewtail.person_theme WHERE theme IS NOT NULL"))
        assert themes == {row: card["settings"]["theme"] for row, card in cards.items() if card["settings"]}
        return True

    def succeeds(self, *arguments: str) -> str:
        done = self.run.command(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def settle(self) -> None:
        self.succeeds("wait", "redis:person")
        self.succeeds("wait", "mysql:person_theme")


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def jog(request: pytest.FixtureRequest, redis_server: Server, tmp_path: Path) -> Iterator[Jog]:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    for database in ("viewtail", "jog"):
        ask(server, f"DROP DATABASE IF EXISTS {database}")
    redis.Redis(host="127.0.0.1", port=redis_server.port).flushall()
    environment = addresses(server, redis_server)
    environment["VIEWTAIL_SOURCE__URL"] = f"mysql://root@127.0.0.1:{server.port}"
    with Cells("jog.cell", settings=settings.load(None, environment)) as cells:
        cells.create()
        for number in range(30):
            for column, ref in (("users", 5), ("settings", 100), ("users", 4), ("other", 200), ("Users", 300)):
                cells.put_cell(f"r{number}", column, ref, {"of": ref, "theme": f"t{ref}"})
            cells.put_cell(f"s{number}", "other", 1, {})
        with running(tmp_path, VIEWS, environment) as run:
            yield Jog(server, redis_server, run, cells)


def test_a_row_shows_its_newest_cells_whatever_comes_when(jog: Jog) -> None:
    wait_for("they are filled", jog.is_equal)
    for row, column, ref in (
        ("ada", "users", 3),
        ("ada", "settings", 50),
        ("ada", "users", 2),
        ("ada", "other", 99),
        ("bob", "other", 9),
        ("r1", "settings", 200),
        ("r2", "settings", 99),
    ):
        jog.put(row, column, ref)
    jog.settle()
    assert jog.is_equal()
    ask(jog.server, "DELETE FROM jog.cell WHERE row_key = 'ada' AND ref_key = 3")
    ask(jog.server, "DELETE FROM jog.cell WHERE row_key = 'r3'")
    ask(jog.server, "UPDATE jog.cell SET row_key = 'moved' WHERE row_key = 'r4' AND column_name = 'users'")
    jog.settle()
    assert jog.is_equal()
    for command in (("verify",), ("status",), ("check",), ("preview", "redis:person")):
        jog.succeeds(*command)
    verdicts = {key: json.loads(jog.succeeds("why", "redis:person", key, "--json"))["verdict"] for key in ("ada", "r3")}
    assert verdicts == {"ada": "current", "r3": "rightly absent"}
    rows = json.loads(jog.succeeds("find", "mysql:person_theme", "t200", "--json"))
    found = rows["rows"] if isinstance(rows, dict) else rows
    assert [row["row_key"] for row in found] == ["r1"]


def test_what_is_wrong_is_found_mended_and_filled_again(jog: Jog) -> None:
    wait_for("they are filled", jog.is_equal)
    jog.redis.delete("person:r1")
    jog.redis.copy("person:r2", "person:nobody")
    found = jog.run.command("verify", "redis:person")
    assert found.returncode == 1 and "1 extra, 1 missing" in found.stdout, found.stdout
    jog.succeeds("verify", "redis:person", "--repair")
    assert jog.is_equal()
    jog.redis.delete("person:r2")
    jog.succeeds("replay", "redis:person", "--key", "r2", "--key", "s2")
    assert jog.is_equal()
    ask(jog.server, "UPDATE viewtail.person_theme SET theme = 'wrong' WHERE row_key = 'r5'")
    jog.succeeds("replay", "mysql:person_theme", "--where", "row_key = 'r5'")
    assert jog.is_equal()
    jog.redis.copy("person:r4", "person:nobody")
    jog.succeeds("replay", "redis:person", "--yes")
    wait_for("it is filled again", jog.is_equal)
    jog.succeeds("verify")
    jog.succeeds("rebuild", "redis:person", "--yes")
    jog.put("ada", "users", 4)
    jog.settle()
    assert jog.is_equal()
    ask(jog.server, "TRUNCATE jog.cell")
    jog.settle()
    assert jog.is_equal() and not jog.cards()


def test_under_writers_and_kills_every_row_ends_right(jog: Jog) -> None:
    until, written = time.monotonic() + 8, [0] * 3

    def write(number: int) -> None:
        chance = random.Random(number)
        with Cells("jog.cell", settings=jog.cells._settings) as cells:
            while time.monotonic() < until:
                row, ref = f"r{chance.randrange(20)}", chance.randrange(1_000_000)
                column = chance.choice(("users", "settings", "other"))
                if cells.get_cell(row, column, ref) is None:
                    cells.put_cell(row, column, ref, {"of": f"{row} {column} {ref}", "theme": f"t{ref}"})
                    written[number] += 1
                if chance.random() < 0.1:
                    ask(jog.server, f"DELETE FROM jog.cell WHERE row_key = '{row}' ORDER BY ref_key DESC LIMIT 2")

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for one in writers:
        one.start()
    while any(one.is_alive() for one in writers):
        jog.run.kill_worker(random.choice(("redis", "mysql")))
        time.sleep(1.5)
    wait_for("they are equal", jog.is_equal)
    assert min(written) > 10
    jog.succeeds("verify")
