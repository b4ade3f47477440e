"""What stack/ promises of Kafka beyond what every server does (test_stack_server.py)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from stack import kafka, kcat, maven
from stack.errors import ServerUnavailable
from stack.server import Server

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("own")
    places = (f"log.dirs={directory / 'small'}", f"metadata.log.dir={directory / 'metadata'}")
    server = kafka.start(directory, options=(*places, "message.max.bytes=1234"))
    yield server
    server.kill()


def test_messages_survive_a_kill_of_kafka(own_kafka: Server) -> None:
    _make_topic(own_kafka, "kept")
    _produce(own_kafka, "kept", b"42")
    own_kafka.kill()
    own_kafka.start()
    assert _first(own_kafka, "kept").value() == b"42"
    own_kafka.stop()
    own_kafka.start()
    assert _first(own_kafka, "kept").value() == b"42"


def test_two_clusters_have_identities_of_their_own(own_kafka: Server, kafka_server: Server) -> None:
    ids = [_admin(server).list_topics(timeout=10).cluster_id for server in (own_kafka, kafka_server)]
    assert len(set(ids)) == 2


def test_options_win_over_the_defaults_and_move_the_data(own_kafka: Server) -> None:
    _make_topic(own_kafka, "placed")
    admin = _admin(own_kafka)
    (settings,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    assert settings.result(timeout=10)["message.max.bytes"].value == "1234"
    assert (own_kafka.directory / "small/placed-0").is_dir()
    assert (own_kafka.directory / "metadata/__cluster_metadata-0").is_dir()
    assert not (own_kafka.directory / "data").exists()


def test_a_topic_nobody_made_is_not_there(kafka_server: Server) -> None:
    (described,) = _admin(kafka_server).list_topics("unmade", timeout=10).topics.values()
    assert described.error is not None


def test_a_transaction_is_seen_when_it_is_committed(kafka_server: Server) -> None:
    _make_topic(kafka_server, "committed")
    producer = Producer({"bootstrap.servers": _address(kafka_server), "transactional.id": "one"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("committed", b"dropped")
    producer.flush(30)
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce("committed", b"kept")
    producer.commit_transaction(30)
    assert _first(kafka_server, "committed").value() == b"kept"


def test_kcat_and_a_tool_of_kafka_itself_read_the_broker(kafka_server: Server) -> None:
    _make_topic(kafka_server, "listed")
    _produce(kafka_server, "listed", b"42")
    assert _run([*kcat.client(kafka_server), "-C", "-t", "listed", "-e", "-q"]) == "42"
    argv = [*kafka.tool("TopicCommand"), "--bootstrap-server", _address(kafka_server), "--list"]
    assert "listed" in _run(argv).split()


def test_jars_that_are_not_the_pinned_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = tmp_path / "jars"
    shutil.copytree(kafka.install() / "jars", jars)
    monkeypatch.setattr(maven, "_run", lambda *_: None)
    maven.jars("kafka", (), jars, kafka._DIGEST)
    next(jars.glob("kafka-clients-*")).write_bytes(b"something else")
    with pytest.raises(ServerUnavailable, match="digest"):
        maven.jars("kafka", (), jars, kafka._DIGEST)


def _address(server: Server) -> str:
    return f"{server.host}:{server.port}"


def _admin(server: Server) -> AdminClient:
    return AdminClient({"bootstrap.servers": _address(server)})


def _make_topic(server: Server, name: str) -> None:
    admin = _admin(server)  # what it was asked fails when it is gone
    for made in admin.create_topics([NewTopic(name, 1)]).values():
        made.result(timeout=10)


def _produce(server: Server, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": _address(server)})
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def _first(server: Server, topic: str) -> Message:
    consumer = Consumer({"bootstrap.servers": _address(server), "group.id": "test", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        return message
    finally:
        consumer.close()


def _run(argv: list[str]) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
