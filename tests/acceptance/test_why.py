"""`viewtail why` and `viewtail wait` on real servers: each verdict and what mends it; your own writes read."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingest import Part
from ingest.binlog.source import BinlogSource
from stack import Server
from tests.acceptance.test_verify import SCHEMA, STORE, World, made
from tests.support.copies import Shop, declared
from tests.support.running import Run, addresses, clean_environment, in_this_process, running, wait_for
from viewtail.commands.why import why as command
from viewtail.shards import one

VIEWS = ("mysql:by_email", "redis:person", "elasticsearch:person")


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory,
    mysql_server: Server,
    redis_server: Server,
    elasticsearch_server: Server,
) -> Iterator[World]:
    with made(tmp_path_factory.mktemp("explained"), mysql_server, redis_server, elasticsearch_server) as found:
        yield found


def why(world: World, view: str, key: str, *, code: int) -> Any:
    done = world.command("why", view, key, "--json")
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


@pytest.mark.parametrize("view", VIEWS)
def test_a_row_that_the_view_shows_is_current_and_its_last_change_is_named(world: World, view: str) -> None:
    world.ask(f"UPDATE {SCHEMA}.user SET email = CONCAT('new', email), name = CONCAT('new', name) WHERE id = 5")
    assert world.command("wait", view, "5").returncode == 0
    found = why(world, view, "5", code=0)
    assert (found["verdict"], found["next"], found["parked"]) == ("current", None, None)
    change = found["last_change"]
    assert change is not None, (found["last_change_note"], found["shown"], found["pipeline"])
    assert change["op"] == "update"
    assert change["file"].startswith("binlog.")
    assert change["gtid"]
    assert change["version"] == found["shown"]["version"]
    text = world.command("why", view, "5").stdout
    assert "CURRENT" in text
    assert len(text.splitlines()) < 20


@pytest.mark.parametrize("view", VIEWS)
def test_a_row_that_is_gone_is_rightly_absent_and_its_tombstone_is_named(world: World, view: str) -> None:
    world.insert([10_001])
    world.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 10001")
    assert world.command("wait", view).returncode == 0
    found = why(world, view, "10001", code=0)
    assert (found["verdict"], found["row"]["is_there"]) == ("rightly absent", False)
    assert found["shown"]["is_tombstone"]
    assert found["last_change"]["op"] == "delete"
    assert why(world, view, "77777777", code=0)["shown"] is None


def test_a_row_that_where_keeps_out_is_told_as_that(world: World) -> None:
    assert why(world, "mysql:by_active_name", "7", code=0)["verdict"] == "kept out by where"


def test_a_damaged_row_is_wrong_and_the_command_that_it_names_mends_it(world: World) -> None:
    world.ask(f"UPDATE {STORE}.by_email SET email = 'damaged' WHERE id = 9")
    found = why(world, "mysql:by_email", "9", code=1)
    assert found["verdict"] == "wrong"
    assert world.command(*found["next"].split()[1:]).returncode == 0
    assert why(world, "mysql:by_email", "9", code=0)["verdict"] == "current"
    world.ask(f"UPDATE {STORE}.by_email SET email = 'damaged', version = 9000000000000000000 WHERE id = 9")
    found = why(world, "mysql:by_email", "9", code=1)
    assert found["next"] == "viewtail verify mysql:by_email --repair"
    assert world.command(*found["next"].split()[1:]).returncode == 0
    assert why(world, "mysql:by_email", "9", code=0)["verdict"] == "current"


def test_a_key_that_another_programs_value_keeps_out_is_parked_and_a_repair_mends_it(world: World) -> None:
    world.redis.set("person:45", "another program's")
    world.ask(f"UPDATE {SCHEMA}.user SET name = 'kept out' WHERE id = 45")
    wait_for("it is parked", lambda: why(world, "redis:person", "45", code=1)["verdict"] == "parked")
    found = why(world, "redis:person", "45", code=1)
    assert "holds something that viewtail did not write" in found["why"], found["why"]
    assert world.command("replay", "redis:person", "--key", "45").returncode == 1, "the guard refuses it again"
    assert found["next"] == "viewtail verify redis:person --repair"
    assert world.command(*found["next"].split()[1:]).returncode == 0
    assert why(world, "redis:person", "45", code=0)["verdict"] == "current"
    assert world.redis.hget("person:45", "name") == b"kept out"


def test_the_last_change_of_a_row_that_the_view_lost_is_found_in_older_binlogs(world: World) -> None:
    world.insert([10_002])
    assert world.command("wait", "mysql:by_email").returncode == 0
    world.ask("FLUSH BINARY LOGS")
    world.ask("FLUSH BINARY LOGS")
    world.ask(f"DELETE FROM {STORE}.by_email WHERE id = 10002")
    found = why(world, "mysql:by_email", "10002", code=1)
    change = found["last_change"]
    assert (found["verdict"], found["shown"]) == ("wrong", None)
    assert change is not None and change["op"] == "insert" and change["gtid"], found["last_change_note"]
    assert found["row"] == {"is_there": True, "version": change["version"], "changed_at": change["committed_at"]}
    assert world.command(*found["next"].split()[1:]).returncode == 0
    found = why(world, "mysql:by_email", "10002", code=0)
    assert found["last_change"] == change
    assert found["last_change_note"] == "the view has it from a backfill"


def test_a_look_through_the_binlog_says_how_far_it_went(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note = why(world, "mysql:by_email", "77777777", code=0)["last_change_note"]
    stretch = r"no change in the last [0-9,]+ MiB of the binlog, since 20[-0-9]+ [:.0-9]+ UTC"
    assert re.match(f"{stretch}, which is all that the source has", note)
    world.ask("FLUSH BINARY LOGS")
    in_this_process(world.run, monkeypatch)

    def told() -> str:
        assert command(one(None), "mysql:by_email", "77777777", as_json=True) == 0
        return str(json.loads(capsys.readouterr().out)["last_change_note"])

    monkeypatch.setattr("viewtail.operations.why.READ_BYTES", 0)
    assert re.fullmatch(f"{stretch}; what is older was not looked at", told())
    monkeypatch.setattr("viewtail.operations.why.READ_BYTES", 1 << 30)
    monkeypatch.setattr("viewtail.operations.why.READ_FOR_S", 0.0)
    place = r"binlog\.\d+:\d+"
    assert re.fullmatch(
        f"{stretch}; what is behind {place}, up to {place}, was not looked at: reading took 0 s", told()
    )


def test_what_was_found_before_older_binlogs_were_purged_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.insert([10_003])
    world.ask("FLUSH BINARY LOGS")
    world.ask(f"UPDATE {SCHEMA}.user SET email = 'later' WHERE id = 10003")
    assert world.command("wait", "mysql:by_email", "10003").returncode == 0
    wait_for("every pipeline is past the older binlogs", world.run.is_well)
    world.ask(f"UPDATE {STORE}.by_email SET version = 1 WHERE id = 10003")  # the change of that one is looked for
    newest_first = BinlogSource.newest_first

    def purged_meanwhile(source: BinlogSource) -> Iterator[Part]:
        parts = newest_first(source)
        yield (newest := next(parts))
        world.ask("PURGE BINARY LOGS TO %s", str(newest.begin).partition(":")[0])
        yield from parts

    monkeypatch.setattr(BinlogSource, "newest_first", purged_meanwhile)
    in_this_process(world.run, monkeypatch)
    command(one(None), "mysql:by_email", "10003", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["last_change"] is not None and found["last_change"]["op"] == "update"
    assert "what is older was not looked at: " in found["last_change_note"]


@pytest.mark.mysql
def test_the_last_change_of_a_view_with_a_version_column_is_named(mysql_server: Server, tmp_path: Path) -> None:
    shop = Shop(mysql_server, 10)
    views = declared("mysql").replace('Entity("shop.user")', 'Entity("shop.user", version="n")')
    with running(tmp_path, views, addresses(mysql_server)) as run:
        wait_for("all is well", run.is_well)
        shop.execute("UPDATE shop.user SET email = 'changed', n = 3 WHERE id = 5")
        assert run.command("wait", "people", "5").returncode == 0
        done = run.command("why", "people", "5", "--json")
        found = json.loads(done.stdout)
        change = found["last_change"]
        assert done.returncode == 0 and change["op"] == "update" and change["gtid"], found["last_change_note"]
        assert found["row"] == {"is_there": True, "version": "6", "changed_at": change["committed_at"]}
        assert found["last_change_note"] is None


def test_a_row_that_the_pipeline_has_not_come_to_is_behind_and_waiting_for_it_ends_in_time(world: World) -> None:
    pid = world.run.workers()["redis"]
    os.kill(pid, signal.SIGSTOP)
    try:
        world.ask(f"UPDATE {SCHEMA}.user SET name = 'later' WHERE id = 15")
        found = why(world, "redis:person", "15", code=1)
        assert found["verdict"] == "behind"
        late = world.command("wait", "redis:person", "15", "--within", "1")
        assert late.returncode == 1
        assert "redis" in late.stderr
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for("it is current", lambda: world.command("why", "redis:person", "15").returncode == 0)


def test_between_two_attempts_of_a_halted_pipeline_it_is_halted_and_not_down(world: World) -> None:
    assert world.run.stop() == 0
    try:
        world.ask(
            f"UPDATE {STORE}.pipeline_status s JOIN {STORE}.pipeline p ON p.id = s.pipeline_id "
            "SET s.state = 'halted', s.error = 'a reason', s.updated_at = CURRENT_TIMESTAMP(6) WHERE p.name = 'mysql'"
        )
        world.ask(f"UPDATE {SCHEMA}.user SET email = 'meanwhile' WHERE id = 26")
        found = why(world, "mysql:by_email", "26", code=1)
        assert (found["verdict"], found["pipeline"]["state"]) == ("behind", "halted")
        assert "(halted)" in found["why"] and found["next"] == "viewtail status"
        world.ask(f"UPDATE {STORE}.pipeline_status SET updated_at = updated_at - INTERVAL 1 MINUTE")
        assert why(world, "mysql:by_email", "26", code=1)["next"] == "viewtail run"
    finally:
        world.run.start()
    wait_for("the pipelines run again", world.run.is_well)


def test_a_version_of_one_entity_is_waited_for(world: World) -> None:
    shown = why(world, "redis:person", "35", code=0)["shown"]["version"]
    had = world.command("wait", "redis:person", "35", "--version", shown)
    assert had.returncode == 0 and had.stdout.startswith("redis:person: has it, after "), had.stderr
    pid = world.run.workers()["redis"]
    os.kill(pid, signal.SIGSTOP)
    try:
        world.ask(f"UPDATE {SCHEMA}.user SET name = 'awaited' WHERE id = 35")
        assert world.command("wait", "elasticsearch:person", "35").returncode == 0
        version = why(world, "elasticsearch:person", "35", code=0)["shown"]["version"]
        assert int(version) > int(shown)
        arguments = ("wait", "redis:person", "35", "--version", version)
        assert world.command(*arguments, "--within", "0.3").returncode == 1
        waiting = world.run.background(*arguments, "--within", "60")
    finally:
        os.kill(pid, signal.SIGCONT)
    said, errors = waiting.communicate(timeout=90)
    assert waiting.returncode == 0 and "has it" in said, errors
    assert world.redis.hget("person:35", "name") == b"awaited"


def test_a_program_reads_what_it_wrote(world: World) -> None:
    script = f"""
