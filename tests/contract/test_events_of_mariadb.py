"""Every way in which a real MariaDB writes rows into its binlog, read and compared with the tables themselves."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pymysql
import pytest

from changes.errors import SourceError
from ingest.binlog.dispatcher import Dispatcher
from ingest.binlog.events import NAMES
from stack import Server
from tests.contract.test_events_of_a_server import TABLES, Reader, prepare
from tests.support.binlog_file import events

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


def change_at_random(reader: Reader, chance: random.Random, transactions: int) -> None:
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
                    cursor.execute(
                        "REPLACE INTO events.t VALUES (%s, %s, '[1, {\"k\":   2.5}]', %s)", (i, i, text)
                    )
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
    assert batch.end is not None and batch.end.gtid == position
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
    end = reader.source().now()
    source = reader.source()
    reasons: list[str] = []
    for batch in source.read(reader.begin):
        reasons += [halt.reason for halt in batch.halts]
        if batch.end is not None and batch.end.version >= end.version:
            break
    source.interrupt()
    return reasons


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE OR REPLACE TABLE events.t (id INT PRIMARY KEY, n INT, j JSON, v VARCHAR(2000))",
        "CREATE OR REPLACE TABLE `events`.t (PRIMARY KEY (id)) AS SELECT id FROM events.unfollowed",
        "ALTER TABLE events.t ADD SYSTEM VERSIONING",
        "TRUNCATE events.t",
        "SET STATEMENT binlog_format = 'STATEMENT', sql_mode = 'ANSI' FOR DELETE FROM events.t",
        "SET STATEMENT lock_wait_timeout = 5 FOR TRUNCATE events.t",
        "ALTER IGNORE TABLE events.t ADD UNIQUE (n)",
        "ALTER ONLINE TABLE events.t DROP COLUMN n",
        "CREATE OR REPLACE DATABASE events",
    ],
)
def test_a_statement_that_changes_rows_without_row_events_halts_the_table(
    reader: Reader, statement: str
) -> None:
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
        followed=reader._followed,
        watermark=reader.source()._watermark,
        own_schemas=frozenset(),
        after=reader.begin,
        has_checksums=True,
        spool_bytes=1 << 20,
        max_event_bytes=1 << 20,
    )
    body = bytes(8) + b"\x01\x01"
    with pytest.raises(SourceError, match="no table map"):
        dispatcher._unusual(23, 0, bytes(24) + body, 24, 24 + len(body), 10**6, 40)


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
