"""Rows that are read again are never shown as they were before: of two readers, who read later is shown last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from offsets.lease import lock_name
from offsets.views import Event
from projectors import failpoints
from projectors.proving.view_access import ViewAccess
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisJson
from projectors.views import Entity
from stack import Server
from tests.support.asking import ask
from tests.support.pipelines import Owner, deployed, owned
from tests.support.running import wait_for
from viewtail import settings
from viewtail.cells import Cells

PERSON = Entity("turn.cell", key="row_key", columns_by="column_name", newest="ref_key", body="body", codec="json")
KEY = ("ada",)
SHOWN_WITHIN_S = 1.0  # what is written at all is


def number_of(row: Mapping[str, Any]) -> int:
    return int(row["users"]["n"])


VIEWS = {
    "redis": RedisJson("turn", PERSON, document=lambda row: {"n": row["users"]["n"]}),
    "mysql": IndexTable("turn", PERSON, values={"n": "BIGINT"}, of=number_of),
}


class Turns:
    """A pipeline whose loop can be held between its reading and its writing."""

    def __init__(self, owner: Owner, cells: Cells, shown: Callable[[], int | None]) -> None:
        self.owner, self.view = owner, next(iter(owner.own.life.views.values()))
        self.shown = shown
        self.has_read, self.may_write = threading.Event(), threading.Event()
        self._cells, self._number = cells, 0

    def put(self, number: int) -> None:
        self._number += 1
        self._cells.put_cell("ada", "users", self._number, {"n": number})

    def reach(self, step: str) -> None:
        if step == "before write" and threading.current_thread() is self.owner._thread and not self.may_write.is_set():
            self.has_read.set()
            assert self.may_write.wait(30)

    @contextmanager
    def loop_that_has_read(self, monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[None]:
        """Its change is committed meanwhile, and another one behind it, which the loop comes to later."""
        monkeypatch.setattr(failpoints, "reach", self.reach)
        self.put(number)
        assert self.has_read.wait(30)
        self.put(number + 1)
        yield
        self.may_write.set()

    def shows_soon(self, number: int) -> bool:
        """Whether that is shown while the loop is held."""
        waited = threading.Event()
        for _ in range(20):
            if self.shown() == number:
                return True
            waited.wait(SHOWN_WITHIN_S / 20)
        return False


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture(params=["redis", "mysql"])
def turns(request: pytest.FixtureRequest, server: Server, redis_server: Server) -> Iterator[Turns]:
    for database in ("turn", "viewtail"):
        ask(server, f"DROP DATABASE IF EXISTS {database}")
    cells = Cells("turn.cell", settings=settings.load(None, {"VIEWTAIL_SOURCE__URL": server.url}))
    cells.create()
    store = redis.Redis(host="127.0.0.1", port=redis_server.port)
    store.flushall()  # keys of another deployment are left alone

    def in_redis() -> int | None:
        found: Any = store.get("turn:ada")
        return None if found is None else int(found.split(b'"n":')[1].split(b",")[0].rstrip(b"}"))

    def in_mysql() -> int | None:
        rows = ask(server, "SELECT n FROM viewtail.turn WHERE row_key = 'ada'")
        return int(rows[0][0]) if rows and rows[0][0] is not None else None

    try:
        with owned(deployed([VIEWS[request.param]], server, redis_server), request.param) as owner:
            found = Turns(owner, cells, in_redis if request.param == "redis" else in_mysql)
            found.put(1)
            owner.fill_all()
            owner.pass_everything()
            yield found
            found.may_write.set()
    finally:
        cells.close()


def test_a_command_reads_when_the_loop_has_written_what_it_read(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    with ViewAccess(turns.owner.own.catalog, turns.view, threading.Event()) as beside:
        version = beside.now()
        repair = threading.Thread(target=beside.reprojection.of_keys, args=([KEY], version))
        with turns.loop_that_has_read(monkeypatch, 2):
            repair.start()
            was_newer = turns.shows_soon(3)
        repair.join(30)
        turns.owner.pass_everything()
    assert not was_newer, "3 was shown, and 2 is written behind it"
    assert turns.shown() == 3


def test_a_loop_that_lost_its_lock_reads_again_before_it_writes(
    turns: Turns, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    lock = lock_name("viewtail", f"view#{turns.view.id}")
    with ViewAccess(turns.owner.own.catalog, turns.view, threading.Event()) as beside:
        version = beside.now()
        with turns.loop_that_has_read(monkeypatch, 2):
            ((holder,),) = ask(server, f"SELECT IS_USED_LOCK('{lock}')")
            ask(server, f"KILL {holder}")
            beside.reprojection.of_keys([KEY], version)
            assert turns.shown() == 3
            monkeypatch.setattr(failpoints, "reach", lambda step: shown.append(turns.shown()))
    turns.owner.pass_everything()
    assert turns.shown() == 3
    assert set(shown) == {3}, "2, which was read before, was written behind it"


def test_a_batch_that_empties_its_table_has_the_turn_once_and_gives_it_back(
    turns: Turns, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with turns.loop_that_has_read(monkeypatch, 2):
        ask(server, "TRUNCATE turn.cell")  # in one batch with the cell before it
        turns.put(7)
    turns.owner.pass_everything()
    assert turns.shown() == 7
    with ViewAccess(turns.owner.own.catalog, turns.view, threading.Event()) as beside:
        beside.reprojection.of_keys([KEY], beside.now())
    lock = lock_name("viewtail", f"view#{turns.view.id}")
    assert ask(server, f"SELECT IS_FREE_LOCK('{lock}')") == [(1,)]


def test_a_row_that_was_read_ahead_of_a_truncate_and_came_behind_it_stays(
    turns: Turns, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    with turns.loop_that_has_read(monkeypatch, 2):
        ask(server, "TRUNCATE turn.cell")
        turns.put(7)
        monkeypatch.setattr(failpoints, "reach", lambda step: shown.append(turns.shown()))
    turns.owner.pass_everything()
    assert shown[-1] == 7
    assert set(shown[shown.index(7) :]) == {7}, "it was gone for a moment"


def test_a_chunk_of_a_backfill_is_written_when_the_loop_has_written_what_it_read(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_begun, may_read = threading.Event(), threading.Event()
    filling = turns.owner.backfill(turns.view.id)
    read = filling.rows.after

    def held(*arguments: Any) -> Any:
        is_begun.set()
        assert may_read.wait(30)
        return read(*arguments)

    monkeypatch.setattr(filling.rows, "after", held)
    turns.owner.own.life.on(turns.owner._session).states.move(Event.REPLAYED, [turns.view.id])
    fill = threading.Thread(target=filling.run)
    fill.start()
    assert is_begun.wait(30)
    with turns.loop_that_has_read(monkeypatch, 2):
        may_read.set()
        was_newer = turns.shows_soon(3)
    fill.join(30)
    filling.close()
    turns.owner.pass_everything()
    assert not was_newer, "3 was shown, and 2 is written behind it"
    assert turns.shown() == 3
    wait_for("it is filled", lambda: turns.owner.state(turns.view.id) == "filled")