import pymysql, redis, viewtail
mysql = pymysql.connect(host={world.mysql.host!r}, port={world.mysql.port}, user="root", autocommit=True)
client = redis.Redis(port={world.redis.connection_pool.connection_kwargs["port"]})
for number in range(20):
    mysql.cursor().execute("UPDATE {SCHEMA}.user SET name = %s WHERE id = 25", (f"written {{number}}",))
    took_s = viewtail.wait_for("redis:person", 25, within_s=60)
    assert client.hget("person:25", "name") == b"written %d" % number, number
    assert took_s < 20
cursor = mysql.cursor()
cursor.execute("SHOW BINARY LOG STATUS")
file, position, *_ = cursor.fetchone()
viewtail.wait_for("elasticsearch:person", position=f"{{file}}:{{position}}")
cursor.execute("SELECT @@GLOBAL.gtid_executed")
viewtail.wait_for("mysql:by_email", gtid=cursor.fetchone()[0])
try:
    viewtail.wait_for("mysql:by_email", gtid="3E11FA47-71CA-11E1-9E33-C80AA9429562:1", within_s=0.3)
except viewtail.WaitedTooLongError as error:
    print(error)
"""
    environment = {**clean_environment(), **world.run._environment}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=world.run.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "the source has not executed the GTID 3E11FA47-71CA-11E1-9E33-C80AA9429562:1" in done.stdout


def test_what_will_not_come_is_named_when_the_time_is_over(world: World) -> None:
    version = "9" * 18
    for given, said in (
        (["--position", "binlog.999999:4"], "the source has no place binlog.999999:4"),
        (["5", "--version", version], f"view redis:person has no version {version} of 5: its pipeline is behind, or"),
    ):
        done = world.command("wait", "redis:person", *given, "--within", "0.3")
        assert (done.returncode, done.stdout) == (1, "") and said in done.stderr, done.stderr
    at_once = world.command("wait", "redis:person", "--position", "binlog.000001:4", "--gtid", "x")
    assert at_once.returncode == 2 and "a position and a GTID: wait for one of them" in at_once.stderr


def test_who_waits_for_a_paused_pipeline_is_told_how_to_resume_it(world: World) -> None:
    assert world.command("pause", "--pipeline", "redis").returncode == 0
    try:

        def is_told() -> bool:
            return "viewtail resume --pipeline redis" in world.command("wait", "redis:person", "--within", "0.5").stderr

        wait_for("it stands still", is_told)
    finally:
        assert world.command("resume", "--pipeline", "redis").returncode == 0
    wait_for("it goes on", world.run.is_well)


@pytest.mark.mysql
def test_a_view_is_waited_for_that_no_viewtail_has_begun_with_yet(mysql_server: Server, tmp_path: Path) -> None:
    Shop(mysql_server, 10)
    run = Run(tmp_path, declared("mysql"), addresses(mysql_server))
    early = run.command("wait", "people", "--within", "0.3")
    assert early.returncode == 1 and "no viewtail has begun with it. No viewtail that keeps it runs. " in early.stderr
    waiting = run.background("wait", "people", "--within", "60")
    try:
        run.start()
        said, errors = waiting.communicate(timeout=90)
        assert waiting.returncode == 0 and "people: has it" in said, errors
    finally:
        run.kill()


def test_what_is_no_position_or_gtid_is_refused(world: World, tmp_path: Path) -> None:
    for given in (["--position", "nonsense"], ["--gtid", "nonsense"], ["--version", "3"]):
        done = world.command("wait", "mysql:by_email", *given)
        assert done.returncode == 2, done.stderr
        assert tmp_path.name not in done.stderr
