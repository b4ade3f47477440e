"""The readers that are compared: each a process group of stack/ that reads bench.narrow into a topic of its own.

Each is set up as its makers advise for throughput, with acks=all and lz4 for all of them; page.py says how.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from bench.consuming import COMMITTED, PARTITIONS, UNCOMMITTED, admin
from bench.setting import Setting
from stack import Server, connect, kafka, maxwell
from stack.server import HOST, Launch, free_port

# By delivery: the reader's name, its topic, and the isolation level of a consumer that it is meant for.
DELIVERIES = {
    "exactly_once": ("viewtail", "bench.narrow", COMMITTED),
    "at_least_once": ("viewtail, at least once", "bench.narrow.at_least_once", UNCOMMITTED),
}
VIEWS = """
from viewtail import Entity, Topic

views = [
    Topic("{topic}", Entity("bench.narrow"), partitions=4, compact=False,
          config={{"message.timestamp.type": "LogAppendTime"}}, delivery="{delivery}")
]
"""
# The broker says when it got each message.
_TOPIC = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
PRODUCER = {"compression.type": "lz4", "batch.size": "1000000", "linger.ms": "0"}  # as the tailer has them
DEBEZIUM = {
    "table.include.list": "bench.narrow",
    "snapshot.mode": "no_data",
    "include.schema.changes": "false",
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "10",
    # The forms that viewtail writes.
    "decimal.handling.mode": "string",
    "binary.handling.mode": "base64",
    "time.precision.mode": "isostring",
}
CONNECT = {
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "offset.flush.interval.ms": "1000",
    **{f"producer.{name}": value for name, value in PRODUCER.items()},
}
MAXWELL = {
    "filter": "exclude: *.*, include: bench.narrow",
    "producer_partition_by": "primary_key",
    "kafka.acks": "all",
    **{f"kafka.{name}": value for name, value in PRODUCER.items()},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One that is compared."""

    name: str
    topic: str
    server: Server
    isolation: str = UNCOMMITTED  # of its consumer; without transactions there is nothing that is not committed


def viewtail(setting: Setting, delivery: str) -> Reader:
    """`viewtail run`, its supervisor included."""
    name, topic, isolation = DELIVERIES[delivery]
    directory, port = setting.folder / delivery, free_port()
    directory.mkdir()
    (directory / "views.py").write_text(VIEWS.format(topic=topic, delivery=delivery))
    ours = {name: value for name, value in setting.environment.items() if name.startswith(("VIEWTAIL_", "PYTHONPATH"))}
    launch = Launch(
        name=delivery,
        url=f"http://{HOST}:{port}/metrics",
        port=port,
        directory=directory,
        argv=(sys.executable, "-m", "viewtail.main", "run"),
        environment={
            **ours,
            "VIEWTAIL_METRICS__PORT": str(port),
            "VIEWTAIL_CONSOLE__PORT": "0",
            "VIEWTAIL_MYSQL__URL": f"{setting.mysql.url}/viewtail_{delivery}",  # each is a deployment of its own
        },
        is_ready=lambda: _answers(f"http://{HOST}:{port}/metrics"),
    )
    _make(setting, topic)
    return Reader(name=name, topic=topic, server=Server(launch), isolation=isolation)


def debezium(setting: Setting) -> Reader:
    """Debezium's MySQL connector in a worker of Kafka Connect."""
    directory = setting.folder / "debezium"
    connector = {**connect.mysql_source(setting.mysql, "debezium", directory), **DEBEZIUM}
    plugin = connect.debezium_mysql()
    server = connect.prepare(
        directory, setting.kafka, {"debezium": connector}, [plugin],
        options=[f"{name}={value}" for name, value in CONNECT.items()],
    )  # fmt: skip
    _make(setting, "debezium.bench.narrow")
    version = plugin.name.removeprefix("debezium-connector-mysql-").removesuffix(".Final")
    return Reader(name=f"Debezium {version}", topic="debezium.bench.narrow", server=server)


def maxwell_(setting: Setting) -> Reader:
    """Maxwell, which reads a MariaDB."""
    file = setting.folder / "maxwell.properties"  # it takes Kafka's settings from a file only
    kafka.write_properties(file, MAXWELL)
    directory, options = setting.folder / "maxwell", [f"--config={file}"]
    server = maxwell.prepare(directory, setting.mysql, setting.kafka, "maxwell", options=options)
    _make(setting, "maxwell")
    return Reader(name=f"Maxwell {maxwell.VERSION}", topic="maxwell", server=server)


def _make(setting: Setting, topic: str) -> None:
    client = admin(setting.brokers)
    for future in client.create_topics([NewTopic(topic, PARTITIONS, 1, config=_TOPIC)]).values():
        future.result(10)


def _answers(url: str) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=5) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False
