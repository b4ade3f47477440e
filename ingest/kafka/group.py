"""The consumer group: its members share the partitions out, and so decide which partitions this process reads.

The group is only for membership. No message is fetched through it and no offset is taken from it: its partitions are
paused, and each has a consumer of its own (source.py) that begins at viewtail's offset in MySQL. Offsets are committed
to the group only for tools that show lag."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from ingest import TakeParts
from ingest.kafka.position import KafkaPosition
from ingest.kafka.sharing import is_before, shared_with
from viewtail.changes.errors import SourceError, SourceUnavailableError
from viewtail.servers.brokers import SOURCE, GroupMember, failed

_log = structlog.get_logger("viewtail.source")

_POLL_S = 0.2
_LOOK_EVERY_S = 5.0  # how often it checks whether trouble is over, and commits offsets
_ANSWER_WITHIN_S = 1.0
# The user's options of librdkafka may differ.
_PACE = {
    # A member that died or hangs is removed after the first; the others learn of it at their next heartbeat.
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 1_000,
    "topic.metadata.refresh.interval.ms": 5_000,  # a new topic or partition is known within this time
}
_MEMBER = {
    "partition.assignment.strategy": "cooperative-sticky",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 64,
}


class Group:
    """A member of a group. A thread calls `run`.

    Args:
        name: this member's client.id, see sharing.py.
        taken: called in that thread with partitions that are this member's from now on.
        given_up: called with partitions that it loses; returns when their reading has stopped, or soon.
        others: returns the members of other deployments, as the broker reports them."""

    def __init__(
        self,
        client: Mapping[str, Any],
        group: str,
        name: str,
        topics: Sequence[str],
        taken: TakeParts,
        given_up: TakeParts,
        others: Callable[[], Sequence[GroupMember]] = tuple,
    ) -> None:
        self.settings = {**_PACE, **client, **_MEMBER, "client.id": name, "group.id": group}
        self._name, self._group, self._others = name, group, others
        self._is_look_due = False  # whether the members must be checked after an assignment
        self._topics = list(topics)
        self._taken, self._given_up = taken, given_up
        self.trouble: str | None = None  # why the group cannot be reached
        self.rebalance_count = 0

    def run(self, stop: threading.Event, positions: Callable[[], Sequence[Any]]) -> None:
        """Be a member until `stop` is set; `positions` returns the positions of the partitions' readers.

        Raises SourceError if the broker refuses this member, or another deployment is in the group."""
        self._require_own(lambda _: True)
        consumer = Consumer({**self.settings, "error_cb": self._heard})
        try:
            consumer.subscribe(self._topics, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)
            looked_at = time.monotonic()
            while not stop.is_set():
                self._look_at(consumer.poll(_POLL_S))
                if time.monotonic() - looked_at > _LOOK_EVERY_S:
                    looked_at = time.monotonic()
                    self._look_again(consumer)
                    self._look_for_others()
                    self._commit(consumer, positions())
        except KafkaException as error:
            raise failed(error, "being a member of the consumer group", SOURCE) from None
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.trouble = None
        self.rebalance_count += 1
        self._is_look_due = True
        if not partitions:
            return
        parts = [TopicPartition(partition.topic, partition.partition, OFFSET_END) for partition in partitions]
        consumer.incremental_assign(parts)
        consumer.pause(parts)
        self._taken([(partition.topic, partition.partition) for partition in partitions])

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._given_up([(partition.topic, partition.partition) for partition in partitions])
        consumer.incremental_unassign(partitions)

    def _look_for_others(self) -> None:
        """Check for other deployments after an assignment. Of two that joined at once, one leaves, and the broker
        rebalances."""
        if self._is_look_due:
            self._is_look_due = not self._require_own(lambda other: not is_before(self._name, other))

    def _require_own(self, is_to_go_for: Callable[[GroupMember], bool]) -> bool:
        """Raise SourceError if this member must leave for another deployment's; False if they could not be read."""
        try:
            others = [member for member in self._others() if is_to_go_for(member)]
        except SourceUnavailableError as error:  # the group reports the same trouble
            _log.debug("members of the group not known", error=str(error))
            return False
        if others:
            raise SourceError(shared_with(self._group, (f"{member.client} at {member.host}" for member in others)))
        return True

    def _look_at(self, message: Any) -> None:
        error = None if message is None else message.error()
        if error is None:
            return
        if error.fatal() or error.code() in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION):
            raise KafkaException(error)
        self._heard(error)

    def _heard(self, error: KafkaError) -> None:
        self.trouble = f"Kafka: {error.str()} ({error.name()})"
        _log.debug("group", error=self.trouble)

    def _look_again(self, consumer: Consumer) -> None:
        """Check whether trouble is over: the client reports only its beginning."""
        if self.trouble is None:
            return
        try:
            there = consumer.list_topics(timeout=_ANSWER_WITHIN_S).topics
        except KafkaException:
            return
        missing = [name for name in self._topics if name not in there or there[name].error]
        names = f"no topic {', '.join(missing)}"
        self.trouble = f"Kafka has {names} yet, or the user may not see it" if missing else None

    @staticmethod
    def _commit(consumer: Consumer, positions: Sequence[Any]) -> None:
        """Commit offsets to the group for people to see; a failure is only logged."""
        own_positions = [position for position in positions if isinstance(position, KafkaPosition)]
        if not own_positions:
            return
        try:
            offsets = [
                TopicPartition(position.topic, position.partition, position.offset) for position in own_positions
            ]
            consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            _log.debug("offsets not committed to the group", error=str(error))
