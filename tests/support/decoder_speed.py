"""How long a row takes to decode: `python -m tests.support.decoder_speed`. No server needed."""

from __future__ import annotations

import struct
from timeit import repeat
from typing import Any

from ingest.binlog import column_types as types
from ingest.binlog.row_decoder import Decoder, compile_decoder
from ingest.binlog.table_map import MapColumn, TableMap
from viewtail.changes.batches import Followed
from viewtail.changes.tables import Column, Kind, Table

MapAndColumn = tuple[MapColumn, Column]


def _column(name: str, type_: int, kind: Kind, metadata: int = 0, scale: int = 0, **more: Any) -> MapAndColumn:
    return (
        MapColumn(name=name, type=type_, metadata=metadata, is_nullable=name != "id", **more),
        Column(name=name, kind=kind, declared=kind.value, is_nullable=True, scale=scale),
    )


def _decoder(columns: list[MapAndColumn], followed: tuple[str, ...] | None = None) -> Decoder:
    table_map = TableMap(schema="s", name="t", columns=tuple(each for each, _ in columns))
    table = Table(schema="s", name="t", columns=tuple(each for _, each in columns), primary_key=("id",))
    return compile_decoder(table_map, Followed(table, followed or tuple(each.name for _, each in columns)))


NARROW = [
    _column("id", types.LONGLONG, Kind.INTEGER),
    _column("n", types.LONG, Kind.INTEGER),
    _column("name", types.VARCHAR, Kind.TEXT, 256, collation=255),
    _column("m", types.LONGLONG, Kind.INTEGER),
    _column("at", types.TIMESTAMP2, Kind.TIMESTAMP, 6, 6),
]
WIDE = [
    *NARROW,
    *(_column(f"n{at}", types.LONG, Kind.INTEGER) for at in range(10)),
    *(_column(f"t{at}", types.VARCHAR, Kind.TEXT, 200, collation=255) for at in range(10)),
]


def _narrow_row(number: int, nulls: int = 0) -> bytes:
    name = f"user{number}@example.com".encode()
    moment = (1704164645 + number // 50).to_bytes(4, "big") + (number * 7919 % 10**6).to_bytes(3, "big")
    parts = [
        struct.pack("<q", number),
        struct.pack("<i", 7),
        struct.pack("<H", len(name)) + name,
        struct.pack("<q", 9),
        moment,
    ]
    return b"".join(part for at, part in enumerate(parts) if not nulls >> at & 1)


def _wide_row(number: int) -> bytes:
    return bytes(4) + _narrow_row(number) + bytes(40) + (b"\x14" + b"a text of twenty let") * 10


def _measure(what: str, decoder: Decoder, rows: list[bytes]) -> None:
    buffer = bytearray(b"header......" + b"".join(rows) + b"crc4")
    end = len(buffer) - 4
    assert len(decoder.decode(buffer, 12, end)) == len(rows)
    rounds = max(20, 100_000 // len(rows))
    best = min(repeat(lambda: decoder.decode(buffer, 12, end), number=rounds, repeat=5)) / rounds / len(rows)
    print(f"{what:58} {best * 1e9:7.0f} ns/row")


def main() -> None:
    narrow, wide = _decoder(NARROW), _decoder(WIDE)
    _measure("narrow (5 columns), events of 1 row", narrow, [b"\0" + _narrow_row(1)])
    _measure("narrow, events of 200 rows", narrow, [b"\0" + _narrow_row(at) for at in range(200)])
    some = [b"\x10" + _narrow_row(at, 0x10) if at % 2 else b"\0" + _narrow_row(at) for at in range(200)]
    _measure("narrow, every other row has a NULL", narrow, some)
    key_only = _decoder(NARROW, ("id", "m"))
    _measure("narrow, 2 of 5 columns, events of 200 rows", key_only, [b"\0" + _narrow_row(at) for at in range(200)])
    _measure("wide (25 columns), events of 1 row", wide, [_wide_row(1)])
    _measure("wide, events of 100 rows", wide, [_wide_row(at) for at in range(100)])
    two = _decoder(WIDE, ("id", "name"))
    _measure("wide, 2 of 25 columns, events of 100 rows", two, [_wide_row(at) for at in range(100)])


if __name__ == "__main__":
    main()
