"""What `contract check` takes for a form of a definition is one of MySQL's or MariaDB's, as their parsers say."""

from __future__ import annotations

import re

import pymysql
import pytest

from ingest.binlog.statements import plain
from stack import Server
from tests.unit.test_sql_forms import PRINTED, READ, UNREAD, statements_in
from viewtail.operations.sql_forms import why_unread

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]
_DEFINES = re.compile(r"(?:CREATE|ALTER)\s+(?:\w+\s+){0,3}(?:TABLE|INDEX)\b(?!.*\bVECTOR\b)")  # of newer ones
_NO_SYNTAX = (1064, 4161)  # the second: MariaDB, an unknown type


def takes(server: Server, statement: str) -> bool:
    """Whether its parser does; tables need not be there, but a database is to be selected."""
    connection = pymysql.connect(host="127.0.0.1", port=server.port, user="root", database="mysql")
    with connection, connection.cursor() as cursor:
        cursor.execute("SET @statement = %s", (statement,))
        try:
            cursor.execute("PREPARE asked FROM @statement")
        except pymysql.err.MySQLError as error:
            return error.args[0] not in _NO_SYNTAX
        return True


def test_a_definition_is_read_if_a_server_takes_its_form_and_only_then(
    mysql_server: Server, mariadb_server: Server
) -> None:
    """But for options that MariaDB leaves to plugins: each X=Y is one to its parser."""
    asked = [one for one in statements_in(READ) + statements_in(PRINTED) if _DEFINES.match(one)]
    asked += [line.split(" | ")[0] for line in statements_in(UNREAD) if _DEFINES.match(line)]
    assert len(asked) > 120
    wrong = []
    for statement in asked:
        why = why_unread(plain(statement), "geo")
        is_option = "is no option of a table" in why
        is_taken = takes(mysql_server, statement) or (not is_option and takes(mariadb_server, statement))
        if is_taken != (why == ""):
            wrong.append((statement, why))
    assert wrong == []
