"""Every way from one state of a view to another: what each event does to a view in each state, on a real server."""

from __future__ import annotations

import json
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from ingest.binlog.coordinates import BinlogPosition
from offsets import runs, schema, whole_replays
from offsets.backfills import BackfillProgress
from offsets.copies import Copies, Stage
from offsets.copies import Event as CopyEvent
from offsets.lease import lock_name
from offsets.mysql import MySQLOffsets, OwnSession, check_fence, looking, transaction
from offsets.views import BEING_DROPPED, TRANSITIONS, Event, State, ViewStates, move
from projectors.declared import declared
from projectors.views import BoundView
from stack import Server
from tests.contract.sinks import RedisHashOne
from viewtail.changes.errors import FencedError, StopRequested
from viewtail.changes.pipelines import PipelineId
from viewtail.operations.runs import past
from viewtail.servers.sessions import MySQLAddress, open_session

# By event, where a view goes from "new", "filling", "filled", "halted" and "paused"; "-" where it stays.
WAYS = {
    Event.REDECLARED: ("new", "new", "new", "new", "-", "-"),
    Event.RETYPED: ("new", "new", "new", "-", "-", "-"),
    Event.BEGUN: ("filling", "-", "-", "-", "-", "-"),
    Event.INTERRUPTED: ("-", "new", "-", "-", "-", "-"),
    Event.FINISHED: ("-", "filled", "-", "-", "-", "-"),
    Event.LOST: ("-", "new", "new", "-", "-", "-"),
    Event.REPLACED: ("new", "new", "new", "-", "-", "-"),
    Event.RETIRED: ("-", "new", "new", "-", "-", "-"),
    Event.HALTED: ("halted", "halted", "halted", "halted", "halted", "-"),
    Event.REPLAYED: ("new", "new", "new", "new", "-", "-"),
    Event.PAUSED: ("paused", "paused", "paused", "-", "-", "-"),
    Event.RESUMED: ("-", "-", "-", "-", "new", "-"),
    Event.RELEASED: ("released", "released", "released", "released", "released", "-"),
}
STATES = ("new", "filling", "filled", "halted", "paused", "released")
VALUES: dict[str, object] = {
    "floor": 77, "watermark": 900, "row_estimate": 10, "incarnation": "run", "end": 950, "kept_count": 5,
    "reason": "its table changed", "by": "ada@desk",
}  # fmt: skip


class Scene:
    """One view of one pipeline, put into a state by hand."""

    def __init__(self, server: Server) -> None:
        self.address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        self.database = "view_states"
        with closing(self.open()) as connection:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP DATABASE IF EXISTS {self.database}")
            schema.create(connection, self.address, self.database, schema.STORE_TABLES, role="store")
        self.view: BoundView = RedisHashOne(server, "states").person
        pipeline = PipelineId.of("redis").name
        offsets = MySQLOffsets(OwnSession(self.open), self.database, pipeline, read_position=BinlogPosition.from_text)
        self.owner = offsets.take().owner
        self.states = ViewStates(OwnSession(self.open), self.database, pipeline)
        self.states.sync([declared(self.view)])

    def open(self) -> pymysql.Connection[Any]:
        return open_session(self.address, role="store")

    def put(self, state: str, **columns: object) -> None:
        is_paused = state == "paused"
        given = {
            "state": state, "reason": "before" if state == "halted" else None, "watermark_version": 500,
            "paused_at": "2026-01-02 03:04:05" if is_paused else None, "paused_by": "bob@desk" if is_paused else None,
            "fill_key": '{"order": "id", "key": [3], "kept": 2}', "fill_row_count": 3,
            "proven_at": "2026-01-02 03:04:05", "loss_count": 1, **columns,
        }  # fmt: skip
        with closing(self.open()) as connection, connection.cursor() as cursor:
            names = ", ".join(f"{name} = %s" for name in given)
            cursor.execute(f"UPDATE {self.database}.view SET {names}", tuple(given.values()))
            connection.commit()

    def row(self) -> dict[str, Any]:
        with closing(self.open()) as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(f"SELECT * FROM {self.database}.view")
            (row,) = cursor.fetchall()
        return row


@pytest.fixture
def scene(mysql_server: Server) -> Scene:
    return Scene(mysql_server)


