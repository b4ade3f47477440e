"""Where a transaction above the memory bound waits for its commit: raw events in an unnamed temporary file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from changes.errors import SourceUnavailableError

_CHUNK_BYTES = 1 << 20


class Spool:
    """Raw events with their headers, each behind five bytes that stand for a packet's, in order.

    With them it keeps how often the file's 32-bit positions had wrapped, which the events themselves do not say.
    Raises SourceUnavailableError when the file cannot be written or read: nothing of the transaction has been
    delivered as final then, and it is read from the source again.
    """

    def __init__(self) -> None:
        try:
            # Events are small: they are gathered, so that not each is a system call.
            self._file = tempfile.TemporaryFile(prefix="viewtail-", buffering=_CHUNK_BYTES)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise _unavailable(error) from None
        self._largest = 0  # bytes of one packet
        self._size = 0
        self._runs: list[tuple[int, int]] = []  # (offset, wraps) where another count of wraps begins

    def append(self, packet: memoryview, wraps: int) -> None:
        """Keep one event; `wraps` of the position where it ends."""
        if not self._runs or self._runs[-1][1] != wraps:
            self._runs.append((self._size, wraps))
        try:
            self._file.write(packet)
        except OSError as error:
            self.close()
            raise _unavailable(error) from None
        self._size += len(packet)
        self._largest = max(self._largest, len(packet))

    def chunks(self) -> Iterator[tuple[bytearray, int, int]]:
        """(buffer, bytes filled, wraps of all in it); the reader returns by `keep` what it could not use yet."""
        buffer = bytearray(max(_CHUNK_BYTES, self._largest + 64))
        ends = [offset for offset, _ in self._runs[1:]] + [self._size]
        offset = self._rest = 0
        for (_, wraps), end in zip(self._runs, ends, strict=True):
            while offset < end:
                with memoryview(buffer) as view:
                    got = self._read(view[self._rest :][: end - offset], offset)
                offset += got
                yield buffer, self._rest + got, wraps

    def _read(self, target: memoryview, offset: int) -> int:
        try:
            self._file.seek(offset)
            got = self._file.readinto(target)
        except OSError as error:
            raise _unavailable(error) from None
        if not got:
            raise _unavailable(OSError(f"it ends at byte {offset} of {self._size}"))
        return int(got)

    def keep(self, buffer: bytearray, start: int, end: int) -> None:
        """Move what is left of a chunk to its beginning; the next one is read behind it."""
        buffer[: end - start] = buffer[start:end]
        self._rest = end - start

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what was not written yet is not wanted any more
            self._file.close()


def _unavailable(error: OSError) -> SourceUnavailableError:
    directory = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")
    return SourceUnavailableError(
        f"temporary file for a large transaction: {error.strerror or error}; free space in {directory}, or set TMPDIR"
    )
