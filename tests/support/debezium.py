"""A table of every type whose changes a real Debezium connector publishes, in its default form and in viewtail's.

    PYTHONPATH=. .venv/bin/python -m tests.support.debezium     records tests/data/debezium anew

A recording is the messages as they are, one JSON object a line, and the rows as the table had them.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pymysql

import stack.connect
import stack.kafka
import stack.mysql
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe, fetch_rows, select_list
from stack.server import Server
from tests.support.running import wait_for
from tests.support.topic_log import raw
from viewtail.changes.batches import Followed, Origin, pairs
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import KeptChange
from viewtail.servers.sessions import MySQLAddress, open_session

DATA = Path(__file__).resolve().parents[1] / "data/debezium"
SCHEMA, NAME = "peer", "everything"
CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
FORMS = {
    "default": {},
    "viewtail": {
        "decimal.handling.mode": "string",
        "binary.handling.mode": "base64",
        "time.precision.mode": "isostring",
    },
}

COLUMNS = """
    id INT, part VARCHAR(10),
    tiny TINYINT, flag TINYINT(1), small SMALLINT UNSIGNED, medium MEDIUMINT, whole INT UNSIGNED, big BIGINT,
    huge BIGINT UNSIGNED, bit1 BIT(1), bits BIT(10), born YEAR, price DECIMAL(10,2), amount DECIMAL(12,0),
    fine DECIMAL(30,20), `single` FLOAT, rounded FLOAT(7,2), `double` DOUBLE, name VARCHAR(40), fixed CHAR(10),
    latin VARCHAR(20) CHARACTER SET latin1, note TEXT, kind ENUM('a', 'it''s', 'c,d'), tags SET('x', 'y', 'é'),
    bin BINARY(4), raw VARBINARY(20), packed BLOB, day DATE, at TIME, at3 TIME(3), moment DATETIME,
    moment3 DATETIME(3), moment6 DATETIME(6), stamp TIMESTAMP NULL, stamp3 TIMESTAMP(3) NULL, doc JSON,
    shape GEOMETRY, place POINT, vec VECTOR(3), computed INT AS (id + 1), counted INT DEFAULT 5,
    certain DATE NOT NULL, certain_stamp TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (id, part)
