"""Pipelines of another source, or of another partition, over one store and one view share nothing but the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pymysql
import pytest

from ingest.binlog.coordinates import BinlogPosition
from offsets import schema
from offsets.backfills import BackfillProgress
from offsets.copies import Copies
from offsets.keepers import known_views
from offsets.lease import ASK_FOR_S, Lease
from offsets.mysql import MySQLOffsets, OwnSession, saved_position
from offsets.pipelines import Report, save_report
from offsets.views import Event, ViewStates
from projectors.dead_letters import DeadLetters
from projectors.declared import declared
from projectors.stores.elasticsearch.sink import ElasticsearchSink
from projectors.stores.redis.sink import RedisSink
from projectors.views import BoundView
from projectors.watermark_rows import WatermarkPlace, WatermarkWriter
from projectors.watermarks import LocalWaiter, Watermarks
from stack import Server
from tests.contract.sinks import ElasticsearchOne, RedisHashOne
from tests.support.missing import missing
from viewtail.changes.batches import Watermark
from viewtail.changes.errors import FencedError
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.writes import Key, Parked, ViewWrites, Write
from viewtail.operations import status
from viewtail.servers.sessions import MySQLAddress, open_session

read_position = BinlogPosition.from_text

DEFAULT = PipelineId.of("redis")
OTHER_PART = PipelineId("default", 1, "redis")
OTHER_SOURCE = PipelineId("orders", 0, "redis")
ALL = (DEFAULT, OTHER_PART, OTHER_SOURCE)


def place(number: int) -> BinlogPosition:
    return BinlogPosition(epoch=1, file="binlog.000007", end=1000 + number, start=900 + number, gtid=f"u:{number}")


@dataclass
class Tables:
    """viewtail's own tables, with three pipelines in them that keep one view."""

    address: MySQLAddress
    database: str
    view: BoundView

    def open(self) -> pymysql.Connection[Any]:
        return open_session(self.address, role="store")

    def offsets(self, pipeline: PipelineId) -> MySQLOffsets:
        return MySQLOffsets(OwnSession(self.open), self.database, pipeline.name, read_position=read_position)

    def states(self, pipeline: PipelineId) -> ViewStates:
        return ViewStates(OwnSession(self.open), self.database, pipeline.name)

    def saved(self, pipeline: PipelineId) -> Any:
        with closing(OwnSession(self.open)) as session:
            return saved_position(session, self.database, pipeline.name, read_position)


@pytest.fixture
def tables(mysql_server: Server) -> Tables:
    made = Tables(
        MySQLAddress(host="127.0.0.1", port=mysql_server.port, user="root"),
        "pipelines_apart",
        RedisHashOne(mysql_server, "apart").person,
    )
    with closing(made.open()) as connection:
        with connection.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS pipelines_apart")
        for own in (schema.STORE_TABLES, schema.SOURCE_TABLES):
            schema.create(connection, made.address, made.database, own, role="store")
    return made


