"""A product that every order has, in a topic of whole orders: it comes page by page, whatever is killed and filled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka.admin import AdminClient

from stack import Server
from tests.support.asking import ask
from tests.support.running import DIED, Run, wait_for
from tests.support.topic_log import Told, told

pytestmark = [pytest.mark.redis, pytest.mark.slow]
ORDERS = 3_000
VIEWS = """
from viewtail import Entity, Many, One, RedisJson, Topic

product = One("hot.product", on="product_id")
order = Entity("hot.order", related={"lines": Many("hot.line", by="order_id", related={"product": product})})
views = [
    Topic("%s", order, partitions=2),
    RedisJson("hot", order, document=lambda row: {"names": [line["product"]["name"] for line in row["lines"]]}),
]
"""


class World:
    """The tables, the topic, and the processes over both."""

    def __init__(self, mysql: Server, store: Server, kafka: Server, folder: Path, topic: str, runs: ExitStack) -> None:
        self.mysql, self.kafka, self.topic = mysql, kafka, topic
        self._folder, self._runs = folder, runs
        self.redis: Any = redis.Redis(host="127.0.0.1", port=store.port, decode_responses=True)
        self.redis.flushall()
        admin = AdminClient({"bootstrap.servers": f"{kafka.host}:{kafka.port}", "log_level": 0})
        if topic in admin.list_topics(timeout=30).topics:
            admin.delete_topics([topic])[topic].result(30)
        for database in ("hot", "viewtail"):
            ask(mysql, f"DROP DATABASE IF EXISTS {database}")
        numbers = range(ORDERS)
        for statement in (
            "CREATE DATABASE hot",
            "CREATE TABLE hot.`order` (id INT PRIMARY KEY, note INT)",
            (
                "CREATE TABLE hot.line (id INT PRIMARY KEY, order_id INT NOT NULL, product_id INT NOT NULL, "
                "KEY (order_id), KEY (product_id))"
            ),
            "CREATE TABLE hot.product (id INT PRIMARY KEY, name VARCHAR(40) NOT NULL)",
            "INSERT INTO hot.product VALUES (7, 'p0'), (8, 'q0')",
            "INSERT INTO hot.`order` VALUES " + ", ".join(f"({number}, 0)" for number in numbers),
            "INSERT INTO hot.line VALUES " + ", ".join(f"({number}, {number}, 7)" for number in numbers),
        ):
            ask(mysql, statement)
        shared = {
            "VIEWTAIL_MYSQL__URL": f"{mysql.url}/viewtail",
            "VIEWTAIL_METRICS__PORT": "0",
            "VIEWTAIL_RUN__FAN_OUT_ABOVE": "50",
        }
        self.tailer = self._made(
            "tailer", {**shared, "VIEWTAIL_SOURCE__URL": mysql.url, "VIEWTAIL_KAFKA__URL": kafka.url}
        )
        self.projector = self._made(
            "projector", {**shared, "VIEWTAIL_SOURCE__URL": kafka.url, "VIEWTAIL_REDIS__URL": store.url}
        )

    def _made(self, name: str, settings: dict[str, str]) -> Run:
        folder = self._folder / name
        folder.mkdir()
        return Run(folder, VIEWS % self.topic, settings)

    def start(self, run: Run, role: str, **environment: str) -> None:
        run.start("--role", role, **environment)
        self._runs.callback(run.kill)

    def rename(self, name: str) -> None:
        ask(self.mysql, f"UPDATE hot.product SET name = '{name}' WHERE id = 7")

    def is_published(self) -> bool:
        """Whether the topic is filled."""
        return ask(self.mysql, "SELECT DISTINCT state FROM viewtail.view WHERE name LIKE 'kafka:%'") == [("filled",)]

    def is_shown(self, name: str) -> bool:
        """Whether the newest message of each order but the last has this name of the product."""
        newest: dict[tuple[Any, ...], Told] = {}
        for message in told(self.kafka, self.topic):
            newest[message.key] = message
        assert len(newest) == ORDERS
        names = {names_of(message) for (key,), message in newest.items() if key < ORDERS - 1}
        assert names == {name}
        return True


def names_of(message: Told) -> str:
    """The name of its only product."""
    assert message.after is not None
    (line,) = json.loads(message.after[-1])
    return str(line["product"]["name"])


def faults(messages: list[Told]) -> list[str]:
    """Versions of a key never go back, and its content neither; names are in the order of their texts."""
    found = []
    last: dict[tuple[Any, ...], Told] = {}
    for message in messages:
        before = last.get(message.key)
        if before is not None and before.version > message.version:
            found.append(f"{message.key}: version {message.version} behind {before.version}")
        if before is not None and names_of(before) > names_of(message):
            found.append(f"{message.key}: {names_of(message)} behind {names_of(before)}")
        last[message.key] = message
    return found


@pytest.fixture
def runs() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("step", ["after page:12", "before page:5", "after cursor:1", "after commit:20"])
def test_a_hot_row_comes_to_every_message_over_a_kill_and_versions_never_go_back(
    step: str, mysql_server: Server, redis_server: Server, kafka_server: Server, tmp_path: Path, runs: ExitStack
) -> None:
    topic = f"hot.orders.{step.replace(' ', '_').replace(':', '_')}"
    world = World(mysql_server, redis_server, kafka_server, tmp_path, topic, runs)
    world.start(world.tailer, "tail")
    wait_for("the topic is filled", world.is_published)
    assert world.tailer.stop() == 0
    world.start(world.tailer, "tail", VIEWTAIL_FAILPOINT=step)
    wait_for("it runs", lambda: world.tailer.log.count('"state":"running"') >= 2)
    world.rename("p1")
    ask(world.mysql, f"UPDATE hot.line SET product_id = 8 WHERE id = {ORDERS - 1}")
    world.rename("p2")
    wait_for("it is killed in between", lambda: DIED in world.tailer.log)
    world.tailer.kill()
    world.start(world.tailer, "tail")
    wait_for("the last is in every message", lambda: world.is_shown("p2"), 120)
    messages = told(world.kafka, topic)
    assert faults(messages) == []
    assert len(messages) < 6 * ORDERS, "each kill repeats half a second of pages at most"
    assert world.tailer.stop() == 0


def test_who_waits_for_a_projector_waits_for_the_fan_outs_of_its_topic(
    mysql_server: Server, redis_server: Server, kafka_server: Server, tmp_path: Path, runs: ExitStack
) -> None:
    world = World(mysql_server, redis_server, kafka_server, tmp_path, "hot.orders.awaited", runs)
    world.start(world.tailer, "tail")
    world.start(world.projector, "project")
    wait_for("the topic is filled", world.is_published)
    wait_for("the views are filled", world.projector.is_filled)
    for number in range(1, 4):
        world.rename(f"p{number}")
        done = world.projector.command("verify", "--json")
        assert done.returncode == 0, (done.stdout, done.stderr)
        shown = {
            value and json.loads(value)["names"][0] for value in world.redis.mget([f"hot:{i}" for i in range(ORDERS)])
        }
        assert shown == {f"p{number}"}
    assert world.tailer.log.count("fan-out written") >= 3


def test_a_filling_beside_fan_outs_leaves_the_newest_of_each_key(
    mysql_server: Server, redis_server: Server, kafka_server: Server, tmp_path: Path, runs: ExitStack
) -> None:
    world = World(mysql_server, redis_server, kafka_server, tmp_path, "hot.orders.filled", runs)
    (world.tailer.folder / "viewtail.toml").write_text("[run]\nchunk_rows = 100\n")
    world.start(world.tailer, "tail")
    wait_for("the topic is filled", world.is_published)
    for number in range(1, 7):
        if number % 2:
            assert world.tailer.command("replay", "--yes", "kafka:hot.orders.filled").returncode == 0
        world.rename(f"p{number}")
    wait_for("the last is in every message", lambda: world.is_shown("p6"), 120)
    wait_for("it is filled", world.is_published)
    assert world.is_shown("p6")
    messages = told(world.kafka, world.topic)
    assert sum(message.op == "r" for message in messages) > ORDERS
    assert faults(messages) == []
