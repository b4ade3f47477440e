"""The decoder against the server's own answer, over every column type, with values that look for trouble.

Every row image of every insert, update and delete that a real server logged is compared with what
`fetch_rows` read between the statements, and that with a plain SELECT through stock PyMySQL. The seed is
printed; VIEWTAIL_TEST_SEED sets it. Each family of types is in a row format of its own, which changes from run to run;
`make differential` takes every family in every row format, 500,000 row changes (VIEWTAIL_TEST_ROWS)."""

from __future__ import annotations

import hmac
import os
import random
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pymysql
import pytest

from ingest.binlog.row_decoder import Decoder, compile_decoder
from ingest.binlog.table_map import TableMap, parse
from ingest.canonical import describe, fetch_rows, select_list
from stack.server import Server
from tests.support.binlog_file import (
    DELETE_ROWS,
    TABLE_MAP,
    UPDATE_ROWS,
    WRITE_ROWS,
    events,
    row_image,
    table_id,
)
from tests.support.random_rows import SampleTable, sample_tables
from viewtail.changes.batches import Followed, Row
from viewtail.changes.masks import masked
from viewtail.changes.tables import Column, Kind, Table
from viewtail.servers.sessions import MySQLAddress, open_session

pytestmark = pytest.mark.mysql

ROW_CHANGES = int(os.environ.get("VIEWTAIL_TEST_ROWS", "20000"))
ROW_FORMATS = ("DYNAMIC", "COMPACT", "REDUNDANT", "COMPRESSED")
IS_EVERY_FORMAT = ROW_CHANGES > 100_000
ROWS_A_STATEMENT = 130
_TABLES = len(sample_tables()) * (len(ROW_FORMATS) if IS_EVERY_FORMAT else 1)
# Inserted, updated, and half of them deleted; whole statements.
ROWS_A_TABLE = -(-ROW_CHANGES * 2 // (5 * _TABLES * ROWS_A_STATEMENT)) * ROWS_A_STATEMENT
SCHEMA = "differential"
SECRET = b"of the differential test"

Rows = dict[int, Row]


@pytest.fixture(scope="module")
def seed() -> int:
    chosen = int(os.environ.get("VIEWTAIL_TEST_SEED") or random.randrange(1 << 32))
    print(f"VIEWTAIL_TEST_SEED={chosen}")
    return chosen


@pytest.fixture(scope="module")
def session(mysql_server: Server) -> Iterator[pymysql.Connection[Any]]:
    connection = open_session(MySQLAddress(host=mysql_server.host, port=mysql_server.port, user="root"), role="source")
    connection.autocommit(True)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {SCHEMA}")
        cursor.execute(f"USE {SCHEMA}")
        cursor.execute("SET sql_mode = '', innodb_strict_mode = OFF")
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def stock(mysql_server: Server) -> Iterator[pymysql.Connection[Any]]:
    # Without converters and Unicode PyMySQL gives the bytes that the server sent.
    connection: pymysql.Connection[Any] = pymysql.connect(
        host=mysql_server.host, port=mysql_server.port, user="root", database=SCHEMA, charset="utf8mb4", conv={},
        use_unicode=False, init_command="SET time_zone='+00:00'", autocommit=True,
    )  # fmt: skip
    yield connection
    connection.close()


@pytest.mark.parametrize("turn", range(len(ROW_FORMATS) if IS_EVERY_FORMAT else 1))
@pytest.mark.parametrize("sample", sample_tables(), ids=lambda sample: str(sample.name))
def test_every_row_image_decodes_to_what_the_server_answers(
    sample: SampleTable,
    turn: int,
    seed: int,
    mysql_server: Server,
    session: pymysql.Connection[Any],
    stock: pymysql.Connection[Any],
) -> None:
    row_format = ROW_FORMATS[(seed + len(sample.name) + turn) % len(ROW_FORMATS)]
    sample = replace(sample, name=f"{sample.name}_{row_format.lower()}")
    rng = random.Random(f"{seed} {sample.name}")
    file, start = _binlog_end(session)
    with session.cursor() as cursor:
        cursor.execute(sample.create_statement(row_format))
    table = describe(session, SCHEMA, sample.name)
    readable = {"id"} | {column.name for column in sample.samples if column.is_readable}
    followed = Followed(table, tuple(column.name for column in table.columns if column.name in readable))
    columns = [column for column in table.columns if column.name in readable]

    _write(session, sample, rng, on_duplicate="")
    inserted = _selected(session, stock, table, columns)
    _write(session, sample, rng, on_duplicate=_update_all(sample))
    updated = _selected(session, stock, table, columns)
    with session.cursor() as cursor:
        cursor.execute(f"DELETE FROM `{sample.name}` WHERE id % 2 = 0")
    deleted = {number: row for number, row in updated.items() if number % 2 == 0}
    assert len(inserted) == len(updated) == 2 * len(deleted) == ROWS_A_TABLE

    narrow = _narrowed(followed, rng)
    for chosen in (followed, narrow):
        at = [followed.columns.index(name) for name in chosen.columns]
        seen = _decoded(mysql_server, file, start, sample.name, chosen)
        # An update to the same values is not logged; there are few of them.
        assert len(seen[WRITE_ROWS]) == len(inserted) and len(seen[DELETE_ROWS]) == len(deleted)
        assert len(seen[UPDATE_ROWS]) > 1.9 * ROWS_A_TABLE
        _assert_same(seen[WRITE_ROWS], _narrow(inserted, at), chosen)
        _assert_same(seen[UPDATE_ROWS][::2], _narrow(inserted, at), chosen)
        _assert_same(seen[UPDATE_ROWS][1::2], _narrow(updated, at), chosen)
        _assert_same(seen[DELETE_ROWS], _narrow(deleted, at), chosen)
    hidden = _masked(followed, rng)
    shown = {number: _hidden(row, hidden) for number, row in updated.items()}
    seen_hidden = _decoded(mysql_server, file, start, sample.name, hidden)
    _assert_same(seen_hidden[UPDATE_ROWS][1::2], shown, hidden)
    _assert_same(seen_hidden[DELETE_ROWS], shown, hidden)
    hidden_columns = [column for column in hidden.table.columns if column.name in hidden.columns]
    statement = f"SELECT {select_list(hidden_columns)} FROM {SCHEMA}.`{sample.name}`"
    _assert_same(fetch_rows(session, statement, hidden_columns), shown, hidden)
    with session.cursor() as cursor:
        cursor.execute("SELECT row_format FROM information_schema.tables WHERE table_name = %s", (sample.name,))
        assert (cursor.fetchone() or "")[0].upper() == row_format
        cursor.execute(f"DROP TABLE `{sample.name}`")
    changes = sum(len(rows) // (2 if kind == UPDATE_ROWS else 1) for kind, rows in seen.items())
    print(f"{sample.name}: {changes:,} row changes of {len(columns)} columns are the server's")


# --- Writing ---


def _write(session: pymysql.Connection[Any], sample: SampleTable, rng: random.Random, on_duplicate: str) -> None:
    with session.cursor() as cursor:
        for first in range(0, ROWS_A_TABLE, ROWS_A_STATEMENT):
            rows = ", ".join(sample.row(first + number, rng) for number in range(ROWS_A_STATEMENT))
            cursor.execute(f"INSERT IGNORE INTO `{sample.name}` VALUES {rows}{on_duplicate}")


def _update_all(sample: SampleTable) -> str:
    changed = (column.name for column in sample.samples if not column.is_generated)
    return " AS new ON DUPLICATE KEY UPDATE " + ", ".join(f"`{name}` = new.`{name}`" for name in changed)


def _binlog_end(session: pymysql.Connection[Any]) -> tuple[str, int]:
    with session.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        file, position, *_ = cursor.fetchone() or ("", 0)
    return file, position


# --- The server's answer ---


def _selected(
    session: pymysql.Connection[Any], stock: pymysql.Connection[Any], table: Table, columns: Sequence[Column]
) -> Rows:
    source = f"FROM {SCHEMA}.`{table.name}` ORDER BY id"
    rows = fetch_rows(session, f"SELECT {select_list(columns)} {source}", columns)
    with stock.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(f"`{column.name}`" for column in columns) + f" {source}")
        printed = cursor.fetchall()
    assert len(rows) == len(printed)
    for at, column in enumerate(columns):
        for row, shown in zip(rows, printed, strict=True):
            assert _prints_as(row[at], shown[at], column), (column, row[at], shown[at])
    return {row[0]: row for row in rows}


def _prints_as(value: Any, shown: bytes | None, column: Column) -> bool:
    """Whether a canonical value is what the server prints for the bare column."""
    if value is None or shown is None:
        return value is None and shown is None
    if column.declared.startswith("bit"):
        return bool(value == int.from_bytes(shown, "big"))
    if column.kind in (Kind.BYTES, Kind.GEOMETRY, Kind.VECTOR):
        return type(value) is bytes and value == shown
    text = shown.decode("ascii" if column.charset == "ascii" else "utf-8")
    if column.kind is Kind.INTEGER:
        return type(value) is int and value == int(text)
    if column.kind is Kind.DECIMAL:
        digits = text.partition(".")[2]
        return value == Decimal(text) and format(value, "f").partition(".")[2] == digits and len(digits) == column.scale
    if "zerofill" in column.declared:
        text = text.lstrip("0") or "0"  # also of '000-0'
    if column.kind is Kind.FLOAT or ("(" in column.declared and column.kind is Kind.DOUBLE):
        is_single = column.kind is Kind.DOUBLE or value == struct.unpack("f", struct.pack("f", value))[0]
        return is_single and bool(
            abs(value - float(text)) <= max(abs(value) * 1e-5, 0.006 if "(" in column.declared else 0)
        )
    if column.kind is Kind.DOUBLE:
        return repr(value) == repr(float(text))
    return type(value) is str and value == text


# --- The binlog's answer ---


def _decoded(server: Server, file: str, start: int, name: str, followed: Followed) -> dict[int, list[Row]]:
    seen: dict[int, list[Row]] = {WRITE_ROWS: [], UPDATE_ROWS: [], DELETE_ROWS: []}
    decoders: dict[int, tuple[TableMap, Decoder]] = {}
    for event in events(server.directory / "data" / file, start):
        if event.type == TABLE_MAP:
            table_map = parse(event.body)
            if (table_map.schema, table_map.name) == (SCHEMA, name):
                decoders.setdefault(table_id(event.body), (table_map, compile_decoder(table_map, followed)))
        elif event.type in seen and table_id(event.body) in decoders:
            _, decoder = decoders[table_id(event.body)]
            image = decoder.update_image if event.type == UPDATE_ROWS else decoder.write_image
            found = row_image(event.body)
            assert found.startswith(image)
            rows = decoder.decode(bytearray(found), len(image), len(found))
            assert _same_types(rows, decoder.decode_carefully(found, len(image), len(found)))
            seen[event.type] += rows
    assert decoders
    return seen


def _same_types(left: list[Row], right: list[Row]) -> bool:
    return repr(left) == repr(right)


def _narrowed(followed: Followed, rng: random.Random) -> Followed:
    """Some of the columns, the key among them, so that steps over columns are taken."""
    chosen = tuple(name for name in followed.columns if name == "id" or rng.random() < 0.3)
    return Followed(followed.table, chosen)


def _masked(followed: Followed, rng: random.Random) -> Followed:
    """The same columns, but for the key and about one in six masked in any way that fits."""
    columns = list(followed.table.columns)
    for at, column in enumerate(columns):
        ways = ["hash", "hash", "null", None]
        ways += ["last4"] * 2 * (column.kind in (Kind.TEXT, Kind.INTEGER))
        ways += ["year"] * 2 * (column.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP))
        way = rng.choice(ways)
        if column.name != "id" and column.name in followed.columns and way is not None:
            columns[at] = masked(column, way, SECRET)
    return Followed(replace(followed.table, columns=tuple(columns)), followed.columns)


