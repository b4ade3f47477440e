"""What the tailer of topics is compared with: a transactional producer with the same messages, ready-made."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version as release_of
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from bench.bare import catalog
from bench.consuming import PARTITIONS, admin
from bench.live import BARE_TOPIC
from bench.setting import ROWS_A_TRANSACTION, Setting
from ingest.limits import Limits
from projectors.stores.topics.sink import _PRODUCER
from viewtail.changes.batches import Origin
from viewtail.changes.envelope import Envelope, Message
from viewtail.changes.published import POSITIONS, VERSION_HEADER
from viewtail.changes.writes import KeptChange

TOPIC = "bench.narrow"
_WITHIN_S = 60.0
_ROWS = Limits().batch_rows  # of one transaction, while more waits
Messages = list[list[Message]]  # by transaction


def forget(setting: Setting) -> None:
    """Delete the topics, so that the next pipeline begins with nothing."""
    client = admin(setting.brokers)
    there = set(client.list_topics(timeout=10).topics) & {TOPIC, BARE_TOPIC, POSITIONS}
    for future in (client.delete_topics(list(there)) if there else {}).values():
        future.result(10)
    while set(client.list_topics(timeout=10).topics) & there:
        time.sleep(0.05)


def make(setting: Setting, topic: str) -> None:
    """A topic like the one that viewtail makes."""
    client = admin(setting.brokers)
    for future in client.create_topics([NewTopic(topic, PARTITIONS, 1, config={"cleanup.policy": "compact"})]).values():
        future.result(10)


def ready_made(setting: Setting, rows: int) -> Messages:
    """What the pipeline publishes for the bulk rows, a list for each of its transactions."""
    (view,) = catalog(setting).views_of("kafka")
    envelope = Envelope(view.table, view.key, view.values, name="viewtail", release=release_of("viewtail"))
    found: Messages = []
    for first in range(0, rows, _ROWS):
        changes = []
        for at in range(first, min(first + _ROWS, rows), ROWS_A_TRANSACTION):
            origin = Origin(1795348324126000, f"3d32fdf6-e66e-11f1-bde1-02fc00000001:{at}", "binlog.000004", at * 40, 1)
            version = (1 << 53) + at
            for i in range(at, at + ROWS_A_TRANSACTION):
                image = (i, i % 1000, f"name of {i}", i * 1000003, "2026-11-22 12:00:00.123456")
                changes.append(KeptChange((i,), version, "insert", None, image, origin))
        found.append(envelope.messages(changes, time.time_ns() // 1000))
    return found


def produce(setting: Setting, transactions: Messages) -> float:
    """Messages/s with `produce`, the version a header as ours have it; each list in a transaction."""

    def send(producer: Producer, messages: list[Message]) -> None:
        last, headers = -1, list[Any]()
        for key, value, version in messages:
            if version != last:
                last, headers = version, [(VERSION_HEADER, str(version).encode())]
            while True:
                try:
                    producer.produce(BARE_TOPIC, value, key, -1, None, None, 0, headers)
                    break
                except BufferError:
                    producer.poll(0.002)

    return _timed(setting, transactions, send)


def produce_batch(setting: Setting, transactions: Messages) -> float:
    """Messages/s with `produce_batch`, which takes no headers; each list in a transaction."""
    as_dicts = [[{"key": key, "value": value} for key, value, _ in messages] for messages in transactions]

    def send(producer: Producer, messages: list[dict[str, bytes | None]]) -> None:
        queued = producer.produce_batch(BARE_TOPIC, messages)
        if queued != len(messages):
            raise RuntimeError(f"the bare producer's queue took {queued} of {len(messages)} messages")

    return _timed(setting, as_dicts, send)


def _timed(setting: Setting, transactions: list[Any], send: Callable[[Producer, Any], None]) -> float:
    forget(setting)
    make(setting, BARE_TOPIC)
    whole = {"queue.buffering.max.kbytes": 64 << 10}  # produce_batch wants room for all of a transaction
    address = {"bootstrap.servers": setting.brokers, "transactional.id": "bare", "log_level": 0}
    producer = Producer({**_PRODUCER, **whole, **address})
    producer.init_transactions(_WITHIN_S)
    with _no_collection():
        began = time.perf_counter()
        for messages in transactions:
            producer.begin_transaction()
            send(producer, messages)
            producer.commit_transaction(_WITHIN_S)
        seconds = time.perf_counter() - began
    producer.close()
    return sum(map(len, transactions)) / seconds


@contextmanager
def _no_collection() -> Iterator[None]:
    # A worker has it off as well.
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
