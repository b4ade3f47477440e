"""Transactions that are open on a broker: what they hide, and an end of those that killed pipelines left."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from stack import Server

POSITIONS = TopicPartition("viewtail_positions", 0)


def end_all(server: Server) -> None:
    """Abort them: a producer that takes the same transactional id does so. Fast where none is open."""
    for writer in _writers_behind_the_end(server):
        Producer({**client(server), "transactional.id": writer}).init_transactions(20)


def hidden(server: Server, prefix: str) -> dict[str, int]:
    """By partition of the topics with a prefix, and of that of positions: how many records readers do not see yet."""
    found = {}
    settings = {**client(server), "group.id": "test", "enable.auto.commit": False}
    with (
        closing(Consumer({**settings, "isolation.level": "read_committed"})) as committed,
        closing(Consumer({**settings, "isolation.level": "read_uncommitted"})) as everything,
    ):
        for name, topic in everything.list_topics(timeout=10).topics.items():
            for number in topic.partitions if name.startswith(prefix) or name == POSITIONS.topic else ():
                at = TopicPartition(name, number)
                _, readable = committed.get_watermark_offsets(at, timeout=10)
                _, end = everything.get_watermark_offsets(at, timeout=10)
                found[f"{name}/{number}"] = end - readable
    return found


def client(server: Server) -> dict[str, Any]:
    return {"bootstrap.servers": f"{server.host}:{server.port}", "log_level": 0}


def _writers_behind_the_end(server: Server) -> set[str]:
    """The transactional ids of whoever wrote what a reader of committed messages does not see yet."""
    settings = {**client(server), "group.id": "test", "enable.auto.commit": False, "enable.partition.eof": True}
    with closing(Consumer({**settings, "isolation.level": "read_committed"})) as committed:
        if POSITIONS.topic not in committed.list_topics(timeout=10).topics:
            return set()
        _, readable = committed.get_watermark_offsets(POSITIONS, timeout=10)
    writers = set()
    with closing(Consumer({**settings, "isolation.level": "read_uncommitted"})) as everything:
        _, end = everything.get_watermark_offsets(POSITIONS, timeout=10)
        if readable == end:
            return set()
        everything.assign([TopicPartition(POSITIONS.topic, POSITIONS.partition, readable)])
        while True:
            message = everything.poll(10)
            assert message is not None, "the topic of positions gave nothing"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return writers
            writers.add(_writer(message))


def _writer(message: Any) -> str:
    """A position's key is the transactional id without its prefix; a claim names the id."""
    if message.key().startswith(b"{"):
        return str(orjson.loads(message.value())["writer"])
    return f"viewtail.{message.key().decode()}"
