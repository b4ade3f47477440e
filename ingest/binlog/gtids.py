"""GTID events, plain (33), tagged (42) and MariaDB's (162), as the bytes that the hot path keeps of the plain one.

Tagged ones are written by MySQL's own serialization library (libs/mysql/serialization; Gtid_event in
libs/mysql/binlog/event/control_events.h): fields with numbers, integers of variable length.
"""

from __future__ import annotations

import struct

from ingest.binlog.packed_integers import Buffer

GTID_BYTES = 49  # flags 1, source id 16, number 8, clock type 1, two clocks 16, commit time 7

HAS_TAG = 0x40  # in the first byte of what is kept: a tag comes behind it, as long as the byte at TAG_LENGTH_AT says
TAG_LENGTH_AT = 25

_COMMIT_TIME_AT = 42
_COMMIT_TIME_MASK = (1 << 55) - 1  # the 56th bit says whether the original commit time follows
_IS_MARIADB = 0xA2  # in place of the flags, of which there is one
_FLAGS, _SOURCE, _NUMBER, _TAG, _LAST_COMMITTED, _SEQUENCE, _COMMIT_TIME = range(7)
_SOURCE_BYTES = 16
_LONGEST_TAG = 32
_PLAIN = struct.Struct("<B16sq17xIHB")  # flags, source, number; the commit time in 4, 2 and 1 bytes
MARIADB = struct.Struct("<xII8xQ24x")  # domain, server, number: where a plain one has source and number


class MalformedGtidError(ValueError):
    """Bytes that are no tagged GTID event."""


def gtid_text(gtid: Buffer) -> str:
    """'uuid:number', 'uuid:tag:number', or MariaDB's 'domain-server-number', of what is kept of a GTID event."""
    if gtid[0] == _IS_MARIADB:
        domain, server, number = MARIADB.unpack(gtid)
        return f"{domain}-{server}-{number}"
    source = gtid[1:17].hex()
    number = int.from_bytes(gtid[17:25], "little", signed=True)
    tag = gtid[GTID_BYTES:].decode("ascii", "replace")
    uuid = f"{source[:8]}-{source[8:12]}-{source[12:16]}-{source[16:20]}-{source[20:]}"
    return f"{uuid}:{tag}:{number}" if tag else f"{uuid}:{number}"


class GtidTexts:
    """`gtid_text` for many of one server, and when each was committed."""

    def __init__(self) -> None:
        self._servers: dict[bytes, str] = {}

    def of(self, gtid: bytes | bytearray) -> tuple[str | None, int]:
        """The text, None of an anonymous transaction, and the commit time in microseconds since 1970."""
        flags, source, number, low, middle, high = _PLAIN.unpack_from(gtid)
        committed = low | middle << 32 | (high & 0x7F) << 48
        if flags == _IS_MARIADB or flags & HAS_TAG:
            return gtid_text(gtid), committed
        if (server := self._servers.get(source)) is None:
            server = self._servers[source] = gtid_text(gtid).rpartition(":")[0] if any(source) else ""
        return f"{server}:{number}" if server else None, committed


def committed_us(gtid: Buffer) -> int:
    """Return when the server that is read committed the transaction, in microseconds since 1970."""
    return int.from_bytes(gtid[_COMMIT_TIME_AT:GTID_BYTES], "little") & _COMMIT_TIME_MASK


def mariadb(domain: int, server: int, number: int, committed_at_s: int) -> bytearray:
    """MariaDB's GTID as GTID_BYTES of a plain one; its commit time is in seconds."""
    gtid = bytearray(MARIADB.pack(domain, server, number))
    gtid[0] = _IS_MARIADB
    gtid[_COMMIT_TIME_AT:GTID_BYTES] = (committed_at_s * 1_000_000).to_bytes(7, "little")
    return gtid


def untagged(body: Buffer) -> bytearray:
    """A tagged event's body as GTID_BYTES of a plain one, and its tag behind them.

    Raises MalformedGtidError when it lacks a field, or has one that is not known before the commit time.
    """
    gtid = bytearray(GTID_BYTES)
    tag = b""
    numbers: dict[int, int] = {}
    version, at = _integer(body, 0)
    if version != 1:
        raise MalformedGtidError(f"its serialization is of version {version}")
    _, at = _integer(body, at)  # how long it is
    _, at = _integer(body, at)  # the last field that may not be ignored
    for expected in range(_COMMIT_TIME + 1):
        field, at = _integer(body, at)
        if field != expected:
            raise MalformedGtidError(f"field {field} is where {expected} is expected")
        if field == _SOURCE:
            for place in range(1, 1 + _SOURCE_BYTES):
                number, at = _integer(body, at)
                gtid[place] = number & 0xFF
        elif field == _TAG:
            length, at = _integer(body, at)
            tag = bytes(body[at : at + length])
            if length > _LONGEST_TAG or len(tag) != length:
                raise MalformedGtidError(f"a tag of {length} bytes")
            at += length
        else:
            numbers[field], at = _integer(body, at)
    gtid[0] = numbers[_FLAGS] & 0xFF
    gtid[17:25] = (numbers[_NUMBER] >> 1).to_bytes(8, "little")  # the lowest bit is the sign
    gtid[_COMMIT_TIME_AT:GTID_BYTES] = (numbers[_COMMIT_TIME] & _COMMIT_TIME_MASK).to_bytes(7, "little")
    if tag:
        gtid[0] |= HAS_TAG
        gtid[TAG_LENGTH_AT] = len(tag)
    return gtid + tag


def _integer(body: Buffer, at: int) -> tuple[int, int]:
    """An integer of 1 to 9 bytes, as many as the first one's low ones say, and where the next thing begins."""
    first = int.from_bytes(body[at : at + 1])  # 0 behind the end
    more = (~first & first + 1).bit_length() - 1  # ones at its low end
    end = at + 1 + more
    if end > len(body):
        raise MalformedGtidError("it ends too early")
    return int.from_bytes(body[at:end], "little") >> min(more + 1, 8), end
