"""Reads the events of a binlog file on disk, by the few bytes that do not depend on viewtail's own reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TABLE_MAP, WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS = 19, 30, 31, 32
_MAGIC = b"\xfebin"
_HEADER = 19
_CHECKSUM = 4


class RawEvent(NamedTuple):
    """One event; `body` is what stands between the header and the checksum."""

    type: int
    end: int
    body: bytes


def events(file: Path, start: int = 4) -> Iterator[RawEvent]:
    """All events from byte `start` on."""
    content = file.read_bytes()
    assert content[:4] == _MAGIC
    at = start
    while at < len(content):
        size = int.from_bytes(content[at + 9 : at + 13], "little")
        yield RawEvent(content[at + 4], at + size, content[at + _HEADER : at + size - _CHECKSUM])
        at += size


def row_image(body: bytes) -> bytes:
    """What stands behind the extra data of a rows event: column count, bitmaps, rows."""
    extra = int.from_bytes(body[8:10], "little")  # its own two bytes included
    return body[8 + extra :]


def table_id(body: bytes) -> int:
    return int.from_bytes(body[:6], "little")
