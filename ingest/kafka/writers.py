"""Finds out whether viewtail writes a topic: its messages have a version in a header."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from viewtail.changes.errors import RETRIES, SourceUnavailableError
from viewtail.changes.published import VERSION_HEADER
from viewtail.servers.brokers import ASK_WITHIN_S, SOURCE, failed
from viewtail.servers.consuming import CONSUMER

_QUICK = {"fetch.wait.max.ms": 10}  # a broker reports the end after it has waited this long for more


def is_foreign(client: Mapping[str, Any], topic: str, firsts: Mapping[int, int]) -> bool | None:
    """Whether another program writes the topic; None while it has no message.

    `firsts` has the first offset of each partition."""
    with closing(Consumer({**client, **CONSUMER, **_QUICK})) as consumer:
        try:
            consumer.assign([TopicPartition(topic, number, first) for number, first in firsts.items()])
            return _first_message_tells(consumer, len(firsts))
        except KafkaException as error:
            raise failed(error, f"reading {topic}", SOURCE) from None


def _first_message_tells(consumer: Consumer, partitions: int) -> bool | None:
    deadline, ended = time.monotonic() + ASK_WITHIN_S, 0
    while ended < partitions:
        message = consumer.poll(max(0.0, deadline - time.monotonic()))
        if message is None:
            raise SourceUnavailableError(f"Kafka: the broker gave nothing. {RETRIES}")
        error = message.error()
        if error is None:
            headers: Any = message.headers() or ()
            return all(name != VERSION_HEADER for name, _ in headers)
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        ended += 1
    return None
