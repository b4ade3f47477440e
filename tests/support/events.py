"""Binlog packets made by hand, for faults that a server cannot be asked to send."""

from __future__ import annotations

import struct
from zlib import crc32

from viewtail.changes.tables import Column, Kind, Table

SOURCE_ID = bytes(range(16))


class Stream:
    """Packets of one binlog file, from a position on; each event's end position is counted."""

    def __init__(self, position: int = 4) -> None:
        self.position = position
        self.data = bytearray()
        self.committed_us = 1_700_000_000_000_000  # of transactions that come
        self._sequence = 0

    def event(self, kind: int, body: bytes, *, flags: int = 0, position: int | None = None) -> bytes:
        """Append one event in a packet of its own; returns the packet."""
        size = 19 + len(body) + 4
        self.position += size
        end = (self.position if position is None else position) & 0xFFFFFFFF
        event = struct.pack("<IBIIIH", 1_700_000_000, kind, 1, size, end, flags) + body
        event += struct.pack("<I", crc32(event))
        return self.packet(b"\0" + event)

    def packet(self, payload: bytes) -> bytes:
        """Append a payload, split at 16 MiB as the protocol does."""
        made = bytearray()
        while True:
            piece, payload = payload[:0xFFFFFF], payload[0xFFFFFF:]
            made += struct.pack("<I", len(piece) | self._sequence << 24) + piece
            self._sequence = (self._sequence + 1) & 0xFF
            if len(piece) < 0xFFFFFF:
                break
        self.data += made
        return bytes(made)

    def gtid(self, number: int) -> bytes:
        clocks = struct.pack("<BqqB", 2, 1, 2, 0)[:17]
        commit_time = self.committed_us.to_bytes(7, "little")
        return self.event(33, b"\0" + SOURCE_ID + struct.pack("<q", number) + clocks + commit_time + b"\0" * 8)

    def query(
        self,
        statement: str,
        database: str = "shop",
        sql_mode: int | None = None,
        reached: tuple[str, ...] | None = None,
    ) -> bytes:
        """`reached`: the databases that the event tells of."""
        status = b"" if sql_mode is None else b"\0" + bytes(4) + b"\1" + struct.pack("<Q", sql_mode)
        if reached is not None:
            status += bytes((12, len(reached))) + b"".join(name.encode() + b"\0" for name in reached)
        body = struct.pack("<IIBHH", 1, 0, len(database), 0, len(status)) + status
        return self.event(2, body + database.encode() + b"\0" + statement.encode())

    def table_map(
        self,
        table_id: int = 7,
        schema: str = "shop",
        name: str = "user",
        signed: bool = True,
        has_names: bool = True,
        columns: tuple[bytes, bytes] = (b"id", b"name"),
    ) -> bytes:
        """Two columns: id BIGINT, name VARCHAR(40) in utf8mb4; full metadata, or, without names, minimal."""
        body = struct.pack("<IHH", table_id, 0, 1)
        for word in (schema, name):
            body += bytes([len(word)]) + word.encode() + b"\0"
        body += bytes([2, 8, 15, 2]) + struct.pack("<H", 160) + bytes([2])
        body += bytes([1, 1, 0 if signed else 0x80])  # signedness
        body += bytes([2, 1, 45])  # default character set: utf8mb4_general_ci
        if not has_names:
            return self.event(19, body)
        names = b"".join(bytes([len(column)]) + column for column in columns)
        body += bytes([4, len(names)]) + names
        body += bytes([8, 1, 0])  # simple primary key: column 0
        return self.event(19, body)

    def rows(
        self,
        kind: int,
        rows: list[tuple[int, bytes | None]],
        table_id: int = 7,
        bitmap: int = 0xFF,
        second: int | None = None,
    ) -> bytes:
        images = bytes([2, bitmap]) + bytes([bitmap if second is None else second] if kind == 31 else [])
        body = struct.pack("<IHHH", table_id, 0, 1, 2) + images
        for number, name in rows:
            body += bytes([0 if name is not None else 2]) + struct.pack("<q", number)
            if name is not None:
                body += bytes([len(name)]) + name
        return self.event(kind, body)

    def commit(self) -> bytes:
        return self.event(16, struct.pack("<q", 1))

    def transaction(self, number: int, rows: list[tuple[int, bytes | None]], kind: int = 30) -> None:
        self.gtid(number)
        self.query("BEGIN")
        self.table_map()
        self.rows(kind, rows)
        self.commit()


def user_table() -> Table:
    """The table that `Stream.table_map` describes."""
    return Table(
        schema="shop",
        name="user",
        columns=(
            Column(name="id", kind=Kind.INTEGER, declared="bigint", is_nullable=False),
            Column(
                name="name",
                kind=Kind.TEXT,
                declared="varchar(40)",
                is_nullable=True,
                charset="utf8mb4",
                length=40,
            ),
        ),
        primary_key=("id",),
    )
