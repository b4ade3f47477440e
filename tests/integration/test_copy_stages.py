"""Every way from one stage of a copy beside a live one to another: what each event does in each stage."""

from __future__ import annotations

from contextlib import closing

import pytest

from offsets.copies import ASKED, CHANGING_PLACES, TRANSITIONS, Copies, Event, Stage
from offsets.mysql import OwnSession
from offsets.runs import ADOPTION
from offsets.view_parts import PartRecord, PartState, ViewParts
from stack import Server
from tests.integration.test_view_states import Scene

STAGES = ("building", "swapping", "moving", "kept", "returning", "dropping", "ended")
# By event, where a copy goes from each of these; "-" where it stays.
WAYS = {
    Event.BEGUN: ("-", "-", "-", "-", "-", "-", "building"),
    Event.SWAP_ASKED: ("swapping", "-", "-", "returning", "-", "-", "-"),
    Event.REFUSED: ("-", "building", "-", "-", "kept", "-", "-"),
    Event.SWAPPED: ("-", "kept", "-", "-", "kept", "-", "-"),
    Event.MOVE_BEGUN: ("-", "moving", "-", "-", "moving", "-", "-"),
    Event.MOVED: ("-", "-", "kept", "-", "-", "-", "-"),
    Event.DROP_ASKED: ("dropping", "-", "-", "dropping", "-", "-", "-"),
    Event.DROPPED: ("-", "-", "-", "-", "-", "ended", "-"),
}


def test_the_table_of_transitions_has_every_event_and_stage_once() -> None:
    assert set(WAYS) == set(Event)
    assert tuple(Stage) == STAGES
    assert {way: str(to) for way, to in TRANSITIONS.items()} == {
        (Stage(stage), event): to
        for event, row in WAYS.items()
        for stage, to in zip(STAGES, row, strict=True)
        if to != "-"
    }


def test_one_part_at_a_time_brings_a_copy_on() -> None:
    """The owner does what was asked; nobody asks for anything else meanwhile."""
    asking = {Event.BEGUN, Event.SWAP_ASKED, Event.DROP_ASKED}
    events = {stage: {event for of, event in TRANSITIONS if of is stage} for stage in Stage}
    assert all(of <= asking or not of & asking for of in events.values())
    assert {stage for stage, of in events.items() if not of & asking} == ASKED | {Stage.MOVING}
    assert {Stage.SWAPPING, Stage.RETURNING, Stage.MOVING} == CHANGING_PLACES


@pytest.fixture
def scene(mysql_server: Server) -> Scene:
    return Scene(mysql_server)


@pytest.mark.parametrize("event", Event, ids=lambda event: event.name)
def test_an_event_moves_a_copy_along_the_ways_that_there_are_and_no_other(event: Event, scene: Scene) -> None:
    copies = Copies(OwnSession(scene.open), scene.database, "redis")
    copies.begin(scene.view.id, "ada@desk", 60)
    (record,) = copies.read().values()

    def put(stage: str) -> None:
        with closing(scene.open()) as connection, connection.cursor() as cursor:
            cursor.execute(f"UPDATE {scene.database}.rebuild SET stage = %s, copy = 2", (stage,))
            connection.commit()

    def stage_now() -> str:
        with closing(scene.open()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT stage FROM {scene.database}.rebuild")
            ((stage,),) = cursor.fetchall()
        return str(stage)

    for before, after in zip(STAGES, WAYS[event], strict=True):
        put(before)
        if event is Event.BEGUN:
            copies.begin(scene.view.id, "ada@desk", 60)
        else:
            known = copies.read().get(scene.view.id)
            assert known is None or copies.move(known, event) == (after != "-")
        assert stage_now() == (before if after == "-" else after)
        if after != "-" and event is not Event.BEGUN:  # what was seen before somebody else moved it moves nothing
            assert known is not None and not copies.move(known, event)
    assert record.is_newest and record.copy == 2


def test_a_copy_is_an_adopts_only_where_that_asked_for_it_last(scene: Scene) -> None:
    """Else a rebuild, or a changed declaration, would give up what another tool keeps."""
    copies = Copies(OwnSession(scene.open), scene.database, "redis")

    def now() -> tuple[bool, bool]:
        (copy,) = copies.read().values()
        return copy.is_adopting, copy.is_automatic

    copies.begin(scene.view.id, "run.on_change", 60, is_automatic=True)
    assert now() == (False, True)
    copies.begin(scene.view.id, ADOPTION, 0)
    assert now() == (True, False)
    copies.begin(scene.view.id, "run.on_change", 60, is_automatic=True)
    assert now() == (True, False), "an adopt waits for it"
    copies.begin(scene.view.id, "ada@desk", 60)
    assert now() == (False, False)


def test_a_copy_and_the_pause_of_a_part_keep_each_other_out(scene: Scene) -> None:
    copies, view = Copies(OwnSession(scene.open), scene.database, "redis"), scene.view.id
    parts = ViewParts(OwnSession(scene.open), scene.database)
    asked = PartRecord(
        view_id=scene.states.read(view).id,
        view=view,
        part="2",
        given="account_id=2",
        table="app.org2",
        state=PartState.PAUSED,
        reason=None,
        by="ada@desk",
        since="",
    )
    assert copies.pause_part(asked)
    assert not copies.begin(view, "ada@desk", 60) and not copies.begin(view, "run.on_change", 60, is_automatic=True)
    assert copies.read() == {}
    (paused,) = parts.of(view)
    parts.resume(paused)
    assert copies.begin(view, "ada@desk", 60), "its rows come into both"
    assert not copies.pause_part(asked), "before the owner has begun it, too"
    (copy,) = copies.read().values()
    assert copies.move(copy, Event.DROP_ASKED) and not copies.pause_part(asked)
    (copy,) = copies.read().values()
    assert copies.move(copy, Event.DROPPED) and copies.pause_part(asked)