def _hidden(row: Row, followed: Followed) -> Row:
    """What masks make of a row, said in other words."""
    shown = []
    for name, value in zip(followed.columns, row, strict=True):
        column = followed.table.column(name)
        assert column is not None
        if column.mask is not None and value is not None:
            text = value.hex() if isinstance(value, bytes) else value if isinstance(value, str) else _text(value)
            value = {
                "hash": lambda text=text: hmac.new(SECRET, text.encode(), "sha256").hexdigest(),
                "last4": lambda text=text: re.sub("(?s).", "*", text) if len(text) < 8 else "****" + text[-4:],
                "year": lambda text=text: int(text.split("-")[0]),
                "null": lambda: None,
            }[column.mask.how]()
        shown.append(value)
    return tuple(shown)


def _text(value: Any) -> str:
    return format(value, "f") if isinstance(value, Decimal) else repr(value)


def _narrow(rows: Rows, at: Sequence[int]) -> Rows:
    return {number: tuple(row[place] for place in at) for number, row in rows.items()}


def _assert_same(seen: Sequence[Row], wanted: Rows, followed: Followed) -> None:
    for row in seen:
        # repr tells -0.0 from 0.0, and Decimal('1.0') from Decimal('1.00')
        if repr(row) != repr(wanted[row[0]]):
            for name, found, expected in zip(followed.columns, row, wanted[row[0]], strict=True):
                assert repr(found) == repr(expected), (followed.table.full_name, name, row[0])
