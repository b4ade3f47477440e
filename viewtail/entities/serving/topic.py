"""Takes commands from a Kafka topic, and answers to another: the same commands as over HTTP, with partitions as owners.

A message of the commands topic, keyed by the entity's id, is a JSON object of entity, id, command, idempotency_key and
request. The offset is committed when the answers are in the replies topic, so a command may be consumed twice; it takes
effect once, and its answer comes again. A store that is away is waited for; commands of one entity stay in their order.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any

import orjson
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from viewtail.changes.errors import StopRequested, StoreError, StoreUnavailableError, ViewtailError
from viewtail.entities import Answer, Command, EventSourced, WorkerBusyError, WorkerEndedError
from viewtail.entities.serving import problems
from viewtail.entities.serving.problems import INVALID, NOT_FOUND, Problem
from viewtail.entities.serving.requests import object_of
from viewtail.entities.worker import MOST_COMMANDS

_log = structlog.get_logger("viewtail.serve")

ORIGIN_HEADER = "viewtail-command"  # in a reply: TOPIC/PARTITION/OFFSET of its command
FINISH_WITHIN_S = 30.0  # time at a stop to finish what was consumed; otherwise it is consumed again
_TOO_LARGE = "the response is larger than a message may be; ask for it over HTTP, under the same key"
_NAMES = frozenset({"entity", "id", "command", "idempotency_key", "request"})
_CONSUMER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",  # no command is passed over
    "max.poll.interval.ms": 86_400_000,  # a store that is away is waited for
    "session.timeout.ms": 10_000,  # another process takes over from one that was killed
}
_PRODUCER = {"enable.idempotence": True, "acks": "all", "linger.ms": 2, "message.timeout.ms": 30_000}

# By code: errors that no waiting ends.
_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Grant the user WRITE on it",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Grant the user IDEMPOTENT_WRITE on the cluster",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "Create it again",
    KafkaError._UNKNOWN_TOPIC: "Create it again",
    KafkaError.INVALID_RECORD: "A reply whose key is too large has none, so set its cleanup.policy to delete",
}


@dataclass(frozen=True, slots=True)
class _Reply:
    to: Message  # the command
    key: str | bytes | None
    body: dict[str, Any]

    def smaller(self) -> _Reply | None:
        """The reply without a large part: first without the response, then without the key, which another program
        chose."""
        if "response" in self.body:
            kept = {name: value for name, value in self.body.items() if name != "response"}
            return replace(self, body={**kept, "detail": _TOO_LARGE})
        return None if self.key is None else replace(self, key=None)


class CommandsTopic:
    """Handles commands of a topic, as one process of a consumer group.

    Args:
        client: librdkafka's settings of the cluster.
        commands, replies: topics; both must exist."""

    def __init__(
        self, entities: Sequence[EventSourced], client: Mapping[str, Any], *, commands: str, replies: str, group: str
    ) -> None:
        self._commands, self._replies = commands, replies
        self._consumer = Consumer({**client, **_CONSUMER, "group.id": group})
        self._producer = Producer({**client, **_PRODUCER})
        self._check_topics()
        self._workers = {entity.table.name: entity.worker(patience_s=math.inf) for entity in entities}

    def run(self, stop: threading.Event) -> None:
        """Handle commands until `stop` is set. Raises StoreError if a table or the topic of replies cannot be used.

        Raises StoreUnavailableError if Kafka cannot be used."""
        self._consumer.subscribe([self._commands])
        try:
            while not stop.is_set():
                first = self._consumer.poll(0.5)
                if first is not None:
                    self._handle([first, *self._consumer.consume(MOST_COMMANDS - 1, timeout=0)], stop)
        except StopRequested:
            return
        except KafkaException as error:
            raise StoreUnavailableError(f"Kafka: {error.args[0].str()}. Is the cluster up?") from None
        finally:
            self._consumer.close()

    def _check_topics(self) -> None:
        for topic in (self._commands, self._replies):
            try:
                metadata = self._consumer.list_topics(topic, timeout=10).topics[topic]
            except KafkaException as error:
                raise StoreUnavailableError(f"Kafka does not answer: {error.args[0].str()}. Is it up?") from None
            if metadata.error is not None:
                raise StoreError(f"the topic {topic} cannot be used: {metadata.error.str()}. Create it, or grant it")

    def _handle(self, consumed: Sequence[Message], stop: threading.Event) -> None:
        messages = [message for message in consumed if self._is_whole(message)]
        asked: list[tuple[Message, Command | None, Future[Answer] | Problem]] = []
        for message in messages:
            try:
                table, command = self._command(message)
                asked.append((message, command, self._submitted(table, command, stop)))
            except Problem as problem:
                asked.append((message, None, problem))
        self._wait([answered for _, _, answered in asked if isinstance(answered, Future)], stop)
        self._reply(
            [_Reply(message, message.key(), _body(command, answered)) for message, command, answered in asked], stop
        )
        self._commit(messages)

    def _is_whole(self, message: Message) -> bool:
        error = message.error()
        if error is not None:
            _log.warning("Kafka", error=error.str())
        return error is None

    def _command(self, message: Message) -> tuple[str, Command]:
        """Raises Problem."""
        fields = object_of(message.value() or b"")
        if not fields.keys() <= _NAMES or not _NAMES - {"request"} <= fields.keys():
            raise Problem(INVALID, f"a command has the members {', '.join(sorted(_NAMES))}, and no others")
        table, request = fields["entity"], fields.get("request", {})
        if not isinstance(table, str) or table not in self._workers:
            raise Problem(NOT_FOUND, f"entity is one of {', '.join(self._workers)}")
        if not isinstance(request, dict):
            raise Problem(INVALID, "request must be a JSON object")
        try:
            return table, Command(
                entity_id=fields["id"],
                command_id=fields["idempotency_key"],
                name=fields["command"],
                request=request,
            )
        except ViewtailError as error:
            raise problems.of(error, table) from None

    def _submitted(self, table: str, command: Command, stop: threading.Event) -> Future[Answer]:
        """Submit a command; while too many wait, wait for them."""
        while True:
            future = self._workers[table].submit(command)
            if not future.done() or not isinstance(future.exception(), WorkerBusyError):
                return future
            if stop.wait(0.02):
                raise StopRequested

    def _wait(self, futures: Sequence[Future[Answer]], stop: threading.Event) -> None:
        until = math.inf
        while wait(futures, timeout=0.5).not_done:
            if stop.is_set():
                until = min(until, time.monotonic() + FINISH_WITHIN_S)
            if time.monotonic() > until:
                raise StopRequested

    def _reply(self, replies: Sequence[_Reply], stop: threading.Event) -> None:
        """Send the replies; return when all are in the topic. A broker that is away is waited for.

        Raises StoreError where the topic never takes one, StopRequested.
        """
        left = list(replies)
        while left:
            failed: list[tuple[_Reply, KafkaError]] = []
            for reply in left:
                self._produce(reply, failed)
            self._producer.flush()
            left = [self._again(*refused) for refused in failed]
            if left:
                reasons = sorted({error.str() for _, error in failed})
                _log.warning("replies are sent again", count=len(left), errors=reasons)
                if stop.wait(0.5):
                    raise StopRequested

    def _produce(self, reply: _Reply, failed: list[tuple[_Reply, KafkaError]]) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append((reply, error))

        to = reply.to
        origin = f"{to.topic()}/{to.partition()}/{to.offset()}"
        given: dict[str, Any] = {"key": reply.key, "headers": {ORIGIN_HEADER: origin}, "on_delivery": delivered}
        while True:
            try:
                self._producer.produce(self._replies, orjson.dumps(reply.body), **given)
                return
            except BufferError:  # and it goes before those that come behind it
                self._producer.flush()
            except KafkaException as error:
                if error.args[0].code() not in (KafkaError.MSG_SIZE_TOO_LARGE, *_REFUSALS):
                    raise
                failed.append((reply, error.args[0]))
                return

    def _again(self, reply: _Reply, error: KafkaError) -> _Reply:
        """The reply to send in place of one that the broker refused."""
        if (mend := _REFUSALS.get(error.code())) is not None:
            raise StoreError(f"the topic {self._replies} does not take replies: {error.str()}. {mend}")
        if error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
            return reply
        if (smaller := reply.smaller()) is None:
            raise StoreError(
                f"the topic {self._replies} does not even take a reply of {len(orjson.dumps(reply.body)):,} bytes. "
                "Raise its max.message.bytes"
            )
        return smaller

    def _commit(self, messages: Sequence[Message]) -> None:
        offsets: dict[tuple[str, int], int] = {}
        for message in messages:
            offsets[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
        if not offsets:
            return
        try:
            self._consumer.commit(
                offsets=[TopicPartition(topic, part, offset) for (topic, part), offset in offsets.items()],
                asynchronous=False,
            )
        except KafkaException as error:  # the partition's present owner consumes them again
            _log.warning("offsets were not committed", error=error.args[0].str())


def _body(command: Command | None, answered: Future[Answer] | Problem) -> dict[str, Any]:
    """The body of a reply. Raises the error if nothing was decided."""
    if command is None:
        assert isinstance(answered, Problem)
        return answered.body()
    assert isinstance(answered, Future)
    named = {"id": command.entity_id, "command": command.name, "idempotency_key": command.command_id}
    error = answered.exception()
    if error is None:
        answer = answered.result()
        told = {"status": 200, "response": answer.response, "version": str(answer.version)}
        return {**named, **told, "is_repeated": answer.is_repeated}
    if isinstance(error, StoreError | WorkerEndedError) or not isinstance(error, ViewtailError):
        raise error
    return {**named, **problems.of(error, command.name).body()}
