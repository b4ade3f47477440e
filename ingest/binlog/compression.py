"""Deflate streams that say how long they are: MariaDB's compressed events and columns."""

from __future__ import annotations

import zlib

from ingest.binlog.packed_integers import Buffer

_DEFLATE = 8  # the method


class MalformedCompressionError(ValueError):
    """Bytes that are not what their first one says."""


def declared(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """How many bytes what begins at `at` is decompressed, and where its stream begins."""
    first = buffer[at]
    start = at + 1 + (first & 0x07)
    if first >> 4 != _DEFLATE or not first & 0x07 or start > end:
        raise MalformedCompressionError(f"its first byte is {first:#x}")
    return int.from_bytes(buffer[at + 1 : start], "big"), start


def inflated(raw: Buffer, length: int, *, wbits: int) -> bytes:
    """`length` bytes, out of a deflate stream that gives exactly those."""
    stream = zlib.decompressobj(wbits)
    try:
        content = stream.decompress(raw, length + 1)
    except zlib.error as error:
        raise MalformedCompressionError(str(error)) from None
    if len(content) != length or not stream.eof or stream.unused_data:
        raise MalformedCompressionError("it is shorter or longer than it says")
    return content
