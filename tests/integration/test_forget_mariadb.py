"""`viewtail forget` where the source, the index tables and viewtail's own tables are on MariaDB."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, wait_for

SCHEMA, OWN = "forget_maria", "forget_maria_own"
VIEWS = """
from viewtail import Entity, IndexTable

user = Entity("forget_maria.user")
views = [IndexTable("by_name", user, value="name"), IndexTable("by_mail", user, value="mail")]
"""
pytestmark = [pytest.mark.mariadb, pytest.mark.slow]


def test_an_entity_is_erased_and_a_view_dropped_on_mariadb(tmp_path: Path, mariadb_server: Server) -> None:
    for database in (SCHEMA, OWN):
        ask(mariadb_server, f"DROP DATABASE IF EXISTS {database}")
    ask(mariadb_server, f"CREATE DATABASE {SCHEMA}")
    ask(mariadb_server, f"CREATE TABLE {SCHEMA}.user (id VARCHAR(20) PRIMARY KEY, name VARCHAR(40), mail VARCHAR(40))")
    ask(mariadb_server, f"INSERT INTO {SCHEMA}.user VALUES ('a:b', 'Ada', 'a@x'), ('c', 'Carl', 'c@x')")
    run = Run(tmp_path, VIEWS, {**addresses(mariadb_server), "VIEWTAIL_MYSQL__URL": f"{mariadb_server.url}/{OWN}"})
    run.start()
    try:
        shown = f"SELECT COUNT(*) FROM {OWN}.by_name WHERE name IS NOT NULL"
        wait_for("the views are filled", lambda: ask(mariadb_server, shown) == [(2,)])
        wait_for("the views are filled", run.is_well)
        assert "DELETE FROM" in run.command("forget", "user", "a%3Ab").stderr
        ask(mariadb_server, f"DELETE FROM {SCHEMA}.user WHERE id = 'a:b'")
        done = run.command("forget", "user", "a%3Ab", "--json")
        assert done.returncode == 0, done.stderr
        proof = json.loads(done.stdout)
        assert [one["found"].partition(":")[0] for one in proof["looked"]] == ["a tombstone", "a tombstone"]
        assert {one["found"] for one in proof["own"]} == {"nothing"}
        assert ask(mariadb_server, f"SELECT name FROM {OWN}.by_name WHERE id = 'a:b'") == [(None,)]

        assert run.stop() == 0
        (tmp_path / "views.py").write_text(VIEWS.replace(', IndexTable("by_mail", user, value="mail")', ""))
        run.start()
        wait_for("it runs", run.is_well)
        dropped = run.command("forget", "by_mail", "--yes")
        assert dropped.returncode == 0, dropped.stderr
        assert f"dropped: table `{OWN}`.`by_mail`: 2 rows" in dropped.stdout
        assert ask(mariadb_server, f"SHOW TABLES FROM {OWN} LIKE 'by\\_%'") == [("by_name",)]
        assert "Traceback" not in run.log
    finally:
        run.kill()
