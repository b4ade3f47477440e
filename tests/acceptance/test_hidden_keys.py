"""Primary keys and columns that `SELECT *` does not show, those that MySQL makes by itself among them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

import stack.mysql
from stack import Server
from tests.support.running import Run, addresses, wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]
# As a service sets them: each table gets a key, and no dump or tool shows it.
HIDES = ["--sql-generate-invisible-primary-key=ON", "--show-gipk-in-create-table-and-information-schema=OFF"]
TABLES = (
    "CREATE DATABASE hidden",
    "CREATE TABLE hidden.person (name VARCHAR(20), code INT INVISIBLE DEFAULT 7)",
    "CREATE TABLE hidden.place (number INT AUTO_INCREMENT INVISIBLE PRIMARY KEY, name CHAR(9), code INT INVISIBLE)",
    "INSERT INTO hidden.person (name, code) VALUES ('ada', 1), ('bob', 2)",
    "INSERT INTO hidden.place (number, name, code) VALUES (1, 'here', 1), (2, 'there', 2)",
)
VIEWS = """
from viewtail import Entity, IndexTable

views = [IndexTable(f"{name}_by_{value}", Entity("hidden." + name), value=value)
         for name in NAMES for value in ("name", "code")]
"""


class World:
    def __init__(self, folder: Path, server: Server, tables: list[str]) -> None:
        self.server, self.tables = server, tables
        for statement in TABLES:
            if "person" not in statement or "person" in tables:
                self.ask(statement)
        self.ask("DROP USER IF EXISTS hidden", "CREATE USER hidden")
        rights = ("REPLICATION SLAVE, REPLICATION CLIENT ON *.*", "SELECT ON hidden.*", "ALL ON hidden_views.*")
        self.ask(*(f"GRANT {right} TO hidden" for right in rights))
        url = server.url.replace("//root@", "//hidden@")
        environment = addresses(server) | {
            "VIEWTAIL_SOURCE__URL": url,
            "VIEWTAIL_SOURCE__DATABASE": "hidden_views",
            "VIEWTAIL_MYSQL__URL": f"{url}/hidden_views",
        }
        self.run = Run(folder, VIEWS.replace("NAMES", repr(tables)), environment)
        self.run.start()
        wait_for("all is well", self.run.is_well)

    def ask(self, *statements: str) -> list[tuple[Any, ...]]:
        connection: Any = pymysql.connect(host="127.0.0.1", port=self.server.port, user="root", autocommit=True)
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def found(self, view: str, value: str) -> list[dict[str, Any]]:
        done = self.run.command("find", view, value, "--json")
        rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
        assert done.returncode == (0 if rows else 1), done.stderr
        return rows


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("hidden")
    if request.param == "mariadb":
        made = World(folder, request.getfixturevalue("mariadb_server"), ["place"])
    else:
        made = World(folder, stack.mysql.start(folder / "mysql", options=HIDES), ["person", "place"])
    yield made
    made.run.kill()
    if request.param == "mysql":
        made.server.kill()


def test_views_of_tables_with_hidden_keys_and_columns_are_kept_and_found(world: World) -> None:
    for table in world.tables:
        name = f"{table}_by_name", world.ask(f"SELECT name FROM hidden.{table} WHERE code = 2")[0][0]
        assert [row["code"] for row in world.found(*name)] == [2]
        world.ask(
            f"UPDATE hidden.{table} SET name = 'eve', code = 5 WHERE code = 2",
            f"DELETE FROM hidden.{table} WHERE code = 1",
        )
        for value in ("name", "code"):
            assert world.run.command("wait", f"{table}_by_{value}").returncode == 0
        (row,) = world.found(f"{table}_by_code", "5")
        assert row["name"] == "eve" and row["number" if table == "place" else "my_row_id"] == 2
        assert world.found(f"{table}_by_code", "1") == []
    done = world.run.command("verify")
    assert done.returncode == 0, done.stdout


def test_check_and_init_see_them(world: World, tmp_path: Path) -> None:
    done = world.run.command("check", "--json")
    told = {one["what"]: one for one in json.loads(done.stdout)["findings"]}
    assert {told[f"view mysql:{table}_by_code"]["level"] for table in world.tables} == {"ok"}, done.stdout
    first = Run(tmp_path, "", world.run.environment())
    (tmp_path / "views.py").unlink()
    done = first.command("init", "--schema", "hidden")
    assert done.returncode == 0, done.stderr
    assert all(f"hidden.{table}" in (tmp_path / "views.py").read_text() for table in world.tables)
