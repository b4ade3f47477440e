"""`viewtail lint`, the real command, over the schema of a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pymysql
import pytest

from stack import Server
from tests.support.running import Run, addresses

VIEWS = """
from viewtail import Entity, IndexTable
views = [IndexTable("by_email", Entity("linted_shop.user"), value="email")]
"""
GOOD = (
    "CREATE TABLE linted_shop.user (id INT NOT NULL PRIMARY KEY COMMENT 'Its number', "
    "email VARCHAR(60) NULL COMMENT 'For invoices') COMMENT 'Who buys'"
)


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    _execute(server, "DROP DATABASE IF EXISTS linted_shop", "CREATE DATABASE linted_shop CHARACTER SET utf8mb4", GOOD)
    return server


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Run:
    return Run(tmp_path, VIEWS, addresses(server))


def _execute(server: Server, *statements: str) -> None:
    connection: Any = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_the_schema_of_the_views_is_looked_at_and_each_finding_names_what_it_is_about(run: Run, server: Server) -> None:
    done = run.command("lint")
    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing found\n", "")
    _execute(server, "CREATE TABLE linted_shop.Sales (id INT, KEY by_id (id))")
    done = run.command("lint", "--json")
    assert done.returncode == 1, done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert {(finding["code"], finding["of"], finding["file"]) for finding in findings} >= {
        ("VT102", "linted_shop.Sales", ""),
        ("VT108", "linted_shop.Sales.by_id", ""),
        ("VT301", "linted_shop.Sales", ""),
    }
    assert run.command("lint", "--ignore", "VT:linted_shop.Sales").returncode == 0


def test_a_migration_is_judged_over_the_schema_as_it_is(run: Run, tmp_path: Path) -> None:
    migration = tmp_path / "new.sql"
    migration.write_text(
        "ALTER TABLE user MODIFY email VARCHAR(90) NULL COMMENT 'For invoices';\n"
        "ALTER TABLE user MODIFY email VARCHAR(20) NULL COMMENT 'For invoices';\n"
        "TRUNCATE TABLE user;\n"
    )
    done = run.command("lint", "new.sql", "--json")
    assert done.returncode == 1, done.stderr
    found = {(finding["code"], finding["line"]) for finding in json.loads(done.stdout)["findings"]}
    # A wider column is fine for the view; what is narrowed was VARCHAR(90) by then.
    assert found == {("VT406", 2), ("VT501", 2), ("VT501", 3), ("VT502", 3)}


def test_a_database_that_is_not_there_is_misuse(run: Run) -> None:
    done = run.command("lint", "--database", "linted_nowhere")
    assert done.returncode == 2 and "linted_nowhere has no table" in done.stderr


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path, VIEWS, {"VIEWTAIL_SOURCE__URL": "mysql://root@127.0.0.1:1"})
    done = run.command("lint")
    assert done.returncode == 1 and "127.0.0.1:1" in done.stderr and "Traceback" not in done.stderr
