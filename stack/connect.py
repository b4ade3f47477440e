"""Kafka Connect, standalone: a worker with its connectors, and two of Debezium's: it reads MySQL, it writes by JDBC.

Peers to compare with; viewtail itself needs none of it. The worker's jars came with Kafka's. A connector's jars are
a folder of their own, without those that the worker brings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from . import kafka, maven
from .errors import ServerFailed
from .places import install_once
from .server import HOST, Launch, Server, free_port

HEAP = "1g"
_OF_THE_WORKER = ("org.apache.kafka:*", "org.slf4j:slf4j-api", "jakarta.ws.rs:*")
_MYSQL_SOURCE = "io.debezium:debezium-connector-mysql:3.6.1.Final"
_MYSQL_SOURCE_DIGEST = "08d63f70d28712d19ed8933ec0c6ae1036593b26c5ae901e43c4395c684bac76"
_JDBC_SINK = "io.debezium:debezium-connector-jdbc:3.5.0.Final"  # the next ones name a parent that is not published
_JDBC_SINK_DIGEST = "b8231ceb541581ae8c1286659f60cfc1296dfab2b4291f28c55b903659e6ec0a"
_NOT_FOR_MYSQL = ("io.confluent:*", "com.oracle.database.jdbc:*", "com.microsoft.sqlserver:*", "org.postgresql:*")
# A Jackson of its own would load the worker's modules for Jackson, and refuse them.
_JACKSON = "com.fasterxml.jackson.core:*"


def debezium_mysql() -> Path:
    """The plugin folder of Debezium's MySQL connector; downloaded on first use (20 MB)."""
    return _plugin(_MYSQL_SOURCE, _MYSQL_SOURCE_DIGEST, _OF_THE_WORKER)


def debezium_jdbc() -> Path:
    """The plugin folder of Debezium's JDBC sink, for MySQL and MariaDB; downloaded on first use (31 MB)."""
    return _plugin(_JDBC_SINK, _JDBC_SINK_DIGEST, (*_OF_THE_WORKER, *_NOT_FOR_MYSQL, _JACKSON))


def start(
    directory: Path,
    broker: Server,
    connectors: Mapping[str, Mapping[str, str]],
    plugins: Sequence[Path],
    port: int | None = None,
    options: Sequence[str] = (),
) -> Server:
    """Start a worker with these connectors, by name, and wait until the tasks of each are running.

    `plugins` are the folders that the connectors are in. `port` None takes a free one; `options` are the worker's
    properties (`offset.flush.interval.ms=100`) and win over the defaults. Its offsets are in `directory`: a worker that
    is started there again goes on. Raises ServerFailed with the task's own error when one fails.
    """
    server = prepare(directory, broker, connectors, plugins, port, options)
    try:
        server.start()
    except ServerFailed:
        server.kill()  # a worker goes on when its tasks have failed
        raise
    return server


def prepare(
    directory: Path,
    broker: Server,
    connectors: Mapping[str, Mapping[str, str]],
    plugins: Sequence[Path],
    port: int | None = None,
    options: Sequence[str] = (),
) -> Server:
    """What `start` does, without starting it."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    chosen = free_port() if port is None else port
    worker = directory / "worker.properties"
    defaults = _worker(directory, broker, chosen, plugins)
    kafka.write_properties(worker, {**defaults, **dict(option.split("=", 1) for option in options)})
    files = [directory / f"{name}.properties" for name in connectors]
    for file, (name, settings) in zip(files, connectors.items(), strict=True):
        kafka.write_properties(file, {"name": name, **settings})
    launch = Launch(
        name="connect",
        url=f"http://{HOST}:{chosen}",
        port=chosen,
        directory=directory,
        argv=(
            *kafka.command("org.apache.kafka.connect.cli.ConnectStandalone", [f"-Xmx{HEAP}"]),
            *map(str, [worker, *files]),
        ),
        is_ready=lambda: all(_runs(chosen, name) for name in connectors),
    )
    return Server(launch)


def mysql_source(server: Server, topic_prefix: str, directory: Path) -> dict[str, str]:
    """The settings of a Debezium connector that reads a MySQL of stack/: all tables, a snapshot first.

    `directory` gets the history of the tables' definitions.
    """
    return {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.hostname": server.host,
        "database.port": str(server.port),
        "database.user": "root",
        "database.password": "",
        "database.server.id": "184054",
        "topic.prefix": topic_prefix,
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(directory / "schema_history"),
        # The broker makes no topic by itself.
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
    }


def jdbc_sink(server: Server, database: str, topics: Sequence[str]) -> dict[str, str]:
    """The settings of a Debezium sink that keeps tables as topics say, in a MySQL or MariaDB of stack/.

    A table is called as its topic, with `_` for each dot, and is made and widened as the messages' schemas say.
    """
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": ",".join(topics),
        "connection.url": f"jdbc:{server.name}://{server.host}:{server.port}/{database}",
        "connection.username": "root",
        "connection.password": "",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
    }


def _worker(directory: Path, broker: Server, port: int, plugins: Sequence[Path]) -> dict[str, str]:
    return {
        "bootstrap.servers": f"{broker.host}:{broker.port}",
        "listeners": f"http://{HOST}:{port}",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "offset.storage.file.filename": str(directory / "offsets"),
        "offset.flush.interval.ms": "1000",
        "plugin.path": ",".join(map(str, plugins)),
        "plugin.discovery": "service_load",  # looks into manifests only, not into every class
    }


def _plugin(artifact: str, digest: str, without: Sequence[str]) -> Path:
    _, name, version = artifact.split(":")

    # The worker takes each folder of its plugin path for one plugin.
    def fetch(into: Path) -> None:
        maven.jars(name, (artifact,), into / name, digest, without)

    return install_once(f"{name}-{version}", fetch)


def _runs(port: int, connector: str) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(f"http://{HOST}:{port}/connectors/{connector}/status") as response:
            status = json.load(response)
    except (URLError, OSError):
        return False
    parts = [status["connector"], *status["tasks"]]
    for part in parts:
        if part["state"] == "FAILED":
            raise ServerFailed(f"connect: {connector} failed: {part['trace']}")
    return len(parts) > 1 and all(part["state"] == "RUNNING" for part in parts)
