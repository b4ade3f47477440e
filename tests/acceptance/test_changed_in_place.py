"""`viewtail check` says what the next run would do in place to views that were changed, before it does."""

from __future__ import annotations

import json
from pathlib import Path

import pymysql

from stack import Server
from tests.support.running import Run, addresses, wait_for

SCHEMA = "changed_in_place"
VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash, SearchIndex
user = Entity("{SCHEMA}.user")
views = [
    IndexTable("by_email", user, value=VALUE),
    IndexTable("by_name", user, value="name"),
    RedisHash("user", user, fields=FIELDS),
    SearchIndex("changed_users", user, fields={{"name": NAME}}),
]
"""
BEFORE = "VALUE, FIELDS, NAME = 'email', ['name'], 'text'\n"
AFTER = "VALUE, FIELDS, NAME = 'name', ['email'], 'keyword'\n"


def _warned(run: Run) -> dict[str, str]:
    """What is said of changed views, by view."""
    done = run.command("check", "--json")
    assert done.returncode == 0, done.stdout
    found = [one for one in json.loads(done.stdout)["findings"] if one["what"].endswith(", changed")]
    return {one["what"].split()[1].rstrip(","): " ".join(map(str, one.values())) for one in found}


def _are_told_as_kept_before(run: Run) -> None:
    """`status` names those that changed, and `why` does not judge them without that word."""
    since = "has changed since the running viewtail read it: {} is kept as it was declared before. Restart"
    told = run.command("status").stdout
    kept = json.loads(run.command("status", "--json").stdout)["kept_as_before"]
    assert kept == ["elasticsearch:changed_users", "mysql:by_email", "redis:user"]
    for name in kept:
        assert f"views.py {since.format(f'view {name}')} `viewtail run`" in told, told
        said = run.command("why", name, "1")
        assert since.format(name) in said.stdout + said.stderr, f"{said.stdout}{said.stderr}"
        assert "viewtail replay" not in said.stdout, "it would refuse"
    assert "verdict      WRONG: views.py, or the table" in run.command("why", "redis:user", "1").stdout
    assert "mysql:by_name is kept" not in told
    assert since.format("mysql:by_name") not in run.command("why", "mysql:by_name", "1").stdout


def test_check_says_which_changed_views_the_next_run_empties_or_refills(
    tmp_path: Path, mysql_server: Server, redis_server: Server, elasticsearch_server: Server
) -> None:
    environ = addresses(mysql_server, redis_server, elasticsearch_server)
    environ["VIEWTAIL_MYSQL__URL"] = f"{mysql_server.url}/{SCHEMA}_own"
    connection = pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {SCHEMA}")
        cursor.execute(f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, email VARCHAR(60), name VARCHAR(60))")
        cursor.execute(f"INSERT INTO {SCHEMA}.user VALUES (1, 'ada@example.org', 'Ada')")
        run = Run(tmp_path, BEFORE + VIEWS, environ)
        run.start()
        try:
            wait_for("filled views", lambda: run.command("status").returncode == 0, 120)
            assert _warned(run) == {}
            (tmp_path / "views.py").write_text(AFTER + VIEWS)
            warned = _warned(run)
            assert run.is_well(), "nothing was written, and the running viewtail keeps them as they were"
            _are_told_as_kept_before(run)
        finally:
            run.stop()
        assert warned.keys() == {"mysql:by_email", "redis:user", "elasticsearch:changed_users"}
        for said in warned.values():
            assert "its declaration changed since it was filled" in said and "backfills it again in place" in said
            assert "VIEWTAIL_RUN__ON_CHANGE=beside" in said and "`viewtail rebuild`" in said
        assert (
            "the mapping of name cannot be changed, so its index is deleted and created again"
            in (warned["elasticsearch:changed_users"])
        )
        assert "column name of its table" in warned["mysql:by_email"]
        assert "beside what the new one does" in warned["redis:user"]
        cursor.execute(f"SELECT email FROM {SCHEMA}_own.by_email")
        assert cursor.fetchall() == (("ada@example.org",),)
        (tmp_path / "viewtail.toml").write_text('[run]\non_change = "beside"\n')
        assert _warned(run) == {}, "readers keep what they have"
        cursor.execute(f"ALTER TABLE {SCHEMA}.user MODIFY name VARCHAR(90)")
        (tmp_path / "views.py").write_text(BEFORE + VIEWS)
        assert "its table's key or columns changed" in _warned(run)["mysql:by_name"]
        cursor.execute(f"DROP DATABASE {SCHEMA}")
        cursor.execute(f"DROP DATABASE {SCHEMA}_own")
