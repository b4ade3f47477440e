"""Writes and reads files of archived events: a line of JSON an event, compressed with zstd.

A file is complete and durable before anybody records its checksum, and no event leaves its table before that. A file
without the recorded checksum is not read.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson
import zstandard

from viewtail.changes.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDING = ".jsonl.zst"
_FORMAT = "viewtail events 1"


class FiledEvent(NamedTuple):
    """A row of an event table, as a file has it."""

    event_id: int
    entity_id: str
    version: int
    command_id: str
    command_name: str
    request: str
    response: str
    state: str
    committed_at: str  # UTC

    @property
    def size(self) -> int:
        return len(self.request) + len(self.response) + len(self.state)


def write(path: Path, table: str, events: Sequence[FiledEvent], reached: Callable[[str], None]) -> str:
    """Write a new file, durable when this returns; return its SHA-256 in hexadecimal. Raises StoreError.

    Args:
        reached: called at the steps at which a test may have the process killed.
    """
    head = {"format": _FORMAT, "table": table, "columns": list(FiledEvent._fields)}
    lines = [orjson.dumps(head), *(orjson.dumps(list(event)) for event in events)]
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(b"\n".join(lines) + b"\n")
    part = path.with_name(path.name + ".part")
    with _told(path, "written"):
        try:
            with part.open("wb") as file:
                file.write(packed)
                reached("in archive file")
                file.flush()
                os.fsync(file.fileno())
            os.link(part, path)  # unlike a rename it never replaces one
        finally:
            part.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return hashlib.sha256(packed).hexdigest()


def read(path: Path, sha256: str) -> list[FiledEvent]:
    """Read all events of a file, in its order. Raises StoreError if it is missing or damaged."""
    with _told(path, "read"):
        packed = path.read_bytes()
    if hashlib.sha256(packed).hexdigest() != sha256:
        raise StoreError(
            f"{path} is damaged: its checksum is not the one that was recorded. Nothing of it is used. Put the file "
            "back from a backup, then repeat the command"
        )
    try:
        unpacked = zstandard.ZstdDecompressor().decompress(packed)
        head, *lines = unpacked.splitlines()
        if orjson.loads(head)["format"] != _FORMAT:
            raise StoreError(f"{path} is of a later viewtail ({orjson.loads(head)['format']})")
        return [FiledEvent(*orjson.loads(line)) for line in lines]
    except (zstandard.ZstdError, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} is no file of archived events: {type(error).__name__}") from None


class _Last:
    """The content of the file that was read last: a process unpacks one file at a time, and not twice in a row."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: tuple[Path, str] | None = None
        self._states: dict[int, str] = {}

    def state(self, path: Path, sha256: str, event_id: int) -> str | None:
        with self._lock:
            if self._file != (path, sha256):
                self._file, self._states = None, {}  # two at once would take twice the memory
                self._states = {event.event_id: event.state for event in read(path, sha256)}
                self._file = path, sha256
            return self._states.get(event_id)


_last = _Last()


def state_in(path: Path, sha256: str, event_id: int) -> str | None:
    """The state of one event; None where it is not in the file. Raises StoreError as `read` does."""
    return _last.state(path, sha256, event_id)


def remove(path: Path) -> None:
    """Delete what an interrupted command left of a file that was not recorded."""
    with _told(path, "removed"):
        path.with_name(path.name + ".part").unlink(missing_ok=True)
        path.unlink(missing_ok=True)


@contextmanager
def _told(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise StoreError(f"{path} cannot be {doing}: it, or its folder, is not on this machine") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be {doing}: {error.strerror or error}") from None
