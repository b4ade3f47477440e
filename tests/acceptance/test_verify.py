"""`viewtail verify` against real servers: planted damage is found and mended, lag is not taken for it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis
from elasticsearch import Elasticsearch

from stack import Server
from tests.support.running import Run, addresses, wait_for

SCHEMA, STORE = "verified", "verified_views"
TABLES = f"""
CREATE DATABASE {SCHEMA};
CREATE TABLE {SCHEMA}.user (
  id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  name VARCHAR(64) NOT NULL,
  email VARCHAR(100) NULL,
  visits INT NOT NULL DEFAULT 0,
  token VARBINARY(16) NOT NULL DEFAULT '',
  about JSON NULL,
  is_active BOOL NOT NULL DEFAULT TRUE
)
"""
ROWS = 3000
VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash, RedisJson, SearchIndex

user = Entity("{SCHEMA}.user")
views = [
    IndexTable("by_email", user, value="email"),
    IndexTable("by_active_name", user, value=["name", "visits"],
               where=lambda row: row["is_active"] // (row["name"] != "refused")),
    RedisHash("person", user, fields=["name", "email", "visits", "token"]),
    RedisJson("card", user, document=lambda row: {{
        "n": row["name"], "v": row["visits"] // (row["name"] != "refused"), "a": row["about"]}}),
    SearchIndex("person", user, fields={{"name": "keyword", "email": "keyword", "visits": "long"}}),
]
"""


class World:
    """Filled views, kept by a running viewtail."""

    def __init__(self, folder: Path, mysql: Server, redis_server: Server, search: Server) -> None:
        self.mysql, self.search = mysql, search
        self.redis = redis.Redis(port=redis_server.port)
        self.documents = Elasticsearch(search.url)
        environ = addresses(mysql, redis_server, search)
        environ["VIEWTAIL_MYSQL__URL"] = f"{mysql.url}/{STORE}"
        self.run = Run(folder, VIEWS, environ)

    def ask(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql, arguments or None)
            return list(cursor.fetchall())

    def insert(self, numbers: Iterable[int]) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {SCHEMA}.user VALUES (%s, %s, %s, %s, %s, %s, %s)",
                [
                    (
                        *(n, f"name {n}", f"u{n}@example.org" if n % 10 else None, n % 50),
                        *(n.to_bytes(8, "big"), json.dumps({"n": n, "x": n / 4}), n % 7 != 0),
                    )
                    for n in numbers
                ],
            )

    def connect(self) -> pymysql.Connection[Any]:
        return pymysql.connect(host=self.mysql.host, port=self.mysql.port, user="root", autocommit=True)

    def wait_until_filled(self) -> None:
        states = f"SELECT DISTINCT state FROM {STORE}.view"
        wait_for("all views are filled", lambda: self.ask(states) == [("filled",)] and self.run.is_well())

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = self.run.command(*arguments)
        assert "Traceback" not in done.stdout + done.stderr
        assert "a fault in viewtail" not in done.stderr, done.stderr
        return done

    def verify(self, *arguments: str) -> Any:
        done = self.command("verify", "--json", *arguments)
        assert done.stdout, done.stderr
        found = json.loads(done.stdout)
        found["code"] = done.returncode
        return found


@contextmanager
def made(folder: Path, mysql: Server, redis_server: Server, search: Server, **cleaner: str) -> Iterator[World]:
    """Tables and views, filled and kept; a cleaner runs where settings of it are given."""
    found = World(folder, mysql, redis_server, search)
    found.ask(f"DROP DATABASE IF EXISTS {SCHEMA}")
    found.ask(f"DROP DATABASE IF EXISTS {STORE}")
    for statement in TABLES.split(";\n"):
        found.ask(statement)
    found.insert(range(1, ROWS + 1))
    found.run.start(**({"VIEWTAIL_CLEANER__SHARE": "0.05", **cleaner} if cleaner else {}))
    try:
        found.wait_until_filled()
        yield found
    finally:
        found.run.stop()


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory,
    mysql_server: Server,
    redis_server: Server,
    elasticsearch_server: Server,
) -> Iterator[World]:
    with made(tmp_path_factory.mktemp("verified"), mysql_server, redis_server, elasticsearch_server) as found:
        yield found


