"""/livez and /readyz of a real `viewtail run`: they change with it and come back, and nobody who asks can harm it."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import pymysql
import pytest
import redis

import stack.mysql
import stack.redis
from stack import Server
from stack.server import free_port
from tests.support.running import Run, addresses, wait_for
from viewtail import metrics

VIEWS = """
from viewtail import Entity, IndexTable, RedisHash

user = Entity("shop.user")
pet = Entity("shop.pet")
views = [
    IndexTable("user_by_email", user, value="email"),
    IndexTable("pet_by_name", pet, value="name"),
    RedisHash("user", user, fields=["email"]),
]
"""
TABLES = (
    "DROP DATABASE IF EXISTS viewtail",
    "DROP DATABASE IF EXISTS shop",
    "CREATE DATABASE shop",
    "CREATE TABLE shop.user (id INT PRIMARY KEY, email VARCHAR(100))",
    "CREATE TABLE shop.pet (id INT PRIMARY KEY, name VARCHAR(100))",
    "INSERT INTO shop.user VALUES (1, 'ada@example.org'), (2, 'grace@example.org')",
    "INSERT INTO shop.pet VALUES (1, 'Rex')",
)
SHOWS_WITHIN_S = 10

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]


class Probed:
    """Servers, a folder, and what a kubelet and Prometheus see of runs there."""

    def __init__(self, mysql: Server, redis: Server, folder: Path, runs: ExitStack) -> None:
        self.mysql, self.redis = mysql, redis
        self._folder, self._runs = folder, runs
        if mysql.is_running():
            self.sql(*TABLES)

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        session = pymysql.connect(host=self.mysql.host, port=self.mysql.port, user="root", autocommit=True)
        with closing(session), session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def start(self, name: str = "one", **settings: str) -> Watched:
        folder, port = self._folder / name, free_port()
        folder.mkdir()
        addressed = {**addresses(self.mysql, self.redis), "VIEWTAIL_METRICS__PORT": str(port)}
        run = Run(folder, VIEWS, {**addressed, **settings})
        self._runs.callback(run.kill)
        run.start()
        return Watched(run, port)


class Watched:
    """One run, and its probes."""

    def __init__(self, run: Run, port: int) -> None:
        self.run, self.port = run, port

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def probe(self, path: str) -> tuple[int, dict[str, Any]]:
        code, body = self.ask(path)
        return code, json.loads(body)

    def until_ready(self, timeout_s: float = 40) -> None:
        wait_for("it is ready", lambda: self.probe("/readyz")[0] == 200, timeout_s)

    def until_filled(self) -> None:
        self.until_ready()
        wait_for("nothing is filling", lambda: not self.probe("/readyz")[1]["filling"], 40)

    def until_down(self, pipeline: str, states: tuple[str, ...], timeout_s: float = SHOWS_WITHIN_S) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            code, body = self.probe("/readyz")
            down: list[dict[str, Any]] = body["down"]
            ours = [one for one in down if one.get("pipeline") == pipeline and one["state"] in states]
            return ours[0] if code == 503 and ours else None

        seen = wait_for(f"{pipeline} is down", found, timeout_s)
        assert seen is not None
        return seen


@pytest.fixture(scope="module")
def own_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = stack.mysql.start(tmp_path_factory.mktemp("mysql"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = stack.redis.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def probed(own_mysql: Server, own_redis: Server, tmp_path: Path) -> Iterator[Probed]:
    own_mysql.start()
    own_redis.start()
    with ExitStack() as runs:
        yield Probed(own_mysql, own_redis, tmp_path, runs)


def test_a_run_that_waits_for_its_servers_lives_and_is_not_ready(probed: Probed) -> None:
    probed.mysql.stop()
    one = probed.start()
    code, body = wait_for("it answers", lambda: one.probe("/livez"))
    assert code == 200 and "waiting for servers" in body["state"]
    code, body = one.probe("/readyz")
    assert code == 503 and [down["state"] for down in body["down"]] == ["starting"]
    for mistyped in ("/readyzz", "/healthz", "/metrics/x"):
        assert one.ask(mistyped) == (404, "there are /metrics, /livez, /readyz\n")
    probed.mysql.start()
    one.until_filled()
    assert one.run.stop() == 0


def test_a_run_that_waits_for_its_servers_ends_at_once_when_it_is_told_to(probed: Probed) -> None:
    probed.mysql.stop()
    one = probed.start()
    wait_for("it answers", lambda: one.probe("/livez"))
    assert one.run.stop(5) == 0


def test_readyz_names_a_killed_worker_and_comes_back(probed: Probed) -> None:
    one = probed.start()
    one.until_filled()
    assert one.run.kill_worker("redis")
    one.until_down("redis", ("restarting", "starting"))
    assert one.probe("/livez")[0] == 200
    one.until_ready()
    assert 'viewtail_process_deaths_total{pipeline="redis"} 1.0' in one.ask("/metrics")[1]


def test_readyz_names_a_worker_that_hangs(probed: Probed) -> None:
    one = probed.start()
    one.until_filled()
    pid = one.run.workers()["redis"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "reports nothing" in one.until_down("redis", ("silent",), 15)["error"]
    finally:
        os.kill(pid, signal.SIGCONT)
    one.until_ready()


def test_readyz_names_a_store_that_is_away_and_comes_back_with_it(probed: Probed) -> None:
    one = probed.start()
    one.until_filled()
    probed.redis.stop()
    probed.sql("UPDATE shop.user SET email = 'a@example.org' WHERE id = 1")
    assert "Redis" in one.until_down("redis", ("retrying",))["error"]
    assert [down["pipeline"] for down in one.probe("/readyz")[1]["down"]] == ["redis"]
    probed.redis.start()
    one.until_ready()


def test_status_says_within_seconds_how_far_behind_a_store_that_hangs_is(probed: Probed) -> None:
    """Nothing is written meanwhile, so that by its writes alone the pipeline would be idle."""
    one = probed.start()
    one.until_filled()
    probed.redis.pause()
    try:
        probed.sql("UPDATE shop.user SET email = 'b@example.org' WHERE id = 1")

        def lag_s() -> float:
            pipelines = json.loads(one.run.command("status", "--json").stdout)["pipelines"]
            return next(float(found["lag_s"]) for found in pipelines if found["name"] == "redis")

        wait_for("the lag is reported", lambda: lag_s() > 1, 30)
        wait_for("it is reported again", lambda: lag_s() > 6, 30)
    finally:
        probed.redis.resume()
    wait_for("it is made up for", lambda: lag_s() == 0)


def test_lag_is_the_age_of_the_change_that_waits_however_old_what_was_read_before_it_is(probed: Probed) -> None:
    """Since the offset was saved only viewtail's own tables changed: a store that refuses has that read again too."""
    one = probed.start()
    one.until_filled()
    probed.sql("UPDATE shop.user SET email = 'b@example.org' WHERE id = 1")
    with closing(redis.Redis(port=probed.redis.port, decode_responses=True)) as client:
        wait_for("it is in Redis", lambda: client.hget("user:1", "email") == "b@example.org")
        probed.sql("UPDATE viewtail.pipeline_owner SET name = name, taken_at = NOW(6)")
        quiet_since = time.monotonic()
        wait_for("it was quiet", lambda: time.monotonic() - quiet_since > 6)
        client.config_set("maxmemory", 1)
        changed_at = time.monotonic()
        probed.sql("UPDATE shop.user SET email = 'c@example.org' WHERE id = 1")

        def lag_s() -> float:
            pipelines = json.loads(one.run.command("status", "--json").stdout)["pipelines"]
            return next(float(found["lag_s"]) for found in pipelines if found["name"] == "redis")

        found = 0.0
        while found <= 2:  # a report is some seconds old
            found, age_s = lag_s(), time.monotonic() - changed_at
            assert found < age_s + 0.5 and age_s < 20, f"the change is {age_s:.1f} s old, and the lag {found:.1f} s"
        client.config_set("maxmemory", 0)
        wait_for("it is made up for", lambda: client.hget("user:1", "email") == "c@example.org" and lag_s() == 0)


