"""Asking Kafka's brokers about topics, and what their errors mean to the side that asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]

from viewtail.changes.errors import (
    RETRIES,
    SourceError,
    SourceUnavailableError,
    StoreError,
    StoreUnavailableError,
    ViewtailError,
)
from viewtail.servers.certificates import why_ended, why_refused
from viewtail.servers.patience import QUESTION

ASK_WITHIN_S = QUESTION.answer_s
_FIRST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_END: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Side:
    """Who asks: its errors, its settings, and what it must be allowed to do with a topic."""

    group: str  # of settings
    rights: str
    unavailable: type[ViewtailError]
    refused: type[ViewtailError]


STORE = Side("KAFKA", "CREATE, DESCRIBE_CONFIGS, READ and WRITE", StoreUnavailableError, StoreError)
SOURCE = Side("SOURCE", "DESCRIBE_CONFIGS and READ", SourceUnavailableError, SourceError)

_HOW = " (viewtail check --print-grants has the commands)"
# By code: the broker answered, and no other answer will come of itself.
_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant the user {rights} on the topic{how}",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the user IDEMPOTENT_WRITE on the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant the user WRITE on the transactional id{how}",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant the user DESCRIBE on the group viewtail, and READ on its own{how}",
    KafkaError.SASL_AUTHENTICATION_FAILED: "correct the user and password of VIEWTAIL_{group}__URL",
    KafkaError._AUTHENTICATION: "correct the user and password of VIEWTAIL_{group}__URL",
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "set VIEWTAIL_{group}__SASL_MECHANISM to what the broker takes",
    KafkaError._SSL: "set VIEWTAIL_{group}__TLS_CA and the other tls_ options",
    KafkaError.UNSUPPORTED_VERSION: "use Kafka 3 or newer",
    KafkaError.POLICY_VIOLATION: "change the declaration, or the broker's policy for topics",
    KafkaError.TOPIC_EXCEPTION: "give the topic another name: letters, digits, '.', '_' and '-', unlike the others",
    KafkaError.INVALID_CONFIG: "correct config= of the declaration",
    KafkaError.INVALID_PARTITIONS: "correct partitions= of the declaration",
    KafkaError.INVALID_REPLICATION_FACTOR: "set default.replication.factor to no more than there are brokers",
}

_NO_ANSWER = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
_IS_IT = "is the broker up, is it Kafka that listens there, and VIEWTAIL_{group}__URL right (kafkas:// for TLS)?"


def failed(
    error: Exception, doing: str, side: Side = STORE, heard: str = "", certificate: Path | None = None
) -> ViewtailError:
    """Return viewtail's error for the client's; no text of a message is in it. `heard`: why no broker answers."""
    found = error.args[0] if error.args and isinstance(error.args[0], KafkaError) else None
    if found is None:
        why = (heard or "no answer in time") if isinstance(error, TimeoutError) else error
        return side.unavailable(f"Kafka: {doing} failed: {why}. {RETRIES}")
    said = f"Kafka: {doing} failed: {found.str()} ({found.name()})"
    if mend := _REFUSALS.get(found.code(), ""):
        return side.refused(f"{said}; {mend.format(group=side.group, rights=side.rights, how=_HOW)}")
    mend = _mend(found, side, heard, certificate)
    return side.unavailable(f"{said}{heard and f': {heard}'}{mend and f'; {mend}'}. {RETRIES}")


def _mend(found: KafkaError, side: Side, heard: str, certificate: Path | None) -> str:
    """Return what to do about an error that may pass; '' where that is only to wait."""
    mend = why_refused(heard or found.str(), certificate) or why_ended(heard, certificate)
    if not mend and found.code() in _NO_ANSWER:
        return _IS_IT.format(group=side.group)
    return mend


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a consumer group."""

    client: str  # its client.id
    host: str  # that the broker sees it at
    parts: tuple[tuple[str, int], ...]  # (topic, partition)


