"""Whose each topic is: a record a topic and deployment, in the topic of positions.

Of several deployments that claim one topic, the first record counts: offsets order them, and compaction keeps that
order, since nobody writes its claim again. A claim is of one topic that is there: when that is deleted, whoever makes
it again may have it. Positions.py reads other records of the same topic, and passes over these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import orjson
from confluent_kafka import KafkaException, TopicPartition

from projectors.stores.owners import Claimant, PlaceOwner
from projectors.stores.topics.consuming import consumer_of, to_the_end
from viewtail.changes.published import POSITIONS
from viewtail.servers.brokers import ASK_WITHIN_S, Broker, failed

MEND = "Publish under another name"
_BEGIN = b'{"owner_of":'  # of a key; those of positions begin with the name of a database


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One record."""

    topic: str
    topic_id: str  # of the topic that was there then
    owner: PlaceOwner
    writer: str  # transactional id of who publishes
    is_released: bool = False

    def writers(self) -> tuple[str, ...]:
        """The transactional ids that its owner may publish with.

        A sink whose database is called as another deployment's adds the beginning of its deployment's id. Whoever
        takes a topic over does not know whether its sink will.
        """
        suffix = f".{self.owner.deployment[:8]}"
        return (self.writer,) if self.writer.endswith(suffix) else (self.writer, f"{self.writer}{suffix}")

    @property
    def key(self) -> bytes:
        return orjson.dumps({"owner_of": self.topic, "deployment": self.owner.deployment})

    @property
    def value(self) -> bytes:
        # Not a tombstone: whoever reads positions takes each value for a JSON object.
        return orjson.dumps(
            {
                "topic_id": self.topic_id,
                "owner": self.owner.as_json(),
                "writer": self.writer,
                "is_released": self.is_released,
            }
        )


def read(client: Mapping[str, Any]) -> list[Claim]:
    """All claims, those that were released too; the first of each topic first."""
    found: dict[bytes, Claim] = {}
    with closing(consumer_of(client)) as consumer:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(POSITIONS, 0), timeout=ASK_WITHIN_S)
            if low == high:
                return []
            for message in to_the_end(consumer, TopicPartition(POSITIONS, 0, low)):
                key = message.key()
                if key is not None and key.startswith(_BEGIN) and (claim := _claim(key, message.value())) is not None:
                    found.pop(key, None)  # the newest record of a key has its place
                    found[key] = claim
        except KafkaException as error:
            raise failed(error, f"reading {POSITIONS}") from None
    return list(found.values())


def _claim(key: bytes, value: bytes | None) -> Claim | None:
    try:
        found, of = orjson.loads(value or b"{}"), orjson.loads(key)
        owner = PlaceOwner.of_json(found.get("owner"))
        if owner is None:
            return None
        return Claim(
            topic=str(of["owner_of"]),
            topic_id=str(found["topic_id"]),
            owner=owner,
            writer=str(found["writer"]),
            is_released=bool(found["is_released"]),
        )
    except (orjson.JSONDecodeError, KeyError, AttributeError):
        return None


def claims_of(client: Mapping[str, Any], topic: str, topic_id: str) -> list[Claim]:
    """Those of a topic that is there, the first first."""
    return of_topic(read(client), topic, topic_id) if POSITIONS in Broker(client).partitions() else []


def of_topic(claims: Iterable[Claim], topic: str, topic_id: str) -> list[Claim]:
    """Those of a topic as it is there now, the first first."""
    return [one for one in claims if (one.topic, one.topic_id) == (topic, topic_id)]


def others(claims: Sequence[Claim], claimant: Claimant | None) -> list[PlaceOwner]:
    """Who of them has the topic, where that is not this deployment: the first counts."""
    kept = [one.owner for one in claims if not one.is_released]
    if not kept or (claimant is not None and claimant.is_owner(kept[0])):
        return []
    return kept[:1]
