"""MySQL 9 from Debian's newest suite: a server with full row metadata and GTIDs, ready in about two seconds.

The data folder is copied from a template made once, with a server_uuid of its own. Durability is MySQL's default
(every commit is synced): what viewtail promises rests on it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import archives
from .errors import ServerFailed
from .places import install_once, progress
from .server import HOST
from .sql_server import SqlServer

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
    "--max-connections=500",  # a busy machine ends sessions later than tests open new ones
    "--innodb-buffer-pool-size=256M",
    "--innodb-redo-log-capacity=512M",
    "--socket=mysqld.sock",  # relative to the data folder: the path of a test's folder can be too long for a socket
    "--pid-file=mysqld.pid",
)


def install() -> Path:
    """The prefix that holds mysqld, mysql and mysqlbinlog; downloaded on first use (about 60 MB)."""
    return install_once("mysql", lambda into: archives.unpack("mysql", PACKAGES, into, archives.NEWEST_SUITE))


def _own_folders(prefix: Path) -> list[str]:
    plugins = next(iter(sorted(prefix.glob("usr/lib/*/mysql/plugin"))), prefix / "usr/lib/mysql/plugin")
    return [f"--plugin-dir={plugins}", "--secure-file-priv=NULL"]


def initialize(into: Path, options: Sequence[str] = ()) -> None:
    """Make a data folder, for options that a server has for life: `start` uses the one that is there."""
    prefix = install()
    into.mkdir(parents=True, exist_ok=True)
    # A small redo log makes the copies small; it grows to the configured capacity at the first start.
    argv = [*_SERVER.command(prefix, into), "--initialize-insecure", "--innodb-redo-log-capacity=8M", *options]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise ServerFailed(f"mysqld --initialize-insecure failed with exit code {done.returncode}:\n{done.stderr}")
    (into / "auto.cnf").unlink()  # each copy makes a server_uuid of its own


def _initialize(into: Path) -> None:
    progress("mysql: making the template of a data folder")
    initialize(into)


_SERVER = SqlServer(
    name="mysql",
    daemon="mysqld",
    defaults=DEFAULTS,
    own_folders=_own_folders,
    install=install,
    initialize=_initialize,
)
start, prepare, client, tool = _SERVER.start, _SERVER.prepare, _SERVER.client, _SERVER.tool
