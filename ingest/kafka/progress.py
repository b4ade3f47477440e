"""Reads how far topics are published from the topic of positions, once per process for all its partitions.

A partition without messages does not show that time passes. Progress does: once a reader has reached the end that a
progress record names, it has read everything up to the record's version, and passed the record's watermarks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from viewtail.changes.batches import Watermark
from viewtail.changes.errors import ViewtailError
from viewtail.changes.published import POSITIONS, Progress, Published
from viewtail.servers.brokers import ASK_WITHIN_S, SOURCE, failed
from viewtail.servers.consuming import CONSUMER, waiting

_log = structlog.get_logger("viewtail.source")

_LOOK_BACK = 1_000  # records before the end, which usually include the newest progress of every tailer
_KEPT = 200  # progress records for new readers
_MOST_WAITING = 1_000  # for one reader; with more it is far behind
_POLL_S = 0.1
_TRY_AGAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Passed:
    """The knowledge of a reader that has reached an offset of its partition."""

    end: int
    version: int
    watermarks: Mapping[str, int]  # token -> version


@dataclass(slots=True, eq=False)
class Ahead:
    """The progress that one reader has not reached yet: the feed appends it, and the reader takes it."""

    topic: str
    partition: int
    is_silent: bool = False  # the tailer publishes no changes into the topic now
    _waiting: deque[Passed] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, progress: Progress) -> None:
        ends = progress.ends.get(self.topic, ())
        self.is_silent = self.topic in progress.silent or (self.is_silent and not ends)
        if self.partition >= len(ends):
            return
        self.expect(ends[self.partition], progress.watermarks, progress.version)

    def expect(self, end: int, watermarks: Mapping[str, int], version: int = 1) -> None:
        """Expect that at offset `end` these watermarks are passed, and everything up to that version is read."""
        with self._lock:
            self._waiting.append(Passed(end, version, watermarks))
            if len(self._waiting) > _MOST_WAITING:
                first, second = self._waiting.popleft(), self._waiting.popleft()
                both = {**first.watermarks, **second.watermarks}
                self._waiting.appendleft(Passed(second.end, second.version, both))

    def take(self, offset: int) -> tuple[int, list[Watermark]] | None:
        """The version reached at an offset, and the watermarks passed there; None if there is nothing new."""
        reached = self._reached(offset) if self._waiting else []
        if not reached:
            return None
        marks = [Watermark(token, at) for passed in reached for token, at in passed.watermarks.items()]
        version = max(passed.version for passed in reached)
        return (version, marks) if version else None

    def _reached(self, offset: int) -> list[Passed]:
        """Take what an offset is behind, and leave the rest."""
        with self._lock:
            # Not only the first ones: what was told of a topic of the same name that was deleted may have a larger end.
            reached = [passed for passed in self._waiting if passed.end <= offset]
            self._waiting = deque(passed for passed in self._waiting if passed.end > offset)
        return reached


class ProgressFeed:
    """Reads the topic of positions of one cluster while readers follow it. Thread-safe."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._readers: set[Ahead] = set()
        self._recent: deque[Progress] = deque(maxlen=_KEPT)
        self._thread: threading.Thread | None = None

    def follow(self, topic: str, partition: int) -> Ahead:
        """Collect the progress of a partition until `leave`, including recent records."""
        ahead = Ahead(topic, partition)
        with self._lock:
            for progress in self._recent:
                ahead.add(progress)
            self._readers.add(ahead)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
                self._thread.start()
        return ahead

    def leave(self, ahead: Ahead) -> None:
        with self._lock:
            self._readers.discard(ahead)

    def _is_followed(self) -> bool:
        """Return whether there are readers. False ends the thread, and the next reader starts another one."""
        with self._lock:
            if not self._readers:
                self._thread = None
                self._recent.clear()
            return bool(self._readers)

    def _run(self) -> None:
        last_error = ""  # if only other programs write topics, there never is a topic of positions
        while self._is_followed():
            try:
                with closing(Consumer({**self._client, **CONSUMER})) as consumer:
                    self._read(consumer)
            except (KafkaException, ViewtailError) as error:
                (_log.debug if str(error) == last_error else _log.info)("no progress of topics", error=str(error))
                last_error = str(error)
                self._pause(_TRY_AGAIN_S)

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._is_followed():
            time.sleep(_POLL_S)

    def _read(self, consumer: Consumer) -> None:
        first, end = consumer.get_watermark_offsets(TopicPartition(POSITIONS, 0), timeout=ASK_WITHIN_S)
        consumer.assign([TopicPartition(POSITIONS, 0, max(first, end - _LOOK_BACK))])
        while self._is_followed():
            for message in waiting(consumer, _LOOK_BACK, _POLL_S):
                error = message.error()
                if error is None:
                    self._tell(message.value())
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise failed(KafkaException(error), f"reading {POSITIONS}", SOURCE)

    def _tell(self, value: bytes | None) -> None:
        if value is None or b'"progress"' not in value:
            return
        try:
            progress = Published.from_json(value).progress
        except ValueError as error:
            _log.warning("a record of progress cannot be read", topic=POSITIONS, error=str(error))
            return
        if progress is not None:
            with self._lock:
                self._recent.append(progress)
                for ahead in self._readers:
                    ahead.add(progress)
