"""The consumer of commands commits an offset when the replies are in their topic, and never before."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import orjson
import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from viewtail.changes.errors import StopRequested, StoreError, ViewtailError
from viewtail.entities import Answer, EventSourced, InvalidRequestError, WorkerBusyError
from viewtail.entities.serving import topic
from viewtail.entities.serving.topic import CommandsTopic

STOP = threading.Event()


class Sent:
    """A consumed message."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def __getattr__(self, name: str) -> Any:
        fields = {"entity": "t.t", "id": "e", "idempotency_key": str(self._offset), "command": "c"}
        found = {"topic": "c", "partition": 0, "offset": self._offset, "key": b"e", "error": None}
        return lambda: orjson.dumps(fields) if name == "value" else found[name]


class Broker:
    """Stands for the consumer and the producer; `said` is what they were asked, in order."""

    def __init__(self, refused: list[int]) -> None:
        self.said: list[Any] = []
        self._refused, self._open = refused, []  # type: ignore[var-annotated]
        self.keys: list[Any] = []
        self.room = 1_000  # replies that wait for a flush

    def list_topics(self, name: str, timeout: float) -> Any:
        return type("Topics", (), {"topics": {name: type("Topic", (), {"error": None})}})

    def produce(self, name: str, value: bytes, *, key: Any, on_delivery: Any, **_: Any) -> None:
        if len(self._open) == self.room:
            raise BufferError
        self.keys.append(key)
        self._open.append((orjson.loads(value), on_delivery))

    def flush(self) -> None:
        """The first flushes fail with the codes given."""
        for body, on_delivery in self._open:
            code = self._refused.pop(0) if self._refused else 0
            self.said.append(("refused" if code else "delivered", body))
            on_delivery(KafkaError(code) if code else None, None)
        self._open = []

    def commit(self, *, offsets: Any, asynchronous: bool) -> None:
        self.said.append(("committed", [one.offset for one in offsets]))


class Worker:
    """Answers at once what it is told to."""

    def __init__(self, outcomes: list[Answer | ViewtailError]) -> None:
        self._outcomes = outcomes

    def submit(self, _: Any) -> Future[Answer]:
        future: Future[Answer] = Future()
        outcome = self._outcomes.pop(0)
        future.set_result(outcome) if isinstance(outcome, Answer) else future.set_exception(outcome)
        return future


def consumer(monkeypatch: pytest.MonkeyPatch, broker: Broker, *outcomes: Answer | ViewtailError) -> CommandsTopic:
    monkeypatch.setattr(topic, "Consumer", lambda _: broker)
    monkeypatch.setattr(topic, "Producer", lambda _: broker)
    entity = EventSourced("t.t", {"c": lambda state, _: (1, state)})
    monkeypatch.setattr(entity, "worker", lambda **_: Worker(list(outcomes)))
    return CommandsTopic([entity], {}, commands="c", replies="r", group="g")


def answer(version: int) -> Answer:
    return Answer(response="x", version=version, is_repeated=False)


def test_the_offset_is_committed_when_all_replies_are_in_their_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker([KafkaError._MSG_TIMED_OUT])
    consumer(monkeypatch, broker, answer(1), answer(2))._handle([Sent(4), Sent(5)], STOP)  # type: ignore[list-item]
    assert [(what, one["version"]) for what, one in broker.said[:-1]] == [
        ("refused", "1"),
        ("delivered", "2"),
        ("delivered", "1"),
    ]
    assert broker.said[-1] == ("committed", [6])


def test_a_request_that_is_not_valid_is_answered_and_consumed(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker([])
    wrong = InvalidRequestError("the request of c is not valid. amount: Field required")
    consumer(monkeypatch, broker, wrong, answer(1))._handle([Sent(4), Sent(5)], STOP)  # type: ignore[list-item]
    (_, told), (_, answered), committed = broker.said
    assert (told["status"], told["type"]) == (422, "urn:viewtail:problem:invalid")
    assert "amount: Field required" in told["detail"] and told["idempotency_key"] == "4"
    assert answered["version"] == "1" and committed == ("committed", [6])


def test_a_reply_that_is_too_large_goes_without_its_response(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker([KafkaError.MSG_SIZE_TOO_LARGE])
    consumer(monkeypatch, broker, answer(1))._handle([Sent(4)], STOP)  # type: ignore[list-item]
    assert broker.said[1][0] == "delivered"
    assert "response" not in broker.said[1][1] and "larger than a message may be" in broker.said[1][1]["detail"]


def test_a_reply_whose_key_is_too_large_goes_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker([KafkaError.MSG_SIZE_TOO_LARGE] * 2)
    consumer(monkeypatch, broker, answer(1))._handle([Sent(4)], STOP)  # type: ignore[list-item]
    assert [what for what, _ in broker.said] == ["refused", "refused", "delivered", "committed"]
    assert broker.keys == [b"e", b"e", None]


@pytest.mark.parametrize(
    ("code", "mend"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "Grant the user WRITE"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "Create it again"),
        (KafkaError._UNKNOWN_TOPIC, "Create it again"),
        (KafkaError.MSG_SIZE_TOO_LARGE, "Raise its max.message.bytes"),
    ],
)
def test_a_topic_that_never_takes_a_reply_ends_it_and_commits_nothing(
    code: int, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker([code] * 3)
    with pytest.raises(StoreError, match=rf"the topic r does not .*\. {mend}"):
        consumer(monkeypatch, broker, answer(1))._handle([Sent(4)], STOP)  # type: ignore[list-item]
    assert {what for what, _ in broker.said} == {"refused"}


def test_it_is_told_why_replies_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker([KafkaError._MSG_TIMED_OUT])
    with capture_logs() as told:
        consumer(monkeypatch, broker, answer(1))._handle([Sent(4)], STOP)  # type: ignore[list-item]
    assert [one["errors"] for one in told] == [[KafkaError(KafkaError._MSG_TIMED_OUT).str()]]


def test_replies_that_the_client_has_no_room_for_stay_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker([])
    broker.room = 1
    made = consumer(monkeypatch, broker, answer(1), answer(2), answer(3))
    made._handle([Sent(4), Sent(5), Sent(6)], STOP)  # type: ignore[list-item]
    assert [one["version"] for what, one in broker.said if what == "delivered"] == ["1", "2", "3"]


def test_where_too_many_wait_a_command_is_asked_again_and_not_answered_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker([])
    consumer(monkeypatch, broker, WorkerBusyError("full"), answer(1))._handle([Sent(4)], STOP)  # type: ignore[list-item]
    assert [what for what, _ in broker.said] == ["delivered", "committed"] and broker.said[0][1]["status"] == 200


def test_a_table_that_cannot_be_used_ends_it_and_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker([])
    with pytest.raises(StoreError):
        consumer(monkeypatch, broker, answer(1), StoreError("no rights"))._handle([Sent(4), Sent(5)], STOP)  # type: ignore[list-item]
    assert broker.said == []


def test_an_offset_that_another_process_has_by_now_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(Broker):
        def commit(self, **_: Any) -> None:
            self.said.append("asked")
            raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION))

    broker = Lost([])
    consumer(monkeypatch, broker, answer(1))._handle([Sent(4)], STOP)  # type: ignore[list-item]
    assert broker.said[-1] == "asked"


def test_a_stop_while_kafka_takes_no_replies_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    stop.set()
    broker = Broker([KafkaError._MSG_TIMED_OUT])
    with pytest.raises(StopRequested):
        consumer(monkeypatch, broker, answer(1))._handle([Sent(4)], stop)  # type: ignore[list-item]
    assert [what for what, _ in broker.said] == ["refused"]