def test_views_that_are_right_are_equal_and_proven_through_the_moment_of_the_pass(world: World) -> None:
    found = world.verify()
    assert found["code"] == 0, found
    assert found["failed"] == {}
    assert {one["view"]: (one["is_equal"], one["rows"]) for one in found["views"]} == dict.fromkeys(
        ("mysql:by_email", "mysql:by_active_name", "redis:person", "redis:card", "elasticsearch:person"), (True, 3000)
    )
    assert all(one["proven_through"] for one in found["views"])


def test_a_dry_run_of_a_repair_names_what_would_be_written_and_writes_nothing(world: World) -> None:
    world.ask(f"UPDATE {STORE}.by_email SET email = 'damaged' WHERE id = 201")
    world.ask(f"DELETE FROM {STORE}.by_email WHERE id = 202")
    world.redis.hset("person:203", "name", "damaged")
    world.redis.hset("person:90001", mapping={"_version": f"{5:019d}", "name": "nobody"})
    repairs = f"SELECT COUNT(*) FROM {STORE}.operator_run WHERE kind = 'repair'"
    before = world.ask(repairs)
    said = world.command("verify", "mysql:by_email", "redis:person", "--repair", "--dry-run")
    assert said.returncode == 1
    told = {tuple(line.split("\t")[:3]) for line in said.stdout.splitlines() if "would be written again" in line}
    assert told == {
        ("mysql:by_email", "201", "wrong"),
        ("mysql:by_email", "202", "missing"),
        ("redis:person", "203", "wrong"),
        ("redis:person", "90001", "extra"),
    }
    found = world.verify("mysql:by_email", "redis:person", "--repair", "--dry-run")
    assert found["code"] == 1 and {one["repaired"] for one in found["views"]} == {0}
    assert world.ask(f"SELECT id, email FROM {STORE}.by_email WHERE id IN (201, 202)") == [(201, "damaged")]
    assert world.redis.hget("person:203", "name") == b"damaged" and world.redis.exists("person:90001")
    assert world.ask(repairs) == before
    mended = world.command("verify", "mysql:by_email", "redis:person", "--repair")
    assert mended.returncode == 0 and mended.stdout.count("\trepaired\n") == 4
    assert world.ask(repairs) != before


def proven(world: World) -> set[str]:
    """The views that status says are proven through a moment, once all are filled."""
    world.wait_until_filled()
    told = json.loads(world.command("status", "--json").stdout)["pipelines"]
    return {view["name"] for pipeline in told for view in pipeline["views"] if view["proven_through"]}


def test_what_was_replayed_halted_or_lost_is_proven_no_more_until_a_pass_proves_it_again(world: World) -> None:
    assert world.verify()["code"] == 0
    views = {one for (one,) in world.ask(f"SELECT name FROM {STORE}.view")}
    assert proven(world) == views and len(views) == 5
    states = f"SELECT state FROM {STORE}.view WHERE name = "

    assert world.command("replay", "redis:card", "--yes", "--wait").returncode == 0
    assert proven(world) == views - {"redis:card"}

    world.ask(f"ALTER TABLE {SCHEMA}.user RENAME COLUMN token TO was_token")
    wait_for("it is halted", lambda: world.ask(f"{states} 'redis:person'") == [("halted",)])
    assert "redis:person" not in {one for (one,) in world.ask(f"SELECT name FROM {STORE}.view WHERE proven_at > 0")}
    world.ask(f"ALTER TABLE {SCHEMA}.user RENAME COLUMN was_token TO token")
    assert world.command("replay", "redis:person", "--yes").returncode == 0
    assert "redis:person" not in proven(world)

    assert world.verify()["code"] == 0 and proven(world) == views
    world.redis.flushall()
    wait_for("the loss is seen", lambda: world.ask(f"{states} 'redis:person' AND proven_at IS NULL"))
    assert proven(world) == {view for view in views if not view.startswith("redis:")}
    refills = [one for one in json.loads(world.command("replays", "--json").stdout) if one["kind"] == "refill"]
    assert {one["view"] for one in refills} >= {view for view in views if view.startswith("redis:")}
    assert {one["what"] for one in refills} == {"its store lost rows of it"}
    assert all(one["result"].startswith("backfilled again, ") for one in refills), refills
    assert world.verify()["code"] == 0 and proven(world) == views


