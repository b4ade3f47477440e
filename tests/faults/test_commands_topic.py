"""Commands from a Kafka topic, their processes killed: each takes effect once, and every one is answered."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import orjson
import pytest
from confluent_kafka import Consumer, Producer

import stack.mysql
from stack import Server
from tests.support.asking import ask
from tests.support.published import Topic
from tests.support.running import wait_for
from tests.support.serving import TABLE, Served

pytestmark = [pytest.mark.mysql, pytest.mark.kafka, pytest.mark.slow]

ENTITIES = 8


class Topics:
    """A topic of commands and one of replies."""

    def __init__(self, kafka: Server) -> None:
        self.kafka = kafka
        Topic(kafka, "bank.commands", partitions=4)
        Topic(kafka, "bank.replies", partitions=2)
        self._client = {"bootstrap.servers": f"127.0.0.1:{kafka.port}", "log_level": 0}
        self._producer = Producer(self._client)
        self._consumer = Consumer({**self._client, "group.id": f"asker-{uuid4()}", "auto.offset.reset": "earliest"})
        self._consumer.subscribe(["bank.replies"])
        self.replies: list[tuple[str, dict[str, Any]]] = []  # with the origin of each
        self.without_key: set[str] = set()  # by origin

    def environment(self) -> dict[str, str]:
        return {
            "VIEWTAIL_KAFKA__URL": self.kafka.url,
            "VIEWTAIL_SERVE__COMMANDS_TOPIC": "bank.commands",
            "VIEWTAIL_SERVE__REPLIES_TOPIC": "bank.replies",
        }

    def send(self, entity_id: str, value: bytes) -> None:
        self._producer.produce("bank.commands", value, entity_id)

    def deposit(self, number: int, amount: int = 1) -> None:
        entity_id = f"e{number % ENTITIES}"
        self.send(entity_id, self.message(entity_id, str(number), "deposit", {"amount": amount}))

    def message(self, entity_id: str, key: str, name: str, request: Any) -> bytes:
        fields = {"entity": TABLE, "id": entity_id, "idempotency_key": key, "command": name, "request": request}
        return orjson.dumps(fields)

    def read(self, is_enough: Any, timeout_s: float = 90) -> None:
        """Replies, until there are enough of them."""

        def looks() -> bool:
            self._producer.flush()
            for one in self._consumer.consume(1_000, timeout=0.3):
                assert one.error() is None
                ((_, origin),) = one.headers() or []
                self.replies.append((origin.decode(), orjson.loads(one.value() or b"")))
                if one.key() is None:
                    self.without_key.add(origin.decode())
            return bool(is_enough())

        wait_for("the replies", looks, timeout_s)


@pytest.fixture
def topics(kafka_server: Server) -> Topics:
    return Topics(kafka_server)


@pytest.fixture
def processes(topics: Topics, mysql_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    ask(mysql_server, "DROP DATABASE IF EXISTS bank")
    found = [Served(tmp_path_factory.mktemp("consume"), mysql_server.port, **topics.environment()) for _ in range(2)]
    assert found[0].command("entities", "create").returncode == 0
    yield found
    for one in found:
        one.kill()


def test_each_command_takes_effect_once_and_is_answered_though_processes_are_killed(
    topics: Topics, processes: list[Served], mysql_server: Server
) -> None:
    count = 2_000
    for one in processes:
        one.consume()
    for part in range(4):
        for number in range(part * count // 4, (part + 1) * count // 4):
            topics.deposit(number)
            if number % 3 == 0:
                topics.deposit(number)  # its sender did it twice
        topics.read(lambda part=part: len(topics.replies) > part * count // 4)
        one = processes[part % 2]
        one.kill()
        one.consume()
    topics.read(lambda: len({reply["idempotency_key"] for _, reply in topics.replies}) == count)
    first: dict[str, Any] = {}
    for _, reply in topics.replies:
        told = reply["status"], reply["response"], reply["version"]
        assert first.setdefault(reply["idempotency_key"], told) == told, "another answer than the first"
    events = ask(mysql_server, "SELECT entity_id, version, command_id FROM bank.account ORDER BY entity_id, version")
    assert len(events) == count == len({command_id for _, _, command_id in events})
    for entity in {name for name, _, _ in events}:
        of_one = [(version, int(command_id)) for name, version, command_id in events if name == entity]
        assert [version for version, _ in of_one] == list(range(1, count // ENTITIES + 1))
        assert [number for _, number in of_one] == sorted(number for _, number in of_one), "in the order of the topic"


def test_what_is_no_command_is_answered_and_the_next_ones_go_on(topics: Topics, processes: list[Served]) -> None:
    bad = [
        b"no json",
        b"[]",
        orjson.dumps({"entity": TABLE}),
        topics.message("e", "1", "deposit", 5),
        topics.message("e", "1", "deposit", {"amount": 1}).replace(TABLE.encode(), b"bank.none"),
        topics.message("", "1", "deposit", {}),
        topics.message("e", "1", "deposit", {"amount": -1}),
        topics.message("e", "1", "fails", {"secret": "hunter2"}),
    ]
    for value in bad:
        topics.send("e", value)
    topics.send("e", topics.message("e", "1", "deposit", {"amount": 1}))
    topics.send("e", topics.message("e", "1", "deposit", {"amount": 2}))
    topics.send("e", topics.message("e", "big", "note", {"text": "x" * 990_000}))
    topics.send("k" * 999_950, b"no json")  # a reply with this key is larger than a message may be
    processes[0].consume()
    topics.read(lambda: len(topics.replies) == len(bad) + 4)
    by_offset = sorted(topics.replies, key=lambda reply: int(reply[0].rpartition("/")[2]))
    whole = [reply for origin, reply in by_offset if origin not in topics.without_key]
    assert [reply["status"] for reply in whole] == [400, 422, 422, 422, 404, 422, 422, 500, 200, 409, 200]
    assert whole[-1]["version"] == "2"
    assert [reply["status"] for origin, reply in by_offset if origin in topics.without_key] == [400]
    assert "hunter2" not in str(topics.replies) + processes[0].log


def test_a_store_that_is_away_is_waited_for_and_a_stop_goes_on_where_it_was(
    topics: Topics, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = stack.mysql.start(tmp_path_factory.mktemp("away"))
    one = Served(tmp_path_factory.mktemp("consume"), server.port, **topics.environment())
    try:
        assert one.command("entities", "create").returncode == 0
        one.consume()
        topics.deposit(0)
        topics.read(lambda: len(topics.replies) == 1)
        server.kill()
        for number in range(ENTITIES, ENTITIES * 10, ENTITIES):  # of one entity
            topics.deposit(number)
        with pytest.raises(AssertionError):
            topics.read(lambda: len(topics.replies) > 1, timeout_s=3)
        server.start()
        topics.read(lambda: len(topics.replies) == 10)
        assert [reply["version"] for _, reply in topics.replies] == [str(version) for version in range(1, 11)]
        one.signal(signal.SIGTERM)
        assert one.ended() == 0
        topics.deposit(ENTITIES * 10)
        one.consume()
        topics.read(lambda: len(topics.replies) > 10)
        assert [(reply["version"], reply["is_repeated"]) for _, reply in topics.replies[10:]] == [("11", False)]
    finally:
        one.kill()
        server.kill()


def test_topics_that_are_not_there_are_said_at_the_start(
    kafka_server: Server, mysql_server: Server, processes: list[Served], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("none")
    unset = Served(folder, mysql_server.port).command("entities", "consume")
    assert unset.returncode == 2 and "VIEWTAIL_SERVE__COMMANDS_TOPIC" in unset.stderr
    topics = {"VIEWTAIL_SERVE__COMMANDS_TOPIC": "no.such", "VIEWTAIL_SERVE__REPLIES_TOPIC": "no.such"}
    missing = Served(folder, mysql_server.port, VIEWTAIL_KAFKA__URL=kafka_server.url, **topics)
    found = missing.command("entities", "consume")
    assert found.returncode == 1 and "the topic no.such cannot be used" in found.stderr
