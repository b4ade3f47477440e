"""Statements that change how related rows are read, compared or put in order: documents are what plain SQL says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, running, wait_for

pytestmark = [pytest.mark.redis, pytest.mark.slow]
VIEWS = """
from viewtail import Count, Entity, Group, Many, RedisJson

lines = Many("alt.line", by="root_id", order_by="line_no")
views = [
    RedisJson("shown", Entity("alt.root", related={
        "lines": lines, "paid": Count("alt.line", by="root_id", where="status = 'paid'"),
    }), document=lambda row: {"titles": [line["title"] for line in row["lines"]], "paid": row["paid"]}),
    RedisJson("whole", Entity("alt.root", related={"lines": lines}), document=lambda row: {"lines": row["lines"]}),
    RedisJson("group", Group("alt.line", by="root_id", values={"paid": Count(where="status = 'paid'")}),
        document=lambda row: {"paid": row["paid"]}),
]
"""
TABLES = (
    "DROP DATABASE IF EXISTS viewtail",
    "DROP DATABASE IF EXISTS alt",
    "CREATE DATABASE alt CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "CREATE TABLE alt.root (id INT PRIMARY KEY)",
    "CREATE TABLE alt.line (id INT PRIMARY KEY, root_id INT, line_no VARCHAR(10), status VARCHAR(10), KEY (root_id))",
    "ALTER TABLE alt.line ADD COLUMN title VARCHAR(30) CHARACTER SET cp1251 AFTER root_id",
    "INSERT INTO alt.root VALUES (1), (2), (3)",
    "INSERT INTO alt.line VALUES (1, 1, 'Привет', 'a', 'paid'), (2, 1, 'b', 'B', 'PAID'), (3, 2, 'Жук', 'x', 'Paid')",
)
BINARY, GENERAL = ("VARCHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_" + of for of in ("bin", "general_ci"))
MODIFY = "ALTER TABLE alt.line MODIFY"


class Case:
    """A server with the tables, and the viewtail that keeps their views."""

    def __init__(self, server: Server, redis_server: Server, run: Run) -> None:
        self.server, self.run = server, run
        self._redis = redis.Redis(port=redis_server.port)
        self.names = ["id", "root_id", "title", "line_no", "status"]  # of the columns that are shown

    def do(self, *statements: str) -> None:
        for statement in statements:
            ask(self.server, statement)

    def states(self) -> dict[str, str]:
        (pipeline,) = json.loads(self.run.command("status", "--json").stdout)["pipelines"]
        return {view["name"]: view["state"] for view in pipeline["views"]}

    def settle(self) -> None:
        wait_for("every view holds what SQL says", self._is_equal, timeout_s=30)

    def _is_equal(self) -> bool:
        for view, expected in self._expected().items():
            assert self._actual(view) == expected, view
        return True

    def _expected(self) -> dict[str, dict[str, Any]]:
        paid = dict(self._select("SELECT root_id, SUM(status = 'paid') FROM alt.line GROUP BY root_id"))
        roots = [root for (root,) in self._select("SELECT id FROM alt.root")]
        listed = {root: self._lines(root) for root in roots}
        return {
            "shown": {
                str(root): {"titles": [line["title"] for line in lines], "paid": int(paid.get(root, 0))}
                for root, lines in listed.items()
            },
            "whole": {str(root): {"lines": lines} for root, lines in listed.items()},
            "group": {str(root): {"paid": int(count)} for root, count in paid.items()},
        }

    def _lines(self, root: int) -> list[dict[str, Any]]:
        chosen = f"SELECT {', '.join(self.names)} FROM alt.line WHERE root_id = {root} ORDER BY line_no, id"
        return [dict(zip(self.names, row, strict=True)) for row in self._select(chosen)]

    def _select(self, statement: str) -> list[tuple[Any, ...]]:
        connection: Any = pymysql.connect(host="127.0.0.1", port=self.server.port, user="root", charset="utf8mb4")
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def _actual(self, view: str) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for key in self._redis.scan_iter(f"{view}:*"):
            text: Any = self._redis.get(key)
            shown[key.decode().partition(":")[2]] = content = json.loads(text)
            content.pop("_version")
        return shown


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def case(request: pytest.FixtureRequest, redis_server: Server, tmp_path: Path) -> Iterator[Case]:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    for statement in TABLES:
        ask(server, statement)
    redis.Redis(port=redis_server.port).flushall()
    environment = addresses(server, redis_server)
    environment["VIEWTAIL_SOURCE__URL"] = f"mysql://root@127.0.0.1:{server.port}"
    with running(tmp_path, VIEWS, environment) as run:
        wait_for("the views are filled", run.is_filled)
        yield Case(server, redis_server, run)


def test_documents_are_what_sql_says_after_another_collation_or_character_set(case: Case) -> None:
    case.settle()
    case.do(f"{MODIFY} status {BINARY}")  # a condition, and nothing shows it
    case.settle()
    case.do(f"{MODIFY} line_no {BINARY}")  # an order
    case.settle()
    case.do(f"{MODIFY} title VARCHAR(30) CHARACTER SET utf8mb4", "UPDATE alt.line SET title = 'Ж 😀' WHERE id = 2")
    case.settle()
    case.run.stop()
    case.do(f"{MODIFY} status {GENERAL}, MODIFY line_no {GENERAL}, MODIFY title VARCHAR(30) CHARACTER SET utf8mb4")
    case.run.start()
    case.settle()
    wait_for("the views are filled", case.run.is_filled)
    assert case.run.command("verify").returncode == 0


def swapped(table: str, *changes: str) -> list[str]:
    """The statements by which gh-ost puts another table in the place of one."""
    ghost, old = f"alt._{table}_gho", f"alt._{table}_del"
    return [
        f"CREATE TABLE {ghost} LIKE alt.{table}",
        *(f"ALTER TABLE {ghost} {change}" for change in changes),
        f"INSERT INTO {ghost} SELECT * FROM alt.{table}",
        f"RENAME TABLE alt.{table} TO {old}, {ghost} TO alt.{table}",
        f"DROP TABLE {old}",
    ]


def test_documents_go_on_with_a_table_that_is_put_in_the_place_of_a_related_one(case: Case) -> None:
    case.settle()
    case.do(
        *swapped("line", "MODIFY status VARCHAR(90) COLLATE utf8mb4_general_ci"),
        "INSERT INTO alt.line VALUES (5, 3, 'n', 'n', 'paid')",
        "UPDATE alt.line SET title = 'after' WHERE id = 1",
    )
    case.settle()
    case.do("CREATE TABLE alt.spare LIKE alt.line", "INSERT INTO alt.spare VALUES (9, 2, 'other', 'o', 'paid')")
    case.do("RENAME TABLE alt.line TO alt.gone, alt.spare TO alt.line")  # other rows
    case.settle()
    case.do(*swapped("root"), "INSERT INTO alt.root VALUES (4)", "UPDATE alt.line SET root_id = 4")
    case.settle()
    case.do("TRUNCATE alt.line")
    case.settle()
    case.do("INSERT INTO alt.line VALUES (1, 1, 'again', 'a', 'paid')", "UPDATE alt.line SET title = 'last'")
    case.settle()
    wait_for("the views are filled", case.run.is_filled)
    assert case.run.command("verify").returncode == 0


def test_a_used_column_of_a_related_table_that_goes_halts_the_views_that_use_it_alone(case: Case) -> None:
    case.settle()
    case.do(f"{MODIFY} title BLOB", "INSERT INTO alt.root VALUES (7)")  # another kind
    states = {"redis:shown": "halted", "redis:whole": "halted", "redis:group": "filled"}
    wait_for("the views that use it are halted", lambda: case.states() == states)
    case.do("INSERT INTO alt.line VALUES (6, 3, 'x', 'x', 'paid')")
    wait_for("the group goes on", lambda: case._actual("group") == case._expected()["group"])
    case.do(f"{MODIFY} title VARCHAR(30) CHARACTER SET cp1251")
    for view in ("redis:shown", "redis:whole"):
        assert case.run.command("replay", view).returncode == 0
    case.settle()
    case.do("ALTER TABLE alt.line DROP COLUMN title")
    states["redis:whole"] = "halted"
    wait_for("the views that use it are halted", lambda: case.states() == states)


def test_a_new_column_of_a_related_table_comes_with_the_next_start_into_every_document(case: Case) -> None:
    case.settle()
    case.do(
        "ALTER TABLE alt.line ADD COLUMN extra INT NOT NULL DEFAULT 0",
        f"{MODIFY} status VARCHAR(80) COLLATE utf8mb4_general_ci",  # made wider: the views are bound anew
        "INSERT INTO alt.line VALUES (4, 2, 'new', 'n', 'a status that is longer than it could be', 7)",
        "UPDATE alt.line SET extra = 5 WHERE id = 1",
        "UPDATE alt.line SET title = 'last' WHERE id = 3",
    )
    case.settle()
    case.run.stop()
    case.run.start()
    case.names.append("extra")
    case.settle()
    case.do("UPDATE alt.line SET extra = 6")
    case.settle()
    assert case.run.command("verify").returncode == 0
