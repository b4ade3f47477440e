"""Reads the first message behind an offset of a partition: how old it is, and whether viewtail wrote it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ingest.kafka.batching import committed_us
from ingest.kafka.position import KafkaPosition
from viewtail.changes.errors import RETRIES, SourceUnavailableError
from viewtail.changes.published import VERSION_HEADER
from viewtail.servers.brokers import ASK_WITHIN_S, SOURCE, failed
from viewtail.servers.consuming import CONSUMER

# Few bytes; and a broker reports the end after it has waited this long for more.
_LITTLE = {"fetch.message.max.bytes": 1 << 14, "queued.max.messages.kbytes": 1 << 10, "fetch.wait.max.ms": 10}


@contextmanager
def _reading(client: Mapping[str, Any], places: Iterable[tuple[str, int, int]], doing: str) -> Iterator[Consumer]:
    """A consumer of these partitions from these offsets on."""
    with closing(Consumer({**client, **CONSUMER, **_LITTLE})) as consumer:
        try:
            consumer.assign([TopicPartition(*place) for place in places])
            yield consumer
        except KafkaException as error:
            raise failed(error, doing, SOURCE) from None


def ages(client: Mapping[str, Any], positions: Mapping[str, KafkaPosition], within_s: float) -> dict[str, float]:
    """Return, by name, the age of the first message in seconds: for partitions whose readers report no lag.

    A name without one in time is at its end, or lost what follows.
    """
    names = {(at.topic, at.partition): name for name, at in positions.items()}
    ages_s: dict[str, float] = {}
    deadline = time.monotonic() + within_s
    places = ((at.topic, at.partition, at.offset) for at in positions.values())
    with _reading(client, places, "reading what waits") as consumer:
        while names and (left_s := deadline - time.monotonic()) > 0:
            message: Any = consumer.poll(left_s)
            name = None if message is None else names.pop((message.topic(), message.partition()), None)
            if name is not None and message.error() is None:
                ages_s[name] = max(0.0, time.time() - committed_us(message) / 1e6)
    return ages_s


def is_foreign(client: Mapping[str, Any], topic: str, firsts: Mapping[int, int]) -> bool | None:
    """Say whether another program writes the topic: viewtail's messages have a version in a header.

    None while the topic has no message. `firsts` has the first offset of each partition.
    """
    deadline, ended = time.monotonic() + ASK_WITHIN_S, 0
    places = ((topic, number, first) for number, first in firsts.items())
    with _reading(client, places, f"reading {topic}") as consumer:
        while ended < len(firsts):
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