def test_each_has_an_offset_and_a_fence_of_its_own(tables: Tables) -> None:
    owners = {one: tables.offsets(one) for one in ALL}
    for owner in owners.values():
        assert owner.take().position is None
    for number, owner in enumerate(owners.values()):
        owner.save(place(number))
        owner.settle()
    assert [tables.saved(one) for one in ALL] == [place(0), place(1), place(2)]
    assert tables.offsets(OTHER_PART).take().owner.fence == 2
    with pytest.raises(FencedError):
        owners[OTHER_PART].save(place(9))
    owners[DEFAULT].save(place(4))
    owners[OTHER_SOURCE].save(place(5))
    assert [tables.saved(one) for one in ALL] == [place(4), place(1), place(5)]
    with closing(tables.open()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT name, source, partition_number, store FROM pipelines_apart.pipeline ORDER BY id")
        assert list(cursor.fetchall()) == [
            ("redis", "default", 0, "redis"),
            ("default.1.redis", "default", 1, "redis"),
            ("orders.0.redis", "orders", 0, "redis"),
        ]


def test_each_has_a_lease_of_its_own(tables: Tables) -> None:
    held = [Lease(tables.open, tables.database, one.name) for one in ALL]
    second = Lease(tables.open, tables.database, OTHER_PART.name)
    try:
        assert [lease.acquire(0) for lease in held] == [True] * 3
        assert not second.acquire(0)
        held[1].release()
        assert second.acquire(5)
        held[0].check()
        held[2].check()
    finally:
        for lease in (*held, second):
            lease.release()


def test_a_lease_is_waited_for_longer_than_a_session_waits_for_an_answer(tables: Tables) -> None:
    patient = replace(tables.address, io_timeout_s=ASK_FOR_S + 1.0)
    first = Lease(tables.open, tables.database, DEFAULT.name)
    second = Lease(lambda: open_session(patient, role="store"), tables.database, DEFAULT.name)
    try:
        assert first.acquire(0)
        began = time.monotonic()
        assert not second.acquire(ASK_FOR_S + 3)
        assert ASK_FOR_S + 2.5 < time.monotonic() - began < ASK_FOR_S + 6
        first.release()
        assert second.acquire(0)
    finally:
        for lease in (first, second):
            lease.release()


def test_a_views_state_and_backfill_are_one_pipelines(tables: Tables) -> None:
    view, owners, kept = tables.view.id, {}, {}
    for one in ALL:
        owners[one] = tables.offsets(one).take().owner
        kept[one] = tables.states(one)
        kept[one].sync([declared(tables.view)])

    def states() -> list[str]:
        return [kept[one].read(view).state for one in ALL]

    assert states() == ["new"] * 3
    kept[DEFAULT].begin_backfill(view, 100, 10, "")
    kept[OTHER_PART].begin_backfill(view, 200, 10, "")
    assert states() == ["filling", "filling", "new"]
    progress = BackfillProgress(OwnSession(tables.open), tables.database, owners[OTHER_PART], view, "id")
    progress.save((7,), 3, 3)
    assert kept[DEFAULT].read(view).last_key is None
    assert kept[OTHER_PART].read(view).last_key == (7,)
    progress.finish(300, 3)
    assert states() == ["filling", "filled", "new"]
    kept[OTHER_SOURCE].halt(view, "its table changed")
    assert states() == ["filling", "filled", "halted"]
    kept[DEFAULT].move(Event.REPLAYED, [view])
    kept[OTHER_PART].move(Event.INTERRUPTED, [view], floor=400)
    kept[OTHER_SOURCE].move(Event.REPLACED, [view], floor=500)
    assert states() == ["new", "filled", "halted"]
    kept[OTHER_SOURCE].retire_others(["none"])
    assert kept[OTHER_PART].read(view).watermark_version == 300
    kept[OTHER_PART].sync([declared(replace(tables.view, fingerprint="1" * 64))])
    assert states() == ["new", "new", "halted"]
    with closing(OwnSession(tables.open)) as session:
        known = known_views(session, tables.database)
    assert {name: one.state for (name, _), one in known.items()} == {
        "redis": "new",
        "default.1.redis": "new",
        "orders.0.redis": "halted",
    }
    Copies(OwnSession(tables.open), tables.database, OTHER_SOURCE.name).forget(view)
    assert kept[OTHER_SOURCE].read_all([view]) == {}
    assert [kept[one].read(view).state for one in (DEFAULT, OTHER_PART)] == ["new", "new"]


def test_each_has_dead_letters_of_its_own(tables: Tables) -> None:
    letters = {}
    for one in ALL:
        tables.offsets(one).take()
        states = tables.states(one)
        states.sync([declared(tables.view)])
        letters[one] = DeadLetters(OwnSession(tables.open), tables.database, [tables.view], states.ids)
    for one in (DEFAULT, OTHER_PART):
        letters[one].record([Parked(tables.view.id, "7", 5, f"refused in {one}")])
    letters[DEFAULT].clear_view(tables.view.id)
    for one in ALL:
        letters[one].load()
    assert [letters[one].count for one in ALL] == [0, 1, 0]


def test_each_has_a_status_of_its_own(tables: Tables) -> None:
    for number, one in enumerate(ALL):
        owner = tables.offsets(one)
        owner.take()
        owner.save(place(number))
        owner.settle()
        tables.states(one).sync([declared(tables.view)])
        report = Report(
            state="retrying",
            error=f"of {one}",
            lag_ms=1000 * number,
            rows_per_second=0,
            applied_row_count=number,
            reconnect_count=0,
            owner="host:1",
        )
        save_report(OwnSession(tables.open), tables.database, one.name, report)
    tables.states(OTHER_PART).halt(tables.view.id, "its table changed")
    with closing(tables.open()) as connection:
        found = {one.name: one for one in status.read(connection, tables.database, read_position)}
    assert [found[one.name].error for one in ALL] == [f"of {one}" for one in ALL]
    assert [found[one.name].position for one in ALL] == [f"binlog.000007:{1000 + at}" for at in range(3)]
    assert [found[one.name].gtid for one in ALL] == ["u:0", "u:1", "u:2"]
    assert [found[one.name].views[0].state for one in ALL] == ["new", "halted", "new"]


def test_each_waits_for_watermarks_of_its_own(tables: Tables) -> None:
    place = WatermarkPlace(tables.open, tables.database)
    marks = {one: Watermarks(WatermarkWriter(place, f"views:{one.name}"), LocalWaiter()) for one in ALL}
    tokens = {one: mark.write() for one, mark in marks.items()}
    with closing(tables.open()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM pipelines_apart.watermark")
        assert cursor.fetchone() == (3,)
        for number, one in enumerate(ALL):
            marks[one].waiter.on_passed([Watermark(tokens[one], 100 + number)])
        assert all(marks[one].is_visible(cursor, 100 + number) for number, one in enumerate(ALL))
    assert marks[DEFAULT].waiter.wait([tokens[OTHER_PART]], threading.Event(), 0) is None


def witnesses(sinks: list[Any], view: BoundView) -> None:
    """Each sink's witness moves by itself, and the loss of one is no other's."""
    for number, sink in enumerate(sinks):
        assert missing(sink) == {view.id}, "what another pipeline wrote is not this one's"
        sink.prepare()
        writes: dict[Key, Write] = {(number,): Write(10, ("a", "b"))}
        assert sink.write([ViewWrites(view.id, writes)], place(100 * number)) == []
        sink.settle()
    for number, sink in enumerate(sinks):
        assert missing(sink) == frozenset()
        sink.prepare()
        assert sink.witness(place(900)) == place(100 * number)


def test_each_has_a_witness_of_its_own_in_redis(redis_server: Server) -> None:
    one = RedisHashOne(redis_server, "witness_apart")
    sinks = [
        RedisSink(one.client, [one.person], "witness_apart", which.name, read_position=read_position) for which in ALL
    ]
    try:
        witnesses(sinks, one.person)
        assert one.client().exists("viewtail:witness_apart:redis:witness"), "the name that it always had"
        one.client().delete("viewtail:witness_apart:default.1.redis:witness")
        assert [missing(sink) for sink in sinks] == [frozenset(), {one.person.id}, frozenset()]
    finally:
        for sink in sinks:
            sink.close()
        one.close()


@pytest.fixture
def indices(elasticsearch_server: Server) -> Iterator[ElasticsearchOne]:
    one = ElasticsearchOne(elasticsearch_server, "witness_apart")
    yield one
    one.close()


def test_each_has_a_witness_of_its_own_in_elasticsearch(indices: ElasticsearchOne) -> None:
    which = [replace(one, store="elasticsearch") for one in ALL]
    sinks = [
        ElasticsearchSink(indices.client, [indices.person], one.name, read_position=read_position) for one in which
    ]
    try:
        witnesses(sinks, indices.person)
        index = f"viewtail-{indices.person.view.name}"
        assert indices.client().exists(index=index, id="{viewtail:witness}"), "the name that it always had"
        indices.client().delete(index=index, id="{viewtail:witness:default.1.elasticsearch}")
        assert [missing(sink) for sink in sinks] == [frozenset(), {indices.person.id}, frozenset()]
        assert indices.shown(indices.person).keys() == {(0,), (1,), (2,)}, "witnesses are no documents"
    finally:
        for sink in sinks:
            sink.close()
