"""Which partition of which topic it is, and whether a position is one that reading can go on from."""

from __future__ import annotations

import time
from dataclasses import dataclass

from changes.errors import HistoryGoneError, SourceError
from ingest.kafka.position import KafkaPosition
from servers.brokers import Broker

_DAY_MS = 86_400_000
NEW_HISTORY = "Backfill every view in a new history: viewtail replay --new-history"


@dataclass(frozen=True, slots=True)
class Place:
    """A partition, of the topic that had that name when this was made."""

    broker: Broker
    topic: str
    topic_id: str
    partition: int

    def end(self) -> int:
        """The offset behind the last message."""
        return self.broker.ends([(self.topic, self.partition)])[self.topic, self.partition]

    def firsts(self) -> dict[int, int]:
        """By partition, of the whole topic: the offset of the first message that is kept."""
        return self.broker.first_offsets(self.topic)

    def check(self, after: KafkaPosition) -> None:
        """Raises HistoryGoneError where what follows a position is not there any more."""
        self.check_is_of_this(after)
        self.check_is_there()
        first = self.firsts()[self.partition]
        if after.offset < first:
            raise self.gone(after.offset, first)
        end = self.end()
        if after.offset > end:
            raise HistoryGoneError(
                f"partition {self.partition} of topic {self.topic} ends at offset {end}, and viewtail has read up to "
                f"{after.offset}: messages that were acknowledged are lost. {NEW_HISTORY}"
            )

    def check_is_there(self) -> None:
        """Raises HistoryGoneError where another topic has the name now, whose offsets only look like those of this."""
        now = self.broker.id_of(self.topic)
        if now != self.topic_id:
            raise self._made_again(self.topic_id, now)

    def check_is_of_this(self, position: KafkaPosition) -> None:
        """Raises HistoryGoneError for a place in another topic of that name."""
        if position.topic_id != self.topic_id:
            raise self._made_again(position.topic_id, self.topic_id)

    def _made_again(self, was: str, now: str) -> HistoryGoneError:
        return HistoryGoneError(
            f"topic {self.topic} was deleted and made again (its id was {was} and is {now}): what viewtail had not "
            f"read of it is gone. {NEW_HISTORY}"
        )

    def check_deletes(self, after: KafkaPosition) -> None:
        """Raises HistoryGoneError where compaction may have taken deletes away that were not read yet."""
        config = self.broker.config([self.topic])[self.topic]
        if "compact" not in config.get("cleanup.policy", ""):
            return
        kept_ms = int(config.get("delete.retention.ms", _DAY_MS))
        since = self.broker.first_since(self.topic, self.partition, time.time_ns() // 1_000_000 - kept_ms)
        if since - after.offset > 1:  # one that is left is the end of a transaction
            raise HistoryGoneError(
                f"partition {self.partition} of topic {self.topic} was read up to offset {after.offset}, and not since "
                f"its delete.retention.ms ({kept_ms // 1000} s) ago: compaction may have taken deletes away"
            )

    def beginning(self) -> int:
        """The offset to fill views from. Raises SourceError where retention took some of their rows away."""
        first = self.firsts()[self.partition]
        if first and "compact" not in self.broker.config([self.topic])[self.topic].get("cleanup.policy", ""):
            raise SourceError(
                f"partition {self.partition} of topic {self.topic} begins at offset {first}: views cannot be filled "
                "from it, since messages of their rows were deleted. Let the connector make a new snapshot into a "
                "compacted topic, or have viewtail publish the table: viewtail run --role tail"
            )
        return first

    def gone(self, offset: int, first: int | None = None) -> HistoryGoneError:
        """The error of a place that the broker has not kept."""
        self.check_is_there()
        first = self.firsts()[self.partition] if first is None else first
        return HistoryGoneError(
            f"partition {self.partition} of topic {self.topic} begins at offset {first}, and viewtail has read up to "
            f"{offset}: messages between were deleted by the topic's retention before they were read. Give the topic a "
            f"longer retention.ms, or compaction. {NEW_HISTORY}"
        )
