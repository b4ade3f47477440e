"""Redis from the machine's own Debian release, run from a folder of its own: every write synced to its log once a
second, nothing ever evicted."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from . import archives
from .places import install_once
from .server import HOST, Launch, Server, free_port

PACKAGES = ("redis-server", "redis-tools")


def install() -> Path:
    """The prefix that holds redis-server and redis-cli; downloaded on first use (about 10 MB)."""
    return install_once("redis", lambda into: archives.unpack("redis", PACKAGES, into))


def start(directory: Path, port: int | None = None, options: Sequence[str] = ()) -> Server:
    """Start a server with its data in `directory` and wait until it answers.

    `port` None takes a free one; `options` are redis-server's own (`--appendfsync always`) and win over the
    defaults. A data folder that is there is used again.
    """
    server = prepare(directory, port, options)
    server.start()
    return server


def prepare(directory: Path, port: int | None = None, options: Sequence[str] = ()) -> Server:
    """What `start` does, without starting it."""
    directory = directory.absolute()
    chosen = free_port() if port is None else port
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    launch = Launch(
        name="redis",
        url=f"redis://{HOST}:{chosen}/0",
        port=chosen,
        directory=directory,
        argv=(*_command(install(), "redis-server"), *_defaults(chosen, data), *options),
        is_ready=lambda: _answers(chosen),
    )
    return Server(launch)


def client(server: Server) -> list[str]:
    """The argv prefix of redis-cli for `server`."""
    return [*_command(install(), "redis-cli"), "-h", server.host, "-p", str(server.port)]


def _defaults(port: int, data: Path) -> tuple[str, ...]:
    return (
        *("--port", str(port)),
        *("--bind", HOST),
        *("--dir", str(data)),
        *("--appendonly", "yes"),
        *("--maxmemory-policy", "noeviction"),
        *("--save", ""),  # the append-only file alone is the data
        *("--daemonize", "no"),
    )


def _command(prefix: Path, program: str) -> tuple[str, ...]:
    # redis-server and its siblings are links to one binary, which looks at its own name; the loader keeps it.
    return archives.command(prefix, f"usr/bin/{program}")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")  # -LOADING while the data is read
    except OSError:
        return False
