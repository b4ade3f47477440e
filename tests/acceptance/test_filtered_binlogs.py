"""A server that leaves databases out of its binlog: `check` names what is lost, and nobody waits in silence for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

import stack.mariadb
import stack.mysql
from stack import Server
from tests.support.running import Run, addresses, running, wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]
VIEWS = """
from viewtail import Entity, IndexTable

item = Entity("shop.item")
views = [IndexTable("item_by_name", item, value="name")]
"""
ANOTHER = 'views.append(IndexTable("another", item, value="name"))\n'
WITHIN_S = 60.0  # the promise of whoever waits
SERVERS = {
    "mysql --binlog-do-db=shop": (stack.mysql, "--binlog-do-db=shop"),
    "mysql --binlog-ignore-db=viewtail": (stack.mysql, "--binlog-ignore-db=viewtail"),
    "mariadb --binlog-do-db=shop": (stack.mariadb, "--binlog-do-db=shop"),
}
# Everything that waits for a watermark of its own, from where the view does not show what the table has.
WAITING = (
    "wait item_by_name",
    "verify item_by_name",
    "why item_by_name 1",
    "replay item_by_name --key 1",
    "replay item_by_name --since 2020-01-01",
)


def ask(server: Server, *statements: str) -> list[tuple[Any, ...]]:
    connection: Any = pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def fill(server: Server) -> None:
    ask(
        server,
        "CREATE DATABASE shop",
        "CREATE DATABASE other",
        "CREATE TABLE shop.item (id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO shop.item VALUES (1, 'a'), (2, 'b')",
    )


def warnings(run: Run) -> dict[str, dict[str, str]]:
    """What `check` finds besides what is well, by what it is about."""
    told = json.loads(run.command("check", "--json").stdout)["findings"]
    return {one["what"]: one for one in told if one["level"] != "ok"}


class World:
    """A view that was filled before its server got a filter, and one that came since."""

    def __init__(self, folder: Path, kind: Any, option: str) -> None:
        self.server: Server = kind.start(folder / "server")
        fill(self.server)
        self.run = Run(folder, VIEWS, addresses(self.server))
        self.run.start()
        wait_for("the view is filled", lambda: self.run.command("wait", "item_by_name").returncode == 0)
        assert self.run.stop() == 0
        self.server.stop()
        self.server = kind.start(folder / "server", self.server.port, [option])
        (folder / "views.py").write_text(VIEWS + ANOTHER)
        self.run.start()

    def close(self) -> None:
        self.run.kill()
        self.server.kill()


def test_rows_of_a_table_that_was_emptied_from_another_database_leave_the_views_soon(tmp_path: Path) -> None:
    """The server leaves such a TRUNCATE out of its binlog."""
    server = stack.mysql.start(tmp_path / "server", options=["--binlog-do-db=shop"])
    environment = addresses(server) | {"VIEWTAIL_SOURCE__DATABASE": "shop", "VIEWTAIL_CLEANER__SHARE": "0.5"}
    try:
        fill(server)
        with running(tmp_path, VIEWS, environment) as run:
            wait_for("the view is filled", lambda: run.command("wait", "item_by_name").returncode == 0)
            assert run.command("check").returncode == 0, "watermarks come, and so do all rows"
            assert "USE other; TRUNCATE TABLE shop.item" in warnings(run)["filters"]["why"]
            ask(server, "USE other", "TRUNCATE TABLE shop.item")
            shown = "SELECT id FROM viewtail.item_by_name WHERE name IS NOT NULL"
            wait_for("the view is empty", lambda: not ask(server, shown), WITHIN_S)
    finally:
        server.kill()


@pytest.fixture(scope="module", params=SERVERS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("filtered"), *SERVERS[request.param])
    yield made
    made.close()


@pytest.mark.one_in(3)
def test_check_names_the_filter_and_a_view_that_waits_for_watermarks_says_why_within_a_minute(world: World) -> None:
    assert world.run.command("check").returncode == 1
    found = warnings(world.run)
    missing = found["watermarks in the binlog"]
    assert missing["level"] == "fail" and "viewtail.watermark out: binlog-" in missing["seen"]
    assert found["filters"]["level"] == "warn" and "TRUNCATE" in found["filters"]["why"]

    def said() -> bool:
        done = world.run.command("status")
        words = " ".join(done.stdout.split())
        return done.returncode == 1 and "leaves viewtail.watermark out of its binlog: binlog-" in words

    wait_for("status says why the new view waits", said, WITHIN_S)


@pytest.mark.one_in(3)
def test_a_command_that_waits_for_a_watermark_says_why_none_comes_within_a_minute(world: World) -> None:
    ask(world.server, "UPDATE viewtail.item_by_name SET name = 'damaged' WHERE id = 1")
    said = {}
    for command in WAITING:
        done = world.run.command(*command.split(), timeout_s=WITHIN_S)
        said[command] = f"{done.returncode} {' '.join((done.stdout + done.stderr).split())}"
    wrong = {
        command: text
        for command, text in said.items()
        if not text.startswith("1 ") or "out of its binlog: binlog-" not in text or "viewtail check" not in text
    }
    assert not wrong
