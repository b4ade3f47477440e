"""Two ways in which a binlog that was reset under its reader goes unnoticed, and how they end.

A reset begins again at file 1. Where that was the file being read, the server goes on to send heartbeats with the old
place for as long as the new file is shorter: its own status is asked while nothing else comes. Once the new file is
longer, the old place is amidst other events: their bytes fail their checksum however often they are read.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

import pymysql

from ingest.binlog.coordinates import BinlogPosition, file_number
from ingest.binlog.stream_errors import BACKFILL_ALL, WentBackError
from viewtail.changes.errors import CorruptEventError, HistoryGoneError, ViewtailError
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import MySQLAddress, open_session, value_of

_SAME_BYTES_TIMES = 5  # a bad wire does not harm the same bytes in the same way so often


class SilentEnd:
    """Asks the server for its binlog's end, on a session of its own, at most every `every_s` seconds."""

    def __init__(self, address: MySQLAddress, identity: str | None, every_s: float) -> None:
        # What is asked here must not hold up the reader for longer than a silent dump connection does.
        self._address = replace(address, connect_timeout_s=every_s * 1.5, io_timeout_s=every_s * 1.5)
        self._identity = identity
        self._every_s = every_s
        self._asked_at = 0.0
        self._session: pymysql.Connection[Any] | None = None

    def check(self, place: str) -> None:
        """Raises HistoryGoneError when the binlog ends before `place`, up to which it was read."""
        if time.monotonic() - self._asked_at < self._every_s:
            return
        end = self._ask()
        self._asked_at = time.monotonic()
        if end is not None and _comparable(end) < _comparable(place):
            raise HistoryGoneError(
                f"the source's binlog ends at {end}, and was read up to {place}: the binlogs were reset or restored. "
                f"To go on, {BACKFILL_ALL}"
            )

    def _ask(self) -> str | None:
        """Ask for the binlog's end; None where no answer comes, or another server's: that decides nothing."""
        try:
            if self._session is None:
                self._session = open_session(self._address, role="source")
            facts = facts_of(self._session)
            is_ours = self._identity in (None, value_of(self._session, facts.identity))
            with self._session.cursor() as cursor:
                cursor.execute(facts.status)
                row = cursor.fetchone()
            return f"{row[0]}:{row[1]}" if row is not None and is_ours else None
        except (pymysql.err.MySQLError, ViewtailError):
            self.close()
            return None

    def close(self) -> None:
        """Give the session up; the next question opens another."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(pymysql.err.MySQLError):
                session.close()


def _comparable(place: str) -> tuple[int, int]:
    file, _, position = place.rpartition(":")
    return file_number(file), int(position)


class SameBytes:
    """Counts how often the same bytes failed after the same place."""

    def __init__(self) -> None:
        self._went_back: tuple[BinlogPosition, str] | None = None
        self._last: tuple[BinlogPosition, str, int] | None = None
        self._count = 0

    def met(self, after: BinlogPosition, error: ViewtailError) -> None:
        """Raises HistoryGoneError when they were read so often that they must stand in the binlog."""
        if isinstance(error, WentBackError):
            if self._went_back == (after, str(error)):
                raise error  # seen twice, so the binlog holds it; once may have been the network
            self._went_back = after, str(error)
        if not isinstance(error, CorruptEventError):
            return
        this = (after, str(error), error.fingerprint)
        self._count = self._count + 1 if this == self._last and error.fingerprint else 1
        self._last = this
        if self._count >= _SAME_BYTES_TIMES:
            raise HistoryGoneError(
                f"{str(error).partition(';')[0]}, and the same bytes came {self._count} times: so they are in the "
                "binlog. It is damaged there, or the binlogs were reset and other transactions are at this place. "
                "Look at it with mysqlbinlog --verify-binlog-checksum; to go on behind it: viewtail replay "
                "--new-history"
            )
