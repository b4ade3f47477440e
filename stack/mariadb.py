"""MariaDB 10.11 from the Debian release that has it: a server with full row metadata, ready in about two seconds.

As stack/mysql.py: the data folder is copied from a template made once, every commit is synced, root has no password.
The system's own service and packages are never touched.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stack import archives
from stack.errors import ServerFailed
from stack.places import install_once, progress
from stack.server import HOST, Launch, Server, free_port

SUITE = "bookworm"  # the Debian release whose MariaDB is 10.11, whatever this machine's own is
PACKAGES = ("mariadb-server-core", "mariadb-client-core")
PLUGIN_PACKAGES = ("mariadb-server",)  # the service as a whole; of it only the plugins are used
DEFAULTS = (
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-metadata=FULL",
    "--binlog-row-image=FULL",
    "--sync-binlog=1",
    "--server-id=1",
    f"--bind-address={HOST}",
    "--innodb-buffer-pool-size=128M",
    "--max-allowed-packet=64M",
    "--socket=mariadbd.sock",  # relative to the data folder: the path of a test's folder can be too long for a socket
    "--pid-file=mariadbd.pid",
)
# What mariadb-install-db feeds to `mariadbd --bootstrap`, without help texts and the sys schema.
_SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")


def install() -> Path:
    """The prefix that holds mariadbd, mariadb and mariadb-binlog; downloaded on first use (about 30 MB)."""
    return install_once("mariadb", lambda into: archives.unpack("mariadb", PACKAGES, into, SUITE))


def plugins() -> Path:
    """The folder with plugins that `install` lacks (file_key_management); downloaded on first use (about 30 MB)."""
    return install_once("mariadb-plugins", _unpack_plugins)


def _unpack_plugins(into: Path) -> None:
    with tempfile.TemporaryDirectory(dir=into.parent) as whole:
        archives.unpack("mariadb", PLUGIN_PACKAGES, Path(whole), SUITE)
        for plugin in (Path(whole) / "usr/lib/mysql/plugin").glob("*.so"):
            plugin.rename(into / plugin.name)


def start(directory: Path, port: int | None = None, options: Sequence[str] = ()) -> Server:
    """Start a server with its data in `directory` and wait until it accepts connections.

    `port` None takes a free one; `options` are mariadbd's own and win over DEFAULTS. A data folder that is there is
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
        name="mariadb",
        url=f"mysql://root@{HOST}:{chosen}",
        port=chosen,
        directory=directory,
        argv=(*_mariadbd(install(), data), *DEFAULTS, f"--port={chosen}", *options),
        is_ready=lambda: _greets(chosen),
    )
    return Server(launch)


def client(server: Server, program: str = "mariadb") -> list[str]:
    """The argv prefix of a client program (mariadb, mariadb-binlog, mariadb-admin) for `server`."""
    address = [f"--host={server.host}", f"--port={server.port}", "--user=root", "--protocol=tcp"]
    return [*tool(program), "--no-defaults", *address]


def tool(program: str) -> list[str]:
    """The argv prefix of a program of MariaDB's bin folder, with no server named (mariadb-binlog on a file)."""
    return list(archives.command(install(), f"usr/bin/{program}"))


def _mariadbd(prefix: Path, data: Path) -> list[str]:
    argv = [
        *archives.command(prefix, "usr/sbin/mariadbd"),
        "--no-defaults",
        f"--basedir={prefix / 'usr'}",
        f"--lc-messages-dir={prefix / 'usr/share/mysql'}",
        f"--character-sets-dir={prefix / 'usr/share/mysql/charsets'}",
        f"--plugin-dir={prefix / 'usr/lib/mysql/plugin'}",
        f"--datadir={data}",
    ]
    return [*argv, "--user=root"] if os.geteuid() == 0 else argv


def _copy_template(directory: Path, data: Path) -> None:
    template = install_once("mariadb-data", _initialize)
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / "data.unfinished"
    subprocess.run(["rm", "-rf", str(unfinished)], check=True)
    subprocess.run(["cp", "-a", "--sparse=always", str(template), str(unfinished)], check=True)
    unfinished.rename(data)


def _initialize(into: Path) -> None:
    prefix = install()
    progress("mariadb: making the template of a data folder")
    share = prefix / "usr/share/mysql"
    statements = [
        "CREATE DATABASE IF NOT EXISTS mysql;",
        "USE mysql;",
        "SET @auth_root_socket = NULL;",  # root logs in without a password, not through the socket
        *((share / name).read_text() for name in _SYSTEM_TABLES),
    ]
    # A small redo log makes the copies small.
    argv = [*_mariadbd(prefix, into), "--bootstrap", "--skip-log-bin", "--innodb-log-file-size=8M"]
    done = subprocess.run(argv, input="\n".join(statements), capture_output=True, text=True)
    if done.returncode:
        raise ServerFailed(f"mariadbd --bootstrap failed with exit code {done.returncode}:\n{done.stderr}")


def _greets(port: int) -> bool:
    # The server speaks first: packet length (3 bytes), sequence number, protocol version 10.
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            return connection.recv(5)[4:5] == b"\x0a"
    except OSError:
        return False
