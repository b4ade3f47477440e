"""kcat from the machine's own Debian release: reads and writes topics from a shell."""

from __future__ import annotations

from pathlib import Path

from . import archives
from .places import install_once
from .server import Server

PACKAGES = ("kcat",)


def install() -> Path:
    """The prefix that holds kcat; downloaded on first use (about 10 MB)."""
    return install_once("kcat", lambda into: archives.unpack("kcat", PACKAGES, into))


def client(server: Server) -> list[str]:
    """The argv prefix of kcat for a Kafka node: `-C -t TOPIC -e` reads all of a topic, `-L` lists them."""
    return [*archives.command(install(), "usr/bin/kcat"), "-b", f"{server.host}:{server.port}"]
