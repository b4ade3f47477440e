"""Apache Kafka 4.1 in KRaft mode: one node that is broker and controller, its jars fetched with Maven.

A topic is there only when somebody creates it. Kafka's own topics have one partition and one replica, as one node
wants it. The data folder is laid out from what Kafka's own `format` wrote once; each gets a cluster id of its own.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import java, maven
from .errors import ServerFailed
from .places import install_once
from .server import HOST, Launch, Server, free_port

VERSION = "4.1.2"
SMALL = ("-Xmx384m", "-XX:+UseSerialGC")  # Java's options: of a broker for tests
# Of one whose speed is measured: those of Kafka's own start script.
AS_SHIPPED = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
_DIGEST = "9ee9f3c925e033416186034a548fa600321c60c7072356081362a293a2b4dd7c"
_ARTIFACTS = (
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    f"org.apache.kafka:kafka-tools:{VERSION}",  # Kafka Connect comes with it
    "org.slf4j:slf4j-simple:1.7.36",
)
DEFAULTS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # A broker that was killed is let in again when the session of its former life is over: 9 s by default.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # A topic with 50 partitions takes seconds to make.
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
# A coordinator that looks for its own broker while that starts says so twenty times a second.
_QUIET = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.NetworkClient=error"
_BOOTSTRAP = "bootstrap.checkpoint"  # the features that a new cluster starts with


def install() -> Path:
    """The folder with Kafka's jars and those of Kafka Connect; downloaded on first use (54 MB)."""
    return install_once(f"kafka-{VERSION}", _download)


def start(
    directory: Path, port: int | None = None, options: Sequence[str] = (), java_options: Sequence[str] = SMALL
) -> Server:
    """Start a node with its data in `directory` and wait until it answers.

    `port` None takes a free one; `options` are the broker's properties (`log.segment.bytes=1048576`) and win over the
    defaults, `java_options` are its heap and collector. A data folder that is there is used again. $KAFKA_OPTS goes to
    Java.
    """
    server = prepare(directory, port, options, java_options)
    server.start()
    return server


def prepare(
    directory: Path, port: int | None = None, options: Sequence[str] = (), java_options: Sequence[str] = SMALL
) -> Server:
    """What `start` does, without starting it."""
    directory = directory.absolute()
    chosen = free_port() if port is None else port
    properties = {**DEFAULTS, **_places(directory, chosen), **dict(option.split("=", 1) for option in options)}
    directory.mkdir(parents=True, exist_ok=True)
    _lay_out(properties)
    file = directory / "server.properties"
    write_properties(file, properties)
    launch = Launch(
        name="kafka",
        url=f"kafka://{HOST}:{chosen}",
        port=chosen,
        directory=directory,
        argv=(*command("kafka.Kafka", [*java_options, _QUIET]), str(file)),
        is_ready=lambda: _answers(chosen),
    )
    return Server(launch)


def command(main: str, java_options: Sequence[str]) -> list[str]:
    """The argv prefix of a class of Kafka's jars; its warnings go to standard error."""
    return [
        str(java.home() / "bin/java"),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        *java_options,
        *os.environ.get("KAFKA_OPTS", "").split(),
        *("-cp", f"{install() / 'jars'}/*"),
        main,
    ]


def tool(name: str) -> list[str]:
    """The argv prefix of one of Kafka's programs by its class (`TopicCommand`, `GetOffsetShell`, `DumpLogSegments`)."""
    return command(f"org.apache.kafka.tools.{name}", ("-Xmx256m", "-XX:+UseSerialGC"))


def _download(into: Path) -> None:
    jars = into / "jars"
    maven.jars("kafka", _ARTIFACTS, jars, _DIGEST)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "server.properties")
        write_properties(file, {**DEFAULTS, **_places(Path(folder), 9092)})
        argv = [str(java.home() / "bin/java"), "-cp", f"{jars}/*", "kafka.tools.StorageTool", "format"]
        argv += [f"--cluster-id={_random_id()}", f"--config={file}"]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise ServerFailed(f"kafka's format failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
        shutil.copy(Path(folder, "data", _BOOTSTRAP), into / _BOOTSTRAP)


def _places(directory: Path, port: int) -> dict[str, str]:
    controller = f"{HOST}:{free_port()}"
    return {
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.quorum.voters": f"1@{controller}",
        "log.dirs": str(directory / "data"),
    }


def _lay_out(properties: Mapping[str, str]) -> None:
    """Format the folders of the properties that are not yet."""
    folders = [Path(folder) for folder in properties["log.dirs"].split(",")]
    if "metadata.log.dir" in properties:
        folders.insert(0, Path(properties["metadata.log.dir"]))
    cluster_id = _cluster_id(folders) or _random_id()
    for folder in dict.fromkeys(folders):
        if not (folder / "meta.properties").exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(install() / _BOOTSTRAP, folder / _BOOTSTRAP)
            own = {"version": "1", "node.id": properties["node.id"], "directory.id": _random_id()}
            write_properties(folder / "meta.properties", {**own, "cluster.id": cluster_id})


def _cluster_id(folders: Sequence[Path]) -> str | None:
    for file in (folder / "meta.properties" for folder in folders):
        if file.exists():
            return dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)["cluster.id"]
    return None


def _random_id() -> str:
    # 16 bytes in base64. The prefix keeps off a leading dash, which `format` takes for an option.
    return base64.urlsafe_b64encode(b"v" + uuid.uuid4().bytes[1:]).rstrip(b"=").decode()


def write_properties(file: Path, properties: Mapping[str, str]) -> None:
    """Write a file of Java properties; values stay as they are."""
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))


def _answers(port: int) -> bool:
    # ApiVersions, version 0, without a client id. A broker opens its port when the controller has taken it in.
    correlation = 7
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(struct.pack(">ihhih", 10, 18, 0, correlation, -1))
            answer = connection.recv(10)
    except OSError:
        return False
    return len(answer) == 10 and struct.unpack(">iih", answer)[1:] == (correlation, 0)
