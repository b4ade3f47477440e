"""Makes consumers of Kafka, and takes what waits without waiting for more."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer

from viewtail.servers.kafka import NO_GROUP

CONSUMER = {
    "group.id": NO_GROUP,
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
}


def waiting(consumer: Consumer, most: int, timeout_s: float) -> list[Any]:
    """The messages that are there, as soon as there is one. (`consume` by itself waits until all have come.)"""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(most - 1, 0)]
