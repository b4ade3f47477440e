"""Partitions are added to a topic under a running fleet: it says what to do, and nothing is lost, twice or backward."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pymysql
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from stack import Server
from tests.acceptance.test_kafka_source import partitions_of
from tests.support.asking import ask
from tests.support.running import Run, wait_for
from tests.support.topic_log import Told, told

SCHEMA, OWN = "more_partitions", "more_partitions_own"
TOPIC = f"{SCHEMA}.user"
VIEWS = f"""
from viewtail import Entity, IndexTable, Topic

user = Entity("{TOPIC}")
views = [
    Topic("{TOPIC}", user, partitions=2),
    IndexTable("user_by_email", user, value="email"),
]
"""
ROWS = 200


class Fleet:
    """A tailer and a projector."""

    def __init__(self, mysql: Server, kafka: Server, folder: Path) -> None:
        self.mysql, self.kafka = mysql, kafka
        self.tailer, self.projector = self._run(folder, "tail"), self._run(folder, "project")

    def _run(self, folder: Path, role: str) -> Run:
        (folder / role).mkdir()
        urls = {
            "VIEWTAIL_SOURCE__URL": self.mysql.url if role == "tail" else self.kafka.url,
            "VIEWTAIL_MYSQL__URL": f"{self.mysql.url}/{OWN}",
            "VIEWTAIL_METRICS__PORT": "0",
        }
        if role == "tail":
            urls["VIEWTAIL_KAFKA__URL"] = self.kafka.url
        return Run(folder / role, VIEWS, urls)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return ask(self.mysql, statement)

    def add_partitions(self, count: int) -> None:
        admin = AdminClient({"bootstrap.servers": f"{self.kafka.host}:{self.kafka.port}"})
        for future in admin.create_partitions([NewPartitions(TOPIC, count)]).values():
            future.result(10)

    def topic(self) -> tuple[str, str]:
        """State and reason of the topic's view."""
        asked = f"SELECT state, COALESCE(reason, '') FROM {OWN}.view WHERE name = 'kafka:{TOPIC}'"
        ((state, reason),) = self.ask(asked)
        return str(state), str(reason)

    def are_equal(self) -> bool:
        table = dict(self.ask(f"SELECT id, email FROM {TOPIC}"))  # type: ignore[arg-type]
        index = dict(self.ask(f"SELECT id, email FROM {OWN}.user_by_email WHERE email IS NOT NULL"))  # type: ignore[arg-type]
        assert index == table
        return True

    def are_filled(self, partitions: int) -> bool:
        """The view in all partitions."""
        found = self.ask(f"SELECT state FROM {OWN}.view WHERE name = 'mysql:user_by_email'")
        return found == [("filled",)] * partitions


class Writer:
    """Changes rows until it is left."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._stop = fleet, threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        connection = pymysql.connect(host="127.0.0.1", port=self._fleet.mysql.port, user="root", autocommit=True)
        with closing(connection), connection.cursor() as cursor:
            number = 0
            while not self._stop.wait(0.02):
                number += 1
                key = number * 37 % ROWS
                if number % 5:
                    cursor.execute(f"REPLACE INTO {TOPIC} VALUES ({key}, 'w{number}')")
                else:
                    cursor.execute(f"DELETE FROM {TOPIC} WHERE id = {key}")


@pytest.fixture
def fleet(mysql_server: Server, kafka_server: Server, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as runs:
        made = Fleet(mysql_server, kafka_server, tmp_path)
        for database in (SCHEMA, OWN):
            made.ask(f"DROP DATABASE IF EXISTS {database}")
        made.ask(f"CREATE DATABASE {SCHEMA}")
        made.ask(f"CREATE TABLE {TOPIC} (id INT PRIMARY KEY, email VARCHAR(60) NOT NULL)")
        made.ask(f"INSERT INTO {TOPIC} VALUES {', '.join(f'({key}, {key})' for key in range(ROWS))}")
        for run, role in ((made.tailer, "tail"), (made.projector, "project")):
            run.start("--role", role)
            runs.callback(run.kill)
        try:
            yield made
        except BaseException:
            for run in (made.tailer, made.projector):
                print(run.folder.name, run.log[-5000:])
            raise


def faults(messages: list[Told]) -> list[str]:
    """Within each partition the versions of a key rise; over all, no change of a version is there twice."""
    found, last, seen = [], dict[Any, int](), set[Any]()
    for one in messages:
        if one.version < last.get((one.partition, one.key), 0):
            found.append(f"{one.key} goes back in partition {one.partition}")
        last[one.partition, one.key] = one.version
        change = (one.key, one.version, one.op)
        if change in seen:
            found.append(f"{change} is there twice")
        seen.add(change)
    return found


def test_a_fleet_takes_up_added_partitions_and_a_topic_says_how_to_declare_them(fleet: Fleet) -> None:
    tailer, projector = fleet.tailer, fleet.projector
    with Writer(fleet):
        wait_for("the view is filled", lambda: fleet.are_filled(2))
        fleet.add_partitions(6)
        wait_for("the new ones are taken", lambda: len(partitions_of(projector, "mysql")) == 6)
        wait_for("the view is filled in all", lambda: fleet.are_filled(6))
        fleet.ask(f"REPLACE INTO {TOPIC} VALUES ({ROWS}, 'awaited')")
        awaited = f"SELECT email FROM {OWN}.user_by_email WHERE id = {ROWS}"
        wait_for("changes come", lambda: fleet.ask(awaited) == [("awaited",)])
        assert tailer.stop() == 0
        tailer.start("--role", "tail")
        wait_for("the topic halts", lambda: fleet.topic()[0] == "halted")
        _, reason = fleet.topic()
        assert "it has 6 partitions, and 2 are declared" in reason and "partitions=6" in reason
        wait_for("the pipelines that read it say so", lambda: _say_it(fleet))
        assert tailer.stop() == 0
        (tailer.folder / "views.py").write_text(VIEWS.replace("partitions=2", "partitions=6"))
        tailer.start("--role", "tail")
        wait_for("the topic is filled again", lambda: fleet.topic()[0] == "filled")
    wait_for("the view equals its table", fleet.are_equal)
    messages = told(fleet.kafka, TOPIC)
    assert {one.partition for one in messages} == set(range(6))
    assert faults(messages) == []


def _say_it(fleet: Fleet) -> bool:
    done = fleet.projector.command("status", "--json")
    fed = [one for one in json.loads(done.stdout)["pipelines"] if one["name"].startswith(TOPIC)]
    assert [f"publishes no changes into the topic {TOPIC} now" in (one["error"] or "") for one in fed] == [True] * 6
    return True
