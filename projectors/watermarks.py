"""Watermarks: rows committed on the source's primary to find where "now" is in the stream.

`Watermarks` is put together from a writer, which commits tokens, and a waiter, which knows when they are passed: a
`LocalWaiter` in the pipeline's own process, a `RemoteWaiter` in another one (remote_watermarks.py).
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pymysql
import structlog

from offsets import watermarks
from offsets.mysql import OwnSession
from viewtail.changes.batches import Watermark
from viewtail.changes.errors import SourceUnavailableError, StopRequested, WatermarkMissingError
from viewtail.servers.sessions import Connection

_log = structlog.get_logger("viewtail.backfill")

_REMEMBERED = 1000
_KEEP_SESSION_S = 5.0
_NEVER = 1 << 62
_AGAIN_AFTER_S, _AGAIN_AT_MOST_AFTER_S = 1.0, 15.0  # `now_within` writes another one
_CHECK_AFTER_S = 5.0  # `now_within` asks whether one can come
WHY_LATE = (
    "Either the stream is behind, as the lag says; or it does not have what is committed in viewtail's database on the "
    "source's primary: that is another server's (VIEWTAIL_SOURCE__PRIMARY_URL), or a filter leaves it out. See: "
    "viewtail check"
)
REMOTE = "ask"  # a token begins so when another process waits for it; the others are hexadecimal


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


class WatermarkWriter:
    """Commits tokens into a row of the table. Thread-safe.

    Args:
        name: whose row it is; one a pipeline and offset database.
        number: of the row, where there are several of that name; asked before each write.
        prefix: of the tokens.
    """

    def __init__(
        self, place: WatermarkPlace, name: str, *, number: Callable[[], int] | None = None, prefix: str = ""
    ) -> None:
        self._place, self._name, self._number, self._prefix = place, name, number, prefix
        self._row = place.row(name)  # that was written last
        self._session = OwnSession(self._open)
        self._order: dict[str, int] = {}  # token -> how many were written before it
        self._count = itertools.count()
        self._writing = threading.Lock()
        self._used_at = 0.0

    def write(self, before: Callable[[str], None] = lambda _: None) -> str:
        """Commit a watermark; returns its token, which `before` gets first. Raises SourceUnavailableError."""
        token = self._prefix + secrets.token_hex(16)[len(self._prefix) :]
        before(token)
        with self._writing:
            if self._number is not None:
                self._row = self._place.row(f"{self._name}:{self._number()}")
            # Kept for those that follow at once; later the address may lead to another server.
            if time.monotonic() - self._used_at > _KEEP_SESSION_S:
                self._session.close()
            self._used_at = time.monotonic()
            connection = self._session()
            try:
                with connection.cursor() as cursor:
                    watermarks.write(cursor, self._place.schema, self._row, token)
            except pymysql.err.MySQLError as error:
                connection.close()
                raise SourceUnavailableError(
                    f"writing a watermark into {watermarks.table_in(self._place.schema)} failed: "
                    f"{' '.join(str(part) for part in error.args)}. `viewtail check` lists the grants it needs"
                ) from None
            self._order[token] = next(self._count)
            forget_oldest(self._order)
        return token

    def _open(self) -> Connection:
        connection = self._place.open()
        connection.autocommit(True)  # one that hangs in between would hold the row for the next owner
        return connection

    def mark_end(self) -> str:
        """Commit a watermark at which a reader of its own ends; returns its token.

        Raises WatermarkMissingError where it cannot come: such a reader would wait for it at the stream's end.
        """
        token = self.write()
        self.check_can_come()
        return token

    def check_can_come(self) -> None:
        """Raises WatermarkMissingError where what was written cannot come: somebody must mend that first."""
        if (why := self.why_missing()) is not None:
            raise WatermarkMissingError(why)

    def why_missing(self) -> str | None:
        """Why what was written cannot come through the stream, and what to do; None: it may."""
        return self._place.why_missing(self._row)

    def is_visible(self, cursor: Any, version: int, passed: Mapping[str, int]) -> bool:
        """As `Watermarks.is_visible`, by the versions of the tokens that were `passed`."""
        if not self._place.is_with_rows:  # it was passed when all before it had been read from these tables
            return True
        token = watermarks.token_of(cursor, self._place.schema, self._row)
        if token is None:
            return False
        if passed.get(token, -1) >= version:
            return True
        # One that is not passed yet, written behind one that is.
        behind = (self._order.get(other, _NEVER) for other, at in passed.items() if at >= version)
        return min(behind, default=_NEVER) < self._order.get(token, -1)

    def close(self) -> None:
        self._session.close()


class Waiter(Protocol):
    """Knows when watermarks are passed."""

    write_again_after_s: ClassVar[float]  # one may be lost
    late_after_s: ClassVar[float]

    @property
    def begun(self) -> int:
        """How often the pipeline began to read again: it may have passed watermarks unseen."""

    def passed(self) -> Mapping[str, int]:
        """The versions of those that were passed lately, by token."""

    def wait(
        self, tokens: Sequence[str], stop: threading.Event, timeout_s: float, begun: int | None = None
    ) -> int | None:
        """The version of the first of these watermarks that is passed, once one is.

        None when stopped or too late, and where the pipeline has begun again more than `begun` times.
        """

    def late(self, writer: WatermarkWriter) -> None:
        """What was written has not come for `late_after_s`. Says why, or raises WatermarkMissingError."""


class LocalWaiter:
    """Waits in the pipeline's own process, which says what it has passed. Thread-safe.

    Args:
        publish: is given the watermarks that other processes wait for.
    """

    # One may have passed while its topic got no changes, or could not be read.
    write_again_after_s: ClassVar[float] = 30.0
    late_after_s: ClassVar[float] = 15.0

    def __init__(self, publish: Callable[[Sequence[Watermark]], None] = lambda _: None) -> None:
        self._passed: dict[str, int] = {}
        self.begun = 0
        self.trouble: str | None = None  # why one that is waited for does not come, in words
        self._publish = publish
        self._changed = threading.Condition()

    def on_passed(self, passed: Sequence[Watermark]) -> None:
        """Called by the pipeline when everything before these watermarks is durable."""
        if not passed:
            return
        with self._changed:
            self._passed.update({mark.token: mark.version for mark in passed})
            forget_oldest(self._passed)
            self._changed.notify_all()
        if remote := [mark for mark in passed if mark.token.startswith(REMOTE)]:
            self._publish(remote)

    def begin_again(self) -> None:
        """Called by the pipeline where it reads on behind what is published."""
        with self._changed:
            self.begun += 1
            self._changed.notify_all()

    def passed(self) -> Mapping[str, int]:
        with self._changed:
            return self._passed.copy()

    def wait(
        self, tokens: Sequence[str], stop: threading.Event, timeout_s: float, begun: int | None = None
    ) -> int | None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not (versions := [self._passed[token] for token in tokens if token in self._passed]):
                if stop.is_set() or time.monotonic() > deadline or begun not in (None, self.begun):
                    return None
                self._changed.wait(0.25)
            self.trouble = None
            return min(versions)

    def late(self, writer: WatermarkWriter) -> None:
        """Says why, and raises nothing: what is in its way may go. Where no server says why, it is late."""
        trouble = writer.why_missing() or (
            f"a watermark that was committed {self.late_after_s:.0f} s ago or earlier has not come through the "
            f"source's stream, and views wait for it. {WHY_LATE}"
        )
        if trouble != self.trouble:
            _log.warning("a watermark does not come", error=trouble)
        self.trouble = trouble


W = TypeVar("W", bound=Waiter)


class Watermarks(Generic[W]):
    """Writes watermarks and waits until they are passed. Thread-safe where the waiter is."""

    def __init__(self, writer: WatermarkWriter, waiter: W) -> None:
        self.writer, self.waiter = writer, waiter
        self._asking = threading.Lock()
        self._shared = (float("-inf"), 0)  # the watermark that threads shared last: when it was written, its version

    def now(self, stop: threading.Event) -> int:
        """The version of a watermark from now on, once everything before it is durable.

        Threads that ask while another one waits share the next. Raises StopRequested, SourceUnavailableError.
        """
        asked_at = time.monotonic()
        with self._asking:
            if self._shared[0] <= asked_at:
                self._shared = (time.monotonic(), self._passed_from_now(stop))
            return self._shared[1]

    def _passed_from_now(self, stop: threading.Event) -> int:
        began_at, tokens = time.monotonic(), list[str]()
        written_at, begun = float("-inf"), -1
        while not stop.is_set():
            now = time.monotonic()
            if begun != self.waiter.begun or now - written_at >= self.waiter.write_again_after_s:
                written_at, begun = now, self.waiter.begun
                tokens.append(self.write())
            version = self.wait(tokens, stop, self.waiter.late_after_s, begun)
            if version is not None:
                return version
            if time.monotonic() - began_at >= self.waiter.late_after_s:
                self.waiter.late(self.writer)
            _log.debug("the watermark is not passed yet", written=len(tokens))
        raise StopRequested

    def now_within(self, stop: threading.Event, timeout_s: float) -> int | None:
        """The version of a watermark from now on; None where it is not passed in time.

        Raises StopRequested; WatermarkMissingError where none can come.
        """
        deadline, again_after_s, tokens = time.monotonic() + timeout_s, _AGAIN_AFTER_S, list[str]()
        while True:
            # Again and again: a pipeline that takes up a new history begins behind those that were written before.
            tokens.append(self.write())
            left_s = max(0.0, deadline - time.monotonic())
            version = self.wait(tokens, stop, min(left_s, again_after_s))
            if version is not None:
                return version
            if stop.is_set():
                raise StopRequested
            if (is_over := left_s <= again_after_s) or again_after_s >= _CHECK_AFTER_S:
                self.writer.check_can_come()
            if is_over:
                return None
            again_after_s = min(2 * again_after_s, _AGAIN_AT_MOST_AFTER_S)

    def write(self, before: Callable[[str], None] = lambda _: None) -> str:
        """As the writer's."""
        return self.writer.write(before)

    def wait(
        self, tokens: Sequence[str], stop: threading.Event, timeout_s: float, begun: int | None = None
    ) -> int | None:
        """As the waiter's."""
        return self.waiter.wait(tokens, stop, timeout_s, begun)

    def is_visible(self, cursor: Any, version: int) -> bool:
        """Whether the snapshot of this cursor's transaction has the watermark of that version, or a later one."""
        return self.writer.is_visible(cursor, version, self.waiter.passed())

    def close(self) -> None:
        self.writer.close()


def forget_oldest(tokens: dict[str, int]) -> None:
    """Keep those that were added last."""
    while len(tokens) > _REMEMBERED:
        del tokens[next(iter(tokens))]
