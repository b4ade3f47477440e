"""Where a transaction above the memory bound waits for its commit: raw events in an unnamed temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

_CHUNK_BYTES = 1 << 20


class Spool:
    """Raw events with their headers, each behind five bytes that stand for a packet's, in order."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="viewtail-")  # noqa: SIM115 - closed by `close`
        self._largest = 0  # bytes of one packet

    def append(self, packet: memoryview) -> None:
        self._file.write(packet)
        self._largest = max(self._largest, len(packet))

    def chunks(self) -> Iterator[tuple[bytearray, int]]:
        """(buffer, bytes filled) pairs; the reader returns by `keep` what it could not use yet."""
        self._file.seek(0)
        buffer = bytearray(max(_CHUNK_BYTES, self._largest + 64))
        self._rest = 0
        while True:
            got = self._file.readinto(memoryview(buffer)[self._rest :])
            if not got:
                return
            yield buffer, self._rest + got

    def keep(self, buffer: bytearray, start: int, end: int) -> None:
        """Move what is left of a chunk to its beginning; the next one is read behind it."""
        buffer[: end - start] = buffer[start:end]
        self._rest = end - start

    def close(self) -> None:
        self._file.close()
