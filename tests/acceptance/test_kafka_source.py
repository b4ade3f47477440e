"""Through Kafka: a tailer publishes a table, and processes that share its partitions keep views equal to the table."""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from stack import Server
from tests.support.running import Run, wait_for
from tests.support.topic_log import faults_of_order, told

SCHEMA, DATABASE = "through_kafka", "through_kafka_views"
VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash, Topic

user, typed = Entity("{SCHEMA}.user"), Entity("{SCHEMA}.typed")
views = [
    Topic("{SCHEMA}.user", user, partitions=4),
    IndexTable("user_by_email", user, value="email"),
    RedisHash("{SCHEMA}", user, fields=["email", "visits"]),
    Topic("{SCHEMA}.typed", typed, partitions=2),
    RedisHash("{SCHEMA}_typed", typed, fields=%s),
]
"""
TYPES = {
    "number": ("BIGINT UNSIGNED", ["18446744073709551615", "0"]),
    "bits": ("BIT(40)", ["b'1000000000000000000000000000000000000001'", "b'0'"]),
    "exact": ("DECIMAL(40,10)", ["-123456789012345678901234567890.0123456789", "0"]),
    "single": ("FLOAT", ["1.1", "-3e38"]),
    "wide": ("DOUBLE", ["1e308", "0.1"]),
    "text": ("VARCHAR(40) CHARACTER SET utf16", ["'\"%€😀'", "''"]),
    "bytes": ("VARBINARY(40)", ["X'00FF10'", "X''"]),
    "padded": ("BINARY(4)", ["X'01'", "X'00'"]),
    "day": ("DATE", ["'0000-00-00'", "'9999-12-31'"]),
    "clock": ("TIME(6)", ["'-838:59:58.999999'", "'25:00:00'"]),
    "moment": ("DATETIME(6)", ["'0000-00-00 00:00:00'", "'1000-01-01 00:00:00'"]),
    "stamp": ("TIMESTAMP(3) NULL", ["'2038-01-19 03:14:07.999'", "'1970-01-01 00:00:01'"]),
    "choice": ("ENUM('a','b,c')", ["'b,c'", "'a'"]),
    "choices": ("SET('x','y','z')", ["'x,z'", "''"]),
    "document": ("JSON", ["""'{"b": 1.0, "a": [null, "é"]}'""", "'null'"]),
    "age": ("YEAR", ["0", "2155"]),
}
VIEWS %= list(TYPES)


@dataclass
class Fleet:
    """The servers, and the processes over them."""

    mysql: Server
    redis: Server
    kafka: Server
    folder: Path
    runs: ExitStack

    def tailer(self) -> Run:
        return self._run("tailer", "tail", self.mysql.url)

    def projector(self, name: str) -> Run:
        return self._run(name, "project", self.kafka.url)

    def _run(self, name: str, role: str, source: str) -> Run:
        folder = self.folder / name
        folder.mkdir()
        run = Run(
            folder,
            VIEWS,
            {
                "VIEWTAIL_SOURCE__URL": source,
                "VIEWTAIL_MYSQL__URL": f"{self.mysql.url}/{DATABASE}",
                "VIEWTAIL_REDIS__URL": self.redis.url,
                "VIEWTAIL_KAFKA__URL": self.kafka.url,
                "VIEWTAIL_METRICS__PORT": "0",
            }
            if role == "tail"
            else {
                "VIEWTAIL_SOURCE__URL": source,
                "VIEWTAIL_MYSQL__URL": f"{self.mysql.url}/{DATABASE}",
                "VIEWTAIL_REDIS__URL": self.redis.url,
                "VIEWTAIL_METRICS__PORT": "0",
            },
        )
        run.start("--role", role)
        self.runs.callback(run.kill)
        return run

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def connect(self) -> pymysql.Connection[Any]:
        mode = "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'"  # values that strict servers have too, from earlier days
        address = {"host": "127.0.0.1", "port": self.mysql.port, "user": "root"}
        return pymysql.connect(**address, autocommit=True, init_command=mode)  # type: ignore[arg-type]

    def table(self) -> dict[int, tuple[str, int]]:
        return {row[0]: (row[1], row[2]) for row in self.query(f"SELECT id, email, visits FROM {SCHEMA}.user")}

    def index_table(self) -> dict[int, str]:
        return dict(self.query(f"SELECT id, email FROM {DATABASE}.user_by_email WHERE email IS NOT NULL"))  # type: ignore[arg-type]

    def hashes(self) -> dict[int, tuple[str, int]]:
        client = redis.Redis(port=self.redis.port)
        names = [name for name in client.scan_iter(f"{SCHEMA}:*", 1000) if not name.endswith(b":t")]
        pipe = client.pipeline(transaction=False)
        for name in names:
            pipe.hmget(name, "email", "visits")
        return {
            int(name.rpartition(b":")[2]): (email.decode(), int(visits))
            for name, (email, visits) in zip(names, pipe.execute(), strict=True)
            if email is not None
        }

    def typed(self) -> dict[int, dict[bytes, bytes]]:
        """What the hashes show, but for their versions."""
        client = redis.Redis(port=self.redis.port)
        names = client.scan_iter(f"{SCHEMA}_typed:*")
        found: dict[int, dict[bytes, bytes]] = {int(name.rpartition(b":")[2]): client.hgetall(name) for name in names}
        return {key: {name: value for name, value in row.items() if name != b"_version"} for key, row in found.items()}

    def are_equal(self) -> bool:
        table = self.table()
        assert self.index_table() == {key: email for key, (email, _) in table.items()}
        assert self.hashes() == table
        return True


class Writer:
    """Changes rows until it is stopped."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        rng = random.Random(5)
        with closing(self._fleet.connect()) as connection, connection.cursor() as cursor:
            number = 0
            while not self._stop.wait(0.002):
                number += 1
                key = rng.randrange(2000)
                if number % 7 == 0:
                    cursor.execute(f"DELETE FROM {SCHEMA}.user WHERE id = %s", (key,))
                elif number % 97 == 0:
                    cursor.execute(
                        f"UPDATE IGNORE {SCHEMA}.user SET id = id + 10000 WHERE id BETWEEN %s AND %s", (key, key + 3)
                    )
                else:
                    cursor.execute(
                        f"INSERT INTO {SCHEMA}.user VALUES (%s, %s, 1) "
                        "ON DUPLICATE KEY UPDATE email = VALUES(email), visits = visits + 1",
                        (key, f"{number}@example.org"),
                    )

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def fleet(mysql_server: Server, redis_server: Server, kafka_server: Server, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as runs:
        made = Fleet(mysql_server, redis_server, kafka_server, tmp_path, runs)
        made.query(f"DROP DATABASE IF EXISTS {SCHEMA}")
        made.query(f"DROP DATABASE IF EXISTS {DATABASE}")
        made.query(f"CREATE DATABASE {SCHEMA}")
        made.query(f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, email VARCHAR(60) NOT NULL, visits INT NOT NULL)")
        made.query(
            f"CREATE TABLE {SCHEMA}.typed (id INT PRIMARY KEY, "
            f"{', '.join(f'{name} {declared}' for name, (declared, _) in TYPES.items())})"
        )
        for key in range(3):
            values = [values[key] if key < 2 else "NULL" for _, values in TYPES.values()]
            made.query(f"INSERT INTO {SCHEMA}.typed VALUES ({key}, {', '.join(values)})")
        rows = ", ".join(f"({key}, '{key}@example.org', 0)" for key in range(1500))
        made.query(f"INSERT INTO {SCHEMA}.user VALUES {rows}")
        yield made


def partitions_of(run: Run, store: str) -> set[str]:
    """Those that the process of a store has, as its log tells."""
    owned: set[str] = set()
    for line in run.log.splitlines():
        told = json.loads(line)
        if told.get("pipeline") == store and "partitions" in told:
            change = owned.update if told["event"] == "partitions taken" else owned.difference_update
            change(told["partitions"])
    return owned


def test_views_equal_their_table_while_members_come_and_go(fleet: Fleet) -> None:
    tailer = fleet.tailer()
    one = fleet.projector("one")
    two = fleet.projector("two")
    writer = Writer(fleet)
    try:
        both = [(run, store) for run in (one, two) for store in ("mysql", "redis")]
        wait_for("both are members", lambda: all(partitions_of(*member) for member in both), 90)
        wait_for("all views are filled", one.is_filled, 90)
        fleet.query(f"INSERT INTO {SCHEMA}.typed SELECT id + 10, {', '.join(TYPES)} FROM {SCHEMA}.typed")
        wait_for("rows come through the topic", lambda: len(fleet.typed()) == 6)
        checked = one.command("check")
        assert checked.returncode == 0 and f"topic {SCHEMA}.user: 4 partitions" in checked.stdout, checked.stdout
        two.kill()
        wait_for(
            "the other one has all", lambda: [len(partitions_of(one, s)) for s in ("mysql", "redis")] == [4, 6], 10
        )
        three = fleet.projector("three")
        wait_for("a new one takes its share", lambda: all(partitions_of(three, s) for s in ("mysql", "redis")), 60)
    except BaseException:
        for run in (tailer, one, two):
            print(run.folder.name, run.log[-3000:])
        raise
    finally:
        writer.stop()
    wait_for("views equal their table", fleet.are_equal)
    typed = fleet.typed()
    assert {key: typed[key] for key in range(3)} == {key: typed[key + 10] for key in range(3)}, "of any type"
    assert len(typed[0]) == len(typed[1]) == len(TYPES) and not typed[2]
    wait_for("all is well", one.is_well)
    told = one.command("status").stdout
    assert f"{SCHEMA}.user.3.redis" in told and told.count("user_by_email") == 1, told
    client = redis.Redis(port=fleet.redis.port)
    client.delete(*client.scan_iter(f"{SCHEMA}:*"))
    assert one.command("replay", "--yes", SCHEMA).returncode == 0
    wait_for("a view that is replayed is filled again", fleet.are_equal)
    wait_for("all is well", one.is_well)
    _operated(fleet, one)
    assert [run.stop() for run in (one, three, tailer)] == [0, 0, 0]


def test_a_changed_view_of_topics_is_refused_where_it_is_to_be_built_beside(fleet: Fleet) -> None:
    """It has no second copy, so it would be changed in place, which readers were to be spared."""
    tailer, one = fleet.tailer(), fleet.projector("one")
    wait_for("all views are filled", one.is_filled, 90)
    beside = '[run]\non_change = "beside"\n'
    for run in (tailer, one):
        (run.folder / "viewtail.toml").write_text(beside)
    checked = one.command("check")
    assert checked.returncode == 0 and "beside, and the view is kept from Kafka" in checked.stdout
    checked = tailer.command("check")
    assert checked.returncode == 0
    assert f"view kafka:{SCHEMA}.user, on_change: VIEWTAIL_RUN__ON_CHANGE=beside has no effect on it" in checked.stdout
    (one.folder / "views.py").write_text(VIEWS.replace('"email", "visits"]', '"visits"]'))
    refused = one.command("run", "--role", "project")
    assert refused.returncode == 2
    assert f"view redis:{SCHEMA}: its declaration changed" in refused.stderr
    assert "VIEWTAIL_RUN__ON_CHANGE=in_place" in refused.stderr
    assert one.command("check").returncode == 1
    (one.folder / "views.py").write_text(VIEWS)
    fleet.query(f"UPDATE {SCHEMA}.user SET visits = 7 WHERE id = 7")
    wait_for("the one that runs goes on", fleet.are_equal)
    why = json.loads(one.command("why", f"redis:{SCHEMA}", "7", "--json").stdout)
    assert why["verdict"] == "current" and re.fullmatch("file [0-9]+:[0-9]+", why["shown"]["place"])
    assert why["last_change_note"] == "not looked for: only a binlog is searched by key, and the source is none"
    (one.folder / "views.py").write_text(VIEWS.replace('"email", "visits"]', '"visits"]'))
    assert one.stop() == 0
    (one.folder / "viewtail.toml").write_text("")
    one.start("--role", "project")
    wait_for("it is changed in place", lambda: _has_no_email(fleet))
    assert tailer.stop() == 0
    (tailer.folder / "views.py").write_text(VIEWS.replace("user, partitions=4", 'user, partitions=4, fields=["email"]'))
    tailer.start("--role", "tail")
    wait_for("a topic changes in place, and that is said", lambda: "not built beside" in tailer.log)


def _has_no_email(fleet: Fleet) -> bool:
    client = redis.Redis(port=fleet.redis.port)
    return client.hkeys(f"{SCHEMA}:7") in ([b"visits", b"_version"], [b"_version", b"visits"])


def _operated(fleet: Fleet, run: Run) -> None:
    """One pass over verify, why, wait and rebuild, where other processes have some of the partitions."""
    client = redis.Redis(port=fleet.redis.port)

    def done(*arguments: str, code: int = 0) -> str:
        found = run.command(*arguments)
        assert found.returncode == code, f"{arguments}: {found.stdout}{found.stderr}"
        return found.stdout

    names = f"redis:{SCHEMA}", "mysql:user_by_email"
    told = json.loads(done("verify", "--json"))
    assert told["failed"] == {} and {*names, f"redis:{SCHEMA}_typed"} == {one["view"] for one in told["views"]}
    assert all(one["is_equal"] and one["rows"] and one["proven_through"] for one in told["views"])

    fleet.query(f"REPLACE INTO {SCHEMA}.user VALUES (7, 'awaited', 1)")
    for name in names:
        assert "has it" in done("wait", name, "7")
    assert (fleet.hashes()[7], fleet.index_table()[7]) == (("awaited", 1), "awaited")
    version = json.loads(done("why", names[0], "7", "--json"))["shown"]["version"]
    assert "has it" in done("wait", names[0], "7", "--version", version)

    client.hset(f"{SCHEMA}:7", "email", "damaged")
    fleet.query(f"UPDATE {DATABASE}.user_by_email SET email = 'damaged' WHERE id = 7")
    for name in names:
        found = json.loads(done("why", name, "7", "--json", code=1))
        assert found["verdict"] == "wrong" and found["next"].startswith("viewtail ")
    damaged = json.loads(done("verify", *names, "--json", code=1))["views"]
    assert [[one["key"] for one in view["entities"]] for view in damaged] == [["7"], ["7"]]

    assert "equal after 1 repaired" in done("verify", names[0], "--repair")
    assert json.loads(done("why", names[0], "7", "--json"))["verdict"] == "current"
    # A view of several partitions has no second copy; what is said instead mends it.
    refused = run.command("rebuild", names[1])
    assert refused.returncode == 2 and f"viewtail replay {names[1]}" in refused.stderr
    assert fleet.index_table()[7] == "damaged"
    done("replay", names[1], "--yes", "--wait")
    assert fleet.index_table()[7] == "awaited"
    done("verify")
    assert fleet.are_equal()


def test_what_is_paused_by_store_or_view_is_paused_in_all_partitions_and_over_takeovers(fleet: Fleet) -> None:
    fleet.tailer()
    one, two = fleet.projector("one"), fleet.projector("two")
    writer = Writer(fleet)

    def pipelines(store: str) -> list[dict[str, Any]]:
        told = json.loads(one.command("status", "--json").stdout)["pipelines"]
        return [found for found in told if found["name"].endswith(f".{store}")]

    def states(store: str) -> set[str]:
        return {found["state"] for found in pipelines(store)}

    def views(name: str) -> list[str]:
        return [view["state"] for found in pipelines("mysql") for view in found["views"] if view["name"] == name]

    try:
        wait_for("all views are filled", one.is_filled, 90)
        assert one.command("pause", "--pipeline", "redis").returncode == 0
        wait_for("all partitions are paused", lambda: states("redis") == {"paused"})
        assert len(pipelines("redis")) == 6
        paused = fleet.hashes()
        two.kill()
        wait_for("the other one has all", lambda: len(partitions_of(one, "redis")) == 6)
        wait_for("they are paused there", lambda: states("redis") == {"paused"})
        wait_for("what waits is counted", lambda: any(found["waiting"] for found in pipelines("redis")))
        wait_for("and how old it is", lambda: max(found["lag_s"] for found in pipelines("redis")) > 1)
        wait_for("the others run", lambda: states("mysql") == {"running"})
        assert fleet.hashes() == paused

        assert one.command("pause", "user_by_email").returncode == 0
        assert views("mysql:user_by_email") == ["paused"] * 4
        wait_for("no partition's changes come", lambda: one.log.count("view paused") >= 4)
        done = one.command("resume", "user_by_email")
        assert done.returncode == 0 and "backfilled in place" in done.stdout
        assert one.command("resume", "--pipeline", "redis").returncode == 0
    except BaseException:
        print(one.log[-6000:])
        raise
    finally:
        writer.stop()
    wait_for("views equal their table", fleet.are_equal, 60)
    wait_for("all is well", one.is_well)


def test_a_paused_tailer_publishes_each_change_once_when_it_is_resumed_and_a_paused_topic_its_rows(
    fleet: Fleet,
) -> None:
    tailer, one = fleet.tailer(), fleet.projector("one")
    topic = f"{SCHEMA}.user"

    def published() -> dict[str, Any]:
        found = json.loads(tailer.command("status", "--json").stdout)["pipelines"]
        return next(each for each in found if each["name"] == "kafka")

    def state() -> str:
        return str(published()["state"])

    try:
        wait_for("all views are filled", one.is_filled, 90)
        writer = Writer(fleet)
        try:
            assert tailer.command("pause", "--pipeline", "kafka").returncode == 0
            wait_for("the tailer is paused", lambda: state() == "paused")
            count = len(told(fleet.kafka, topic))
            tailer.kill()
            tailer.start("--role", "tail")
            wait_for("it is paused after a restart", lambda: tailer.log.count("pipeline paused") >= 2)
            assert state() == "paused" and len(told(fleet.kafka, topic)) == count
            assert tailer.command("resume", "--pipeline", "kafka").returncode == 0
            wait_for("it publishes", lambda: len(told(fleet.kafka, topic)) > count)
        finally:
            writer.stop()
        wait_for("views equal their table", fleet.are_equal, 60)
        messages = told(fleet.kafka, topic)
        assert faults_of_order(messages) == []
        changes = Counter((one.key, one.version, one.op) for one in messages)
        assert max(changes.values()) == 1, "each once"

        assert tailer.command("pause", topic).returncode == 0
        wait_for("the topic gets nothing", lambda: "view paused" in tailer.log)
        count = len(told(fleet.kafka, topic))
        fleet.query(f"UPDATE {SCHEMA}.user SET email = 'late' ORDER BY id DESC LIMIT 1")
        fleet.query(f"DELETE FROM {SCHEMA}.user WHERE id < 20")
        fleet.query(f"INSERT INTO {SCHEMA}.typed (id) VALUES (50)")
        wait_for("the other topic goes on", lambda: 50 in fleet.typed())
        assert len(told(fleet.kafka, topic)) == count
        resumed = tailer.command("resume", topic)
        assert resumed.returncode == 0 and "changes that were made meanwhile are not" in resumed.stdout
        wait_for("its rows and deletes are published", fleet.are_equal, 60)
        wait_for("it is filled", lambda: {view["state"] for view in published()["views"]} == {"filled"})
    except BaseException:
        print(tailer.log[-6000:])
        raise
