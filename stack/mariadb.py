"""MariaDB 10.11 from the Debian release that has it: a server with full row metadata, ready in about two seconds.

As stack/mysql.py: the data folder is copied from a template made once, every commit is synced, root has no password.
The system's own service and packages are never touched.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from . import archives
from .errors import ServerFailed
from .places import install_once, progress
from .server import HOST
from .sql_server import SqlServer

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
    "--max-connections=500",  # a busy machine ends sessions later than tests open new ones
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


def _own_folders(prefix: Path) -> list[str]:
    return [
        f"--character-sets-dir={prefix / 'usr/share/mysql/charsets'}",
        f"--plugin-dir={prefix / 'usr/lib/mysql/plugin'}",
    ]


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
    argv = [*_SERVER.command(prefix, into), "--bootstrap", "--skip-log-bin", "--innodb-log-file-size=8M"]
    done = subprocess.run(argv, input="\n".join(statements), capture_output=True, text=True)
    if done.returncode:
        raise ServerFailed(f"mariadbd --bootstrap failed with exit code {done.returncode}:\n{done.stderr}")


_SERVER = SqlServer(
    name="mariadb",
    daemon="mariadbd",
    defaults=DEFAULTS,
    own_folders=_own_folders,
    install=install,
    initialize=_initialize,
)
start, prepare, client, tool = _SERVER.start, _SERVER.prepare, _SERVER.client, _SERVER.tool
