"""Servers that encrypt their binlogs on disk."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import stack.mariadb
import stack.mysql
from stack import Server

MYSQL_MAGIC = b"\xfdbin"  # a plain file begins with b"\xfebin"
KEYS = "1;{}\n"  # number and AES key of MariaDB's key file


def mysql(directory: Path) -> Server:
    """A MySQL with binlog_encryption and the keyring of a file."""
    plain = stack.mysql.prepare(directory / "mysql").launch
    program = next(part for part in plain.argv if part.endswith("/mysqld"))
    plugins = next(part.partition("=")[2] for part in plain.argv if part.startswith("--plugin-dir="))
    # mysqld reads beside itself which components to load, and a component beside itself how it is set up.
    beside, components = directory / "bin", directory / "plugin"
    beside.mkdir()
    components.mkdir()
    (beside / "mysqld").symlink_to(program)
    (beside / "mysqld.my").write_text(json.dumps({"components": "file://component_keyring_file"}))
    shutil.copy(Path(plugins) / "component_keyring_file.so", components)
    settings = {"path": str(directory / "keys"), "read_only": False}
    (components / "component_keyring_file.cnf").write_text(json.dumps(settings))
    argv = (str(beside / "mysqld") if part == program else part for part in plain.argv)
    options = (f"--plugin-dir={components}", "--binlog-encryption=ON")
    server = Server(replace(plain, argv=(*argv, *options)))
    server.start()
    return server


def mariadb(directory: Path) -> Server:
    """A MariaDB with encrypt_binlog and the keys of a file."""
    keys = directory / "keys"
    keys.write_text(KEYS.format(bytes(range(32)).hex()))
    return stack.mariadb.start(
        directory / "mariadb",
        options=[
            f"--plugin-dir={stack.mariadb.plugins()}",
            "--plugin-maturity=beta",
            "--plugin-load-add=file_key_management",
            f"--file-key-management-filename={keys}",
            "--encrypt-binlog=ON",
        ],
    )
