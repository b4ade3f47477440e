"""What viewtail does with each type of binlog event, seen on real servers: the table of docs/events.md.

    python -m tests.support.event_matrix > docs/events.md

Each producer makes a server write one type of event; the server's file says whether it did, and viewtail's own source
reads it. Another server is another column: `matrix` takes any number of them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

import stack.mariadb
import stack.mysql
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.events import NAMES
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe, fetch_rows, select_list
from stack.server import Server
from tests.support.binlog_file import events
from viewtail.changes.batches import DELETE, UPDATE, Followed, Row
from viewtail.changes.errors import SourceError
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import MySQLAddress, open_session

RESTART = "restart"  # in the place of a statement
_SCHEMA = "matrix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """How a type of event is made."""

    event: int
    made_by: str
    statements: Sequence[str]
    afterwards: Sequence[str] = ()  # when it was read


def _producer(event: int, made_by: str, *statements: str) -> Producer:
    return Producer(event=event, made_by=made_by, statements=statements)


def _compressed(event: int, made_by: str, statement: str) -> Producer:
    switch = "SET GLOBAL log_bin_compress"
    statements = (f"{switch} = ON", f"{switch}_min_len = 10", statement)
    afterwards = (f"{switch} = OFF", f"{switch}_min_len = 256")
    return Producer(event=event, made_by=made_by, statements=statements, afterwards=afterwards)


_T, _U = f"{_SCHEMA}.t", f"{_SCHEMA}.u"
_DOCUMENT = '{"a": [1, 2], "b": "' + "x" * 100 + '"}'
_FIRST = f"INSERT INTO {_T} VALUES (1, 1, '{_DOCUMENT}')"
_INSERT = f"INSERT INTO {_T} VALUES (2, 2, NULL)"
_CONVERTED = f"ALTER TABLE {_T} CONVERT TO CHARACTER SET latin1"
_XA = ("XA START 'x'", _INSERT, "XA END 'x'", "XA PREPARE 'x'")
_BY_STATEMENT = ("SET SESSION binlog_format = 'STATEMENT'",)
_BESIDE = f"{_SCHEMA}_beside"  # a database with no followed table
_MARKS = f"{_SCHEMA}_marks"  # the mark's own, which no change in statement format is about
_LOAD = (
    f"CREATE TABLE IF NOT EXISTS {_BESIDE}.loaded (v TEXT)",
    "SET GLOBAL local_infile = ON",
    *_BY_STATEMENT,
    f"LOAD DATA LOCAL INFILE '{__file__}' INTO TABLE {_BESIDE}.loaded",
)
PRODUCERS: Sequence[Producer] = (
    _producer(2, "BEGIN; DDL of another table", f"CREATE TABLE {_SCHEMA}.other (id INT)"),
    _producer(2, "DDL that changes followed rows", _CONVERTED),
    _producer(
        2, "a change in statement format, followed table", *_BY_STATEMENT, f"UPDATE {_T} SET n = 7"
    ),
    _producer(
        2, "a change in statement format, another table of its database", *_BY_STATEMENT, f"INSERT INTO {_U} VALUES (7)"
    ),
    _producer(3, "a shutdown of the server", RESTART),
    _producer(4, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS"),
    _producer(
        5,
        "AUTO_INCREMENT in statement format, another database",
        f"CREATE TABLE {_BESIDE}.counted (id INT AUTO_INCREMENT PRIMARY KEY, n INT)",
        *_BY_STATEMENT,
        f"INSERT INTO {_BESIDE}.counted (n) VALUES (1)",
    ),
    _producer(
        13,
        "RAND() in statement format, another database",
        *_BY_STATEMENT,
        f"INSERT INTO {_BESIDE}.u VALUES (RAND() * 1000)",
    ),
    _producer(
        14,
        "a user variable in statement format, another database",
        *_BY_STATEMENT,
        "SET @n = 5000",
        f"INSERT INTO {_BESIDE}.u VALUES (@n)",
    ),
    _producer(15, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS"),
    _producer(16, "COMMIT of a transactional engine", _INSERT),
    _producer(17, "LOAD DATA in statement format, another database", *_LOAD),
    _producer(18, "LOAD DATA in statement format, another database", *_LOAD),
    _producer(19, "any row change", _INSERT),
    _producer(23, "INSERT", _INSERT),
    _producer(24, "UPDATE", f"UPDATE {_T} SET n = n + 1"),
    _producer(25, "DELETE", f"DELETE FROM {_T}"),
    _producer(29, "binlog_rows_query_log_events", "SET SESSION binlog_rows_query_log_events = ON", _INSERT),
    _producer(30, "INSERT", _INSERT),
    _producer(31, "UPDATE", f"UPDATE {_T} SET n = n + 1"),
    _producer(31, "UPDATE, row image MINIMAL", "SET binlog_row_image = MINIMAL", f"UPDATE {_T} SET n = n + 1"),
    _producer(32, "DELETE", f"DELETE FROM {_T}"),
    _producer(33, "any transaction", _INSERT),
    Producer(
        event=34,
        made_by="a transaction without a GTID",
        statements=(
            "SET GLOBAL gtid_mode = 'ON_PERMISSIVE'",
            "SET SESSION gtid_next = 'ANONYMOUS'",
            _INSERT,
            "SET SESSION gtid_next = 'AUTOMATIC'",
        ),
        afterwards=("SET GLOBAL gtid_mode = 'ON'",),  # which refuses to send them
    ),
    _producer(35, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS"),
    _producer(38, "XA PREPARE and XA COMMIT", *_XA, "XA COMMIT 'x'"),
    _producer(38, "XA PREPARE and XA ROLLBACK", *_XA, "XA ROLLBACK 'x'"),
    _producer(
        39,
        "binlog_row_value_options = PARTIAL_JSON",
        "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
        f"UPDATE {_T} SET j = JSON_SET(j, '$.a[0]', 9)",
    ),
    _producer(40, "binlog_transaction_compression", "SET SESSION binlog_transaction_compression = ON", _INSERT),
    _producer(
        42,
        "a GTID with a tag",
        "SET SESSION gtid_next = 'AUTOMATIC:tagged'",
        _INSERT,
        "SET SESSION gtid_next = 'AUTOMATIC'",
    ),
    _producer(160, "any row change", _INSERT),
    _producer(161, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS"),
    _producer(162, "any transaction", _INSERT),
    _producer(163, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS"),
    _compressed(165, "a long statement", f"CREATE TABLE {_SCHEMA}.long_one (id INT COMMENT '{'x' * 200}')"),
    _compressed(165, "a long statement on followed rows", f"{_CONVERTED} /* {'x' * 200} */"),
    _compressed(166, "INSERT, log_bin_compress", f"INSERT INTO {_T} VALUES (3, 3, '\"{'x' * 200}\"')"),
    _compressed(167, "UPDATE, log_bin_compress", f"UPDATE {_T} SET n = n + 1"),
    _compressed(168, "DELETE, log_bin_compress", f"DELETE FROM {_T}"),
)  # fmt: skip

# No statement of a lone server makes these.
NOT_MADE = {
    26: "INCIDENT: the server failed to write an event. The stream stops, since rows may be missing",
    27: "HEARTBEAT, and 41: sent on an idle connection, not in files. It shows that the server is there",
    28: "IGNORABLE, and any type with the ignorable flag: viewtail reads on",
    164: "MARIADB_START_ENCRYPTION: encrypt_binlog. viewtail reads on: all behind it comes decrypted",
    169: "MARIADB_WRITE_ROWS_COMPRESSED, and 170, 171: of the second version, which MariaDB does not write. Rows",
    9: "APPEND_BLOCK, and 11 DELETE_FILE: more of a file than fits one event, for LOAD DATA. viewtail reads on",
    36: "TRANSACTION_CONTEXT, and 37 VIEW_CHANGE: events of group replication. viewtail reads on",
}

_SAYS = """# Types of binlog events

