"""Changes published to a topic as viewtail writes them, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from stack import Server
from viewtail.changes.batches import Origin
from viewtail.changes.envelope import Envelope, Message
from viewtail.changes.published import POSITIONS, VERSION_HEADER, Progress, Published
from viewtail.changes.tables import Table
from viewtail.changes.writes import KeptChange


def change(op: str, key: int, version: int, *, before: Any = None, after: Any = None) -> KeptChange:
    """Of a row (id, name)."""
    return KeptChange((key,), version, op, before, after, Origin(committed_us=1_700_000_000_000_000 + version))


def messages(table: Table, changes: Sequence[KeptChange]) -> list[Message]:
    columns = [column for column in table.columns if column.name in ("id", "name")]
    envelope = Envelope(table, columns[:1], columns, name="viewtail", release="0.1")
    return envelope.messages(changes, 1_700_000_000_000_000)


class Topic:
    """A topic on a real broker, made anew."""

    def __init__(self, server: Server, name: str, partitions: int = 1, **config: str) -> None:
        self.name = name
        self.client: dict[str, Any] = {"bootstrap.servers": f"127.0.0.1:{server.port}", "log_level": 0}
        self.admin = AdminClient(self.client)
        self._partitions, self._config = partitions, config
        self._producer: Producer | None = None
        self.make_again()

    def make_again(self) -> None:
        """Deleted, if it is there, and made."""
        if self.name in self.admin.list_topics(timeout=10).topics:
            for future in self.admin.delete_topics([self.name]).values():
                future.result(10)
        while True:
            new = NewTopic(self.name, self._partitions, 1, config=self._config)
            (future,) = self.admin.create_topics([new]).values()
            try:
                future.result(10)
                break
            except Exception:  # it is being deleted still
                continue
        while self.name not in self.admin.list_topics(timeout=10).topics:
            pass

    def publish(self, found: Sequence[Message], partition: int = 0, *, and_progress: Progress | None = None) -> None:
        """In one transaction, as a tailer does."""
        producer = self._transactional()
        producer.begin_transaction()
        for key, value, version in found:
            headers = [(VERSION_HEADER, str(version).encode())]
            producer.produce(self.name, value, key, partition, headers=headers)  # type: ignore[call-arg]
        if and_progress is not None:
            record = Published(position="{}", progress=and_progress).to_json()
            producer.produce(POSITIONS, record, b"test", 0)
        producer.commit_transaction(30)

    def abort(self, found: Sequence[Message], partition: int = 0) -> None:
        """What a tailer leaves that died in a transaction."""
        producer = self._transactional()
        producer.begin_transaction()
        for key, value, _ in found:
            producer.produce(self.name, value, key, partition)
        producer.flush(10)
        producer.abort_transaction(30)

    def publish_bytes(self, key: bytes | None, value: bytes | None, partition: int = 0) -> None:
        """What viewtail does not write."""
        producer = self._transactional()
        producer.begin_transaction()
        producer.produce(self.name, value, key, partition)
        producer.commit_transaction(30)

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """As retention does."""
        for future in self.admin.delete_records([TopicPartition(self.name, partition, offset)]).values():
            future.result(10)

    def _transactional(self) -> Producer:
        if self._producer is None:
            self._producer = Producer({**self.client, "transactional.id": f"test.{self.name}"})
            self._producer.init_transactions(30)
        return self._producer
