"""A program of another team that reads the topics: it counts every change, and notes what came twice or backward."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing

import orjson
from confluent_kafka import Consumer, TopicPartition


class CountingConsumer:
    """Reads all partitions from their beginning, committed messages only, until `stop`."""

    def __init__(self, brokers: str, topics: Sequence[str], partitions: int) -> None:
        self._brokers = brokers
        self._assigned = [TopicPartition(topic, number, 0) for topic in topics for number in range(partitions)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="consumer", daemon=True)
        self._versions: dict[tuple[str, bytes], int] = {}  # of the newest change of each key
        self.counts: Counter[str] = Counter()  # messages by op
        self.wrong_count = 0  # changes that were not above the one before them
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Raises what reading failed with."""
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    @property
    def change_count(self) -> int:
        """Inserts, updates and deletes."""
        return sum(self.counts[op] for op in "cud")

    def _work(self) -> None:
        settings = {
            "bootstrap.servers": self._brokers,
            "group.id": "another-team",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
        try:
            with closing(Consumer(settings)) as consumer:
                consumer.assign(self._assigned)
                while not self._stop.is_set():
                    for message in consumer.consume(1000, timeout=0.2):
                        self._read(message)
        except BaseException as error:  # raised again by stop(), in the thread that asks
            self.error = error

    def _read(self, message: object) -> None:
        assert message.error() is None, message.error()  # type: ignore[attr-defined]
        value = message.value()  # type: ignore[attr-defined]
        if value is None:
            return  # the tombstone behind a delete
        change = orjson.loads(value)
        key = (message.topic(), message.key())  # type: ignore[attr-defined]
        version = int(change["source"]["sequence"])
        self.wrong_count += version <= self._versions.get(key, -1)
        self._versions[key] = version
        self.counts[change["op"]] += 1
