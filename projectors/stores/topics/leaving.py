"""Removes data from Kafka: the topic of a view that is no longer declared. Finds what is left of one entity.

A topic has no guard and no way to take a message back: a tombstone is the newest message of a deleted key, and older
messages stay until Kafka removes them. A topic is viewtail's if its first message carries viewtail's version."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from projectors.stores.leaving import Found, Holds, Leftover, Retired, Trace, Traces
from projectors.stores.owners import Claimant, why_not_dropped
from projectors.stores.topics import owners
from projectors.stores.topics.admin import PresentTopic, Topics
from projectors.stores.topics.consuming import consumer_of, to_the_end
from projectors.stores.topics.views import POLICY
from projectors.views import BoundView
from viewtail.changes.counting import counted
from viewtail.changes.envelope_values import NOT_TAKEN, key_reader
from viewtail.changes.published import version_in
from viewtail.changes.writes import Key
from viewtail.servers.brokers import ASK_WITHIN_S, failed

_FOR_EVER = -1
_NO_BOUND = (1 << 63) - 1  # the default of max.compaction.lag.ms


class TopicLeftover(Leftover):
    """One topic. It is deleted in one step, including messages that its consumers have not read."""

    def __init__(self, client: Mapping[str, Any], retired: Retired, claimant: Claimant | None = None) -> None:
        """Only a topic of the deployment `claimant` is deleted."""
        self._client, self._retired, self._claimant = client, retired, claimant

    def look(self) -> Found:
        name = self._retired.name
        present = Topics(self._client).present([name]).get(name)
        if present is None:
            return Found()
        if why := self._why_not(present):
            return Found(left=(f"topic {name}: {why}",))
        count = sum(high - low for low, high in _bounds(self._client, name, present.partitions))
        return Found(
            count=1,
            dropped=(f"topic {name}: {counted(present.partitions, 'partitions')}, {counted(count, 'offsets')}",),
        )

    def drop(self, went_on: Callable[[int], None]) -> None:
        topics, name = Topics(self._client), self._retired.name
        present = topics.present([name]).get(name)
        if present is None or self._why_not(present):
            return
        went_on(0)
        topics.drop(name)
        went_on(1)

    def close(self) -> None:
        """Nothing is open between two calls."""

    def of_others(self) -> Sequence[str]:
        name = self._retired.name
        present = Topics(self._client).present([name]).get(name)
        why = "" if present is None else self._why_not_ours(present)
        return [f"topic {name}: {why}"] if why else []

    def _why_not_ours(self, present: PresentTopic) -> str:
        """Why the topic is not this deployment's; '' if it is."""
        name = self._retired.name
        claims = owners.claims_of(self._client, name, present.id)
        kept = [claim.owner for claim in claims if not claim.is_released]
        is_released = any(self._claimant is not None and self._claimant.is_owner(claim.owner) for claim in claims)
        why = why_not_dropped(f"kafka:{name}", claimant=self._claimant, owners=kept[:1], is_released=is_released)
        return why or ""

    def _why_not(self, present: PresentTopic) -> str:
        if why := self._why_not_ours(present):
            return why
        if self._retired.read_by:
            return f"it is the source of pipeline {', '.join(self._retired.read_by)}"
        with closing(_messages(self._client, self._retired.name, present.partitions)) as messages:
            first = next(messages, None)
        if first is None:
            return "it has no message that would tell whether viewtail wrote it"
        return (
            "" if version_in(first.headers()) is not None else "its messages are not viewtail's (they have no version)"
        )


class TopicTraces(Traces):
    """Finds the newest message of a key, and counts older ones with values. Reads the whole topic."""

    def __init__(self, client: Mapping[str, Any], view: BoundView) -> None:
        self._client, self._view = client, view
        self._read_key = key_reader(view.key)

    def of(self, key: Key) -> list[Trace]:
        name = self._view.view.name
        present = Topics(self._client).present([name]).get(name)
        if present is None:
            return [Trace(place=f"topic {name}", holds=Holds.NOTHING)]
        newest, with_values = None, []
        for message in _messages(self._client, name, present.partitions):
            if self._is_of(key, message):
                newest = message
                with_values += [] if message.value() is None else [message.timestamp()[1]]
        if newest is None:
            return [Trace(place=f"topic {name}", holds=Holds.NOTHING)]
        place = f"topic {name}, partition {newest.partition()}"
        if newest.value() is not None:
            return [Trace(place=place, holds=Holds.VALUES)]
        stays = f"{counted(len(with_values), 'older messages')} with values" if with_values else ""
        until = goes_when(present.config, max(with_values)) if with_values else ""
        return [Trace(place=place, holds=Holds.TOMBSTONE, stays=stays, until=until)]

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _is_of(self, key: Key, message: Any) -> bool:
        try:
            return self._read_key(message.key()) == key
        except NOT_TAKEN:  # another program's message
            return False


def goes_when(config: Mapping[str, str], newest_ms: int) -> str:
    """When Kafka removes a key's messages up to that time, which are followed by a tombstone."""
    policies = config.get(POLICY, "delete").split(",")
    times = []
    if "delete" in policies:
        times.append(_retained_until(config, newest_ms))
    if "compact" in policies:
        times.append(_compacted_when(config))
    return "; or ".join(times)


def _retained_until(config: Mapping[str, str], newest_ms: int) -> str:
    retention_ms = int(config.get("retention.ms", _FOR_EVER))
    if retention_ms == _FOR_EVER:
        return "for ever: retention.ms is -1; set it lower"
    # Kafka removes whole segments, and closes the newest one after segment.ms at the latest if more messages come.
    latest = (newest_ms + retention_ms + int(config.get("segment.ms", 0))) / 1000
    return f"{_moment(latest)} at the latest, by retention.ms and segment.ms, if messages go on coming"


def _compacted_when(config: Mapping[str, str]) -> str:
    lag_ms, gone_ms = int(config.get("max.compaction.lag.ms", _NO_BOUND)), int(config.get("delete.retention.ms", 0))
    tombstone = f"the tombstone itself goes {gone_ms / 3_600_000:.4g} h after that (delete.retention.ms)"
    if lag_ms >= _NO_BOUND:
        when = "Kafka compacts their segments, which has no bound in time: set max.compaction.lag.ms to give it one"
    else:
        latest = time.time() + (lag_ms + int(config.get("segment.ms", 0))) / 1000
        when = f"{_moment(latest)} at the latest, by max.compaction.lag.ms and segment.ms, if messages go on coming"
    return f"{when}; {tombstone}"


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}" if seconds < 1e11 else "for ever"


def _bounds(client: Mapping[str, Any], name: str, partitions: int) -> Sequence[tuple[int, int]]:
    with closing(consumer_of(client)) as consumer:
        try:
            return [
                consumer.get_watermark_offsets(TopicPartition(name, number), timeout=ASK_WITHIN_S)
                for number in range(partitions)
            ]
        except KafkaException as error:
            raise failed(error, f"reading the topic {name}") from None


def _messages(client: Mapping[str, Any], name: str, partitions: int) -> Generator[Any]:
    """Yield every committed message, each partition from its beginning to its end."""
    firsts = [low for low, _ in _bounds(client, name, partitions)]
    with closing(consumer_of(client)) as consumer:
        try:
            for number, first in enumerate(firsts):
                yield from to_the_end(consumer, TopicPartition(name, number, first))
        except KafkaException as error:
            raise failed(error, f"reading the topic {name}") from None
