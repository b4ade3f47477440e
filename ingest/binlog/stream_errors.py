"""Errors that end a read: after some the source connects again, after the others the pipeline stops."""

from __future__ import annotations

import struct
from typing import NoReturn
from zlib import crc32

from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.events import NAMES
from viewtail.changes.errors import CorruptEventError, HistoryGoneError, SourceError, SourceUnavailableError

# What reading past an event's end comes to, where no rule was broken before.
MALFORMED = (IndexError, struct.error)

_HEAD_BYTES = 20  # status and header
# In place of the dump; no new attempt can change them.
_FATAL_ERROR_READING_BINLOG = 1236
_FILE_NOT_FOUND = 29  # MariaDB, of a binlog that was removed under it
_SAME_SERVER_ID = ("server_uuid/server_id", "slave with the same", "replica with the same")

# The end of messages: what to do.
BACKFILL_TABLE = "backfill the views of this table again: viewtail replay VIEW"
BACKFILL_ALL = "backfill all views again: viewtail replay --new-history"


class UncheckedFormatError(CorruptEventError):
    """A format description that fails its checksum and says that events have none.

    A server sends that of a file without checksums so, once it has changed it. When two connections bring the same
    bytes, they are its own.
    """

    def __init__(self, message: str, event: bytes) -> None:
        super().__init__(message)
        self.event = event


class WentBackError(HistoryGoneError):
    """Positions that fall. Read again from the last position they may not: then bytes came twice."""


class PurgedError(HistoryGoneError):
    """The changes after a place are not there any more. It may be that nothing was missed."""


def name_of(kind: int) -> str:
    """An event type, for messages."""
    return NAMES.get(kind, f"of unknown type {kind}")


def unreadable(what: str) -> SourceError:
    """A part of the binlog cannot be read exactly, and nothing is skipped."""
    return SourceError(
        f"{what}. The pipeline stops before it. Look at it with mysqlbinlog -v; to go on behind it: viewtail replay "
        "--new-history"
    )


def unknown(what: str) -> SourceError:
    """A part of the binlog has a form that viewtail does not know."""
    return SourceError(f"{what}. Nothing is skipped, so the pipeline stops before it; a newer viewtail may know it")


def unknown_event(kind: int, place: str) -> NoReturn:
    """An event type that viewtail does not know."""
    raise unknown(f"event {name_of(kind)} at {place} is one viewtail cannot read")


def corrupt(kind: int, place: str, checksum: int) -> NoReturn:
    """A checksum failed; `checksum` is what the bytes have."""
    _reread(f"event {name_of(kind)} after {place} fails its checksum", checksum)


def malformed(place: str, error: Exception) -> NoReturn:
    """An event whose checksum is right, and whose bytes end too early."""
    raise unreadable(f"the event after {place} is shorter than its kind asks for ({error})") from None


def rows_without_map(kind: int, place: str) -> NoReturn:
    """A row event whose table is not known."""
    raise SourceError(
        f"event {name_of(kind)} after {place} has no table map in its transaction: reading "
        "began inside a transaction, and its rows would be lost. The pipeline stops"
    )


def not_ended(place: str) -> NoReturn:
    """A transaction begins while another one holds rows."""
    raise unreadable(
        f"after {place} a transaction begins inside another one, whose end is not in the binlog: nothing tells whether "
        "the rows of that one count"
    )


def not_an_event(packet: bytes, place: str) -> NoReturn:
    """A packet that ends the dump, or is garbled."""
    if packet[0] == 0xFF:
        raise _dump_error(packet, place)
    if packet[0] == 0xFE:
        raise CorruptEventError(f"the source ended the dump after {place}; reconnecting")
    fingerprint = crc32(packet[:_HEAD_BYTES])  # of the rest, more or less may have come
    _reread(f"the packet after {place} is no binlog event", fingerprint)


def _dump_error(packet: bytes, place: str) -> SourceError | SourceUnavailableError:
    """The error for an error packet sent in place of events: history gone, refused, or try again."""
    number = struct.unpack_from("<H", packet, 1)[0] if len(packet) >= 3 else 0
    message = packet[9 if packet[3:4] == b"#" else 3 :].decode("utf-8", "replace")
    if number in (_FATAL_ERROR_READING_BINLOG, _FILE_NOT_FOUND):
        if any(text in message for text in _SAME_SERVER_ID):
            return SourceUnavailableError(
                f"source: another replica reads with our server_id ({message}). Leave source.server_id unset, or give "
                "each reader its own; reconnecting"
            )
        return PurgedError(
            f"history gone: the source cannot continue from {place}: {number} {message}. The changes after it are gone "
            "from its binlogs, these were reset, or the server cannot read them, so the views cannot be brought up to "
            "date from the stream. "
            f"To go on, {BACKFILL_ALL}"
        )
    if number in (1227, 1045, 1142):
        return SourceError(
            f"the source refuses to send its binlog: {number} {message}. `viewtail check` lists the grants."
        )
    return SourceUnavailableError(f"the source broke the dump off at {place}: {number} {message}; reconnecting")


def _reread(what: str, fingerprint: int) -> NoReturn:
    error = CorruptEventError(f"{what}; reconnecting to read it again")
    error.fingerprint = fingerprint
    raise error


def diverged(saved: BinlogPosition, present: str) -> NoReturn:
    """The transaction at the saved position is another one, or begins or ends elsewhere."""
    raise HistoryGoneError(
        f"the source's history is not the one that was read: {saved.gtid} was at {saved.file}:{saved.start} to "
        f"{saved.end}, now {present}. The binlogs were reset or restored. To go on, {BACKFILL_ALL}"
    )
