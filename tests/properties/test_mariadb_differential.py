"""The whole way from MariaDB's binlog against the server's own answer, over every column type it has.

A smaller twin of test_decoder_differential.py: rows come through the source as it reads them, compressed events and
not, and are compared with what `fetch_rows` reads, and that with what stock PyMySQL reads of the bare columns. The
seed is printed; VIEWTAIL_TEST_SEED sets it, VIEWTAIL_TEST_ROWS the
row changes: `make differential` takes 500,000."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pymysql
import pytest

from ingest.binlog.source import BinlogSource
from ingest.canonical import describe, fetch_rows, select_list
from stack.server import Server
from tests.support import random_rows
from tests.support.mariadb import binlog_end
from tests.support.random_rows import Literal, Sample, SampleTable, decimal, integer, one_of, quoted, text
from viewtail.changes.batches import DELETE, INSERT, UPDATE, Followed, Row, RowChanges
from viewtail.changes.tables import Column, Kind, Table
from viewtail.servers.sessions import MySQLAddress, open_session

pytestmark = pytest.mark.mariadb

ROW_CHANGES = int(os.environ.get("VIEWTAIL_TEST_ROWS", "7800"))
ROWS_A_STATEMENT = 130
SCHEMA = "differential"

Rows = dict[int, Row]


# --- Tables ---


def uuid(rng: random.Random) -> str:
    number = rng.choice((0, (1 << 128) - 1, rng.getrandbits(128), rng.getrandbits(64) << 64, rng.getrandbits(9)))
    digits = f"{number:032x}"
    if rng.random() < 0.8:  # of a version: those of time are kept in another order
        digits = f"{digits[:12]}{rng.choice('14678')}{digits[13:16]}{rng.choice('89ab')}{digits[17:]}"
    return quoted("-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))


def inet4(rng: random.Random) -> str:
    return quoted(".".join(str(rng.choice((0, 1, 255, rng.randrange(256)))) for _ in range(4)))


def inet6(rng: random.Random) -> str:
    words = [rng.choice((0, 0, 1, 0xFFFF, rng.randrange(1 << 16))) for _ in range(8)]
    if rng.random() < 0.3:
        words[:5] = [0] * 5
    return quoted(":".join(f"{word:x}" for word in words))


def json_text(rng: random.Random) -> str:
    document = {"a b": [rng.random(), None, True, {"é": "x" * rng.randrange(300)}], "n": rng.getrandbits(70)}
    return quoted(json.dumps(document, indent=rng.choice((None, 1)), ensure_ascii=rng.random() < 0.5))


def repeated(literal: Literal, times: int) -> Literal:
    """Long enough for the server to compress it, or not."""
    return lambda rng: f"REPEAT({literal(rng)}, {rng.choice((0, 1, times))})"


def own_types() -> list[Sample]:
    compressed = [
        Sample(f"packed_{charset}_{name}", f"{declared} compressed character set {charset}", literal)
        for charset in ("utf8mb4", "latin1", "ascii")
        for name, declared, literal in (
            ("varchar", "varchar(900)", repeated(text(charset, 20), 40)),
            ("text", "text", repeated(text(charset, 30), 100)),
        )
    ]
    return [
        Sample("shape", "geometry", random_rows.geometry),
        Sample("first", "varchar(20) character set latin1", text("latin1", 20)),
        Sample("uuid", "uuid", uuid),
        Sample("inet4", "inet4", inet4),
        Sample("inet6", "inet6", inet6),
        Sample("certain", "uuid not null", uuid),
        Sample("doc", "json", json_text),
        Sample("raw", "varbinary(900) compressed", repeated(random_rows.raw(20), 40)),
        Sample("blob", "mediumblob compressed", repeated(random_rows.raw(20), 4000)),
        *compressed,
        Sample("fine", "decimal(65,38)", decimal(65, 38)),
        Sample("hidden", "int invisible", integer(32)),
        Sample("uca", "varchar(20) collate utf8mb4_uca1400_german2_nopad_as_ci", text("utf8mb4", 20)),
        Sample("nopad", "varchar(20) character set latin1 collate latin1_swedish_nopad_ci", text("latin1", 20)),
        Sample("utf8mb3", "varchar(20) collate utf8mb3_uca1400_ai_ci", text("utf8mb3", 20)),
        Sample("other", "varchar(20) character set utf16", text("ascii", 20), is_readable=False),
        Sample("other_packed", "text compressed character set utf32", text("ascii", 20), is_readable=False),
        Sample("virtual", "varchar(36) as (cast(uuid as char)) virtual", one_of("DEFAULT")),
        Sample("stored", "inet6 as (inet6) stored", one_of("DEFAULT")),
        Sample("last", "tinyint", integer(8)),
    ]


def tables() -> list[SampleTable]:
    shared = [
        SampleTable(table.name, tuple(one for one in table.samples if "vector" not in one.declared))
        for table in random_rows.sample_tables()
        if table.name in ("integers", "numbers", "moments", "texts", "raws", "choices")
    ]
    return [
        *shared,
        SampleTable("own", tuple(own_types())),
        SampleTable("versioned", tuple(own_types()[:12])),
    ]


# Inserted, updated, and half of them deleted; whole statements.
ROWS_A_TABLE = -(-ROW_CHANGES * 2 // (5 * len(tables()) * ROWS_A_STATEMENT)) * ROWS_A_STATEMENT


def create_statement(sample: SampleTable) -> str:
    columns = ", ".join(f"`{one.name}` {one.declared}" for one in sample.samples)
    after = " WITH SYSTEM VERSIONING" if sample.name == "versioned" else ""
    return (
        f"CREATE TABLE {SCHEMA}.`{sample.name}` (`id` INT NOT NULL PRIMARY KEY, {columns}) "
        f"DEFAULT CHARSET=utf8mb4{after}"
    )


# --- The test ---


@pytest.fixture(scope="module")
def seed() -> int:
    chosen = int(os.environ.get("VIEWTAIL_TEST_SEED") or random.randrange(1 << 32))
    print(f"VIEWTAIL_TEST_SEED={chosen}")
    return chosen


@pytest.fixture(scope="module")
def session(mariadb_server: Server) -> Iterator[pymysql.Connection[Any]]:
    connection = open_session(
        MySQLAddress(host=mariadb_server.host, port=mariadb_server.port, user="root"), role="source"
    )
    connection.autocommit(True)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE OR REPLACE DATABASE {SCHEMA}")
        cursor.execute("SET sql_mode = ''")
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def stock(mariadb_server: Server) -> Iterator[pymysql.Connection[Any]]:
    # Without converters and Unicode PyMySQL gives the bytes that the server sent.
    connection: pymysql.Connection[Any] = pymysql.connect(
        host=mariadb_server.host, port=mariadb_server.port, user="root", charset="utf8mb4", conv={},
        use_unicode=False, init_command="SET time_zone='+00:00'", autocommit=True,
    )  # fmt: skip
    yield connection
    connection.close()


@pytest.mark.parametrize("sample", tables(), ids=lambda sample: str(sample.name))
def test_every_row_of_the_stream_is_what_the_server_answers(
    sample: SampleTable,
    seed: int,
    mariadb_server: Server,
    session: pymysql.Connection[Any],
    stock: pymysql.Connection[Any],
) -> None:
    rng = random.Random(f"{seed} {sample.name}")
    with session.cursor() as cursor:
        cursor.execute(create_statement(sample))
    table = describe(session, SCHEMA, sample.name)
    unreadable = {one.name for one in sample.samples if not one.is_readable}
    columns = [column for column in table.columns if column.name not in unreadable]
    assert all(column.kind is not Kind.UNSUPPORTED for column in columns)
    assert (table.row_end is not None) == (sample.name == "versioned")
    followed = Followed(table, tuple(column.name for column in columns))
    source = BinlogSource(
        MySQLAddress(host=mariadb_server.host, port=mariadb_server.port, user="root"),
        {(SCHEMA, sample.name): followed},
        watermark_schema="viewtail",
        own_schemas=frozenset({"viewtail"}),
        epoch=1,
    )
    begin = source.now()

    write(session, sample, rng, on_duplicate="")
    inserted = selected(session, stock, table, columns)
    write(session, sample, rng, on_duplicate=update_all(sample))
    updated = selected(session, stock, table, columns)
    with session.cursor() as cursor:
        cursor.execute(f"DELETE FROM {SCHEMA}.`{sample.name}` WHERE id % 2 = 0")
        cursor.execute("SET GLOBAL log_bin_compress = OFF")
    assert len(inserted) == len(updated) == ROWS_A_TABLE

    seen: dict[int, list[Row]] = {INSERT: [], UPDATE: [], DELETE: []}
    end = binlog_end(mariadb_server)
    for batch in source.read(begin):
        assert not batch.halts, [halt.reason for halt in batch.halts]
        for change in batch.changes:
            take(change, seen)
        if batch.end is not None and batch.end.version >= end.version:
            break
    source.interrupt()
    # An update to the same values is not logged; there are few of them.
    assert len(seen[INSERT]) == ROWS_A_TABLE and len(seen[DELETE]) == (ROWS_A_TABLE + 1) // 2
    assert len(seen[UPDATE]) > 1.9 * ROWS_A_TABLE
    assert_same(seen[INSERT], inserted, followed)
    assert_same(seen[UPDATE][::2], inserted, followed)
    assert_same(seen[UPDATE][1::2], updated, followed)
    assert_same(seen[DELETE], updated, followed)
    changes = sum(len(rows) // (2 if kind == UPDATE else 1) for kind, rows in seen.items())
    print(f"{sample.name}: {changes:,} row changes of {len(columns)} columns are the server's")


def take(change: RowChanges, seen: dict[int, list[Row]]) -> None:
    seen[change.kind] += change.rows


def write(session: pymysql.Connection[Any], sample: SampleTable, rng: random.Random, on_duplicate: str) -> None:
    names = ", ".join(f"`{name}`" for name in ("id", *(one.name for one in sample.samples)))
    with session.cursor() as cursor:
        for first in range(0, ROWS_A_TABLE, ROWS_A_STATEMENT):
            cursor.execute(f"SET GLOBAL log_bin_compress = {rng.choice(('ON', 'OFF'))}")
            rows = ", ".join(sample.row(first + number, rng) for number in range(ROWS_A_STATEMENT))
            cursor.execute(f"INSERT IGNORE INTO {SCHEMA}.`{sample.name}` ({names}) VALUES {rows}{on_duplicate}")


def update_all(sample: SampleTable) -> str:
    changed = (one.name for one in sample.samples if not one.is_generated)
    return " ON DUPLICATE KEY UPDATE " + ", ".join(f"`{name}` = VALUES(`{name}`)" for name in changed)


def selected(
    session: pymysql.Connection[Any], stock: pymysql.Connection[Any], table: Table, columns: list[Column]
) -> Rows:
    source = f"FROM {SCHEMA}.`{table.name}` ORDER BY id"
    rows = fetch_rows(session, f"SELECT {select_list(columns)} {source}", columns)
    with stock.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(f"`{column.name}`" for column in columns) + f" {source}")
        printed = cursor.fetchall()
    assert len(rows) == len(printed)
    for at, column in enumerate(columns):
        for row, shown in zip(rows, printed, strict=True):
            assert prints_as(row[at], shown[at], column), (column, row[at], shown[at])
    return {row[0]: row for row in rows}


def prints_as(value: Any, shown: bytes | None, column: Column) -> bool:
    """Whether a canonical value is what the server prints for the bare column."""
    if value is None or shown is None:
        return value is None and shown is None
    if column.declared.startswith("bit"):
        return bool(value == int.from_bytes(shown, "big"))
    if column.kind in (Kind.BYTES, Kind.GEOMETRY):
        return type(value) is bytes and value == shown
    if column.kind in (Kind.FLOAT, Kind.DOUBLE):
        return bool(abs(value - float(shown)) <= max(abs(value) * 1e-5, 0.006 * ("(" in column.declared)))
    if column.kind is Kind.INTEGER:
        return type(value) is int and value == int(shown)
    if column.kind is Kind.DECIMAL:
        return bool(value == Decimal(shown.decode()))
    return type(value) is str and value == shown.decode("utf-8")


def assert_same(seen: list[Row], wanted: Rows, followed: Followed) -> None:
    for row in seen:
        # repr tells -0.0 from 0.0, and Decimal('1.0') from Decimal('1.00')
        if repr(row) != repr(wanted[row[0]]):
            for name, found, expected in zip(followed.columns, row, wanted[row[0]], strict=True):
                assert repr(found) == repr(expected), (followed.table.full_name, name, row[0])
