"""A column is shortened by force: its own views halt and nobody else's, after a restart too; a replay mends them."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest

from offsets.views import Event
from projectors.stores.index_tables.views import IndexTable
from projectors.views import Entity
from stack import Server
from tests.support.asking import ask
from tests.support.pipelines import deployed, owned

VIEWS = [IndexTable(f"ix_{name}", Entity(f"short.{name}"), value="v") for name in "ab"]


class Tables:
    """short.a and short.b with values of 40 characters, and what the index tables show of them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ask("DROP DATABASE IF EXISTS short", "DROP DATABASE IF EXISTS viewtail", "CREATE DATABASE short")
        for name in "ab":
            rows = ", ".join(f"({i}, '{name * 30}{i}')" for i in range(1, 101))
            self.ask(
                f"CREATE TABLE short.{name} (id INT PRIMARY KEY, v VARCHAR(50))",
                f"INSERT INTO short.{name} VALUES {rows}",
            )

    def ask(self, *statements: str) -> Any:
        return [ask(self.server, statement) for statement in statements][-1]

    def shorten(self) -> None:
        server = pymysql.connect(host="127.0.0.1", port=self.server.port, user="root")
        with server as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = ''")
            cursor.execute("ALTER TABLE short.a MODIFY v VARCHAR(3)")

    def is_right(self, name: str) -> bool:
        shown = self.ask(f"SELECT id, v FROM viewtail.ix_{name} WHERE v IS NOT NULL ORDER BY id")
        return bool(shown == self.ask(f"SELECT id, v FROM short.{name} ORDER BY id"))


@pytest.fixture
def tables(mysql_server: Server) -> Tables:
    return Tables(mysql_server)


@pytest.mark.parametrize("is_seen", [True, False], ids=["while it runs", "while it does not run"])
def test_a_shortened_column_concerns_its_own_views_and_a_replay_mends_them(tables: Tables, is_seen: bool) -> None:
    with owned(deployed(VIEWS, tables.server), "mysql") as owner:
        owner.fill_all()
        if is_seen:
            tables.shorten()
            owner.pass_everything()
            assert [owner.state(view.id) for view in VIEWS] == ["halted", "filled"]
    if not is_seen:
        tables.shorten()
    tables.ask("INSERT INTO short.a VALUES (500, 'new')", "INSERT INTO short.b VALUES (500, 'new')")
    with owned(deployed(VIEWS, tables.server), "mysql") as owner:
        owner.pass_everything()
        assert owner.failure is None
        assert tables.is_right("b"), "the other view goes on"
        owner.own.life.states.move(Event.REPLAYED, [VIEWS[0].id])  # the replay, which has the pipeline taken again
    with owned(deployed(VIEWS, tables.server), "mysql") as owner:
        owner.fill_all()
        owner.pass_everything()
        assert [owner.state(view.id) for view in VIEWS] == ["filled", "filled"]
        assert tables.is_right("a")
        assert tables.is_right("b")


def test_a_table_of_somebody_else_in_the_place_of_one_view_halts_that_view_alone(tables: Tables) -> None:
    with owned(deployed(VIEWS, tables.server), "mysql") as owner:
        owner.fill_all()
    tables.ask("DROP TABLE viewtail.ix_a", "CREATE TABLE viewtail.ix_a (theirs INT)")
    tables.ask("INSERT INTO short.a VALUES (500, 'new')", "INSERT INTO short.b VALUES (500, 'new')")
    with owned(deployed(VIEWS, tables.server), "mysql") as owner:
        owner.pass_everything()
        assert [owner.state(view.id) for view in VIEWS] == ["halted", "filled"]
        assert "not made by viewtail" in (owner.own.life.states.read(VIEWS[0].id).reason or "")
        assert tables.is_right("b")
    tables.ask("DROP TABLE viewtail.ix_a")
    with owned(deployed(VIEWS, tables.server), "mysql") as owner:
        owner.own.life.states.move(Event.REPLAYED, [VIEWS[0].id])
    with owned(deployed(VIEWS, tables.server), "mysql") as owner:
        owner.fill_all()
        assert tables.is_right("a")