"""
CREATE = f"CREATE TABLE {SCHEMA}.{NAME} ({COLUMNS}) DEFAULT CHARSET utf8mb4"
INSERTED = (
    "id, part, tiny, flag, small, medium, whole, big, huge, bit1, bits, born, price, amount, fine, `single`, rounded, "
    "`double`, name, fixed, latin, note, kind, tags, bin, raw, packed, day, at, at3, moment, moment3, moment6, stamp, "
    "stamp3, doc, shape, place, vec, counted, certain, certain_stamp"
)
LOW = """'a', -128, 0, 0, -8388608, 0, -9223372036854775808, 0, 0, 0, 1901, -99999999.99, -999999999999,
    -9999999999.99999999999999999999, -3.4028234e38, -99999.99, -1.7976931348623157e308, '', '', '', '', 'a', '', '',
    '', '', '1000-01-01', '00:00:00', '00:00:00', '1000-01-01 00:00:00', '1000-01-01 00:00:00', '1000-01-01 00:00:00',
    '1970-01-01 00:00:01', '1970-01-01 00:00:01', '{}', ST_GeomFromText('POINT(1 2)'), POINT(-1.5, 0),
    TO_VECTOR('[0, 0, 0]'), 7, '1000-01-01', '1970-01-01 00:00:01'"""
HIGH = """'b', 127, 1, 65535, 8388607, 4294967295, 9223372036854775807, 9223372036854775808, 1, 1023, 2155,
    99999999.99, 999999999999, 0.00000000000000000001, 1.1, 1.25, 5e-324, 'q"\\\\ é 中 😀', 'padded  ', 'ü€', 'long',
    'it''s', 'x,é', x'0001', x'00ff', x'80', '9999-12-31', '23:59:59', '12:00:00.5', '2024-02-29 12:34:56',
    '2024-02-29 12:34:56.78', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56', '2024-02-29 12:34:56.78',
    '{"b": [1, null, true, "é \\\\"x\\\\""], "a": 1.5, "cc": {}}',
    ST_GeomFromText('LINESTRING(0 0, 1 1)', 4326), ST_GeomFromText('POINT(1.5 2)', 4326),
    TO_VECTOR('[1.5, -0.1, 1e20]'), 6, '2024-02-29', '2024-02-29 12:34:56'"""
LEAST = "certain, certain_stamp"
# One statement each; the first ones before the connector starts.
BEFORE = (f"INSERT INTO {SCHEMA}.{NAME} ({INSERTED}) VALUES (1, {LOW}), (2, {HIGH})",)
AFTER = (
    f"INSERT INTO {SCHEMA}.{NAME} ({INSERTED}) VALUES (3, {LOW}), (4, {HIGH})",
    f"INSERT INTO {SCHEMA}.{NAME} (id, part, counted, {LEAST}) VALUES (5, 'nulls', 1, '2024-01-01', '2024-01-01')",
    f"UPDATE {SCHEMA}.{NAME} SET name = 'new', price = 1.5, doc = '[]' WHERE id IN (3, 4)",
    f"UPDATE {SCHEMA}.{NAME} SET part = 'moved' WHERE id = 3",
    f"DELETE FROM {SCHEMA}.{NAME} WHERE id = 4",
)
# What Debezium has no place for. A TIME outside the day stops a connector in viewtail's form where it is NOT NULL.
LOST = f"""INSERT INTO {SCHEMA}.{NAME}
    (id, part, born, day, at, at3, moment, stamp, counted, {LEAST}, kind, latin, doc) VALUES
    (6, 'lost', 0, '0000-00-00', '-12:00:00', '838:59:59', '2024-02-00 00:00:00', '0000-00-00', NULL,
     '0000-00-00', '0000-00-00', 'c,d', x'81', JSON_OBJECT('at', CAST('12:00:00' AS TIME), 'raw', x'00ff')),
    (7, 'odd', NULL, '0050-01-02', NULL, NULL, '0099-12-31 00:00:00', NULL, 1,
     '2024-01-01', '2024-01-01', NULL, NULL, '[1e15, 1e-7, 0.1, 1e20, 100000000.5]')"""
LAST = (7, "odd")
STATEMENTS = (*AFTER, LOST)


# --- The real connector ---


@dataclass(frozen=True, slots=True)
class History:
    """What happened to the table, and what connectors published of it."""

    table: Table
    changes: list[KeptChange]  # rows that were there first as 'read'; the others as the binlog has them
    topics: dict[str, list[tuple[bytes, bytes | None]]]  # by connector: a form, or a form and "_whole" with schemas


def history(server: Server, broker: Server, folder: Path) -> History:
    """Makes the table, starts the connectors, and runs the statements."""
    session = _session(server)
    _execute(session, f"CREATE DATABASE {SCHEMA}", CREATE, *BEFORE)
    table = describe(session, SCHEMA, NAME)
    query = f"SELECT {select_list(table.columns)} FROM {SCHEMA}.{NAME} ORDER BY id"
    changes = [KeptChange(row[:2], 0, "read", None, row) for row in fetch_rows(session, query, table.columns)]
    source = _source(server, table)
    begin = source.now()
    with _connectors(server, broker, folder) as names:
        wait_for("what was there is published", lambda: all(len(_messages(broker, name)) == 2 for name in names))
        _execute(session, *STATEMENTS)
        changes += _of_the_binlog(source, begin)
        count = sum(2 if change.op == "delete" else 1 for change in changes)
        wait_for("all is published", lambda: all(len(_messages(broker, name)) == count for name in names))
        topics = {name: _messages(broker, name) for name in names}
    session.close()
    return History(table, changes, topics)


@contextmanager
def _connectors(server: Server, broker: Server, folder: Path) -> Iterator[list[str]]:
    connectors = {}
    for number, (form, has_schemas) in enumerate(product(FORMS, ("false", "true"))):
        name = f"{form}_whole" if has_schemas == "true" else form
        (folder / name).mkdir(parents=True)
        connectors[name] = {
            **stack.connect.mysql_source(server, name, folder / name),
            **FORMS[form],
            "database.server.id": str(184100 + number),
            "database.include.list": SCHEMA,
            "snapshot.locking.mode": "none",  # other tests use the server
            **{f"{part}.converter": CONVERTER for part in ("key", "value")},
            **{f"{part}.converter.schemas.enable": has_schemas for part in ("key", "value")},
        }
    worker = stack.connect.start(folder / "worker", broker, connectors, [stack.connect.debezium_mysql()])
    try:
        yield list(connectors)
    finally:
        worker.kill()


def _messages(broker: Server, name: str) -> list[tuple[bytes, bytes | None]]:
    """Key and value of each message of a connector's topic; none while there is no topic."""
    try:
        return [(message.key(), message.value()) for message in raw(broker, f"{name}.{SCHEMA}.{NAME}")]
    except KeyError:
        return []


