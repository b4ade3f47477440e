"""The age of the first message behind a position, for partitions whose readers do not report their lag."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ingest.kafka.batching import committed_us
from ingest.kafka.position import KafkaPosition
from viewtail.servers.brokers import SOURCE, failed
from viewtail.servers.consuming import CONSUMER

_LITTLE = {"fetch.message.max.bytes": 1 << 14, "queued.max.messages.kbytes": 1 << 10, "fetch.wait.max.ms": 10}


def ages(client: Mapping[str, Any], positions: Mapping[str, KafkaPosition], within_s: float) -> dict[str, float]:
    """By name, the age in seconds of the first message; names without one in time are at their end, or lost what
    follows."""
    names = {(at.topic, at.partition): name for name, at in positions.items()}
    ages_s: dict[str, float] = {}
    deadline = time.monotonic() + within_s
    with closing(Consumer({**client, **CONSUMER, **_LITTLE})) as consumer:
        try:
            consumer.assign([TopicPartition(at.topic, at.partition, at.offset) for at in positions.values()])
            while names and (left_s := deadline - time.monotonic()) > 0:
                message: Any = consumer.poll(left_s)
                name = None if message is None else names.pop((message.topic(), message.partition()), None)
                if name is not None and message.error() is None:
                    ages_s[name] = max(0.0, time.time() - committed_us(message) / 1e6)
        except KafkaException as error:
            raise failed(error, "reading what waits", SOURCE) from None
    return ages_s
