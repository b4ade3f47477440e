"""The sink of topics: a batch or several are one Kafka transaction, and the source's position travels in it.

So the topics always hold exactly the changes up to the position that their last record in viewtail_positions names: a
reader with isolation.level=read_committed sees each change once. The transactional id is the pipeline's, so that a
second process that takes the pipeline fences the first.

Messages are sent at once, and a reader of uncommitted messages has them then. Topics that are delivered at least once
have such readers: as long as there is nothing but their messages in the transaction, the pipeline leaves it open for
seconds (`is_awaited`), and what a crash takes back comes again. Kafka fences a producer by its transactional id alone,
and librdkafka sends under one in transactions alone: so there is no producer without them.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import version as release_of
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from projectors import failpoints
from projectors.stores import NOT_AS_DECLARED, Meanwhile, OnMissing, Publisher, ignored, nothing, parked, slices
from projectors.stores.owners import NOBODY, Claiming
from projectors.stores.topics.admin import PresentTopic, Topics, contradictions, mend
from projectors.stores.topics.claiming import TopicClaims
from projectors.stores.topics.owners import TopicClaim
from projectors.stores.topics.positions import last_published
from projectors.stores.topics.reading import TopicReader
from projectors.stores.topics.rules import topic_of, transactional_id
from projectors.stores.topics.views import AT_LEAST_ONCE
from projectors.views import BoundView
from projectors.watermark_rows import forget_oldest
from viewtail.changes.batches import Watermark
from viewtail.changes.envelope import Envelope, Message
from viewtail.changes.errors import RETRIES, FencedError, StoreError, StoreUnavailableError
from viewtail.changes.positions import Position, ReadPosition
from viewtail.changes.published import POSITIONS, VERSION_HEADER, Progress, Published, record_key
from viewtail.changes.tables import Column, Table
from viewtail.changes.writes import Form, KeptChange, Key, Parked, ViewWrites, Write
from viewtail.servers.brokers import failed

PROGRESS_EVERY_S = 1.0
FULL_FOR_S = 30.0  # so long the queue may be full without any progress, before the broker counts as away
CLOSE_WITHIN_S = 3.0
REST_S = 0.0005  # between two transactions
PACE_S = 0.5  # so long the broker may not have what was sent, before more is
COMMIT_WITHIN_S = 15.0  # a topic that is gone is noticed then at the latest

_PRODUCER = {
    "acks": "all",
    "partitioner": "murmur2_random",  # Java's default for messages with a key
    "compression.type": "lz4",
    "linger.ms": 0,  # what waits is sent together in any case
    "delivery.report.only.error": True,  # nobody asks for the others; unasked, each would be kept
    "queue.buffering.max.kbytes": 8 << 10,
    "queue.buffering.max.messages": 100_000,
    # A transaction is as long as the source's: one of 1 GiB takes minutes. 15 min is the most that brokers allow.
    "transaction.timeout.ms": 600_000,
    # Topics are there before anything is written to them, so one that is unknown was deleted; 30 s by default.
    "topic.metadata.propagation.max.ms": 5_000,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 500,
}
_Encode: TypeAlias = Callable[[Sequence[KeptChange], int], list[Message]]
Headers = list[tuple[str, str | bytes | None]]
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_LARGE = 500  # changes
_SLICE = 500
_MOST_FORMS = 100  # as of projectors/every_change.py
_MESSAGE_OVERHEAD = 512  # more than what a message of one has besides key, value and header
# librdkafka prints on standard error that a fenced producer has nothing to abort.
warnings.filterwarnings("ignore", message="Producer abort_transaction failed", category=RuntimeWarning)


class TopicSink(Publisher):
    """The topics of the pipeline `pipeline` of the deployment whose own tables are in `database`.

    `name` is what messages call the source, `positions` the topic of the pipeline's position. Raises as the Sink
    protocol says.
    """

    def __init__(
        self,
        client: Callable[[], Mapping[str, Any]],
        views: Sequence[BoundView],
        database: str,
        pipeline: str,
        *,
        name: str,
        read_position: ReadPosition,
        positions: str = POSITIONS,
        claiming: Claiming = lambda: NOBODY,
    ) -> None:
        self._client = client
        self._read_position = read_position
        self._views = {view.id: view for view in views}
        self._database = database
        self._id = transactional_id(database, pipeline)
        self._pipeline, self._positions = pipeline, positions
        self._key = record_key(database, pipeline)
        self._claiming = claiming  # returns the deployment that claims the topics
        self._owner = ""  # the id of that deployment, once it is known
        self._name = name
        self._envelopes = {view.id: self._envelope(view, view.table, view.values) for view in views}
        self._in_forms: dict[Form, Envelope] = {}
        self._producer: Producer | None = None
        self._topics: Topics | None = None
        self._most_bytes: dict[str, int] = {}  # of one message, by view
        self._partitions: dict[str, int] = {}  # by topic
        self._ids: dict[str, str] = {}  # of topics, by view
        self._judged: dict[str, tuple[str, str | None]] = {}  # by view, as of `_judge`
        self._is_open = False  # a transaction
        self._open_count = 0  # of changes in it
        self._deliveries = set[str]()  # of the topics whose messages are in it
        self._all_taken_at = 0.0  # the broker had all of them
        self._ended_at = 0.0  # the last one
        self._committing = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._under_way: Future[None] | None = None  # the last large commit
        # By identity: writes that come next, and the messages that were made of their changes during the last commit.
        self._encoded: dict[int, tuple[ViewWrites, list[list[Message] | None]]] = {}
        self._kept: Position | None = None  # published up to here, as the last transaction says
        self.fills: dict[str, str] = {}
        self.newest = 0
        self._seen: dict[str, int] = {}  # watermarks up to the position that is written next
        self._watermarks: dict[str, int] = {}  # that are durable, and not published in a progress record yet
        self._progress: Progress | None = None  # goes with the transaction that is open
        self._told: Position | None = None  # in the last progress record
        self._told_at = 0.0

    def _envelope(self, view: BoundView, table: Table, values: Sequence[Column]) -> Envelope:
        has_schemas = topic_of(view).has_schemas
        return Envelope(
            table, view.key, values, name=self._name, release=release_of("viewtail"), with_schemas=has_schemas
        )

    def _envelope_of(self, writes: ViewWrites) -> Envelope:
        """The envelope that makes messages of changes in their form."""
        if (form := writes.form) is None:
            return self._envelopes[writes.view]
        if form not in self._in_forms:
            if len(self._in_forms) >= _MOST_FORMS:
                self._in_forms.clear()
            self._in_forms[form] = self._envelope(self._views[writes.view], form.table, form.values)
        return self._in_forms[form]

    # -- the place -----------------------------------------------------------------------------------------------

    def prepare(self, on_missing: OnMissing = ignored) -> dict[str, str]:
        """Make missing topics, fence every other writer of this pipeline, and read how far it has published."""
        self.close()
        client = self._client()
        topics = Topics(client)
        there = topics.partitions()
        if missing := frozenset(name for name, view in self._views.items() if view.view.name not in there):
            on_missing(missing)
        topics.make_positions(self._positions)
        # 1. The name that it publishes under.
        claims = TopicClaims(client, self._views, self._claiming())
        self._owner = claims.claimant.id
        self._id, self._key = claims.name(self._database, self._pipeline, self._positions)
        # 2. Its topics: missing ones are made. None is written that is another's, or not as it is declared.
        before = claims.there(topics)
        present, refused = self._made(topics)
        judged = {view: self._judge(view, topic) for view, topic in present.items()}
        refused |= {view: why for view, (_, why) in judged.items() if why is not None}
        of_others, free = claims.sorted_out(present, before)
        self._note(present)
        # 3. Every other writer is fenced: from here on nobody else publishes for this pipeline.
        published = self._take_over(client, topics)
        if claims.is_of_another(published):
            self._drop()
            raise StoreUnavailableError(f"Kafka: another deployment took the transactional id {self._id}. {RETRIES}")
        # 4. Topics that nobody has are claimed.
        of_others |= claims.claim(free, self._id, self._publish_claims)
        for view in of_others:  # progress records are about this deployment's topics
            del self._partitions[self._views[view].view.name]
        # 5. It goes on where it had published to.
        self._go_on_behind(published)
        self._judged = judged
        return refused | of_others

    def _made(self, topics: Topics) -> tuple[dict[str, PresentTopic], dict[str, str]]:
        """Make missing topics; returns by view the existing topics, and why others could not be made."""
        names = {view.view.name: name for name, view in self._views.items()}
        present, refused = topics.make([topic_of(view) for view in self._views.values()])
        by_view = {names[name]: topic for name, topic in present.items()}
        return by_view, {names[name]: why for name, why in refused.items()}

    def _note(self, present: Mapping[str, PresentTopic]) -> None:
        """Keep the properties of the topics that publishing needs."""
        self._partitions = {self._views[view].view.name: topic.partitions for view, topic in present.items()}
        self._ids = {view: topic.id for view, topic in present.items()}
        self._most_bytes = {view: topic.most_bytes - _MESSAGE_OVERHEAD for view, topic in present.items()}

    def _take_over(self, client: Mapping[str, Any], topics: Topics) -> Published | None:
        """Fence every other writer, and read what the last one published."""
        with self._mapped("taking the transactional id"):
            self._producer = Producer({**_PRODUCER, **client, "transactional.id": self._id, **self._sizes()})
            self._producer.init_transactions(COMMIT_WITHIN_S)
        self._topics = topics
        return last_published(client, topics, self._positions, self._key)

    def _go_on_behind(self, published: Published | None) -> None:
        self._kept = None if published is None else self._position(published.position)
        self.fills = {} if published is None else dict(published.fills)
        self.was_unfinished = {} if published is None else published.fan_outs
        self.newest = 0 if published is None else published.newest
        self._seen, self._watermarks = {}, {} if published is None else dict(published.watermarks)
        self._told = self._kept

    def _judge(self, view: str, topic: PresentTopic) -> tuple[str, str | None]:
        """The topic's id, and why it is refused. Each topic is judged once: a broker outage is no reason to halt it."""
        if (judged := self._judged.get(view)) is not None and judged[0] == topic.id:
            return judged
        declared = topic_of(self._views[view])
        why = [f"{seen}; {mend(declared, topic, seen)}" for seen in contradictions(declared, topic)]
        return topic.id, f"the topic {declared.name} {NOT_AS_DECLARED}: {why[-1]}" if why else None

    def _publish_claims(self, claims: Sequence[TopicClaim]) -> None:
        if not claims:
            return
        producer = self._living()
        with self._mapped("claiming topics"):
            producer.begin_transaction()
            for claim in claims:
                self._produce(producer, POSITIONS, claim.value, claim.key, [])
            producer.commit_transaction(COMMIT_WITHIN_S)

    def _sizes(self) -> dict[str, int]:
        """The producer's limits: a topic's limit holds for a batch of messages too, as it is sent."""
        limits = self._most_bytes.values()
        return {
            "message.max.bytes": max([1_000_000, *limits]) + _MESSAGE_OVERHEAD,
            "batch.size": min([1_000_000, *limits]),
        }

    def _position(self, text: str) -> Position:
        try:
            return self._read_position(text)
        except ValueError as error:
            raise StoreError(
                f"Kafka: the position of pipeline {self._pipeline} in {self._positions} is not what viewtail wrote "
                f"there ({error}). Begin a new history: viewtail replay --new-history"
            ) from None

    def incarnations(self) -> Mapping[str, str]:
        return self._ids

    def witness(self, offset: Position) -> Position | None:
        return self._kept

    def keys(self, view: str) -> Iterator[list[tuple[Key, int]]]:
        return TopicReader(self._client(), self._views[view]).keys()

    def is_empty(self, view: str) -> bool:
        return not TopicReader(self._client(), self._views[view]).has_messages()

    # -- writing -------------------------------------------------------------------------------------------------

    def write(
        self, writes: Sequence[ViewWrites], upto: Position | None, meanwhile: Meanwhile = nothing
    ) -> list[Parked]:
        """Publish the changes, in one transaction with `upto`; with None it stays open for what follows."""
        producer, letters = self._living(), list[Parked]()
        with self._mapped("publishing"):
            if not self._is_open:
                self._progress = self._progress_now()
                self._rest()
                producer.begin_transaction()
                self._is_open, self._open_count = True, 0
                self._deliveries.clear()
                self._all_taken_at = time.monotonic()
            self._keep_pace(producer)
            for of_view in writes:
                self._publish(producer, of_view, letters)
                self._open_count += of_view.count
            if upto is None:
                return letters
            told = {} if self._progress is None else self._progress.watermarks
            untold = {token: at for token, at in {**self._watermarks, **self._seen}.items() if token not in told}
            forget_oldest(untold)  # a fan-out may be open for hours, and who still waits writes another one
            value = Published(
                position=upto.to_text(),
                newest=self.newest,
                fills=self.fills,
                fan_outs=self.unfinished(),
                progress=self._progress,
                watermarks=untold,
                owner=self._owner,
            )
            self._produce(producer, self._positions, value.to_json(), self._key, [])
            commit = "commit" if self._open_count else "empty commit"
            failpoints.reach(f"before {commit}")
            self._commit(producer, self._open_count, meanwhile)
            failpoints.reach(f"after {commit}")
        self._is_open, self._ended_at = False, time.perf_counter()
        self._kept = upto
        self._seen, self._watermarks = {}, untold
        return letters

    def _keep_pace(self, producer: Producer) -> None:
        """Wait for a broker that is late: where no commit waits for it, its changes would look published."""
        now = time.monotonic()
        if self.is_awaited or not len(producer):
            self._all_taken_at = now
        elif now - self._all_taken_at > PACE_S:
            if producer.flush(COMMIT_WITHIN_S):
                raise StoreUnavailableError(f"Kafka: the broker took nothing for {COMMIT_WITHIN_S:.0f} s. {RETRIES}")
            self._all_taken_at = time.monotonic()

    def _commit(self, producer: Producer, count: int, meanwhile: Meanwhile) -> None:
        """Commit; beside a large commit, which takes a while, the following changes are encoded."""
        if count < _LARGE:
            producer.commit_transaction(COMMIT_WITHIN_S)
            return
        self._under_way = self._committing.submit(producer.commit_transaction, COMMIT_WITHIN_S)
        try:
            self._encode(meanwhile())
        finally:
            self._under_way.result()

    def _rest(self) -> None:
        """Wait while the broker ends the former transaction: one that begins too soon has to wait for 20 ms."""
        if (left := self._ended_at + REST_S - time.perf_counter()) > 0:
            time.sleep(left)

    def _encode(self, following: Sequence[ViewWrites]) -> None:
        """Encode the following changes while the commit lasts."""
        if following:
            self._encoded.clear()
        for writes in following:
            messages: list[list[Message] | None] = []
            self._encoded[id(writes)] = writes, messages
            for some in slices(writes.changes, _SLICE):
                if self._under_way is None or self._under_way.done():
                    return
                messages.append(self._envelope_of(writes).messages(some, _now_us()))

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def is_awaited(self) -> bool:
        return self._deliveries != {AT_LEAST_ONCE}

    def commit(self) -> None:
        if self._is_open:
            self.write([], self._kept)

    def on_passed(self, watermarks: Sequence[Watermark]) -> None:
        """Put them into the record of the next position: if this process dies, its successor publishes them."""
        self._seen.update({mark.token: mark.version for mark in watermarks})

    def publish_watermarks(self) -> None:
        if self._tellable():
            assert self._kept is not None
            self.write([], self._kept)

    def settle(self) -> None:
        """Publish a progress record, since no changes come."""
        if self._is_open:
            with self._mapped("publishing"):
                self._keep_pace(self._living())
        elif self._kept is not None and (self._tellable() or self._is_progress_due()):
            self.write([], self._kept)

    def _is_progress_due(self) -> bool:
        return self._kept is not self._told and time.monotonic() - self._told_at > PROGRESS_EVERY_S

    def _progress_now(self) -> Progress | None:
        """The progress record for the next transaction: what is published, and where it ends; None if none is due."""
        watermarks = self._tellable()
        if self._kept is None or not (self._is_progress_due() or watermarks):
            return None
        assert self._topics is not None
        there = self._topics.partitions()  # there may be more by now, which the producer knows, too
        self._partitions = {name: max(count, there.get(name, 0)) for name, count in self._partitions.items()}
        names = {view.view.name for name, view in self._views.items() if self.gets_changes(name)}
        published = {name: count for name, count in self._partitions.items() if name in names}
        ends = _ends(self._topics, published)
        self._told, self._told_at = self._kept, time.monotonic()
        silent = sorted(self._partitions.keys() - published.keys())
        return Progress(version=self._kept.version, ends=ends, watermarks=watermarks, silent=silent)

    def _tellable(self) -> dict[str, int]:
        """The durable watermarks before which everything is published, fan-outs too."""
        if not self._watermarks:
            return {}
        upto = self.lacks_from()
        return {token: version for token, version in self._watermarks.items() if version < upto}

    def _publish(self, producer: Producer, writes: ViewWrites, letters: list[Parked]) -> None:
        """Publish some hundred changes at a time: their messages are sent while the processor's cache has them."""
        view, encode = self._views[writes.view], self._envelope_of(writes).messages
        self._deliveries.add(topic_of(view).delivery)
        topic, limit = view.view.name, self._most_bytes[writes.view]
        _, made = self._encoded.pop(id(writes), (writes, []))
        produce, last, headers = producer.produce, -1, Headers()
        for number, some in enumerate(slices(writes.changes, _SLICE)):
            ready = made[number] if number < len(made) else None
            if ready is not None:
                messages, made[number] = ready, None  # so that its memory can be had again
            else:
                messages = encode(some, _now_us())
            if max([len(key) + len(value or b"") for key, value, _ in messages]) > limit:
                messages = encode(self._that_fit(view, encode, some, limit, letters), _now_us())
            for key, value, version in messages:
                if version != last:
                    last, headers = version, [(VERSION_HEADER, str(version).encode())]
                try:
                    produce(topic, value, key, -1, None, None, 0, headers)
                except BufferError:
                    self._produce(producer, topic, value, key, headers)

    def _produce(self, producer: Producer, topic: str, value: bytes | None, key: bytes, headers: Headers) -> None:
        """Wait for room in the queue, so that nothing is dropped and memory stays bounded."""
        deadline, least = time.monotonic() + FULL_FOR_S, len(producer)
        while True:
            try:
                producer.produce(topic, value, key, -1, None, None, 0, headers)
                return
            except BufferError:
                producer.poll(0.002)
            if len(producer) < least:
                deadline, least = time.monotonic() + FULL_FOR_S, len(producer)
            elif time.monotonic() > deadline:
                raise StoreUnavailableError(f"Kafka: the broker took nothing for {FULL_FOR_S:.0f} s. {RETRIES}")

    def _that_fit(
        self, view: BoundView, encode: _Encode, changes: Sequence[KeptChange], limit: int, letters: list[Parked]
    ) -> list[KeptChange]:
        fit = []
        for change in changes:
            size = max(len(key) + len(value or b"") for key, value, _ in encode([change], 0))
            if size <= limit:
                fit.append(change)
                continue
            reason = (
                f"its message of {size} bytes is larger than the topic {view.view.name} takes: raise the topic's "
                f"max.message.bytes (and config= of the declaration), then run: viewtail replay {view.id}"
            )
            letters.append(parked(view, (change.key, Write(change.version, None)), reason))
        return fit

    # -- the connection ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the producer up; what it published without a commit is taken back."""
        self._encoded.clear()
        producer, self._producer = self._producer, None
        is_open, self._is_open = self._is_open, False
        if producer is not None:
            # A client whose commit hangs may hang in all of these; the next one fences it.
            ending = threading.Thread(target=_end, args=(producer, is_open), name="close", daemon=True)
            ending.start()
            ending.join(CLOSE_WITHIN_S)

    def _living(self) -> Producer:
        if self._producer is None:
            raise StoreUnavailableError(f"Kafka: not connected. {RETRIES}")
        return self._producer

    @contextmanager
    def _mapped(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as failure:
            error = _behind(failure, self._producer)
            self._drop()
            if error.args[0].code() in _FENCED:
                raise FencedError(
                    f"Kafka: another viewtail took over the transactional id {self._id}; this one stops publishing and "
                    "stands by"
                ) from None
            raise failed(error, doing) from None
        except StoreUnavailableError:
            self._drop()
            raise

    def _drop(self) -> None:
        """Give the producer up after a failure; `prepare` finds out whether the transaction was committed."""
        with suppress(KafkaException):
            self.close()


def _behind(error: KafkaException, producer: Producer | None) -> KafkaException:
    """The error that ended the producer, where a message was refused for that alone: it may have been fenced."""
    if producer is not None and error.args[0].code() == KafkaError._FATAL:
        try:
            producer.begin_transaction()
        except KafkaException as fatal:
            return fatal
    return error


def _end(producer: Producer, is_open: bool) -> None:
    with suppress(KafkaException):
        if is_open:
            producer.abort_transaction(1.0)
    with suppress(KafkaException):  # of a fenced one: there is nothing to take back
        producer.purge()
        producer.close()


def _ends(topics: Topics, partitions: Mapping[str, int]) -> dict[str, list[int]]:
    """The offset behind the last message of each partition, by topic."""
    ends = topics.ends([(name, at) for name, count in partitions.items() for at in range(count)])
    return {name: [ends[name, at] for at in range(count)] for name, count in partitions.items()}


def _now_us() -> int:
    return time.time_ns() // 1000
