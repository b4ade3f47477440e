"""Describing tables and reading canonical rows on a real server, and what happens when it goes wrong
half-way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest

from ingest.canonical import describe, fetch_rows, select_list
from ingest.canonical.chunks import CanonicalRows
from ingest.canonical.rows import Fetch, TableRows, fetch_bounded
from ingest.canonical.sampling import sampled
from stack.server import Server
from tests.support.statements import run
from viewtail.changes.batches import Unreadable
from viewtail.changes.errors import (
    DeclarationError,
    SourceError,
    SourceUnavailableError,
    StoreError,
    TablesChangedError,
)
from viewtail.changes.tables import Column, Kind, NamePattern
from viewtail.servers.sessions import MySQLAddress, open_session

pytestmark = pytest.mark.mysql

SCHEMA = "canonical"
NUMBER = Column(name="n", kind=Kind.INTEGER, declared="bigint", is_nullable=True)
TEXT = Column(name="t", kind=Kind.TEXT, declared="longtext", is_nullable=True, charset="utf8mb4")
RAW = Column(name="b", kind=Kind.BYTES, declared="longblob", is_nullable=True)


def address(server: Server, user: str = "root") -> MySQLAddress:
    return MySQLAddress(host=server.host, port=server.port, user=user)


@pytest.fixture(scope="module")
def schema(mysql_server: Server) -> Iterator[None]:
    connection = open_session(address(mysql_server), role="source")
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {SCHEMA}")
        cursor.execute("SET GLOBAL max_allowed_packet = 268435456")
    yield
    connection.close()


@pytest.fixture
def session(mysql_server: Server, schema: None) -> Iterator[pymysql.Connection[Any]]:
    connection = open_session(address(mysql_server), role="source")
    connection.max_allowed_packet = 1 << 28
    run(connection, f"USE {SCHEMA}")
    yield connection
    if connection.open:
        connection.close()


def is_usable(connection: pymysql.Connection[Any]) -> bool:
    return fetch_rows(connection, "SELECT 7", [NUMBER]) == [(7,)] and run(connection, "SELECT 8") == ((8,),)


# --- describe ---


def test_a_description_holds_keys_labels_and_every_kind(session: pymysql.Connection[Any]) -> None:
    run(
        session,
        r"""CREATE TABLE described (
            b INT NOT NULL, a VARCHAR(20) CHARACTER SET latin1 NOT NULL, u BIGINT UNSIGNED NOT NULL, n INT,
            e ENUM('it''s', 'b\\s', 'n\nl', 'c,d', '(x) unsigned'), d DECIMAL(10,3), ts TIMESTAMP(4) NULL,
            w VARCHAR(9) CHARACTER SET utf16, h INT INVISIBLE, g INT AS (b + 1) VIRTUAL, x BIT(9), y YEAR, v VECTOR(3),
                z ENUM('a') CHARACTER SET binary,
            PRIMARY KEY (a, b), UNIQUE only_this (u), UNIQUE has_null (n), UNIQUE has_prefix (a(3)),
            UNIQUE functional ((b + u)), UNIQUE two (u, b), KEY plain (b))""",
    )
    table = describe(session, SCHEMA, "described")
    assert table.full_name == "canonical.described"
    assert table.primary_key == ("a", "b")
    assert sorted(table.unique_keys) == [("u",), ("u", "b")]
    found = {column.name: column for column in table.columns}
    assert list(found) == ["b", "a", "u", "n", "e", "d", "ts", "w", "h", "g", "x", "y", "v", "z"]
    assert found["e"].labels == ("it's", "b\\s", "n\nl", "c,d", "(x) unsigned") and not found["e"].is_unsigned
    assert (found["a"].charset, found["a"].length, found["a"].is_nullable) == ("latin1", 20, False)
    assert found["u"].is_unsigned and found["u"].declared == "bigint unsigned"
    assert (found["d"].precision, found["d"].scale, found["ts"].scale) == (10, 3, 4)
    assert (found["x"].kind, found["x"].length, found["y"].kind) == (Kind.INTEGER, 9, Kind.INTEGER)
    assert (found["w"].kind, found["w"].charset) == (Kind.TEXT, "utf16")
    assert found["z"].kind is Kind.UNSUPPORTED
    assert found["v"].kind is Kind.VECTOR


def test_tables_that_cannot_be_followed_are_refused_by_name(
    session: pymysql.Connection[Any], mysql_server: Server
) -> None:
    run(session, "CREATE TABLE hidden (id INT PRIMARY KEY)", "CREATE VIEW looks AS SELECT 1 AS one")
    run(session, "CREATE USER IF NOT EXISTS nobody", "GRANT USAGE ON *.* TO nobody")
    with pytest.raises(DeclarationError, match=r"canonical\.absent does not exist"):
        describe(session, SCHEMA, "absent")
    with pytest.raises(DeclarationError, match=r"canonical\.looks is no base table but a view"):
        describe(session, SCHEMA, "looks")
    stranger = open_session(address(mysql_server, "nobody"), role="source")
    with pytest.raises(DeclarationError, match=r"nobody may not see it.*GRANT SELECT ON `canonical`\.`hidden`"):
        describe(stranger, SCHEMA, "hidden")
    with pytest.raises(StoreError, match="1142"):
        fetch_rows(stranger, "SELECT id FROM canonical.hidden", [NUMBER])
    assert is_usable(stranger)
    stranger.close()


# --- fetch_rows, and Fetch ---


def fetched(connection: pymysql.Connection[Any], sql: str, columns: list[Column]) -> list[Any]:
    """By either way: they give the same."""
    fetch = Fetch(connection, sql, columns)
    fetch.send()
    fetch.receive()
    found = fetch_rows(connection, sql, columns)
    assert fetch.rows() == found
    return found


def test_identifiers_are_quoted(session: pymysql.Connection[Any]) -> None:
    run(session, "CREATE TABLE odd (`a``b, 1` FLOAT)", "INSERT INTO odd VALUES (1.23456789), (-0e0), (NULL)")
    columns = describe(session, SCHEMA, "odd").columns
    rows = fetch_rows(session, f"SELECT {select_list(columns)} FROM odd", columns)
    assert repr(rows) == "[(1.2345678806304932,), (-0.0,), (None,)]"


def test_results_of_every_size_arrive_whole(session: pymysql.Connection[Any]) -> None:
    assert fetched(session, "SELECT 1 FROM dual WHERE FALSE", [NUMBER]) == []
    for length in (0, 1, 250, 251, 252, 65_535, 65_536, 300_000):
        sql = f"SELECT 1, REPEAT('é', {length}), REPEAT(x'00', {length}) UNION ALL SELECT NULL, NULL, ''"
        rows = fetched(session, sql, [NUMBER, TEXT, RAW])
        assert rows == [(1, "é" * length, bytes(length)), (None, None, b"")]
    many = fetched(
        session,
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r LIMIT 900), s AS (SELECT 1 FROM r LIMIT 200) "
        "SELECT n, REPEAT('x', n) FROM r, s",
        [NUMBER, TEXT],
    )
    assert len(many) == 180_000 and all(len(text) == number for number, text in many)
    for count in (250, 251, 300, 1_000):
        assert fetched(session, f"SELECT {', '.join(map(str, range(count)))}", [NUMBER] * count) == [
            tuple(range(count))
        ]
    assert is_usable(session)


@pytest.mark.parametrize("extra", [-30, -9, -6, -5, -4, -1, 0, 1, 0xFFFFFF - 9, 0xFFFFFF, 9_000_000])
def test_rows_around_and_above_16_mib_arrive_whole(session: pymysql.Connection[Any], extra: int) -> None:
    length = 0xFFFFFF + extra  # with 9 bytes of length before the text, the packet limit is met exactly too
    rows = fetched(
        session, f"SELECT 1, REPEAT('y', {length}) UNION ALL SELECT 2, 'z'", [NUMBER, TEXT]
    )  # fmt: skip
    assert [(number, len(text), set(text)) for number, text in rows] == [(1, length, {"y"}), (2, 1, {"z"})]
    assert is_usable(session)


def test_a_fetch_that_the_server_refuses_is_told_when_its_answer_is_taken(session: pymysql.Connection[Any]) -> None:
    for sql, number in (("SELECT a FROM absent", "1146"), ("SELECT 1 + (SELECT 1 UNION SELECT 2)", "1242")):
        fetch = Fetch(session, sql, [NUMBER])
        fetch.send()
        with pytest.raises(SourceError, match=number):
            fetch.receive()
        assert is_usable(session)


def test_a_fetch_of_other_columns_or_of_a_lost_session_is_told(session: pymysql.Connection[Any]) -> None:
    fetch = Fetch(session, "SELECT 1, 2", [NUMBER])
    fetch.send()
    fetch.receive()
    with pytest.raises(SourceError, match="gave 2"):
        fetch.rows()
    assert is_usable(session)
    session.close()
    with pytest.raises(SourceUnavailableError):
        Fetch(session, "SELECT 1", [NUMBER]).send()


def test_a_text_that_is_invalid_stands_as_unreadable(session: pymysql.Connection[Any]) -> None:
    run(session, "CREATE TABLE IF NOT EXISTS good (t VARCHAR(9))", "INSERT INTO good VALUES ('fine'), ('é')")
    rows = fetch_rows(
        session,
        "SELECT 1, 'fine' UNION ALL SELECT 2, CAST(x'ff41' AS BINARY) UNION ALL SELECT 3, 'é'",
        [NUMBER, TEXT],
    )
    assert [row[0] for row in rows] == [1, 2, 3]
    assert (rows[0][1], rows[2][1]) == ("fine", "é")
    assert isinstance(rows[1][1], Unreadable) and rows[1][1].column == "t"
    assert is_usable(session)


def test_an_error_before_or_amid_the_rows_leaves_the_connection_usable(
    session: pymysql.Connection[Any],
) -> None:
    with pytest.raises(SourceError, match=r"1146.*absent") as raised:
        fetch_rows(session, "SELECT 1 FROM absent", [NUMBER])
    assert not isinstance(raised.value, SourceUnavailableError)
    assert is_usable(session)
    # An error in the middle of the rows: rows are sent until the one that cannot be computed.
    run(session, "CREATE TABLE amid (n INT PRIMARY KEY)")
    run(
        session,
        "INSERT INTO amid WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r LIMIT 900) SELECT n FROM r",
    )
    sql = "SELECT n, REPEAT('x', 900) + EXP(n) FROM amid ORDER BY n"
    with pytest.raises(SourceError, match="1690"):
        fetch_rows(session, sql, [NUMBER, TEXT])
    fetch = Fetch(session, sql, [NUMBER, TEXT])
    fetch.send()
    with pytest.raises(SourceError, match="1690"):
        fetch.receive()
    assert is_usable(session)


@pytest.mark.parametrize("fetch", [fetch_rows, lambda *given: fetch_bounded(*given, 1)])
def test_a_connection_killed_amid_the_rows_is_closed_and_temporary(
    session: pymysql.Connection[Any], mysql_server: Server, fetch: Callable[..., Any]
) -> None:
    ((number,),) = run(session, "SELECT CONNECTION_ID()")
    started = threading.Event()

    def kill() -> None:
        with open_session(address(mysql_server), role="source") as other:
            started.wait()
            while not run(other, f"SELECT 1 FROM information_schema.processlist WHERE id = {number} AND state <> ''"):
                pass
            run(other, f"KILL {number}")

    killer = threading.Thread(target=kill)
    killer.start()
    started.set()
    with pytest.raises(SourceUnavailableError):
        fetch(session, "SELECT 1, REPEAT('x', 100000) UNION ALL SELECT 2, SLEEP(30)", [NUMBER, TEXT])
    killer.join()
    assert not session.open
    with pytest.raises(SourceUnavailableError):
        fetch_rows(session, "SELECT 1", [NUMBER])


def test_an_answer_that_does_not_fit_closes_the_connection(session: pymysql.Connection[Any]) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        fetch_rows(session, "SELECT 'no number'", [NUMBER])
    assert not session.open


def test_two_columns_where_one_is_expected_are_refused(session: pymysql.Connection[Any]) -> None:
    with pytest.raises(SourceError, match="1 column gave 2"):
        fetch_rows(session, "SELECT 1, 2", [NUMBER])
    assert not session.open


def test_small_pieces_from_the_network_make_the_same_rows(
    session: pymysql.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "SELECT 1, 'abc', NULL UNION ALL SELECT 22, REPEAT('é', 200), REPEAT('b', 70000)"
    whole = fetch_rows(session, sql, [NUMBER, TEXT, RAW])
    monkeypatch.setattr("ingest.canonical.rows._READ_BYTES", 1)
    assert fetch_rows(session, sql, [NUMBER, TEXT, RAW]) == whole
    assert is_usable(session)


def test_reading_ends_behind_the_row_that_reaches_the_bound(session: pymysql.Connection[Any]) -> None:
    numbers = "WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 500)"
    sql = f"{numbers} SELECT n, REPEAT('x', 100000) FROM t"
    some = fetch_rows(session, sql, [NUMBER, TEXT], 1 << 20)
    assert [n for n, _ in some] == list(range(1, len(some) + 1)) and 11 <= len(some) < 50
    assert not session.open


def test_a_row_above_the_bound_is_read_all_the_same_and_a_result_below_it_leaves_the_connection_open(
    session: pymysql.Connection[Any],
) -> None:
    sql = "SELECT 1, REPEAT('x', 17000000) UNION ALL SELECT 2, 'y'"
    assert len(fetch_rows(session, sql, [NUMBER, TEXT], 1 << 30)) == 2
    assert is_usable(session)
    ((number, text),) = fetch_rows(session, sql, [NUMBER, TEXT], 1)
    assert (number, len(text)) == (1, 17_000_000)


def test_what_comes_behind_the_bound_is_dropped_and_the_snapshot_stays(
    session: pymysql.Connection[Any], mysql_server: Server
) -> None:
    run(session, "CREATE TABLE stays (n INT PRIMARY KEY)", "SET SESSION transaction_isolation = 'REPEATABLE-READ'")
    run(session, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    numbers = "WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 500)"
    some, is_cut = fetch_bounded(session, f"{numbers} SELECT n, REPEAT('x', 100000) FROM t", [NUMBER, TEXT], 1 << 20)
    assert is_cut and [n for n, _ in some] == list(range(1, len(some) + 1)) and 11 <= len(some) < 50
    assert is_usable(session)
    with open_session(address(mysql_server), role="source") as other:
        run(other, f"INSERT INTO {SCHEMA}.stays VALUES (1)", "COMMIT")
    assert fetch_rows(session, "SELECT n FROM stays", [NUMBER]) == []


@pytest.mark.parametrize(
    ("rows", "max_bytes", "count", "is_cut"),
    [
        ("SELECT 1, 'x' FROM DUAL WHERE FALSE", 1, 0, False),
        ("SELECT 1, 'x' UNION ALL SELECT 2, 'y'", 1 << 30, 2, False),
        ("SELECT 1, REPEAT('x', 300000)", 1, 1, False),  # the bound is reached, and nothing is behind it
        ("SELECT 1, REPEAT('x', 300000) UNION ALL SELECT 2, REPEAT('x', 300000)", 300_010, 1, True),
        ("SELECT 1, REPEAT('x', 300000) UNION ALL SELECT 2, REPEAT('x', 300000)", 300_011, 2, False),
        # rows of several packets, whose later ones begin like an end, an error and a NULL
        ("SELECT 1, REPEAT('x', 17000000) UNION ALL SELECT 2, REPEAT(X'FEFFFB', 12000000)", 1, 1, True),
        (f"SELECT 1, REPEAT('x', 300000) UNION ALL SELECT 2, REPEAT('x', {0xFFFFFF - 6})", 1, 1, True),
    ],
)
def test_it_is_told_whether_rows_were_dropped(
    session: pymysql.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    rows: str,
    max_bytes: int,
    count: int,
    is_cut: bool,
) -> None:
    for read_bytes in (1, 1 << 18):
        monkeypatch.setattr("ingest.canonical.rows._READ_BYTES", read_bytes)
        found, was_cut = fetch_bounded(session, rows, [NUMBER, RAW], max_bytes)
        assert [row[0] for row in found] == list(range(1, count + 1))
        assert was_cut == is_cut and is_usable(session)


def test_an_error_behind_the_bound_is_raised_and_leaves_the_connection_usable(
    session: pymysql.Connection[Any],
) -> None:
    numbers = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r LIMIT 900) SELECT n FROM r"
    run(session, "CREATE TABLE behind (n INT PRIMARY KEY)", f"INSERT INTO behind {numbers}")
    sql = "SELECT EXP(IF(n = 800, n, 0)), REPEAT('x', 20000) FROM behind ORDER BY n"
    with pytest.raises(SourceError, match="1690"):
        fetch_bounded(session, sql, [NUMBER, TEXT], 1)
    assert is_usable(session)


# --- defaults ---

DEFAULTS = """id INT PRIMARY KEY, n INT DEFAULT 5, t VARCHAR(20) DEFAULT 'it''s', e VARCHAR(20) DEFAULT '',
    d DATE NOT NULL DEFAULT '2001-02-03', moment TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, nothing INT,
    nil INT DEFAULT NULL, price DECIMAL(5, 2) DEFAULT 1.5"""


@pytest.mark.parametrize("name", ["mysql_server", pytest.param("mariadb_server", marks=pytest.mark.mariadb)])
def test_a_description_holds_the_columns_defaults(name: str, request: pytest.FixtureRequest) -> None:
    connection = open_session(address(request.getfixturevalue(name)), role="source")
    run(connection, "DROP DATABASE IF EXISTS defaults", "CREATE DATABASE defaults")
    run(connection, f"CREATE TABLE defaults.t ({DEFAULTS})")
    found = {column.name: column.default for column in describe(connection, "defaults", "t").columns}
    assert str(found.pop("moment")).upper().startswith("CURRENT_TIMESTAMP")
    assert found == {
        "id": None, "n": "5", "t": "it's", "e": "", "d": "2001-02-03", "nothing": None, "nil": None, "price": "1.50",
    }  # fmt: skip
    connection.close()


# --- a sample ---


def test_a_sample_has_as_many_rows_as_were_asked_for_whatever_gaps_the_keys_have(
    session: pymysql.Connection[Any],
) -> None:
    run(session, "CREATE TABLE sparse (id BIGINT PRIMARY KEY, n BIGINT)")
    near, far = range(1, 3001), [1 << 40, (1 << 41) + 7]
    run(session, f"INSERT INTO sparse VALUES {', '.join(f'({n}, {n})' for n in (*near, *far))}")
    table = describe(session, SCHEMA, "sparse")
    for count in (1, 100, 3001):
        found = sampled(session, table, ["id", "n"], count)
        assert len(found) == len(set(found)) == count
    assert len(sampled(session, table, ["id", "n"], 5000)) == 3002


def test_rows_as_they_are_now_are_read_anew_each_time_and_leave_no_snapshot_open(
    mysql_server: Server, session: pymysql.Connection[Any]
) -> None:
    """One statement a look: a transaction around it would cost three more round trips."""
    run(session, "CREATE TABLE anew (id INT PRIMARY KEY, t INT)", "INSERT INTO anew VALUES (1, 1)", "COMMIT")
    table = describe(session, SCHEMA, "anew")
    rows = CanonicalRows(
        TableRows(table),
        ["id", "t"],
        open_source=lambda: open_session(address(mysql_server), role="source"),
        shows=None,
        stop=threading.Event(),
    )
    try:
        assert rows.having(table.columns[:1], [(1,)], 0) == [(1, 1)]
        run(session, "UPDATE anew SET t = 2", "COMMIT", "SET lock_wait_timeout = 5", "ALTER TABLE anew ADD u INT")
        assert rows.having(table.columns[:1], [(1,)], 0) == [(1, 2)]
    finally:
        rows.close()


def test_a_table_with_a_tag_that_came_after_its_pattern_was_described_is_not_read_unmasked(
    mysql_server: Server, session: pymysql.Connection[Any]
) -> None:
    """Its CREATE TABLE is still to come in the stream."""
    run(session, "CREATE TABLE t1_user (id INT PRIMARY KEY, email VARCHAR(40))", "INSERT INTO t1_user VALUES (1, 'a')")
    table = describe(session, SCHEMA, NamePattern("t{tenant:int}_user"))

    def read() -> list[tuple[Any, ...]]:
        rows = CanonicalRows(
            TableRows(table),
            ["tenant", "id", "email"],
            open_source=lambda: open_session(address(mysql_server), role="source"),
            shows=None,
            stop=threading.Event(),
        )
        try:
            chunk = rows.after(None, 0)
            return [] if chunk is None else chunk.rows
        finally:
            rows.close()

    run(session, "CREATE TABLE t2_user (id INT PRIMARY KEY, email VARCHAR(40) COMMENT 'no tag')", "COMMIT")
    assert read() == [(1, 1, "a")]
    run(session, "CREATE TABLE t3_user (id INT PRIMARY KEY, email VARCHAR(40) COMMENT 'of people #ppi')", "COMMIT")
    with pytest.raises(TablesChangedError, match=r"t3_user is new, .* column email has a tag"):
        read()
    table = describe(session, SCHEMA, NamePattern("t{tenant:int}_user"))
    assert read() == [(1, 1, "a")]
