"""Makes batches of the messages of a partition. Pure.

Runs for every message, so what most messages need is done by one call each and comprehensions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from ingest.kafka.position import KafkaPosition
from viewtail.changes.batches import DELETE, INSERT, UPDATE, Batch, Followed, Refused, Row, RowChanges, Unreadable
from viewtail.changes.envelope_reading import EnvelopeReader, KeyOnlyDeleteError, MalformedEnvelopeError
from viewtail.changes.envelope_runs import RunReader, joined
from viewtail.changes.envelope_values import NOT_TAKEN, key_reader
from viewtail.changes.published import VERSION_HEADER, version_in
from viewtail.changes.tables import Column

Change: TypeAlias = RowChanges | Refused

_MOST_ROWS = 10_000  # of an event
_MOST_TIMES = 8  # a row that is updated so often makes its event so much longer
_TIME = re.compile(rb'"ts_us":([0-9]{1,17})[,}]')


class Message(Protocol):
    """A message as confluent-kafka gives it, as far as it is used."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def offset(self) -> int: ...
    def headers(self) -> list[tuple[str, bytes]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """The form of a topic that viewtail does not write."""

    shows_default_for_null: bool = True  # see EnvelopeReader


class Batching:
    """Makes the batches of one partition from one position on.

    Args:
        followed: the topic's table; None: nobody wants its rows.
        foreign: where another program writes the topic.
    """

    def __init__(self, followed: Followed | None, position: KafkaPosition, foreign: Foreign | None = None) -> None:
        self._position = position
        self._reading: _Reading | None = None
        if followed is not None:
            key = [column for name in followed.table.paging_key if (column := followed.table.column(name)) is not None]
            self._reading = _Reading(followed, key, foreign, f"{position.topic}/{position.partition}")
        self.version = position.version

    def batch(self, messages: Sequence[Message]) -> Batch:
        """The changes that these messages hold, in their order."""
        values = [message.value() for message in messages]
        changes: list[Any] = []
        is_amid = False
        if self._reading is not None:
            changes, self.version = self._reading.changes(messages, values, self.version)
            # A foreign tombstone says nothing of the delete it stands behind: they are read together after a restart.
            is_amid = self._reading.awaits_tombstone
        refused = _refused(changes) if Unreadable.made else []
        if refused:
            changes = [change for change in changes if change.__class__ is RowChanges]
        return Batch(
            changes=changes,
            end=self.position(messages[-1].offset() + (not is_amid)),
            row_count=len(messages),
            byte_count=sum([len(value) for value in values if value is not None]),
            oldest_commit_us=committed_us(messages[0]),
            refused=refused,
        )

    def filled(self) -> None:
        """Note that all that the topic held was read."""
        self._position = replace(self._position, filling_since_ms=0, before_filling=0)

    def position(self, offset: int) -> KafkaPosition:
        """Return the position at an offset, behind everything that was read."""
        return replace(self._position, offset=offset, version=self.version)


class _Reading:
    """Reads the messages of one table. `place` is what dead letters call the partition."""

    def __init__(self, followed: Followed, key: Sequence[Column], foreign: Foreign | None, place: str) -> None:
        self._followed = followed
        self._is_foreign = foreign is not None
        self._event, self._updates = 0, dict[bytes | None, int]()  # its version, and how often it updated each key
        self._awaited: bytes | None = None  # the key of the last message, where that was a delete
        self._place = place
        shows_default = foreign is None or foreign.shows_default_for_null
        reader = EnvelopeReader(followed, key, shows_default_for_null=shows_default)
        self._read: Callable[[bytes], Change] = reader.read
        self._runs = RunReader(followed, reader)
        self._key_names = [column.name for column in key]
        self._read_key = key_reader(key)

    @property
    def awaits_tombstone(self) -> bool:
        """Return whether the last message was another program's delete."""
        return self._is_foreign and self._awaited is not None

    def changes(
        self, messages: Sequence[Message], values: Sequence[bytes | None], version: int
    ) -> tuple[list[Any], int]:
        """The changes, and the newest version up to their end. `version` is that up to their beginning."""
        # What another program may have lost of a value, only a look at each message tells.
        if None not in values and not self._is_foreign:
            try:
                changes_read = self._runs.read_all(values)  # type: ignore[arg-type]
                self._awaited = messages[-1].key() if changes_read[-1][1] == DELETE else None
                return changes_read, max(version, max((change[2] for change in changes_read), default=0))
            except MalformedEnvelopeError:
                pass
        changes, version = self._carefully(messages, version)
        return joined(changes), version

    def _change(self, message: Message, value: bytes, version: int) -> Change:
        try:
            change = self._read(value)
        except KeyOnlyDeleteError:
            change = self._deleted(message, version)
        except MalformedEnvelopeError as error:
            change = self._malformed(message, version, str(error))
        if self._is_foreign and change.kind == UPDATE:
            return self._told_apart(change, message.key())
        return change

    def _carefully(self, messages: Sequence[Message], version: int) -> tuple[list[Change], int]:
        """Read each message alone; one that cannot be read, and says no version, has that of what came before it."""
        changes: list[Change] = []
        for message in messages:
            key, value = message.key(), message.value()
            if value is not None:
                change = self._change(message, value, version)
                version = max(version, change.version)
                changes.append(change)
                self._awaited = key if change.kind == DELETE else None
                continue
            if key != self._awaited or key is None:
                change = self._deleted(message, version)
                version = version if self._is_foreign else max(version, change.version)
                changes.append(change)
            self._awaited = None
        return changes, version

    def _told_apart(self, change: Change, key: bytes | None) -> Change:
        """One event may update a row twice: the later change gets the next version, as far as the event is long."""
        if change.version != self._event:
            self._event, self._updates = change.version, {}
        count = self._updates.get(key, 0)
        if len(self._updates) < _MOST_ROWS:
            self._updates[key] = count + 1
        return change._replace(version=change.version + min(count, _MOST_TIMES))

    def _deleted(self, message: Message, version: int) -> Change:
        """Make the delete that a tombstone alone stands for: compaction took the delete, or a replay found no row.

        Another program's says no version. It is newer than all that came before it in the partition, and older than
        all events behind its own.
        """
        row = self._row(message.key(), None)
        own_version = version + 1 if self._is_foreign else version_in(message.headers())
        if row is None or own_version is None:
            what = "the key" if row is None else f"the header {VERSION_HEADER}"
            return self._malformed(message, version, f"a delete, of which {what} cannot be read")
        return RowChanges(self._followed, DELETE, own_version, [row])

    def _malformed(self, message: Message, version: int, why: str) -> Refused:
        """Refuse a message: its key parks, under its name where that can be read."""
        bad = Unreadable("(all)", why)
        row = self._row(message.key(), bad) or tuple([bad] * len(self._followed.columns))
        own_version = version_in(message.headers())
        version = version if own_version is None else own_version
        return Refused(self._followed, INSERT, version, [row], f"{self._place}/{message.offset()}: {why}")

    def _row(self, key: bytes | None, others: Unreadable | None) -> Row | None:
        """A row of which only the key is known; None where not even that."""
        try:
            values = dict(zip(self._key_names, self._read_key(key), strict=True))
        except NOT_TAKEN:
            return None
        return tuple([values.get(name, others) for name in self._followed.columns])


def committed_us(message: Message) -> int:
    """Return when the change was committed, as its source says; else when the message was written."""
    value = message.value() or b""
    if match := _TIME.search(value, max(0, value.rfind(b'"source":{'))):
        return int(match[1])
    return max(0, message.timestamp()[1]) * 1000


def _refused(changes: Sequence[Any]) -> list[Refused]:
    return [change for change in changes if change.__class__ is Refused]
