"""Statements as clients write them: their names are found in whatever character set and case."""

from __future__ import annotations

import pymysql
import pytest

from projectors.stores.index_tables.views import IndexTable
from projectors.views import Entity
from stack import Server
from tests.support.asking import ask
from tests.support.pipelines import deployed, owned


@pytest.fixture(params=["mysql_server", "mariadb_server"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    ask(found, "DROP DATABASE IF EXISTS viewtail")
    return found


@pytest.mark.parametrize(
    ("charset", "schema", "name"),
    [
        ("latin1", "names", "größe"),
        ("sjis", "names", "表"),  # whose second byte is a backslash
        ("cp1251", "names", "товар"),
        ("utf8mb4", "ΟΔΟΣ", "user"),  # whose last letter is another in lower case where a letter follows it
    ],
)
def test_a_truncate_is_recognised_in_the_character_set_of_its_session(
    charset: str, schema: str, name: str, server: Server
) -> None:
    ask(server, f"DROP DATABASE IF EXISTS {schema}")
    ask(server, f"CREATE DATABASE {schema}")
    ask(server, f"CREATE TABLE {schema}.{name} (id INT PRIMARY KEY, value VARCHAR(20))")
    ask(server, f"INSERT INTO {schema}.{name} VALUES (1, 'one'), (2, 'two')")
    view = IndexTable("ix_name", Entity(f"{schema}.{name}"), value="value")
    with owned(deployed([view], server), "mysql") as owner:
        owner.fill_all()
        client = pymysql.connect(host="127.0.0.1", port=server.port, user="root", charset=charset)
        with client.cursor() as cursor:
            cursor.execute(f"TRUNCATE TABLE `{schema}`.`{name}`")
        client.close()
        ask(server, f"INSERT INTO {schema}.{name} VALUES (3, 'three')")
        owner.pass_everything()
        assert owner.state(view.id) == "filled"
        assert ask(server, "SELECT id FROM viewtail.ix_name WHERE value IS NOT NULL") == [(3,)]


def test_a_column_is_recognised_in_the_character_set_of_its_session(server: Server) -> None:
    """Put back before the next row, it looks as before."""
    ask(server, "DROP DATABASE IF EXISTS names")
    ask(server, "CREATE DATABASE names")
    ask(server, "CREATE TABLE names.item (id INT PRIMARY KEY, größe INT)")
    ask(server, "INSERT INTO names.item VALUES (1, 1)")
    view = IndexTable("ix_name", Entity("names.item"), value="größe")
    with owned(deployed([view], server), "mysql") as owner:
        owner.fill_all()
        client = pymysql.connect(host="127.0.0.1", port=server.port, user="root", charset="latin1")
        with client.cursor() as cursor:
            cursor.execute("ALTER TABLE names.item RENAME COLUMN größe TO alt")
            cursor.execute("ALTER TABLE names.item ADD COLUMN größe INT NOT NULL DEFAULT 7")
        client.close()
        owner.pass_everything()
        record = owner.own.life.states.read(view.id)
        assert record.state == "halted" and "column größe was renamed to alt" in (record.reason or "")


def test_a_statement_is_read_in_every_character_set_that_a_client_may_have(server: Server) -> None:
    ask(server, "DROP DATABASE IF EXISTS names")
    ask(server, "CREATE DATABASE names")
    ask(server, "CREATE TABLE names.item (id INT PRIMARY KEY, value INT)")
    view = IndexTable("ix_name", Entity("names.item"), value="value")
    sets = "SELECT character_set_name FROM information_schema.character_sets"
    usable = [name for (name,) in ask(server, sets) if not name.startswith(("ucs2", "utf16", "utf32"))]
    with owned(deployed([view], server), "mysql") as owner:
        owner.fill_all()
        for number, charset in enumerate(usable):
            ask(server, f"INSERT INTO names.item VALUES ({number}, 1)")
            client = pymysql.connect(host="127.0.0.1", port=server.port, user="root")
            with client.cursor() as cursor:
                cursor.execute(f"SET NAMES {charset}")
                cursor.execute("TRUNCATE TABLE `names`.`item`")
            client.close()
            owner.pass_everything()
            shown = ask(server, "SELECT id FROM viewtail.ix_name WHERE value IS NOT NULL")
            assert (charset, owner.state(view.id), shown) == (charset, "filled", [])
