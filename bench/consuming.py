"""A plain consumer of confluent-kafka: how many messages a topic has, and when each came.

It reads committed messages (isolation.level), or where asked to, all of them.

Messages are told apart by the number at the end of their key: {"id":7}, and Maxwell's {...,"pk.id":7}.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
PARTITIONS = 4  # of every topic of the bench
_AT_ONCE = 10_000
_POLL_S = 0.05
_ANSWER_S = 10.0


def admin(brokers: str) -> AdminClient:
    """Keep it until its answers are there: they end with it."""
    return AdminClient({"bootstrap.servers": brokers, "log_level": 0})


def consumer(brokers: str, isolation: str = COMMITTED) -> Consumer:
    """One that is given partitions and keeps no offsets."""
    return Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": f"bench{os.getpid()}",
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )


def ends(client: AdminClient, topic: str) -> list[int]:
    """The offset behind the last message of each partition, committed or not; 0 where there is no topic."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): latest for number in range(PARTITIONS)}
    try:
        found = client.list_offsets(asked)
        offsets = {place.partition: future.result(_ANSWER_S).offset for place, future in found.items()}
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._NOENT):
            return [0] * PARTITIONS
        if error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION:  # the topic is being made
            time.sleep(_POLL_S)
            return ends(client, topic)
        raise
    return [offsets[number] for number in range(PARTITIONS)]


def messages(brokers: str, topic: str, begin: list[int], isolation: str = COMMITTED) -> Iterator[Any]:
    """The messages of a topic from these offsets to its present end."""
    ended = set[int | None]()
    with closing(consumer(brokers, isolation)) as reader:
        reader.assign([TopicPartition(topic, number, offset) for number, offset in enumerate(begin)])
        while len(ended) < len(begin):
            for message in reader.consume(_AT_ONCE, 1):
                error = message.error()
                if error is None:
                    ended.discard(message.partition())
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise RuntimeError(f"{topic}: {error}")


def require_each_once(brokers: str, topic: str, ids: range) -> None:
    """Raises RuntimeError unless each of these rows has one committed message. Other rows do not count."""
    seen = bytearray(len(ids))
    for message in messages(brokers, topic, [0] * PARTITIONS):
        i = id_of(message.key())
        if i in ids:
            seen[i - ids.start] += seen[i - ids.start] < 255
    if seen.count(1) != len(ids):
        raise RuntimeError(
            f"{topic}: of {len(ids):,} rows {seen.count(0):,} have no message, "
            f"and {len(ids) - seen.count(0) - seen.count(1):,} more than one"
        )


def id_of(key: Any) -> int:
    """The row that a message is of."""
    return int(key[key.rindex(b":") + 1 : -1])


@contextmanager
def arrivals(brokers: str, topic: str, isolation: str = COMMITTED) -> Iterator[dict[int, float]]:
    """When the first message of each row comes from now on, by the row's id, as time.perf_counter gives it."""
    seen: dict[int, float] = {}
    errors: list[KafkaError] = []
    is_over = threading.Event()
    with closing(consumer(brokers, isolation)) as reader:
        offsets = ends(admin(brokers), topic)
        reader.assign([TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)])

        def watch() -> None:
            while not is_over.is_set():
                message = reader.poll(_POLL_S)
                if message is None:
                    continue
                if (error := message.error()) is None:
                    seen.setdefault(id_of(message.key()), time.perf_counter())
                elif error.code() != KafkaError._PARTITION_EOF:
                    errors.append(error)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield seen
        finally:
            is_over.set()
            thread.join()
            for error in errors[:1]:
                raise RuntimeError(f"the consumer of {topic}: {error}")
