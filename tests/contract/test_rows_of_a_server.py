"""Rows as a real server writes them under other settings, and rows that are large."""

from __future__ import annotations

from typing import Any

import pytest

from stack import Server
from tests.contract.test_events_of_a_server import Reader
from viewtail.changes.batches import Halt
from viewtail.changes.errors import SourceError

SEVERAL_PACKETS = 17_500_000  # bytes; one packet holds 16 MiB
LARGE = f"CAST(CONCAT('\"', REPEAT('x', {SEVERAL_PACKETS}), '\"') AS JSON)"


@pytest.fixture
def reader(mysql_server: Server) -> Reader:
    return Reader(mysql_server)


def halts(reader: Reader) -> list[Halt]:
    return [halt for batch in reader.batches for halt in batch.halts]


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_a_partial_row_image_halts_its_table_with_the_setting_and_no_other(reader: Reader, image: str) -> None:
    reader.execute("INSERT INTO events.t VALUES (1, 1, '{}', 'old')", "INSERT INTO events.u VALUES ('a', 1, 'x')")
    reader.execute(f"SET SESSION binlog_row_image = '{image}'", "UPDATE events.t SET n = 2 WHERE id = 1")
    reader.execute("UPDATE events.u SET v = 'y'")
    reader.read()
    (halt,) = halts(reader)
    assert halt.followed.table.name == "t"
    assert "binlog_row_image = 'FULL'" in halt.reason and "replay VIEW" in halt.reason


def test_row_metadata_that_is_taken_away_halts_with_the_statement_that_mends_it(reader: Reader) -> None:
    reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, 'old')")
    try:
        reader.execute("SET GLOBAL binlog_row_metadata = 'MINIMAL'", "INSERT INTO events.t VALUES (2, 2, NULL, 'new')")
    finally:
        reader.execute("SET GLOBAL binlog_row_metadata = 'FULL'")
    reader.read()
    (halt,) = halts(reader)
    assert halt.followed.table.name == "t" and "SET GLOBAL binlog_row_metadata=FULL" in halt.reason


def test_types_beside_that_nobody_follows_stop_nothing(reader: Reader) -> None:
    reader.execute(
        "DROP TABLE events.unfollowed",
        "CREATE TABLE events.unfollowed (id INT PRIMARY KEY, v VECTOR(3), g POINT, e ENUM('a') CHARACTER SET binary)",
        "INSERT INTO events.unfollowed VALUES (1, STRING_TO_VECTOR('[1,2,3]'), POINT(1, 2), 'a')",
        "INSERT INTO events.t VALUES (1, 1, '[1]', 'x')",
    )
    reader.read()
    reader.assert_equal()
    assert ("t", 1) in reader.held


@pytest.mark.parametrize("compression", ["OFF", "ON"])
def test_a_row_of_several_packets_arrives_whole(reader: Reader, compression: str) -> None:
    reader.execute(
        f"SET SESSION binlog_transaction_compression = {compression}",
        f"INSERT INTO events.t VALUES (1, 1, {LARGE}, 'large')",
        "UPDATE events.t SET n = 2 WHERE id = 1",
        "INSERT INTO events.t VALUES (2, 2, NULL, 'behind it')",
    )
    reader.read()
    reader.assert_equal()
    row: Any = reader.held["t", 1][1]
    assert len(row[2]) == SEVERAL_PACKETS + 2 and row[1] == 2


def test_an_event_above_the_bound_halts_its_table_with_place_and_setting_and_no_other(
    mysql_server: Server,
) -> None:
    reader = Reader(mysql_server, max_event_bytes=4 << 20)
    reader.execute(
        "INSERT INTO events.u VALUES ('a', 1, 'before')",
        f"INSERT INTO events.t VALUES (1, 1, {LARGE}, 'large')",
        "UPDATE events.u SET v = 'behind it'",
    )
    begin = reader.begin
    reader.read()
    (halt,) = halts(reader)
    assert halt.followed.table.name == "t"
    for said in (
        "events.t",
        f"{begin.file}:",
        "WRITE_ROWS event of 175",
        "run.max_event_bytes (4194304)",
        "replay VIEW",
    ):
        assert said in halt.reason
    source = reader.source()
    for batch in source.read(begin):  # Reader stops at a halt; what is behind it comes all the same
        if any(row[-1] == "behind it" for change in batch.changes for row in change.rows):
            break
    source.interrupt()


def test_a_large_event_of_a_table_nobody_follows_stops_nothing(mysql_server: Server) -> None:
    reader = Reader(mysql_server, max_event_bytes=4 << 20)
    reader.execute(
        "DROP TABLE events.unfollowed",
        "CREATE TABLE events.unfollowed (id INT PRIMARY KEY, body LONGTEXT)",
        f"INSERT INTO events.unfollowed VALUES (1, REPEAT('x', {SEVERAL_PACKETS}))",
        "INSERT INTO events.t VALUES (1, 1, NULL, 'behind it')",
    )
    reader.read()
    reader.assert_equal()
    assert ("t", 1) in reader.held


def test_a_compressed_event_above_the_bound_stops_with_the_setting(mysql_server: Server) -> None:
    reader = Reader(mysql_server, max_event_bytes=4 << 20)
    reader.execute(
        "SET SESSION binlog_transaction_compression = ON",
        f"INSERT INTO events.t VALUES (1, 1, {LARGE}, 'large')",
    )
    with pytest.raises(SourceError, match=r"run\.max_event_bytes; raise that setting"):
        reader.read()


def test_a_table_of_a_thousand_columns_is_read_exactly(reader: Reader) -> None:
    text = "VARCHAR(3) CHARACTER SET ascii"
    columns = ", ".join(f"c{number} {'INT' if number % 3 else text}" for number in range(998))
    reader.execute(
        "DROP TABLE events.u",
        f"CREATE TABLE events.u (a VARCHAR(20), b INT, {columns}, PRIMARY KEY (a, b))",
    )
    reader.describe()
    reader.begin = reader.source().now()
    values = ", ".join("NULL" if number % 7 == 0 else str(number) for number in range(998))
    rows = ", ".join(f"('key', {number}, {values})" for number in range(40))
    reader.execute(f"INSERT INTO events.u VALUES {rows}", "UPDATE events.u SET c997 = 5, c0 = 'x' WHERE b % 2 = 0")
    reader.read()
    reader.assert_equal()
    assert len([key for key in reader.held if key[0] == "u"]) == 40
