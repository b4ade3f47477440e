"""Reads one partition of a topic as a source: its messages are changes, and progress stands for those it lacks.

Views of it are filled from their table, or, where a setting says so or another program writes the topic, from the topic
itself: it is read from its beginning.

It has a consumer of its own, which joins no group: the group (group.py) decides who reads a partition, and reading
begins at viewtail's own offset. What librdkafka has fetched waits in its queue, bounded in bytes, until the pipeline
has room for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ingest import BackfillAgain, GoOn, Progress, ReadAgain, Resuming, check_epochs
from ingest.kafka.batching import Batching, Foreign
from ingest.kafka.first_messages import is_foreign
from ingest.kafka.place import Place
from ingest.kafka.position import KafkaPosition, own
from ingest.kafka.progress import ProgressFeed
from viewtail.changes.batches import STREAM_END, Batch, Followed, Watermark
from viewtail.changes.errors import RETRIES, HistoryGoneError, SourceUnavailableError
from viewtail.changes.positions import Position
from viewtail.servers.brokers import SOURCE, failed
from viewtail.servers.consuming import CONSUMER, waiting

MESSAGES = 10_000  # taken at once; then comes a batch
LOOK_EVERY_S = 5.0  # whether it is the same topic still
IDLE_S = 0.05  # how often progress is looked at while no message comes
ASK_AGAIN_S = 1.0  # so long a broker that was away may take to answer

_FETCH = {
    "queued.max.messages.kbytes": 8 << 10,
    "fetch.wait.max.ms": 250,  # so late the end of a partition is known that had no message meanwhile
    "fetch.queue.backoff.ms": 10,  # the queue was full
    "fetch.error.backoff.ms": 50,
    "retry.backoff.ms": 50,
    "check.crcs": True,
}
_OUT_OF_RANGE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


class KafkaSource:
    """Reads one partition as a source. `followed` is the topic's table; None: nobody wants its rows.

    `foreign` is how the topic is written where viewtail does not write it, `fill_from` the setting.
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        place: Place,
        feed: ProgressFeed,
        followed: Followed | None,
        *,
        epoch: int,
        foreign: Foreign | None = None,
        fill_from: str = "table",
    ) -> None:
        self._client = client
        self._place = place
        self._feed = feed
        self._followed = followed
        self._epoch = epoch
        self._foreign = foreign or Foreign()
        self._fill_from = fill_from
        self._is_foreign: bool | None = None  # not known while the topic is empty
        self._interrupted = threading.Event()
        self._away: str | None = None  # what the client said last of brokers that do not answer
        self._silence = (
            f"the tailer publishes no changes into the topic {place.topic} now: its view is halted or paused there, "
            "and `viewtail status` says why"
        )
        self.progress = Progress()

    # -- where reading begins --------------------------------------------------------------------------------------

    def now(self) -> KafkaPosition:
        place = self._place
        return KafkaPosition(
            epoch=self._epoch,
            topic=place.topic,
            topic_id=place.topic_id,
            partition=place.partition,
            offset=place.end(),
            version=0,
        )

    def beginning(self, shown: Position | None = None) -> KafkaPosition | None:
        if not self._is_filled_from_itself():
            return None
        now = self.now()
        before = now if shown is None or own(shown).topic_id != now.topic_id else own(shown)
        return replace(
            now,
            offset=self._place.beginning(),
            filling_since_ms=before.filling_since_ms or _now_ms(),  # others may be in the midst of it
            before_filling=before.shown,
        )

    def is_compacted(self) -> bool:
        return self._place.is_compacted()

    def _is_filled_from_itself(self) -> bool:
        return self._fill_from == "topic" or self._is_another_programs()

    def _is_another_programs(self) -> bool:
        if self._is_foreign is None:
            self._is_foreign = is_foreign(self._client, self._place.topic, self._place.firsts())
        return bool(self._is_foreign)

    def _check_writer(self) -> None:
        """Begin again where the first message of a topic tells who writes it: that decides how views are filled."""
        if self._fill_from == "table" and self._is_foreign is None and self._is_another_programs():
            raise SourceUnavailableError(
                f"topic {self._place.topic} was empty, and another program writes it now: viewtail begins again with it"
            )

    def check(self, after: Position) -> None:
        self._place.check(own(after))

    def resume(self, offset: Position, kept: Position) -> Resuming:
        at, has = own(offset), own(kept)
        check_epochs(has, at, self._epoch)
        if has.epoch < at.epoch:
            return GoOn(at)  # the history began anew, and every view is backfilled in it
        self._place.check_is_of_this(has)
        is_behind = has.offset < at.offset
        try:
            if is_behind:
                self._place.check(has)
            self._place.check_deletes(min(has.shown, at.shown))
            self._place.check_filling(at, _now_ms())
        except HistoryGoneError as error:
            if self._is_filled_from_itself():
                raise _unswept(error) from None
            return BackfillAgain(at, str(error), has.version)
        return ReadAgain(has, has.version) if is_behind else GoOn(at, has.version)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, after: Position) -> Iterator[Batch]:
        """Batches of messages as they come; each ends behind a message or at progress."""
        begin = own(after)
        self._interrupted.clear()
        self._place.check(begin)
        ahead = self._feed.follow(begin.topic, begin.partition)
        try:
            foreign = self._foreign if self._is_another_programs() else None
            if self._is_filled_from_itself():
                ahead.expect(self._place.end(), {STREAM_END: 1})
            settings = {**self._client, **_FETCH, **CONSUMER, "error_cb": self._heard}
            with closing(Consumer(settings)) as consumer:
                consumer.assign([TopicPartition(begin.topic, begin.partition, begin.offset)])
                reading = _Reading(consumer, begin, Batching(self._followed, begin, foreign))
                looked_at = time.monotonic()
                while not self._interrupted.is_set():
                    if time.monotonic() - looked_at > LOOK_EVERY_S and self._away is None:
                        self._place.check_is_there()
                        looked_at = time.monotonic()
                    batch = self._next(reading)
                    if batch is not None:
                        self._check_writer()
                        yield batch
                    self._tell_of_silence(ahead.is_silent)
                    passed = ahead.take(reading.reached())
                    if passed is not None:
                        self._end_filling(passed[1], begin, reading)
                        yield reading.passed(*passed)
        except KafkaException as error:
            raise failed(error, f"reading {begin.topic}", SOURCE) from None
        finally:
            self._feed.leave(ahead)

    def _end_filling(self, marks: Sequence[Watermark], begin: KafkaPosition, reading: _Reading) -> None:
        """End the filling where these marks say so. Raises HistoryGoneError where deletes may have been missed."""
        if not begin.filling_since_ms or all(mark.token != STREAM_END for mark in marks):
            return
        try:
            self._place.check_deletes(begin.before_filling)
            self._place.check_filling(begin, _now_ms())
        except HistoryGoneError as error:
            raise _unswept(error) from None
        reading.filled()

    def interrupt(self) -> None:
        self._interrupted.set()

    def _next(self, reading: _Reading) -> Batch | None:
        messages = waiting(reading.consumer, MESSAGES, IDLE_S)
        if not messages:
            self._look_for_the_broker(reading)
            return None
        self._away, self.progress.trouble = None, None
        self.progress.received_at = time.monotonic()
        batch = reading.take(messages, self._place)
        self.progress.is_at_end = reading.is_at_end()
        return batch

    def _tell_of_silence(self, is_silent: bool) -> None:
        """Report that the topic lacks changes that its table has."""
        if is_silent:
            self.progress.trouble = self.progress.trouble or self._silence
        elif self.progress.trouble == self._silence:
            self.progress.trouble = None

    def _heard(self, error: KafkaError) -> None:
        """Note what librdkafka says of a broker; it connects again by itself."""
        if self._away is None:
            self.progress.reconnect_count += 1
        self._away = f"Kafka: {error.str()} ({error.name()}). {RETRIES}"

    def _look_for_the_broker(self, reading: _Reading) -> None:
        """A partition may be quiet, and its broker away: only the latter is trouble."""
        if self._away is None:
            return
        if reading.is_answered():
            self._away, self.progress.trouble = None, None
        else:
            self.progress.trouble = self._away


