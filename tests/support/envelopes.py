"""Columns of every type, some of their values, and the JSON that a message has for each."""

from __future__ import annotations

import base64
import struct
from decimal import Decimal
from typing import Any

from viewtail.changes.batches import Followed, Origin
from viewtail.changes.envelope import Envelope
from viewtail.changes.envelope_reading import EnvelopeReader
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import KeptChange

LABELS = ("a", "it's", "é")
POINT = struct.pack("<IBIdd", 4326, 1, 1, 1.5, -2.0)
LINE = struct.pack("<IBII4d", 0, 1, 2, 2, 0, 0, 1, 1)


def column(kind: Kind, declared: str = "", name: str = "c", is_nullable: bool = True, **more: Any) -> Column:
    if kind is Kind.TEXT:
        more.setdefault("charset", "utf8mb4")
    return Column(name=name, kind=kind, declared=declared or kind.value, is_nullable=is_nullable, **more)


def base64_of(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


ID = column(Kind.INTEGER, "int", "id", is_nullable=False)
UNSIGNED = column(Kind.INTEGER, "bigint unsigned", is_unsigned=True)
BIT = column(Kind.INTEGER, "bit(1)", length=1)
BITS = column(Kind.INTEGER, "bit(10)", length=10)
YEAR = column(Kind.INTEGER, "year")
PRICE = column(Kind.DECIMAL, "decimal(10,2)", precision=10, scale=2)
TINY = column(Kind.DECIMAL, "decimal(30,30)", precision=30, scale=30)
FLOAT = column(Kind.FLOAT, "float")
DOUBLE = column(Kind.DOUBLE, "double")
NAME = column(Kind.TEXT, "varchar(40)", length=40)
RAW = column(Kind.BYTES, "varbinary(8)", length=8)
PADDED = column(Kind.BYTES, "binary(4)", length=4)
ENUM = column(Kind.ENUM, "enum(...)", labels=LABELS, charset="utf8mb4")
SET = column(Kind.SET, "set(...)", labels=LABELS, charset="utf8mb4")
DATE = column(Kind.DATE)
TIME = column(Kind.TIME)
TIME3 = column(Kind.TIME, "time(3)", scale=3)
DATETIME = column(Kind.DATETIME)
DATETIME6 = column(Kind.DATETIME, "datetime(6)", scale=6)
TIMESTAMP3 = column(Kind.TIMESTAMP, "timestamp(3)", scale=3)
JSON = column(Kind.JSON)
SHAPE = column(Kind.GEOMETRY)
PLACE = column(Kind.GEOMETRY, "point")
VECTOR = column(Kind.VECTOR, "vector(3)")

# As Debezium has them, too.
VALUES: list[tuple[Column, Any, Any]] = [
    (ID, -5, -5),
    (UNSIGNED, 7, 7),
    (BIT, 1, True),
    (BIT, 0, False),
    (BITS, 0x301, base64_of(b"\x01\x03")),
    (YEAR, 2024, 2024),
    (PRICE, Decimal("-1.50"), "-1.50"),
    (TINY, Decimal("0E-30"), "0." + "0" * 30),
    (FLOAT, struct.unpack("f", struct.pack("f", 1.1))[0], 1.1),
    (FLOAT, 16777216.0, 16777216.0),
    (FLOAT, 3.4028234663852886e38, 3.4028235e38),
    (FLOAT, -0.0, -0.0),
    (column(Kind.FLOAT, "float(7,2)"), 227.94000244140625, 227.94000244140625),
    (DOUBLE, 1e-07, 1e-07),
    (NAME, 'q"\\\n\x01é😀', 'q"\\\n\x01é😀'),
    (NAME, "", ""),
    (RAW, b"\x00\xff", "AP8="),
    (PADDED, b"ab\0\0", "YWIAAA=="),
    (ENUM, "it's", "it's"),
    (ENUM, "", ""),
    (SET, "a,é", "a,é"),
    (DATE, "2024-02-29", "2024-02-29Z"),
    (TIME, "23:59:59", "23:59:59Z"),
    (TIME3, "00:00:00.500", "00:00:00.5Z"),
    (TIME3, "10:20:30.000", "10:20:30Z"),
    (DATETIME, "2024-01-02 03:04:05", "2024-01-02T03:04:05Z"),
    (DATETIME6, "2024-01-02 03:04:05.120000", "2024-01-02T03:04:05.12Z"),
    (DATETIME6, "2024-01-02 03:04:00.000000", "2024-01-02T03:04:00Z"),
    (TIMESTAMP3, "2024-01-02 03:04:05.120", "2024-01-02T03:04:05.120Z"),
    (JSON, '{"a": [1, null]}', '{"a": [1, null]}'),
    (SHAPE, LINE, {"wkb": base64_of(LINE[4:]), "srid": None}),
    (SHAPE, POINT, {"wkb": base64_of(POINT[4:]), "srid": 4326}),
    (PLACE, POINT, {"x": 1.5, "y": -2.0, "wkb": base64_of(POINT[4:]), "srid": 4326}),
    (VECTOR, struct.pack("<3f", 1.5, -0.1, 1e20), [1.5, -0.1, 1e20]),
    (NAME, None, None),
]
# What has no place in Debezium's form is as docs/types.md has it.
KEPT: list[tuple[Column, Any, Any]] = [
    (UNSIGNED, 2**64 - 1, 2**64 - 1),
    (YEAR, 0, 0),
    (DATE, "0000-00-00", "0000-00-00"),
    (DATE, "2024-02-31", "2024-02-31"),
    (DATE, "0000-01-01", "0000-01-01"),
    (TIME, "-00:00:01", "-00:00:01"),
    (TIME, "24:00:00", "24:00:00"),
    (TIME3, "-838:59:59.000", "-838:59:59.000"),
    (TIME3, "100:00:00.500", "100:00:00.500"),
    (DATETIME, "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
    (DATETIME6, "2024-00-10 23:59:59.000001", "2024-00-10 23:59:59.000001"),
    (TIMESTAMP3, "0000-00-00 00:00:00.000", "0000-00-00 00:00:00.000"),
]


def shown(value: tuple[Column, Any, Any]) -> str:
    """A name for a test of one of the values."""
    return f"{value[0].declared} {value[1]!r}"[:50]


def table(*columns: Column) -> Table:
    """shop.user: an id and these columns."""
    return Table(schema="shop", name="user", columns=(ID, *columns), primary_key=("id",))


def envelope(of: Table, *, with_schemas: bool = False) -> Envelope:
    """Writes messages of all columns."""
    return Envelope(of, [ID], of.columns, name="shop", release="0.1.0", with_schemas=with_schemas)


def reader(of: Table, **options: bool) -> EnvelopeReader:
    """Reads messages of all columns."""
    return EnvelopeReader(Followed(of, tuple(each.name for each in of.columns)), [ID], **options)


ORIGIN = Origin(
    committed_us=1_700_000_000_123_456,
    gtid="3e11fa47-71ca-11e1-9e33-c80aa9429562:23",
    file="binlog.000007",
    start=1234,
    server_id=1,
)
VERSION = 1 << 53 | 7 << 32 | 77


def inserted(*row: Any, origin: Origin = ORIGIN, version: int = VERSION) -> KeptChange:
    return KeptChange(row[:1], version, "insert", None, row, origin)


def updated(before: tuple[Any, ...] | None, after: tuple[Any, ...], origin: Origin = ORIGIN) -> KeptChange:
    return KeptChange(after[:1], VERSION, "update", before, after, origin)


def deleted(*row: Any, origin: Origin = ORIGIN) -> KeptChange:
    return KeptChange(row[:1], VERSION, "delete", row, None, origin)
