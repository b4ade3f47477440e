"""Topics as the broker has them: made where they are missing, and compared with their declarations."""

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

# Of the topic of positions: read back from its end, so what compaction has not come to yet costs nothing.
_POSITIONS_CONFIG = {POLICY: "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A topic that is there."""

    id: str
    partitions: int
    config: Mapping[str, str]

    @property
    def most_bytes(self) -> int:
        """Of one message."""
        return int(self.config.get("max.message.bytes", 1048588))


class Topics(Broker):
    """What is asked of the broker about topics, and making them. Raises StoreUnavailableError, StoreError."""

    def present(self, names: Sequence[str]) -> dict[str, Present]:
        """Those of these topics that are there."""
        partitions = self.partitions()
        there = [name for name in names if name in partitions]
        if not there:
            return {}
        config, ids = self.config(there), self.ids_of(there)
        return {name: Present(id=ids[name], partitions=partitions[name], config=config[name]) for name in there}

    def make(self, topics: Sequence[Topic]) -> tuple[dict[str, Present], dict[str, str]]:
        """Make those of these topics that are missing; returns all that are there, and why others are not, by name."""
        names = [one.name for one in topics]
        present = self.present(names)
        refused = self._make([_new(one) for one in topics if one.name not in present])
        deadline = time.monotonic() + ASK_WITHIN_S
        while len(present) + len(refused) < len(names) and time.monotonic() < deadline:
            time.sleep(0.02)  # a topic is listed a moment after it was made
            present = self.present(names)
        return present, refused

    def refusals(self, topics: Sequence[Topic]) -> dict[str, str]:
        """By name: why the broker would not make a topic. Nothing is made."""
        return self._make([_new(one) for one in topics], validate_only=True)

    def make_positions(self, name: str) -> None:
        """A topic of positions, where it is missing."""
        new = NewTopic(name, num_partitions=1, replication_factor=-1, config=_POSITIONS_CONFIG)
        for why in self._make([new]).values():
            raise StoreError(why)

    def drop(self, name: str) -> None:
        """A topic, with all that is in it; one that is gone already is no error."""
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
                found = failed(error, f"creating the topic {name}")
                if isinstance(found, StoreUnavailableError):
                    raise found from None
                refused[name] = str(found)
        return refused


def _new(topic: Topic) -> NewTopic:
    return NewTopic(topic.name, num_partitions=topic.partitions or -1, replication_factor=-1, config=config_of(topic))


def config_of(topic: Topic) -> dict[str, str]:
    """The settings that a topic is made with."""
    return {POLICY: "compact" if topic.is_compact else "delete", **topic.config}


def contradictions(topic: Topic, present: Present) -> Iterator[str]:
    """In what a topic that is there is not as it is declared."""
    if topic.partitions is not None and topic.partitions != present.partitions:
        are = agreeing(topic.partitions, "are")
        yield f"it has {counted(present.partitions, 'partitions')}, and {topic.partitions} {are} declared"
    for name, wanted in config_of(topic).items():
        seen = present.config.get(name)
        if seen is None:
            yield f"Kafka has no topic setting {name}"
        elif set(seen.split(",")) != set(wanted.split(",")):
            yield f"its {name} is {seen}, and {wanted} is declared"


def mend(topic: Topic, present: Present, contradiction: str) -> str:
    """What to do about one of its `contradictions`."""
    if "partitions" not in contradiction:
        return f"change the declaration, or the topic: kafka-configs.sh --alter --topic {topic.name}"
    said = f"declare partitions={present.partitions}"
    if topic.partitions is not None and topic.partitions < present.partitions:
        # Not refused for good: the messages of a key that moved are in order by their versions.
        return (
            f"{said} in views.py, and start viewtail run again. Keys are in other partitions from then on: consumers "
            "go by the versions of messages (docs/consuming.md, More partitions)"
        )
    return f"{said}, or delete the topic: `viewtail run` makes and fills it again"
