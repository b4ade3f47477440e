"""What the fuzzer starts from: every kind of transaction that real servers write, as they wrote it, and its rows.

A corpus is taken from a server's binlog file; that its rows are true is seen by the server's own answer
(`Corpus.rows`).
"""

from __future__ import annotations

import pickle
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import pymysql

import stack.mariadb
import stack.mysql
from ingest.canonical import describe, fetch_rows, select_list
from stack import Server
from viewtail.changes import batches, tables
from viewtail.changes.batches import Followed, Row
from viewtail.servers.sessions import MySQLAddress, open_session

HEAD = struct.Struct("<IBIIIH")  # time, type, server id, size, end position, flags
OWN = "fuzz_own"  # the database that takes the place of viewtail's own
_FORMAT_DESCRIPTION, _BEGINNINGS = 15, (33, 34, 42, 162)
_ROWS_V1 = {23: 30, 24: 31, 25: 32, 166: 169, 167: 170, 168: 171}  # and the same of the second version
_CHECKSUM = bytes(4)  # the mutator makes them

Key = tuple[str, str]
Events = Sequence[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """One server's transactions as lists of whole events (header and checksum included), and how to read them."""

    name: str
    described: bytes  # the format description at the beginning of the file
    opening: Events  # what stands between that and the first transaction
    transactions: Sequence[Events]
    usual: range  # those of them that the quick walk takes in, one like the other
    written: int  # so many of them the server wrote; those behind are made of them
    followed: dict[Key, Followed]
    rows: dict[Key, list[Row]]  # what the tables held behind the last that was written
    kinds: tuple[int, ...]  # types of events, to put in the place of another


_MYSQL_TABLES = (
    """CREATE TABLE fuzz.t (id INT PRIMARY KEY, n DECIMAL(20,5), j JSON, v VARCHAR(300), e ENUM('a','b'),
       s SET('x','y'), d DATETIME(3), m TIMESTAMP(6) NULL, k TIME(2), y YEAR, b BIT(12), f DOUBLE, x BINARY(5),
       w BLOB)""",
    """CREATE TABLE fuzz.c (id INT PRIMARY KEY, a VARCHAR(50) CHARACTER SET gbk, b TEXT CHARACTER SET utf16,
       c CHAR(20) CHARACTER SET sjis, d VARCHAR(20) CHARACTER SET ucs2, e ENUM('ä','č') CHARACTER SET latin2,
       f VARCHAR(20) CHARACTER SET gb18030, g SET('x','y') CHARACTER SET utf32, h VARCHAR(9) CHARACTER SET eucjpms)""",
    "CREATE TABLE fuzz.u (a VARCHAR(20), b BIGINT UNSIGNED, v VARCHAR(20) CHARACTER SET latin1, PRIMARY KEY (a, b))",
    "CREATE TABLE fuzz.q (id INT PRIMARY KEY, n MEDIUMINT, v VARCHAR(40), k TIME(2), m INT NOT NULL)",
)
_MYSQL_KINDS = (2, 4, 13, 15, 16, 19, 26, 30, 31, 32, 33, 35, 38, 39, 40, 42, 99, 255)
_ROW = (
    "({}, 1.5, '{{\"a\": [1, 2.5, null, {{\"k\": \"text\"}}], \"b\": true}}', 'some text', 'a', 'x,y', "
    "'2024-01-02 03:04:05.678', '2024-01-02 03:04:05', '-12:00:01.5', 2024, b'101', 1e10, 'ab', 'blob')"
)
_OWN_CHANGES = (
    f"REPLACE INTO {OWN}.watermark VALUES (1, REPEAT('f', 32))",
    f"REPLACE INTO {OWN}.source VALUES (1)",
)


def of_mysql(server: Server) -> Corpus:
    """Every kind of transaction in a binlog of its own."""
    statements = []
    for compression in ("OFF", "ON"):
        statements.append(f"SET binlog_transaction_compression = {compression}")
        for partial in ("", "PARTIAL_JSON"):
            statements.append(f"SET binlog_row_value_options = '{partial}'")
            statements += _mysql_changes(compression + partial)
    statements += ["SET binlog_transaction_compression = OFF", "SET binlog_row_value_options = ''"]
    statements += _mysql_changes("")[3:6]  # what is there at the end is compared
    return _written(server, "mysql", _MYSQL_TABLES, statements, _MYSQL_KINDS, _usual_changes())


def _mysql_changes(name: str) -> list[str]:
    return [
        f"REPLACE INTO fuzz.t VALUES {_ROW.format(1)}, {_ROW.format(2)}, (3{', NULL' * 13})",
        "UPDATE fuzz.t SET n = n + 1, j = JSON_SET(j, '$.a[1]', 'other', '$.new', 1.25) WHERE id < 3",
        "UPDATE fuzz.t SET j = JSON_REMOVE(j, '$.b', '$.a[0]'), v = REPEAT('v', 250)",
        "REPLACE INTO fuzz.u VALUES ('ä', 18446744073709551615, 'é'), ('b', 2, NULL)",
        "REPLACE INTO fuzz.c VALUES (1, '中文', '😀é', 'かな', 'é', 'č', '😀', 'x,y', '漢字')",
        "REPLACE INTO fuzz.c VALUES (2, 'a', 'b' ,'c', 'd', 'ä', 'e', '', 'f')",
        *_OWN_CHANGES,
        "BEGIN", "DELETE FROM fuzz.u", "DELETE FROM fuzz.c", "SAVEPOINT s",
        f"REPLACE INTO fuzz.t VALUES {_ROW.format(4)}", "COMMIT",
        f"XA START '{name}'", f"REPLACE INTO fuzz.t VALUES {_ROW.format(5)}", f"XA END '{name}'",
        f"XA PREPARE '{name}'", f"XA COMMIT '{name}'",
        "SET SESSION gtid_next = 'AUTOMATIC:tag'", "DELETE FROM fuzz.t WHERE id = 5",
        "SET SESSION gtid_next = AUTOMATIC", "ALTER TABLE fuzz.u COMMENT 'x'",
    ]  # fmt: skip


def _usual_changes() -> list[str]:
    """A row or a few at a time, of one table: with and without NULLs, and each kind of row event."""
    found = []
    for number in range(0, 60, 3):
        text = "NULL" if number % 4 == 0 else f"'{'é' * (number % 7)}'"
        found += [
            f"INSERT INTO fuzz.q VALUES ({number}, -{number}, {text}, '-0{number % 9}:00:01.25', {number})",
            f"""INSERT INTO fuzz.q VALUES ({number + 1}, NULL, 'v', NULL, 1),
                ({number + 2}, 8388607, '', '838:59:59', 2)""",
            f"UPDATE fuzz.q SET n = {number}, v = CONCAT(v, 'w') WHERE id <= {number} AND id > {number} - 9",
            f"DELETE FROM fuzz.q WHERE id = {number - 10}",
        ]
    return found


_MARIADB_TABLES = (
    """CREATE TABLE fuzz.t (id INT PRIMARY KEY, n DECIMAL(20,5), j JSON, v VARCHAR(300), e ENUM('a','b'),
       s SET('x','y'), d DATETIME(3), m TIMESTAMP(6) NULL, k TIME(2), y YEAR, b BIT(12), f DOUBLE, x BINARY(5),
       w BLOB)""",
    """CREATE TABLE fuzz.c (id UUID PRIMARY KEY, a INET6, b INET4, c VARCHAR(900) COMPRESSED CHARACTER SET latin1,
       d BLOB COMPRESSED, g GEOMETRY, h VARCHAR(20) CHARACTER SET utf16, i INT INVISIBLE)""",
    """CREATE TABLE fuzz.u (a VARCHAR(20), b BIGINT UNSIGNED, v VARCHAR(20) CHARACTER SET latin1, PRIMARY KEY (a, b))
       ENGINE=MyISAM""",
    "CREATE TABLE fuzz.y (id INT PRIMARY KEY, n INT, w VARCHAR(20)) WITH SYSTEM VERSIONING",
    """CREATE TABLE fuzz.z (id INT PRIMARY KEY, n INT, a TIMESTAMP(6) GENERATED ALWAYS AS ROW START, b TIMESTAMP(6)
       GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (a, b)) WITH SYSTEM VERSIONING""",
    "CREATE TABLE fuzz.q (id INT PRIMARY KEY, n MEDIUMINT, v VARCHAR(40), k TIME(2), m INT NOT NULL)",
)
# Its own, and what only MySQL writes.
_MARIADB_KINDS = (2, 4, 13, 15, 16, 19, 23, 24, 25, 26, 30, 31, 32, 33, 38, 40, 99, *range(159, 173), 255)


def of_mariadb(server: Server) -> Corpus:
    """Every kind of transaction in a binlog of its own; row events of the second version are made of the first."""
    statements = []
    for compression in ("OFF", "ON"):
        statements += [
            f"SET GLOBAL log_bin_compress = {compression}",
            "SET GLOBAL log_bin_compress_min_len = 10",
            *_mariadb_changes(compression),
        ]
    statements += ["SET GLOBAL log_bin_compress = OFF", "SET GLOBAL log_bin_compress_min_len = 256"]
    statements += _mariadb_changes("")[3:6]  # what is there at the end is compared
    return _written(server, "mariadb", _MARIADB_TABLES, statements, _MARIADB_KINDS, _usual_changes())


def _mariadb_changes(name: str) -> list[str]:
    uuid = "'12345678-1234-4234-8234-12345678901{}'"
    return [
        f"REPLACE INTO fuzz.t VALUES {_ROW.format(1)}, {_ROW.format(2)}, (3{', NULL' * 13})",
        "UPDATE fuzz.t SET n = n + 1, j = JSON_SET(j, '$.a[1]', 'other', '$.new', 1.25) WHERE id < 3",
        "UPDATE fuzz.t SET v = REPEAT('v', 250)",
        "REPLACE INTO fuzz.u VALUES ('ä', 18446744073709551615, 'é'), ('b', 2, NULL)",
        f"""REPLACE INTO fuzz.c VALUES ({uuid.format(1)}, '::1', '192.0.2.1', REPEAT('é', 300), REPEAT('b', 900),
            POINT(1, 2), '😀')""",
        f"REPLACE INTO fuzz.c VALUES ({uuid.format(2)}, NULL, '0.0.0.0', 'short', '', NULL, '')",
        *_OWN_CHANGES,
        "REPLACE INTO fuzz.y VALUES (1, 1, 'one'), (2, 2, 'two')", "UPDATE fuzz.y SET n = n + 1",
        "DELETE FROM fuzz.y WHERE id = 2",
        "REPLACE INTO fuzz.z (id, n) VALUES (1, 1), (2, 2)", "UPDATE fuzz.z SET n = n + 1",
        "DELETE FROM fuzz.z WHERE id = 1",
        f"DELETE FROM fuzz.c WHERE id = {uuid.format(2)}",
        "BEGIN", "DELETE FROM fuzz.c", "SAVEPOINT s", f"REPLACE INTO fuzz.t VALUES {_ROW.format(4)}",
        f"CREATE TEMPORARY TABLE fuzz.{name}t (id INT)", f"DROP TEMPORARY TABLE fuzz.{name}t",
        "ROLLBACK TO s", f"REPLACE INTO fuzz.t VALUES {_ROW.format(6)}", "COMMIT",
        "BEGIN", "DELETE FROM fuzz.t WHERE id = 1", f"CREATE TEMPORARY TABLE fuzz.{name}r (id INT)",
        f"DROP TEMPORARY TABLE fuzz.{name}r", "ROLLBACK",
        f"XA START '{name}'", f"REPLACE INTO fuzz.t VALUES {_ROW.format(5)}", f"XA END '{name}'",
        f"XA PREPARE '{name}'", f"XA COMMIT '{name}'",
        "SET SESSION gtid_domain_id = 7", "DELETE FROM fuzz.t WHERE id = 5", "SET SESSION gtid_domain_id = 0",
        "SET SESSION binlog_alter_two_phase = ON", f"ALTER TABLE fuzz.u COMMENT '{name}'",
        "SET SESSION binlog_alter_two_phase = OFF",
    ]  # fmt: skip


def _written(
    server: Server,
    name: str,
    tables: Sequence[str],
    statements: Sequence[str],
    kinds: tuple[int, ...],
    usual: Sequence[str],
) -> Corpus:
    connection: Any = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
    with connection.cursor() as cursor:
        for statement in (
            "DROP DATABASE IF EXISTS fuzz",
            f"DROP DATABASE IF EXISTS {OWN}",
            "CREATE DATABASE fuzz",
            f"CREATE DATABASE {OWN}",
            f"CREATE TABLE {OWN}.watermark (id INT PRIMARY KEY, token CHAR(32) CHARACTER SET ascii NOT NULL)",
            f"CREATE TABLE {OWN}.source (id INT PRIMARY KEY)",
            *tables,
            "FLUSH BINARY LOGS",
            *statements,
            *usual,
        ):
            cursor.execute(statement)
        cursor.execute("SHOW BINARY LOGS")
        file = cursor.fetchall()[-1][0]
        cursor.execute("SELECT @@datadir")
        (folder,) = cursor.fetchone()
    connection.close()
    described, opening, transactions = _parts(Path(folder, file).read_bytes())
    followed, rows = _answers(server, [table.split()[2].partition(".")[2] for table in tables])
    written = len(transactions)
    number = sum(any(b"fuzz\0\x01q\0" in event for event in some) for some in transactions)
    made = [second for some in transactions[: written - number] if (second := _of_second_version(some)) != some]
    return Corpus(
        name=name,
        described=described,
        opening=opening,
        transactions=transactions + made,
        usual=range(written - number, written),
        written=written,
        followed=followed,
        rows=rows,
        kinds=kinds,
    )


def _answers(server: Server, names: Sequence[str]) -> tuple[dict[Key, Followed], dict[Key, list[Row]]]:
    address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
    followed, rows = {}, {}
    with open_session(address, role="source") as session:
        for name in names:
            table = describe(session, "fuzz", name)
            followed["fuzz", name] = Followed(table, tuple(column.name for column in table.columns))
            query = f"SELECT {select_list(table.columns)} FROM fuzz.{name}"
            rows["fuzz", name] = fetch_rows(session, query, table.columns)
    return followed, rows


def _parts(data: bytes) -> tuple[bytes, list[bytes], list[Events]]:
    described, opening, found = b"", [], []
    at = 4
    while at < len(data):
        size, kind = HEAD.unpack_from(data, at)[3], data[at + 4]
        event = data[at : at + size]
        if kind in _BEGINNINGS:
            found.append([event])
        elif found:
            found[-1].append(event)
        elif kind == _FORMAT_DESCRIPTION:
            described = event
        else:
            opening.append(event)
        at += size
    return described, opening, found


def _of_second_version(events: Events) -> list[bytes]:
    """Row events of the first version as MariaDB would write them in the second, which this one never does."""
    found = []
    for event in events:
        if (kind := event[4]) in _ROWS_V1:
            event = event[:4] + bytes([_ROWS_V1[kind]]) + event[5:27] + b"\2\0" + event[27:]
        found.append(event)
    return found


def corpora() -> list[Corpus]:
    """Of both servers, started for it, or as they were kept when this was last done."""
    sources = (
        Path(__file__),
        *(Path(str(module.__file__)) for module in (batches, tables)),
    )  # what is pickled
    kept = Path("build", f"fuzz-{crc32(b''.join(map(Path.read_bytes, sources))):08x}.pickle")
    if kept.exists():
        found: list[Corpus] = pickle.loads(kept.read_bytes())
        return found
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for start, make in ((stack.mysql.start, of_mysql), (stack.mariadb.start, of_mariadb)):
            server = start(Path(folder) / make.__name__)
            try:
                found.append(make(server))
            finally:
                server.stop()
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(pickle.dumps(found))
    return found
