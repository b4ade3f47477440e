"""A view that several partitions keep is filled once, when all of them get its changes, and again when one lost it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ingest.binlog.coordinates import BinlogPosition
from offsets import Owner, schema
from offsets.backfills import SharedProgress
from offsets.mysql import MySQLOffsets, OwnSession
from offsets.views import Event, State, ViewStates
from projectors.declared import declared
from projectors.fills.partitioned import PartitionedFill
from projectors.views import BoundView
from stack import Server
from tests.contract.sinks import RedisHashOne
from viewtail.changes.pipelines import PipelineId
from viewtail.servers.sessions import MySQLAddress, open_session

DATABASE = "partitions"


@dataclass
class Life:
    """What is asked of a ViewLife."""

    views: dict[str, BoundView]
    states: ViewStates
    is_halted: bool = False

    def to_backfill(self) -> list[str]:
        records = self.states.read_all(list(self.views))
        return [name for name, record in records.items() if record.state in (State.NEW, State.BACKFILLING)]

    def gets_changes(self, view: str) -> bool:
        return not self.is_halted


class One:
    """One partition's pipeline."""

    def __init__(self, family: Family, partition: int) -> None:
        self.identity = PipelineId("shop.user", partition, "redis")
        self.session = OwnSession(family.open)
        family.at_end.callback(self.session.close)
        self._family = family
        self.owner: Owner
        self.life = Life({family.view.id: family.view}, ViewStates(self.session, DATABASE, self.identity.name))

    def take(self) -> None:
        read_position = BinlogPosition.from_text
        self.owner = MySQLOffsets(self.session, DATABASE, self.identity.name, read_position=read_position).take().owner
        self.life.states.sync([declared(self.life.views[self._family.view.id])])

    def look(self) -> list[str]:
        """What its backfills do at each look."""
        family = self._family
        life: Any = self.life
        return PartitionedFill(self.identity, DATABASE, lambda _: family.all, family.now).views_to_fill(
            life, self.session, life.to_backfill()
        )

    @property
    def state(self) -> str:
        return self.life.states.read(self._family.view.id).state

    def begin(self) -> SharedProgress:
        view = self._family.view.id
        self.life.states.begin_backfill(view, self._family.now(), 1, "")
        names = {one.name for one in self._family.all} - {self.identity.name}
        return SharedProgress(self.session, DATABASE, self.owner, view, "id", others=lambda: names)

    def fill(self) -> None:
        self.begin().finish(self._family.now(), 5)


class Family:
    """Three partitions over one view."""

    def __init__(self, server: Server, view: BoundView, at_end: ExitStack) -> None:
        self.address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        self.view, self.at_end = view, at_end
        self._now = 100
        with closing(self.open()) as connection:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
            schema.create(connection, self.address, DATABASE, schema.STORE_TABLES, role="store")
        self.leader, *self.others = [One(self, partition) for partition in range(3)]

    @property
    def all(self) -> list[PipelineId]:
        return [one.identity for one in (self.leader, *self.others)]

    @property
    def states(self) -> list[str]:
        return [one.state for one in (self.leader, *self.others)]

    def open(self) -> Any:
        return open_session(self.address, role="store")

    def now(self) -> int:
        self._now += 1
        return self._now


@pytest.fixture
def family(mysql_server: Server, redis_server: Server) -> Iterator[Family]:
    one = RedisHashOne(redis_server, DATABASE)
    with ExitStack() as at_end:
        at_end.callback(one.close)
        yield Family(mysql_server, one.person, at_end)


def filled(family: Family) -> None:
    for one in (family.leader, *family.others):
        one.take()
        one.look()
    assert family.leader.look() == [family.view.id]
    family.leader.fill()
    assert family.states == ["filled"] * 3


def test_the_first_partition_fills_for_all_once_each_gets_the_changes(family: Family) -> None:
    family.leader.take()
    assert family.leader.look() == [], "the others never ran"
    family.others[0].take()
    assert family.others[0].look() == [] and family.others[0].state == "filling"
    assert family.leader.look() == []
    family.others[1].take()
    assert family.leader.look() == [], "it does not say yet that it gets changes"
    family.others[1].look()
    assert family.leader.look() == [family.view.id]
    family.leader.fill()
    assert family.states == ["filled"] * 3
    assert [one.look() for one in (family.leader, *family.others)] == [[], [], []]


def test_a_partition_that_lost_the_view_has_it_filled_again(family: Family) -> None:
    filled(family)
    family.others[1].life.states.move(Event.LOST, [family.view.id])
    assert family.leader.look() == [] and family.states == ["new", "filled", "new"]
    family.others[1].look()
    assert family.leader.look() == [family.view.id]
    family.leader.fill()
    assert family.states == ["filled"] * 3


def test_a_partition_that_missed_changes_during_the_backfill_is_not_taken_for_filled(family: Family) -> None:
    for one in (family.leader, *family.others):
        one.take()
        one.look()
    progress = family.leader.begin()
    family.others[0].life.states.halt(family.view.id, "its messages could not be read")
    family.others[0].life.states.move(Event.REPLAYED, [family.view.id])
    family.others[0].look()
    progress.finish(family.now(), 5)
    assert family.states == ["filled", "filling", "filled"]
    assert family.leader.look() == [family.view.id], "it begins again"
    family.leader.fill()
    assert family.states == ["filled"] * 3


def test_a_view_that_is_halted_in_one_partition_is_filled_for_the_others(family: Family) -> None:
    for one in (family.leader, *family.others):
        one.take()
    family.others[0].life.states.halt(family.view.id, "its messages could not be read")
    for one in family.others:
        one.look()
    assert family.leader.look() == [family.view.id]
    family.leader.fill()
    assert family.states == ["filled", "halted", "filled"]


def test_a_partition_that_gets_no_changes_yet_does_not_say_that_it_does(family: Family) -> None:
    for one in (family.leader, *family.others):
        one.take()
    family.others[0].life.is_halted = True
    for one in family.others:
        one.look()
    assert family.states == ["new", "new", "filling"] and family.leader.look() == []


def test_a_process_with_another_declaration_holds_the_backfill_up(family: Family) -> None:
    """It would go on writing what the earlier declaration makes of the changes."""
    filled(family)
    changed = replace(family.view, fingerprint="1" * 64)
    family.leader.life.views = {changed.id: changed}
    family.leader.life.states.sync([declared(changed)])
    assert family.leader.state == "new" and family.leader.look() == []
    for one in family.others:
        one.life.states.sync([declared(changed)])
        one.look()
    assert family.leader.look() == [family.view.id]
