"""`viewtail contract check`, the real command, before a migration of a real server's tables."""

from __future__ import annotations

import json
from pathlib import Path

import pymysql
import pytest

from stack import Server
from tests.support.running import Run, addresses

VIEWS = """
from viewtail import Entity, IndexTable, RedisHash
views = [
    IndexTable("by_email", Entity("contracted.user"), value="email"),
    RedisHash("user", Entity("contracted.user"), fields=["name"]),
]
"""
NOBODY = {"VIEWTAIL_SOURCE__URL": "mysql://root@127.0.0.1:1", "VIEWTAIL_METRICS__PORT": "0"}


@pytest.fixture
def folder(mysql_server: Server, tmp_path: Path) -> Path:
    connection = pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root")
    with connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS contracted")
        cursor.execute("CREATE DATABASE contracted")
        cursor.execute("CREATE TABLE contracted.user (id INT PRIMARY KEY, email VARCHAR(60), name VARCHAR(60))")
    return tmp_path


def test_a_migration_that_breaks_a_view_is_told_with_line_and_reason(folder: Path, mysql_server: Server) -> None:
    run = Run(folder, VIEWS, addresses(mysql_server))
    (folder / "up.sql").write_text(
        "-- nobody uses it\nALTER TABLE user ADD COLUMN age INT;\n\nALTER TABLE user\n  DROP COLUMN email;\n"
    )
    done = run.command("contract", "check", "up.sql")
    assert done.returncode == 1, done.stderr
    assert "up.sql:4: ALTER TABLE user DROP COLUMN email" in done.stdout
    assert "mysql:by_email: column email was dropped" in done.stdout
    assert "redis:user" not in done.stdout
    told = json.loads(run.command("contract", "check", "up.sql", "--json").stdout)
    assert told["is_well"] is False and told["statements"] == 2
    (effect,) = told["effects"]
    assert (effect["line"], effect["view"], effect["breaks"]) == (4, "mysql:by_email", True)


def test_a_migration_that_breaks_nothing_exits_0(folder: Path, mysql_server: Server) -> None:
    run = Run(folder, VIEWS, addresses(mysql_server))
    (folder / "up.sql").write_text("ALTER TABLE user MODIFY email VARCHAR(90); ANALYZE TABLE user;")
    done = run.command("contract", "check", "up.sql")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert json.loads(run.command("contract", "check", "up.sql", "--json").stdout)["is_well"] is True


def test_offline_no_server_is_asked_and_only_names_are_known(tmp_path: Path) -> None:
    run = Run(tmp_path, VIEWS, NOBODY)
    (tmp_path / "up.sql").write_text("ALTER TABLE user DROP COLUMN other")
    assert run.command("contract", "check", "--offline", "up.sql").returncode == 0
    (tmp_path / "up.sql").write_text("ALTER TABLE user MODIFY email VARCHAR(90)")
    assert run.command("contract", "check", "--offline", "up.sql").returncode == 1


@pytest.mark.parametrize(
    ("content", "file", "code", "words"),
    [
        (b"ALTER TABLE user DROP COLUMN email", "up.sql", 1, "does not answer"),
        (b"ALTER TABLE user", "missing.sql", 2, "missing.sql: No such file"),
        (b"\xff\xfe", "up.sql", 2, "no text in UTF-8"),
        (b" ;; -- nothing\n", "up.sql", 2, "no statement in it"),
    ],
)
def test_what_cannot_be_read_is_said(content: bytes, file: str, code: int, words: str, tmp_path: Path) -> None:
    run = Run(tmp_path, VIEWS, NOBODY)
    (tmp_path / "up.sql").write_bytes(content)
    done = run.command("contract", "check", file)
    assert done.returncode == code
    assert words in done.stderr and "Traceback" not in done.stderr
