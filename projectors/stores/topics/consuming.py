"""Reads partitions of a topic to their end, committed messages only; no group is joined and no offset committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from changes.errors import StoreUnavailableError
from servers.brokers import ASK_WITHIN_S

_MESSAGES_A_CALL = 10_000

_SETTINGS = {
    "group.id": "viewtail",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 10,  # an end is told when a broker has waited so long for more
}


def consumer_of(client: Mapping[str, Any]) -> Consumer:
    """A consumer that is given its partitions; the caller closes it."""
    return Consumer({**client, **_SETTINGS})


def to_the_end(consumer: Consumer, partition: TopicPartition) -> Iterator[Message]:
    """The messages of a partition from its `offset` on. Raises KafkaException, StoreUnavailableError."""
    consumer.assign([partition])
    while True:
        # `consume` alone waits until it has as many as it was asked for, or for the whole time.
        first = consumer.poll(ASK_WITHIN_S)
        if first is None:
            raise StoreUnavailableError(
                f"Kafka: reading {partition.topic} gave nothing. viewtail tries again by itself"
            )
        for message in (first, *consumer.consume(_MESSAGES_A_CALL, 0)):
            if (error := message.error()) is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise KafkaException(error)
