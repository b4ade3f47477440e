"""What a message says of a row of a real server is what the server's table has, in every column type."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import pymysql
import pytest

from ingest.canonical import describe, fetch_rows, select_list
from stack.server import Server
from tests.properties import test_mariadb_differential as of_mariadb
from tests.support.random_rows import SampleTable, sample_tables
from viewtail.changes.batches import DELETE, INSERT, UPDATE, Followed, Row, RowChanges
from viewtail.changes.envelope import Envelope
from viewtail.changes.envelope_json_schema import json_schemas
from viewtail.changes.envelope_reading import EnvelopeReader
from viewtail.changes.tables import Column, Table
from viewtail.changes.writes import KeptChange
from viewtail.servers.sessions import MySQLAddress, open_session

ROWS = int(os.environ.get("VIEWTAIL_TEST_ROWS", "20000")) // 200  # of a table
SCHEMA = "envelopes"


@pytest.fixture(scope="module")
def seed() -> int:
    chosen = int(os.environ.get("VIEWTAIL_TEST_SEED") or random.randrange(1 << 32))
    print(f"VIEWTAIL_TEST_SEED={chosen}")
    return chosen


def _session(server: Server) -> Iterator[pymysql.Connection[Any]]:
    connection = open_session(MySQLAddress(host=server.host, port=server.port, user="root"), role="source")
    connection.autocommit(True)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {SCHEMA}")
        cursor.execute(f"USE {SCHEMA}")
        cursor.execute("SET sql_mode = '', innodb_strict_mode = OFF")
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def mysql(mysql_server: Server) -> Iterator[pymysql.Connection[Any]]:
    yield from _session(mysql_server)


@pytest.fixture(scope="module")
def mariadb(mariadb_server: Server) -> Iterator[pymysql.Connection[Any]]:
    yield from _session(mariadb_server)


@pytest.mark.mysql
@pytest.mark.parametrize("sample", sample_tables(), ids=lambda sample: str(sample.name))
def test_rows_of_mysql_are_read_as_they_were(sample: SampleTable, seed: int, mysql: pymysql.Connection[Any]) -> None:
    _assert_read_as_written(*_rows(mysql, sample, random.Random(f"{seed} {sample.name}")))


@pytest.mark.mariadb
@pytest.mark.parametrize("sample", of_mariadb.tables(), ids=lambda sample: str(sample.name))
def test_rows_of_mariadb_are_read_as_they_were(
    sample: SampleTable, seed: int, mariadb: pymysql.Connection[Any]
) -> None:
    _assert_read_as_written(*_rows(mariadb, sample, random.Random(f"{seed} {sample.name}")))


def _rows(session: pymysql.Connection[Any], sample: SampleTable, rng: random.Random) -> tuple[Table, list[Row]]:
    with session.cursor() as cursor:
        cursor.execute(sample.create_statement("DYNAMIC"))
        names = ", ".join(f"`{name}`" for name in ("id", *(one.name for one in sample.samples)))
        rows = ", ".join(sample.row(number, rng) for number in range(ROWS))
        cursor.execute(f"INSERT IGNORE INTO `{sample.name}` ({names}) VALUES {rows}")
    readable = {"id"} | {column.name for column in sample.samples if column.is_readable}
    table = describe(session, SCHEMA, sample.name)
    columns = tuple(column for column in table.columns if column.name in readable)
    table = Table(schema=SCHEMA, name=sample.name, columns=columns, primary_key=("id",))
    return table, list(fetch_rows(session, f"SELECT {select_list(columns)} FROM {SCHEMA}.`{sample.name}`", columns))


def _assert_read_as_written(table: Table, rows: Sequence[Row]) -> None:
    assert len(rows) == ROWS
    key = [column for column in table.columns if column.name == "id"]
    changes: list[KeptChange] = []
    for before, row in zip([rows[-1], *rows], rows, strict=False):
        changes += [
            KeptChange(row[:1], 1, "insert", None, row),
            KeptChange(row[:1], 2, "update", before, row),
            KeptChange(row[:1], 3, "delete", row, None),
            KeptChange(row[:1], 4, "read", None, row),
        ]
    for with_schemas in (False, True):
        envelope = Envelope(table, key, table.columns, name="s", release="1", with_schemas=with_schemas)
        reader = EnvelopeReader(Followed(table, tuple(column.name for column in table.columns)), key)
        values = [value for _, value, _ in envelope.messages(changes, 0) if value is not None]
        for change, value in zip(changes, values, strict=True):
            found = reader.read(value)
            images = [image for image in (change.before, change.after) if image is not None]
            assert type(found) is RowChanges, found
            assert found.kind == {1: INSERT, 2: UPDATE, 3: DELETE, 4: INSERT}[found.version]
            _assert_same(found.rows, images, table.columns)
    validator = jsonschema.Draft202012Validator(json_schemas(table, key, table.columns, name="s")["value"])
    for _, value, _ in Envelope(table, key, table.columns, name="s", release="1").messages(changes[:40], 0):
        assert value is None or not [error.message for error in validator.iter_errors(json.loads(value))]


def _assert_same(found: Sequence[Row], wanted: Sequence[Any], columns: Sequence[Column]) -> None:
    if repr(found) != repr(wanted):  # repr tells -0.0 from 0.0, and Decimal('1.0') from Decimal('1.00')
        for row, held in zip(found, wanted, strict=True):
            for value, other, column in zip(row, held, columns, strict=True):
                assert repr(value) == repr(other), column
