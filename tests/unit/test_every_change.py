"""A store that keeps every change, in the pipeline: order, images, what is parked, and what is halted."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from projectors.binding import bind
from projectors.dead_letters import PARKED_IN_A_ROW
from projectors.every_change import EveryChange, projections_for
from projectors.projection import Projections, followed_tables
from projectors.stores.redis.store import RedisStore
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.table_changes import TableChanges
from projectors.views import BoundView, Entity, View
from tests.support.log_sink import Log, LogSink, LogStore
from tests.unit.test_pipeline import Loop, at
from viewtail.changes.batches import (
    DELETE,
    INSERT,
    UPDATE,
    Batch,
    Refused,
    RowChanges,
    TableChange,
    TableChangeKind,
    Unreadable,
)
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import KeptChange

COLUMNS = (
    Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False),
    Column(name="name", kind=Kind.TEXT, declared="varchar(9)", is_nullable=True, charset="utf8mb4", length=9),
    Column(name="rev", kind=Kind.INTEGER, declared="int", is_nullable=False),
)
TABLE = Table(schema="shop", name="user", columns=COLUMNS, primary_key=("id",))
USER = Entity("shop.user")


class Scene:
    """Views over one table, and a pipeline of them into a log."""

    def __init__(self, *views: View) -> None:
        self.views: list[BoundView] = bind(views, lambda *_: TABLE)
        self.followed = followed_tables(self.views)
        self.table = self.followed["shop", "user"]
        self.log = Log()
        self.sink = LogSink(self.views, self.log)

    def run(self, *events: tuple[int, list[tuple[Any, ...]]] | Refused) -> Loop:
        """Each event is a batch: its kind and rows (of the columns that are followed)."""
        batches = [self._batch(number, event) for number, event in enumerate(events, 1)]
        loop = Loop(self.views, self.followed, batches, self.sink, EveryChange)
        loop.run()
        return loop

    def _batch(self, number: int, event: Any) -> Batch:
        is_refused = isinstance(event, Refused)
        changes = [] if is_refused else [RowChanges(self.table, event[0], at(number).version, event[1])]
        refused = [event._replace(followed=self.table, version=at(number).version)] if is_refused else []
        return Batch(changes=changes, refused=refused, end=at(number), row_count=1, byte_count=99, oldest_commit_us=0)


def told(changes: list[KeptChange]) -> list[tuple[Any, ...]]:
    return [(one.key[0], one.op, one.before, one.after) for one in changes]


def test_every_change_comes_in_order_with_both_images_and_only_those_of_one_row_event_are_one() -> None:
    scene = Scene(RedisHash("a", USER, fields=["name"]))
    loop = scene.run(
        (INSERT, [(1, "x"), (2, "y")]),
        (UPDATE, [(1, "x"), (1, "z"), (1, "z"), (1, "z")]),
        (UPDATE, [(1, "z"), (7, "z")]),
        (DELETE, [(7, "z")]),
    )
    changes = scene.log.of("redis:a")
    assert told(changes) == [
        (1, "insert", None, ("x",)),
        (2, "insert", None, ("y",)),
        (1, "update", ("x",), ("z",)),
        (1, "delete", ("z",), None),
        (7, "insert", None, ("z",)),
        (7, "delete", ("z",), None),
    ]
    assert [one.version for one in changes] == [at(n).version for n in (1, 1, 2, 3, 3, 4)]
    assert loop.pipeline.vitals.write_count == 6, "rows are counted, not keys"


def test_keys_that_one_event_shifts_change_once_each_and_what_only_came_and_went_does_not() -> None:
    scene = Scene(RedisHash("a", USER, fields=["name"]))
    scene.run(
        (INSERT, [(1, "x"), (2, "y")]),
        (UPDATE, [(2, "y"), (3, "y"), (1, "x"), (2, "x")]),
        (UPDATE, [(3, "y"), (9, "y"), (9, "y"), (4, "y")]),
    )
    assert sorted(told(scene.log.of("redis:a")[2:5])) == [
        (1, "delete", ("x",), None), (2, "update", ("y",), ("x",)), (3, "insert", None, ("y",)),
    ]  # fmt: skip
    assert sorted(told(scene.log.of("redis:a")[5:])) == [(3, "delete", ("y",), None), (4, "insert", None, ("y",))]


def test_a_key_that_comes_goes_and_comes_again_within_an_event_is_an_insert() -> None:
    scene = Scene(RedisHash("a", USER, fields=["name"]))
    scene.run((INSERT, [(3, "x"), (8, "y")]), (UPDATE, [(3, "x"), (9, "x"), (9, "x"), (4, "x"), (8, "y"), (9, "y")]))
    assert sorted(told(scene.log.of("redis:a")[2:])) == [
        (3, "delete", ("x",), None), (4, "insert", None, ("x",)),
        (8, "delete", ("y",), None), (9, "insert", None, ("y",)),
    ]  # fmt: skip


def test_a_delete_whose_image_cannot_be_made_comes_beside_a_key_that_the_event_has_twice() -> None:
    scene = Scene(RedisJson("a", USER, document=lambda row: {"n": row["name"].upper()}))
    scene.run(
        (INSERT, [(2, "y", 1)]),
        (UPDATE, [(1, None, 1), (5, "x", 1), (2, "y", 1), (2, "z", 1), (2, "z", 1), (2, "w", 1)]),
    )
    assert [(one.key[0], one.op) for one in scene.log.of("redis:a")][1:] == [
        (1, "delete"),
        (5, "insert"),
        (2, "update"),
    ]


def test_views_of_one_table_are_in_the_order_of_the_stream() -> None:
    scene = Scene(RedisHash("a", USER, fields=["name"]), RedisHash("b", USER, fields=["name"]))
    scene.run((INSERT, [(1, "x")]), (DELETE, [(1, "x")]))
    order = [(view, change.op) for view, change in scene.log.entries]
    assert order == [
        ("redis:a", "insert"),
        ("redis:b", "insert"),
        ("redis:a", "delete"),
        ("redis:b", "delete"),
    ]


def test_a_condition_lets_rows_come_and_go_as_inserts_and_deletes() -> None:
    scene = Scene(RedisHash("a", USER, fields=["name"], where=lambda row: row["rev"] > 5))
    scene.run(
        (INSERT, [(1, "x", 1)]),
        (UPDATE, [(1, "x", 1), (1, "x", 6)]),
        (UPDATE, [(1, "x", 6), (1, "y", 7)]),
        (UPDATE, [(1, "y", 7), (1, "y", 2)]),
        (DELETE, [(1, "y", 2)]),
    )
    assert told(scene.log.of("redis:a")) == [
        (1, "insert", None, ("x",)),
        (1, "update", ("x",), ("y",)),
        (1, "delete", ("y",), None),
    ]


def test_a_version_column_gives_the_versions() -> None:
    scene = Scene(RedisHash("a", Entity("shop.user", version="rev"), fields=["name"]))
    loop = scene.run((INSERT, [(1, "x", 3)]), (UPDATE, [(1, "x", 3), (1, "y", 3)]), (DELETE, [(1, "y", 4)]))
    assert [(one.op, one.version) for one in scene.log.of("redis:a")] == [("insert", 6), ("delete", 9)]
    assert [letter.reason.partition(",")[0] for letter in loop.letters] == [
        "an update did not raise the version column rev"
    ]


def test_what_cannot_be_projected_is_parked_and_a_delete_of_it_still_comes() -> None:
    scene = Scene(RedisJson("a", USER, document=lambda row: {"n": row["name"].upper()}))
    loop = scene.run(
        (INSERT, [(1, None, 1), (2, "ok", 1)]),
        (DELETE, [(1, None, 1)]),
        Refused(None, INSERT, 0, [(3, Unreadable("name"), 1)], "because"),  # type: ignore[arg-type]
        Refused(None, DELETE, 0, [(3, Unreadable("name"), 1)], "because"),  # type: ignore[arg-type]
    )
    assert [(one.key[0], one.op) for one in scene.log.of("redis:a")] == [
        (2, "insert"), (1, "delete"), (3, "delete"),
    ]  # fmt: skip
    assert [letter.key for letter in loop.letters] == ["1", "3"]


def test_a_key_that_the_store_refuses_is_parked_and_a_later_success_clears_it() -> None:
    scene = Scene(RedisHash("a", USER, fields=["name"]))
    scene.sink.faults.reject("redis:a", (1,), "because")
    loop = scene.run((INSERT, [(1, "x"), (2, "y")]))
    assert [(letter.key, letter.reason) for letter in loop.letters] == [("1", "because")]
    assert [set(found.writes) for found in loop.cleared[-1]] == [{(1,), (2,)}]
    assert told(scene.log.of("redis:a")) == [(2, "insert", None, ("y",))]


def test_a_view_that_does_nothing_but_refuse_is_halted() -> None:
    scene = Scene(RedisHash("a", USER, fields=["name"]))
    for number in range(PARKED_IN_A_ROW):
        scene.sink.faults.reject("redis:a", (number,))
    loop = scene.run((INSERT, [(number, "x") for number in range(PARKED_IN_A_ROW)]))
    assert loop.halted == ["redis:a"]


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_view_that_the_store_has_no_place_for_halts_and_the_others_go_on(is_guarded: bool) -> None:
    scene = Scene(RedisHash("a", USER, fields=["name"]), RedisHash("b", USER, fields=["name"]))
    reason = "there is something else in its place"
    if is_guarded:
        loop = Loop(scene.views, scene.followed, [scene._batch(1, (INSERT, [(1, "x")]))])
        loop.sink.store.no_place["redis:a"] = reason
        loop.run()
        assert set(loop.sink.store.rows) == {"redis:b"}
    else:
        scene.log.no_place["redis:a"] = reason
        loop = scene.run((INSERT, [(1, "x")]))
        assert [view for view, _ in scene.log.entries] == ["redis:b"]
    assert loop.halted == ["redis:a"]
    assert loop.reasons == [f"{reason}. When that is mended: viewtail replay redis:a"]


def test_a_view_whose_place_is_to_be_taken_over_is_told_that_alone() -> None:
    scene = Scene(RedisHash("a", USER, fields=["name"]))
    reason = "another one has it; take it over: viewtail replay redis:a --take-over"
    scene.log.no_place["redis:a"] = reason
    assert scene.run((INSERT, [(1, "x")])).reasons == [reason]


def test_a_backfill_hands_over_what_it_read_as_such() -> None:
    scene = Scene(RedisHash("a", USER, fields=["name"]))
    projected = EveryChange(scene.views, scene.followed).of_rows("redis:a", [(1, "x"), (2, None)], 77)
    (found,) = projected.writes
    assert list(found.changes) == [
        KeptChange((1,), 77, "read", None, ("x",)), KeptChange((2,), 77, "read", None, (None,)),
    ]  # fmt: skip


def test_the_store_chooses_its_projection() -> None:
    scene = Scene(RedisHash("a", USER, fields=["name"]))
    assert type(projections_for(LogStore(), scene.views, scene.followed)) is EveryChange
    assert type(projections_for(RedisStore(), scene.views, scene.followed)) is Projections


def test_a_truncate_halts_the_view_of_a_store_that_cannot_tell_its_keys() -> None:
    scene = Scene(RedisHash("a", USER, fields=["name"]))
    unused: Any = None
    loop = Loop(scene.views, scene.followed, [scene._batch(1, (INSERT, []))], scene.sink, EveryChange)
    changes = TableChanges(
        life=loop.life, sink=scene.sink, offsets=unused, dead_letters=unused, open_source=unused, check_lease=unused,
        stop=threading.Event(),
    )  # fmt: skip
    truncate = TableChange(scene.table, 9, TableChangeKind.EMPTIED, "TRUNCATE TABLE user at binlog.000001:4")
    assert changes.apply([truncate])
    assert loop.halted == ["redis:a"]
    assert "cannot tell which keys it holds" in loop.reasons[0]
    assert "viewtail replay redis:a" in loop.reasons[0]
