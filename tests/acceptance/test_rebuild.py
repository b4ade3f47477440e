"""What `viewtail rebuild` promises: readers never see an empty or half view, and the same command finishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pymysql
import pytest

from stack import Server
from tests.support.running import Run, addresses, running, wait_for

VIEWS = """
from viewtail import Entity, IndexTable
views = [IndexTable("ix_email", Entity("shop.user"), value="email")]
"""
ROWS = 3_000


def connect(server: Server) -> Any:
    return pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)


class Shop:
    """A table and what its index table shows."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.execute(
            "SET lock_wait_timeout = 20",
            "DROP DATABASE IF EXISTS shop",
            "DROP DATABASE IF EXISTS viewtail",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.user (id INT PRIMARY KEY, email VARCHAR(60), n INT NOT NULL DEFAULT 0)",
            "INSERT INTO shop.user (id, email) VALUES " + ",".join(f"({i}, 'e{i}')" for i in range(ROWS)),
        )

    def execute(self, *statements: str) -> None:
        connection = connect(self.server)
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        connection = connect(self.server)
        with connection.cursor() as cursor:
            cursor.execute(query)
            found = list(cursor.fetchall())
        connection.close()
        return found

    def wanted(self) -> set[tuple[int, str]]:
        return set(self.rows("SELECT id, email FROM shop.user WHERE email IS NOT NULL"))

    def shown(self, table: str = "ix_email") -> set[tuple[int, str]]:
        return set(self.rows(f"SELECT id, email FROM viewtail.{table} WHERE email IS NOT NULL"))

    def tables(self) -> set[str]:
        return {name for (name,) in self.rows("SHOW TABLES FROM viewtail LIKE 'ix\\_%'")}

    def states(self) -> dict[str, str]:
        return dict(self.rows("SELECT name, state FROM viewtail.view"))


@pytest.fixture
def shop(mysql_server: Server) -> Shop:
    return Shop(mysql_server)


def filled(shop: Shop, run: Run) -> None:
    wait_for("the view is filled", lambda: len(shop.shown()) == ROWS)
    wait_for("all is well", run.is_well)


def test_a_rebuild_takes_away_what_should_not_be_there_and_a_rollback_brings_the_former_copy_back(
    shop: Shop, tmp_path: Path
) -> None:
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        filled(shop, run)
        shop.execute("UPDATE viewtail.ix_email SET email = 'damaged' WHERE id = 7")
        done = run.command("rebuild", "ix_email", timeout_s=60)
        assert done.returncode == 0, done.stderr
        assert shop.shown() == shop.wanted()
        assert shop.tables() == {"ix_email", "ix_email__viewtail_1"}
        shop.execute("UPDATE shop.user SET email = 'later' WHERE id = 9")
        wait_for("both are kept", lambda: (9, "later") in shop.shown() & shop.shown("ix_email__viewtail_1"))
        done = run.command("rebuild", "ix_email", "--rollback", "--json", timeout_s=60)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["live_copy"] == 1
        assert (7, "damaged") in shop.shown() and (9, "later") in shop.shown()
        done = run.command("rebuild", "ix_email", "--abort", "--yes", timeout_s=60)
        assert done.returncode == 0, done.stderr
        assert shop.tables() == {"ix_email"}
        assert shop.states() == {"mysql:ix_email": "filled"}
        wait_for("all is well", run.is_well)
        assert run.stop() == 0
