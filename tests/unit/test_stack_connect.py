"""Kafka Connect of stack/: Debezium takes a row from MySQL to a topic, and from there to another table."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from stack import connect, mysql
from stack.errors import ServerFailed
from stack.server import Server, running_in

pytestmark = pytest.mark.kafka
TOPIC = "peer.peer_source.city"


def test_a_row_goes_through_a_topic_to_another_table(
    tmp_path: Path, mysql_server: Server, kafka_server: Server
) -> None:
    _mysql(mysql_server, "CREATE DATABASE peer_source; CREATE TABLE peer_source.city (id INT PRIMARY KEY, name TEXT)")
    _mysql(mysql_server, "INSERT INTO peer_source.city VALUES (1, 'Ulm'); CREATE DATABASE peer_copy")
    admin = AdminClient({"bootstrap.servers": _address(kafka_server)})
    for made in admin.create_topics([NewTopic(TOPIC, 1)]).values():
        made.result(timeout=10)
    source = {
        **connect.mysql_source(mysql_server, "peer", tmp_path),
        "database.include.list": "peer_source",
        "snapshot.locking.mode": "none",  # other tests use the server
    }
    sink = connect.jdbc_sink(mysql_server, "peer_copy", [TOPIC])
    plugins = [connect.debezium_mysql(), connect.debezium_jdbc()]
    worker = connect.start(tmp_path / "worker", kafka_server, {"source": source, "sink": sink}, plugins)
    try:
        assert _first(kafka_server)["payload"]["after"] == {"id": 1, "name": "Ulm"}
        _until_copied(mysql_server, "1\tUlm")
    finally:
        worker.kill()


def test_a_connector_that_fails_says_why_and_leaves_no_worker(
    tmp_path: Path, mysql_server: Server, kafka_server: Server
) -> None:
    sink = {**connect.jdbc_sink(mysql_server, "mysql", [TOPIC]), "hibernate.dialect": "no.such.Dialect"}
    with pytest.raises(ServerFailed, match=r"lost failed: (.|\n)*no\.such\.Dialect"):
        connect.start(tmp_path, kafka_server, {"lost": sink}, [connect.debezium_jdbc()])
    assert running_in(tmp_path) is None


def _address(server: Server) -> str:
    return f"{server.host}:{server.port}"


def _first(broker: Server) -> dict[str, dict[str, object]]:
    consumer = Consumer({"bootstrap.servers": _address(broker), "group.id": "peer", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        value: dict[str, dict[str, object]] = json.loads(message.value() or b"")
        return value
    finally:
        consumer.close()


def _until_copied(server: Server, row: str, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    table = TOPIC.replace(".", "_")
    while not _mysql(server, f"SHOW TABLES IN peer_copy LIKE '{table}'") or row not in _mysql(
        server, f"SELECT id, name FROM peer_copy.{table}"
    ):
        assert time.monotonic() < deadline, "the row was not copied"
        time.sleep(0.05)


def _mysql(server: Server, statements: str) -> str:
    argv = [*mysql.client(server), "--batch", "--skip-column-names", "-e", statements]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
