"""Watermarks that another process than the pipeline's waits for: commands, and `wait_for` in a user's program.

Such a process commits a token that tells it from the pipelines' own. Every pipeline that passes it notes so in
viewtail's table `watermark_passed`, with its version, when everything before it is durable in its store. So a command
knows where it stands in each pipeline's stream, whatever source that reads, and talks to no pipeline.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar

import pymysql
import structlog

from offsets import watermarks
from offsets.lease import lock_name
from offsets.mysql import OwnSession, Session
from projectors.watermarks import REMOTE, WatermarkPlace, WatermarkWriter, forget_oldest
from viewtail.changes.batches import Watermark
from viewtail.changes.errors import StoreUnavailableError, ViewtailError
from viewtail.changes.repeating import Repeats, looks
from viewtail.servers.sessions import Connection, value_of

_log = structlog.get_logger("viewtail.pipeline")

MOST_ROWS = 64  # of processes that read rows under watermarks at the same time
_FORGET_EVERY_S = 60.0
_ATTEMPTS = 5
_SAY_AFTER_S = 10.0  # that a pipeline does not pass
_SAY_AGAIN_S = 30.0


class PassedWatermarks:
    """Notes those that a pipeline has passed, in a thread of its own: the loop does not wait for another commit.

    What cannot be noted is left out after some attempts: who waits for it writes another one.
    """

    def __init__(self, open_: Callable[[], Connection], database: str, pipeline_id: int, stop: threading.Event) -> None:
        self._session = OwnSession(open_)
        self._database = database
        self._pipeline_id = pipeline_id
        self._stop = stop
        self._waiting: queue.SimpleQueue[Sequence[Watermark]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._forgot_at = float("-inf")

    def __call__(self, passed: Sequence[Watermark]) -> None:
        self._waiting.put(passed)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="passed", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                marks = list(self._waiting.get(timeout=0.5))
            except queue.Empty:
                continue
            while not self._waiting.empty():
                marks += self._waiting.get()
            self._note(marks)
        self._session.close()

    def _note(self, marks: Sequence[Watermark]) -> None:
        passed = [(mark.token, mark.version) for mark in marks]
        for attempt in range(_ATTEMPTS):
            try:
                watermarks.note_passed(self._session, self._database, self._pipeline_id, passed)
                self._forget()
                return
            except ViewtailError as error:
                _log.debug("passed watermarks not noted", error=str(error))
                if self._stop.wait(0.1 * (attempt + 1)):
                    return

    def _forget(self) -> None:
        if time.monotonic() - self._forgot_at > _FORGET_EVERY_S:
            self._forgot_at = time.monotonic()
            watermarks.forget_passed(self._session, self._database)


class RemoteWaiter:
    """Waits until each of some pipelines has passed a watermark, in a process of its own. Not thread-safe.

    Args:
        session: on the server of viewtail's own tables, which are in `database`.
        pipelines: the ids of the pipelines to wait for; asked each time.
        trouble: why one of them passes nothing now, or None; asked when it takes long.
        say: is told such a reason, and the same one again after a while.
    """

    write_again_after_s: ClassVar[float] = 15.0  # the note may be lost: its writer was killed
    late_after_s: ClassVar[float] = 5.0
    begun = 0  # a process that waits does not see when pipelines begin again

    def __init__(
        self,
        session: Session,
        database: str,
        pipelines: Callable[[], Collection[int]],
        trouble: Callable[[], str | None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._session, self._database = session, database
        self._pipelines, self._trouble, self._say = pipelines, trouble, say
        self._troubles = Repeats(_SAY_AGAIN_S)
        self._passed: dict[str, int] = {}

    def passed(self) -> Mapping[str, int]:
        return self._passed

    def wait(
        self, tokens: Sequence[str], stop: threading.Event, timeout_s: float, begun: int | None = None
    ) -> int | None:
        began = time.monotonic()
        wanted = set(self._pipelines())
        for _ in looks(stop, timeout_s):
            for token, versions in watermarks.passed(self._session, self._database, tokens).items():
                if wanted and wanted <= versions.keys():
                    # Partitions know one watermark by one version.
                    version = self._passed[token] = max(versions[pipeline] for pipeline in wanted)
                    forget_oldest(self._passed)
                    return version
            if time.monotonic() - began > _SAY_AFTER_S:
                wanted = set(self._pipelines())
                self._say_why()
        return None

    def late(self, writer: WatermarkWriter) -> None:
        writer.check_can_come()
        self._say_why()

    def _say_why(self) -> None:
        why = self._trouble()
        if self._troubles.is_due(why) and why is not None:
            self._say(why)


def remote_writer(place: WatermarkPlace, database: str, number: RowNumber | None = None) -> WatermarkWriter:
    """Into the row that all share, or one of its own: who asks whether a watermark is visible needs that."""
    return WatermarkWriter(place, f"{database}:asker", number=number, prefix=REMOTE)


class RowNumber:
    """The number of a watermark row that no other process writes: the session has the lock on it."""

    def __init__(self, session: Session, database: str) -> None:
        self._session, self._database = session, database
        self._locked: Connection | None = None  # that has the lock
        self._number = 0

    def __call__(self) -> int:
        """Raises StoreUnavailableError."""
        connection = self._session()
        if connection is not self._locked:
            self._number, self._locked = self._lock(connection), connection
        return self._number

    def _lock(self, connection: Connection) -> int:
        try:
            for number in range(MOST_ROWS):
                if value_of(connection, "SELECT GET_LOCK(%s, 0)", lock_name(self._database, f"asker#{number}")) == 1:
                    return number
        except pymysql.err.MySQLError as error:
            connection.close()
            raise StoreUnavailableError(
                f"MySQL does not answer ({type(error).__name__} {error.args[0] if error.args else ''}) while a "
                "watermark is to be written. Try again when the server answers"
            ) from None
        raise StoreUnavailableError(
            f"{MOST_ROWS} commands or programs wait for watermarks already. Try again when some of them have ended"
        )
