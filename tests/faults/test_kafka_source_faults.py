"""What happens to topics while they are read: deleted and made again, cut off, quiet, with aborted transactions."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ingest import BackfillAgain, GoOn
from ingest.kafka import source as module
from ingest.kafka.place import Place
from ingest.kafka.position import KafkaPosition
from ingest.kafka.progress import ProgressFeed
from ingest.kafka.source import KafkaSource
from projectors.stores.topics.admin import Topics
from stack import Server
from tests.support.events import user_table
from tests.support.published import Topic, change, messages
from tests.support.running import wait_for
from viewtail.changes.batches import STREAM_END, Batch, Followed
from viewtail.changes.errors import HistoryGoneError, SourceError, SourceUnavailableError
from viewtail.changes.published import POSITIONS, Progress
from viewtail.servers.brokers import SOURCE, Broker

TABLE = user_table()


def source_of(topic: Topic, partition: int = 0, fill_from: str = "table") -> KafkaSource:
    broker = Broker(topic.client, SOURCE)
    place = Place(broker, topic.name, broker.id_of(topic.name), partition)
    followed = Followed(TABLE, ("id", "name"))
    return KafkaSource(topic.client, place, ProgressFeed(topic.client), followed, epoch=1, fill_from=fill_from)


class Reader:
    """Reads in a thread, and keeps what came."""

    def __init__(self, source: KafkaSource, after: KafkaPosition) -> None:
        self.source = source
        self.batches: list[Batch] = []
        self.error: Exception | None = None
        self._after = after
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        try:
            for batch in self.source.read(self._after):
                self.batches.append(batch)
        except Exception as error:
            self.error = error

    def rows(self) -> list[object]:
        return [row for batch in self.batches for change in batch.changes for row in change.rows]

    def tokens(self) -> dict[str, int]:
        return {mark.token: mark.version for batch in self.batches for mark in batch.watermarks}


@contextmanager
def reading(source: KafkaSource, after: KafkaPosition) -> Iterator[Reader]:
    reader = Reader(source, after)
    try:
        yield reader
    finally:
        source.interrupt()
        reader.thread.join()


def insert(number: int, version: int) -> list[tuple[bytes, bytes | None, int]]:
    return messages(TABLE, [change("insert", number, version, after=(number, "x"))])


def test_a_topic_made_again_under_the_reader_ends_the_history(
    kafka_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets look as if they were those of the topic before."""
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.2)
    topic = Topic(kafka_server, "faults.again")
    topic.publish(insert(1, 11))
    source = source_of(topic)
    begin = source.now()
    with reading(source, replace(begin, offset=0)) as reader:
        wait_for("the row comes", reader.rows)
        topic.make_again()
        for number in range(5):
            topic.publish(insert(number, 20 + number))
        wait_for("it ends", lambda: reader.error)
    # Between the two there was none for a moment: the worker asks again then.
    assert isinstance(reader.error, HistoryGoneError | SourceUnavailableError), reader.error
    again = source_of(topic)
    for ask in (lambda: again.check(begin), lambda: again.resume(begin, begin), lambda: list(again.read(begin))):
        with pytest.raises(HistoryGoneError, match=r"deleted and made anew .*replay --new-history"):
            ask()


def test_an_offset_behind_the_end_is_lost_messages_and_not_a_place_to_wait_at(kafka_server: Server) -> None:
    topic = Topic(kafka_server, "faults.short")
    topic.publish(insert(1, 11))
    source = source_of(topic)
    with pytest.raises(HistoryGoneError, match="messages that were acknowledged are lost"):
        source.check(replace(source.now(), offset=50))


def test_messages_deleted_before_they_were_read_end_the_history(kafka_server: Server) -> None:
    topic = Topic(kafka_server, "faults.retention")
    for number in range(5):
        topic.publish(insert(number, 11 + number))
    source = source_of(topic)
    topic.delete_before(6)
    with pytest.raises(HistoryGoneError, match="begins at offset 6, and viewtail has read up to 2"):
        list(source.read(replace(source.now(), offset=2)))


def test_deletes_that_compaction_may_have_taken_away_unread_have_the_views_backfilled(kafka_server: Server) -> None:
    """The tombstone of a key is kept for a while, and then nothing tells that there was one."""
    topic = Topic(kafka_server, "faults.compacted", **{"cleanup.policy": "compact", "delete.retention.ms": "3000"})
    source = source_of(topic)
    begin = source.now()
    topic.publish(insert(1, 11))
    topic.publish(messages(TABLE, [change("delete", 1, 12, before=(1, "x"))]))
    read = replace(source.now(), offset=source.now().offset - 1, version=12)  # the end of the transaction is not seen
    assert isinstance(source.resume(begin, begin), GoOn)
    wait_for("it is too late", lambda: isinstance(source.resume(begin, begin), BackfillAgain))
    assert source.resume(read, read) == GoOn(read, 12), "what was read is not missed, however long ago"