class _Reading:
    """One read, and how far it has come."""

    def __init__(self, consumer: Consumer, begin: KafkaPosition, batching: Batching) -> None:
        self.consumer = consumer
        self._batching = batching
        self._next = begin.offset
        self._is_behind_message = False  # the last thing that was read, so that only its transaction's end may follow
        self._of = TopicPartition(begin.topic, begin.partition)

    def filled(self) -> None:
        """The topic was read from its beginning."""
        self._batching.filled()

    def take(self, messages: list[Any], place: Place) -> Batch | None:
        """The changes of what was consumed; None where it tells of the end alone."""
        end = None
        if any(message.error() is not None for message in messages):
            messages, end = self._without_errors(messages, place)
        batch = self._batching.batch(messages) if messages else None
        if messages:
            self._next, self._is_behind_message = messages[-1].offset() + 1, True
        if end is not None:
            self._next, self._is_behind_message = end, False
        return batch

    def _without_errors(self, messages: list[Any], place: Place) -> tuple[list[Any], int | None]:
        """The changes, and the offset of the partition's end where that is behind them."""
        good, end = [], None
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
                end = None
            elif error.code() == KafkaError._PARTITION_EOF:
                end = message.offset()
            elif error.code() in _OUT_OF_RANGE:
                raise place.gone(self._next)
            elif not error.retriable():
                raise KafkaException(error)
        return good, end

    def is_answered(self) -> bool:
        """Return whether the partition's broker answers."""
        try:
            self.consumer.get_watermark_offsets(self._of, timeout=ASK_AGAIN_S)
        except KafkaException:
            return False
        return True

    def is_at_end(self) -> bool:
        """Say whether what was fetched last is the partition's end."""
        return self._left() <= 1

    def _left(self) -> int:
        """Count the offsets between here and the end; the last one may be the end of a transaction."""
        _, end = self.consumer.get_watermark_offsets(self._of, cached=True)
        return end - self._next if end >= 0 else 2

    def reached(self) -> int:
        """The offset up to which everything was read.

        A transaction's end takes an offset and is not handed over. Behind a message that can be seen its transaction
        has ended, so one offset that is left is that end.
        """
        return self._next + 1 if self._is_behind_message and self._left() == 1 else self._next

    def passed(self, version: int, watermarks: list[Any]) -> Batch:
        """A batch of no changes: nothing is missing up to this version."""
        self._batching.version = max(self._batching.version, version)
        return Batch(
            changes=[],
            end=self._batching.position(self._next),
            row_count=0,
            byte_count=0,
            oldest_commit_us=0,
            watermarks=watermarks,
            is_quiet=True,
        )


def _unswept(error: HistoryGoneError) -> HistoryGoneError:
    """Add what to do with views that are filled from their topic: no sweep would take out of them what is deleted."""
    return HistoryGoneError(f"{error}. Declare the views of this topic under other names")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
