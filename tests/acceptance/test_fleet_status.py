"""`viewtail status` and the metrics of a fleet: who is there, who owns what, who was fenced, and what waits."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pymysql
import pytest
import redis
from confluent_kafka.admin import AdminClient

from stack import Server
from stack.server import free_port
from tests.support.running import Run, wait_for

SCHEMA, DATABASE = "fleet", "fleet_views"
VIEWS = f"""
from viewtail import Entity, RedisHash, Topic

user = Entity("{SCHEMA}.user")
views = [Topic("{SCHEMA}.user", user, partitions=2), RedisHash("{SCHEMA}", user, fields=["name"])]
"""

pytestmark = [pytest.mark.kafka, pytest.mark.mysql]


class Fleet:
    """Processes in folders of their own."""

    def __init__(self, mysql: Server, redis: Server, kafka: Server, folder: Path, runs: ExitStack) -> None:
        self._mysql, self._kafka = mysql, kafka
        self._folder, self._runs = folder, runs
        self._settings = {
            "VIEWTAIL_MYSQL__URL": f"{mysql.url}/{DATABASE}",
            "VIEWTAIL_REDIS__URL": redis.url,
            "VIEWTAIL_KAFKA__URL": kafka.url,
        }
        self.ports: dict[str, int] = {}
        self.query(
            f"DROP DATABASE IF EXISTS {SCHEMA}", f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {SCHEMA}"
        )
        self.query(f"CREATE TABLE {SCHEMA}.user (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(60))")
        self.insert(20)

    def query(self, *statements: str) -> None:
        session = pymysql.connect(host="127.0.0.1", port=self._mysql.port, user="root", autocommit=True)
        with closing(session), session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def insert(self, count: int) -> None:
        self.query(*[f"INSERT INTO {SCHEMA}.user (name) VALUES ('{'n' * 20}')"] * count)

    def start(self, name: str, role: str) -> Run:
        run = self.process(name, from_kafka=role == "project")
        run.start("--role", role)
        return run

    def process(self, name: str, *, from_kafka: bool) -> Run:
        """Not started yet."""
        source = self._kafka.url if from_kafka else self._mysql.url
        self.ports[name] = free_port()
        environment = {"VIEWTAIL_SOURCE__URL": source, "VIEWTAIL_METRICS__PORT": str(self.ports[name])}
        (self._folder / name).mkdir()
        run = Run(self._folder / name, VIEWS, {**self._settings, **environment})
        self._runs.callback(run.kill)
        return run

    def metrics(self, name: str) -> dict[str, float]:
        """By name and label; no proxy is asked."""
        url = f"http://127.0.0.1:{self.ports[name]}/metrics"
        with build_opener(ProxyHandler({})).open(url, timeout=5) as answer:
            found = re.findall(r'^(viewtail_\w+)\{pipeline="([^"]*)"\} (\S+)$', answer.read().decode(), re.MULTILINE)
        return {f"{metric} {pipeline}": float(value) for metric, pipeline, value in found}


@pytest.fixture
def fleet(mysql_server: Server, redis_server: Server, harmed_kafka: Server, tmp_path: Path) -> Iterator[Fleet]:
    with redis.Redis(port=redis_server.port) as client:  # witnesses of the deployment that another test had
        client.delete("none", *client.scan_iter(f"viewtail:{DATABASE}:*"))
    with ExitStack() as runs:
        yield Fleet(mysql_server, redis_server, harmed_kafka, tmp_path, runs)


def status(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.command("status", "--json").stdout)
    return found


def states(run: Run, store: str) -> list[str]:
    return sorted(one["state"] for one in status(run)["members"] if one["store"] == store)


def owners(run: Run) -> dict[str, str]:
    """By partition of the topic, as status has it."""
    return {one["name"]: one["owner"] for one in status(run)["pipelines"] if one["name"].endswith(".redis")}


def pid_of(process: str) -> int:
    return int(process.rpartition(":")[2])


def test_status_says_that_a_topic_was_deleted_and_made_anew_and_what_to_do(fleet: Fleet, harmed_kafka: Server) -> None:
    fleet.start("tailer", "tail")
    projector = fleet.start("one", "project")
    wait_for("all is well", projector.is_well, 60)
    admin = AdminClient({"bootstrap.servers": f"{harmed_kafka.host}:{harmed_kafka.port}"})
    for future in admin.delete_topics([f"{SCHEMA}.user"]).values():
        future.result(10)

    def reasons() -> list[str]:
        fleet.insert(1)  # the tailer notices when it publishes
        found = [str(one["error"]) for one in status(projector)["pipelines"] if one["name"].endswith(".redis")]
        assert all("made anew" in reason for reason in found), found
        return found

    for reason in wait_for("both partitions say it", reasons, 60):
        assert re.search(rf"the topic {SCHEMA}.user was deleted and made anew .*id was \S+ and is \S+\)", reason)
        assert "viewtail replay --new-history" in reason and "another server" not in reason
    assert projector.stop() == 0
    assert projector.command("replay", "--new-history").returncode == 0
    projector.start("--role", "project")
    wait_for("all is well again", projector.is_well, 60)


def test_status_shows_who_is_there_who_owns_what_and_who_was_fenced(fleet: Fleet, harmed_kafka: Server) -> None:  # noqa: PLR0915
    tailers = [fleet.start("tailer", "tail"), fleet.start("second", "tail")]
    names = ("one", "two", "three")
    projectors = dict(zip(names, [fleet.start(name, "project") for name in names], strict=True))
    asked = projectors["one"]
    wait_for("one tailer stands by", lambda: states(asked, "kafka") == ["running", "standby"], 60)
    wait_for("so does one projector", lambda: states(asked, "redis") == ["running", "running", "standby"], 60)
    wait_for("all is well", asked.is_well, 60)
    assert len(set(owners(asked).values())) == 2
    told = asked.command("status").stdout
    assert len(told.splitlines()) < 24 and "standby" in told and "tailer" in told and " since " in told, told
    wait_for("members are counted", lambda: fleet.metrics("one")["viewtail_members redis"] == 3)
    wait_for("tailers too", lambda: fleet.metrics("tailer")["viewtail_members kafka"] == 2)
    assert sum(fleet.metrics(name)["viewtail_partitions_owned redis"] for name in names) == 2
    assert sum(fleet.metrics(name)["viewtail_rebalances_total redis"] >= 1 for name in names) >= 2

    # One hangs: the others have its partition, and it does not know.
    stopped = owners(asked)[f"{SCHEMA}.user.0.redis"]
    zombie = next(name for name, run in projectors.items() if run.workers()["redis"] == pid_of(stopped))
    other = next(run for name, run in projectors.items() if name != zombie)
    os.kill(pid_of(stopped), signal.SIGSTOP)
    try:
        fenced = wait_for("it is fenced", lambda: status(other)["fenced"])
        assert [one["taken_from"] for one in fenced] == [stopped]
        wait_for("MySQL has ended its session", lambda: [one["is_silent"] for one in status(other)["fenced"]] == [True])
        assert stopped not in owners(other).values()
        told = other.command("status").stdout
        assert re.search(f"{stopped} is silent: {fenced[0]['process']} took pipeline", told), told
        wait_for("it counts as silent", lambda: "silent" in states(other, "redis"))
        wait_for("one took over", lambda: sum(_taken(fleet, name) for name in names if name != zombie) == 1)
    finally:
        os.kill(pid_of(stopped), signal.SIGCONT)
    wait_for("it sees it", lambda: not status(other)["fenced"])
    assert status(other)["last_takeover"]["taken_from"] == stopped
    wait_for("and says so", lambda: fleet.metrics(zombie)["viewtail_fenced_total redis"] >= 1)
    wait_for("it is a member again", lambda: states(other, "redis") == ["running", "running", "standby"])

    # A tailer is killed.
    (killed,) = (
        one["name"] for one in status(other)["members"] if (one["store"], one["state"]) == ("kafka", "running")
    )
    next(run for run in tailers if run.workers()["kafka"] == pid_of(killed)).kill()
    wait_for("the other one took over", lambda: status(other)["last_takeover"]["taken_from"] == killed)
    assert f"took pipeline kafka from {killed}" in other.command("status").stdout

    # Nobody reads.
    for run in projectors.values():
        assert run.stop() == 0
    fleet.insert(30)
    wait_for("what waits is counted", lambda: sum(one["waiting"] or 0 for one in status(asked)["pipelines"]) >= 30)
    assert all(one["lag_s"] > 0 for one in status(asked)["pipelines"] if one["waiting"] and one["state"] == "down")
    wait_for("they have left", lambda: states(asked, "redis") == [])

    # Nor does the broker answer.
    harmed_kafka.pause()
    try:
        began = time.monotonic()
        found = asked.command("status")
        assert time.monotonic() - began < 6
        assert "the source does not say what waits in it" in found.stdout
        assert f"{SCHEMA}.user.0.redis" in found.stdout and "tailer" in found.stdout
    finally:
        harmed_kafka.resume()


def test_a_view_is_kept_from_kafka_or_from_the_binlog_and_status_shows_the_one_that_keeps_it(fleet: Fleet) -> None:
    fleet.start("tailer", "tail")
    from_kafka, from_binlog = fleet.start("one", "project"), fleet.process("other", from_kafka=False)
    wait_for("all is well", from_kafka.is_filled, 60)
    from_binlog.start("--role", "project")
    said = f"view redis:{SCHEMA} is kept from Kafka by pipeline {SCHEMA}.user."
    wait_for("it halts", lambda: said in from_binlog.log)
    assert "Set it to kafka://" in from_binlog.log
    assert "redis" not in {one["name"] for one in status(from_binlog)["pipelines"]}

    assert from_kafka.stop() == 0
    wait_for("the view has moved over", from_binlog.is_filled, 60)
    assert {one["name"] for one in status(from_binlog)["pipelines"]} == {"kafka", "redis"}
    from_kafka.start("--role", "project")
    said = f"view redis:{SCHEMA} is kept from the binlog by pipeline redis"
    wait_for("both partitions halt", lambda: from_kafka.log.count(said) >= 2)

    assert from_binlog.stop() == 0
    wait_for("it has moved back", from_kafka.is_filled, 60)
    assert "redis" not in {one["name"] for one in status(from_kafka)["pipelines"]}
    assert from_kafka.stop() == 0
    down = {one["name"]: one["state"] for one in status(from_binlog)["pipelines"] if one["name"] != "kafka"}
    assert down == {f"{SCHEMA}.user.{number}.redis": "down" for number in (0, 1)}, "those that kept it last"


def test_projectors_that_wait_for_the_broker_are_not_called_stopped(fleet: Fleet, harmed_kafka: Server) -> None:
    fleet.start("tailer", "tail")
    run = fleet.start("one", "project")
    wait_for("all is well", run.is_well, 60)

    def all_given_up() -> bool:
        of_redis = [one for one in status(run)["pipelines"] if one["name"].endswith(".redis")]
        return bool(of_redis) and all("its process gave it up" in (one["error"] or "") for one in of_redis)

    harmed_kafka.pause()
    try:
        wait_for("it gave its partitions up", all_given_up, 60)
        assert states(run, "redis") == ["standby"]
        assert "was stopped" not in run.command("status").stdout
    finally:
        harmed_kafka.resume()
    wait_for("all is well again", run.is_well, 60)


def _taken(fleet: Fleet, name: str) -> float:
    return fleet.metrics(name)["viewtail_takeovers_total redis"]


def test_how_many_messages_wait_for_a_partition_is_a_metric(fleet: Fleet) -> None:
    fleet.start("tailer", "tail")
    run = fleet.start("one", "project")
    wait_for("all is well", run.is_well, 60)
    lags = [f"viewtail_lag_messages {SCHEMA}.user.{number}.redis" for number in (0, 1)]
    wait_for("both are known", lambda: {*lags} <= fleet.metrics("one").keys())
    wait_for("nothing waits but the end of a transaction", lambda: all(fleet.metrics("one")[lag] <= 1 for lag in lags))
