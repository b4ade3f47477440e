"""A place in a partition of a topic, as a position of a source."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from viewtail.changes.positions import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPosition:
    """Behind a message of a partition, and which topic of that name it was."""

    epoch: int
    topic: str
    topic_id: str
    partition: int
    offset: int  # of the next message
    version: int  # of the newest change up to here, or of the progress that was passed; never falls
    # While views are filled by reading from the topic's beginning: since when, and how far the others had come then.
    filling_since_ms: int = 0
    before_filling: int = 0  # offset of the next message

    @property
    def order(self) -> tuple[int, ...]:
        """As a Position's: rows that fill a topic, and progress, move the offset and no version."""
        return self.epoch, self.version, self.offset

    @property
    def shown(self) -> int:
        """The offset up to which views show the topic, those that are being filled apart."""
        return max(self.offset, self.before_filling)

    def details(self) -> dict[str, str]:
        return {"topic": self.topic, "topic_id": self.topic_id}

    def to_text(self) -> str:
        """One line of JSON."""
        return orjson.dumps(self).decode()

    @classmethod
    def from_text(cls, text: str | bytes) -> KafkaPosition:
        """The inverse of `to_text`; raises ValueError on anything else."""
        found = orjson.loads(text)
        try:
            return cls(
                epoch=int(found["epoch"]),
                topic=str(found["topic"]),
                topic_id=str(found["topic_id"]),
                partition=int(found["partition"]),
                offset=int(found["offset"]),
                version=int(found["version"]),
                filling_since_ms=int(found.get("filling_since_ms", 0)),
                before_filling=int(found.get("before_filling", 0)),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the text of a position: {error!r}") from None

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}:{self.offset}"


BEFORE_ALL = KafkaPosition(epoch=0, topic="", topic_id="", partition=0, offset=0, version=0)


def own(position: Position) -> KafkaPosition:
    """A position that a topic gave, as such."""
    assert isinstance(position, KafkaPosition), f"{position} is another source's"
    return position
