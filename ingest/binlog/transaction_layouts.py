"""Layouts of the common transactions (common_transactions.py): structs that read their fixed parts in one step.

A layout is made of an example that the general walk has read. What is constant is then compared, not parsed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from ingest.binlog.events import XID
from ingest.binlog.gtids import GTID_BYTES
from ingest.binlog.packed_integers import Buffer

_Unpack = Callable[[Buffer, int], tuple[Any, ...]]

BEGIN_TAIL = b"\0BEGIN"
XID_PACKET_BYTES = 36  # packet header, status byte, event header, number, checksum
XID_BYTES = 31  # of these, the event

# Of a packet with an event: status; type, server id and size, which are the same in each; end position.
_STATUS_AND_END = "4xB4x9sI2x"
_STATUS_AND_KIND = "4xB4xB4xI"  # ... or its type and size apart
PACKET_HEAD_BYTES = 24  # packet length and sequence, status byte, event header
_CHECKSUM_BYTES = 4
_LEAST_GTID = 19 + GTID_BYTES + _CHECKSUM_BYTES
_SHAPES = 1000  # more than a server has sessions' settings, sizes of GTIDs and replicated servers at a time

xid_head: _Unpack = struct.Struct(f"<{_STATUS_AND_END}").unpack_from


class Opening(NamedTuple):
    """The parts that GTID event and BEGIN of a shape have in common, and how to read the others."""

    unpack: _Unpack
    # -> status, head, end position, GTID; status, head, tail; status and size of the table map
    gtid_head: bytes  # type, server id, size
    begin_head: bytes
    xid_head: bytes
    gtid_bytes: int
    map_at: int  # from the beginning of the GTID's packet


class RowsHead(NamedTuple):
    """The head of a row event with a table's full image, and how it is read."""

    unpack: _Unpack  # -> status, type, size, end position, table id, image of a WRITE or DELETE
    image: bytes
    second: bytes  # the other bitmap of an UPDATE
    rows_at: int  # from the beginning of the packet, without the second bitmap; so many bytes are read


class Openings:
    """The shapes of one stream's openings, the last of each size of the GTID event at hand."""

    def __init__(self) -> None:
        self.by_size: list[Opening | None] = [None] * 256
        self._known: dict[bytes, Opening] = {}

    def learn(self, buffer: Buffer, gtid_at: int, begin_at: int) -> None:
        """Two packets next to each other that the walk has read, the second of which is a BEGIN."""
        gtid_bytes = int.from_bytes(buffer[gtid_at + 14 : gtid_at + 18], "little")
        if not _LEAST_GTID <= gtid_bytes < len(self.by_size):
            return
        shape = bytes(buffer[gtid_at + 9 : gtid_at + 18] + buffer[begin_at + 9 : begin_at + 18])
        opening = self._known.get(shape)
        if opening is None:
            if len(self._known) >= _SHAPES:
                self._known.clear()
            opening = self._known[shape] = _opening(buffer, gtid_at, begin_at)
        self.by_size[gtid_bytes] = opening


def _opening(buffer: Buffer, gtid_at: int, begin_at: int) -> Opening:
    gtid_head = bytes(buffer[gtid_at + 9 : gtid_at + 18])
    begin_head = bytes(buffer[begin_at + 9 : begin_at + 18])
    gtid_bytes = int.from_bytes(gtid_head[5:], "little")
    begin_bytes = int.from_bytes(begin_head[5:], "little")
    first = f"{_STATUS_AND_END}{GTID_BYTES}s{gtid_bytes + 5 - PACKET_HEAD_BYTES - GTID_BYTES}x"
    skipped = begin_bytes + 5 - PACKET_HEAD_BYTES - len(BEGIN_TAIL) - _CHECKSUM_BYTES
    second = f"4xB4x9s6x{skipped}x{len(BEGIN_TAIL)}s{_CHECKSUM_BYTES}x"
    unpack = struct.Struct(f"<{first}{second}4xB9xI6x").unpack_from
    commit_head = bytes((XID,)) + gtid_head[1:5] + XID_BYTES.to_bytes(4, "little")
    return Opening(unpack, gtid_head, begin_head, commit_head, gtid_bytes, begin_at + begin_bytes + 5 - gtid_at)


def rows_head(write_image: bytes, update_image: bytes) -> RowsHead:
    """Make the head of a table's row events."""
    size = len(write_image)
    unpack = struct.Struct(f"<{_STATUS_AND_KIND}I2x6s2x{size}s").unpack_from
    return RowsHead(unpack, write_image, update_image[size:], PACKET_HEAD_BYTES + 8 + size)
