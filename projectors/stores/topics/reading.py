"""Reads a topic view: the newest message of each key. Kafka has no index: partitions are read from their beginning."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaException, TopicPartition

from projectors.stores import StoredRow, ViewReader
from projectors.stores.topics.admin import Topics
from projectors.stores.topics.consuming import consumer_of, to_the_end
from projectors.stores.topics.partitioning import partition_of
from projectors.views import BoundView
from viewtail.changes.envelope_values import NOT_TAKEN, key_reader
from viewtail.changes.errors import StoreError
from viewtail.changes.published import version_in
from viewtail.changes.writes import Key
from viewtail.servers.brokers import ASK_WITHIN_S, failed

ROWS_A_PAGE = 1_000


class TopicReader(ViewReader):
    """Reads one topic view; every call reads the whole topic."""

    def __init__(self, client: Mapping[str, Any], view: BoundView) -> None:
        self._client = client
        self.view, self.foreign = view, []
        self._read_key = key_reader(view.key)

    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        """The rows of the keys whose newest message is not a tombstone."""
        wanted = set(keys)
        newest = self._newest(lambda key: key in wanted)
        return [newest[key] for key in keys if key in newest]

    def pages(self, after: Key | None = None) -> Iterator[list[StoredRow]]:
        """Every row. All are held in memory, since only a partition's end shows which message of a key is newest."""
        rows = list(self._newest(lambda _: True).values())
        for at in range(0, len(rows), ROWS_A_PAGE):
            yield rows[at : at + ROWS_A_PAGE]

    def keys(self) -> Iterator[list[tuple[Key, int]]]:
        """Pages of (key, version) of what is not deleted. The keys of one partition are held in memory."""
        count = self._count()
        for number in range(count):
            present, moved = dict[Key, int](), dict[Key, int]()
            for message in self._messages([number]):
                text, key = message.key(), self._key(message.key())
                into = present if partition_of(text, count) == number else moved
                if message.value() is None:
                    into.pop(key, None)
                else:
                    into[key] = version_in(message.headers()) or 0
            if moved:
                present |= self._newest_of(moved, [other for other in range(count) if other != number])
            yield from _pages(present)

    def _newest_of(self, moved: dict[Key, int], others: Sequence[int]) -> dict[Key, int]:
        """The keys without a newer message elsewhere, of those that moved when partitions were added."""
        for message in self._messages(others):
            if (key := self._key(message.key())) in moved and (version_in(message.headers()) or 0) >= moved[key]:
                del moved[key]
        return moved

    def has_messages(self) -> bool:
        """Whether any message is committed. Offsets do not show it, because aborted messages have offsets too."""
        with closing(self._messages()) as messages:
            return next(messages, None) is not None

    def is_published(self) -> bool:
        """Whether viewtail wrote the topic's first message."""
        with closing(self._messages()) as messages:
            first = next(messages, None)
            return first is not None and version_in(first.headers()) is not None

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _newest(self, is_wanted: Callable[[Key], bool]) -> dict[Key, StoredRow]:
        """The newest rows by version: after partitions were added, a key has messages in two, in no common order."""
        by_key: dict[Key, tuple[int, StoredRow | None]] = {}
        for message in self._messages():
            key = self._key(message.key())
            version = version_in(message.headers()) or 0
            if is_wanted(key) and version >= by_key.get(key, (0,))[0]:
                by_key[key] = version, None if message.value() is None else _row(key, message)
        return {key: row for key, (_, row) in by_key.items() if row is not None}

    def _key(self, text: bytes | None) -> Key:
        try:
            return self._read_key(text)
        except NOT_TAKEN:
            raise StoreError(f"Kafka: the topic {self.view.view.name} has a key that viewtail did not write") from None

    def _count(self) -> int:
        """The number of partitions."""
        name = self.view.view.name
        present = Topics(self._client).present([name]).get(name)
        if present is None:
            raise StoreError(f"Kafka: the topic {name} is not there; `viewtail run` makes and fills it")
        return present.partitions

    def _messages(self, partitions: Sequence[int] | None = None) -> Generator[Any]:
        """Yield every committed message of these partitions, by default all, each from its beginning to its end."""
        name, numbers = self.view.view.name, range(self._count()) if partitions is None else partitions
        with closing(consumer_of(self._client)) as consumer:
            try:
                for number in numbers:
                    yield from self._of_partition(consumer, TopicPartition(name, number))
            except KafkaException as error:
                raise failed(error, f"reading the topic {name}") from None

    def _of_partition(self, consumer: Consumer, partition: TopicPartition) -> Iterator[Any]:
        partition.offset = consumer.get_watermark_offsets(partition, timeout=ASK_WITHIN_S)[0]
        yield from to_the_end(consumer, partition)


def _row(key: Key, message: Any) -> StoredRow | None:
    """The row in a message; None for the delete that precedes a tombstone."""
    content = orjson.loads(message.value())
    content = content.get("payload", content)
    after = content["after"]
    return None if after is None else StoredRow(key, version_in(message.headers()) or 0, after)


def _pages(present: dict[Key, int]) -> Iterator[list[tuple[Key, int]]]:
    items = list(present.items())
    for at in range(0, len(items), ROWS_A_PAGE):
        yield items[at : at + ROWS_A_PAGE]
