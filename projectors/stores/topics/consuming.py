"""Reads partitions of a topic to their end, committed messages only; joins no group and commits no offset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from viewtail.changes.errors import RETRIES, StoreUnavailableError
from viewtail.servers.brokers import ASK_WITHIN_S
from viewtail.servers.consuming import CONSUMER, waiting

_MESSAGES_A_CALL = 10_000

_QUICK = {"fetch.wait.max.ms": 10}  # a broker reports the end after it has waited this long for more


def consumer_of(client: Mapping[str, Any], **other: str) -> Consumer:
    """A consumer whose partitions the caller assigns; the caller closes it. `other` settings override the defaults."""
    return Consumer({**client, **CONSUMER, **_QUICK, **other})


def to_the_end(consumer: Consumer, partition: TopicPartition) -> Iterator[Message]:
    """Yield the messages of a partition from its `offset` on. Raises KafkaException, StoreUnavailableError."""
    consumer.assign([partition])
    while True:
        messages = waiting(consumer, _MESSAGES_A_CALL, ASK_WITHIN_S)
        if not messages:
            raise StoreUnavailableError(f"Kafka: reading {partition.topic} gave nothing. {RETRIES}")
        for message in messages:
            if (error := message.error()) is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise KafkaException(error)
