"""Creates missing topics on the broker, and compares existing ones with their declarations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from projectors.stores.topics.views import POLICY, Topic
from viewtail.changes.counting import agreeing, counted
from viewtail.changes.errors import StoreError, StoreUnavailableError
from viewtail.servers.brokers import ASK_WITHIN_S, Broker, failed

# For the topic of positions: it is read from its end, so records that are not compacted yet cost nothing.
_POSITIONS_CONFIG = {POLICY: "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentTopic:
    """An existing topic."""

    id: str
    partitions: int
    config: Mapping[str, str]

    @property
    def most_bytes(self) -> int:
        """The maximum size of one message."""
        return int(self.config.get("max.message.bytes", 1048588))


class Topics(Broker):
    """Asks the broker about topics, and creates them. Raises StoreUnavailableError, StoreError."""

    def present(self, names: Sequence[str]) -> dict[str, PresentTopic]:
        """The topics among these that exist."""
        partitions = self.partitions()
        there = [name for name in names if name in partitions]
        if not there:
            return {}
        config, ids = self.config(there), self.ids_of(there)
        return {name: PresentTopic(id=ids[name], partitions=partitions[name], config=config[name]) for name in there}

    def make(self, topics: Sequence[Topic]) -> tuple[dict[str, PresentTopic], dict[str, str]]:
        """Create missing topics; returns all that exist, and by name why the others could not be created."""
        names = [topic.name for topic in topics]
        present = self.present(names)
        refused = self._make([_new(topic) for topic in topics if topic.name not in present])
        deadline = time.monotonic() + ASK_WITHIN_S
        while len(present) + len(refused) < len(names) and time.monotonic() < deadline:
            time.sleep(0.02)  # a topic is listed a moment after its creation
            present = self.present(names)
        return present, refused

    def refusals(self, topics: Sequence[Topic]) -> dict[str, str]:
        """The reasons why the broker would not create topics, by name. Creates nothing."""
        return self._make([_new(topic) for topic in topics], validate_only=True)

    def make_positions(self, name: str) -> None:
        """Create a topic of positions if it is missing."""
        new = NewTopic(name, num_partitions=1, replication_factor=-1, config=_POSITIONS_CONFIG)
        for why in self._make([new]).values():
            raise StoreError(why)

    def drop(self, name: str) -> None:
        """Delete a topic with all its messages; a topic that is gone already is no error."""
        for future in self._ask("deleting a topic", lambda: self._client.delete_topics([name])).values():
            try:
                future.result(ASK_WITHIN_S)
            except (KafkaException, TimeoutError) as error:
                if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise failed(error, f"deleting the topic {name}") from None

    def _make(self, new: list[NewTopic], **options: bool) -> dict[str, str]:
        refused: dict[str, str] = {}
        if not new:
            return refused
        for name, future in self._ask("creating topics", lambda: self._client.create_topics(new, **options)).items():
            try:
                future.result(ASK_WITHIN_S)
            except (KafkaException, TimeoutError) as error:
                if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                failure = failed(error, f"creating the topic {name}")
                if isinstance(failure, StoreUnavailableError):
                    raise failure from None
                refused[name] = str(failure)
        return refused


def _new(topic: Topic) -> NewTopic:
    return NewTopic(topic.name, num_partitions=topic.partitions or -1, replication_factor=-1, config=config_of(topic))


def config_of(topic: Topic) -> dict[str, str]:
    """The settings that a topic is created with."""
    return {POLICY: "compact" if topic.is_compact else "delete", **topic.config}


def contradictions(topic: Topic, present: PresentTopic) -> Iterator[str]:
    """The differences between an existing topic and its declaration."""
    if topic.partitions is not None and topic.partitions != present.partitions:
        are = agreeing(topic.partitions, "are")
        yield f"it has {counted(present.partitions, 'partitions')}, and {topic.partitions} {are} declared"
    for name, wanted in config_of(topic).items():
        seen = present.config.get(name)
        if seen is None:
            yield f"Kafka has no topic setting {name}"
        elif set(seen.split(",")) != set(wanted.split(",")):
            yield f"its {name} is {seen}, and {wanted} is declared"


def mend(topic: Topic, present: PresentTopic, contradiction: str) -> str:
    """The advice for one of a topic's `contradictions`."""
    if "partitions" not in contradiction:
        return f"change the declaration, or the topic: kafka-configs.sh --alter --topic {topic.name}"
    said = f"declare partitions={present.partitions}"
    if topic.partitions is not None and topic.partitions < present.partitions:
        # The topic stays usable: versions order the messages of a key that moved to another partition.
        return (
            f"{said} in views.py, and start viewtail run again. Keys are in other partitions from then on: consumers "
            "go by the versions of messages (docs/consuming.md, More partitions)"
        )
    return f"{said}, or delete the topic: `viewtail run` makes and fills it again"
