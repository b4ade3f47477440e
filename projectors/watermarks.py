"""Watermarks: rows committed on the source's primary to find where "now" is in the stream.

Whoever waits in the pipeline's own process asks `Watermarks`. Another process writes tokens that say so, and looks in
viewtail's table `watermark_passed`: asked_watermarks.py.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
import structlog

from offsets import watermarks
from offsets.mysql import OwnSession
from viewtail.changes.batches import Watermark
from viewtail.changes.errors import SourceUnavailableError, StopRequested, WatermarkMissingError
from viewtail.servers.sessions import Connection

_log = structlog.get_logger("viewtail.backfill")

_WRITE_AGAIN_AFTER_S = 30.0  # one may have passed while its topic got no changes, or could not be read
LOOK_AFTER_S = 15.0  # why one does not come
_REMEMBERED = 1000
_KEEP_SESSION_S = 5.0
_NEVER = 1 << 62
MAYBE = (
    "Either the stream is behind, as the lag says; or it does not have what is committed in viewtail's database on the "
    "source's primary: that is another server's (VIEWTAIL_SOURCE__PRIMARY_URL), or a filter leaves it out. See: "
    "viewtail check"
)
ASKED = "ask"  # a token begins so when another process waits for it; the others are hexadecimal


def new_token() -> str:
    """One that the pipeline's own process waits for."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class WatermarkPlace:
    """Where the table `watermark` is.

    Args:
        open: a session on its server: the source's primary, or, where the source reads it there, viewtail's own.
        schema: its database.
        is_with_rows: it comes to who reads canonical rows as these do, and may be as late.
        why_missing: why the watermark of a name cannot come, though it was committed, and what to do; None: it may.
        deployment: whose rows these are: several may read one source, and call their own databases the same.
    """

    open: Callable[[], Connection]
    schema: str
    is_with_rows: bool = True
    why_missing: Callable[[str], str | None] = lambda _: None
    deployment: str = ""

    def row(self, name: str) -> str:
        """The name of a row: of a deployment's own."""
        return f"{name}@{self.deployment}" if self.deployment else name


