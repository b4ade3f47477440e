"""The topic of positions: how far each pipeline has published, in the same transaction as what it published.

One record a pipeline, keyed by it; compaction keeps the newest. Its value is a JSON object:

    position    as the source writes it: everything up to here is in the topics. It is the pipeline's witness.
    fills       how far the filling of each new topic has come, by view
    progress    now and then: a version, and by topic the end of each partition behind all messages up to that version;
                and the watermarks that were seen up to there. A consumer of a quiet partition learns from it how far
                it has come.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaException, TopicPartition

from changes.errors import StoreError, StoreUnavailableError
from projectors.stores.topics.admin import ASK_WITHIN_S, Topics, failed
from projectors.stores.topics.consuming import consumer_of, to_the_end
from projectors.stores.topics.rules import POSITIONS

_FIRST_LOOK = 1_000  # so many offsets back from the end, where the pipeline's last record is as a rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """All messages up to a version lie before these offsets."""

    version: int
    ends: Mapping[str, Sequence[int]]  # by topic, of each partition
    watermarks: Mapping[str, int] = field(default_factory=dict)  # token -> version, of those seen since the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a record says."""

    position: str
    fills: Mapping[str, str] = field(default_factory=dict)
    progress: Progress | None = None

    def to_json(self) -> bytes:
        """Versions are texts: JavaScript's numbers end at 2^53."""
        found: dict[str, Any] = {"position": self.position}
        if self.fills:
            found["fills"] = dict(self.fills)
        if (progress := self.progress) is not None:
            watermarks = {token: str(version) for token, version in progress.watermarks.items()}
            found["progress"] = {"version": str(progress.version), "ends": progress.ends, "watermarks": watermarks}
        return orjson.dumps(found)

    @classmethod
    def from_json(cls, text: bytes) -> Published:
        """Raises ValueError for what viewtail did not write."""
        try:
            found = orjson.loads(text)
            progress = found.get("progress")
            return cls(
                position=str(found["position"]),
                fills={str(view): str(key) for view, key in found.get("fills", {}).items()},
                progress=None if progress is None else _progress(progress),
            )
        except (KeyError, TypeError, AttributeError, orjson.JSONDecodeError) as error:
            raise ValueError(f"it is no record of viewtail's ({type(error).__name__})") from None


def _progress(found: Any) -> Progress:
    return Progress(
        version=int(found["version"]),
        ends={str(topic): [int(end) for end in ends] for topic, ends in found["ends"].items()},
        watermarks={str(token): int(version) for token, version in found["watermarks"].items()},
    )


def record_key(database: str, pipeline: str) -> bytes:
    """Of a pipeline's record; deployments may share a cluster, so their database is in it."""
    return f"{database}.{pipeline}".encode()


def last_published(client: Mapping[str, Any], topics: Topics, key: bytes) -> Published | None:
    """The newest committed record of a pipeline; None when there is none.

    The caller has fenced every other writer of it. Raises StoreUnavailableError while another pipeline's transaction
    keeps the topic's end from being read.
    """
    (end,) = topics.end_offsets(POSITIONS, 1)
    with closing(consumer_of(client)) as consumer:
        try:
            low, _ = _ends(consumer, end)
            start, found = end, None
            while found is None and start > low:
                start = max(low, end - 20 * (end - start) - _FIRST_LOOK)
                found = _newest(consumer, start, key)
        except KafkaException as error:
            raise failed(error, f"reading {POSITIONS}") from None
    try:
        return None if found is None else Published.from_json(found)
    except ValueError as error:
        raise StoreError(f"Kafka: the record {key.decode()} of the topic {POSITIONS} cannot be read: {error}") from None


def _ends(consumer: Consumer, end: int) -> tuple[int, int]:
    """The first offset, and one behind the last that can be read, once that is `end`."""
    deadline = time.monotonic() + ASK_WITHIN_S
    while True:
        low, high = consumer.get_watermark_offsets(TopicPartition(POSITIONS, 0), timeout=ASK_WITHIN_S)
        if high >= end:
            return low, high
        if time.monotonic() > deadline:
            raise StoreUnavailableError(
                f"Kafka: another pipeline's transaction is open in {POSITIONS}, so its end cannot be read: that "
                "pipeline was killed while it committed. It ends when that pipeline runs again, or after "
                "transaction.timeout.ms. viewtail tries again by itself"
            )
        time.sleep(0.05)


def _newest(consumer: Consumer, start: int, key: bytes) -> bytes | None:
    """The value of the last record with that key from `start` on."""
    found = None
    for message in to_the_end(consumer, TopicPartition(POSITIONS, 0, start)):
        if message.key() == key:
            found = message.value()
    return found
