"""What the topics are compared with: a transactional producer with the same messages, ready-made."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.bare import deployment
from bench.setting import ROWS_A_TRANSACTION, Setting
from changes.batches import Origin
from changes.envelope import Envelope, Message
from changes.writes import KeptChange
from ingest.limits import Limits
from projectors.stores.topics.sink import _PRODUCER

TOPIC = "bench.narrow"
PARTITIONS = 4
_BARE = "bare"
Messages = list[list[Message]]  # by transaction


def forget(setting: Setting) -> None:
    """Delete the topics, so that the next pipeline begins with nothing."""
    admin = AdminClient({"bootstrap.servers": setting.brokers})
    there = set(admin.list_topics(timeout=10).topics) & {TOPIC, _BARE, "viewtail_positions"}
    for future in (admin.delete_topics(list(there)) if there else {}).values():
        future.result(10)
    while set(admin.list_topics(timeout=10).topics) & there:
        time.sleep(0.05)


def ready_made(setting: Setting, rows: int) -> Messages:
    """What the pipeline publishes for the bulk rows, a list for each of its transactions."""
    (view,) = deployment(setting).views_of("kafka")
    envelope = Envelope(view.table, view.key, view.values, name="viewtail", release="0.1.0")
    found: Messages = []
    for first in range(0, rows, Limits().batch_rows):
        changes = []
        for at in range(first, min(first + Limits().batch_rows, rows), ROWS_A_TRANSACTION):
            origin = Origin(1795348324126000, f"3d32fdf6-e66e-11f1-bde1-02fc00000001:{at}", "binlog.000004", at * 40, 1)
            version = (1 << 53) + at
            for i in range(at, at + ROWS_A_TRANSACTION):
                image = (i, i % 1000, f"name of {i}", i * 1000003, "2026-11-22 12:00:00.123456")
                changes.append(KeptChange((i,), version, "insert", None, image, origin))
        found.append(envelope.messages(changes, time.time_ns() // 1000))
    return found


def bare_producer(setting: Setting, transactions: Messages) -> float:
    """Messages/s, each list in a transaction, as many as a pipeline's batch."""
    admin = AdminClient({"bootstrap.servers": setting.brokers})
    for future in admin.create_topics([NewTopic(_BARE, PARTITIONS, 1)]).values():
        future.result(10)
    producer = Producer({**_PRODUCER, "bootstrap.servers": setting.brokers, "transactional.id": "bare"})
    producer.init_transactions(30)
    began = time.perf_counter()
    for messages in transactions:
        producer.begin_transaction()
        produce, last, headers = producer.produce, -1, list[Any]()
        for key, value, version in messages:
            if version != last:
                last, headers = version, [("viewtail_version", str(version).encode())]
            while True:
                try:
                    produce(_BARE, value, key, -1, None, None, 0, headers)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.commit_transaction(60)
    seconds = time.perf_counter() - began
    return sum(len(messages) for messages in transactions) / seconds


def count(setting: Setting, topic: str) -> int:
    """Committed messages of a topic."""
    conf = {
        "bootstrap.servers": setting.brokers, "group.id": f"count{os.getpid()}", "isolation.level": "read_committed",
        "auto.offset.reset": "earliest", "enable.partition.eof": True,
    }  # fmt: skip
    counted, ended = 0, set()
    with closing(Consumer(conf)) as consumer:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        while len(ended) < PARTITIONS:
            for message in consumer.consume(10_000, 1):
                error = message.error()
                if error is None:
                    counted += 1
                    ended.discard(message.partition())
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
    return counted
