"""`viewtail replay VIEW --since TIME --into TOPIC`: a stretch of the binlog in a topic of its own, each change once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

import stack.kafka
import stack.mariadb
import stack.mysql
from stack import Server
from tests.support import binlog_truth, topic_log
from tests.support.asking import ask
from tests.support.running import Run, addresses, clean_environment, running, wait_for
from tests.support.topic_log import Told
from tests.support.topic_world import TopicWorld, TopicWriters

SCHEMA = "stretch"
VIEWS = f"""
from viewtail import Entity, Topic
views = [Topic("{SCHEMA}.user", Entity("{SCHEMA}.user"), partitions=2)]
"""
pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def forget(kafka: Server, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": f"{kafka.host}:{kafka.port}"})
    there = [topic for topic in topics if topic in admin.list_topics(timeout=10).topics]
    for future in (admin.delete_topics(there) if there else {}).values():
        future.result(10)


def now(server: Server) -> str:
    """As the server has it; a change that is committed later has a later time."""
    (((moment,),),) = (ask(server, "SELECT DATE_FORMAT(UTC_TIMESTAMP(6), '%Y-%m-%dT%H:%i:%s.%f')"),)
    return str(moment)


def started(run: Run, environment: dict[str, str], failpoint: str, *arguments: str) -> subprocess.Popen[str]:
    """The command in a process of its own, with small batches."""
    whole = {**clean_environment(), **environment, "VIEWTAIL_FAILPOINT": failpoint, "VIEWTAIL_RUN__BATCH_ROWS": "1"}
    argv = [sys.executable, "-m", "viewtail.main", *arguments]
    return subprocess.Popen(argv, cwd=run.folder, env=whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Ctrl-C in the midst of a batch: the exit code, and what it says."""
    stat = Path(f"/proc/{process.pid}/stat")
    wait_for("it comes to its commit", lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=30)
    return process.returncode, out


def recorded(run: Run) -> list[dict[str, Any]]:
    """What `viewtail replays` says of replays."""
    found = json.loads(run.command("replays", "--json").stdout)
    return [one for one in found if one["kind"] == "replay"]


def differing(found: list[Any], expected: list[Any]) -> list[Any]:
    """Some of what is in one of the two, or not as often."""
    one, other = Counter(map(str, found)), Counter(map(str, expected))
    return [*((one - other) + (other - one)).elements()][:5]


def changes_of(messages: list[Told]) -> list[tuple[Any, ...]]:
    """What was told, without where it lies; deletes and their tombstones too."""
    return [(one.partition, one.key, one.version, one.op, one.before, one.after, one.source) for one in messages]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """A MySQL with a short history, and a broker: a pipeline that is killed in a commit hides what others publish."""
    mysql, kafka = stack.mysql.start(tmp_path / "mysql"), stack.kafka.start(tmp_path / "kafka")
    yield mysql, kafka
    kafka.kill()
    mysql.kill()


