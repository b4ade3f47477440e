"""Triggers over cells on a real MySQL: a function is called for each cell at least once, whatever happens meanwhile."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest

from stack import Server
from tests.support.asking import ask
from tests.support.running import wait_for
from viewtail import settings
from viewtail.cells import Cell, Cells, Trigger
from viewtail.changes.errors import MisuseError, SourceError

pytestmark = pytest.mark.mysql

OF_TRIGGERS = "SELECT id FROM information_schema.processlist WHERE id = IS_USED_LOCK('viewtail:jog.cell:trigger t')"


class Called:
    """A trigger in a thread, and the cells that it was called for."""

    def __init__(self, cells: Cells, function: Callable[[Cell], object] = lambda _: None, **more: Any) -> None:
        self.count: Counter[tuple[str, int]] = Counter()
        self.failed: BaseException | None = None
        self._function = function
        self.stop = threading.Event()
        self.trigger = Trigger(cells=cells, name="t", function=self._call, every_s=0.02, **more)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _call(self, cell: Cell) -> None:
        self._function(cell)
        self.count[cell.row_key, cell.ref_key] += 1

    def _run(self) -> None:
        try:
            self.trigger.run(self.stop)
        except BaseException as error:
            self.failed = error

    def __enter__(self) -> Called:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def has(self, *keys: tuple[str, int]) -> Callable[[], bool]:
        return lambda: self.count.keys() >= set(keys)


@pytest.fixture
def cells(mysql_server: Server) -> Iterator[Cells]:
    ask(mysql_server, "DROP DATABASE IF EXISTS jog")
    url = f"mysql://root@127.0.0.1:{mysql_server.port}"
    with Cells("jog.cell", settings=settings.load(None, {"VIEWTAIL_SOURCE__URL": url})) as found:
        found.create()
        yield found


@contextmanager
def open_insert(server: Server, row: str) -> Iterator[Any]:
    """A transaction that has added a cell and is not committed."""
    connection: Any = pymysql.connect(host="127.0.0.1", port=server.port, user="root")
    connection.query(f"INSERT INTO jog.cell (row_key, column_name, ref_key, body) VALUES ('{row}', 'users', 1, '1')")
    yield connection
    connection.close()


def test_each_cell_is_called_for_and_one_that_a_long_transaction_brings_too(mysql_server: Server, cells: Cells) -> None:
    cells.put_cell("before", "users", 1, {"a": 1})
    seen: list[Cell] = []
    with Called(cells, seen.append) as called:
        wait_for("those that were there", called.has(("before", 1)))
        with open_insert(mysql_server, "slow") as slow:
            cells.put_cell("ada", "settings", 1, {})
            wait_for("those behind an open transaction", called.has(("ada", 1)))
            assert ("slow", 1) not in called.count
            slow.commit()
            wait_for("what it brings", called.has(("slow", 1)))
    assert seen[0] == Cell(added_at=1, row_key="before", column_name="users", ref_key=1, body={"a": 1})
    assert set(called.count.values()) == {1}
    with Called(cells) as again:
        cells.put_cell("ada", "users", 2, {})
        wait_for("what came since", again.has(("ada", 2)))
    assert list(again.count) == [("ada", 2)]


def test_what_a_long_transaction_brings_while_nobody_looks_is_called_for(mysql_server: Server, cells: Cells) -> None:
    with open_insert(mysql_server, "slow") as slow:
        cells.put_cell("ada", "users", 1, {})
        with Called(cells) as called:
            wait_for("those behind it", called.has(("ada", 1)))
        slow.commit()
    with Called(cells) as again:
        wait_for("what it brought", again.has(("slow", 1)))
    assert ("ada", 1) not in again.count


def test_a_trigger_of_one_column_gets_its_cells_alone(cells: Cells) -> None:
    for ref in range(5):
        cells.put_cell("ada", "users", ref, {})
        cells.put_cell("bob", "settings", ref, {})
    with Called(cells, column="users") as called:
        wait_for("its cells", called.has(("ada", 4)))
    assert list(called.count) == [("ada", ref) for ref in range(5)]


def test_a_function_that_raises_is_called_again_and_the_cells_behind_wait(cells: Cells) -> None:
    fails = threading.Event()
    fails.set()

    def function(cell: Cell) -> None:
        if cell.row_key == "bad" and fails.is_set():
            raise KeyError("a value that nobody should read")

    for row in ("good", "bad", "behind"):
        cells.put_cell(row, "users", 1, {})
    with Called(cells, function) as called:
        trouble = wait_for("it says so", lambda: called.trigger.trouble)
        assert "KeyError at test_cell_triggers.py" in trouble and "the cell whose added_at is 2," in trouble
        assert "nobody" not in trouble and "bad" not in trouble and set(called.count) == {("good", 1)}
    with Called(cells, function) as again:
        wait_for("it is tried again", lambda: again.trigger.trouble)
        fails.clear()
        wait_for("all", again.has(("bad", 1), ("behind", 1)))
        assert again.trigger.trouble is None


def test_under_writers_who_roll_back_and_sessions_that_are_killed_none_is_missed(
    mysql_server: Server, cells: Cells
) -> None:
    stopped = threading.Event()

    def write(number: int) -> None:
        chance = random.Random(number)
        connection: Any = pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root")
        for ref in range(150):
            for part in range(chance.randint(1, 3)):
                connection.query(
                    "INSERT INTO jog.cell (row_key, column_name, ref_key, body) "
                    f"VALUES ('w{number}.{part}', 'users', {ref}, '{{}}')"
                )
                if chance.random() < 0.1:
                    stopped.wait(chance.random() / 10)
            connection.rollback() if chance.random() < 0.3 else connection.commit()
        connection.close()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    with Called(cells) as called, Called(cells) as other:
        for one in writers:
            one.start()
        kills = 0
        while any(one.is_alive() for one in writers) or kills < 3:
            for (session,) in ask(mysql_server, OF_TRIGGERS):
                ask(mysql_server, f"KILL {session}")
                kills += 1
            stopped.wait(0.3)
        cells.put_cell("last", "users", 1, {})
        written = {(row, ref) for row, ref in ask(mysql_server, "SELECT row_key, ref_key FROM jog.cell")}
        wait_for("all", lambda: called.count.keys() | other.count.keys() >= written)
    assert called.count.keys() | other.count.keys() == written


def test_of_two_of_a_name_one_calls_and_the_other_stands_by(mysql_server: Server, cells: Cells) -> None:
    cells.put_cell("a", "users", 1, {})
    with Called(cells) as first:
        wait_for("the first", first.has(("a", 1)))
        with Called(cells) as second:
            cells.put_cell("b", "users", 1, {})
            wait_for("the first again", first.has(("b", 1)))
            first.stop.set()
            cells.put_cell("c", "users", 1, {})
            wait_for("the second", lambda: second.count[("c", 1)] or first.count[("c", 1)])
            cells.put_cell("d", "users", 1, {})
            wait_for("the second", second.has(("d", 1)))
    assert not second.count.keys() & {("a", 1), ("b", 1)}


def test_a_table_whose_ids_begin_again_is_refused_with_what_to_do(mysql_server: Server, cells: Cells) -> None:
    for ref in range(3):
        cells.put_cell("a", "users", ref, {})
    with Called(cells) as called:
        wait_for("all", called.has(("a", 2)))
    ask(mysql_server, "TRUNCATE jog.cell")
    with Called(cells) as again:
        wait_for("it says so", lambda: again.failed)
    assert isinstance(again.failed, SourceError)
    assert "DELETE FROM `jog`.`cell_trigger` WHERE name = 't'" in str(again.failed)
    ask(mysql_server, "DELETE FROM `jog`.`cell_trigger` WHERE name = 't'")
    cells.put_cell("b", "users", 1, {})
    with Called(cells) as anew:
        wait_for("all that are there", anew.has(("b", 1)))


def test_a_trigger_needs_a_name_and_a_function() -> None:
    for wrong in ({"name": ""}, {"name": "n" * 65}, {"function": None}):
        with pytest.raises(MisuseError):
            Trigger(**{"cells": Cells("jog.cell"), "name": "t", "function": print, **wrong})  # type: ignore[arg-type]
