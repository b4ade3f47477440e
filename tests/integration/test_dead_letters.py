"""Dead letters on a real server: what is listed, what `drop` and a write leave, what the pipeline's process sees."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

import projectors.dead_letters as parking
from ingest.binlog.coordinates import BinlogPosition
from offsets import dead_letters, schema
from offsets.mysql import MySQLOffsets, OwnSession
from offsets.views import ViewStates
from projectors.dead_letters import DeadLetters
from projectors.declared import declared
from projectors.views import BoundView
from stack import Server
from tests.contract.sinks import RedisHashOne
from viewtail.changes.errors import MisuseError
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.rendering import parse_key
from viewtail.changes.writes import Parked, ViewWrites, Write
from viewtail.commands.dead_letters import view_named
from viewtail.servers.sessions import MySQLAddress, open_session

DATABASE = "dead_letters"
NEAR_THE_TOP = (1 << 62) + 1  # no double holds it


class Scene:
    """A view of a pipeline that parks keys, and the letters as a command sees them."""

    def __init__(self, server: Server) -> None:
        self.address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        with closing(self.open()) as connection:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
            schema.create(connection, self.address, DATABASE, schema.STORE_TABLES, role="store")
        self.view: BoundView = RedisHashOne(server, "letters").person
        name = PipelineId.of("redis").name
        MySQLOffsets(OwnSession(self.open), DATABASE, name, read_position=BinlogPosition.from_text).take()
        states = ViewStates(OwnSession(self.open), DATABASE, name)
        states.sync([declared(self.view)])
        self.letters = DeadLetters(OwnSession(self.open), DATABASE, [self.view], states.ids)
        self.letters.load()
        self.own = (OwnSession(self.open), DATABASE)

    def open(self) -> Any:
        return open_session(self.address, role="store")

    def park(self, *keys: str, version: int = 5, reason: str = "its function raised") -> None:
        self.letters.record([Parked(self.view.id, key, version, reason) for key in keys])

    def keys(self) -> set[str]:
        return {letter.key for letter in dead_letters.of_keys(*self.own, self.view.id, [])}


@pytest.fixture
def scene(mysql_server: Server, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(parking, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(parking, "_LOOK_SHARE", 1e9)
    return Scene(mysql_server)


def test_a_letter_tells_cause_count_times_and_the_whole_version(scene: Scene) -> None:
    scene.park("a%3Ab", version=4)
    scene.park("a%3Ab", version=NEAR_THE_TOP, reason="too long for the store")
    scene.park("c")
    assert dead_letters.count(*scene.own, None) == dead_letters.count(*scene.own, scene.view.id) == 2
    assert [letter.key for letter in dead_letters.newest(*scene.own, None, 1)] == ["c"]
    (letter,) = dead_letters.of_keys(*scene.own, scene.view.id, ["a%3Ab"])
    assert (letter.view, letter.pipeline, letter.version) == (scene.view.id, "redis", NEAR_THE_TOP)
    assert (letter.cause, letter.count) == ("too long for the store", 2)
    assert letter.first_at < letter.last_at
    assert dead_letters.of_keys(*scene.own, scene.view.id, ["A%3Ab"]) == []


def test_a_view_is_named_with_or_without_its_store(scene: Scene) -> None:
    assert view_named(*scene.own, scene.view.view.name) == view_named(*scene.own, scene.view.id) == scene.view.id
    with pytest.raises(MisuseError, match="did you mean"):
        view_named(*scene.own, scene.view.view.name + "s")


def test_what_was_refused_again_meanwhile_is_not_forgotten(scene: Scene) -> None:
    scene.park("1", "2")
    read = dead_letters.of_keys(*scene.own, scene.view.id, [])
    scene.park("2")
    assert [letter.key for letter in dead_letters.forget(*scene.own, read)] == ["1"]
    assert scene.keys() == {"2"}


def test_a_write_clears_no_letter_of_a_newer_change(scene: Scene) -> None:
    scene.park("1", "2", version=5)
    scene.park("1", version=9, reason="newer")
    scene.park("1", version=7, reason="a command that was late")
    columns = scene.view.key
    writes = [ViewWrites(scene.view.id, {parse_key(key, columns): Write(7, None) for key in ("1", "2")})]
    scene.letters.clear_applied(writes, [])
    left = {
        letter.key: (letter.version, letter.cause, letter.count) for letter in dead_letters.newest(*scene.own, None, 9)
    }
    assert left == {"1": (9, "newer", 3)}


def test_the_process_of_a_pipeline_sees_letters_that_another_one_removes_or_adds(scene: Scene) -> None:
    scene.park("1", "2")
    dead_letters.forget(*scene.own, dead_letters.of_keys(*scene.own, scene.view.id, ["1"]))
    assert scene.letters.keys_of(scene.view.id) == {"1", "2"}
    scene.letters.look_again()
    assert scene.letters.keys_of(scene.view.id) == {"2"}
    other = DeadLetters(OwnSession(scene.open), DATABASE, [scene.view], scene.letters._ids)
    other.record([Parked(scene.view.id, "3", 7, "elsewhere")])
    scene.letters.look_again()
    assert scene.letters.keys_of(scene.view.id) == {"2", "3"} and scene.letters.count == 2


@pytest.mark.parametrize("change", ["parked", "cleared"])
def test_what_changes_here_while_the_letters_are_read_again_is_not_forgotten(
    change: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read before the change, and remembered after it: the memory would lack a letter, or have one too many."""
    scene.park("1", "2")
    dead_letters.forget(*scene.own, dead_letters.of_keys(*scene.own, scene.view.id, ["1"]))
    read, changes = DeadLetters._read, ["once"]

    def read_and_change(letters: DeadLetters) -> dict[str, set[str]]:
        found = read(letters)
        if changes:
            changes.pop()
            if change == "parked":
                scene.park("3")
            else:
                scene.letters.clear_view(scene.view.id)
        return found

    monkeypatch.setattr(DeadLetters, "_read", read_and_change)
    scene.letters.on(OwnSession(scene.open)).look_again()
    assert scene.letters.keys_of(scene.view.id) == scene.keys() == ({"2", "3"} if change == "parked" else set())
