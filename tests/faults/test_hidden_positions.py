"""A deployment that died in the middle of a commit hides the end of the topic of positions from the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from projectors.stores.topics.admin import Topics
from projectors.stores.topics.positions import last_published
from stack import Server
from viewtail.changes.errors import StoreUnavailableError
from viewtail.changes.published import POSITIONS, Published

pytestmark = [pytest.mark.kafka]


@pytest.fixture
def client(kafka_server: Server) -> dict[str, Any]:
    found = {"bootstrap.servers": f"127.0.0.1:{kafka_server.port}", "log_level": 0}
    Topics(found).make_positions(POSITIONS)
    return found


@contextmanager
def publishing(client: dict[str, Any], key: bytes, position: str) -> Iterator[Producer]:
    """A transaction of that pipeline that is open, as a kill leaves it; taken back at the end where it still is."""
    producer = Producer({**client, "transactional.id": f"hidden.{key.decode()}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(POSITIONS, Published(position=position).to_json(), key, 0)
    producer.flush(10)
    try:
        yield producer
    finally:
        producer.abort_transaction(30)


def publish(client: dict[str, Any], key: bytes, position: str) -> None:
    with publishing(client, key, position) as producer:
        producer.commit_transaction(30)
        producer.begin_transaction()


def position_of(client: dict[str, Any], key: bytes) -> str:
    found = last_published(client, Topics(client), POSITIONS, key)
    assert found is not None
    return found.position


def test_who_published_before_it_died_finds_its_position_at_once(client: dict[str, Any]) -> None:
    publish(client, b"ours", "first")
    publish(client, b"ours", "second")
    with publishing(client, b"theirs", "lost"):
        publish(client, b"others", "third")
        began = time.monotonic()
        assert position_of(client, b"ours") == "second"
        assert time.monotonic() - began < 5
        assert last_published(client, Topics(client), POSITIONS, b"new") is None


def test_who_published_since_waits_until_it_can_be_read(client: dict[str, Any]) -> None:
    publish(client, b"ours", "first")
    with publishing(client, b"theirs", "lost"):
        publish(client, b"ours", "second")
        with pytest.raises(StoreUnavailableError, match="killed while it committed"):
            position_of(client, b"ours")
    assert position_of(client, b"ours") == "second"
