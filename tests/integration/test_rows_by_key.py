"""Rows by many keys at once: a list of keys finds what one comparison after another finds, and by the index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from ingest.canonical import describe
from ingest.canonical.rows import fetch_rows, select_list
from stack import Server
from tests.support.asking import ask
from viewtail.changes.batches import Row
from viewtail.changes.tables import Column
from viewtail.servers.literals import _own_text, one_of, rows_with
from viewtail.servers.sessions import Connection, MySQLAddress, open_session, quote

ROWS = 20_000
KINDS = {
    "number": ("BIGINT UNSIGNED", "n + 18446744073709500000"),
    "folded": (
        "VARCHAR(40) COLLATE utf8mb4_unicode_ci",
        "CONCAT(IF(n % 2, 'Straße ', 'STRASSE '), n DIV 4, IF(n % 3, '', ' '))",
    ),
    "exact": ("VARCHAR(40) COLLATE utf8mb4_bin", "CONCAT(IF(n % 2, 'a', 'A'), n DIV 4, ' \\'\\\\ ')"),
    "western": ("CHAR(40) CHARSET latin1", "CONCAT('é ', n DIV 2)"),
    "raw": ("VARBINARY(9)", "UNHEX(HEX(n))"),
    "padded": ("BINARY(9)", "UNHEX(HEX(n))"),
    "amount": ("DECIMAL(20,4)", "(n - 10000) / 8"),
    "day": ("DATE", "'1999-12-31' + INTERVAL n DAY"),
    "moment": ("DATETIME(6)", "'1999-12-31 23:59:59.999999' + INTERVAL n * 17 MICROSECOND"),
    "second": ("DATETIME", "'1999-12-31 23:59:59' + INTERVAL n SECOND"),
    "stamp": ("TIMESTAMP(3)", "'2009-12-31 23:59:59.987' + INTERVAL n * 1000 MICROSECOND"),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)],
)
def session(request: pytest.FixtureRequest) -> Iterator[Connection]:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    ask(server, "DROP DATABASE IF EXISTS keyed")
    ask(server, "CREATE DATABASE keyed CHARACTER SET utf8mb4")
    columns = ", ".join(
        f"{name} {declared} NOT NULL, KEY ({name}), KEY ({name}, part)" for name, (declared, _) in KINDS.items()
    )
    ask(server, f"CREATE TABLE keyed.row (id INT PRIMARY KEY, part INT NOT NULL, {columns}, note CHAR(99) NOT NULL)")
    digits = " UNION ALL ".join(f"SELECT {digit} AS n" for digit in range(10))
    values = ", ".join(value for _, value in KINDS.values())
    ask(
        server,
        f"INSERT INTO keyed.row SELECT n, n % 3, {values}, '' FROM (SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n + "
        f"10000 * e.n AS n FROM ({digits}) a, ({digits}) b, ({digits}) c, ({digits}) d, ({digits}) e) every "
        f"WHERE n < {ROWS}",
    )
    ask(server, "ANALYZE TABLE keyed.row")
    with open_session(MySQLAddress(host="127.0.0.1", port=server.port, user="root"), role="source") as opened:
        yield opened


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_a_list_of_keys_finds_what_single_comparisons_find_by_the_index(
    session: Connection, name: str, is_alone: bool
) -> None:
    table = describe(session, "keyed", "row")
    names = [name] if is_alone else [name, "part"]
    columns = [column for of in names if (column := table.column(of)) is not None]
    keys = asked(session, columns, "id % 97 = 5 OR id > 19950")
    ids = [column for column in table.columns if column.name == "id"]
    found = asked(session, ids, rows_with(columns, keys))
    assert found == one_by_one(session, columns, keys)
    assert len(found) >= len(keys) > 200
    if all(column.charset in (None, "utf8mb4") for column in columns):
        assert asked(session, ids, one_of(columns, keys)) == found
    many = asked(session, columns, "id % 16 = 3")  # MariaDB joins with a list that is longer than a thousand
    assert asked(session, ids, rows_with(columns, many)) == one_by_one(session, columns, many)
    few = keys[:20]
    assert read(session, rows_with(columns, few)) < 40 * len(few), rows_with(columns, few[:3])


def one_by_one(session: Connection, columns: Sequence[Column], keys: Sequence[Row]) -> list[Row]:
    ids = [column for column in describe(session, "keyed", "row").columns if column.name == "id"]
    rows: set[Row] = set()
    for at in range(0, len(keys), 50):
        rows.update(asked(session, ids, " OR ".join(f"({_equal(columns, key)})" for key in keys[at : at + 50])))
    return sorted(rows)


def _equal(columns: Sequence[Column], key: Row) -> str:
    return " AND ".join(f"{quote(c.name)} = {_own_text(v, c)}" for c, v in zip(columns, key, strict=True))


def asked(session: Connection, columns: Sequence[Column], where: str) -> list[Row]:
    return fetch_rows(session, f"SELECT {select_list(columns)} FROM keyed.row WHERE {where} ORDER BY id", columns)


def read(session: Connection, where: str) -> int:
    """How many rows the server looked at."""

    def count() -> int:
        with session.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler\\_read\\_%'")
            return sum(int(value) for _, value in cursor.fetchall())

    before = count()
    with session.cursor() as cursor:
        cursor.execute(f"SELECT note FROM keyed.row WHERE {where}")
        cursor.fetchall()
    return count() - before - 40
