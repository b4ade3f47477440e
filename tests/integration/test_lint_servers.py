"""`viewtail lint` over real servers: what they show is read, each rule's examples run there, and rights are named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest

from offsets import schema
from stack import Server
from viewtail.operations.lint import live
from viewtail.operations.lint.choosing import RULES, Chosen
from viewtail.operations.lint.linting import Linter, SqlFile
from viewtail.operations.lint.rules import Rule
from viewtail.operations.lint.words import RESERVED
from viewtail.operations.sql_files import statements
from viewtail.servers.sessions import MySQLAddress, open_session

SCHEMA = "linted"
# Tables that examples name beside their own, by the rule; they are not looked at.
BESIDE = {
    "VT303": ["CREATE TABLE customer (id INT PRIMARY KEY)"],
    "VT305": ["CREATE TABLE customer (id INT PRIMARY KEY)", "CREATE TABLE audit (customer_id INT)"],
    "VT403": ["CREATE TABLE invoice_dropped (id INT PRIMARY KEY)"],
    "VT409": ["CREATE TABLE supplier (id INT PRIMARY KEY)"],
    "VT504": ["CREATE TABLE invoice (id INT PRIMARY KEY)"],
}
TYPES = """CREATE TABLE every_type (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'It''s a "key" \\\\ `x`, KEY (y)',
  a TINYINT(1) UNSIGNED ZEROFILL DEFAULT '1', b BIT(8) DEFAULT b'101', c DECIMAL(10,3) DEFAULT -1.5,
  d DOUBLE(9,2), e FLOAT UNSIGNED, f YEAR DEFAULT 2001, g DATE DEFAULT '2001-01-01', h TIME(3),
  i DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), j TIMESTAMP NULL,
  k CHAR(3) CHARACTER SET latin1 DEFAULT 'a''b', l VARCHAR(200) COLLATE utf8mb4_bin DEFAULT 'DEFAULT NULL',
  m TEXT, n LONGBLOB, o VARBINARY(30), p ENUM('a','b,c','d''e',')') DEFAULT 'a', q SET('x','y'), r JSON,
  s POINT NOT NULL, t INT GENERATED ALWAYS AS (f + 1) VIRTUAL, u INT AS (f + 2) STORED, `we``ird` INT DEFAULT 0x10,
  PRIMARY KEY (id), UNIQUE KEY one_key (a, k(2)), KEY two_idx (l(10), m(20)), FULLTEXT KEY three (m),
  SPATIAL KEY four (s), KEY five (g DESC), CONSTRAINT c_check CHECK (c > -100)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='every ''type'''"""


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture
def connection(server: Server) -> Iterator[pymysql.Connection[Any]]:
    with closing(_open(server)) as connection:
        _run(connection, f"DROP DATABASE IF EXISTS {SCHEMA}", f"CREATE DATABASE {SCHEMA} CHARACTER SET utf8mb4")
        yield connection
        _run(connection, f"DROP DATABASE {SCHEMA}")


def _open(server: Server, user: str = "root") -> pymysql.Connection[Any]:
    return open_session(MySQLAddress(host="127.0.0.1", port=server.port, user=user), role="source")


def _run(connection: pymysql.Connection[Any], *sql: str) -> None:
    with connection.cursor() as cursor:
        for statement in sql:
            cursor.execute(statement)
            cursor.fetchall()
    connection.commit()


def _run_file(connection: pymysql.Connection[Any], text: str) -> None:
    _run(connection, f"USE {SCHEMA}", *(statement.text for statement in statements(text)))


def _live(connection: pymysql.Connection[Any]) -> Linter:
    linter = Linter(Chosen(), SCHEMA)
    live.define(linter, connection, SCHEMA, is_judged=True)
    return linter


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
@pytest.mark.parametrize("which", ["bad", "good"])
def test_a_server_takes_each_example_and_shows_what_the_rule_then_finds(
    connection: pymysql.Connection[Any], rule: Rule, which: str
) -> None:
    text: str = getattr(rule, which)
    _run_file(connection, ";".join(BESIDE.get(rule.code, ())))
    beside = {statement.split()[2] for statement in BESIDE.get(rule.code, ())}
    if "UUID_TO_BIN" in text and "MariaDB" in connection.get_server_info():
        pytest.skip("MariaDB has no UUID_TO_BIN")
    _run_file(connection, rule.given)
    _run_file(connection, text)
    if rule.is_of_statements:
        return
    linter = _live(connection)
    assert linter.unread == []
    found = {finding.code for finding in linter.findings() if finding.of.split(".")[1] not in beside}
    assert found == ({rule.code, *rule.along} if which == "bad" else set())


def test_every_type_and_key_that_a_server_shows_is_read_as_it_was_written(
    connection: pymysql.Connection[Any],
) -> None:
    _run_file(connection, TYPES)
    linter = Linter(Chosen(), SCHEMA)
    linter.define(SqlFile(name="written.sql", text=TYPES), is_judged=True)
    shown = _live(connection)
    assert (linter.unread, shown.unread) == ([], [])
    (before,), (after,) = linter.schema, shown.schema
    assert [column.name for column in after.columns] == [column.name for column in before.columns]
    for one, other in zip(before.columns, after.columns, strict=True):
        names = (one.name, one.comment, one.is_nullable, one.is_auto_increment, one.is_generated, one.type.is_boolean)
        assert names == (
            *(other.name, other.comment, other.is_nullable, other.is_auto_increment, other.is_generated),
            other.type.is_boolean,
        )
        assert (one.default is None) == (other.default is None), one.name
    assert {(index.name, index.kind, index.parts) for index in after.indexes} == {
        (index.name, index.kind, index.parts) for index in before.indexes
    }
    assert after.options["COMMENT"] == "every 'type'"


def test_programs_are_found_and_rights_that_hide_them_are_named(
    connection: pymysql.Connection[Any], server: Server
) -> None:
    _run(
        connection,
        f"USE {SCHEMA}",
        "CREATE TABLE sale (id INT PRIMARY KEY COMMENT 'Key') COMMENT 'Sales'",
        "CREATE TRIGGER t BEFORE INSERT ON sale FOR EACH ROW SET NEW.id = NEW.id",
        "CREATE PROCEDURE p() SELECT 1",
        "CREATE FUNCTION f() RETURNS INT DETERMINISTIC NO SQL RETURN 1",
        "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO SELECT 1",
        "CREATE OR REPLACE VIEW v AS SELECT * FROM sale",
        "DROP USER IF EXISTS reader",
        "CREATE USER reader",
        f"GRANT SELECT ON {SCHEMA}.* TO reader",
    )
    assert {(finding.code, finding.of, finding.why) for finding in _live(connection).findings()} == {
        ("VT305", f"{SCHEMA}.{name}", kind)
        for name, kind in {
            "t": "a trigger", "p": "a stored procedure", "f": "a stored function", "e": "an event",
        }.items()
    }  # fmt: skip
    assert [*live.unseen(connection, SCHEMA)] == []
    with closing(_open(server, "reader")) as reader:
        hidden = [*live.unseen(reader, SCHEMA)]
        _live(reader)
    assert [line.split(" of ")[0] for line in hidden] == ["triggers", "procedures and functions", "events"]
    assert all("GRANT" in line and SCHEMA in line for line in hidden)


@pytest.mark.mysql
def test_the_reserved_words_are_those_of_the_server(mysql_server: Server) -> None:
    with closing(_open(mysql_server)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT word FROM information_schema.keywords WHERE reserved = 1")
        reserved = {word.lower() for (word,) in cursor.fetchall()}
    assert reserved <= RESERVED, sorted(reserved - RESERVED)
    assert len(RESERVED - reserved) < 10, sorted(RESERVED - reserved)


def test_viewtails_own_tables_pass_as_a_server_shows_them(connection: pymysql.Connection[Any], server: Server) -> None:
    address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
    schema.create(connection, address, SCHEMA, (*schema.STORE_TABLES, *schema.SOURCE_TABLES), "store")
    linter = _live(connection)
    found = {f"{finding.code} {finding.of.removeprefix(f'{SCHEMA}.')}" for finding in linter.findings()}
    # What comments in offsets/schema.py silence, which no server keeps.
    assert found == {
        "VT103 view.columns", "VT103 view.places", "VT106 rebuild.kept_until", "VT106 schema_version.since",
        "VT108 watermark.name_idx", "VT302 pipeline_member", "VT302 rebuild", "VT302 watermark_passed",
    }  # fmt: skip
