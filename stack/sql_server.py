"""What MySQL and MariaDB have in common here: started on a copied data folder, asked with their own client programs."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import archives
from .places import install_once
from .server import HOST, Launch, Server, free_port


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlServer:
    """One of the two: where its programs are, and how a data folder is made for it."""

    name: str  # of the server, and of its client program
    daemon: str  # its file in usr/sbin
    defaults: Sequence[str]
    own_folders: Callable[[Path], Sequence[str]]  # options that name more places below the prefix
    install: Callable[[], Path]  # returns the prefix
    initialize: Callable[[Path], None]  # makes the template of a data folder

    def start(self, directory: Path, port: int | None = None, options: Sequence[str] = ()) -> Server:
        """Start a server with its data in `directory` and wait until it accepts connections.

        `port` None takes a free one; `options` are the server's own and win over its defaults. A data folder that is
        there is used again. The account is root without a password.
        """
        server = self.prepare(directory, port, options)
        server.start()
        return server

    def prepare(self, directory: Path, port: int | None = None, options: Sequence[str] = ()) -> Server:
        """What `start` does, without starting it."""
        directory = directory.absolute()
        chosen = free_port() if port is None else port
        data = directory / "data"
        if not data.is_dir():
            self._copy_template(directory, data)
        launch = Launch(
            name=self.name,
            url=f"mysql://root@{HOST}:{chosen}",
            port=chosen,
            directory=directory,
            argv=(*self.command(self.install(), data), *self.defaults, f"--port={chosen}", *options),
            is_ready=lambda: _greets(chosen),
        )
        return Server(launch)

    def client(self, server: Server, program: str | None = None) -> list[str]:
        """The argv prefix of a client program for `server`; None is the one that takes statements."""
        address = [f"--host={server.host}", f"--port={server.port}", "--user=root", "--protocol=tcp"]
        return [*self.tool(program or self.name), "--no-defaults", *address]

    def tool(self, program: str) -> list[str]:
        """The argv prefix of a program of the bin folder, with no server named (mysqlbinlog on a file)."""
        return list(archives.command(self.install(), f"usr/bin/{program}"))

    def command(self, prefix: Path, data: Path) -> list[str]:
        """The daemon's argv on a data folder, without its defaults."""
        argv = [
            *archives.command(prefix, f"usr/sbin/{self.daemon}"),
            "--no-defaults",
            f"--basedir={prefix / 'usr'}",
            f"--lc-messages-dir={prefix / 'usr/share/mysql'}",
            *self.own_folders(prefix),
            f"--datadir={data}",
            # Its own: a MariaDB that starts deletes every temporary table it finds, another running server's too.
            f"--tmpdir={data.parent}",
        ]
        return [*argv, "--user=root"] if os.geteuid() == 0 else argv

    def _copy_template(self, directory: Path, data: Path) -> None:
        template = install_once(f"{self.name}-data", self.initialize)
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = directory / "data.unfinished"
        subprocess.run(["rm", "-rf", str(unfinished)], check=True)
        subprocess.run(["cp", "-a", "--sparse=always", str(template), str(unfinished)], check=True)
        unfinished.rename(data)


def _greets(port: int) -> bool:
    # The server speaks first: packet length (3 bytes), sequence number, protocol version 10.
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            return connection.recv(5)[4:5] == b"\x0a"
    except OSError:
        return False
