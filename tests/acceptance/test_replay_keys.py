"""`viewtail replay` of some entities, on real servers: named, changed in a stretch of the binlog, by condition."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from projectors.failpoints import RUN_STEPS
from stack import Server
from tests.acceptance.test_verify import ROWS, SCHEMA, STORE, World, made
from tests.support.running import DIED, in_this_process, wait_for
from viewtail.changes.errors import MisuseError
from viewtail.commands.replay_keys import How, Selected, replay_keys
from viewtail.shards import one

VIEWS = ("mysql:by_email", "redis:person", "redis:card", "elasticsearch:person")


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory,
    mysql_server: Server,
    redis_server: Server,
    elasticsearch_server: Server,
) -> Iterator[World]:
    with made(tmp_path_factory.mktemp("replayed"), mysql_server, redis_server, elasticsearch_server) as found:
        yield found


def damage(world: World, *keys: int) -> None:
    """What the stores show of these entities is not what the table says; their versions stay."""
    for key in keys:
        world.ask(f"UPDATE {STORE}.by_email SET email = 'damaged' WHERE id = {key}")
        world.redis.hset(f"person:{key}", "name", "damaged")
        version = world.redis.get(f"card:{key}")[:33]  # type: ignore[index]
        world.redis.set(f"card:{key}", version + b',"n":"damaged"}')


def damaged(world: World) -> set[int]:
    return {row[0] for row in world.ask(f"SELECT id FROM {STORE}.by_email WHERE email = 'damaged'")}


@pytest.mark.parametrize("view", VIEWS)
def test_named_entities_are_written_again_and_a_key_without_a_row_gets_its_tombstone(world: World, view: str) -> None:
    damage(world, 1, 2, 3)
    done = world.command("replay", view, "--key", "1", "--key", "2", "--key", "999999")
    assert done.returncode == 0, done.stderr
    assert "3 entities" in done.stdout
    assert "2 written, 1 gone from the table, 0 parked" in done.stdout
    found = {one["key"] for one in world.verify(view)["views"][0]["entities"]}
    assert found == (set() if view == "elasticsearch:person" else {"3"})
    assert world.command("replay", view, "--key", "3").returncode == 0
    assert world.verify(view)["code"] == 0
    assert world.verify("--repair")["code"] == 0


def test_entities_of_which_the_view_has_a_newer_version_are_not_told_as_written(world: World) -> None:
    above, keys = 1 << 62, ("21", "22", "999998")
    world.ask(f"UPDATE {STORE}.by_email SET email = 'damaged', version = {above} WHERE id = 21")
    world.ask(f"INSERT INTO {STORE}.by_email (id, email, version) VALUES (999998, 'nobody', {above})")
    for key in ("21", "999998"):
        world.redis.hset(f"person:{key}", mapping={"name": "damaged", "_version": f"{above:019d}"})
    for view in ("mysql:by_email", "redis:person"):
        refused = world.command("replay", view, *(part for key in keys for part in ("--key", key)))
        assert refused.returncode == 1
        assert (
            "3 entities" in refused.stdout
            and "2 written, 1 gone from the table, 0 parked, 2 of these differ still" in refused.stdout
        )
        told = [line.split("\t")[:3] for line in refused.stderr.splitlines() if "\t" in line]
        assert told == [[view, "21", "wrong"], [view, "999998", "extra"]]
        assert f"viewtail verify {view} --repair" in refused.stderr
        newest = json.loads(world.command("replays", "--json").stdout)[0]
        counts = "2 written, 0 kept out by where, 1 gone from the table, 0 parked, 2 differ still"
        assert newest["result"] == f"3 entities: {counts}"
        assert world.command("replay", view, "--where", "id = 21").returncode == 1
        assert world.verify(view, "--repair")["code"] == 0
        assert world.command("replay", view, "--key", "21", "--key", "999998").returncode == 0


def test_rows_that_where_keeps_out_are_counted_apart_from_those_that_are_gone(world: World) -> None:
    view = "mysql:by_active_name"  # without every seventh
    said = "1 written, 2 kept out by where, 1 gone from the table, 0 parked"
    named = ("--key", "1", "--key", "7", "--key", "14", "--key", "999999")
    assert said in world.command("replay", view, *named).stdout
    newest = json.loads(world.command("replays", "--json").stdout)[0]
    assert newest["result"] == f"4 entities: {said}"
    counts = {name: newest["progress"][name] for name in ("entities", "shown", "kept_out", "gone", "parked")}
    assert counts == {"entities": 4, "shown": 1, "kept_out": 2, "gone": 1, "parked": 0}
    done = world.command("replay", view, "--where", "id BETWEEN 1 AND 14")
    assert "14 entities" in done.stdout and "12 written, 2 kept out by where, 0 gone from the table" in done.stdout


def test_keys_come_from_a_file_or_from_stdin(world: World, tmp_path: Path) -> None:
    damage(world, 11, 12)
    file = tmp_path / "keys"
    file.write_text("11\n12\n")
    assert world.command("replay", "mysql:by_email", "--keys-from", str(file)).returncode == 0
    assert damaged(world) == set()

    damage(world, 13, 14, 15)
    done = subprocess.run(
        [sys.executable, "-m", "viewtail.main", "replay", "mysql:by_email", "--keys-from", "-"],
        cwd=world.run.folder,
        env=world.run.environment(),
        input="13\n14\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "2 entities" in done.stdout, done.stdout + done.stderr
    assert damaged(world) == {15}
    assert world.command("replay", "mysql:by_email", "--key", "15").returncode == 0


def test_parked_entities_are_replayed_of_one_view_and_redriven_of_all(world: World) -> None:
    keys = (51, 52, 53)
    nothing = world.command("replay", "redis:person", "--parked")
    assert nothing.returncode == 0 and "no entity is parked" in nothing.stdout
    for key in keys:
        world.redis.delete(f"person:{key}", f"card:{key}")
        world.redis.rpush(f"person:{key}", "another's")
        world.redis.rpush(f"card:{key}", "another's")
        world.ask(f"UPDATE {SCHEMA}.user SET name = 'renamed {key}' WHERE id = {key}")

    def parked() -> dict[str, int]:
        return dict(
            world.ask(
                f"SELECT name, COUNT(*) FROM {STORE}.dead_letter JOIN {STORE}.view v ON v.id = view_id GROUP BY 1"
            )
        )  # type: ignore[arg-type]

    wait_for("they are parked", lambda: parked() == {"redis:person": 3, "redis:card": 3})
    refused = world.command("replay", "redis:person", "--parked")
    assert refused.returncode == 1 and "0 written, 0 gone from the table, 3 parked" in refused.stdout
    refused = world.command("dead-letters", "redrive", "--all")
    assert refused.returncode == 1 and refused.stdout.count("3 parked") == 2
    assert parked() == {"redis:person": 3, "redis:card": 3}
    world.redis.delete(*(f"{view}:{key}" for view in ("person", "card") for key in keys))

    dry = world.command("replay", "redis:person", "--parked", "--dry-run")
    assert dry.returncode == 0 and re.findall(r"^  (\d+)$", dry.stdout, re.MULTILINE) == ["51", "52", "53"]
    assert world.redis.exists("person:51") == 0
    done = world.command("replay", "redis:person", "--parked")
    assert done.returncode == 0 and "3 written, 0 gone from the table, 0 parked" in done.stdout
    assert [world.redis.hget(f"person:{key}", "name") for key in keys] == [b"renamed %d" % key for key in keys]
    assert parked() == {"redis:card": 3}
    done = world.command("dead-letters", "redrive", "--all")
    assert done.returncode == 0 and "redis:card: 3 entities" in done.stdout and "redis:person" not in done.stdout
    assert [json.loads(world.redis.get(f"card:{key}"))["n"] for key in keys] == [f"renamed {key}" for key in keys]  # type: ignore[arg-type]
    assert parked() == {}
    found = world.verify("redis:person", "redis:card")["views"]
    assert not {one["key"] for view in found for one in view["entities"]} & {str(key) for key in keys}
    none = world.command("dead-letters", "redrive", "--all")
    assert none.returncode == 0 and "no dead letters" in none.stderr
    for wrong in ((), ("redis:card", "--all")):
        assert world.command("dead-letters", "redrive", *wrong).returncode == 2


def test_a_condition_over_the_table_names_entities(world: World) -> None:
    damage(world, 20, 21, 22)
    done = world.command("replay", "mysql:by_email", "--where", "id BETWEEN 21 AND 22 AND name LIKE 'name%'")
    assert done.returncode == 0, done.stderr
    assert damaged(world) == {20}
    assert world.command("replay", "mysql:by_email", "--key", "20").returncode == 0
    wrong = world.command("replay", "mysql:by_email", "--where", "nothing = 1")
    assert wrong.returncode == 2
    assert "nothing" in wrong.stderr


def test_a_condition_that_takes_long_is_not_counted_and_the_server_goes_on_with_no_select(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_this_process(world.run, monkeypatch)
    monkeypatch.setattr("viewtail.commands.replay_keys.on_stop", lambda _: None)
    monkeypatch.setattr("viewtail.commands.replay_keys.COUNT_WITHIN_S", 0.3)
    slow = Selected(where="SLEEP(0.001) = 0")

    def replayed(*, is_dry_run: bool) -> int:
        how = How(is_dry_run=is_dry_run, is_yes=False, rows_a_second=0)
        return replay_keys(one(None), "mysql:by_email", slow, how)

    def going_on() -> list[tuple[Any, ...]]:
        return world.ask(
            "SELECT info FROM performance_schema.processlist WHERE info LIKE %s AND id <> CONNECTION_ID()",
            "SELECT%SLEEP(0.001) = 0%",
        )

    assert replayed(is_dry_run=True) == 0
    out = capsys.readouterr().out
    assert "entities, not counted" in out and out.count("\n  ") == 21, out
    with pytest.raises(MisuseError, match=r"not counted.*--yes"):
        replayed(is_dry_run=False)
    assert going_on() == []
    monkeypatch.setattr("projectors.proving.view_access.CHUNK_WITHIN_S", 0.1)
    with pytest.raises(MisuseError, match=r"SLEEP.*looks longer than .*--keys-from"):
        replayed(is_dry_run=True)
    assert going_on() == []


def test_what_the_binlog_says_changed_in_a_stretch_is_written_again(world: World) -> None:
    ((before,),) = world.ask("SELECT DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%dT%H:%i:%s')")
    ((file, begin, *_),) = world.ask("SHOW BINARY LOG STATUS")
    world.ask(f"UPDATE {SCHEMA}.user SET visits = visits + 1 WHERE id IN (31, 32)")
    ((file, end, *_),) = world.ask("SHOW BINARY LOG STATUS")
    world.ask(f"UPDATE {SCHEMA}.user SET visits = visits + 1 WHERE id = 33")
    wait_for("the pipeline has it", lambda: world.verify("mysql:by_email")["code"] == 0)
    damage(world, 31, 32, 33)
    done = world.command("replay", "mysql:by_email", "--from", f"{file}:{begin}", "--to", f"{file}:{end}")
    assert done.returncode == 0, done.stderr
    assert "2 entities" in done.stdout, done.stdout
    assert damaged(world) == {33}
    assert world.command("replay", "mysql:by_email", "--since", before).returncode == 0
    assert damaged(world) == set()


def test_a_part_of_the_binlog_that_is_gone_is_told_and_the_whole_view_offered(world: World) -> None:
    for option, place, told in (
        ("--from", "binlog.000000:4", "binlog.000000:4"),
        ("--since", "2001-02-03T04:05", "the oldest binlog that the source has, binlog.0"),
    ):
        done = world.command("replay", "mysql:by_email", option, place)
        assert done.returncode == 1
        assert told in done.stderr
        assert "viewtail replay mysql:by_email" in done.stderr
    for given in ("nonsense", "binlog.000001"):
        assert world.command("replay", "mysql:by_email", "--from", given).returncode == 2


def test_more_than_a_thousand_entities_are_asked_for_and_a_dry_run_writes_none(world: World) -> None:
    damage(world, 40)
    refused = world.command("replay", "mysql:by_email", "--where", "TRUE")
    assert refused.returncode == 2
    assert f"{ROWS:,} entities" in refused.stderr
    assert "--yes" in refused.stderr
    dry = world.command("replay", "mysql:by_email", "--where", "id < 50", "--dry-run")
    assert dry.returncode == 0
    assert "about 49 entities" in dry.stdout
    assert damaged(world) == {40}
    assert world.command("replay", "mysql:by_email", "--where", "TRUE", "--yes").returncode == 0
    assert damaged(world) == set()


def test_a_whole_view_of_more_than_a_thousand_entities_is_asked_for(world: World) -> None:
    states = f"SELECT name, state, loss_count FROM {STORE}.view ORDER BY name"
    before, count = world.ask(states), count_of(world)
    world.ask(f"ANALYZE TABLE {SCHEMA}.user")
    for which, entities in ((("mysql:by_email",), ROWS), (("--all",), 5 * ROWS)):
        refused = world.command("replay", *which)
        assert refused.returncode == 2 and "repeat the command with --yes" in refused.stderr
        (told,) = re.findall(r"about ([\d,]+) entit(?:y is|ies are) written again", refused.stderr)
        assert 0.8 * entities < int(told.replace(",", "")) < 1.2 * entities, "an estimate"
    assert (world.ask(states), count_of(world)) == (before, count), "nothing was marked"


def test_each_replay_is_recorded_with_who_when_what_and_its_result(world: World) -> None:
    assert world.command("replay", "redis:person", "--key", "7").returncode == 0
    done = world.command("replays", "--json")
    newest: dict[str, Any] = json.loads(done.stdout)[0]
    assert (newest["kind"], newest["view"], newest["state"]) == ("replay", "redis:person", "done")
    assert "7" in newest["what"]
    assert "@" in newest["operator"]
    assert newest["result"].startswith("1 entity: 1 written")
    assert newest["started_at"]
    assert newest["ended_at"]


def test_a_replay_that_was_stopped_goes_on_where_it_was(world: World) -> None:
    arguments = ("replay", "redis:card", "--where", "TRUE", "--yes", "--max-rows-per-second", "700")
    process = world.run.background(*arguments)

    def saved() -> bool:
        newest = json.loads(world.command("replays", "--json").stdout)[0]
        return newest["view"] == "redis:card" and newest["progress"].get("entities", 0) >= 2000

    wait_for("the first part is saved", saved)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "goes on where it was" in err
    done = world.command("replay", "redis:card", "--where", "TRUE", "--yes")
    assert done.returncode == 0
    newest = json.loads(world.command("replays", "--json").stdout)[0]
    assert (newest["state"], newest["progress"]["entities"]) == ("done", ROWS)
    assert f"{ROWS:,} entities" in done.stdout and f"{ROWS:,} written, 0 gone" in done.stdout


DAMAGED = (1, 700, 1600, 2900)  # apart enough to be written in different writes


def names(world: World, key: int) -> list[Any]:
    """What the stores show of the name, or the address, of one person."""
    ((email,),) = world.ask(f"SELECT email FROM {STORE}.by_email WHERE id = {key}")
    card = json.loads(world.redis.get(f"card:{key}"))  # type: ignore[arg-type]
    person = world.documents.get(index="viewtail-person", id=str(key))["_source"]
    return [email, world.redis.hget(f"person:{key}", "name"), card["n"], person["name"]]


def damage_everywhere(world: World, key: int) -> None:
    damage(world, key)
    found = world.documents.get(index="viewtail-person", id=str(key))
    content = {**found["_source"], "name": "damaged"}
    version = {"version": found["_version"], "version_type": "external_gte"}
    world.documents.index(index="viewtail-person", id=str(key), document=content, **version)  # type: ignore[arg-type]


def count_of(world: World) -> int:
    ((count,),) = world.ask(f"SELECT COUNT(*) FROM {STORE}.operator_run WHERE kind = 'replay'")
    return int(count)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("step", ["after rows", "after rewrite", "after rewrite:2", *RUN_STEPS])
def test_a_replay_that_was_killed_is_finished_by_the_same_command_and_shows_nothing_half_done(
    world: World, step: str
) -> None:
    right = {key: names(world, key) for key in DAMAGED}
    for key in DAMAGED:
        damage_everywhere(world, key)
    half = {key: [{now, was} for now, was in zip(names(world, key), right[key], strict=True)] for key in DAMAGED}
    before = count_of(world)
    arguments = [("replay", view, "--where", "TRUE", "--yes") for view in VIEWS]
    # At this pace the first of its saves comes behind the second of its batches.
    slowly = ("--max-rows-per-second", "700") if step == "after save" else ()
    killed = [world.run.background(*one, *slowly, VIEWTAIL_FAILPOINT=step) for one in arguments]
    for process in killed:
        process.communicate(timeout=60)
    assert [process.returncode for process in killed] == [-signal.SIGKILL] * len(VIEWS)
    for key in DAMAGED:
        assert all(now in either for now, either in zip(names(world, key), half[key], strict=True)), key
    told = json.loads(world.command("replays", "--json", "--limit", "4").stdout)
    assert {one["state"] for one in told} == {"stopped"}
    again = [world.run.background(*one) for one in arguments]
    for process in again:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert {key: names(world, key) for key in DAMAGED} == right
    told = json.loads(world.command("replays", "--json", "--limit", "4").stdout)
    assert ({one["state"] for one in told}, count_of(world)) == ({"done"}, before + len(VIEWS)), "they went on"


def test_a_replay_of_a_whole_view_that_was_killed_goes_on_and_readers_miss_nothing_meanwhile(world: World) -> None:
    views = [view for view in VIEWS if view != "redis:card"]
    right = names(world, 700)
    damage_everywhere(world, 2900)
    assert world.run.stop() == 0
    world.run.start(VIEWTAIL_FAILPOINT="after chunk:2", VIEWTAIL_RUN__CHUNK_ROWS="500")
    wait_for("all is well", world.run.is_well)
    deaths = world.run.log.count(DIED)
    assert world.command("replay", *views, "--yes").returncode == 0
    wait_for("each pipeline is killed in the midst", lambda: world.run.log.count(DIED) >= deaths + len(views), 60)
    assert names(world, 700) == right
    world.run.kill()
    world.run.start()
    unfilled = f"SELECT name FROM {STORE}.view WHERE state <> 'filled'"
    wait_for("they are filled", lambda: world.ask(unfilled) == [] and world.run.is_well(), 60)
    found = world.verify(*views)
    assert found["code"] == 0, found
    assert world.command("replay", "redis:card", "--key", "2900").returncode == 0