def test_what_the_cleaner_repairs_is_counted(probed: Probed) -> None:
    one = probed.start(VIEWTAIL_CLEANER__SHARE="0.05", VIEWTAIL_CLEANER__REST_S="1")
    one.until_filled()
    count = 'viewtail_cleaner_repairs_total{pipeline="mysql"} '
    assert f"{count}0.0" in one.ask("/metrics")[1]
    probed.sql("UPDATE viewtail.pet_by_name SET name = 'Max'")
    wait_for("it is repaired", lambda: f"{count}1.0" in one.ask("/metrics")[1])
    assert probed.sql("SELECT name FROM viewtail.pet_by_name") == [("Rex",)]


def test_a_halted_view_shows_within_ten_seconds_and_is_gone_after_its_replay(probed: Probed) -> None:
    one = probed.start()
    one.until_filled()
    proven = 'viewtail_view_proven_timestamp_seconds{pipeline="mysql",view="mysql:pet_by_name"} '
    assert proven not in one.ask("/metrics")[1]
    assert one.run.command("verify", "pet_by_name").returncode == 0
    wait_for("the moment through which it is proven", lambda: proven in one.ask("/metrics")[1])
    probed.sql("ALTER TABLE shop.pet DROP COLUMN name")
    began = time.monotonic()

    def is_halted() -> bool:
        code, body = one.probe("/readyz")
        return code == 503 and body["halted"] == [{"view": "mysql:pet_by_name", "pipeline": "mysql"}]

    wait_for("it is named", is_halted, SHOWS_WITHIN_S)
    assert time.monotonic() - began < SHOWS_WITHIN_S
    sample = 'viewtail_view_state{pipeline="mysql",state="halted",view="mysql:pet_by_name"} 1.0'
    assert sample in one.ask("/metrics")[1]
    wait_for("nothing is proven of it", lambda: proven not in one.ask("/metrics")[1])
    probed.sql("ALTER TABLE shop.pet ADD COLUMN name VARCHAR(100)")
    assert one.run.command("replay", "--yes", "pet_by_name").returncode == 0
    one.until_ready()
    filled = sample.replace("1.0", "0.0")
    wait_for("its metric says so", lambda: filled in one.ask("/metrics")[1])


