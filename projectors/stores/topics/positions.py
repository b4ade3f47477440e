"""Reads a pipeline's published position from a topic of positions; changes/published.py describes its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from projectors.stores.topics.consuming import consumer_of, settled_ends, to_the_end
from viewtail.changes.errors import StoreError
from viewtail.changes.published import Published
from viewtail.servers.brokers import ASK_WITHIN_S, Broker, failed

_FIRST_LOOK = 1_000  # offsets before the end, where the pipeline's last record usually is


def last_published(client: Mapping[str, Any], topics: Broker, name: str, key: bytes) -> Published | None:
    """The newest committed record of a pipeline in the topic `name`; None if there is none.

    The caller has fenced every other writer of it. Raises StoreUnavailableError while another pipeline's open
    transaction hides records of this one."""
    (end,) = topics.end_offsets(name, 1)

    def settled(consumer: Consumer) -> tuple[int, int]:
        return settled_ends(client, consumer, name, end, lambda message: message.key() == key)

    return _read(client, name, key, settled)


def seen_published(client: Mapping[str, Any], name: str, key: bytes) -> Published | None:
    """The newest record of a pipeline that can be read now; since nobody is fenced, a newer one may follow."""
    place = TopicPartition(name, 0)
    return _read(client, name, key, lambda consumer: consumer.get_watermark_offsets(place, timeout=ASK_WITHIN_S))


def _read(
    client: Mapping[str, Any], name: str, key: bytes, ends: Callable[[Consumer], tuple[int, int]]
) -> Published | None:
    with closing(consumer_of(client)) as consumer:
        try:
            low, end = ends(consumer)
            start, value = end, None
            while value is None and start > low:
                start = max(low, end - 20 * (end - start) - _FIRST_LOOK)
                value = _newest(consumer, TopicPartition(name, 0, start), key)
        except KafkaException as error:
            raise failed(error, f"reading {name}") from None
    try:
        return None if value is None else Published.from_json(value)
    except ValueError as error:
        raise StoreError(f"Kafka: the record {key.decode()} of the topic {name} cannot be read: {error}") from None


def _newest(consumer: Consumer, start: TopicPartition, key: bytes) -> bytes | None:
    """The value of the last record with that key from there on."""
    newest = None
    for message in to_the_end(consumer, start):
        if message.key() == key:
            newest = message.value()
    return newest
