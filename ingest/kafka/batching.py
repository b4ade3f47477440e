"""Makes batches of the messages of a partition. Pure.

Runs for every message, so what most messages need is done by one call each and comprehensions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import orjson

from changes.batches import DELETE, INSERT, Batch, Followed, Refused, Row, RowChanges, Unreadable
from changes.envelope_reading import EnvelopeReader, MalformedEnvelopeError
from changes.envelope_runs import RunReader, joined
from changes.envelope_values import NOT_TAKEN, own
from changes.published import VERSION_HEADER, version_in
from ingest.kafka.position import KafkaPosition

Change: TypeAlias = RowChanges | Refused

_TIME = re.compile(rb'"ts_us":([0-9]{1,17})[,}]')


class Message(Protocol):
    """What is asked of a message, as confluent-kafka gives it."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def offset(self) -> int: ...
    def headers(self) -> list[tuple[str, bytes]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class Batching:
    """Of one partition, from one position on. `followed` is the topic's table; None: nobody wants its rows."""

    def __init__(self, followed: Followed | None, position: KafkaPosition) -> None:
        self._position = position
        self._reading = None if followed is None else _Reading(followed, f"{position.topic}/{position.partition}")
        self.version = position.version

    def batch(self, messages: Sequence[Message]) -> Batch:
        """The changes that these messages hold, in their order."""
        values = [message.value() for message in messages]
        changes = [] if self._reading is None else self._reading.changes(messages, values, self.version)
        self.version = max(self.version, max((one[2] for one in changes), default=0))
        refused = [one for one in changes if one.__class__ is Refused] if Unreadable.made else []
        if refused:
            changes = [one for one in changes if one.__class__ is RowChanges]
        return Batch(
            changes=changes,
            end=self.position(messages[-1].offset() + 1),
            row_count=len(messages),
            byte_count=sum([len(value) for value in values if value is not None]),
            oldest_commit_us=committed_us(messages[0]),
            refused=refused,
        )

    def filled(self) -> None:
        """Behind here all that the topic holds was read."""
        self._position = replace(self._position, filling_since_ms=0, before_filling=0)

    def position(self, offset: int) -> KafkaPosition:
        """Behind everything that was read."""
        return replace(self._position, offset=offset, version=self.version)


class _Reading:
    """The messages of one table. `place` is what dead letters call the partition."""

    def __init__(self, followed: Followed, place: str) -> None:
        table = followed.table
        key = [column for name in table.paging_key if (column := table.column(name)) is not None]
        self._followed = followed
        self._place = place
        reader = EnvelopeReader(followed, key)
        self._read: Callable[[bytes], Change] = reader.read
        self._runs = RunReader(followed, reader)
        self._keys = {column.name: own(column) for column in key}

    def changes(self, messages: Sequence[Message], values: Sequence[bytes | None], version: int) -> list[Any]:
        """`version` is that of what cannot be read, which says none."""
        if None not in values:
            try:
                return self._runs.read_all(values)  # type: ignore[arg-type]
            except MalformedEnvelopeError:
                pass
        return joined(list(self._carefully(messages, version)))

    def _carefully(self, messages: Sequence[Message], version: int) -> Iterator[Change]:
        last_key: bytes | None = None
        for message in messages:
            key, value = message.key(), message.value()
            if value is not None:
                try:
                    change = self._read(value)
                except MalformedEnvelopeError as error:
                    change = self._malformed(message, version, str(error))
                version = max(version, change.version)
                yield change
            elif key != last_key:  # else the message before says what was deleted
                yield self._deleted(message, version)
            last_key = key

    def _deleted(self, message: Message, version: int) -> Change:
        """Of a delete that compaction took away its tombstone is left."""
        row = self._row(message.key(), None)
        found = version_in(message.headers())
        if row is None or found is None:
            what = "the key" if row is None else f"the header {VERSION_HEADER}"
            return self._malformed(message, version, f"a tombstone, of which {what} cannot be read")
        return RowChanges(self._followed, DELETE, found, [row])

    def _malformed(self, message: Message, version: int, why: str) -> Refused:
        """Its key parks, under its name where that can be read."""
        bad = Unreadable("(all)", why)
        row = self._row(message.key(), bad) or tuple([bad] * len(self._followed.columns))
        found = version_in(message.headers())
        said = version if found is None else found
        return Refused(self._followed, INSERT, said, [row], f"{self._place}/{message.offset()}: {why}")

    def _row(self, key: bytes | None, others: Unreadable | None) -> Row | None:
        """A row of which only the key is known; None where not even that."""
        try:
            found = orjson.loads(key or b"")
            found = found.get("payload", found)
            values = {name: read(found[name]) for name, read in self._keys.items()}
        except NOT_TAKEN:
            return None
        return tuple([values.get(name, others) for name in self._followed.columns])


def committed_us(message: Message) -> int:
    """When the change was committed, as its source says; else when the message was written."""
    value = message.value() or b""
    if found := _TIME.search(value, max(0, value.rfind(b'"source":{'))):
        return int(found[1])
    return max(0, message.timestamp()[1]) * 1000
