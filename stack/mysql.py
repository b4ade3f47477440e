"""MySQL 9 from Debian's newest suite: a server with full row metadata and GTIDs, ready in about two seconds.

The data folder is copied from a template made once, with a server_uuid of its own. Durability is MySQL's default
(every commit is synced): what viewtail promises rests on it.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stack import archives
from stack.errors import ServerFailed
from stack.places import install_once, progress
from stack.server import HOST, Launch, Server, free_port

PACKAGES = ("mysql-server-core", "mysql-client-core")
DEFAULTS = (
    "--log-bin=binlog",
    "--binlog-row-metadata=FULL",
    "--binlog-row-image=FULL",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--mysqlx=OFF",
    "--server-id=1",
    f"--bind-address={HOST}",
    "--innodb-buffer-pool-size=256M",
    "--innodb-redo-log-capacity=512M",
    "--socket=mysqld.sock",  # relative to the data folder: the path of a test's folder can be too long for a socket
    "--pid-file=mysqld.pid",
)


def install() -> Path:
    """The prefix that holds mysqld, mysql and mysqlbinlog; downloaded on first use (about 60 MB)."""
    return install_once("mysql", lambda into: archives.unpack("mysql", PACKAGES, into, archives.NEWEST_SUITE))


def start(directory: Path, port: int | None = None, options: Sequence[str] = ()) -> Server:
    """Start a server with its data in `directory` and wait until it accepts connections.

    `port` None takes a free one; `options` are mysqld's own and win over DEFAULTS. A data folder that is there is
    used again. The account is root without a password.
    """
    server = prepare(directory, port, options)
    server.start()
    return server


def prepare(directory: Path, port: int | None = None, options: Sequence[str] = ()) -> Server:
    """What `start` does, without starting it."""
    directory = directory.absolute()
    chosen = free_port() if port is None else port
    data = directory / "data"
    if not data.is_dir():
        _copy_template(directory, data)
    launch = Launch(
        name="mysql",
        url=f"mysql://root@{HOST}:{chosen}",
        port=chosen,
        directory=directory,
        argv=(*_mysqld(install(), data), *DEFAULTS, f"--port={chosen}", *options),
        is_ready=lambda: _greets(chosen),
    )
    return Server(launch)


def client(server: Server, program: str = "mysql") -> list[str]:
    """The argv prefix of a client program (mysql, mysqlbinlog, mysqldump, mysqladmin) for `server`."""
    address = [f"--host={server.host}", f"--port={server.port}", "--user=root", "--protocol=tcp"]
    return [*tool(program), "--no-defaults", *address]


def tool(program: str) -> list[str]:
    """The argv prefix of a program of MySQL's bin folder, with no server named (mysqlbinlog on a file)."""
    return list(archives.command(install(), f"usr/bin/{program}"))


def _mysqld(prefix: Path, data: Path) -> list[str]:
    argv = [
        *archives.command(prefix, "usr/sbin/mysqld"),
        "--no-defaults",
        f"--basedir={prefix / 'usr'}",
        f"--lc-messages-dir={prefix / 'usr/share/mysql'}",
        f"--plugin-dir={_plugin_directory(prefix)}",
        "--secure-file-priv=NULL",
        f"--datadir={data}",
    ]
    return [*argv, "--user=root"] if os.geteuid() == 0 else argv


def _plugin_directory(prefix: Path) -> Path:
    return next(iter(sorted(prefix.glob("usr/lib/*/mysql/plugin"))), prefix / "usr/lib/mysql/plugin")


def _copy_template(directory: Path, data: Path) -> None:
    template = install_once("mysql-data", _initialize)
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / "data.unfinished"
    subprocess.run(["rm", "-rf", str(unfinished)], check=True)
    subprocess.run(["cp", "-a", "--sparse=always", str(template), str(unfinished)], check=True)
    unfinished.rename(data)


def _initialize(into: Path) -> None:
    prefix = install()
    progress("mysql: making the template of a data folder")
    # A small redo log makes the copies small; it grows to the configured capacity at the first start.
    argv = [*_mysqld(prefix, into), "--initialize-insecure", "--innodb-redo-log-capacity=8M"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise ServerFailed(
            f"mysqld --initialize-insecure failed with exit code {done.returncode}:\n{done.stderr}"
        )
    (into / "auto.cnf").unlink()  # each copy makes a server_uuid of its own


def _greets(port: int) -> bool:
    # The server speaks first: packet length (3 bytes), sequence number, protocol version 10.
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            return connection.recv(5)[4:5] == b"\x0a"
    except OSError:
        return False
