"""MariaDB's own column types: UUID, INET4 and INET6, which its binlog shows as BINARY; and what it compresses.

A compressed column or event is a deflate stream that says how long it is.

Values of the first three are the texts that a SELECT gives. Nothing of the binlog says which of them a column is: that
is known from the table's description (ingest/canonical/tables.py).

Source of the forms: sql/sql_type_inet.cc (Inet6::to_string), plugin/type_uuid, sql/field.cc (Field_longstr::uncompress)
of MariaDB 10.11.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from ingest.binlog.packed_integers import Buffer

SIZES = {"uuid": 16, "inet4": 4, "inet6": 16}  # by the declared type: bytes of a value in the binlog

_DEFLATE = 8  # the method of a compressed event or column
_RAW = 0x08  # the bit of the first byte that says that the stream has no zlib header


def uuid_text(raw: bytes) -> str:
    """16 bytes as they are read."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def inet4_text(raw: bytes) -> str:
    """'192.0.2.1'"""
    return ".".join(map(str, raw))


def inet6_text(raw: bytes) -> str:
    """The first of the longest runs of zero words, also one of a single word, is `::`; IPv4 addresses look as such."""
    words = [raw[at] << 8 | raw[at + 1] for at in range(0, 16, 2)]
    start, length = _gap(words)
    if start == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF)):
        return ("::" if length == 6 else "::ffff:") + inet4_text(raw[12:])
    shown = [f"{word:x}" for word in words]
    if not length:
        return ":".join(shown)
    return ":".join(shown[:start]) + "::" + ":".join(shown[start + length :])


def _gap(words: list[int]) -> tuple[int, int]:
    best = (0, 0)
    start = 0
    for at, word in enumerate([*words, 1]):
        if word:
            if at - start > best[1]:
                best = (start, at - start)
            start = at + 1
    return best


TEXTS: dict[str, Callable[[bytes], str]] = {"uuid": uuid_text, "inet4": inet4_text, "inet6": inet6_text}


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