def test_a_topic_whose_beginning_is_gone_fills_no_view(kafka_server: Server) -> None:
    for policy in ("delete", "compact,delete"):
        topic = Topic(kafka_server, "faults.beginning", **{"cleanup.policy": policy})
        source = source_of(topic, fill_from="topic")
        topic.publish(insert(1, 11))
        assert source.beginning().offset == 0  # type: ignore[union-attr]
        topic.publish(insert(2, 12))
        topic.delete_before(2)
        with pytest.raises(SourceError, match=r"begins at offset 2: .*compact=True.*VIEWTAIL_SOURCE__FILL_FROM=table"):
            source.beginning()
    assert source_of(topic).beginning() is None, "rows of the table fill views, unless a setting says otherwise"


def test_a_filling_that_took_longer_than_deletes_are_kept_ends_the_history_over_restarts_too(
    kafka_server: Server,
) -> None:
    """A reader that read a row may come to its tombstone when that is gone."""
    topic = Topic(kafka_server, "faults.filling", **{"cleanup.policy": "compact", "delete.retention.ms": "3000"})
    source = source_of(topic, fill_from="topic")
    topic.publish(insert(1, 11))
    begin = source.beginning()
    assert begin is not None
    with reading(source, begin) as reader:
        wait_for("the end is passed", lambda: STREAM_END in reader.tokens())
    passed = reader.batches[-1].end
    assert isinstance(passed, KafkaPosition) and passed.filling_since_ms == 0
    killed, restarted = KafkaPosition.from_text(begin.to_text()), source_of(topic, fill_from="topic")
    late = r"has taken \d+ s, longer than its delete.retention.ms \(3 s\)"
    wait_for("it is too late", lambda: re.search(late, str(_resumed(restarted, killed))))
    with reading(restarted, killed) as reader:
        wait_for("it ends", lambda: reader.error)
    assert isinstance(reader.error, HistoryGoneError) and "has taken" in str(reader.error)


def test_a_new_view_is_filled_from_a_topic_that_is_older_than_deletes_are_kept(kafka_server: Server) -> None:
    """Other views of the pipeline show the topic up to its end: they have missed nothing."""
    topic = Topic(kafka_server, "faults.older", **{"cleanup.policy": "compact", "delete.retention.ms": "2000"})
    source = source_of(topic, fill_from="topic")
    topic.publish(insert(1, 11))
    unread = replace(source.now(), offset=0)
    wait_for("it is old", lambda: isinstance(_resumed(source, unread), HistoryGoneError))
    now = source.now()  # the end of the transaction is there by now
    shown = replace(now, offset=now.offset - 1, version=11)
    begin = source.beginning(shown)
    assert begin is not None
    assert (begin.offset, begin.before_filling) == (0, shown.offset)
    assert source.resume(begin, shown) == GoOn(begin, 11)


def _resumed(source: KafkaSource, at: KafkaPosition) -> object:
    try:
        return source.resume(at, at)
    except HistoryGoneError as error:
        return error


def test_a_quiet_partition_passes_watermarks_and_one_that_is_behind_does_not_yet(kafka_server: Server) -> None:
    topic = Topic(kafka_server, "faults.quiet", partitions=2)
    Topics(topic.client).make_positions(POSITIONS)
    topic.publish(insert(1, 11), 0)
    broker = Broker(topic.client, SOURCE)
    quiet, busy = source_of(topic, 1), source_of(topic, 0)
    with reading(quiet, quiet.now()) as reader, reading(busy, replace(busy.now(), offset=0)) as other:
        wait_for("the row comes", other.rows)
        ends = broker.end_offsets(topic.name, 2)
        far = [ends[0] + 5, ends[1]]
        topic.publish([], and_progress=Progress(version=20, ends={topic.name: ends}, watermarks={"one": 19}))
        topic.publish([], and_progress=Progress(version=30, ends={topic.name: far}, watermarks={"two": 30}))
        wait_for("the quiet one passes both", lambda: reader.tokens() == {"one": 19, "two": 30})
        wait_for("the busy one passes the first", lambda: other.tokens() == {"one": 19})
        assert (reader.batches[-1].end.version, reader.batches[-1].is_quiet) == (30, True)  # type: ignore[union-attr]
        for number in range(3):
            topic.publish(insert(number, 21 + number), 0)
        wait_for("it passes the second behind its messages", lambda: "two" in other.tokens())
        at = next(at for at, batch in enumerate(other.batches) if "two" in {mark.token for mark in batch.watermarks})
        assert sum(len(batch.changes) for batch in other.batches[:at]) == 4
    assert reader.error is other.error is None


def test_an_aborted_transaction_is_not_read_and_its_end_is_passed(kafka_server: Server) -> None:
    topic = Topic(kafka_server, "faults.aborted")
    Topics(topic.client).make_positions(POSITIONS)
    source = source_of(topic)
    topic.publish(insert(1, 11))
    topic.abort(insert(2, 12))
    with reading(source, replace(source.now(), offset=0)) as reader:
        wait_for("the row comes", reader.rows)
        ends = Broker(topic.client, SOURCE).end_offsets(topic.name, 1)
        topic.publish([], and_progress=Progress(version=20, ends={topic.name: ends}, watermarks={"one": 19}))
        wait_for("what comes behind the aborted one is passed", lambda: reader.tokens() == {"one": 19})
        assert reader.rows() == [(1, "x")]
        assert reader.source.progress.is_at_end