class _Told:
    """A client's last words about silent brokers. No part of its user: both would live until they are collected."""

    def __init__(self) -> None:
        self.why = ""

    def hear(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # that says no more
            self.why = error.str()


class Broker:
    """Asks about topics and groups. Raises the errors of its side, after `within_s` where none answers."""

    def __init__(self, client: Mapping[str, Any], side: Side = STORE, within_s: float = ASK_WITHIN_S) -> None:
        self._told = _Told()
        settings: dict[str, Any] = {**client, "error_cb": self._told.hear}
        self._client = AdminClient(settings)
        self._side = side
        self._within_s = within_s
        self._place = str(client.get("bootstrap.servers", ""))
        own = client.get("ssl.certificate.location")
        self._certificate = None if own is None else Path(own)

    def partitions(self) -> dict[str, int]:
        """Return how many partitions each topic has that the user may see."""
        listed = self._ask("listing topics", lambda: self._client.list_topics(timeout=self._within_s)).topics
        self._forget_troubles()
        return {name: len(topic.partitions) for name, topic in listed.items() if not topic.error}

    def id_of(self, name: str) -> str:
        """Return the id of the topic of that name: one that is deleted and made again has another."""
        return self.ids_of([name])[name]

    def ids_of(self, names: Sequence[str]) -> dict[str, str]:
        """Return what `id_of` does, for several topics at once."""
        asked = TopicCollection(list(names))
        futures = self._ask("describing topics", lambda: self._client.describe_topics(asked))
        found = {name: self._of(future, "describing topics").topic_id for name, future in futures.items()}
        return {
            name: f"{one.get_most_significant_bits():x}-{one.get_least_significant_bits():x}"
            for name, one in found.items()
        }

    def config(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """The settings of these topics."""
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        futures = self._ask("describing topics", lambda: self._client.describe_configs(resources))
        return {
            one.name: {entry.name: entry.value for entry in self._of(future, "describing topics").values()}
            for one, future in futures.items()
        }

    def end_offsets(self, topic: str, partitions: int) -> list[int]:
        """The offset behind the last message of each partition."""
        found = self.ends([(topic, number) for number in range(partitions)])
        return [found[topic, number] for number in range(partitions)]

    def first_offsets(self, topic: str) -> dict[int, int]:
        """Return, by partition, the offset of the first message that is kept."""
        found = self._offsets([(topic, number) for number in range(self.partitions().get(topic, 0))], _FIRST)
        return {partition: offset for (_, partition), offset in self._known(found).items()}

    def first_since(self, topic: str, partition: int, time_ms: int) -> int:
        """The offset of the first message of that time or later; the end where there is none."""
        since = self._offsets([(topic, partition)], OffsetSpec.for_timestamp(time_ms))[topic, partition]
        return since if since >= 0 else self.ends([(topic, partition)])[topic, partition]

    def ends(self, of: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The offsets behind the last messages of these partitions."""
        return self._known(self._offsets(of, _END))

    def _known(self, offsets: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Raises for a partition that was added a moment ago: the broker answers, and does not know its offsets yet."""
        for (topic, number), offset in offsets.items():
            if offset < 0:
                raise self._side.unavailable(
                    f"Kafka: partition {number} of topic {topic} has no offsets yet: it was just made. {RETRIES}"
                )
        return offsets

    def members_of(self, groups: Sequence[str]) -> dict[str, list[GroupMember]]:
        """Return the members by group; none for one that nobody has joined yet."""
        doing = "describing consumer groups"
        futures = self._ask(doing, lambda: self._client.describe_consumer_groups(list(groups)))
        return {name: self._members(future, doing) for name, future in futures.items()}

    def _members(self, future: Any, doing: str) -> list[GroupMember]:
        try:
            found = future.result(self._within_s).members
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return []
            raise failed(error, doing, self._side) from None
        except TimeoutError as error:
            raise failed(error, doing, self._side) from None
        return [
            GroupMember(
                one.client_id,
                one.host.removeprefix("/"),
                tuple((part.topic, part.partition) for part in one.assignment.topic_partitions),
            )
            for one in found
        ]

    def _offsets(self, of: Sequence[tuple[str, int]], which: Any) -> dict[tuple[str, int], int]:
        if not of:
            return {}
        asked = {TopicPartition(topic, number): which for topic, number in of}
        futures = self._ask("asking for offsets", lambda: self._client.list_offsets(asked))
        return {
            (one.topic, one.partition): self._of(future, "asking for offsets").offset for one, future in futures.items()
        }

    def _ask(self, doing: str, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (KafkaException, TimeoutError, ValueError) as error:
            self._client.poll(0)  # what the client heard is handed over
            raise failed(error, doing, self._side, self._heard(), self._certificate) from None

    def _heard(self) -> str:
        """Return where the brokers are, and what the client heard of them last."""
        why = self._told.why or f"nothing came within {self._within_s:g} s"
        return why if any(place in why for place in self._place.split(",")) else f"{self._place}: {why}"

    def _forget_troubles(self) -> None:
        """A broker answered: what was told before is no reason for what comes."""
        self._client.poll(0)
        self._told.why = ""

    def _of(self, future: Any, doing: str) -> Any:
        found = self._ask(doing, lambda: future.result(self._within_s))
        self._forget_troubles()
        return found
