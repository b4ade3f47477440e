"""What another tool's table has by which a value would become another one is refused by name; adopting changes none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pymysql
import pytest

from projectors.stores.index_tables.adopting import TableAdoption
from projectors.stores.index_tables.views import IndexTable
from projectors.views import BoundView, Entity
from stack import Server
from viewtail.changes.errors import StoreError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.servers.sessions import SQL_MODE, Connection

STORE = "adopted"
PLAIN = "id BIGINT PRIMARY KEY, name LONGTEXT NULL, visits BIGINT NULL"
NOW = "visits TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP"
ROWS = [(1, "Ann", 7), (2, None, None)]


def by_name() -> BoundView:
    columns = (
        Column(name="id", kind=Kind.INTEGER, declared="int unsigned", is_nullable=False),
        Column(name="name", kind=Kind.TEXT, declared="varchar(10)", is_nullable=True),
        Column(name="visits", kind=Kind.INTEGER, declared="int", is_nullable=True),
    )
    return BoundView(
        view=IndexTable("by_name", Entity("shop.user"), value=["name", "visits"]),
        table=Table(schema="shop", name="user", columns=columns, primary_key=("id",)),
        key=columns[:1],
        values=columns[1:],
        needed=("id", "name", "visits"),
        fingerprint="0",
    )


@pytest.fixture(params=["mysql_server", "mariadb_server"])
def server(request: pytest.FixtureRequest) -> Server:
    made: Server = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def session(server: Server) -> Iterator[Connection]:
    with closing(opened(server)) as made, made.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {STORE}")
        cursor.execute(f"CREATE DATABASE {STORE} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {STORE}")
        yield made
        cursor.execute(f"DROP DATABASE {STORE}")


def opened(server: Server) -> Connection:
    made: Connection = pymysql.connect(
        host=server.host, port=server.port, user="root", autocommit=True, sql_mode=SQL_MODE, charset="utf8mb4"
    )
    return made


def run(session: Connection, *statements: str) -> None:
    with session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def content(session: Connection) -> list[tuple[object, ...]]:
    with session.cursor() as cursor:
        cursor.execute(f"SELECT id, name, visits FROM {STORE}.by_name ORDER BY id")
        return list(cursor.fetchall())


def adopting(server: Server) -> TableAdoption:
    return TableAdoption(lambda: opened(server), STORE, by_name())


REFUSED = {
    "a version": ([f"CREATE TABLE by_name ({PLAIN}, version INT)"], "a column version"),
    "a version in capitals": ([f"CREATE TABLE by_name ({PLAIN}, Version BIGINT UNSIGNED)"], "a column version"),
    "the time of the last write": (
        [f"CREATE TABLE by_name ({PLAIN.replace('visits BIGINT NULL', NOW)})"],
        "column visits is ON UPDATE",
    ),
    "a generated column": (
        ["CREATE TABLE by_name (id BIGINT PRIMARY KEY, name LONGTEXT, visits BIGINT AS (id + 1) STORED)"],
        "column visits is generated",
    ),
    "a trigger": (
        [
            f"CREATE TABLE by_name ({PLAIN})",
            "CREATE TRIGGER upper_name BEFORE UPDATE ON by_name FOR EACH ROW SET NEW.name = UPPER(NEW.name)",
        ],
        "a trigger upper_name",
    ),
    "a check": ([f"CREATE TABLE by_name ({PLAIN}, CONSTRAINT few CHECK (visits < 100))"], "a check few"),
    "a foreign key": (
        [
            "CREATE TABLE team (id BIGINT PRIMARY KEY)",
            f"CREATE TABLE by_name ({PLAIN}, CONSTRAINT of_team FOREIGN KEY (visits) REFERENCES team (id))",
        ],
        "a foreign key of_team",
    ),
    "a foreign key to it": (
        [
            f"CREATE TABLE by_name ({PLAIN})",
            "CREATE TABLE note (about BIGINT, FOREIGN KEY (about) REFERENCES by_name (id) ON DELETE CASCADE)",
        ],
        "a foreign key of note to it",
    ),
    "a text that is too long": (
        [f"CREATE TABLE by_name ({PLAIN})", "INSERT INTO by_name VALUES (1, 'elevenchars', 1)"],
        "column name is longtext, and varchar\\(10\\) as declared, which some",
    ),
    "a number that is too large": (
        [f"CREATE TABLE by_name ({PLAIN})", "INSERT INTO by_name VALUES (1, 'a', 1 << 31)"],
        "column visits is bigint, and int as declared, which some",
    ),
    "a number with a fraction, which would be rounded": (
        [
            "CREATE TABLE by_name (id BIGINT PRIMARY KEY, name LONGTEXT, visits DECIMAL(10,2))",
            "INSERT INTO by_name VALUES (1, 'a', 1.25)",
        ],
        "column visits is decimal\\(10,2\\), and int as declared; not every value",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_change_a_value_is_refused_by_name(server: Server, session: Connection, kind: str) -> None:
    statements, said = REFUSED[kind]
    run(session, *statements)
    with closing(adopting(server)) as adoption:
        why = adoption.refusal(drops_extra=False)
    assert why is not None
    assert re.search(said, why), why


def test_a_table_of_wider_columns_is_taken_and_keeps_its_values(server: Server, session: Connection) -> None:
    run(session, f"CREATE TABLE by_name ({PLAIN})", "INSERT INTO by_name VALUES (1, 'Ann', 7), (2, NULL, NULL)")
    with closing(adopting(server)) as adoption:
        assert adoption.refusal(drops_extra=False) is None
        adoption.take(is_beside=False)
        assert adoption.refusal(drops_extra=False) is None
        assert adoption.steps() == []
    assert content(session) == ROWS


def test_a_value_that_came_since_the_look_is_not_cut(server: Server, session: Connection) -> None:
    run(session, f"CREATE TABLE by_name ({PLAIN})", "INSERT INTO by_name VALUES (1, 'elevenchars', 7)")
    with closing(adopting(server)) as adoption, pytest.raises(StoreError, match="column name has values"):
        adoption.take(is_beside=False)
    assert content(session) == [(1, "elevenchars", 7)]