class Watermarks:
    """Writes watermarks and waits for the pipeline to pass them. Thread-safe.

    Args:
        name: whose row it is; one a pipeline and offset database.
        tell: is given the watermarks that another process waits for.
    """

    def __init__(
        self,
        place: WatermarkPlace,
        name: str,
        tell: Callable[[Sequence[Watermark]], None] = lambda _: None,
    ) -> None:
        self.trouble: str | None = None  # why nothing comes of one that is waited for, in words
        self._tell = tell
        self._write_again_after_s, self._look_after_s = _WRITE_AGAIN_AFTER_S, LOOK_AFTER_S
        self._new_token = new_token
        self._place = place
        self._session = OwnSession(self._open)
        self._name = place.row(name)
        self._seen: dict[str, int] = {}
        self._written: dict[str, int] = {}  # token -> how many were written before it
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._asking = threading.Lock()
        self._used_at = 0.0
        self._count = itertools.count()
        self._begun = 0  # how often the pipeline began to read
        self._last = (float("-inf"), 0)  # of the watermark that was shared last: when it was written, version

    def now(self, stop: threading.Event) -> int:
        """The version of a watermark from now on, once the pipeline has written everything before it.

        Threads that ask while another one waits share the next. Raises StopRequested, SourceUnavailableError.
        """
        asked_at = time.monotonic()
        with self._asking:
            if self._last[0] > asked_at:
                return self._last[1]
            began_at, tokens = time.monotonic(), list[str]()
            written_at, begun = float("-inf"), -1
            while True:
                if stop.is_set():
                    raise StopRequested
                now = time.monotonic()
                if begun != self._begun or now - written_at >= self._write_again_after_s:
                    written_at, begun = now, self._begun
                    tokens.append(self.write())
                version = self.wait(tokens, stop, self._look_after_s, begun)
                if version is not None:
                    self._last = (began_at, version)
                    self.trouble = None
                    return version
                if time.monotonic() - began_at >= self._look_after_s:
                    self._look_why()
                _log.debug("the watermark is not passed yet", written=len(tokens))

    def _look_why(self) -> None:
        """Why a watermark does not come. The pipeline's own process says so, and waits on: what is in its way may go.

        Where no server says that it cannot come, it is late.
        """
        trouble = self._place.why_missing(self._name) or (
            f"a watermark that was committed {LOOK_AFTER_S:.0f} s ago or earlier has not come through the source's "
            f"stream, and views wait for it. {MAYBE}"
        )
        if trouble != self.trouble:
            _log.warning("a watermark does not come", error=trouble)
        self.trouble = trouble

    def write(self, before: Callable[[str], None] = lambda _: None) -> str:
        """Commit a watermark; returns its token, which `before` is told first."""
        token = self._new_token()
        before(token)
        with self._writing:
            # Kept for those that follow at once; later the address may lead to another server.
            if time.monotonic() - self._used_at > _KEEP_SESSION_S:
                self._session.close()
            self._used_at = time.monotonic()
            connection = self._session()
            try:
                with connection.cursor() as cursor:
                    watermarks.write(cursor, self._place.schema, self._name, token)
            except pymysql.err.MySQLError as error:
                connection.close()
                raise SourceUnavailableError(
                    f"writing a watermark into {watermarks.table_in(self._place.schema)} failed: "
                    f"{' '.join(str(part) for part in error.args)}. `viewtail check` lists the grants it needs"
                ) from None
            with self._changed:
                self._written[token] = next(self._count)
                if len(self._written) > _REMEMBERED:
                    del self._written[next(iter(self._written))]
        return token

    def mark_end(self) -> str:
        """Commit a watermark at which a reader of its own ends; returns its token.

        Raises WatermarkMissingError where it cannot come: such a reader would wait for it at the stream's end.
        """
        token = self.write()
        if (why := self._place.why_missing(self._name)) is not None:
            raise WatermarkMissingError(why)
        return token

    def _open(self) -> Connection:
        connection = self._place.open()
        connection.autocommit(True)  # one that hangs in between would hold the row for the next owner
        return connection

    def saw(self, passed: Sequence[Watermark]) -> None:
        """Called by the pipeline when everything before these watermarks is durable."""
        if passed:
            with self._changed:
                self._seen.update({mark.token: mark.version for mark in passed})
                while len(self._seen) > _REMEMBERED:
                    del self._seen[next(iter(self._seen))]
                self._changed.notify_all()
            if asked := [mark for mark in passed if mark.token.startswith(ASKED)]:
                self._tell(asked)

    def begin_again(self) -> None:
        """Called by the pipeline where it reads on behind what is published: it may have passed watermarks unseen."""
        with self._changed:
            self._begun += 1
            self._changed.notify_all()

    def wait(
        self, tokens: Sequence[str], stop: threading.Event, timeout_s: float, begun: int | None = None
    ) -> int | None:
        """The version of the first of these watermarks, once the pipeline passed one.

        None when stopped or too late, and where the pipeline began again since it had begun `begun` times.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not (seen := [self._seen[token] for token in tokens if token in self._seen]):
                if stop.is_set() or time.monotonic() > deadline or begun not in (None, self._begun):
                    return None
                self._changed.wait(0.25)
            return min(seen)

    def is_visible(self, cursor: Any, version: int) -> bool:
        """Whether the snapshot of this cursor's transaction has the watermark of that version, or a later one."""
        if not self._place.is_with_rows:  # it was passed when all before it had been read from these tables
            return True
        token = watermarks.token_of(cursor, self._place.schema, self._name)
        if token is None:
            return False
        with self._changed:
            if self._seen.get(token, -1) >= version:
                return True
            # One that the pipeline has not passed yet, written behind one that it has.
            passed = (self._written.get(one, _NEVER) for one, seen in self._seen.items() if seen >= version)
            return min(passed, default=_NEVER) < self._written.get(token, -1)

    def close(self) -> None:
        self._session.close()
