"""Dead letters of keys whose rows are gone without a delete for each, where versions are the table's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack import Server
from tests.support.asking import ask
from tests.support.running import addresses, running, wait_for

SCHEMA, OWN = "letters_gone", "letters_gone_own"
VIEWS = f"""
from viewtail import Entity, IndexTable

user = Entity("{SCHEMA}.user", version="number")
views = [IndexTable("letters_gone", user, value="email")]
"""
pytestmark = [pytest.mark.mysql, pytest.mark.slow]


def test_a_key_that_has_no_row_and_that_the_view_never_had_is_parked_no_more_once_it_is_tried(
    mysql_server: Server, tmp_path: Path
) -> None:
    for database in (SCHEMA, OWN):
        ask(mysql_server, f"DROP DATABASE IF EXISTS {database}")
    ask(mysql_server, f"CREATE DATABASE {SCHEMA}")
    ask(
        mysql_server,
        f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, email VARCHAR(40), number INT UNSIGNED NOT NULL)",
    )
    ask(mysql_server, f"INSERT INTO {SCHEMA}.user VALUES (1, 'a@x', 1), (2, 'b@x', 1)")
    settings = {**addresses(mysql_server), "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/{OWN}"}
    with running(tmp_path, VIEWS, settings) as run:
        wait_for("it is filled", lambda: ask(mysql_server, f"SELECT state FROM {OWN}.view") == [("filled",)])
        for key in ("1", "9"):
            ask(
                mysql_server,
                f"INSERT INTO {OWN}.dead_letter (view_id, key_hash, rendered_key, version, reason) "
                f"SELECT id, UNHEX(LEFT(SHA2('{key}', 256), 32)), '{key}', 2, 'it was refused' FROM {OWN}.view",
            )
        done = run.command("dead-letters", "redrive", "letters_gone", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        assert ask(mysql_server, f"SELECT rendered_key FROM {OWN}.dead_letter") == []
