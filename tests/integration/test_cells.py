"""Cells on real servers: written once, read by row, column and ref key."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from stack import Server
from tests.support.asking import ask
from viewtail import settings
from viewtail.cells import Cells, OtherBodyError
from viewtail.changes.errors import MisuseError, StoreError, StoreUnavailableError

COUNT = "SELECT COUNT(*) FROM jog.cell"


def opened(server: Server) -> Cells:
    ask(server, "DROP DATABASE IF EXISTS jog")
    url = f"mysql://root@127.0.0.1:{server.port}"
    cells = Cells("jog.cell", settings=settings.load(None, {"VIEWTAIL_SOURCE__URL": url}))
    cells.create()
    cells.create()
    return cells


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def cells(server: Server) -> Iterator[Cells]:
    with opened(server) as found:
        yield found


def test_the_newest_cell_is_the_one_with_the_largest_ref_key(cells: Cells) -> None:
    assert cells.get_cell_latest("ada", "users") is None
    for ref in (2, 10, 3):
        assert cells.put_cell("ada", "users", ref, {"ref": ref})
    cells.put_cell("ada", "settings", 1, {"theme": "dark"})
    cells.put_cell("bob", "users", 99, {})
    newest = cells.get_cell_latest("ada", "users")
    assert newest is not None and (newest.body, newest.ref_key, newest.added_at) == ({"ref": 10}, 10, 2)
    older = cells.get_cell("ada", "users", 3)
    assert older is not None and older.body == {"ref": 3}
    assert cells.get_cell("ada", "users", 4) is None
    assert {name: cell.body for name, cell in cells.get_row("ada").items()} == {
        "users": {"ref": 10},
        "settings": {"theme": "dark"},
    }
    assert cells.get_row("bob")["users"].body == {}
    assert cells.get_row("nobody") == {}


def test_a_cell_that_is_put_again_is_harmless_and_with_another_body_an_error(server: Server, cells: Cells) -> None:
    assert cells.put_cell("ada", "users", 1, {"a": 1, "b": 0.1})
    assert not cells.put_cell("ada", "users", 1, {"b": 0.1, "a": 1})
    for other in ({"a": 1}, {"a": 1.0, "b": 0.1}, {"a": True, "b": 0.1}):
        with pytest.raises(OtherBodyError, match="larger ref key"):
            cells.put_cell("ada", "users", 1, other)
    assert ask(server, COUNT) == [(1,)]


def test_of_writers_beside_each_other_one_comes_through(server: Server, cells: Cells) -> None:
    others = [Cells("jog.cell", settings=cells._settings) for _ in range(4)]

    def put(at: int) -> str:
        try:
            return "new" if others[at % 4].put_cell("ada", "users", at // 8, {"body": at % 2}) else "same"
        except OtherBodyError:
            return "other"

    with ThreadPoolExecutor(8) as callers:
        found = list(callers.map(put, range(80)))
    for one in others:
        one.close()
    assert [found[at : at + 8].count("new") for at in range(0, 80, 8)] == [1] * 10
    assert [found[at : at + 8].count("other") for at in range(0, 80, 8)] == [4] * 10
    assert ask(server, COUNT) == [(10,)]


def test_keys_that_differ_in_a_blank_or_in_case_are_two(cells: Cells) -> None:
    for row in ("ada", "ada ", "Ada", "ad\u00e1"):
        assert cells.put_cell(row, "users", 1, {"row": row})
    body = cells.get_row("ada ")["users"].body
    assert body == {"row": "ada "}


def test_numbers_come_back_as_they_were(cells: Cells) -> None:
    numbers = [99.99 * 1.19, 0.9452706955539223, 5e-324, 1.7976931348623157e308, -0.0, (1 << 64) - 1, -(1 << 63), 1.0]
    cells.put_cell("ada", "numbers", 1, {"all": numbers})
    assert list(map(repr, cells.get_row("ada")["numbers"].body["all"])) == list(map(repr, numbers))
    assert not cells.put_cell("ada", "numbers", 1, {"all": numbers})


@dataclass
class Point:
    """orjson takes it for an object."""

    x: float


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"in": found}
    return found


def test_a_body_that_the_servers_json_cannot_hold_is_misuse(cells: Cells) -> None:
    with pytest.raises(MisuseError, match="nested deeper"):
        cells.put_cell("ada", "users", 1, nested(150))
    assert cells.get_cell("ada", "users") is None
    assert cells.put_cell("ada", "users", 1, nested(25))


@pytest.mark.parametrize(
    "wrong",
    [
        {"row": ""},
        {"row": "a" * 191},
        {"row": "a\0b"},
        {"column": "\ud800"},
        {"column": 5},
        {"column": "n" * 65},
        {"ref": -1},
        {"ref": 1 << 62},
        {"ref": "1"},
        {"ref": True},
        {"body": object()},
        {"body": {"n": float("inf")}},
        {"body": {"b": b"bytes"}},
        {"body": {"n": 1 << 70}},
        {"body": {"n": float("nan")}},
        {"body": {"n": Point(float("nan"))}},
        {"body": {1: "a key that is no text"}},
        {"body": {"s": "\ud800"}},
        {"body": {"n": {1, 2}}},
        {"body": None},
        {"body": ["a list"]},
        {"body": "text"},
        {"body": {"s": "x" * (4 << 20)}},
        {"body": nested(400)},
    ],
)
def test_a_cell_that_no_table_could_hold_or_no_view_could_show_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(MisuseError):
        Cells("jog.cell").put_cell(**{"row": "ada", "column": "users", "ref": 1, "body": {}, **wrong})


def test_a_session_that_was_ended_is_opened_again(server: Server, cells: Cells) -> None:
    cells.put_cell("ada", "users", 1, {})
    assert cells._connection is not None
    ask(server, f"KILL {cells._connection.thread_id()}")
    assert not cells.put_cell("ada", "users", 1, {})


def test_a_server_that_is_away_and_a_table_that_is_not_there_are_told(server: Server, cells: Cells) -> None:
    ask(server, "DROP TABLE jog.cell")
    with pytest.raises(StoreError, match="1146"):
        cells.get_row("ada")
    away = Cells("jog.cell", settings=settings.load(None, {"VIEWTAIL_SOURCE__URL": "mysql://root@127.0.0.1:1"}))
    with pytest.raises(StoreUnavailableError):
        away.get_row("ada")