def test_who_waits_for_a_replay_is_told_what_keeps_it(world: World) -> None:
    world.run.stop()
    replay = world.run.background("replay", "redis:card", "--yes", "--wait")
    try:
        wait_for("it says so", lambda: "; pipeline redis is down" in replay.errors_so_far(), timeout_s=30)
    finally:
        world.run.start()
    assert replay.wait(60) == 0
    assert world.verify("redis:card")["code"] == 0


def test_without_a_running_viewtail_what_changed_since_is_behind_and_the_rest_is_wrong(world: World) -> None:
    world.run.stop()
    try:
        world.ask(f"UPDATE {SCHEMA}.user SET email = CONCAT('late', email) WHERE id IN (101, 102)")
        world.ask(f"UPDATE {STORE}.by_email SET email = 'damaged' WHERE id = 103")
        found = world.verify("mysql:by_email")
        (one,) = found["views"]
        assert found["code"] == 1
        assert ([entity["key"] for entity in one["entities"]], one["behind"]) == (["103"], 2)
        assert one["stands_at"].startswith("binlog.")
        assert one["proven_through"] is None
        assert world.command("verify", "mysql:by_email", "--repair").returncode == 1
    finally:
        world.run.start()
    wait_for("the pipelines run again", lambda: world.command("status").returncode == 0)
    assert world.verify("mysql:by_email", "--repair")["code"] == 0


def test_what_changes_while_a_view_is_compared_that_nobody_runs_is_behind_too(world: World) -> None:
    """The application goes on while viewtail is down."""
    views = ("mysql:by_email", "redis:person", "elasticsearch:person")
    world.run.stop()
    try:
        slowly = ("--json", "--max-rows-per-second", "300")
        passes = [world.run.background("verify", view, *slowly, VIEWTAIL_RUN__CHUNK_ROWS="100") for view in views]
        wait_for("each has compared some", lambda: sorted(compared(world)) == sorted(views))
        world.ask(f"UPDATE {SCHEMA}.user SET email = CONCAT('late', email), name = 'late' WHERE id IN (2901, 2902)")
        world.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 2903")
        world.insert([3001])
        for view, one in zip(views, passes, strict=True):
            out, errors = one.communicate(timeout=60)
            (found,) = json.loads(out)["views"]
            assert (one.returncode, found["entities"], found["behind"]) == (0, [], 4), (view, out, errors)
    finally:
        world.run.start()
    wait_for("the pipelines run again", lambda: world.command("status").returncode == 0)
    world.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 3001")
    world.insert([2903])
    assert world.command("wait", "mysql:by_email").returncode == 0
    assert world.verify(*views)["code"] == 0


def test_a_view_whose_pipeline_is_paused_is_compared_as_it_stands(world: World) -> None:
    """An hourly `viewtail verify` must end, and go on to the next view."""
    assert world.command("pause", "--pipeline", "redis", "--reason", "maintenance").returncode == 0
    try:
        paused = f"SELECT 1 FROM {STORE}.pipeline_status WHERE state = 'paused'"
        wait_for("it is paused", lambda: world.ask(paused))
        world.ask(f"UPDATE {SCHEMA}.user SET name = 'later' WHERE id IN (301, 302)")
        world.redis.hset("person:303", "name", "damaged")
        found = world.verify("redis:person", "elasticsearch:person")
        one, other = found["views"]
        assert ([entity["key"] for entity in one["entities"]], one["behind"]) == (["303"], 2)
        assert one["stands_at"].startswith("binlog.") and one["proven_through"] is None
        assert other["is_equal"] and other["proven_through"]
        refused = world.command("verify", "redis:person", "--repair")
        assert refused.returncode == 1 and "To go on: viewtail resume --pipeline redis" in refused.stderr
    finally:
        assert world.command("resume", "--pipeline", "redis").returncode == 0
    wait_for("it goes on", lambda: not world.ask(paused) and world.run.is_well())
    mended = world.verify("redis:person", "--repair")
    assert mended["code"] == 0, mended


def test_a_pass_over_a_view_that_nobody_runs_ends_where_somebody_begins_to(world: World) -> None:
    view = "mysql:by_email"
    world.run.stop()
    try:
        world.ask(f"UPDATE {SCHEMA}.user SET email = CONCAT('later', email) WHERE id = 1")
        first = world.run.background("verify", view, "--max-rows-per-second", "300", VIEWTAIL_RUN__CHUNK_ROWS="100")
        wait_for("it has compared some", lambda: compared(world) == [view])
    finally:
        world.run.start()
    assert world.command("wait", view, "--within", "30").returncode == 0
    out, errors = first.communicate(timeout=60)
    assert (first.returncode, out) == (1, ""), out + errors
    assert "the pipeline of mysql:by_email was started or resumed meanwhile" in errors
    wait_for("the pipelines run again", lambda: world.command("status").returncode == 0)
    again = world.verify(view)
    assert (again["code"], again["views"][0]["rows"]) == (0, ROWS), "from the beginning"
    assert again["views"][0]["proven_through"]


