"""A declared condition selects the rows that its text selects, on both servers."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pymysql
import pytest

from ingest.canonical import describe
from projectors.derived.conditions import condition_of
from stack import Server
from tests.support.asking import ask
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Table
from viewtail.servers.sessions import Connection, MySQLAddress, open_session

COLUMNS = """
    id INT PRIMARY KEY AUTO_INCREMENT, tiny TINYINT, big BIGINT UNSIGNED, flags BIT(3), yr YEAR, price DECIMAL(12,4),
    f FLOAT, d DOUBLE, ci VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci,
    bin VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, latin VARCHAR(20) CHARACTER SET latin1,
    fixed CHAR(9) CHARACTER SET utf8mb3, japanese VARCHAR(9) CHARACTER SET sjis, state ENUM('paid', 'Open', 'it''s'),
    marks SET('a', 'b', 'c'), raw VARBINARY(9), padded BINARY(4), day DATE, clock TIME(3), at DATETIME(6),
    stamp TIMESTAMP NULL, doc JSON, `key` INT, `we``ird %s col` INT
"""
VALUES = {
    "tiny": ["-1", "0", "1", "2", "127"],
    "big": ["0", "1", "18446744073709551615", "9007199254740993"],
    "flags": ["0", "1", "5"],
    "yr": ["0", "1999", "2024"],
    "price": ["-1.5000", "0", "0.1", "12.3400", "99999999.9999"],
    "f": ["0.1", "0.5", "-2", "16777217"],
    "d": ["0.1", "0.5", "-2", "9007199254740993", "1e300"],
    "ci": ["''", "'Paid'", "'paid'", "'paid '", "'päid'", "'o''clock'", r"'a\\b'", r"'a\nb'", "'100%'", "'%s'", "'世'"],
    "bin": ["''", "'Paid'", "'paid'", "'paid '", "'päid'", r"'\0'", "'\"'"],
    "latin": ["''", "'Paid'", "'paid'", "'päid'", "'€'"],
    "fixed": ["''", "'Paid'", "'paid'", "'世'"],
    "japanese": ["''", "'a'", "'世'", "'ア'"],
    "state": ["'paid'", "'Open'", "'it''s'"],
    "marks": ["''", "'a'", "'a,c'", "'a,b,c'"],
    "raw": ["''", "'abc'", "X'00ff'", "X'6100'"],
    "padded": ["''", "'abc'", "'abcd'", "X'00ff'"],
    "day": ["'0000-00-00'", "'2024-02-29'", "'1999-12-31'"],
    "clock": ["'-01:00:00'", "'00:00:00'", "'25:30:00.5'", "'838:59:59'"],
    "at": ["'0000-00-00'", "'2024-02-29 12:30:00.25'", "'2024-02-29'", "'1999-12-31 23:59:59'"],
    "stamp": ["'2024-02-29 12:30:00'", "'2024-02-29'", "'1999-12-31 23:59:59'"],
    "doc": ["'{}'", "'[1]'"],
    "key": ["1", "2"],
    "we`ird %s col": ["1", "2"],
}
CONSTANTS = {
    "tiny": ["-1", "0", "1", "+1", "(2)", "0.5", "-0.5", "true", "FALSE", "1000", ".5", "1."],
    "big": ["0", "1", "18446744073709551615", "18446744073709551616", "-1", "9007199254740992", "0.5"],
    "flags": ["0", "1", "5", "9"],
    "yr": ["0", "1999", "2024", "99"],
    "price": ["-1.5", "0.10000", "12", "12.34", "0.10000000001"],
    "f": ["0.1", "0.5", "-2", "16777217", "1e-1", "5E-1"],
    "d": ["0.1", "0.5", "-2", "9007199254740993", "1e300", "1e-1", "0.1000000000000000055511151231257827"],
    "ci": [*VALUES["ci"], '"PAID"', r"'it\'s'", "'\"'", '"it\'s"', r"'\%'", r"'\q'", r"'\0\Z\b\t\r'", "'a/*b*/'"],
    "bin": [*VALUES["bin"], '"PAID"'],
    "latin": [*VALUES["latin"], "'PÄID'"],
    "fixed": [*VALUES["fixed"], "'PAID'"],
    "japanese": VALUES["japanese"],
    "state": ["'paid'", "'PAID'", "'open'", "''", '"it\'s"'],
    "marks": ["''", "'a'", "'A,c'", "'c,a'"],
    "raw": ["''", "'abc'", "X'00ff'", "x'6100'", "0x00FF", "0xf", "'é'"],
    "padded": ["'abc'", "'abcd'", "X'00ff0000'", "X'00ff'"],
    "day": ["'0000-00-00'", "'2024-02-29'", "'1999-12-31'"],
    "clock": ["'-01:00:00'", "'00:00'", "'25:30:00.5'", "'838:59:59'"],
    "at": ["'0000-00-00'", "'2024-02-29 12:30:00.25'", "'2024-02-29'", "'2024-02-29 00:00'", "'1999-12-31 23:59:59'"],
    "stamp": ["'2024-02-29 12:30:00'", "'2024-02-29'", "'1999-12-31 23:59:59'", "'0000-00-00'"],
    "key": ["1"],
    "we`ird %s col": ["1"],
}
COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=", "<=>")


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def session(request: pytest.FixtureRequest) -> Iterator[Connection]:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    ask(server, "DROP DATABASE IF EXISTS conditions")
    ask(server, "CREATE DATABASE conditions")
    ask(server, f"CREATE TABLE conditions.types ({COLUMNS})")
    connection = open_session(MySQLAddress(host="127.0.0.1", port=server.port, user="root"), role="source")
    chance = random.Random(3)
    with connection, connection.cursor() as cursor:
        for _ in range(120):
            values = [chance.choice([*of, "NULL"]) for of in VALUES.values()]
            names = ", ".join(f"`{name.replace('`', '``')}`" for name in VALUES)
            cursor.execute(f"INSERT INTO conditions.types ({names}) VALUES ({', '.join(values)})", None)
        connection.commit()
        yield connection


def selected(session: Connection, where: str) -> list[int]:
    with session.cursor() as cursor:
        cursor.execute(f"SELECT id FROM conditions.types WHERE {where}")
        return [row[0] for row in cursor.fetchall()]


def test_each_comparison_selects_what_its_text_selects(session: Connection) -> None:
    table = describe(session, "conditions", "types")
    counts = {}
    for text in comparisons():
        counts[text] = len(selected(session, text))
        assert selected(session, text) == selected(session, condition_of(text, table).sql), text
    assert sum(0 < count < 120 for count in counts.values()) > len(counts) / 3


def comparisons() -> Iterator[str]:
    for name, constants in CONSTANTS.items():
        column = f"`{name.replace('`', '``')}`" if name in ("key", "we`ird %s col") else name
        for constant in constants:
            yield from (f"{column} {operator} {constant}" for operator in COMPARISONS)
            yield f"{constant} < {column}"
        yield f"{column} IN ({', '.join(constants)})"
        yield f"{column} not in ({', '.join(constants[:2])})"
        yield f"{column} BETWEEN {constants[0]} AND {constants[-1]}"
        yield f"{column} NOT BETWEEN {constants[0]} AND {constants[-1]}"
        yield f"{column} IS NULL"
        yield f"{column} is not null"
    yield "doc IS NULL"


def test_conditions_of_several_parts_select_what_their_text_selects(session: Connection) -> None:
    table = describe(session, "conditions", "types")
    chance = random.Random(11)
    simple = [text for text in comparisons() if not text.endswith(("NULL", "null"))] + [
        "price IS NULL",
        "ci IS NOT NULL",
    ]
    for _ in range(300):
        text = composed(chance, simple, 4)
        assert selected(session, text) == selected(session, condition_of(text, table).sql), text


def composed(chance: random.Random, simple: list[str], depth: int) -> str:
    part = chance.choice(("simple", "and", "or", "not", "parentheses")) if depth else "simple"
    inner = (composed(chance, simple, depth - 1) for _ in range(2))
    match part:
        case "simple":
            return chance.choice(simple)
        case "not":
            return f"NOT {next(inner)}"
        case "parentheses":
            return f"({next(inner)})"
    return chance.choice((f" {part.upper()} ", "&&" if part == "and" else "||")).join(inner)


def test_what_the_server_itself_would_not_compare_is_refused(session: Connection) -> None:
    """A constant that the column's character set cannot hold."""
    table: Table = describe(session, "conditions", "types")
    for text in ("latin = '世'", "japanese = '한'", "latin IN ('a', '世')"):
        with pytest.raises(DeclarationError, match="which cannot hold"):
            condition_of(text, table)
        with pytest.raises(pymysql.err.OperationalError, match=r"Illegal mix|Cannot convert"):
            selected(session, text)
