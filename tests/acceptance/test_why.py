"""`viewtail why` and `viewtail wait` on real servers: each verdict and what mends it; your own writes read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack import Server
from tests.acceptance.test_verify import SCHEMA, STORE, World, made
from tests.support.running import clean_environment, wait_for

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


def test_a_version_of_one_entity_is_waited_for(world: World) -> None:
    shown = why(world, "redis:person", "35", code=0)["shown"]["version"]
    had = world.command("wait", "redis:person", "35", "--version", shown)
    assert had.returncode == 0 and had.stdout.startswith("redis:person: has it, after 0."), had.stderr
    pid = world.run.workers()["redis"]
    os.kill(pid, signal.SIGSTOP)
    try:
        world.ask(f"UPDATE {SCHEMA}.user SET name = 'awaited' WHERE id = 35")
        assert world.command("wait", "elasticsearch:person", "35").returncode == 0
        version = why(world, "elasticsearch:person", "35", code=0)["shown"]["version"]
        assert int(version) > int(shown)
        arguments = ("wait", "redis:person", "35", "--version", version)
        assert world.command(*arguments, "--within", "0.3").returncode == 1
        waiting = world.run.background(*arguments, "--within", "30")
    finally:
        os.kill(pid, signal.SIGCONT)
    said, errors = waiting.communicate(timeout=40)
    assert waiting.returncode == 0 and "has it" in said, errors
    assert world.redis.hget("person:35", "name") == b"awaited"


def test_a_program_reads_what_it_wrote(world: World) -> None:
    script = f"""
import pymysql, redis, viewtail
mysql = pymysql.connect(host={world.mysql.host!r}, port={world.mysql.port}, user="root", autocommit=True)
client = redis.Redis(port={world.redis.connection_pool.connection_kwargs["port"]})
for number in range(20):
    mysql.cursor().execute("UPDATE {SCHEMA}.user SET name = %s WHERE id = 25", (f"written {{number}}",))
    took_s = viewtail.wait_for("redis:person", 25)
    assert client.hget("person:25", "name") == b"written %d" % number, number
    assert took_s < 5
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
    assert "waited in vain" in done.stdout


def test_what_is_no_position_or_gtid_is_refused(world: World, tmp_path: Path) -> None:
    for given in (["--position", "nonsense"], ["--gtid", "nonsense"], ["--version", "3"]):
        done = world.command("wait", "mysql:by_email", *given)
        assert done.returncode == 2, done.stderr
        assert tmp_path.name not in done.stderr
