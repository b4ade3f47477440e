"""What a session may do beside row events: other character sets, temporary tables, changes in statement format."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pymysql
import pytest

from ingest.binlog.coordinates import BinlogPosition
from ingest.canonical import describe
from stack import Server
from tests.contract.test_events_of_a_server import Reader, prepare
from viewtail.changes.batches import Followed, Halt, TableChange, TableChangeKind
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import MySQLAddress, open_session


class Session:
    """One session, and what the followed tables of two databases are told of what it does."""

    def __init__(self, server: Server) -> None:
        self.reader = Reader(server)
        self.reader.execute("DROP DATABASE IF EXISTS beside", "CREATE DATABASE beside")
        self.reader.execute("CREATE TABLE beside.t (id INT PRIMARY KEY, v VARCHAR(20))")
        self._address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        self._follow("beside", "t")

    def _follow(self, schema: str, name: str) -> None:
        with open_session(self._address, role="source") as session:
            table = describe(session, schema, name)
        self.reader._followed[schema, name] = Followed(table, tuple(column.name for column in table.columns))

    def table(self, name: str) -> None:
        """One more table that is followed."""
        self.reader.execute(f"CREATE TABLE events.`{name}` (id INT PRIMARY KEY, v VARCHAR(20))")
        self._follow("events", name)

    def told(self, *statements: str | bytes, charset: str = "utf8mb4") -> tuple[list[Halt], list[TableChange]]:
        """Halts and table changes up to the end of these."""
        connection: Any = pymysql.connect(
            host="127.0.0.1",
            port=self._address.port,
            user="root",
            autocommit=True,
            charset=charset,
            local_infile=True,
        )
        with connection, connection.cursor() as cursor:
            begin = self._end(cursor)
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("DROP DATABASE IF EXISTS nobodys")  # it is in the binlog, whatever was before
            end = self._end(cursor)
        halts: list[Halt] = []
        table_changes: list[TableChange] = []
        source = self.reader.source()
        for batch in source.read(begin):
            halts += batch.halts
            table_changes += batch.table_changes
            if batch.end is not None and batch.end.version >= end.version:
                break
        source.interrupt()
        return halts, table_changes

    def _end(self, cursor: Any) -> BinlogPosition:
        cursor.execute(facts_of(cursor.connection).status)
        file, end, *_ = cursor.fetchone()
        return BinlogPosition(epoch=1, file=file, end=end, start=end)


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def session(request: pytest.FixtureRequest) -> Session:
    return Session(request.getfixturevalue(f"{request.param}_server"))


def names(halts: list[Halt]) -> set[str]:
    return {halt.followed.table.full_name for halt in halts}


def test_a_statement_that_stands_where_a_transaction_of_the_file_before_began_is_one_by_itself(
    session: Session,
) -> None:
    """Its GTID counts as seen: on another server the statement would be taken for a new one."""
    session.reader.execute(
        "FLUSH BINARY LOGS",
        "INSERT INTO events.t (id) VALUES (1)",
        "FLUSH BINARY LOGS",
        "TRUNCATE TABLE events.t",
    )
    with session.reader.connect() as connection, connection.cursor() as cursor:
        cursor.execute(facts_of(connection).executed)
        (executed,) = cursor.fetchone()
    source = session.reader.source()
    too_late = threading.Timer(10, source.interrupt)
    too_late.start()
    for batch in source.read(session.reader.begin):
        if batch.end is not None and batch.end.seen == executed.replace("\n", ""):
            break
    else:
        raise AssertionError(f"not all of {executed} was seen")
    too_late.cancel()
    assert [change.kind for change in batch.table_changes] == [TableChangeKind.EMPTIED]


# -- character sets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "charset"), [("tablé", "latin1"), ("表", "cp932"), ("表", "gbk"), ("表", "utf8mb4")])
def test_a_statement_is_read_in_the_character_set_of_its_client(session: Session, name: str, charset: str) -> None:
    session.table(name)
    _, (change,) = session.told(f"TRUNCATE TABLE events.`{name}`", charset=charset)
    assert (change.followed.table.name, change.kind) == (name, TableChangeKind.EMPTIED)
    halts, _ = session.told(f"ALTER TABLE events.`{name}` DROP COLUMN v", charset=charset)
    assert names(halts) == {f"events.{name}"}
    halts, _ = session.told(f"DROP TABLE events.`{name}`", charset=charset)
    assert names(halts) == {f"events.{name}"}


def test_a_backslash_inside_a_character_ends_no_string(session: Session) -> None:
    """In cp932 the second byte of 表 is a backslash, which hides no quote behind it there."""
    statement = "ALTER TABLE events.t COMMENT '表', DROP COLUMN n /* ' */"
    assert "表".encode("cp932").endswith(b"\\")
    halts, _ = session.told(statement, charset="cp932")
    assert names(halts) == {"events.t"}


# -- temporary tables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["STATEMENT", "MIXED", "ROW"])
def test_a_temporary_table_that_is_emptied_empties_no_view(session: Session, format_: str) -> None:
    """It has the name of a followed table, and its session may write statements."""
    halts, table_changes = session.told(
        f"SET SESSION binlog_format = {format_}", "CREATE TEMPORARY TABLE events.t (id INT)", "TRUNCATE TABLE events.t",
        "DROP TEMPORARY TABLE events.t",
    )  # fmt: skip
    assert not halts
    assert all(change.kind is TableChangeKind.THINNED for change in table_changes), (
        "what is gone is looked up in the table"
    )


# -- statement format ---------------------------------------------------------------------------------------------

_CHANGES = {
    "a trigger": "INSERT INTO events.origin VALUES (1)",
    "a function": "SELECT events.adds(2)",
    "a function whose value nobody wants": "DO events.adds(3)",
    "a view": "INSERT INTO events.w (id) VALUES (4)",
    "a procedure": "CALL events.runs()",
    "the table itself": "INSERT INTO events.t (id) VALUES (6)",
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", _CHANGES)
def test_a_change_in_statement_format_halts_all_that_it_may_have_reached(session: Session, way: str) -> None:
    """Its text need not name the table whose rows it changed."""
    session.reader.execute(
        "SET GLOBAL log_bin_trust_function_creators = ON",
        "CREATE TABLE events.origin (id INT PRIMARY KEY)",
        "CREATE TRIGGER events.follows AFTER INSERT ON events.origin FOR EACH ROW "
        "INSERT INTO events.t (id) VALUES (NEW.id)",
        "CREATE FUNCTION events.adds (i INT) RETURNS INT MODIFIES SQL DATA "
        "BEGIN INSERT INTO events.t (id) VALUES (i); RETURN 1; END",
        "CREATE PROCEDURE events.runs () INSERT INTO events.t (id) VALUES (5)",
        "CREATE VIEW events.w AS SELECT * FROM events.t",
    )
    halts, _ = session.told("SET SESSION binlog_format = STATEMENT", _CHANGES[way])
    assert names(halts) == {"events.t", "events.u"}, "and none of the other database"
    assert all("binlog_format = 'ROW'" in halt.reason and "replay VIEW" in halt.reason for halt in halts)


def test_mysql_says_which_databases_a_statement_reached(mysql_server: Server) -> None:
    """From a third one, by a trigger."""
    session = Session(mysql_server)
    session.reader.execute(
        "DROP DATABASE IF EXISTS third",
        "CREATE DATABASE third",
        "CREATE TABLE third.origin (id INT PRIMARY KEY)",
        "CREATE TRIGGER third.follows AFTER INSERT ON third.origin FOR EACH ROW "
        "INSERT INTO beside.t (id) VALUES (NEW.id)",
    )
    halts, _ = session.told("SET SESSION binlog_format = STATEMENT", "INSERT INTO third.origin VALUES (1)")
    assert names(halts) == {"beside.t"}


def test_a_change_in_statement_format_of_another_database_halts_nothing(session: Session) -> None:
    session.reader.execute(
        "DROP DATABASE IF EXISTS third",
        "CREATE DATABASE third",
        "CREATE TABLE third.alone (id INT PRIMARY KEY)",
    )
    halts, _ = session.told("SET SESSION binlog_format = STATEMENT", "INSERT INTO third.alone VALUES (1)")
    assert not halts


def test_a_file_that_is_loaded_in_statement_format_halts_what_it_may_have_reached(
    session: Session, tmp_path: Path
) -> None:
    """The file stands in events of its own before the statement."""
    (tmp_path / "rows.txt").write_text("".join(f"{i}\n" for i in range(300_000)))
    load = f"LOAD DATA LOCAL INFILE '{tmp_path}/rows.txt' INTO TABLE"
    session.reader.execute(
        "SET GLOBAL local_infile = ON",
        "CREATE TABLE events.other (id INT PRIMARY KEY)",
        "DROP DATABASE IF EXISTS third",
        "CREATE DATABASE third",
        "CREATE TABLE third.alone (id INT PRIMARY KEY)",
    )
    halts, _ = session.told("SET SESSION binlog_format = STATEMENT", f"{load} third.alone")
    assert not halts, "and reading goes on"
    halts, _ = session.told("SET SESSION binlog_format = STATEMENT", f"{load} events.other")
    assert names(halts) == {"events.t", "events.u"}


# -- what a view is taken up behind -------------------------------------------------------------------------------


def test_what_is_committed_behind_the_place_where_a_table_fits_comes_wherever_it_stands(
    session: Session,
) -> None:
    """Rows of an XA transaction may stand before that place, and are committed behind it."""
    reader = session.reader
    begin = reader.begin = reader.source().now()
    prepare(reader, "'x'", "INSERT INTO events.t (id, n) VALUES (1, 1)")
    reader.execute(
        "INSERT INTO events.t (id, n) VALUES (2, 2)",
        "SET SESSION binlog_row_image = MINIMAL",
        "UPDATE events.t SET n = 3 WHERE id = 2",
    )
    reader.read()
    (halt,) = (halt for batch in reader.batches for halt in batch.halts)
    reader.fits_from["events", "t"] = halt.version
    reader.execute("XA COMMIT 'x'", "INSERT INTO events.t (id, n) VALUES (4, 4)")
    reader.batches.clear()
    reader.held.clear()
    reader.read(begin)
    assert not [halt for batch in reader.batches for halt in batch.halts]
    assert {("t", 1), ("t", 4)} <= reader.held.keys()
