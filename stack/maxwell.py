"""Maxwell 1.22.6, a peer of 2019 that reads a binlog into Kafka, for the benchmarks. It is the newest that Maven has.

It reads MariaDB only: MySQL 8.4 and newer know its SHOW MASTER STATUS no more. It runs on Kafka's present client, and
on an empty class in the place of one that Java has no more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from . import java, kafka, maven
from .places import install_once
from .server import HOST, Launch, Server, free_port

VERSION = "1.22.6"
HEAP = "1g"
# What the MariaDB that it reads must be started with: it knows no annotations, and no character set called utf8mb3.
SOURCE_OPTIONS = ("--binlog-annotate-row-events=OFF", "--old-mode=")
_ARTIFACTS = (f"com.zendesk:maxwell:{VERSION}", f"org.apache.kafka:kafka-clients:{kafka.VERSION}")
_DIGEST = "9595be365e06df1920d5714cdca640deddf65191c32e4640e231765877de8c92"
_LOST_CLASS = "jdk/nashorn/api/scripting/ScriptObjectMirror"


def install() -> Path:
    """The folder with Maxwell's jars and the class it lacks; downloaded on first use (65 MB)."""
    return install_once(f"maxwell-{VERSION}", _download)


def start(
    directory: Path,
    source: Server,
    broker: Server,
    topic: str,
    position: str | None = None,
    port: int | None = None,
    options: Sequence[str] = (),
) -> Server:
    """Start Maxwell and wait until it reads a MariaDB of stack/ (started with SOURCE_OPTIONS) into a topic.

    It begins at `position` ('binlog.000001:4'), at every start; None is where it left off, at first the present end.
    The topic is there already. `port` is that of its metrics, None takes a free one; `options` are Maxwell's own
    (`--filter=exclude: *.*, include: shop.*`) and win over the defaults.
    """
    server = prepare(directory, source, broker, topic, position, port, options)
    server.start()
    return server


def prepare(
    directory: Path,
    source: Server,
    broker: Server,
    topic: str,
    position: str | None = None,
    port: int | None = None,
    options: Sequence[str] = (),
) -> Server:
    """What `start` does, without starting it."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    home = install()
    chosen = free_port() if port is None else port
    program = (str(java.home() / "bin/java"), f"-Xmx{HEAP}", "-cp", f"{home}/classes:{home}/jars/*")
    begin = () if position is None else (f"--init_position={position}:0",)
    launch = Launch(
        name="maxwell",
        url=f"http://{HOST}:{chosen}",
        port=chosen,
        directory=directory,
        argv=(
            *(*program, "com.zendesk.maxwell.Maxwell"),
            *(f"--host={source.host}", f"--port={source.port}", "--user=root", "--password", ""),
            *("--producer=kafka", f"--kafka.bootstrap.servers={broker.host}:{broker.port}", f"--kafka_topic={topic}"),
            *("--metrics_type=http", f"--http_bind_address={HOST}", f"--http_port={chosen}"),
            *begin,
            *options,
        ),
        is_ready=lambda: _answers(chosen),
    )
    return Server(launch)


def _download(into: Path) -> None:
    maven.jars("maxwell", _ARTIFACTS, into / "jars", _DIGEST)
    file = into / "classes" / f"{_LOST_CLASS}.class"
    file.parent.mkdir(parents=True)
    file.write_bytes(_empty_class(_LOST_CLASS))


def _empty_class(name: str) -> bytes:
    """A public class of Java 8 with nothing in it (The Java Virtual Machine Specification, 4.1)."""
    content = struct.pack(">IHHH", 0xCAFEBABE, 0, 52, 5)
    for index, text in ((1, name.encode()), (3, b"java/lang/Object")):  # a name, and the class of that name after it
        content += struct.pack(">BH", 1, len(text)) + text + struct.pack(">BH", 7, index)
    return content + struct.pack(">7H", 0x21, 2, 4, 0, 0, 0, 0)


def _answers(port: int) -> bool:
    # Its metrics come up after it has read the tables and settled where to begin.
    try:
        with build_opener(ProxyHandler({})).open(f"http://{HOST}:{port}/ping", timeout=5) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False
