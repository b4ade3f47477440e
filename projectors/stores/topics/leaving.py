"""Removes data from Kafka: the topic of a view that is no longer declared. Finds what is left of one entity.

A topic has no guard and no way to take a message back: a tombstone is the newest message of a deleted key, and older
messages stay until Kafka removes them. A topic is viewtail's if its first message carries viewtail's version."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from projectors.stores.leaving import Holds, LeftoverParts, Part, Retired, Trace, Traces
from projectors.stores.owners import NOBODY, Claimant, why_not_dropped
from projectors.stores.topics import owners
from projectors.stores.topics.admin import PresentTopic, Topics
from projectors.stores.topics.consuming import consumer_of, first_message, messages_of
from projectors.stores.topics.views import POLICY
from projectors.views import BoundView
from viewtail.changes.counting import counted
from viewtail.changes.envelope_values import NOT_TAKEN, key_reader
from viewtail.changes.published import version_in
from viewtail.changes.writes import Key
from viewtail.servers.brokers import ASK_WITHIN_S, failed

_FOR_EVER = -1
_NO_BOUND = (1 << 63) - 1  # the default of max.compaction.lag.ms


class TopicLeftover(LeftoverParts):
    """One topic. It is deleted in one step, including messages that its consumers have not read."""

    kind = "topic"

    def __init__(self, client: Mapping[str, Any], retired: Retired, claimant: Claimant = NOBODY) -> None:
        """Only a topic of the deployment `claimant` is deleted."""
        self._client, self._retired, self._claimant = client, retired, claimant

    def parts(self) -> Iterator[Part]:
        name = self._retired.name
        if (present := Topics(self._client).present([name]).get(name)) is None:
            return
        claims = owners.claims_of(self._client, name, present.id)
        why = why_not_dropped(
            f"kafka:{name}",
            claimant=self._claimant,
            owners=owners.kept_by(claims),
            is_released=any(self._claimant.is_owner(claim.owner) for claim in claims),
        )
        yield Part(name, why or self._why_kept(present), is_of_another=why is not None)

    def described(self, name: str) -> str:
        bounds = _bounds(self._client, name, Topics(self._client).partitions().get(name, 0))
        return f"{counted(len(bounds), 'partitions')}, {counted(sum(high - low for low, high in bounds), 'offsets')}"

    def remove(self, name: str) -> None:
        Topics(self._client).drop(name)

    def _why_kept(self, present: PresentTopic) -> str | None:
        """The reason why a topic of this deployment stays; None if it is dropped."""
        if self._retired.read_by:
            return f"it is the source of pipeline {', '.join(self._retired.read_by)}"
        first = first_message(self._client, self._retired.name, present.partitions)
        if first is None:
            return "it has no message that would tell whether viewtail wrote it"
        return (
            None
            if version_in(first.headers()) is not None
            else "its messages are not viewtail's (they have no version)"
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
        for message in messages_of(self._client, name, range(present.partitions)):
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