def _session(server: Server) -> pymysql.Connection[Any]:
    """One that may write impossible dates."""
    session = open_session(_address(server), role="source")
    session.autocommit(True)
    _execute(session, "SET sql_mode = ''")
    return session


def _address(server: Server) -> MySQLAddress:
    return MySQLAddress(host=server.host, port=server.port, user="root")


def _execute(session: pymysql.Connection[Any], *statements: str) -> None:
    with session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _source(server: Server, table: Table) -> BinlogSource:
    followed = Followed(table, tuple(column.name for column in table.columns))
    return BinlogSource(
        _address(server),
        {(SCHEMA, NAME): followed},
        watermark_schema="viewtail",
        own_schemas=frozenset({"viewtail"}),
        epoch=1,
    )


def _of_the_binlog(source: BinlogSource, begin: Any) -> list[KeptChange]:
    """All changes of the table, those of a key as a delete and an insert."""
    found: list[KeptChange] = []
    for batch in source.read(begin):
        assert not batch.refused and not batch.halts
        for change in batch.changes:
            origin = batch.origin_of(change)
            for before, after in pairs(change.kind, change.rows):
                if before and after and before[:2] != after[:2]:
                    found.append(KeptChange(before[:2], change.version, "delete", before, None, origin))
                    before = None
                row = after or before
                assert row is not None
                op = "insert" if before is None else "update" if after else "delete"
                found.append(KeptChange(row[:2], change.version, op, before, after, origin))
        if found and found[-1].key == LAST:
            break
    source.interrupt()
    return found


# --- The recording ---


def recorded(folder: Path = DATA) -> History:
    """The history that is kept in a folder."""
    kept = json.loads((folder / "rows.json").read_text())
    columns = [_column(each) for each in kept["columns"]]
    table = Table(schema=SCHEMA, name=NAME, columns=tuple(columns), primary_key=("id", "part"))
    names = {"Decimal": Decimal, "KeptChange": KeptChange, "Origin": Origin}
    topics = {}
    for file in folder.glob("*.jsonl.gz"):
        texts = [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]
        topics[file.name.partition(".")[0]] = [(key.encode(), value and value.encode()) for key, value in texts]
    return History(table, [eval(change, names) for change in kept["changes"]], topics)


def _column(kept: dict[str, Any]) -> Column:
    made_from = kept.get("made_from")
    typed = {"kind": Kind(kept["kind"]), "labels": tuple(kept["labels"]), "fields": (), "tags": ()}
    return Column(**{**kept, **typed, "made_from": None if made_from is None else frozenset(made_from)})


def record(found: History, folder: Path) -> None:
    """Keeps a history."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = [
        {**asdict(column), "kind": column.kind.value, "made_from": column.made_from and sorted(column.made_from)}
        for column in found.table.columns
    ]
    kept = {"columns": columns, "changes": [repr(change) for change in found.changes]}
    (folder / "rows.json").write_text(json.dumps(kept, indent=1) + "\n")
    for name, messages in found.topics.items():
        lines = [json.dumps((key.decode(), value and value.decode())) for key, value in messages]
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def main() -> None:
    """Records with servers of its own."""
    with tempfile.TemporaryDirectory() as name:
        server, broker = stack.mysql.start(Path(name) / "mysql"), stack.kafka.start(Path(name) / "kafka")
        try:
            record(history(server, broker, Path(name)), DATA)
        finally:
            broker.kill()
            server.kill()


if __name__ == "__main__":
    main()
