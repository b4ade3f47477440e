"""A position of a Kafka source: an offset in a partition of a topic."""

from __future__ import annotations

from dataclasses import dataclass

from viewtail.changes.positions import FieldsAsText, Position


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPosition(FieldsAsText):
    """A position behind a message of a partition, with the id of the topic that had the name."""

    epoch: int
    topic: str
    topic_id: str
    partition: int
    offset: int  # of the next message
    version: int  # of the newest change or progress up to here; never decreases
    # While views are filled by reading the topic from its beginning: when that began, and how far other views were
    # then.
    filling_since_ms: int = 0
    before_filling: int = 0  # offset of the next message

    @property
    def order(self) -> tuple[int, ...]:
        """See Position: rows that fill a topic, and progress, move the offset but not the version."""
        return self.epoch, self.version, self.offset

    @property
    def shown(self) -> int:
        """The offset up to which views show the topic, except those that are being filled."""
        return max(self.offset, self.before_filling)

    def details(self) -> dict[str, str]:
        return {"topic": self.topic, "topic_id": self.topic_id}

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}:{self.offset}"


BEFORE_ALL = KafkaPosition(epoch=0, topic="", topic_id="", partition=0, offset=0, version=0)


def own(position: Position) -> KafkaPosition:
    """The position as a KafkaPosition."""
    assert isinstance(position, KafkaPosition), f"{position} is another source's"
    return position