You want to know what viewtail does with a type of binlog event. `python -m tests.support.event_matrix` printed this
page from what happened on real servers. A test makes the table again and compares.

- *rows*: the views get what the table holds.
- *no rows, read on*: the event holds nothing for a view.
- *halts the table*: the table's views halt with a message that says what to do. All others go on.
- *not written*: that server does not write the event.

{table}

No statement of a server without replication makes these:

{not_made}
- Every other type stops the stream: viewtail skips nothing in silence.
"""


class _Bench:
    """One server, with a table that is followed, one that is not, and one whose row says that all has been read."""

    def __init__(self, server: Server) -> None:
        self.server = server
        for schema in (_SCHEMA, _BESIDE, _MARKS):
            self._execute([f"DROP DATABASE IF EXISTS {schema}", f"CREATE DATABASE {schema}"])
        for table in (
            f"{_T} (id INT PRIMARY KEY, n INT, j JSON)",
            f"{_U} (n INT)",
            f"{_BESIDE}.u (n INT)",
            f"{_MARKS}.mark (id INT PRIMARY KEY)",
        ):
            self._execute([f"CREATE TABLE {table}"])
        self._address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        self._marks = 0

    def verdict(self, producer: Producer) -> str:
        """What viewtail did with what the producer made."""
        self._execute([f"DELETE FROM {_T}", _FIRST])
        before = self._rows()
        file, end = self._end()
        begin = BinlogPosition(epoch=1, file=file, end=end, start=end)  # a set of GTIDs would not reach anonymous ones
        try:
            self._execute(producer.statements)
        except pymysql.err.MySQLError:
            return "not written"
        self._marks += 1
        self._execute([f"INSERT INTO {_MARKS}.mark VALUES ({self._marks})"])
        if producer.event not in self._types_after(file, end):
            return "not written"
        try:
            return self._read(begin, before)
        except SourceError:
            return "stops"
        finally:
            self._execute(producer.afterwards)

    def _read(self, begin: BinlogPosition, before: dict[int, Row]) -> str:
        source, halted, is_over = self._source(), False, False
        held: dict[int, Row | None] = {}
        for batch in source.read(begin):
            halted = halted or bool(batch.halts)
            for followed, kind, _, rows, *_ in batch.changes:
                for at, row in enumerate(rows):
                    is_old = kind == DELETE or (kind == UPDATE and at % 2 == 0)
                    if followed.table.name == "t":
                        held[row[0]] = None if is_old else row
                    elif row[0] == self._marks:
                        is_over = True
            if is_over:
                break
        source.interrupt()
        if halted:
            return "halts the table"
        shown = {key: row for key, row in {**before, **held}.items() if row is not None}
        if shown != self._rows():
            return "WRONG ROWS"
        return "rows" if held else "no rows, read on"

    def _rows(self) -> dict[int, Row]:
        with open_session(self._address, role="source") as session:
            columns = describe(session, _SCHEMA, "t").columns
            return {row[0]: row for row in fetch_rows(session, f"SELECT {select_list(columns)} FROM {_T}", columns)}

    def _source(self) -> BinlogSource:
        with open_session(self._address, role="source") as session:
            tables = [describe(session, _SCHEMA, "t"), describe(session, _MARKS, "mark")]
        followed = {
            (table.schema, table.name): Followed(table, tuple(column.name for column in table.columns))
            for table in tables
        }
        return BinlogSource(
            self._address, followed, watermark_schema="viewtail", own_schemas=frozenset({"viewtail"}), epoch=1
        )

    def _end(self) -> tuple[str, int]:
        """Where the binlog ends."""
        with open_session(self._address, role="source") as session, session.cursor() as cursor:
            cursor.execute(facts_of(session).status)
            file, end, *_ = cursor.fetchone() or ("", 0)
            return file, end

    def _types_after(self, first: str, end: int) -> set[int]:
        with open_session(self._address, role="source") as session, session.cursor() as cursor:
            cursor.execute("SELECT @@datadir")
            (folder,) = cursor.fetchone() or ("",)
        last, _ = self._end()
        found = set()
        for file in sorted(Path(folder).glob(f"{last.rpartition('.')[0]}.[0-9]*")):
            if first <= file.name <= last:
                found |= {event.type for event in events(file, end if file.name == first else 4)}
        return found

    def _execute(self, statements: Sequence[str]) -> None:
        if list(statements) == [RESTART]:
            self.server.stop()
            self.server.start()
            return
        connection: Any = pymysql.connect(
            host="127.0.0.1", port=self.server.port, user="root", autocommit=True, local_infile=True
        )
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


def matrix(servers: Mapping[str, Server]) -> str:
    """The page, with a column for each server."""
    benches = [_Bench(server) for server in servers.values()]
    rows = [["Type", "Event", "Made by", *servers], ["---"] * (3 + len(servers))]
    with ThreadPoolExecutor() as pool:  # server beside server: much of it is waiting for one
        columns = list(pool.map(lambda bench: [bench.verdict(one) for one in PRODUCERS], benches))
    for producer, verdicts in zip(PRODUCERS, zip(*columns, strict=True), strict=True):
        rows.append([str(producer.event), NAMES[producer.event], producer.made_by, *verdicts])
    return _SAYS.format(
        table="\n".join("| " + " | ".join(row) + " |" for row in rows),
        not_made="\n".join(f"- {number} {text}." for number, text in NOT_MADE.items()),
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        mysql = stack.mysql.start(Path(folder) / "mysql")
        mariadb = stack.mariadb.start(Path(folder) / "mariadb")
        try:
            print(matrix({"MySQL 9.7": mysql, "MariaDB 10.11": mariadb}), end="")
        finally:
            mysql.stop()
            mariadb.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
