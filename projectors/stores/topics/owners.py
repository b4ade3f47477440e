"""Who owns each topic: one record per topic and deployment, in the topic of positions.

If several deployments claim one topic, the first record counts: offsets order them, and compaction keeps that order,
since nobody writes its claim again. A claim is for one existing topic: after that is deleted, the deployment that
creates it again may have it. positions.py reads other records of the same topic, and ignores these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import orjson
from confluent_kafka import KafkaException, Message, TopicPartition

from projectors.stores.owners import PlaceOwner
from projectors.stores.topics.consuming import consumer_of, settled_ends, to_the_end
from viewtail.changes.published import POSITIONS
from viewtail.servers.brokers import Broker, failed

MEND = "Publish under another name"
_BEGIN = b'{"owner_of":'  # how a claim's key begins; keys of positions begin with the name of a database


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicClaim:
    """One record."""

    topic: str
    topic_id: str  # the id of the topic when it was claimed
    owner: PlaceOwner
    writer: str  # the transactional id of the publishing sink
    is_released: bool = False

    def writers(self) -> tuple[str, ...]:
        """The transactional ids that its owner may publish with.

        A sink whose database has the same name as another deployment's adds the beginning of its deployment's id. A
        take-over does not know whether its sink will do so."""
        suffix = f".{self.owner.deployment[:8]}"
        return (self.writer,) if self.writer.endswith(suffix) else (self.writer, f"{self.writer}{suffix}")

    @property
    def key(self) -> bytes:
        return orjson.dumps({"owner_of": self.topic, "deployment": self.owner.deployment})

    @property
    def value(self) -> bytes:
        # Not a tombstone: readers of positions expect each value to be a JSON object.
        return orjson.dumps(
            {
                "topic_id": self.topic_id,
                "owner": self.owner.as_json(),
                "writer": self.writer,
                "is_released": self.is_released,
            }
        )


def read(client: Mapping[str, Any], topics: Collection[str]) -> list[TopicClaim]:
    """The claims of these topics, released ones too; the first claim of each topic comes first.

    Raises StoreUnavailableError while another pipeline's open transaction hides one: who owns a topic is not known
    then, and two deployments must not both take it."""
    by_key: dict[bytes, TopicClaim] = {}
    (end,) = Broker(client).end_offsets(POSITIONS, 1)
    with closing(consumer_of(client)) as consumer:
        try:
            low, high = settled_ends(client, consumer, POSITIONS, end, lambda message: _topic(message) in topics)
            if low == high:
                return []
            for message in to_the_end(consumer, TopicPartition(POSITIONS, 0, low)):
                if _topic(message) in topics and (claim := _claim(message)) is not None:
                    by_key.pop(claim.key, None)  # the position of a key is that of its newest record
                    by_key[claim.key] = claim
        except KafkaException as error:
            raise failed(error, f"reading {POSITIONS}") from None
    return list(by_key.values())


def _topic(message: Message) -> str | None:
    """The topic that a record claims; None: it is no claim."""
    key = message.key()
    if key is None or not key.startswith(_BEGIN):
        return None
    try:
        return str(orjson.loads(key)["owner_of"])
    except orjson.JSONDecodeError:
        return None


def _claim(message: Message) -> TopicClaim | None:
    try:
        parsed = orjson.loads(message.value() or b"{}")
        owner = PlaceOwner.of_json(parsed.get("owner"))
        if owner is None:
            return None
        return TopicClaim(
            topic=str(_topic(message)),
            topic_id=str(parsed["topic_id"]),
            owner=owner,
            writer=str(parsed["writer"]),
            is_released=bool(parsed["is_released"]),
        )
    except (orjson.JSONDecodeError, KeyError, AttributeError):
        return None


def claims_of(client: Mapping[str, Any], topic: str, topic_id: str) -> list[TopicClaim]:
    """The claims of an existing topic, the first one first."""
    return of_topic(read(client, [topic]), topic, topic_id) if POSITIONS in Broker(client).partitions() else []


def of_topic(claims: Iterable[TopicClaim], topic: str, topic_id: str) -> list[TopicClaim]:
    """The claims of the topic with this id, the first one first."""
    return [claim for claim in claims if (claim.topic, claim.topic_id) == (topic, topic_id)]


def kept_by(claims: Sequence[TopicClaim]) -> list[PlaceOwner]:
    """The owner of a topic with these claims, if it has one: the first claim counts."""
    return [claim.owner for claim in claims if not claim.is_released][:1]
