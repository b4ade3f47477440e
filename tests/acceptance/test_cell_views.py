"""Views of one column of a table of cells: cells of other columns are not in their way, however they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, running, wait_for
from viewtail import settings
from viewtail.cells import Cells

VIEWS = """
from viewtail import Entity, IndexTable, RedisHash

users = Entity(
    "jog.cell", key="row_key", version="ref_key", append_only=True, order="added_at", only={"column_name": "users"}
)
views = [
    IndexTable("user_ref", users, value="ref_key"),
    RedisHash("user", users, fields=["body"]),
]
"""
NEWEST = (
    "SELECT row_key, ref_key, body FROM jog.cell c WHERE column_name = 'users' AND ref_key = (SELECT MAX(ref_key) "
    "FROM jog.cell d WHERE d.row_key = c.row_key AND d.column_name = 'users') ORDER BY row_key"
)

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]


class Jog:
    def __init__(self, mysql: Server, redis_server: Server, run: Run, cells: Cells) -> None:
        self.mysql, self.run, self.cells = mysql, run, cells
        self.redis = redis.Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True)

    def put(self, row: str, column: str, ref: int) -> None:
        self.cells.put_cell(row, column, ref, {"of": f"{row} {column} {ref}"})

    def is_equal(self) -> bool:
        rows = ask(self.mysql, NEWEST)
        index = ask(self.mysql, "SELECT row_key, ref_key FROM viewtail.user_ref WHERE ref_key IS NOT NULL")
        assert sorted(index) == [(row, ref) for row, ref, _ in rows]
        hashes = {key: self.redis.hget(key, "body") for key in self.redis.keys("user:*") if not key.endswith(":t")}
        assert hashes == {f"user:{row}": body for row, _, body in rows}
        return True

    def succeeds(self, *arguments: str) -> str:
        done = self.run.command(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture(params=["binlog", "poll"])
def jog(mysql_server: Server, redis_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Jog]:
    for database in ("viewtail", "jog"):
        ask(mysql_server, f"DROP DATABASE IF EXISTS {database}")
    redis.Redis(host="127.0.0.1", port=redis_server.port).flushall()
    environment = {**addresses(mysql_server, redis_server), "VIEWTAIL_SOURCE__MODE": request.param}
    with Cells("jog.cell", settings=settings.load(None, environment)) as cells:
        cells.create()
        for number in range(40):
            cells.put_cell(f"r{number}", "users", 5, {"of": number})
            cells.put_cell(f"r{number}", "settings", 100, {"of": number})
            cells.put_cell(f"r{number}", "users", 4, {"of": "older"})
            cells.put_cell(f"s{number}", "settings", 1, {"of": number})
            cells.put_cell(f"t{number}", "Users", 1, {"of": number})
        with running(tmp_path, VIEWS, environment) as run:
            yield Jog(mysql_server, redis_server, run, cells)


def test_cells_of_other_columns_are_not_in_the_way_of_a_view(jog: Jog) -> None:
    wait_for("they are filled", jog.is_equal)
    for row, column, ref in (
        ("ada", "users", 1),
        ("ada", "settings", 50),
        ("ada", "users", 3),
        ("ada", "users", 2),
        ("bob", "settings", 9),
        ("r1", "settings", 200),
        ("r2", "users", 6),
        ("r2", "USERS", 7),
        ("s1", "users", 1),
    ):
        jog.put(row, column, ref)
    jog.succeeds("wait", "mysql:user_ref")
    jog.succeeds("wait", "redis:user")
    assert jog.is_equal()
    assert jog.redis.hget("user:ada", "body") == '{"of":"ada users 3"}'
    for command in (("verify",), ("status",), ("check",)):
        jog.succeeds(*command)
    shown = json.loads(jog.succeeds("why", "redis:user", "ada", "--json"))
    assert shown["verdict"] == "current"
    found = json.loads(jog.succeeds("find", "mysql:user_ref", "3", "--json"))
    rows = found["rows"] if isinstance(found, dict) else found
    assert [(row["row_key"], row["column_name"]) for row in rows] == [("ada", "users")]
    jog.succeeds("preview", "redis:user")
    none = json.loads(jog.succeeds("why", "redis:user", "bob", "--json"))
    assert none["verdict"] == "rightly absent"


def test_what_is_wrong_in_a_view_of_one_column_is_found_and_mended(jog: Jog) -> None:
    wait_for("they are filled", jog.is_equal)
    jog.redis.delete("user:r1")
    found = jog.run.command("verify", "redis:user")
    assert found.returncode == 1 and "1 missing" in found.stdout, found.stdout
    jog.succeeds("verify", "redis:user", "--repair")
    wait_for("it is mended", jog.is_equal)
    jog.redis.delete("user:r2")
    jog.succeeds("replay", "redis:user", "--key", "r2", "--key", "s2")
    assert jog.is_equal()
    jog.redis.delete("user:r3")
    jog.redis.copy("user:r4", "user:s1")  # as if its cells were archived: there are others of that row
    jog.succeeds("replay", "redis:user", "--yes")
    wait_for("it is filled again", jog.is_equal)
    jog.succeeds("verify")


def test_a_view_of_one_column_is_rebuilt_beside_itself(jog: Jog) -> None:
    wait_for("they are filled", jog.is_equal)
    jog.put("ada", "users", 3)
    jog.put("ada", "settings", 9)
    jog.succeeds("rebuild", "redis:user", "--yes")
    jog.put("ada", "users", 4)
    jog.put("r1", "settings", 300)
    jog.succeeds("wait", "redis:user")
    wait_for("it follows", jog.is_equal)
    jog.succeeds("verify", "redis:user")
