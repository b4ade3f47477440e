"""How far a partition has been read: a transaction's end takes an offset that no consumer is given."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError

from ingest.kafka.batching import Batching
from ingest.kafka.position import KafkaPosition
from ingest.kafka.source import _Reading
from tests.support.events import user_table
from tests.support.published import change, messages
from viewtail.changes.batches import Followed

BEGIN = KafkaPosition(epoch=1, topic="shop.user", topic_id="7-9", partition=0, offset=5, version=10)
NOBODY: Any = None  # is asked about the topic


class Consumer:
    """As far as it has fetched, the partition ends at `end`."""

    def __init__(self) -> None:
        self.end = -1001  # not known

    def get_watermark_offsets(self, _: object, cached: bool) -> tuple[int, int]:
        return 0, self.end


class Message:
    def __init__(self, offset: int) -> None:
        (given,) = messages(user_table(), [change("insert", offset, 11, after=(offset, "x"))])
        self._offset, (self._key, self._value, _) = offset, given

    def error(self) -> KafkaError | None:
        return None

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return self._offset

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 0


class End(Message):
    def error(self) -> KafkaError:
        return KafkaError(KafkaError._PARTITION_EOF)


def reading() -> tuple[Any, Consumer]:
    consumer: Any = Consumer()
    batching = Batching(Followed(user_table(), ("id", "name")), BEGIN)
    return _Reading(consumer, BEGIN, batching), consumer


def test_where_reading_begins_the_offset_that_is_left_may_be_a_message() -> None:
    read, consumer = reading()
    assert read.reached() == 5 and not read.is_at_end()
    consumer.end = 6
    assert read.reached() == 5


def test_behind_a_message_the_one_offset_that_is_left_is_the_end_of_its_transaction() -> None:
    read, consumer = reading()
    consumer.end = 7
    assert read.take([Message(5)], NOBODY) is not None
    assert read.reached() == 7 and read.is_at_end()
    assert read.passed(20, []).end.offset == 6, "reading goes on behind the message all the same"


def test_in_the_midst_of_a_transaction_nothing_but_its_messages_is_passed() -> None:
    read, consumer = reading()
    consumer.end = 8  # a second message, and the end
    read.take([Message(5)], NOBODY)
    assert read.reached() == 6 and not read.is_at_end()


def test_the_end_of_a_partition_is_where_the_broker_says_and_behind_what_was_read() -> None:
    read, consumer = reading()
    consumer.end = 9
    batch = read.take([Message(5), End(9)], NOBODY)
    assert batch is not None and batch.end.offset == 6
    assert read.reached() == 9 and read.is_at_end()
    assert read.take([End(9), Message(9)], NOBODY) is not None
    assert read.reached() == 10, "an end with messages behind it is none"
