"""Deflate streams that say how long they are: MariaDB's compressed events and columns."""

from __future__ import annotations

import zlib


class MalformedCompressionError(ValueError):
    """Bytes that are not what their first one says."""


def inflated(raw: bytes | bytearray, length: int, *, wbits: int) -> bytes:
    """`length` bytes, out of a deflate stream that gives exactly those."""
    stream = zlib.decompressobj(wbits)
    try:
        content = stream.decompress(raw, length + 1)
    except zlib.error as error:
        raise MalformedCompressionError(str(error)) from None
    if len(content) != length or not stream.eof or stream.unused_data:
        raise MalformedCompressionError("it is shorter or longer than it says")
    return content
