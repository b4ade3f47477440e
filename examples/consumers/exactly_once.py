"""Every change of a topic as a row of a table of your own, each exactly once, whatever is killed and when.

    pip install viewtail
    python exactly_once.py BROKER:9092 shop.orders mysql://USER:PASSWORD@HOST:3306/DATABASE NAME

The table `consumed_change` and the offsets are in DATABASE, and rows are committed together with their offset. So after
a kill at any moment the next start goes on behind the last row that is in the table. Start it several times, each with
a NAME of its own, and Kafka divides the partitions among them. One that comes back under its NAME gets its partitions
at once.

The offsets are in viewtail's OffsetStore: to take a partition raises its fence, and to save an offset fails where
another process has taken the partition since. So one that hung and comes back late adds nothing.

Kafka removes old changes from a compacted topic. To have every one, ask for a topic with `compact=False`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from offsets import schema
from offsets.mysql import MySQLOffsets, OwnSession
from viewtail.changes.pipelines import PipelineId
from viewtail.servers.addresses import MYSQL, parse
from viewtail.servers.sessions import MySQLAddress, open_session

CREATE = """
CREATE TABLE IF NOT EXISTS consumed_change (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'Compact key',
  -- Called as the message calls it. viewtail: ignore VT109
  entity_key JSON NOT NULL COMMENT 'Key of the entity',
  version BIGINT UNSIGNED NOT NULL COMMENT 'Of two changes of a key, the later one has the larger',
  op CHAR(1) NOT NULL COMMENT 'One of c, u and d; r: the row as it was when the topic was filled',
  -- Called as the message calls it. viewtail: ignore VT109
  content JSON NULL COMMENT 'The row after the change; NULL: it was deleted'
) COMMENT 'Every change of a topic, once'
"""
INSERT = "INSERT INTO consumed_change (entity_key, version, op, content) VALUES (%s, %s, %s, %s)"


def main(brokers: str, topic: str, mysql: str, name: str) -> None:
    """Consume until a signal comes."""
    address = address_of(mysql)
    session = OwnSession(lambda: open_session(address, role="store"))
    schema.create(session(), address, address.database or "", (schema.PIPELINE,), "store")
    session().cursor().execute(CREATE)
    table = Table(session, address.database or "", topic, topic_id(brokers, topic))
    consumer = Consumer({
        "bootstrap.servers": brokers,
        "group.id": f"consumed_change.{topic}",
        "group.instance.id": name,
        "enable.auto.commit": False,  # the offsets are in MySQL
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",  # an offset that Kafka no longer has is a gap: stop, and say so
    })  # fmt: skip
    consumer.subscribe([topic], on_assign=table.take, on_revoke=table.give_up, on_lost=table.give_up)
    try:
        while True:
            if (first := consumer.poll(1)) is not None:
                messages = [first, *consumer.consume(1000, 0)]  # what is there: `consume` alone waits for so many
                for failed in filter(Message.error, messages):
                    raise KafkaException(failed.error())
                for number in sorted({message.partition() for message in messages}):
                    table.write(number, [message for message in messages if message.partition() == number])
    finally:
        consumer.close()


class Table:
    """The rows, and the offset of each partition that this process has taken."""

    def __init__(self, session: OwnSession, database: str, topic: str, topic_id: str) -> None:
        self._session, self._database, self._topic, self._topic_id = session, database, topic, topic_id
        self._taken: dict[int, tuple[MySQLOffsets, int]] = {}  # by partition: the store, and the next message

    def take(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Partitions were assigned to this process: go on where the table is."""
        for partition in partitions:
            pipeline = PipelineId(self._topic.replace(".", "_"), partition.partition, "consumed_change").name
            offsets = MySQLOffsets(self._session, self._database, pipeline, read_position=Offset.read)
            position = offsets.take().position
            if position is None:
                start, _ = consumer.get_watermark_offsets(partition)
            elif isinstance(position, Offset) and position.topic_id == self._topic_id:
                start = position.next
            else:
                raise RuntimeError(f"{self._topic} was deleted and made again: begin anew with an empty DATABASE")
            partition.offset = start
            self._taken[partition.partition] = offsets, start
        consumer.assign(partitions)

    def give_up(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Partitions go to another process."""
        for partition in partitions:
            self._taken.pop(partition.partition, None)

    def write(self, number: int, messages: Sequence[Message]) -> None:
        """Insert rows and move the offset, in one transaction. Raises FencedError when another process has taken it."""
        if number not in self._taken:
            return  # it was given up after they had come
        offsets, start = self._taken[number]
        rows = []
        for message in messages:
            if message.offset() >= start and message.value() is not None:  # None: the tombstone behind a delete
                rows.append(row_of(message))
        with self._session().cursor() as cursor:
            cursor.executemany(INSERT, rows)
        following = max(start, messages[-1].offset() + 1)
        offsets.save(Offset(self._topic_id, following))  # commits the rows too
        self._taken[number] = offsets, following


def row_of(message: Message) -> tuple[str, str, str, str | None]:
    """The key, the version, what happened and the row."""
    key, content = json.loads(message.key()), json.loads(message.value())
    key, content = key.get("payload", key), content.get("payload", content)  # where the topic has schemas=True
    version = dict(message.headers())["viewtail_version"].decode()
    after = content["after"]
    return json.dumps(key), version, content["op"], None if after is None else json.dumps(after)


@dataclass(frozen=True, slots=True)
class Offset:
    """A place in a partition. A topic that was made again has other messages at it."""

    topic_id: str
    next: int  # the offset of the first message that is not in the table
    epoch: int = 0

    @property
    def version(self) -> int:
        """Orders the places of a partition."""
        return self.next

    def to_text(self) -> str:
        """As it stands in MySQL."""
        return json.dumps({"topic_id": self.topic_id, "next": self.next})

    @classmethod
    def read(cls, text: str | bytes) -> Offset:
        """The inverse of `to_text`."""
        return cls(**json.loads(text))

    def details(self) -> Mapping[str, str]:
        """Nothing besides."""
        return {}


def topic_id(brokers: str, topic: str) -> str:
    """Which topic of that name it is."""
    client = AdminClient({"bootstrap.servers": brokers})  # gone with it is every answer that has not come
    return str(client.describe_topics(TopicCollection([topic]))[topic].result(10).topic_id)


def address_of(url: str) -> MySQLAddress:
    """The parts of a MySQL address."""
    parts: Any = parse(url, MYSQL)
    login = {"user": parts.user or "root", "password": parts.password or ""}
    return MySQLAddress(host=parts.host, port=parts.port, database=parts.path, **login)


if __name__ == "__main__":
    main(*sys.argv[1:])
