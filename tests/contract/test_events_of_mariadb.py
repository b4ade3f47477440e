"""Every way in which a real MariaDB writes rows into its binlog, read and compared with the tables themselves."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pymysql
import pytest

from ingest.binlog.dispatcher import Dispatcher
from ingest.binlog.events import NAMES, Event
from ingest.binlog.table_readers import Wanted
from ingest.canonical import describe
from stack import Server
from tests.contract.test_events_of_a_server import TABLES, Reader, prepare
from tests.support.binlog_file import events
from tests.support.mariadb import binlog_end
from tests.support.running import wait_for
from viewtail.changes.batches import DELETE, INSERT, UPDATE, Followed, Row
from viewtail.changes.errors import DeclarationError, SourceError
from viewtail.changes.tables import Kind
from viewtail.servers.sessions import open_session

pytestmark = pytest.mark.mariadb


@pytest.fixture
def reader(mariadb_server: Server) -> Iterator[Reader]:
    reader = Reader(mariadb_server)
    reader.execute(
        "CREATE TABLE events.isam (id INT PRIMARY KEY, v VARCHAR(2000)) ENGINE=MyISAM",
        "ALTER TABLE events.u ENGINE=MyISAM",
    )
    reader.begin = reader.source().now()
    yield reader
    reader.execute("SET GLOBAL log_bin_compress = OFF", "SET GLOBAL log_bin_compress_min_len = 256")


def change_at_random(reader: Reader, chance: random.Random, transactions: int) -> None:  # noqa: C901
    """Transactions of both engines, some rolled back, whole or to a savepoint, compressed or not."""
    connection = reader.connect()
    with connection.cursor() as cursor:
        for number in range(transactions):
            cursor.execute(f"SET GLOBAL log_bin_compress = {chance.choice(('ON', 'OFF'))}")
            cursor.execute(f"SET GLOBAL log_bin_compress_min_len = {chance.choice((10, 256))}")
            if chance.random() < 0.1:
                cursor.execute(f"CREATE TEMPORARY TABLE events.temporary{number} (id INT)")
            cursor.execute("BEGIN")
            savepoints: list[str] = []
            for _ in range(chance.choice((1, 1, 3, 40))):
                i, kind = chance.randrange(200), chance.random()
                text = chance.choice("abc") * chance.choice((3, 300, 2000))
                if kind < 0.3:
                    cursor.execute("REPLACE INTO events.t VALUES (%s, %s, '[1, {\"k\":   2.5}]', %s)", (i, i, text))
                elif kind < 0.4:
                    cursor.execute("UPDATE events.t SET n = n + 1 WHERE id < %s", (i,))
                elif kind < 0.5:
                    cursor.execute("DELETE FROM events.t WHERE id = %s", (i,))
                elif kind < 0.6:
                    cursor.execute("REPLACE INTO events.u VALUES (%s, %s, 'é')", (chance.choice("äb"), i % 9))
                elif kind < 0.65:
                    cursor.execute("UPDATE events.t, events.u SET n = b, u.v = id WHERE id < 9 AND b < 3")
                elif kind < 0.75:
                    name = chance.choice(("s", "`S t`", "u"))
                    savepoints = [*(other for other in savepoints if other != name), name]
                    cursor.execute(f"SAVEPOINT {name}")
                elif kind < 0.85 and savepoints:
                    at = chance.randrange(len(savepoints))
                    cursor.execute(f"ROLLBACK TO {savepoints[at]}")
                    del savepoints[at + 1 :]
                elif kind < 0.9:
                    # In a transaction: its binlog cache is kept whole from then on, rollbacks included.
                    cursor.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS events.inner{number} (id INT)")
                    cursor.execute(f"DROP TEMPORARY TABLE events.inner{number}")
                else:
                    cursor.execute("REPLACE INTO events.unfollowed VALUES (%s, POINT(1, 2))", (i,))
            cursor.execute(chance.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK")))
    connection.close()


@pytest.mark.parametrize("spool_bytes", [4 << 20, 5000])
def test_transactions_of_two_engines_give_the_rows_that_the_tables_hold(
    reader: Reader, mariadb_server: Server, spool_bytes: int
) -> None:
    reader._options["spool_bytes"] = spool_bytes
    change_at_random(reader, random.Random(spool_bytes), 150)
    reader.read()
    reader.assert_equal()
    assert any(batch.end is None for batch in reader.batches) == (spool_bytes == 5000)
    versions = [change.version for batch in reader.batches for change in batch.changes]
    assert versions == sorted(versions)
    kinds = kinds_in_the_binlog(mariadb_server)
    assert {"MARIADB_WRITE_ROWS_COMPRESSED_V1", "MARIADB_UPDATE_ROWS_COMPRESSED_V1", "WRITE_ROWS_V1"} <= kinds
    assert {"MARIADB_DELETE_ROWS_COMPRESSED_V1", "MARIADB_ANNOTATE_ROWS", "MARIADB_GTID_LIST"} <= kinds
    assert {b"ROLLBACK", b"ROLLBACK TO `S t`"} <= statements_in_the_binlog(mariadb_server)


def kinds_in_the_binlog(server: Server) -> set[str]:
    files = sorted((server.directory / "data").glob("binlog.0*"))
    return {NAMES[event.type] for file in files for event in events(file)}


def statements_in_the_binlog(server: Server) -> set[bytes]:
    files = sorted((server.directory / "data").glob("binlog.0*"))
    return {event.body.rpartition(b"\0")[2] for file in files for event in events(file) if event.type == 2}


def test_reading_goes_on_behind_any_transaction(reader: Reader) -> None:
    change_at_random(reader, random.Random(3), 25)
    reader.execute("FLUSH BINARY LOGS")
    change_at_random(reader, random.Random(4), 15)
    reader.read()
    ends = [batch.end for batch in reader.batches if batch.end is not None]
    reader._options["spool_bytes"] = 3000  # another way through the same transactions
    whole = dict(reader.held)
    for end in random.Random(4).sample(ends, min(len(ends), 8)):
        reader.batches.clear()
        reader.held = {key: write for key, write in whole.items() if write[0] <= end.version}
        reader.read(end)
        reader.assert_equal()


def test_positions_name_transactions_as_mariadb_does(reader: Reader) -> None:
    reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, 'x')")
    connection = reader.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@gtid_binlog_pos")
        (position,) = cursor.fetchone()
    connection.close()
    for batch in reader.source().read(reader.begin):
        if batch.end is not None and batch.changes:
            break
    assert batch.end is not None and batch.end.gtid in position.split(",")  # one a domain; other tests write in others
    assert batch.oldest_commit_us > 1_600_000_000_000_000


# -- XA -----------------------------------------------------------------------------------------------------------


def test_rows_of_an_xa_transaction_come_at_its_commit(reader: Reader) -> None:
    reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, 'old'), (2, 2, NULL, 'old')")
    prepare(
        reader,
        "'a','\\0b',7",
        "UPDATE events.t SET v = 'xa' WHERE id = 1",
        "DELETE FROM events.t WHERE id = 2",
    )
    prepare(reader, "'r'", "INSERT INTO events.t VALUES (9, 1, NULL, 'rolled back')")
    reader.execute("INSERT INTO events.t VALUES (3, 3, NULL, 'between')")
    reader.read()
    assert reader.held["t", 1][1] == (1, 1, None, "old")
    between = reader.held["t", 3][0]
    reader.execute("XA ROLLBACK 'r'", "XA COMMIT 'a','\\0b',7")
    reader.read()  # a new connection, from before the PREPARE
    reader.assert_equal()
    assert reader.held["t", 1][0] > between, "a chunk read in between would look newer"
    assert ("t", 9) not in reader.held


def test_an_xa_commit_whose_rows_were_never_seen_halts_everything(reader: Reader) -> None:
    prepare(reader, "'early'", "INSERT INTO events.t VALUES (1, 1, NULL, 'xa')")
    reader.begin = reader.source().now()
    reader.execute("XA COMMIT 'early'")
    reader.read()
    halts = [halt for batch in reader.batches for halt in batch.halts]
    assert {halt.followed.table.name for halt in halts} == set(TABLES)


# -- statements ---------------------------------------------------------------------------------------------------


def halts_of(reader: Reader, *statements: str) -> list[str]:
    """The reasons of what halts up to the end of these."""
    reader.execute(*statements)
    end = binlog_end(reader._server)
    source = reader.source()
    reasons: list[str] = []
    for batch in source.read(reader.begin):
        reasons += [halt.reason for halt in batch.halts]
        if batch.end is not None and batch.end.version >= end.version:
            break
    source.interrupt()
    return reasons


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE OR REPLACE TABLE events.t (id INT PRIMARY KEY, n INT, j JSON, v VARCHAR(2000))",
        "CREATE OR REPLACE TABLE `events`.t (PRIMARY KEY (id)) AS SELECT id FROM events.unfollowed",
        "ALTER TABLE events.t ADD SYSTEM VERSIONING",
        "DROP TABLE events.t",
        "SET STATEMENT binlog_format = 'STATEMENT', sql_mode = 'ANSI' FOR DELETE FROM events.t",
        "SET STATEMENT lock_wait_timeout = 5 FOR RENAME TABLE events.t TO events.gone",
        "ALTER IGNORE TABLE events.t ADD UNIQUE (n)",
        "ALTER ONLINE TABLE events.t DROP COLUMN n",
        "CREATE OR REPLACE DATABASE events",
        "SET STATEMENT sql_mode = '' FOR ALTER TABLE events.t MODIFY n INT NOT NULL, ALGORITHM=INPLACE",
    ],
)
def test_a_statement_that_changes_rows_without_row_events_halts_the_table(reader: Reader, statement: str) -> None:
    reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, 'x')")
    reason = halts_of(reader, statement)[0]
    assert "events.t" in reason and "replay VIEW" in reason


def test_statements_about_other_tables_halt_nothing(reader: Reader) -> None:
    assert not halts_of(
        reader,
        "CREATE OR REPLACE TABLE events.t2 LIKE events.t",
        "CREATE OR REPLACE VIEW events.w AS SELECT id FROM events.unfollowed",
        "ALTER TABLE events.t2 ADD SYSTEM VERSIONING",
        "CREATE SEQUENCE events.sequence",
        "DO NEXTVAL(events.sequence)",
    )


def test_an_alter_in_two_steps_counts_where_it_is_decided(reader: Reader) -> None:
    """The statement stands in the binlog twice, with START and with COMMIT or ROLLBACK."""
    reader.execute(
        "INSERT INTO events.t VALUES (1, 1, NULL, 'x'), (2, 1, NULL, 'x')",
        "SET SESSION binlog_alter_two_phase = ON",
    )
    connection = reader.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_alter_two_phase = ON")
        with pytest.raises(pymysql.err.MySQLError):  # begun, and rolled back
            cursor.execute("ALTER TABLE events.t MODIFY n VARCHAR(9), ADD UNIQUE (n), ALGORITHM=COPY")
        assert not halts_of(reader, "DO 1")
        cursor.execute("ALTER TABLE events.t MODIFY n VARCHAR(9), ALGORITHM=COPY")
    connection.close()
    assert len(halts_of(reader, "DO 1")) == 1


# -- what cannot be read ------------------------------------------------------------------------------------------


def test_a_partial_row_image_halts_the_table_and_names_the_setting(reader: Reader) -> None:
    (reason,) = halts_of(
        reader,
        "INSERT INTO events.t VALUES (1, 1, NULL, 'x')",
        "SET SESSION binlog_row_image = MINIMAL",
        "UPDATE events.t SET v = 'y'",
    )
    assert "binlog_row_image" in reason


def test_rows_without_their_table_map_are_fatal(reader: Reader) -> None:
    reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, 'x')")
    dispatcher = Dispatcher(
        Wanted(
            followed=reader._followed,
            watermark=reader.source()._watermark,
            own_schemas=frozenset(),
            spool_bytes=1 << 20,
            max_event_bytes=1 << 20,
        ),
        after=reader.begin,
        has_checksums=True,
    )
    body = bytes(8) + b"\x01\x01"
    with pytest.raises(SourceError, match="no table map"):
        dispatcher._others.handle(Event(23, 0, bytes(24) + body, 24, 24 + len(body), 10**6, 40))


def test_a_table_is_read_whose_name_is_not_ascii_and_whose_map_has_geometry(mariadb_server: Server) -> None:
    """GEOMETRY is numbered among the columns with a character set, which shifts those behind it."""
    reader = Reader(mariadb_server)
    reader.execute(
        "CREATE OR REPLACE TABLE events.u (a VARCHAR(20), b INT, v VARCHAR(200) CHARACTER SET latin1, g GEOMETRY, "
        "w VARCHAR(9) CHARACTER SET utf16, x VARBINARY(9), PRIMARY KEY (a, b))"
    )
    reader.begin = reader.source().now()
    reader.execute("INSERT INTO events.u VALUES ('ä', 1, 'é', POINT(1, 2), 'x', x'00')")
    reader.read()
    assert reader.held["u", ("ä", 1)][1] == ("ä", 1, "é")


# -- system-versioned tables --------------------------------------------------------------------------------------

VERSIONED = {
    "hidden": "(id INT PRIMARY KEY, n INT, w VARCHAR(20)) WITH SYSTEM VERSIONING",
    "named": "(id INT PRIMARY KEY, n INT, w VARCHAR(20), a TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
    "b TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (a, b)) WITH SYSTEM VERSIONING",
    "partitioned": "(id INT PRIMARY KEY, n INT, w VARCHAR(20)) WITH SYSTEM VERSIONING PARTITION BY SYSTEM_TIME "
    "(PARTITION p0 HISTORY, PARTITION pn CURRENT)",
    "in_part": "(id INT PRIMARY KEY, n INT, w VARCHAR(20) WITHOUT SYSTEM VERSIONING) WITH SYSTEM VERSIONING",
}


@pytest.mark.parametrize("name", VERSIONED)
def test_of_a_system_versioned_table_current_rows_come_and_no_others(
    reader: Reader, mariadb_server: Server, name: str
) -> None:
    reader.execute(f"CREATE TABLE events.{name} {VERSIONED[name]}")
    with open_session(reader._address, role="source") as session:
        table = describe(session, "events", name)
    assert table.primary_key == ("id",)
    # With the end of validity among what is shown, where it can be, too.
    reader._followed = {("events", name): Followed(table, tuple(column.name for column in table.columns))}
    begin = reader.source().now()
    chance = random.Random(name)
    connection = reader.connect()
    with connection.cursor() as cursor:
        for _ in range(150):
            number, text = chance.randrange(30), chance.choice(("é", "x" * 20))
            cursor.execute(f"SET GLOBAL log_bin_compress = {chance.choice(('ON', 'OFF'))}")
            statements = (
                f"REPLACE INTO events.{name} (id, n, w) VALUES ({number}, {chance.randrange(99)}, '{text}')",
                f"INSERT INTO events.{name} (id, n) VALUES ({number}, 1) ON DUPLICATE KEY UPDATE n = n + 1",
                f"UPDATE events.{name} SET n = n + 1 WHERE id > {number}",
                f"UPDATE events.{name} SET w = CONCAT(LEFT(w, 3), {number}) WHERE id > {number}",
                f"UPDATE IGNORE events.{name} SET id = id + 1 WHERE id = {number}",
                f"DELETE FROM events.{name} WHERE id < {number} LIMIT 3",
            )
            cursor.execute(chance.choice(statements))
            if chance.random() < 0.05:
                cursor.execute(f"DELETE HISTORY FROM events.{name}")
        columns = ", ".join(column.name for column in table.columns)
        cursor.execute(f"SELECT {columns} FROM events.{name}")
        wanted = {row[0]: row[:3] for row in cursor.fetchall()}
        cursor.execute(f"DELETE FROM events.{name} WHERE id = {max(wanted)}")
        del wanted[max(wanted)]
        cursor.execute(f"SELECT COUNT(*) FROM events.{name} FOR SYSTEM_TIME ALL")
        assert cursor.fetchone()[0] > len(wanted) > 1
    connection.close()
    held: dict[int, Row] = {}
    source, end = reader.source(), binlog_end(mariadb_server)
    for batch in source.read(begin):
        assert not batch.halts, batch.halts
        for _, kind, _, rows, *_ in batch.changes:
            for old in rows[:: 2 if kind == UPDATE else 1] if kind != INSERT else ():
                assert held.pop(old[0])[:3] == old[:3]
            for new in rows[kind == UPDATE :: 2 if kind == UPDATE else 1] if kind != DELETE else ():
                assert new[0] not in held
                held[new[0]] = new
        if batch.end is not None and batch.end.version >= end.version:
            break
    source.interrupt()
    assert {key: row[:3] for key, row in held.items()} == wanted


def test_a_table_versioned_by_transaction_numbers_is_refused_by_name(reader: Reader) -> None:
    """[M, 10.11] Its changes stand in the binlog as statements, whatever binlog_format says."""
    reader.execute(
        "CREATE TABLE events.numbered (id INT PRIMARY KEY, a BIGINT UNSIGNED GENERATED ALWAYS AS ROW START, "
        "b BIGINT UNSIGNED GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (a, b)) WITH SYSTEM VERSIONING",
        "INSERT INTO events.numbered (id) VALUES (1)",
    )
    with (
        open_session(reader._address, role="source") as session,
        pytest.raises(DeclarationError, match=r"events\.numbered is system-versioned by transaction numbers"),
    ):
        describe(session, "events", "numbered")
    assert b"INSERT INTO events.numbered (id) VALUES (1)" in statements_in_the_binlog(reader._server)


def test_a_table_that_becomes_system_versioned_is_not_read_by_its_old_description(reader: Reader) -> None:
    """Also where the statement is not in the binlog: two columns appear, of names that a user may have given."""
    reader.execute("SET SESSION sql_log_bin = OFF", "ALTER TABLE events.t ADD SYSTEM VERSIONING")
    (reason,) = halts_of(reader, "INSERT INTO events.t (id) VALUES (1)")
    assert "row_end" in reason and "replay VIEW" in reason


# -- heartbeats ---------------------------------------------------------------------------------------------------


def test_an_idle_server_is_heard_of(reader: Reader) -> None:
    reader._options["heartbeat_s"] = 1  # type: ignore[assignment]
    source = reader.source()
    reading = threading.Thread(target=lambda: list(source.read(reader.begin)), daemon=True)
    reading.start()
    wait_for("the end is reached", lambda: source.progress.is_at_end)
    received_at = source.progress.received_at
    wait_for("a heartbeat", lambda: source.progress.received_at > received_at + 0.5)
    assert source.progress.reconnect_count == 0
    source.interrupt()
    reading.join()


# -- old formats --------------------------------------------------------------------------------------------------


def test_columns_of_formats_that_cannot_be_read_exactly_are_refused_by_name(reader: Reader) -> None:
    reader.execute(
        "SET GLOBAL mysql56_temporal_format = OFF",
        "CREATE TABLE events.whole (id INT PRIMARY KEY, t TIME, d DATETIME, s TIMESTAMP NULL, y YEAR(2), z INT)",
        "CREATE TABLE events.fraction (id INT PRIMARY KEY, t TIME(3), z INT)",
        "SET GLOBAL mysql56_temporal_format = ON",
    )
    with open_session(reader._address, role="source") as session:
        whole, fraction = describe(session, "events", "whole"), describe(session, "events", "fraction")
    kinds = {column.name: column.kind for column in (*whole.columns, *fraction.columns)}
    assert [name for name, kind in kinds.items() if kind is Kind.UNSUPPORTED] == ["t", "d", "s", "y"]
    reader._followed |= {("events", table.name): Followed(table, ("id", "z")) for table in (whole, fraction)}
    reasons = halts_of(
        reader,
        "INSERT INTO events.whole VALUES (1, '-01:02:03', '2020-01-02 03:04:05', '2020-01-02 03:04:05', 20, 77)",
        "INSERT INTO events.fraction VALUES (1, '01:02:03.456', 77)",
    )
    assert len(reasons) == 1 and "events.fraction, column t" in reasons[0]
    assert "mysql56_temporal_format" in reasons[0]
