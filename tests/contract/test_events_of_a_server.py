"""Every way in which a real server writes rows into its binlog, read and compared with the tables themselves."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pymysql
import pytest

from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe, fetch_rows, select_list
from stack import Server
from viewtail.changes.batches import DELETE, UPDATE, Batch, Followed, Row
from viewtail.changes.masks import Masks
from viewtail.servers.sessions import MySQLAddress, open_session

TABLES = ("t", "u")
LAST = 10**6  # the key of the row that says that a test's changes are over


class Reader:
    """Reads two tables of a server into dicts, by the rules of a sink: newer wins."""

    def __init__(self, server: Server, **options: int) -> None:
        self._server = server
        self.execute(
            "DROP DATABASE IF EXISTS events",
            "CREATE DATABASE events",
            "CREATE TABLE events.t (id INT PRIMARY KEY, n INT, j JSON, v VARCHAR(2000))",
            "CREATE TABLE events.u (a VARCHAR(20), b INT, v VARCHAR(200) CHARACTER SET latin1, PRIMARY KEY (a, b))",
            "CREATE TABLE events.unfollowed (id INT PRIMARY KEY, g GEOMETRY)",
        )
        self._address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        self.describe()
        self._options = options
        self.fits_from: dict[tuple[str, str], int] = {}
        self.begin = self.source().now()
        self.held: dict[tuple[str, Any], tuple[int, Row | None]] = {}
        self.batches: list[Batch] = []

    def describe(self) -> None:
        """Follow all columns that the tables have now."""
        with open_session(self._address, role="source") as session:
            tables = [describe(session, "events", name) for name in TABLES]
        self._followed = {
            ("events", table.name): Followed(table, tuple(column.name for column in table.columns)) for table in tables
        }

    def source(self) -> BinlogSource:
        return BinlogSource(
            self._address,
            self._followed,
            watermark_schema="viewtail",
            own_schemas=frozenset({"viewtail"}),
            epoch=1,
            fits_from=self.fits_from,
            **self._options,
        )

    def connect(self) -> Any:
        return pymysql.connect(host="127.0.0.1", port=self._server.port, user="root", autocommit=True)

    def execute(self, *statements: str) -> None:
        connection = self.connect()
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.close()

    def read(self, after: BinlogPosition | None = None) -> None:
        """All that is committed by now, after the last batch or `after`."""
        self.execute(f"REPLACE INTO events.t VALUES ({LAST}, NULL, NULL, UUID())")
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT v FROM events.t WHERE id = {LAST}")
            (mark,) = cursor.fetchone()
        source = self.source()
        for batch in source.read(after or self.begin):
            self._apply(batch)
            if batch.end is not None and self.held.get(("t", LAST), (0, None))[1] == (LAST, None, None, mark):
                break
            if batch.halts:
                break
        source.interrupt()
        self.begin = next(batch.end for batch in reversed(self.batches) if batch.end is not None)

    def _apply(self, batch: Batch) -> None:
        self.batches.append(batch)
        writes: dict[tuple[str, Any], tuple[int, Row | None]] = {}
        for followed, kind, version, rows, *_ in batch.changes:
            for at, row in enumerate(rows):
                is_old = kind == DELETE or (kind == UPDATE and at % 2 == 0)
                key = row[0] if followed.table.name == "t" else row[:2]
                writes[followed.table.name, key] = (version, None if is_old else row)
        for key, write in writes.items():
            if key not in self.held or self.held[key][0] < write[0]:
                self.held[key] = write

    def assert_equal(self) -> None:
        assert [halt.reason for batch in self.batches for halt in batch.halts] == []
        connection = self.connect()
        with connection.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"SELECT * FROM events.{table}")
                wanted = {row[0] if table == "t" else row[:2]: row for row in cursor.fetchall()}
                found = {key: row for (name, key), (_, row) in self.held.items() if name == table and row is not None}
                assert found == wanted
        connection.close()


@pytest.fixture
def reader(mysql_server: Server) -> Reader:
    return Reader(mysql_server)


def change_at_random(reader: Reader, chance: random.Random, transactions: int) -> None:
    """Transactions of one to forty statements, some rolled back to a savepoint, compressed or not."""
    connection = reader.connect()
    with connection.cursor() as cursor:
        for _ in range(transactions):
            cursor.execute(f"SET binlog_transaction_compression = {chance.choice(('ON', 'ON', 'OFF'))}")
            cursor.execute("BEGIN")
            for _ in range(chance.choice((1, 1, 3, 40))):
                i, kind = chance.randrange(200), chance.random()
                if kind < 0.4:
                    text = chance.choice("abc") * chance.choice((3, 300, 2000))
                    cursor.execute("REPLACE INTO events.t VALUES (%s, %s, '[1, {\"k\": 2.5}]', %s)", (i, i, text))
                elif kind < 0.5:
                    cursor.execute("UPDATE events.t SET n = n + 1 WHERE id < %s", (i,))
                elif kind < 0.6:
                    cursor.execute("DELETE FROM events.t WHERE id = %s", (i,))
                elif kind < 0.65:
                    cursor.execute(
                        "UPDATE IGNORE events.t SET id = id + 1 WHERE id BETWEEN %s AND 199 ORDER BY id DESC",
                        (i,),
                    )
                elif kind < 0.7:
                    cursor.execute("SAVEPOINT s")
                    cursor.execute("DELETE FROM events.t")
                    cursor.execute("ROLLBACK TO s")
                elif kind < 0.8:
                    cursor.execute("REPLACE INTO events.unfollowed VALUES (%s, POINT(1, 2))", (i,))
                else:
                    cursor.execute("REPLACE INTO events.u VALUES (%s, %s, 'é')", (chance.choice("äb"), i % 9))
            cursor.execute(chance.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK")))
    connection.close()


@pytest.mark.parametrize("spool_bytes", [4 << 20, 5000])
def test_compressed_transactions_give_the_rows_that_the_tables_hold(mysql_server: Server, spool_bytes: int) -> None:
    reader = Reader(mysql_server, spool_bytes=spool_bytes)
    change_at_random(reader, random.Random(spool_bytes), 150)
    reader.read()
    reader.assert_equal()
    assert any(batch.end is None for batch in reader.batches) == (spool_bytes == 5000)
    versions = [change.version for batch in reader.batches for change in batch.changes]
    assert versions == sorted(versions)
    for one, following in zip(reader.batches, reader.batches[1:], strict=False):
        if one.changes and following.changes:  # a guard would refuse the second of two equal versions
            assert one.changes[-1].version < following.changes[0].version


def test_reading_goes_on_behind_any_compressed_transaction(reader: Reader) -> None:
    change_at_random(reader, random.Random(3), 40)
    reader.read()
    ends = [batch.end for batch in reader.batches if batch.end is not None]
    whole = dict(reader.held)
    for end in random.Random(4).sample(ends, min(len(ends), 8)):
        reader.batches.clear()
        reader.held = {key: write for key, write in whole.items() if write[0] <= end.version}
        reader.read(end)
        reader.assert_equal()


def test_a_position_behind_a_tagged_transaction_is_verified(reader: Reader) -> None:
    reader.execute("SET SESSION gtid_next = 'AUTOMATIC:nightly'", "INSERT INTO events.t VALUES (1, 1, NULL, 'x')")
    source = reader.source()
    for batch in source.read(reader.begin):
        if batch.end is not None and batch.changes:
            break
    assert batch.end is not None and ":nightly:" in batch.end.gtid
    assert 0 < batch.oldest_commit_us < 1 << 55
    reader.read(batch.end)
    assert reader.held.keys() == {("t", LAST)}


@pytest.mark.parametrize("behind_s", [-40, 40])
def test_a_clock_that_is_not_the_servers_does_not_show_as_age(
    reader: Reader, behind_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now_s() - behind_s)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - behind_s * 10**9)
    reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, 'x')")
    began_at = time.monotonic()
    source = reader.source()
    batch = next(batch for batch in source.read(reader.begin) if batch.changes)
    assert 0 < source.progress.age_s(batch.oldest_commit_us) < time.monotonic() - began_at + 2


# -- partial JSON -------------------------------------------------------------------------------------------------


def change_json_at_random(reader: Reader, chance: random.Random, updates: int) -> None:
    connection = reader.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET binlog_row_value_options = PARTIAL_JSON")
        for i in range(20):
            document = {
                "a": i,
                "b": [1, "zwei", None, {"c": [0.5, True]}],
                'k"ey': {"ü": "ü" * 50},
                "list": [[], {}],
            }
            cursor.execute("INSERT INTO events.t VALUES (%s, 0, %s, 'x')", (i, json.dumps(document)))
        for _ in range(updates):
            cursor.execute(f"SET binlog_transaction_compression = {chance.choice(('ON', 'OFF'))}")
            paths = (
                "$.a",
                "$.b[0]",
                "$.b[3].c[1]",
                "$.b[last]",
                "$.b[last-1]",
                "$.a[0]",
                "$.a[last]",
                "$[0].a",
                "$.list[0][0]",
                '$."k\\\\"ey"."ü"',
                "$.new",
                "$.list[0]",
                "$.b[9]",
                '$."a b.c"',
            )
            values = (
                "7",
                "'text'",
                "NULL",
                "CAST('[1, {\"x\": 2}]' AS JSON)",
                "CAST(1.10 AS DECIMAL(5, 2))",
                "CAST('2020-02-03 04:05:06.7' AS DATETIME(6))",
                "JSON_OBJECT('z', 1, 'aa', 2)",
                "1e100",
            )
            path, value = chance.choice(paths), chance.choice(values)
            change = chance.choice((
                f"JSON_SET(j, '{path}', {value})", f"JSON_REPLACE(j, '{path}', {value})", f"JSON_REMOVE(j, '{path}')",
                f"JSON_SET(JSON_REMOVE(j, '$.b[0]'), '{path}', {value}, '$.more', 1)",
            ))  # fmt: skip
            cursor.execute(f"UPDATE events.t SET n = n + 1, j = {change} WHERE id % 3 = {chance.randrange(3)}")
    connection.close()


def test_partial_json_updates_give_the_documents_that_the_table_holds(reader: Reader) -> None:
    change_json_at_random(reader, random.Random(1), 300)
    reader.read()
    reader.assert_equal()
    reader.execute("FLUSH BINARY LOGS")


def test_partial_json_updates_give_masked_documents_too(reader: Reader) -> None:
    masked = Masks(secret=b"of this test alone").table(
        reader._followed["events", "t"].table, {"j": "hash", "n": "null"}, ()
    )
    reader._followed["events", "t"] = Followed(masked, reader._followed["events", "t"].columns)
    change_json_at_random(reader, random.Random(2), 100)
    reader.read()
    with open_session(reader._address, role="source") as session:
        statement = f"SELECT {select_list(masked.columns)} FROM events.t"
        wanted = {row[0]: row for row in fetch_rows(session, statement, masked.columns)}
    assert {key: row for (_, key), (_, row) in reader.held.items()} == wanted
    hashes = {row[2] for row in wanted.values() if row[2] is not None}
    assert hashes and {len(one) for one in hashes} == {64}


# -- XA -----------------------------------------------------------------------------------------------------------


def prepare(reader: Reader, name: str, *statements: str) -> None:
    reader.execute(f"XA START {name}", *statements, f"XA END {name}", f"XA PREPARE {name}")


def test_rows_of_an_xa_transaction_come_at_its_commit(reader: Reader) -> None:
    reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, 'old'), (2, 2, NULL, 'old')")
    prepare(
        reader,
        "'a','\\0b',7",
        "UPDATE events.t SET v = 'xa' WHERE id = 1",
        "DELETE FROM events.t WHERE id = 2",
    )
    reader.execute("INSERT INTO events.t VALUES (3, 3, NULL, 'between')")
    reader.read()
    assert reader.held["t", 1][1] == (1, 1, None, "old")
    between = reader.held["t", 3][0]
    reader.execute("XA COMMIT 'a','\\0b',7")
    reader.read()
    reader.assert_equal()
    assert reader.held["t", 1][0] > between, "a chunk read in between would look newer"


def test_what_foreign_keys_change_arrives_with_what_made_them(reader: Reader) -> None:
    """The tables beside, whose rows began it, are followed by nobody."""
    reader.execute(
        "CREATE TABLE events.parent (id INT PRIMARY KEY)",
        "CREATE TABLE events.middle (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) "
        "REFERENCES events.parent (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "ALTER TABLE events.t ADD FOREIGN KEY (n) REFERENCES events.parent (id) ON DELETE SET NULL ON UPDATE CASCADE",
        "ALTER TABLE events.u ADD FOREIGN KEY (b) REFERENCES events.middle (id) ON DELETE CASCADE ON UPDATE CASCADE",
        "INSERT INTO events.parent VALUES (1), (2), (3), (4)",
        "INSERT INTO events.middle VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
        "INSERT INTO events.t VALUES (1, 1, NULL, 'a'), (2, 2, NULL, 'b'), (3, 3, NULL, 'c'), (4, 4, NULL, 'd')",
        "INSERT INTO events.u VALUES ('a', 1, 'a'), ('b', 2, 'b'), ('c', 3, 'c'), ('d', 4, 'd')",
    )
    reader.read()
    reader.execute(
        "DELETE FROM events.parent WHERE id = 1",  # through the table between
        "UPDATE events.parent SET id = 20 WHERE id = 2",
        "UPDATE events.middle SET id = 30 WHERE id = 3",  # a part of the key of u
        "SET binlog_transaction_compression = ON",
        "DELETE FROM events.middle WHERE id = 4",
    )
    reader.read()
    reader.assert_equal()
    kept = {key: row for (table, key), (_, row) in reader.held.items() if table == "u" and row is not None}
    assert kept == {("b", 2): ("b", 2, "b"), ("c", 30): ("c", 30, "c")}


def test_an_xa_transaction_that_is_rolled_back_leaves_nothing(reader: Reader) -> None:
    reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, 'old')")
    prepare(reader, "'r'", "UPDATE events.t SET v = 'xa' WHERE id = 1")
    prepare(reader, "'s'", "INSERT INTO events.t VALUES (9, 1, NULL, 'xa')")
    reader.execute("XA ROLLBACK 'r'", "XA COMMIT 's'")
    reader.read()
    reader.assert_equal()
    assert reader.held["t", 9][1] is not None


@pytest.mark.parametrize("compression", ["ON", "OFF"])
def test_a_prepared_transaction_is_read_again_after_a_restart(reader: Reader, compression: str) -> None:
    """No position behind its PREPARE is given out, although the transactions after it are."""
    reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, 'old')")
    reader.execute(
        f"SET binlog_transaction_compression = {compression}", "XA START 'x'",
        "UPDATE events.t SET v = 'xa' WHERE id = 1", "XA END 'x'", "XA PREPARE 'x'",
    )  # fmt: skip
    for i in range(50, 60):
        reader.execute(f"INSERT INTO events.t VALUES ({i}, 1, NULL, 'after')")
    reader.read()
    assert ("t", 59) in reader.held
    reader.execute("XA COMMIT 'x'")
    reader.read()  # a new connection, from the position that was given out
    reader.assert_equal()
    reader.read()
    assert [key for key, _ in reader.held.items() if key == ("t", 59)]
    assert reader.begin.end > reader.batches[0].end.end  # type: ignore[union-attr]


def test_one_phase_xa_is_a_commit_like_any_other(reader: Reader) -> None:
    reader.execute(
        "XA START 'o'",
        "INSERT INTO events.t VALUES (1, 1, NULL, 'xa')",
        "XA END 'o'",
        "XA COMMIT 'o' ONE PHASE",
    )
    reader.read()
    reader.assert_equal()


def test_a_key_that_an_xa_transaction_changes_twice_ends_at_the_last(reader: Reader) -> None:
    """Its rows share one version."""
    prepare(
        reader, "'t'", "INSERT INTO events.t VALUES (1, 1, NULL, 'one')", "UPDATE events.t SET id = 2 WHERE id = 1",
        "INSERT INTO events.t VALUES (1, 1, NULL, 'two')", "DELETE FROM events.t WHERE id = 2",
    )  # fmt: skip
    reader.execute("XA COMMIT 't'")
    reader.read()
    reader.assert_equal()


def test_an_xa_commit_whose_rows_were_never_seen_halts_everything(reader: Reader) -> None:
    reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, 'old')")
    prepare(reader, "'early'", "UPDATE events.t SET v = 'xa' WHERE id = 1")
    reader.begin = reader.source().now()
    reader.execute("XA COMMIT 'early'")
    reader.read()
    halts = [halt for batch in reader.batches for halt in batch.halts]
    assert {halt.followed.table.name for halt in halts} == set(TABLES)
    assert all("XA transaction was committed" in halt.reason and "replay VIEW" in halt.reason for halt in halts)


def test_an_xa_transaction_above_the_memory_bound_halts_its_tables(mysql_server: Server) -> None:
    reader = Reader(mysql_server, spool_bytes=5000)
    prepare(reader, "'big'", *(f"INSERT INTO events.t VALUES ({i}, 1, NULL, REPEAT('x', 1500))" for i in range(9)))
    reader.execute("XA COMMIT 'big'")
    reader.read()
    (halt,) = (halt for batch in reader.batches for halt in batch.halts)
    assert halt.followed.table.name == "t" and "run.spool_bytes" in halt.reason


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_of_a_compressed_xa_transaction_above_the_memory_bound_no_row_comes_before_its_commit(
    mysql_server: Server, end: str
) -> None:
    reader = Reader(mysql_server, spool_bytes=5000)
    prepare_large(reader, "XA PREPARE 'big'")
    reader.read()
    reader.execute(f"XA {end} 'big'")
    reader.read()
    assert not [change for batch in reader.batches for change in batch.changes if change.rows[0][0] < LAST]
    halts = [halt for batch in reader.batches for halt in batch.halts]
    assert {halt.followed.table.name for halt in halts} == {"t"}
    assert all("run.spool_bytes" in halt.reason for halt in halts)


def test_a_compressed_xa_transaction_of_one_phase_is_delivered_whatever_its_size(
    mysql_server: Server,
) -> None:
    reader = Reader(mysql_server, spool_bytes=5000)
    prepare_large(reader, "XA COMMIT 'big' ONE PHASE")
    reader.read()
    reader.assert_equal()
    assert any(batch.end is None for batch in reader.batches)


def prepare_large(reader: Reader, end: str) -> None:
    rows = (f"INSERT INTO events.t VALUES ({i}, 1, NULL, REPEAT('{i} ', 500))" for i in range(20))
    reader.execute("SET binlog_transaction_compression = ON", "XA START 'big'", *rows, "XA END 'big'", end)


def test_an_xa_transaction_of_other_tables_halts_nothing(reader: Reader) -> None:
    prepare(reader, "'other'", "INSERT INTO events.unfollowed VALUES (1, POINT(1, 2))")
    reader.read()
    reader.execute("XA COMMIT 'other'", "INSERT INTO events.t VALUES (1, 1, NULL, 'x')")
    reader.read()
    reader.assert_equal()
    assert not [halt for batch in reader.batches for halt in batch.halts]