def test_a_view_that_was_halted_before_the_start_keeps_it_from_being_ready(probed: Probed) -> None:
    one = probed.start()
    one.until_filled()
    probed.sql("ALTER TABLE shop.pet DROP COLUMN name")
    wait_for("it is halted", lambda: one.probe("/readyz")[1]["halted"])
    assert one.run.stop() == 0
    two = probed.start("two")
    wait_for("the others run", lambda: two.probe("/readyz")[1]["down"] == [], 40)
    code, body = two.probe("/readyz")
    assert code == 503 and [halted["view"] for halted in body["halted"]] == ["mysql:pet_by_name"]


def test_a_run_that_stands_by_is_ready_and_says_so(probed: Probed) -> None:
    one = probed.start()
    one.until_filled()
    two = probed.start("two")
    wait_for("it stands by", lambda: two.probe("/readyz")[1]["standby"] == ["mysql", "redis"], 40)
    assert two.probe("/readyz")[0] == 200
    one.run.kill()
    wait_for("it has taken over", lambda: two.probe("/readyz")[1]["standby"] == [])
    two.until_ready()


def test_nobody_who_asks_can_hold_the_run_up(probed: Probed) -> None:
    one = probed.start()
    one.until_filled()
    with ExitStack() as connections:
        for number in range(3 * metrics.MOST_CONNECTIONS):
            silent = connections.enter_context(socket.create_connection(("127.0.0.1", one.port), 5))
            # Some say nothing, some begin a request and never end it, some are no HTTP, some never read the answer.
            silent.sendall(
                (b"", b"GET /readyz HTTP/1.1\r\nX: ", b"\x00\xff" * 500, b"GET /metrics HTTP/1.0\r\n\r\n")[number % 4]
            )
            if number % 8 == 0:
                assert one.probe("/readyz")[0] == 200
        assert one.probe("/livez")[0] == 200
        assert one.run.process is not None
        threads = len(os.listdir(f"/proc/{one.run.process.pid}/task"))
        assert threads < 2 * metrics.MOST_CONNECTIONS
    probed.sql("INSERT INTO shop.pet VALUES (7, 'Leo')")
    wait_for("it goes on", lambda: (7,) in probed.sql("SELECT id FROM viewtail.pet_by_name WHERE name = 'Leo'"))
    assert "Traceback" not in one.run.log
    assert one.run.stop() == 0


def test_a_run_that_is_told_to_end_is_not_ready_any_more(probed: Probed) -> None:
    one = probed.start()
    one.until_filled()
    pid = one.run.workers()["redis"]
    os.kill(pid, signal.SIGSTOP)  # so that the end takes a while
    try:
        assert one.run.process is not None
        one.run.process.terminate()
        wait_for("it says so", lambda: one.probe("/readyz")[1]["down"][0] == {"state": "stopping"})
        assert one.probe("/readyz")[0] == 503 and one.probe("/livez")[0] == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    assert one.run.process.wait(60) == 0
