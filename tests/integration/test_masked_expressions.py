"""Generated columns of masked ones, as real servers print their expressions."""

from __future__ import annotations

import pytest

from ingest.canonical.tables import describe
from stack import Server
from tests.support.asking import ask
from viewtail.changes.masks import Masks
from viewtail.servers.sessions import MySQLAddress, open_session

SCHEMA = "masked_expressions"


@pytest.mark.parametrize("of", ["mysql_server", pytest.param("mariadb_server", marks=pytest.mark.mariadb)])
def test_a_generated_column_is_masked_however_its_expression_is_written(
    of: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(of)
    ask(server, f"DROP DATABASE IF EXISTS {SCHEMA}")
    ask(server, f"CREATE DATABASE {SCHEMA}")
    ask(
        server,
        f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, Email VARCHAR(100) COMMENT '#PPI', plan VARCHAR(20), "
        "domain VARCHAR(100) AS (SUBSTRING_INDEX(EMAIL, '@', 1)), Ending VARCHAR(100) AS (UPPER(`eMail`)) STORED, "
        "short VARCHAR(9) AS (LEFT(ENDING, 9)), other VARCHAR(20) AS (LOWER(PLAN)))",
    )
    address = MySQLAddress(host=server.host, port=server.port, user="root", io_timeout_s=20)
    connection = open_session(address, role="source")
    table = describe(connection, SCHEMA, "user")
    connection.close()
    shown = {column.name: column.made_from for column in table.columns if column.is_generated}
    assert all(shown.values()), shown
    masked = Masks(secret=b"only this test has it").table(table, {}, [])
    assert {column.name for column in masked.columns if column.mask} == {"Email", "domain", "Ending", "short"}, shown
    ask(server, f"DROP DATABASE {SCHEMA}")
