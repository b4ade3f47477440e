"""`viewtail verify` that is killed, stopped, run twice, or asked about what cannot be compared."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from projectors.failpoints import REWRITE_STEPS, RUN_STEPS
from stack import Server
from tests.support.damage import ELASTICSEARCH, FOREIGN, INDEX_TABLES, REDIS, Damage
from tests.support.damaged_world import SCHEMA, STORE, BusyWriters, DamagedWorld, kept
from tests.support.running import wait_for

SIGINT_CODE = 130


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, mysql_server: Server, redis_server: Server, elasticsearch_server: Server
) -> Iterator[DamagedWorld]:
    folder = tmp_path_factory.mktemp("interrupted")
    made = DamagedWorld(folder=folder, mysql=mysql_server, redis_server=redis_server, search=elasticsearch_server)
    with kept(made):
        made.wait_until_shown()
        yield made


@pytest.fixture(autouse=True)
def whole(world: DamagedWorld) -> Iterator[None]:
    """Each test leaves the views as they were."""
    yield
    world.wait_until_shown()


def planted(world: DamagedWorld, damages: tuple[Damage, ...], view: str, *kinds: str) -> dict[str, str]:
    """What was done to a view: by key, what must be found."""
    chosen = [one for one in damages if one.view == view and one.what in kinds]
    assert len(chosen) == len(kinds)
    for one in chosen:
        one.plant(world)
    return {key: kind for one in chosen for key, kind in one.found.items()}


MENDED = (
    (INDEX_TABLES, "mysql:d_email", "another case"),
    (REDIS, "redis:d_hash", "another case"),
    (REDIS, "redis:d_json", "no JSON"),
    (ELASTICSEARCH, "elasticsearch:d_person", "another case"),
)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("step", [*REWRITE_STEPS, *RUN_STEPS, "after save:2"])
def test_a_repair_that_was_killed_is_finished_by_the_same_command(world: DamagedWorld, step: str) -> None:
    wanted = {
        view: planted(world, damages, view, "a version above all", other).keys() for damages, view, other in MENDED
    }
    repairs = [world.start_command("verify", view, "--repair", VIEWTAIL_FAILPOINT=step) for view in wanted]
    for repair in repairs:
        repair.communicate(timeout=60)
    assert [repair.returncode for repair in repairs] == [-signal.SIGKILL] * len(MENDED)
    told = json.loads(world.command("replays", "--json", "--limit", str(len(MENDED))).stdout)
    assert {(one["kind"], one["state"]) for one in told} == {("repair", "stopped")}
    found = world.verify(*wanted, "--repair")
    assert found["code"] == 0 and found["failed"] == {}
    for view, keys in wanted.items():
        assert {one["key"] for one in found[view]["entities"]} <= keys
    world.wait_until_shown()


@pytest.mark.parametrize(
    ("view", "ref"), [("mysql:d_draft", 2001), ("redis:d_draft", 2002), ("elasticsearch:d_draft", 2003)]
)
def test_a_row_that_comes_back_while_its_key_is_replayed_gets_no_tombstone(
    world: DamagedWorld, view: str, ref: int
) -> None:
    """Of a version column: the replay takes the version of its tombstone from what the store holds."""
    world.ask(f"DELETE FROM {SCHEMA}.draft WHERE id = 7")
    world.wait_until_shown()
    replay = world.start_command("replay", view, "--key", "7", VIEWTAIL_FAILPOINT="after rows:1:SIGSTOP")
    wait_for("it has read that there is no row", lambda: _is_stopped(replay.pid))
    world.ask(f"INSERT INTO {SCHEMA}.draft VALUES (7, {ref}, 'back')")
    world.wait_until_shown()
    replay.send_signal(signal.SIGCONT)
    out, errors = replay.communicate(timeout=60)
    assert replay.returncode == 0, out + errors
    world.wait_until_shown()


def test_what_a_reader_sees_of_a_hash_stays_until_the_row_is_written(world: DamagedWorld) -> None:
    planted(world, REDIS, "redis:d_hash", "a version above all")
    before = world.redis.hgetall("d_hash:19")
    repair = world.start_command("verify", "redis:d_hash", "--repair", VIEWTAIL_FAILPOINT="after take away")
    repair.communicate(timeout=60)
    after = world.redis.hgetall("d_hash:19")
    assert {**before, b"_version": b""} == {**after, b"_version": b""}
    assert world.verify("redis:d_hash", "--repair")["code"] == 0


def test_what_a_reader_sees_of_a_document_stays_until_the_row_is_written(world: DamagedWorld) -> None:
    planted(world, ELASTICSEARCH, "elasticsearch:d_person", "a version above all")
    before = world.indices.ask("GET", _document("elasticsearch:d_person", "26"))
    repair = world.start_command("verify", "elasticsearch:d_person", "--repair", VIEWTAIL_FAILPOINT="after take away")
    repair.communicate(timeout=60)
    assert repair.returncode == -signal.SIGKILL
    after = world.indices.ask("GET", _document("elasticsearch:d_person", "26"))
    assert after.get("_source") == before["_source"]
    assert world.verify("elasticsearch:d_person", "--repair")["code"] == 0


@pytest.mark.parametrize(
    ("damages", "view"),
    [(INDEX_TABLES, "mysql:d_email"), (REDIS, "redis:d_hash"), (ELASTICSEARCH, "elasticsearch:d_person")],
)
def test_a_change_that_a_version_above_all_kept_out_is_in_the_view_after_the_repair(
    world: DamagedWorld, damages: tuple[Damage, ...], view: str
) -> None:
    wanted = planted(world, damages, view, "a version above all")
    (key,) = wanted
    # The repair has read the row and taken the version away, and waits: what changed before that is refused for ever,
    # what changes now is applied at once or comes behind the row that it read.
    repair = world.start_command("verify", view, "--repair", VIEWTAIL_FAILPOINT="after take away:1:SIGSTOP")
    wait_for("it stands", lambda: _is_stopped(repair.pid))
    world.ask(f"UPDATE {SCHEMA}.person SET email = 'in between', name = 'in between' WHERE id = {key}")
    repair.send_signal(signal.SIGCONT)
    out, errors = repair.communicate(timeout=60)
    assert repair.returncode == 0, out + errors
    world.wait_until_shown()
    world.ask(f"UPDATE {SCHEMA}.person SET email = 'u{key}@example.org', name = 'name {key}' WHERE id = {key}")


def test_names_that_no_key_has_are_told_and_left_alone(world: DamagedWorld) -> None:
    for view, names in FOREIGN.items():
        for name in names:
            if view.startswith("redis:"):
                world.redis.hset(name, "_version", "0000000000000000005")
            else:
                body = {"title": "x"} if view.endswith("place") else {"name": "x"}
                world.indices.ask("PUT", _document(view, name), body)
    for arguments in ((), ("--repair",)):
        found = world.verify(*FOREIGN, *arguments)
        assert found["code"] == 1
        assert {view: len(found[view]["foreign"]) for view in FOREIGN} == {v: len(n) for v, n in FOREIGN.items()}
        assert not any(found[view]["entities"] for view in FOREIGN), "the keys beside them are right"
    assert all(world.redis.exists(name) for view in ("redis:d_hash", "redis:d_place") for name in FOREIGN[view])
    assert world.ask(f"SELECT COUNT(*) FROM {SCHEMA}.person") == [(1000,)]
    for view, names in FOREIGN.items():
        for name in names:
            if view.startswith("redis:"):
                world.redis.delete(name)
            else:
                world.indices.ask("DELETE", _document(view, name))


def _document(view: str, name: str) -> str:
    return f"/viewtail-{view.partition(':')[2]}/_doc/{name.replace('%', '%25')}"


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_pass_that_was_stopped_goes_on_and_counts_right(world: DamagedWorld) -> None:
    view = "redis:d_hash"
    kinds = ("a hash is gone", "a list", "no version", "a hash of nobody")
    wanted = planted(world, REDIS, view, *kinds)
    world.redis.hset("d_hash:790", "name", "x")
    wanted["790"] = "wrong"
    slow = ("verify", view, "--json", "--max-rows-per-second", "100")
    first = world.start_command(*slow, VIEWTAIL_RUN__CHUNK_ROWS="50")
    wait_for("what it found is saved", lambda: _progress(world, view)["counts"]["differing"])
    first.send_signal(signal.SIGINT)
    out, errors = first.communicate(timeout=30)
    assert (first.returncode, out) == (SIGINT_CODE, "") and "goes on where it was" in errors
    begun = _progress(world, view)["counts"]
    assert 0 < begun["rows"] < 1000
    found = world.verify(view)
    assert found["code"] == 1
    assert found[view]["rows"] == 1000, "each row once"
    assert found[view]["differing"] == {"missing": 1, "wrong": 3, "extra": 1}
    assert {one["key"] for one in found[view]["entities"]} <= wanted.keys()
    assert world.verify(view, "--repair")["code"] == 0


def test_a_pass_that_was_stopped_before_it_saved_anything_begins_again(world: DamagedWorld) -> None:
    view = "redis:d_json"
    first = world.start_command("verify", view, "--max-rows-per-second", "20", VIEWTAIL_RUN__CHUNK_ROWS="10")
    wait_for("it has begun", lambda: _progress(world, view), timeout_s=30)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=30)
    found = world.verify(view)
    assert (found["code"], found[view]["rows"]) == (0, 1000)


def test_of_two_passes_at_once_the_second_says_so(world: DamagedWorld) -> None:
    view = "redis:d_made"
    first = world.start_command("verify", view, "--max-rows-per-second", "20", VIEWTAIL_RUN__CHUNK_ROWS="10")
    wait_for("it has begun", lambda: _progress(world, view), timeout_s=30)
    second = world.command("verify", view)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=30)
    assert second.returncode == 1 and "runs the same verify of redis:d_made now" in second.stderr


def _progress(world: DamagedWorld, view: str) -> Any:
    """Of the pass over a view that is running or stopped, once it has begun."""
    asked = f"SELECT progress FROM {STORE}.operator_run WHERE view = '{view}' AND state IN ('running', 'stopped')"
    return [json.loads(progress) for (progress,) in world.ask(asked) if progress != "{}"][-1]


def test_a_key_that_is_parked_for_what_the_store_holds_there_is_mended(world: DamagedWorld) -> None:
    planted(world, REDIS, "redis:d_hash", "a list")
    world.ask(f"UPDATE {SCHEMA}.person SET name = 'parked' WHERE id = 10")
    wait_for("it is parked", lambda: world.command("status").returncode == 1)
    found = world.verify("redis:d_hash", "--repair")
    assert found["code"] == 0 and [one["key"] for one in found["redis:d_hash"]["entities"]] == ["10"]
    assert world.run.is_well(), "it is no dead letter any more"
    world.ask(f"UPDATE {SCHEMA}.person SET name = 'name 10' WHERE id = 10")


def test_a_view_whose_place_is_gone_is_told_and_nothing_is_made_for_it(world: DamagedWorld) -> None:
    assert world.run.stop() == 0
    tables = f"SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '{STORE}' AND table_name = 'd_email'"
    world.ask(f"DROP TABLE {STORE}.d_email")
    world.redis.flushall()
    world.indices.drop(["d_person"])
    for view in ("mysql:d_email", "redis:d_hash", "redis:d_json", "elasticsearch:d_person"):
        for arguments in ((), ("--repair",), ("--sample", "10")):
            done = world.command("verify", view, *arguments)
            assert done.returncode == 1, done.stdout
            assert f"the place of {view} in" in done.stderr and "is gone, or empty" in done.stderr
    assert world.ask(tables) == [(0,)]
    assert world.redis.dbsize() == 0
    names = [one["index"] for one in world.indices.ask("GET", "/_cat/indices?format=json")]
    assert "viewtail-d_person" not in names and "viewtail-d_made" in names
    world.run.start()
    world.wait_until_filled()


@pytest.mark.parametrize(("state", "says"), [("halted", "is halted: because"), ("filling", "is being backfilled")])
def test_a_view_that_is_not_whole_is_not_compared(world: DamagedWorld, state: str, says: str) -> None:
    assert world.run.stop() == 0
    where = "WHERE name = 'redis:d_hash'"
    world.ask(f"UPDATE {STORE}.view SET state = '{state}', reason = 'because' {where}")
    for arguments in ((), ("--repair",)):
        done = world.command("verify", "redis:d_hash", *arguments)
        assert done.returncode == 1 and says in done.stderr
    world.ask(f"UPDATE {STORE}.view SET state = 'filled', reason = NULL {where}")
    world.run.start()
    world.wait_until_filled()


def test_redis_that_loses_everything_during_a_pass_is_no_damage(world: DamagedWorld) -> None:
    view = "redis:d_hash"
    with BusyWriters(world, threads=1):
        first = world.start_command("verify", view, "--max-rows-per-second", "200", VIEWTAIL_RUN__CHUNK_ROWS="50")
        wait_for("it has begun", lambda: _progress(world, view), timeout_s=30)
        world.redis.flushall()
        out, errors = first.communicate(timeout=60)
    assert first.returncode == 1
    assert "missing" not in out, out
    said = ("is gone, or empty", "is being backfilled", "lost something, or was halted, while it was compared")
    assert any(one in errors for one in said), errors
    world.wait_until_filled()