def test_the_table_of_transitions_has_every_event_and_state() -> None:
    assert set(TRANSITIONS) == set(Event) == set(WAYS)
    assert tuple(State) == STATES


@pytest.mark.parametrize("event", Event, ids=lambda event: event.name)
def test_an_event_moves_a_view_along_the_edges_that_there_are_and_no_other(event: Event, scene: Scene) -> None:
    for before, after in zip(STATES, WAYS[event], strict=True):
        scene.put(before)
        unmoved = scene.row()
        with closing(scene.open()) as connection, connection.cursor() as cursor:
            move(cursor, scene.database, scene.owner.id, event, [scene.view.id], **VALUES)
            connection.commit()
        found = scene.row()
        if after == "-":
            assert found == unmoved, before
            continue
        assert (found["paused_at"] is not None, found["paused_by"]) == (
            (True, "ada@desk") if after == "paused" else (False, None)
        )
        assert found["state"] == after, before
        is_unproven = after in ("new", "halted", "paused")
        assert (found["proven_at"] is None, found["loss_count"]) == (is_unproven, 1 + is_unproven), before
        if after == "new":
            assert (found["fill_key"], found["fill_row_count"], found["reason"]) == (None, 0, None)
            assert found["watermark_version"] == 77, "the next watermark must be above this"
        elif after == "filling":
            assert (found["fill_key"], found["watermark_version"], found["fill_row_estimate"]) == (
                None,
                900,
                10,
            )
        elif after == "filled":
            assert (found["watermark_version"], found["fill_row_count"]) == (950, 5)
        else:
            assert found["reason"] == "its table changed"


def test_a_place_that_a_view_had_before_stays_known_and_the_present_one_is_the_last(scene: Scene) -> None:
    (now,) = json.loads(scene.row()["places"])
    elsewhere = {**now, "shape": "elsewhere:{INTEGER}"}
    scene.put("filled", places=json.dumps([now, elsewhere]))
    scene.states.sync([declared(scene.view)])
    assert json.loads(scene.row()["places"]) == [elsewhere, now]


def test_no_backfill_begins_under_a_watermark_from_before_its_rows_were_replaced(scene: Scene) -> None:
    scene.put("filled")
    scene.states.move(Event.REPLACED, [scene.view.id], floor=1000)
    assert scene.states.begin_backfill(scene.view.id, 1000, 1, "").state is State.NEW
    assert scene.states.begin_backfill(scene.view.id, 1001, 1, "").state is State.BACKFILLING


def test_progress_is_saved_of_a_running_backfill_alone_and_any_other_ends(scene: Scene) -> None:
    progress = BackfillProgress(OwnSession(scene.open), scene.database, scene.owner, scene.view.id, "id")
    for state in STATES:
        scene.put(state)
        with nullcontext() if state == "filling" else pytest.raises(StopRequested):
            progress.save((9,), 8, 7)
        record = scene.states.read(scene.view.id)
        expected = ((9,), 8, 7) if state == "filling" else ((3,), 3, 2)
        assert (record.last_key, record.row_count, record.kept_count) == expected


