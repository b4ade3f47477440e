"""A % in a quoted name or text of a statement is a %; placeholders stand outside quotes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from viewtail.servers.sessions import PlaceholderCursor, quote

ROOT = Path(__file__).parents[2]
ROOMS = ("offsets", "ingest", "projectors", "viewtail")
NASTY = ("50%", "%s", "%(view)s", "%%", "a`b", "it's", 'say "hi"', "back\\slash", "{table}", "ä ☃")


class Connection:
    """As much of a session as a cursor needs; it keeps what it is sent."""

    encoding = "utf8"

    def __init__(self) -> None:
        self.sent: list[str] = []

    def query(self, statement: str | bytes | bytearray) -> None:
        self.sent.append(statement if isinstance(statement, str) else bytes(statement).decode())

    def escape(self, value: Any, mapping: Any = None) -> str:
        return pymysql.converters.escape_item(value, "utf8", mapping)

    literal = escape

    def next_result(self, **_: Any) -> bool:
        return False

    _result = SimpleNamespace(affected_rows=1, description=None, insert_id=0, rows=(), warning_count=0, has_next=False)


def sent(statement: str, arguments: Any, *, many: bool = False) -> list[str]:
    connection: Any = Connection()
    cursor = PlaceholderCursor(connection)
    if many:
        cursor.executemany(statement, arguments)
    else:
        cursor.execute(statement, arguments)
    return list(connection.sent)


@pytest.mark.parametrize("name", NASTY)
def test_a_name_is_sent_as_it_is_with_arguments_without_and_with_none_of_them(name: str) -> None:
    table = quote("shop", name)
    assert sent(f"SELECT 1 FROM {table}", None) == [f"SELECT 1 FROM {table}"]
    assert sent(f"SELECT 1 FROM {table}", ()) == [f"SELECT 1 FROM {table}"]
    assert sent(f"SELECT 1 FROM {table} WHERE {table} = %s", (7,)) == [f"SELECT 1 FROM {table} WHERE {table} = 7"]
    assert sent(f"DELETE FROM {table} WHERE a = %(b)s", {"b": "%s"}) == [f"DELETE FROM {table} WHERE a = '%s'"]


@pytest.mark.parametrize("name", NASTY)
def test_a_name_is_sent_as_it_is_where_many_rows_make_one_insert_and_where_they_make_many_statements(name: str) -> None:
    table = quote(name)
    insert = f"INSERT INTO {table} (a, b) VALUES (%s, %s) ON DUPLICATE KEY UPDATE {table} = 1"
    (one,) = sent(insert, [(1, "%"), (2, "%%")], many=True)
    assert one.startswith(f"INSERT INTO {table} (a, b) VALUES")
    assert "(1,'%')" in one.replace(", ", ",") and "(2,'%%')" in one.replace(", ", ",")
    assert one.endswith(f"ON DUPLICATE KEY UPDATE {table} = 1")
    assert sent(f"UPDATE {table} SET a = %s", [(1,), (2,)], many=True) == [
        f"UPDATE {table} SET a = 1",
        f"UPDATE {table} SET a = 2",
    ]


def test_a_text_is_sent_as_it_is() -> None:
    texts_only = r"""SELECT DATE_FORMAT(a, '%Y'), 'it''s %s', 'it\'s %', "%s", '`' FROM t"""
    statement = f"{texts_only} WHERE c LIKE '%x%' AND b = %s"
    assert sent(statement, (5,)) == [statement.replace("b = %s", "b = 5")]


def test_every_session_is_opened_where_its_cursors_are_these() -> None:
    opening = [where for where, text in sources() if re.search(r"pymysql\.connect\(|pymysql\.Connection\(", text)]
    assert opening == ["viewtail/servers/sessions.py"]


def test_no_statement_doubles_a_percent_sign_in_quotes() -> None:
    """It would be sent doubled: what PyMySQL's own cursor asks for, where there are arguments."""
    doubled = re.compile(r"'[^']*%%[^']*'|`[^`]*%%[^`]*`")
    found = [f"{where}: {text}" for where, module in sources() for text in texts(module) if doubled.search(text)]
    assert found == []


def sources() -> Iterator[tuple[str, str]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


def texts(module: str) -> Iterator[str]:
    """Its string literals, those of f-strings piece by piece."""
    for node in ast.walk(ast.parse(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
