"""A partition of a particular topic, and the checks whether reading can continue from a position in it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ingest.kafka.position import KafkaPosition
from viewtail.changes.errors import HistoryGoneError, SourceError, SourceUnavailableError
from viewtail.servers.brokers import Broker

_DAY_MS = 86_400_000
_POLICY = "cleanup.policy"
NEW_HISTORY = "Stop the projectors, then have every view backfilled: viewtail replay --new-history"


@dataclass(frozen=True, slots=True)
class Place:
    """A partition of the topic that had this name when the object was made."""

    broker: Broker
    topic: str
    topic_id: str
    partition: int

    def end(self) -> int:
        """The offset behind the last message."""
        return self.broker.ends([(self.topic, self.partition)])[self.topic, self.partition]

    def firsts(self) -> dict[int, int]:
        """Return, by partition of the whole topic, the offset of the first message that is still kept."""
        return self.broker.first_offsets(self.topic)

    def check(self, after: KafkaPosition) -> None:
        """Raise HistoryGoneError if messages behind a position are no longer there."""
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
        """Raise HistoryGoneError if another topic has the name now: its offsets mean something else.

        Raises SourceUnavailableError if no topic has the name."""
        try:
            now = self.broker.id_of(self.topic)
        except SourceUnavailableError:
            if self.topic in self.broker.partitions():
                raise
            raise SourceUnavailableError(
                f"the topic {self.topic} was deleted (its id was {self.topic_id}), or the user may not see it any "
                "more. A running tailer makes and fills it again"
            ) from None
        if now != self.topic_id:
            raise self._made_again(self.topic_id, now)

    def check_is_of_this(self, position: KafkaPosition) -> None:
        """Raise HistoryGoneError if a position is in another topic of this name."""
        if position.topic_id != self.topic_id:
            raise self._made_again(position.topic_id, self.topic_id)

    def _made_again(self, was: str, now: str) -> HistoryGoneError:
        return HistoryGoneError(
            f"the topic {self.topic} was deleted and made anew since viewtail read it (its id was {was} and is {now}): "
            f"what viewtail had not read of the earlier one is gone. {NEW_HISTORY}"
        )

    def check_deletes(self, shown: int) -> None:
        """Raise HistoryGoneError if compaction may have removed deletes behind `shown`, the offset that views show."""
        kept_ms = self._deletes_kept_ms()
        if kept_ms is None:
            return
        since = self.broker.first_since(self.topic, self.partition, time.time_ns() // 1_000_000 - kept_ms)
        if since - shown > 1:  # a single offset is the end of a transaction
            raise HistoryGoneError(
                f"partition {self.partition} of topic {self.topic} was read up to offset {shown}, and not since "
                f"its delete.retention.ms ({kept_ms // 1000} s) ago: compaction may have taken deletes away"
            )

    def check_filling(self, at: KafkaPosition, now_ms: int) -> None:
        """Raise HistoryGoneError if views that are being filled may have missed deletes.

        Compaction keeps a tombstone for delete.retention.ms after the pass that removed the values before it. A reader
        that read those values must reach the tombstone within that time, or may find none."""
        kept_ms = self._deletes_kept_ms() if at.filling_since_ms else None
        took_ms = now_ms - at.filling_since_ms
        if kept_ms is not None and took_ms > kept_ms:
            raise HistoryGoneError(
                f"reading partition {self.partition} of topic {self.topic} from its beginning has taken "
                f"{took_ms // 1000} s, longer than its delete.retention.ms ({kept_ms / 1000:g} s): compaction may have "
                "taken deletes away meanwhile. Raise that setting of the topic"
            )

    def is_compacted(self) -> bool:
        """Return whether Kafka removes messages that are followed by a newer one of their key."""
        return "compact" in self._config().get(_POLICY, "")

    def _config(self) -> dict[str, str]:
        return self.broker.config([self.topic])[self.topic]

    def _deletes_kept_ms(self) -> int | None:
        """Return how long tombstones are kept; None if the topic is not compacted."""
        config = self._config()
        return int(config.get("delete.retention.ms", _DAY_MS)) if "compact" in config.get(_POLICY, "") else None

    def beginning(self) -> int:
        """The offset to fill views from. Raises SourceError if retention removed some of their rows."""
        first = self.firsts()[self.partition]
        policy = self._config().get(_POLICY, "")
        if first and set(policy.split(",")) != {"compact"}:
            raise SourceError(
                f"partition {self.partition} of topic {self.topic} begins at offset {first}: views cannot be filled "
                f"from it, since its retention (cleanup.policy={policy}) deleted messages of their rows. Have the rows "
                "published again into a topic that is only compacted: by viewtail, Topic(..., compact=True) under "
                "another name; by a connector, a new snapshot. Or have viewtail read the rows from the table: "
                "VIEWTAIL_SOURCE__FILL_FROM=table"
            )
        return first

    def gone(self, offset: int, first: int | None = None) -> HistoryGoneError:
        """The error for an offset that the broker has not kept."""
        self.check_is_there()
        first = self.firsts()[self.partition] if first is None else first
        return HistoryGoneError(
            f"partition {self.partition} of topic {self.topic} begins at offset {first}, and viewtail has read up to "
            f"{offset}: messages between were deleted by the topic's retention before they were read. Give the topic a "
            f"longer retention.ms, or compaction. {NEW_HISTORY}"
        )