def test_a_forgotten_view_leaves_no_rebuild_that_goes_on_when_it_is_declared_again(scene: Scene) -> None:
    copies = Copies(OwnSession(scene.open), scene.database, "redis")
    copies.begin(scene.view.id, "ada@desk", 60)
    scene.put("filled")
    assert not copies.forget_dropped(scene.view.id) and copies.read()
    scene.states.halt(scene.view.id, BEING_DROPPED)
    assert copies.forget_dropped(scene.view.id)
    assert copies.read() == {}
    with closing(scene.open()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM {scene.database}.rebuild")
        assert cursor.fetchone() == (0,)


def test_a_replay_is_over_when_every_pipeline_of_the_view_has_filled_it(scene: Scene) -> None:
    other = PipelineId("shop.user", 1, "redis").name
    offsets = MySQLOffsets(OwnSession(scene.open), scene.database, other, read_position=BinlogPosition.from_text)
    owners = (scene.owner, offsets.take().owner)
    session = OwnSession(scene.open)
    ViewStates(session, scene.database, other).sync([declared(scene.view)])

    def recorded() -> list[tuple[Any, ...]]:
        with transaction(session, "looking") as cursor:
            cursor.execute(f"SELECT state, result, progress FROM {scene.database}.operator_run ORDER BY id")
            return list(cursor.fetchall())

    first, second = (BackfillProgress(session, scene.database, owner, scene.view.id, "id") for owner in owners)
    for kept, said in ((5, "3 rows read: 5 written, 0 parked"), (None, "filled from its topic, which counts no rows")):
        scene.put("filling")
        with transaction(session, "marking") as cursor:
            whole_replays.begin(cursor, scene.database, scene.view.id, "the whole view")
        first.finish(950, 5)
        assert recorded()[-1] == ("marked", "", "{}")
        with transaction(session, "looking") as cursor:
            found = whole_replays.how_far(cursor, scene.database, scene.view.id)
        assert (found.state, found.rows) == ("waiting", 5)
        second.finish(960, kept)
        state, result, _ = recorded()[-1]
        assert state == "done" and result.startswith(said)
    assert len(recorded()) == 2

    with transaction(session, "marking") as cursor:
        whole_replays.begin(cursor, scene.database, scene.view.id, "the whole view")
    scene.put("new")
    first.finish(980, 5)
    assert recorded()[-1][0] == "marked", "it was marked after that backfill had begun"


def mark(scene: Scene) -> None:
    with transaction(OwnSession(scene.open), "marking") as cursor:
        whole_replays.begin(cursor, scene.database, scene.view.id, "the whole view")


def told(scene: Scene) -> list[str]:
    """The states of replays, the newest first."""
    return [one.state for one in past(OwnSession(scene.open), scene.database, ["replay"], 9)]


def test_a_replay_is_done_when_its_view_is_filled_whoever_filled_it(scene: Scene) -> None:
    mark(scene)
    scene.put("filling")
    assert told(scene) == ["waiting"]
    scene.put("filled")
    assert told(scene) == ["done"]
    mark(scene)
    scene.put("new")
    assert told(scene) == ["waiting", "done"], "it was not cut off"


def test_a_replay_is_done_when_a_filled_copy_took_the_place_of_the_view(scene: Scene) -> None:
    session = OwnSession(scene.open)
    copies = Copies(session, scene.database, "redis")
    scene.states.sync([declared(replace(scene.view, copy=2, is_beside=True))])
    copies.begin(scene.view.id, "ada@desk", 60)
    mark(scene)
    scene.put("filling")
    BackfillProgress(session, scene.database, scene.owner, f"{scene.view.id}~2", "id").finish(950, 5)
    assert told(scene) == ["waiting"]
    ask_for_swap(copies, scene.view.id)
    copies.swapped(copies.read()[scene.view.id], scene.owner, None, is_kept=True)
    assert told(scene) == ["done"]


def ask_for_swap(copies: Copies, view: str) -> None:
    assert copies.move(copies.read()[view], CopyEvent.SWAP_ASKED)


def test_how_many_entities_were_moved_is_noted_until_the_next_swap(scene: Scene) -> None:
    session, view = OwnSession(scene.open), scene.view.id
    copies = Copies(session, scene.database, PipelineId.of("redis").name)
    copies.begin(view, "ada@desk", 60)
    copies.note_moved(view, 5)
    assert copies.read()[view].moved_count == 0, "none is moved before the swap"
    ask_for_swap(copies, view)
    copies.swapped(copies.read()[view], scene.owner, 950, is_kept=True)
    copies.note_moved(view, 7)
    assert (copies.read()[view].stage, copies.read()[view].moved_count) == (Stage.MOVING, 7)
    copies.move(copies.read()[view], CopyEvent.MOVED)
    copies.note_moved(view, 9)
    assert (copies.read()[view].stage, copies.read()[view].moved_count) == (Stage.KEPT, 7)
    ask_for_swap(copies, view)
    copies.swapped(copies.read()[view], scene.owner, 990, is_kept=True)
    assert copies.read()[view].moved_count == 0


def test_the_pipeline_that_kept_a_view_before_it_moved_to_a_topic_keeps_no_replay_waiting(scene: Scene) -> None:
    name = PipelineId("shop.user", 0, "redis").name
    session = OwnSession(scene.open)
    offsets = MySQLOffsets(session, scene.database, name, read_position=BinlogPosition.from_text)
    owner = offsets.take().owner
    states = ViewStates(session, scene.database, name)
    states.sync([declared(scene.view)])
    mark(scene)
    scene.put("new")
    with closing(scene.open()) as lease, lease.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 0)", (lock_name(scene.database, name),))
        assert cursor.fetchone() == (1,)
        states.begin_backfill(scene.view.id, 900, 1, "")
        assert told(scene) == ["running"]
        BackfillProgress(session, scene.database, owner, scene.view.id, "id").finish(950, 5)
        assert told(scene) == ["done"]
    assert told(scene) == ["done"], "also when nobody runs it any more"


