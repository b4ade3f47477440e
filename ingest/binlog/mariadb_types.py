"""MariaDB's own column types: UUID, INET4 and INET6, which its binlog shows as BINARY; and what it compresses.

A compressed column or event is a deflate stream that says how long it is.

Values of the first three are the texts that a SELECT gives (viewtail/changes/binary_texts.py). Nothing of the binlog
says which of them a column is: that is known from the table's description (ingest/canonical/tables.py).

Source of the forms: sql/field.cc (Field_longstr::uncompress) of MariaDB 10.11.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from ingest.binlog.packed_integers import Buffer
from viewtail.changes.binary_texts import inet4_text, inet6_text, uuid_text

SIZES = {"uuid": 16, "inet4": 4, "inet6": 16}  # by the declared type: bytes of a value in the binlog

_DEFLATE = 8  # the method of a compressed event or column
_RAW = 0x08  # the bit of the first byte that says that the stream has no zlib header

TEXTS: dict[str, Callable[[bytes], str]] = {"uuid": uuid_text, "inet4": inet4_text, "inet6": inet6_text}


class MalformedCompressionError(ValueError):
    """Bytes that are not what their first one says."""


def declared(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """Return how many bytes what begins at `at` is decompressed, and where its stream begins."""
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


def uncompressed(raw: Buffer) -> bytes:
    """A value of a compressed column. Raises IndexError when it is malformed, as all of a row's decoding does."""
    if not raw:
        return b""
    if not raw[0]:
        return bytes(raw[1:])
    wbits = -zlib.MAX_WBITS if raw[0] & _RAW else zlib.MAX_WBITS
    try:
        length, start = declared(raw, 0, len(raw))
        return inflated(raw[start:], length, wbits=wbits)
    except MalformedCompressionError as error:
        raise IndexError(str(error)) from None
