"""Finds the binlog that holds what was committed at a time: each begins with an event that tells when it was begun."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime

from ingest.binlog.connection import DumpConnection
from ingest.binlog.events import FORMAT_DESCRIPTION
from ingest.binlog.stream_errors import not_an_event
from viewtail.changes.errors import HistoryGoneError

# Packet length and sequence, status byte | time, type.
_HEAD = struct.Struct("<IBIB")
_BUFFER_BYTES = 64 << 10  # the event is the second of a dump, and has some hundred bytes

Connect = Callable[[str], DumpConnection]  # to a dump from the beginning of a file


def file_since(files: Sequence[str], connect: Connect, time_us: int) -> str:
    """The newest of these binlogs that was begun before a time, microseconds since 1970.

    Raises HistoryGoneError where the oldest one was begun later: what was committed before it may be gone.
    """
    at = bisect_left(files, time_us // 1_000_000, key=lambda file: begun_s(connect, file))
    if at:
        return files[at - 1]
    begun = datetime.fromtimestamp(begun_s(connect, files[0]), UTC)
    raise HistoryGoneError(
        f"history gone: the oldest binlog that the source has, {files[0]}, begins at {begun:%Y-%m-%dT%H:%M:%SZ}, and "
        "what was committed before that may be missing. Ask for a later time"
    )


def begun_s(connect: Connect, file: str) -> int:
    """Return when a binlog was begun, seconds since 1970."""
    with closing(connect(file)) as connection:
        buffer, filled, at = bytearray(_BUFFER_BYTES), 0, 0
        while True:
            with memoryview(buffer) as view:
                filled += connection.receive_into(view[filled:])
            while filled - at >= _HEAD.size:
                word, status, begun, kind = _HEAD.unpack_from(buffer, at)
                if status:
                    not_an_event(bytes(buffer[at + 4 : filled]), f"{file}:4")
                if kind == FORMAT_DESCRIPTION:
                    return int(begun)
                at += 4 + (word & 0xFFFFFF)