@pytest.mark.mysql
def test_a_stretch_is_published_once_and_in_order_over_kills_and_beside_the_live_topic(  # noqa: PLR0915
    servers: tuple[Server, Server], tmp_path: Path
) -> None:
    mysql_server, kafka_server = servers
    world, into = TopicWorld(mysql_server, kafka_server, "stretch_world"), "stretch_world.since"
    world.drop()
    forget(kafka_server, into, *(f"stretch_world.{name}" for name in ("user", "even", "pair")))
    world.make(2000)
    with running(tmp_path, world.views, world.environment) as run:
        wait_for("the pipeline knows where it begins", world.is_taken)
        wait_for("the views are filled", world.is_filled, 60)
        world.mark_begin()
        with TopicWriters(world, 6) as writers:
            wait_for("something came before", lambda: writers.committed > 100)
        # Reading begins up to a batch before the time, where this world's tables were only being made.
        ask(mysql_server, "FLUSH BINARY LOGS")
        flushed = now(mysql_server)
        wait_for("the next second", lambda: now(mysql_server)[:19] > flushed[:19])
        since, begin = now(mysql_server), binlog_truth.end_of(mysql_server)
        replay = ("replay", "kafka:stretch_world.user", "--since", since, "--into", into)
        # They rest, or a busy machine's replay, which must read all that they commit, may never catch up.
        with TopicWriters(world, 7, rest_s=0.01) as writers:
            wait_for("something comes", lambda: writers.committed > 200)
            ask(mysql_server, "FLUSH BINARY LOGS")
            for at in range(50):  # a batch is a quarter of a mebibyte of these, or less
                first = at % 10 * 200
                ask(mysql_server, f"UPDATE stretch_world.user SET n = n + 1 WHERE id BETWEEN {first} AND {first + 199}")
            wait_for("more comes", lambda: writers.committed > 400)
            least = binlog_truth.place(binlog_truth.end_of(mysql_server))
            for step in ("before commit:1", "after commit:1", "before commit:1"):
                process = started(run, world.environment, step, *replay)
                said = process.communicate(timeout=60)
                assert process.returncode == -signal.SIGKILL, said
            code, out = interrupted(started(run, world.environment, "before commit:1:SIGSTOP", *replay))
            assert code == 130 and "The same command goes on behind them" in out, out
            assert [one["state"] for one in recorded(run)] == ["stopped"], "they were one replay"
            done = run.command(*replay, timeout_s=200)  # it has all that the writers committed since
        assert done.returncode == 0, done.stderr
        messages = world.log("since")
        count = sum(one.op != "" for one in messages)
        assert f"{into}: holds {count:,} changes of kafka:stretch" in done.stdout
        (one,) = recorded(run)
        assert (one["view"], one["state"], one["progress"]["entities"]) == ("kafka:stretch_world.user", "done", count)
        assert one["what"].startswith("changed since ") and one["what"].endswith(f", into the topic {into}")
        assert one["result"].startswith(f"{count:,} changes published, 0 refused, up to ")
        ends = max(one.place for one in messages)
        truth = binlog_truth.Truth(mysql_server, world.name, begin).changes("user", lambda row: row[:1])
        told = [(one.place, one.key, one.op, one.after) for one in messages if one.op]
        assert differing(told, [(one.place, one.key, one.op, one.after) for one in truth if one.place <= ends]) == []
        assert not [one for one in truth if ends < one.place <= least], "all that was committed when it began is there"
        assert topic_log.faults_of_order(messages) == []
        wait_for("every topic gives its table", world.is_folded)
        first = min(one.version for one in messages)
        last = max(one.version for one in messages)
        live = [one for one in world.log("user") if first <= one.version <= last and one.op != "r"]
        assert differing(changes_of(messages), changes_of(live)) == []
        again = run.command(*replay)
        assert (again.returncode, again.stdout) == (0, done.stdout)
        other = run.command("replay", "kafka:stretch_world.user", "--since", now(mysql_server), "--into", into)
        assert other.returncode == 2 and "holds another replay already" in other.stderr, other.stderr
        own = run.command(*replay[:-1], "stretch_world.pair")
        assert own.returncode == 2 and "a replay never touches one" in own.stderr, own.stderr
        assert len(world.log("since")) == len(messages)
        assert world.faults() == []
        assert run.stop() == 0
    world.drop()
    forget(kafka_server, into)


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def by_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A MySQL without GTIDs, or a MariaDB."""
    if request.param == "mysql":
        server = stack.mysql.start(tmp_path / "server", options=["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"])
    else:
        server = stack.mariadb.start(tmp_path / "server")
    yield server
    server.kill()


@contextmanager
def kept(server: Server, kafka: Server, folder: Path) -> Iterator[Run]:
    """A running viewtail over one table."""
    forget(kafka, f"{SCHEMA}.user", f"{SCHEMA}.since", f"{SCHEMA}.gone")
    ask(server, f"CREATE DATABASE {SCHEMA}")
    ask(server, f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, email VARCHAR(60), n INT NOT NULL)")
    environment = {
        **addresses(server),
        "VIEWTAIL_KAFKA__URL": kafka.url,
        "VIEWTAIL_MYSQL__URL": f"{server.url}/viewtail_{server.port}",
    }
    folder.mkdir()
    with running(folder, VIEWS, environment) as run:
        wait_for("the topic is filled", run.is_well, 60)
        yield run
        assert run.stop() == 0


def test_a_stretch_is_found_by_its_time_without_gtids_and_refused_where_it_is_gone(
    by_place: Server, kafka_server: Server, tmp_path: Path
) -> None:
    def execute(*statements: str) -> None:
        for statement in statements:
            ask(by_place, statement.format(f"{SCHEMA}.user"))

    with kept(by_place, kafka_server, tmp_path / "run") as run:
        execute("INSERT INTO {} VALUES (1, 'early', 0), (2, 'early', 0)", "FLUSH BINARY LOGS")
        second = ask(by_place, "SELECT UNIX_TIMESTAMP()")
        wait_for(
            "a second passes, which is all that MariaDB tells",
            lambda: ask(by_place, "SELECT UNIX_TIMESTAMP()") > second,
        )
        since = now(by_place)[:19]
        execute("UPDATE {} SET n = 1 WHERE id = 1", "FLUSH BINARY LOGS", "DELETE FROM {} WHERE id = 2")
        execute("UPDATE {} SET id = 3 WHERE id = 1", "FLUSH BINARY LOGS", "INSERT INTO {} VALUES (4, NULL, 0)")
        replay = ("replay", f"{SCHEMA}.user", "--since", since, "--into")
        done = run.command(*replay, f"{SCHEMA}.since")
        assert done.returncode == 0 and "holds 5 changes" in done.stdout, done.stdout + done.stderr
        told = sorted(topic_log.told(kafka_server, f"{SCHEMA}.since"), key=lambda one: (one.version, one.key))
        assert [(one.key[0], one.op) for one in told] == [
            (1, "u"), (2, "d"), (2, ""), (1, "d"), (1, ""), (3, "c"), (4, "c"),
        ]  # fmt: skip
        (newest, *_), *_ = ask(by_place, "SHOW BINARY LOGS")[::-1]
        wait_for("the live topic has read all", lambda: _is_told(kafka_server, 4))
        execute(f"PURGE BINARY LOGS TO '{newest}'")
        gone = run.command(*replay, f"{SCHEMA}.gone")
        assert gone.returncode == 1, gone.stdout
        assert "history gone: the oldest binlog" in gone.stderr and newest in gone.stderr, gone.stderr
        listed = AdminClient({"bootstrap.servers": f"{kafka_server.host}:{kafka_server.port}"}).list_topics(timeout=10)
        assert f"{SCHEMA}.gone" not in listed.topics, "nothing was made"


def _is_told(kafka: Server, key: int) -> bool:
    return any(one.key == (key,) for one in topic_log.told(kafka, f"{SCHEMA}.user"))
