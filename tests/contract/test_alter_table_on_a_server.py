"""Which ALTER TABLE halts a table's views, with the texts, modes and refusals of a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from ingest.limits import Limits
from ingest.read_ahead import ReadAhead
from stack import Server
from viewtail.changes.batches import Followed
from viewtail.servers.sessions import MySQLAddress, open_session

SCHEMA = "alter_contract"
FOLLOWED = ("id", "email", "price")


@pytest.fixture
def session(mysql_server: Server) -> Iterator[pymysql.Connection[Any]]:
    connection = pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root", autocommit=True)
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {SCHEMA}")
        cursor.execute(f"CREATE DATABASE {SCHEMA}")
        cursor.execute(f"USE {SCHEMA}")
        cursor.execute(
            "CREATE TABLE user (id INT PRIMARY KEY, email VARCHAR(40), price DECIMAL(10,2), unused VARCHAR(40))"
        )
        cursor.execute("INSERT INTO user VALUES (1, 'a@example.com', 1.5, 'x')")
    yield connection
    connection.close()


def halts_of(server: Server, session: pymysql.Connection[Any], statements: list[str]) -> list[str]:
    """The reasons of the halts that come until the row behind the statements does, or that one does not come."""
    address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
    described = open_session(address, role="source")
    tables = {}
    for name in ("user", "done"):
        with session.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS done (id INT PRIMARY KEY)")
        columns = FOLLOWED if name == "user" else ("id",)
        tables[SCHEMA, name] = Followed(describe(described, SCHEMA, name), columns)
    described.close()
    source = BinlogSource(address, tables, watermark_schema="viewtail", own_schemas=frozenset({"viewtail"}), epoch=1)
    begin = source.now()
    with session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        cursor.execute("INSERT INTO done VALUES (1)")
    reasons: list[str] = []
    with ReadAhead(source, begin, Limits()) as batches:
        for batch in batches:
            if batch is None:
                continue
            reasons += [halt.reason for halt in batch.halts]
            if any(change.followed is tables[SCHEMA, "done"] for change in batch.changes):
                break
    return reasons


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE user ADD COLUMN more INT, ADD INDEX by_email (email)"],
        ["ALTER TABLE user MODIFY email VARCHAR(60)"],
        ["ALTER TABLE user MODIFY email VARCHAR(60), ALGORITHM=INPLACE"],
        ["SET SESSION sql_mode = ''", "ALTER TABLE user MODIFY email VARCHAR(60), ALGORITHM=INPLACE"],
        ["ALTER TABLE user RENAME COLUMN unused TO other", "ALTER TABLE user DROP COLUMN other"],
        ["ALTER TABLE user MODIFY price DECIMAL(12,2)"],
        ["ALTER TABLE user MODIFY id BIGINT, COMMENT 'DROP COLUMN email'"],
        ["CREATE TABLE copied SELECT * FROM user", "DROP TABLE copied"],
    ],
)
def test_what_changes_no_value_halts_nothing(
    statements: list[str], mysql_server: Server, session: pymysql.Connection[Any]
) -> None:
    assert halts_of(mysql_server, session, statements) == []


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE user DROP COLUMN email, ADD COLUMN email VARCHAR(40)"],
        ["SET SESSION sql_mode = ''", "ALTER TABLE user MODIFY email VARCHAR(60)"],
        ["SET SESSION sql_mode = ''", "ALTER TABLE user MODIFY email VARCHAR(4)"],
        ["ALTER TABLE user MODIFY email VARCHAR(20)"],
        ["ALTER TABLE user MODIFY price DECIMAL(12,3)"],
        ["ALTER TABLE user MODIFY price DECIMAL(9,2)"],
        ["ALTER TABLE user RENAME COLUMN email TO unused, RENAME COLUMN unused TO email"],
        ["ALTER TABLE user CONVERT TO CHARACTER SET latin1"],
        [
            "ALTER TABLE user DROP COLUMN email",
            "ALTER TABLE user ADD COLUMN email VARCHAR(40) AS (unused) STORED",
        ],
        ["/* begin cleanup */ DROP TABLE user -- START TRANSACTION"],
        ["ALTER TABLE user DROP PRIMARY KEY, ADD PRIMARY KEY (id, email)"],
        ["SET SESSION sql_mode = 'ANSI_QUOTES'", 'ALTER TABLE "user" DROP COLUMN "email"'],
        [
            "SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'",
            r"ALTER TABLE user COMMENT '\', DROP COLUMN email -- '",
        ],
    ],
)
def test_what_may_change_values_unseen_halts(
    statements: list[str], mysql_server: Server, session: pymysql.Connection[Any]
) -> None:
    (reason, *_) = halts_of(mysql_server, session, statements)
    assert f"{SCHEMA}.user" in reason and "viewtail replay VIEW" in reason


@pytest.mark.parametrize("algorithm", ["INPLACE", "INSTANT"])
@pytest.mark.parametrize(
    "definition",
    ["email VARCHAR(4)", "email CHAR(40)", "email VARCHAR(40) CHARACTER SET latin1", "price DECIMAL(10,1)", "id YEAR",
     "computed INT AS (id + 2) STORED", "email VARCHAR(40) NOT NULL"],
)  # fmt: skip
def test_a_server_that_is_told_to_convert_nothing_refuses_to(
    definition: str, algorithm: str, session: pymysql.Connection[Any]
) -> None:
    with session.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute("ALTER TABLE user ADD COLUMN computed INT AS (id + 1) STORED")
        with pytest.raises(pymysql.err.MySQLError, match="is not supported"):
            cursor.execute(f"ALTER TABLE user MODIFY {definition}, ALGORITHM={algorithm}")
