"""`viewtail init` writes views of tables that have rows, or of those that are named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from stack import Server
from tests.support.running import Run, addresses

SCHEMA = "init_tables"


@pytest.fixture
def begun(mysql_server: Server, redis_server: Server, tmp_path: Path) -> Iterator[Run]:
    connection = pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {SCHEMA}")
        for name, unique in (("actor", "UNIQUE (email)"), ("page", "INDEX (size)"), ("tag", "INDEX (size)")):
            cursor.execute(
                f"CREATE TABLE {SCHEMA}.{name} (id INT PRIMARY KEY, email VARCHAR(60), size INT, about TEXT, {unique})"
            )
        cursor.execute(f"CREATE TABLE {SCHEMA}.keyless (name VARCHAR(60))")
        cursor.execute(f"INSERT INTO {SCHEMA}.tag (id, email) VALUES (1, 'a@example.org')")
        run = Run(tmp_path, "", addresses(mysql_server, redis_server))
        (tmp_path / "views.py").unlink()
        yield run
        cursor.execute(f"DROP DATABASE {SCHEMA}")


@pytest.fixture
def has_pattern(begun: Run, mysql_server: Server) -> str:
    """The name of a table that is declared in backticks: else a # in it would stand for a digit."""
    connection = pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        for name in ("count#", "count1"):  # the one would stand for the other
            cursor.execute(f"CREATE TABLE {SCHEMA}.`{name}` (id INT PRIMARY KEY, email VARCHAR(60), UNIQUE (email))")
        cursor.execute(f"INSERT INTO {SCHEMA}.`count#` VALUES (1, 'a@example.org')")
    return "count#"


@pytest.mark.parametrize("named", [False, True])
def test_a_table_whose_name_would_be_a_pattern_is_declared_in_backticks(
    begun: Run, has_pattern: str, named: bool
) -> None:
    done = begun.command("init", "--schema", SCHEMA, *(["--table", has_pattern] if named else []))
    assert done.returncode == 0, done.stderr
    assert f"views of {SCHEMA}.`{has_pattern}`, as examples" in done.stdout
    assert f"Entity('{SCHEMA}.`{has_pattern}`')" in (begun.folder / "views.py").read_text()
    checked = begun.command("check")
    assert checked.returncode == 0, checked.stdout


def test_a_table_that_has_rows_comes_before_an_empty_one_that_would_show_more(begun: Run) -> None:
    done = begun.command("init", "--schema", SCHEMA)
    assert done.returncode == 0, done.stderr
    assert f"views of {SCHEMA}.tag, as examples" in done.stdout
    assert "2 more tables can have views: see the comment there, or say --table NAME" in done.stdout


def test_views_are_of_the_tables_that_are_named_and_check_takes_them(begun: Run) -> None:
    done = begun.command("init", "--schema", SCHEMA, "--table", "page", "--table", f"{SCHEMA}.actor")
    assert done.returncode == 0, done.stderr
    assert f"views of {SCHEMA}.page, {SCHEMA}.actor, as examples" in done.stdout
    written = (begun.folder / "views.py").read_text()
    assert f"entity_page = Entity('{SCHEMA}.page')" in written and f"entity_actor = Entity('{SCHEMA}.actor')" in written
    assert "RedisHash('actor', entity_actor, " in written and "IndexTable('page_by_email', entity_page, " in written
    assert f"each as an Entity of its own: {SCHEMA}.tag" in written
    checked = begun.command("check")
    assert checked.returncode == 0, checked.stdout


def test_a_table_may_be_named_with_its_schema_alone(begun: Run) -> None:
    done = begun.command("init", "--table", f"{SCHEMA}.actor")
    assert done.returncode == 0, done.stderr
    assert f"views of {SCHEMA}.actor, as examples" in done.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pages", "--table pages: init_tables has no such table that this user can see; did you mean page?"),
        ("keyless", "--table keyless: it can have no view: it needs a primary key"),
    ],
)
def test_a_table_that_is_not_there_or_can_have_no_view_is_refused(begun: Run, name: str, said: str) -> None:
    done = begun.command("init", "--schema", SCHEMA, "--table", name)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not (begun.folder / "views.py").exists()
