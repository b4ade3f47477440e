"""Topics that are delivered at least once: a message is read before it is committed, and no zombie adds one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from projectors.stores.topics import sink as sinks
from projectors.stores.topics.sink import TopicSink
from projectors.views import BoundView
from stack import Server
from tests.contract.sinks import KafkaAtLeastOnceOne, KafkaOne
from tests.contract.test_publisher_contract import changes
from tests.contract.test_sink_contract import position
from tests.support import topic_log
from tests.support.running import wait_for
from viewtail.changes.errors import FencedError, StoreUnavailableError

_tokens = itertools.count(1)


@pytest.fixture
def store(kafka_server: Server) -> Iterator[KafkaAtLeastOnceOne]:
    yield from _made(kafka_server)


@pytest.fixture
def store_of_harmed(harmed_kafka: Server) -> Iterator[KafkaAtLeastOnceOne]:
    yield from _made(harmed_kafka)


def _made(server: Server) -> Iterator[KafkaAtLeastOnceOne]:
    found = KafkaAtLeastOnceOne(server, f"once_{next(_tokens)}")
    yield found
    found.close()


def read(store: KafkaOne, view: BoundView, isolation: str) -> list[int]:
    """The versions that a reader has, in order by partition."""
    headers = [one.headers() for one in topic_log.raw(store._server, view.view.name, isolation=isolation)]
    return sorted(int(dict(found)["viewtail_version"]) for found in headers)


def test_a_message_is_read_before_its_commit_and_a_reader_of_committed_ones_has_it_after(
    store: KafkaAtLeastOnceOne,
) -> None:
    sink = store.sink()
    sink.prepare()
    sink.write([changes(store.person, range(100, 110))], None)
    sink.write([changes(store.person, range(110, 120))], None)
    wait_for("it is read", lambda: read(store, store.person, topic_log.UNCOMMITTED) == [*range(100, 120)])
    assert read(store, store.person, topic_log.COMMITTED) == []
    assert sink.is_open and not sink.is_awaited
    sink.write([], position(500))
    assert read(store, store.person, topic_log.COMMITTED) == [*range(100, 120)]
    assert not sink.is_open
    sink.close()


def test_a_transaction_with_a_message_of_another_topic_is_awaited(store: KafkaAtLeastOnceOne) -> None:
    once = KafkaOne(store._server, f"other_{next(_tokens)}")
    sink = store.sink(store.person, once.place)
    sink.prepare()
    assert sink.is_awaited, "what holds no message may tell of a position"
    sink.write([changes(store.person, range(100, 101))], None)
    assert not sink.is_awaited
    sink.write([changes(once.place, range(0))], None)
    sink.write([_place(once)], None)
    assert sink.is_awaited
    sink.write([changes(store.person, range(101, 102))], position(500))
    sink.write([changes(store.person, range(102, 103))], None)
    assert not sink.is_awaited, "that was the former transaction"
    sink.close()
    once.close()


def _place(store: KafkaOne) -> Any:
    found = changes(store.place, range(1, 2))
    found.changes[0] = found.changes[0]._replace(key=("de", 1), after=("x",))
    return found


def test_a_zombie_adds_nothing_behind_its_successor_and_finds_out(store: KafkaAtLeastOnceOne) -> None:
    """A compacted topic keeps the last message of a key: one of a zombie would hide the newer one for good."""
    zombie, successor = store.sink(), store.sink()
    zombie.prepare()
    zombie.write([changes(store.person, range(100, 103))], None)
    wait_for("they are read", lambda: len(read(store, store.person, topic_log.UNCOMMITTED)) == 3)
    successor.prepare()
    with pytest.raises(FencedError, match="another viewtail took over the transactional id"):
        _write_until_refused(zombie, store.person)
    successor.write([changes(store.person, range(100, 105))], position(500))
    assert read(store, store.person, topic_log.UNCOMMITTED) == sorted([*range(100, 103), *range(100, 105)])
    assert read(store, store.person, topic_log.COMMITTED) == [*range(100, 105)]
    successor.close()


def _write_until_refused(sink: TopicSink, view: BoundView) -> None:
    """What is sent is refused a moment later, with the next message or at the end of the transaction."""
    for version in range(200, 250):
        sink.write([changes(view, range(version, version + 1))], None)
        time.sleep(0.05)  # of the broker's answer


def test_a_fence_is_noticed_at_the_commit_where_nothing_else_was_sent(store: KafkaAtLeastOnceOne) -> None:
    zombie, successor = store.sink(), store.sink()
    zombie.prepare()
    zombie.write([changes(store.person, range(100, 103))], None)
    successor.prepare()
    with pytest.raises(FencedError):
        zombie.write([], position(500))
    successor.close()


def test_a_broker_that_takes_nothing_is_noticed_before_the_commit(
    store_of_harmed: KafkaAtLeastOnceOne, harmed_kafka: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the broker behind each batch, and the pipeline must not say that all is published."""
    store = store_of_harmed
    sink = store.sink()
    sink.prepare()
    sink.write([changes(store.person, range(100, 103))], None)
    wait_for("it is read", lambda: len(read(store, store.person, topic_log.UNCOMMITTED)) == 3)
    sink.settle()
    harmed_kafka.pause()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(sinks, "COMMIT_WITHIN_S", 1.0)
            sink.newest = 103
            sink.write([changes(store.person, range(103, 104))], None)
            with pytest.raises(StoreUnavailableError, match="the broker took nothing for 1 s"):
                _settle_for(sink, 8)
    finally:
        harmed_kafka.resume()
    sink.prepare()
    assert sink.witness(position(1)) is None and sink.newest == 0, "what was taken back is to come again"
    sink.write([changes(store.person, range(100, 104))], position(500))
    assert read(store, store.person, topic_log.COMMITTED) == [*range(100, 104)]
    sink.close()


def _settle_for(sink: TopicSink, seconds: float) -> None:
    """As the loop does while nothing comes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        sink.settle()
        time.sleep(0.05)
