"""What every OffsetStore promises: the real one, the one that saves in the background, and the fake."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ingest.binlog.coordinates import BinlogPosition
from offsets import OffsetStore, schema
from offsets.mysql import BackgroundOffsets, MySQLOffsets, OwnSession
from stack import Server
from tests.support.fake_offsets import FakeOffsets, Memory
from tests.support.running import wait_for
from viewtail.changes.errors import FencedError, StoreUnavailableError
from viewtail.servers.sessions import MySQLAddress, open_session


@dataclass
class Case:
    """Makes owners of one pipeline; `settled` makes what was saved durable."""

    owner: Callable[[], OffsetStore]
    settled: Callable[[OffsetStore], None]


def place(number: int) -> BinlogPosition:
    return BinlogPosition(
        epoch=1,
        file="binlog.000007",
        end=1000 + number,
        start=900 + number,
        gtid=f"{uuid.UUID(int=1)}:{number}",
    )


def _mysql(server: Server) -> Callable[[], MySQLOffsets]:
    address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
    connection = open_session(address, role="store")
    schema.create(connection, address, "offset_contract", schema.STORE_TABLES, role="store")
    connection.close()
    name = uuid.uuid4().hex

    def owner() -> MySQLOffsets:
        return MySQLOffsets(
            OwnSession(lambda: open_session(address, role="store")),
            "offset_contract",
            name,
            read_position=BinlogPosition.from_text,
        )

    return owner


@pytest.fixture(params=["mysql", "background", "fake"])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    if request.param == "fake":
        memory = Memory()
        yield Case(lambda: FakeOffsets(memory), lambda store: None)
        return
    owner = _mysql(request.getfixturevalue("mysql_server"))
    if request.param == "mysql":
        yield Case(owner, lambda store: None)
        return
    made: list[BackgroundOffsets] = []

    def in_background() -> OffsetStore:
        made.append(BackgroundOffsets(owner(), 0.01))
        return made[-1]

    def settle(store: Any) -> None:
        store.close()

    yield Case(in_background, settle)
    for store in made:
        store.abandon()


def test_a_new_pipeline_has_no_position_and_each_taking_raises_the_fence(case: Case) -> None:
    first, second = case.owner().take(), case.owner().take()
    assert first.position is None and second.position is None
    assert second.owner.fence == first.owner.fence + 1


def test_what_was_saved_is_what_the_next_owner_takes(case: Case) -> None:
    store = case.owner()
    store.take()
    for number in range(5):
        store.save(place(number))
    store.settle()
    case.settled(store)
    assert case.owner().take().position == place(4)


def test_saving_the_same_position_twice_is_no_takeover(case: Case) -> None:
    store = case.owner()
    store.take()
    store.save(place(1))
    store.save(place(1))
    store.save_rows()
    case.settled(store)
    assert case.owner().take().position == place(1)


def test_a_stale_owner_cannot_save_and_moves_nothing(case: Case) -> None:
    stale, owner = case.owner(), case.owner()
    stale.take()
    owner.take()
    owner.save(place(1))

    def refused() -> bool:
        try:
            stale.save(place(2))
            case.settled(stale)
        except FencedError:
            return True
        return False

    wait_for("the stale owner is told", refused)
    case.settled(owner)
    assert case.owner().take().position == place(1)


def test_a_fake_that_is_away_fails_and_keeps_its_position() -> None:
    memory = Memory()
    store = FakeOffsets(memory)
    store.take()
    store.save(place(1))
    memory.is_away = True
    with pytest.raises(StoreUnavailableError):
        store.save(place(2))
    memory.is_away = False
    assert FakeOffsets(memory).take().position == place(1)


def test_rows_and_offset_are_one_transaction_where_both_are_in_mysql(mysql_server: Server) -> None:
    address = MySQLAddress(host="127.0.0.1", port=mysql_server.port, user="root")
    connection = open_session(address, role="store")
    schema.create(connection, address, "offset_contract", schema.STORE_TABLES, role="store")
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS offset_contract.rows_ (id INT PRIMARY KEY)")
        cursor.execute("DELETE FROM offset_contract.rows_")
    connection.commit()
    name = uuid.uuid4().hex
    stale = MySQLOffsets(lambda: connection, "offset_contract", name, read_position=BinlogPosition.from_text)
    stale.take()
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO offset_contract.rows_ VALUES (1)")
    stale.save(place(1))
    MySQLOffsets(
        OwnSession(lambda: open_session(address, role="store")),
        "offset_contract",
        name,
        read_position=BinlogPosition.from_text,
    ).take()
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO offset_contract.rows_ VALUES (2)")
    with pytest.raises(FencedError):
        stale.save(place(2))
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM offset_contract.rows_")
        assert list(cursor.fetchall()) == [(1,)]
    connection.close()


def test_in_the_background_too_what_is_confirmed_is_durable_at_once(mysql_server: Server) -> None:
    """A backfill relies on it: where polling begins is told by its saved offset alone."""
    owner = _mysql(mysql_server)
    store = BackgroundOffsets(owner(), 3600)
    store.take()
    for number in (1, 2, 3):
        store.save(place(number))
        store.confirm()
        assert owner().saved() == place(number)
    store.abandon()
