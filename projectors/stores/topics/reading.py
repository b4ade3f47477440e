"""Reads a topic view: the newest message of each key. Kafka has no index: partitions are read from their beginning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from projectors.stores import StoredRow, ViewReader, slices
from projectors.stores.topics.admin import Topics
from projectors.stores.topics.consuming import first_message, messages_of
from projectors.stores.topics.partitioning import partition_of
from projectors.views import BoundView
from viewtail.changes.envelope_values import NOT_TAKEN, key_reader
from viewtail.changes.errors import StoreError
from viewtail.changes.published import version_in
from viewtail.changes.writes import Key

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
        yield from map(list, slices(list(self._newest(lambda _: True).values()), ROWS_A_PAGE))

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
            yield from map(list, slices(list(present.items()), ROWS_A_PAGE))

    def _newest_of(self, moved: dict[Key, int], others: Sequence[int]) -> dict[Key, int]:
        """The keys without a newer message elsewhere, of those that moved when partitions were added."""
        for message in self._messages(others):
            if (key := self._key(message.key())) in moved and (version_in(message.headers()) or 0) >= moved[key]:
                del moved[key]
        return moved

    def has_messages(self) -> bool:
        """Return whether any message is committed."""
        return self._first() is not None

    def is_published(self) -> bool:
        """Return whether viewtail wrote the topic's first message."""
        first = self._first()
        return first is not None and version_in(first.headers()) is not None

    def _first(self) -> Any:
        return first_message(self._client, self.view.view.name, self._count())

    def _newest(self, is_wanted: Callable[[Key], bool]) -> dict[Key, StoredRow]:
        """The newest rows by version: after partitions were added, a key has messages in two, in no common order."""
        by_key: dict[Key, tuple[int, StoredRow | None]] = {}
        for message in self._messages(range(self._count())):
            key = self._key(message.key())
            version = version_in(message.headers()) or 0
            if is_wanted(key) and version >= by_key.get(key, (0,))[0]:
                by_key[key] = version, None if message.value() is None else _row(key, message)
        return {key: row for key, (_, row) in by_key.items() if row is not None}

    def _key(self, text: bytes | None) -> Key:
        try:
            return self._read_key(text)
        except NOT_TAKEN:
            name = self.view.view.name
            raise StoreError(
                f"Kafka: the topic {name} has a key that is none of its entity's: viewtail did not write it, or the "
                "key column has another type since. Give it the former type, or delete the topic: `viewtail run` makes "
                "and fills it again"
            ) from None

    def _count(self) -> int:
        """The number of partitions."""
        name = self.view.view.name
        present = Topics(self._client).present([name]).get(name)
        if present is None:
            raise StoreError(f"Kafka: the topic {name} is not there; `viewtail run` makes and fills it")
        return present.partitions

    def _messages(self, partitions: Sequence[int]) -> Iterator[Any]:
        return messages_of(self._client, self.view.view.name, partitions)


def _row(key: Key, message: Any) -> StoredRow | None:
    """The row in a message; None for the delete that precedes a tombstone."""
    content = orjson.loads(message.value())
    content = content.get("payload", content)
    after = content["after"]
    return None if after is None else StoredRow(key, version_in(message.headers()) or 0, after)
