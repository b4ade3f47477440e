"""`viewtail contract check`, the real command, before a migration of a real server's tables."""

from __future__ import annotations

import json
import subprocess
import sys
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


def test_a_migration_with_a_statement_that_cannot_be_read_exits_2_with_the_statement(
    folder: Path, mysql_server: Server
) -> None:
    run = Run(folder, VIEWS, addresses(mysql_server))
    (folder / "up.sql").write_text("ALTER TABLE user ADD a INT;\nALTER TABLE contracted.user ADD COLUM foo INT;\n")
    done = run.command("contract", "check", "up.sql")
    assert done.returncode == 2, done.stdout
    assert "up.sql:2: ALTER TABLE contracted.user ADD COLUM foo INT\n  unread  FOO where the type" in done.stdout
    assert "1 statement of 2 could not be read" in done.stdout and "no view breaks" not in done.stdout
    told = json.loads(run.command("contract", "check", "up.sql", "--json").stdout)
    assert told["is_well"] is False and [one["line"] for one in told["unread"]] == [2]
    (folder / "0042.py").write_text("from alembic import op\n\ndef upgrade():\n    op.drop_column('user', 'email')\n")
    assert run.command("contract", "check", "0042.py").returncode == 2
    (folder / "up.sql").write_text("ALTER TABLE other EXPLODE; ALTER TABLE user DROP COLUMN email; CALL more();")
    done = run.command("contract", "check", "up.sql")
    assert done.returncode == 2 and "breaks  mysql:by_email" in done.stdout, "what can be read is judged all the same"
    assert "note    viewtail does not know EXPLODE; it names no table of a view" in done.stdout
    assert "unread  what CALL runs is not in this file" in done.stdout


def test_a_migration_is_read_from_the_standard_input(folder: Path, mysql_server: Server) -> None:
    run = Run(folder, VIEWS, addresses(mysql_server))

    def check(sql: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "viewtail.main", "contract", "check", "-"]
        return subprocess.run(
            argv, input=sql, cwd=folder, env=run.environment(), capture_output=True, text=True, timeout=60, check=False
        )

    begin = "\ufeff--\n-- Remove field email from user\n--\nBEGIN;\n"
    done = check(begin + "ALTER TABLE `user` DROP COLUMN `email`;\nCOMMIT;\n")
    assert done.returncode == 1 and "standard input:5: ALTER TABLE `user` DROP COLUMN `email`" in done.stdout
    version = "INSERT INTO alembic_version (version_num) VALUES ('a1');"
    done = check(f"-- Running upgrade  -> a1\n\nALTER TABLE user ADD COLUMN age INTEGER;\n\n{version}\n\n")
    assert (done.returncode, done.stdout) == (0, "2 statements, no view breaks\n"), done.stderr
    assert check("ALTER TABLE user ADD COLUM age INTEGER;").returncode == 2


@pytest.mark.parametrize(
    ("content", "file", "code", "words"),
    [
        (b"ALTER TABLE user DROP COLUMN email", "up.sql", 1, "does not answer"),
        (b"ALTER TABLE user", "missing.sql", 2, "missing.sql: No such file"),
        (b"\xff\xfe", "up.sql", 2, "no text in UTF-8"),
        (b" ;; -- nothing\n", "up.sql", 2, "no statement in it"),
        (b"-- nothing", "-", 2, "standard input: there is no statement in it"),
    ],
)
def test_what_cannot_be_read_is_said(content: bytes, file: str, code: int, words: str, tmp_path: Path) -> None:
    run = Run(tmp_path, VIEWS, NOBODY)
    (tmp_path / "up.sql").write_bytes(content)
    done = run.command("contract", "check", file)
    assert done.returncode == code
    assert words in done.stderr and "Traceback" not in done.stderr