def compared(world: World) -> list[str]:
    """Views of which a pass that goes on has compared some rows."""
    rows = world.ask(f"SELECT view, progress FROM {STORE}.operator_run WHERE kind = 'verify' AND state = 'running'")
    return [view for view, progress in rows if json.loads(progress)["counts"]["rows"]]


def test_a_row_that_never_came_into_the_view_because_it_was_refused_is_parked_and_not_equal(world: World) -> None:
    for view in ("mysql:by_active_name", "redis:card"):
        assert world.verify(view)["code"] == 0
        world.ask(f"INSERT INTO {SCHEMA}.user (id, name) VALUES (900001, 'refused')")
        wait_for("it is parked", lambda view=view: "900001" in world.command("dead-letters", "list", view).stdout)
        found = world.verify(view)
        (one,) = found["views"]
        assert (found["code"], one["parked_keys"], one["differing"]) == (1, ["900001"], {}), view
        world.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 900001")
        assert world.command("wait", view).returncode == 0
        assert world.verify(view)["code"] == 0


def test_a_sample_compares_about_its_share_and_says_what_it_leaves_out(world: World) -> None:
    done = world.command("verify", "redis:person", "--sample", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    compared = int(re.findall(r"no difference in a sample, ([\d,]+) rows compared", done.stdout)[0].replace(",", ""))
    assert 100 <= compared <= 1500, "600 of 3,000 by the mean; half of that or double it once in thousands of runs"
    assert compared % 100 == 0 and "was not looked for" in done.stdout
    assert "was not looked for" not in world.command("verify", "by_email", "--sample", "20").stdout


def newest(world: World, *kinds: str) -> Any:
    told = json.loads(world.command("replays", "--json", "--limit", "100").stdout)
    return next(one for one in told if one["kind"] in kinds)


def test_a_version_that_a_repair_lowers_is_named_with_both_in_what_it_says_and_in_the_record(world: World) -> None:
    above = 1 << 62
    keys = [key for key in range(201, 334) if key % 10]  # the others have no address
    world.ask(f"UPDATE {STORE}.by_email SET version = {above} WHERE id BETWEEN 201 AND 333 AND email IS NOT NULL")
    world.ask(f"UPDATE {STORE}.by_email SET email = 'damaged' WHERE id = 400")
    done = world.command("verify", "mysql:by_email", "--repair")
    assert done.returncode == 0, done.stdout + done.stderr
    now = dict(world.ask(f"SELECT id, version FROM {STORE}.by_email WHERE id BETWEEN 201 AND 333"))
    for key in keys:
        line = f"\trepaired, its version was lowered: {key} from {above} to {now[key]}\n"
        assert line in done.stdout and now[key] < above
    assert done.stdout.count("lowered") == len(keys) == 120
    progress = newest(world, "repair")["progress"]
    assert progress["lowered_count"] == len(keys)
    assert progress["lowered"] == [{"key": str(key), "from": str(above), "to": str(now[key])} for key in keys[:100]]
    shown = world.command("replays", "--limit", "1").stdout
    assert f"; 120 versions lowered: 201 from {above} to {now[201]}, " in shown and ", 115 more" in shown


def test_a_repair_that_is_killed_as_it_lowers_a_version_has_named_it(world: World) -> None:
    world.redis.hset("person:500", "_version", "9000000000000000000")
    killed = world.run.background("verify", "redis:person", "--repair", VIEWTAIL_FAILPOINT="after take away")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    one = newest(world, "repair")
    assert one["state"] == "stopped"
    (lowered,) = one["progress"]["lowered"]
    assert (lowered["key"], lowered["from"]) == ("500", "9000000000000000000")
    found = world.verify("redis:person", "--repair")
    assert found["code"] == 0, found
    one = newest(world, "repair")
    assert (one["state"], one["progress"]["lowered"]) == ("done", [lowered]), "the same run went on"
