"""The cleaner of a running viewtail: damage is mended in seconds where the entity changed, else in a round."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from stack import Server
from tests.acceptance.test_verify import SCHEMA, STORE, World, made
from tests.support.running import wait_for

HASTY = {"VIEWTAIL_CLEANER__SHARE": "0.2", "VIEWTAIL_CLEANER__REST_S": "1"}  # a round takes a second or two


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory,
    mysql_server: Server,
    redis_server: Server,
    elasticsearch_server: Server,
) -> Iterator[World]:
    servers = (mysql_server, redis_server, elasticsearch_server)
    with made(tmp_path_factory.mktemp("cleaned"), *servers, **HASTY) as found:
        yield found


def shown(world: World, key: int) -> list[bytes | str | None]:
    """The name of one person as the stores show it."""
    (row,) = world.ask(f"SELECT name FROM {STORE}.by_active_name WHERE id = {key}") or [(None,)]
    found = world.documents.get(index="viewtail-person", id=str(key))["_source"]
    return [row[0], world.redis.hget(f"person:{key}", "name"), found.get("name")]  # type: ignore[list-item]


def damage(world: World, key: int) -> None:
    world.ask(f"UPDATE {STORE}.by_active_name SET name = 'damaged' WHERE id = {key}")
    world.redis.hset(f"person:{key}", "name", "damaged")
    version = world.documents.get(index="viewtail-person", id=str(key))["_version"]
    world.documents.index(
        index="viewtail-person", id=str(key), document={"name": "damaged"}, version=version, version_type="external_gte"
    )


def records(world: World, kind: str) -> list[dict[str, Any]]:
    found = json.loads(world.command("replays", "--json", "--limit", "1000").stdout)
    return [one for one in found if one["kind"] == kind]


def lowered(world: World, kind: str) -> list[dict[str, Any]]:
    return [named for one in records(world, kind) for named in one["progress"].get("lowered", [])]


def test_what_changed_in_the_last_minute_is_right_again_within_seconds(world: World) -> None:
    world.ask(f"UPDATE {SCHEMA}.user SET name = 'changed' WHERE id = 8")
    wait_for("the views have it", lambda: shown(world, 8) == ["changed", b"changed", "changed"])
    time.sleep(1)  # another change may be under way no more
    damage(world, 8)
    began = time.monotonic()
    wait_for("it is right again", lambda: shown(world, 8) == ["changed", b"changed", "changed"], timeout_s=20)
    assert time.monotonic() - began < 10, "5 s on a machine that has nothing else to do"
    assert "the cleaner wrote entities again" in world.run.log


def test_all_else_is_right_again_after_a_round(world: World) -> None:
    damage(world, 9)
    world.ask(f"DELETE FROM {STORE}.by_active_name WHERE id = 10")
    world.redis.delete("person:10")
    with suppress(Exception):
        world.documents.delete(index="viewtail-person", id="10")
    wait_for("it is right again", lambda: shown(world, 9) == ["name 9", b"name 9", "name 9"])
    wait_for("so is this", lambda: shown(world, 10)[:2] == ["name 10", b"name 10"])


def test_a_round_proves_the_views(world: World) -> None:
    ((before,),) = world.ask("SELECT CURRENT_TIMESTAMP(6)")
    wait_for(
        "each view is proven through a moment since",
        lambda: (
            [row for row in world.ask(f"SELECT proven_at FROM {STORE}.view") if row[0] is None or row[0] < before] == []
        ),
    )


def test_a_version_above_all_is_replaced_by_the_cleaner_too(world: World) -> None:
    world.ask(f"UPDATE {STORE}.by_active_name SET name = 'damaged', version = 9000000000000000000 WHERE id = 16")
    world.redis.hset("person:16", mapping={"_version": "9000000000000000000", "name": "damaged"})
    wait_for("it is right again", lambda: shown(world, 16)[:2] == ["name 16", b"name 16"])
    assert {(one["key"], one["from"]) for one in lowered(world, "clean")} == {("16", "9000000000000000000")}


def test_what_is_mended_a_moment_after_it_changed_is_counted_up_in_the_record(world: World) -> None:
    world.ask(f"UPDATE {SCHEMA}.user SET name = 'counted' WHERE id = 12")
    wait_for("the views have it", lambda: shown(world, 12) == ["counted", b"counted", "counted"])

    def count() -> int:
        return sum(one["progress"]["entities"] for one in records(world, "mend") if one["view"] == "redis:person")

    def is_counted(before: int) -> bool:
        """A round may have come first; then once more."""
        version = world.redis.hget("person:12", "_version")
        world.ask(f"UPDATE {SCHEMA}.user SET email = CONCAT('x', email) WHERE id = 12")
        wait_for("it changed", lambda: world.redis.hget("person:12", "_version") != version)
        world.redis.hset("person:12", mapping={"_version": "9000000000000000000", "name": "damaged"})
        wait_for("it is right again", lambda: world.redis.hget("person:12", "name") == b"counted")
        return count() > before

    for _ in range(2):
        wait_for("it was mended as it changed", lambda before=count(): is_counted(before))  # type: ignore[misc]
    mended = [one for one in records(world, "mend") if one["view"] == "redis:person"]
    assert len(mended) == 1, "of one hour"
    assert mended[0]["state"] == "done" and "entities written again: " in mended[0]["result"]
    assert sum(mended[0]["progress"]["differing"].values()) == mended[0]["progress"]["entities"] >= 2
    assert {(one["key"], one["from"]) for one in lowered(world, "mend")} == {("12", "9000000000000000000")}


def test_the_cleaner_waits_while_its_pipeline_lags_and_those_of_other_pipelines_go_on(world: World) -> None:
    def lag_s() -> float:
        told = json.loads(world.command("status", "--json").stdout)["pipelines"]
        return next(float(one["lag_s"]) for one in told if one["name"] == "mysql")

    def newest(where: str) -> int:
        ((found,),) = world.ask(f"SELECT MAX(id) FROM {STORE}.operator_run WHERE kind = 'clean' AND {where}")
        return found or 0

    with world.connect() as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT * FROM {STORE}.by_active_name WHERE id = 20 FOR UPDATE")
        world.ask(f"UPDATE {SCHEMA}.user SET name = 'held up' WHERE id = 20")
        wait_for("the pipeline is behind", lambda: lag_s() > 3)
        damage(world, 22)
        ours, theirs = newest("view LIKE 'mysql:%'"), newest("view = 'redis:person'")
        done = "view = 'redis:person' AND state = 'done'"
        wait_for("a whole round of another pipeline goes by", lambda: newest(done) > theirs)
        assert shown(world, 22)[:2] == ["damaged", b"name 22"]
        assert newest("view LIKE 'mysql:%'") == ours, "none begins"
        cursor.execute("ROLLBACK")
    wait_for("it has caught up", lambda: shown(world, 20)[0] == "held up")
    wait_for("it is right again", lambda: shown(world, 22)[0] == "name 22")


def test_a_document_that_is_no_json_any_more_is_still_the_views_own(world: World) -> None:
    """Its version is where the guard reads it, so what comes for it is written, and not parked."""
    right = world.redis.get("card:19"), world.redis.get("card:20"), world.redis.get("card:21")
    world.redis.append("card:19", "damaged")
    world.redis.append("card:20", ', "more": 1}')
    world.redis.set("card:21", right[2][:32])  # type: ignore[index]

    def shown() -> list[bytes | None]:
        return [text and text[33:] for text in (world.redis.get(f"card:{key}") for key in (19, 20, 21))]  # type: ignore[index,misc]

    wait_for("they are right again", lambda: shown() == [text[33:] for text in right])  # type: ignore[index]


def test_what_another_program_put_under_a_views_key_stays_until_a_repair_is_asked_for(world: World) -> None:
    world.redis.delete("person:17", "card:17")
    world.redis.set("person:17", "another's")
    world.redis.hset("card:17", mapping={"theirs": "too"})
    world.redis.hset("person:18", "name", "damaged")
    wait_for("a round has gone by", lambda: shown(world, 18)[1] == b"name 18")
    letters = f"SELECT name FROM {STORE}.dead_letter JOIN {STORE}.view ON view.id = view_id WHERE rendered_key = '17'"
    wait_for("a round parks it", lambda: {name for (name,) in world.ask(letters)} == {"redis:card", "redis:person"})
    world.ask(f"UPDATE {SCHEMA}.user SET name = 'changed' WHERE id = 17")
    wait_for("it stays parked", lambda: {name for (name,) in world.ask(letters)} == {"redis:card", "redis:person"})
    wait_for("rounds have seen it", lambda: world.run.log.count("the cleaner left entities as they are") > 3)
    assert world.redis.get("person:17") == b"another's"
    assert world.redis.hgetall("card:17") == {b"theirs": b"too"}
    done = world.run.command("verify", "redis:person", "card", "--repair")
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown(world, 17)[1] == b"changed" and world.redis.type("card:17") == b"string"
