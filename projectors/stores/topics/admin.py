"""Topics as the broker has them: made where they are missing, and compared with their declarations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from changes.errors import StoreError, StoreUnavailableError
from projectors.stores.topics.rules import POSITIONS
from projectors.stores.topics.views import POLICY, Topic

ASK_WITHIN_S = 10.0
# Of the topic of positions: read back from its end, so what compaction has not come to yet costs nothing.
_POSITIONS_CONFIG = {POLICY: "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}

_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
T = TypeVar("T")
# By code: the broker answered, and no other answer will come of itself.
_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant the user WRITE, CREATE and DESCRIBE on the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the user IDEMPOTENT_WRITE on the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant the user WRITE and DESCRIBE on the transactional id",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant the user READ on the group",
    KafkaError.SASL_AUTHENTICATION_FAILED: "correct the user and password of VIEWTAIL_KAFKA__URL",
    KafkaError._AUTHENTICATION: "correct the user and password of VIEWTAIL_KAFKA__URL",
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "set VIEWTAIL_KAFKA__SASL_MECHANISM to what the broker takes",
    KafkaError._SSL: "set VIEWTAIL_KAFKA__TLS_CA and the other tls_ options",
    KafkaError.UNSUPPORTED_VERSION: "use Kafka 3 or newer",
    KafkaError.POLICY_VIOLATION: "change the declaration, or the broker's policy for topics",
    KafkaError.INVALID_CONFIG: "correct config= of the declaration",
    KafkaError.INVALID_PARTITIONS: "correct partitions= of the declaration",
    KafkaError.INVALID_REPLICATION_FACTOR: "set default.replication.factor to no more than there are brokers",
}


def failed(error: Exception, doing: str) -> StoreUnavailableError | StoreError:
    """What an error of the client means; its text holds no message's content."""
    found = error.args[0] if error.args and isinstance(error.args[0], KafkaError) else None
    if found is None:
        why = "no answer in time" if isinstance(error, TimeoutError) else error
        return StoreUnavailableError(f"Kafka: {doing} failed: {why}. viewtail tries again by itself")
    said = f"Kafka: {doing} failed: {found.str()} ({found.name()})"
    if (mend := _REFUSALS.get(found.code())) is not None:
        return StoreError(f"{said}; {mend}")
    return StoreUnavailableError(f"{said}. viewtail tries again by itself")


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


class Topics:
    """What is asked of the broker about topics. Raises StoreUnavailableError, StoreError."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._client = AdminClient({**client})

    def present(self, names: Sequence[str]) -> dict[str, Present]:
        """Those of these topics that are there."""
        listed = self._ask("listing topics", lambda: self._client.list_topics(timeout=ASK_WITHIN_S)).topics
        there = [name for name in names if name in listed and not listed[name].error]
        if not there:
            return {}
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in there]
        futures = self._ask("describing topics", lambda: self._client.describe_configs(resources))
        config = {
            one.name: {entry.name: entry.value for entry in self._of(future, "describing topics").values()}
            for one, future in futures.items()
        }
        return {
            name: Present(id=self.id_of(name), partitions=len(listed[name].partitions), config=config[name])
            for name in there
        }

    def id_of(self, name: str) -> str:
        """Which topic of that name it is: one that is deleted and made again has another."""
        future = self._ask("describing topics", lambda: self._client.describe_topics(TopicCollection([name])))[name]
        found = self._of(future, "describing topics").topic_id
        return f"{found.get_most_significant_bits():x}-{found.get_least_significant_bits():x}"

    def make(self, topics: Sequence[Topic]) -> tuple[dict[str, Present], dict[str, str]]:
        """Make those of these topics that are missing; returns all that are there, and why others are not, by name."""
        names = [one.name for one in topics]
        present = self.present(names)
        refused = self._make([
            NewTopic(one.name, num_partitions=one.partitions or -1, replication_factor=-1, config=config_of(one))
            for one in topics
            if one.name not in present
        ])  # fmt: skip
        deadline = time.monotonic() + ASK_WITHIN_S
        while len(present) + len(refused) < len(names) and time.monotonic() < deadline:
            time.sleep(0.02)  # a topic is listed a moment after it was made
            present = self.present(names)
        return present, refused

    def make_positions(self) -> None:
        """The topic of positions, where it is missing."""
        new = NewTopic(POSITIONS, num_partitions=1, replication_factor=-1, config=_POSITIONS_CONFIG)
        for why in self._make([new]).values():
            raise StoreError(why)

    def _make(self, new: list[NewTopic]) -> dict[str, str]:
        refused: dict[str, str] = {}
        if not new:
            return refused
        for name, future in self._ask("creating topics", lambda: self._client.create_topics(new)).items():
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

    def end_offsets(self, topic: str, partitions: int) -> list[int]:
        """The offset behind the last message of each partition."""
        asked = {TopicPartition(topic, number): _LATEST for number in range(partitions)}
        futures = self._ask("asking for offsets", lambda: self._client.list_offsets(asked))
        found = {one.partition: self._of(future, "asking for offsets").offset for one, future in futures.items()}
        return [found[number] for number in range(partitions)]

    def _ask(self, doing: str, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (KafkaException, TimeoutError, ValueError) as error:
            raise failed(error, doing) from None

    def _of(self, future: Any, doing: str) -> Any:
        return self._ask(doing, lambda: future.result(ASK_WITHIN_S))


def config_of(topic: Topic) -> dict[str, str]:
    """The settings that a topic is made with."""
    return {POLICY: "compact" if topic.is_compact else "delete", **topic.config}


def contradictions(topic: Topic, present: Present) -> Iterator[str]:
    """In what a topic that is there is not as it is declared."""
    if topic.partitions is not None and topic.partitions != present.partitions:
        yield f"it has {present.partitions} partitions, and {topic.partitions} are declared"
    for name, wanted in config_of(topic).items():
        seen = present.config.get(name)
        if seen is None:
            yield f"Kafka has no topic setting {name}"
        elif set(seen.split(",")) != set(wanted.split(",")):
            yield f"its {name} is {seen}, and {wanted} is declared"