def test_replays_that_were_asked_for_at_one_moment_are_over_together(scene: Scene) -> None:
    session = OwnSession(scene.open)
    mark(scene)
    columns = "kind, view, what, fingerprint, operator, state, progress"
    with transaction(session, "asking at the same moment") as cursor:
        table = f"{scene.database}.operator_run"
        cursor.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table}")
    scene.put("filling")
    BackfillProgress(session, scene.database, scene.owner, scene.view.id, "id").finish(950, 5)
    with transaction(session, "looking") as cursor:
        cursor.execute(f"SELECT state, ended_at IS NULL FROM {scene.database}.operator_run")
        assert cursor.fetchall() == (("done", 0), ("done", 0))


def test_the_record_keeps_the_newest_of_what_is_done_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEPT_RECORDED", 3)
    session = OwnSession(scene.open)
    for number in range(5):
        runs.record(session, scene.database, runs.PAUSED, "", f"pipeline {number}")
    runs.record(session, scene.database, runs.RESUMED, "", "pipeline 0")
    found = past(session, scene.database, [runs.PAUSED, runs.RESUMED], 9)
    assert [run.what for run in found] == ["pipeline 0", "pipeline 4", "pipeline 3", "pipeline 2"]


def test_a_session_for_looks_reads_without_a_commit_and_writes_whole_transactions(scene: Scene) -> None:
    session = OwnSession(looking(scene.open))
    looks = scene.states.on(session)

    def commits() -> int:
        with session().cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Com_commit'")
            return int(cursor.fetchone()[1])

    scene.put("filled")
    before = commits()
    assert looks.read_all([scene.view.id])[scene.view.id].state is State.FILLED
    scene.put("paused")
    assert looks.read_all([scene.view.id])[scene.view.id].state is State.PAUSED, "each look is of its moment"
    assert commits() == before
    with suppress(ZeroDivisionError), transaction(session, "failing between two statements") as cursor:
        cursor.execute(f"UPDATE {scene.database}.view SET state = 'halted'")
        _ = 1 / 0
    assert looks.read_all([scene.view.id])[scene.view.id].state is State.PAUSED
    with transaction(session, "writing") as cursor:
        cursor.execute(f"UPDATE {scene.database}.view SET state = 'filled'")
    assert scene.states.read_all([scene.view.id])[scene.view.id].state is State.FILLED
    assert commits() == before + 1


def test_a_backfill_of_a_stale_owner_saves_nothing(scene: Scene) -> None:
    progress = BackfillProgress(OwnSession(scene.open), scene.database, scene.owner, scene.view.id, "id")
    scene.put("filling")
    progress.save((4,), 4, 3)
    offsets = MySQLOffsets(
        OwnSession(scene.open), scene.database, PipelineId.of("redis").name, read_position=BinlogPosition.from_text
    )
    offsets.take()
    for work in (lambda: progress.save((5,), 5, 4), lambda: progress.finish(950, 4), progress.commit_rows):
        with pytest.raises(FencedError):
            work()
    record = scene.states.read_all([scene.view.id])[scene.view.id]
    assert (record.state, record.last_key, record.row_count) == (State.BACKFILLING, (4,), 4)


def test_who_compares_the_fence_keeps_another_owner_waiting_and_no_other_thread_of_this_one(scene: Scene) -> None:
    row = f"SELECT fence FROM {scene.database}.pipeline WHERE id = {scene.owner.id}"
    with transaction(OwnSession(scene.open), "a chunk") as chunk, closing(scene.open()) as other:
        check_fence(chunk, scene.owner)
        with other.cursor() as cursor:
            cursor.execute(f"{row} FOR SHARE NOWAIT")
            assert cursor.fetchone() == (scene.owner.fence,)
            with pytest.raises(pymysql.err.OperationalError, match="NOWAIT"):
                cursor.execute(f"{row} FOR UPDATE NOWAIT")
