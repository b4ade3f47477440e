"""Reads partitions of a topic to their end, committed messages only; joins no group and commits no offset."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from viewtail.changes.errors import RETRIES, StoreUnavailableError
from viewtail.servers.brokers import ASK_WITHIN_S, failed
from viewtail.servers.consuming import CONSUMER, waiting

LOOK_AFTER_S = 1.0  # other pipelines' transactions are usually open only for milliseconds
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


def messages_of(client: Mapping[str, Any], name: str, partitions: Iterable[int]) -> Generator[Message]:
    """Yield every committed message of these partitions of a topic, each from its beginning to its end."""
    with closing(consumer_of(client)) as consumer:
        try:
            for number in partitions:
                partition = TopicPartition(name, number)
                partition.offset = consumer.get_watermark_offsets(partition, timeout=ASK_WITHIN_S)[0]
                yield from to_the_end(consumer, partition)
        except KafkaException as error:
            raise failed(error, f"reading the topic {name}") from None


def first_message(client: Mapping[str, Any], name: str, partitions: int) -> Any:
    """A first message of a topic with so many partitions; None if no message is committed.

    Offsets do not show that, because aborted messages have offsets too."""
    with closing(messages_of(client, name, range(partitions))) as messages:
        return next(messages, None)


def settled_ends(
    client: Mapping[str, Any], consumer: Consumer, name: str, end: int, is_wanted: Callable[[Message], bool]
) -> tuple[int, int]:
    """The first offset of the topic `name` and the end of what can be read, once no wanted message is hidden before
    `end`. Raises StoreUnavailableError while an open transaction hides one."""
    began = time.monotonic()
    deadline, may_look = began + ASK_WITHIN_S, began + LOOK_AFTER_S
    while True:
        low, high = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=ASK_WITHIN_S)
        if high >= end:
            return low, high
        if time.monotonic() > may_look:
            if not _is_hidden(client, TopicPartition(name, 0, high), is_wanted):
                return low, high
            may_look = deadline  # check once more at the end: the hidden records may be aborted or committed by then
        if time.monotonic() > deadline:
            raise StoreUnavailableError(
                f"Kafka: another pipeline's transaction is open in {name}, so what was written there since cannot be "
                "read: that pipeline was killed while it committed. It ends when that pipeline runs again, or after "
                f"transaction.timeout.ms. {RETRIES}"
            )
        time.sleep(0.05)


def _is_hidden(client: Mapping[str, Any], start: TopicPartition, is_wanted: Callable[[Message], bool]) -> bool:
    """Return whether a wanted message, committed or aborted, follows the start of an open transaction."""
    with closing(consumer_of(client, **{"isolation.level": "read_uncommitted"})) as consumer:
        return any(map(is_wanted, to_the_end(consumer, start)))
