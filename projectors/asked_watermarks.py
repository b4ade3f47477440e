"""Watermarks that another process than the pipeline's waits for: commands, and `wait_for` in a user's program.

Such a process commits a token that tells it from the pipelines' own. Every pipeline that passes it notes so in
viewtail's table `watermark_passed`, with its version, when everything before it is durable in its store. So a command
knows where it stands in each pipeline's stream, whatever source that reads, and talks to no pipeline.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence

import pymysql
import structlog

from offsets import watermarks
from offsets.lease import lock_name
from offsets.mysql import OwnSession, Session
from projectors.watermarks import ASKED, WatermarkPlace, Watermarks
from viewtail.changes.batches import Watermark
from viewtail.changes.errors import StopRequested, StoreUnavailableError, ViewtailError, WatermarkMissingError
from viewtail.changes.repeating import Repeats
from viewtail.servers.sessions import Connection, value_of

_log = structlog.get_logger("viewtail.pipeline")

MOST_ASKERS = 64  # processes that ask at the same time, each with a watermark row of its own
_FORGET_EVERY_S = 60.0
_ATTEMPTS = 5
_LOOK_EVERY_S = (0.002, 0.1)  # first, and at most
_SAY_AFTER_S = 10.0  # that a pipeline does not pass
_SAY_AGAIN_S = 30.0
_AGAIN_AFTER_S = 1.0  # first
_LOOK_AFTER_S = 5.0  # why one does not come
_WRITE_AGAIN_AFTER_S = 15.0  # the note may be lost: its writer was killed


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


class AskedWatermarks(Watermarks):
    """Writes watermarks and waits until each of some pipelines has passed them, in a process of its own.

    Args:
        open_store: a session on the server of viewtail's own tables, which are in `database`.
        pipelines: the ids of the pipelines to wait for; asked each time.
        trouble: why one of them passes nothing now, or None; asked when it takes long.
        say: is told such a reason, and the same one again after a while.
        is_visible_needed: whether `is_visible` is to be asked: then the watermark row is this process's alone.
    """

    def __init__(
        self,
        place: WatermarkPlace,
        *,
        open_store: Session,
        database: str,
        pipelines: Callable[[], Collection[int]],
        trouble: Callable[[], str | None],
        say: Callable[[str], None],
        is_visible_needed: bool = True,
    ) -> None:
        super().__init__(place, f"{database}:asker")
        self._is_shared = not is_visible_needed
        self._write_again_after_s, self._look_after_s = _WRITE_AGAIN_AFTER_S, _LOOK_AFTER_S
        self._new_token = lambda: ASKED + secrets.token_hex(16)[len(ASKED) :]
        self._store = OwnSession(open_store)
        self._database = database
        self._pipelines, self._trouble, self._say = pipelines, trouble, say
        self._troubles = Repeats(_SAY_AGAIN_S)
        self._locked: Connection | None = None  # that holds the lock on the row's number

    def write(self, before: Callable[[str], None] = lambda _: None) -> str:
        self._have_row()
        return super().write(before)

    def wait(
        self, tokens: Sequence[str], stop: threading.Event, timeout_s: float, begun: int | None = None
    ) -> int | None:
        """As the pipeline's own; the versions are looked for in viewtail's table."""
        began, pause_s = time.monotonic(), _LOOK_EVERY_S[0]
        wanted = set(self._pipelines())
        while not stop.is_set() and time.monotonic() - began < timeout_s:
            for token, versions in watermarks.passed(self._store, self._database, tokens).items():
                if wanted and wanted <= versions.keys():
                    # Partitions know one watermark by one version.
                    version = max(versions[one] for one in wanted)
                    self.saw([Watermark(token, version)])
                    return version
            if time.monotonic() - began > _SAY_AFTER_S:
                wanted = set(self._pipelines())
                self._say_why()
            stop.wait(pause_s)
            pause_s = min(_LOOK_EVERY_S[1], 1.5 * pause_s)
        return None

    def now_within(self, stop: threading.Event, timeout_s: float) -> int | None:
        """The version of a watermark from now on; None where a pipeline has not passed it in time."""
        deadline, again_after_s, tokens = time.monotonic() + timeout_s, _AGAIN_AFTER_S, list[str]()
        while True:
            # Again and again: a pipeline that takes up a new history begins behind those that were written before.
            tokens.append(self.write())
            left_s = max(0.0, deadline - time.monotonic())
            version = self.wait(tokens, stop, min(left_s, again_after_s))
            if version is None and stop.is_set():
                raise StopRequested
            if version is not None:
                return version
            if (is_over := left_s <= again_after_s) or again_after_s >= _LOOK_AFTER_S:
                self._check_can_come()
            if is_over:
                return None
            again_after_s = min(2 * again_after_s, _WRITE_AGAIN_AFTER_S)

    def _look_why(self) -> None:
        """As the pipeline's own, to who waits; raises WatermarkMissingError."""
        self._check_can_come()
        self._say_why()

    def _check_can_come(self) -> None:
        """Raises WatermarkMissingError where it cannot come: nobody waits for what somebody must mend first."""
        if (why := self._place.why_missing(self._name)) is not None:
            raise WatermarkMissingError(why)

    def close(self) -> None:
        super().close()
        self._store.close()

    def _have_row(self) -> None:
        """A watermark row that no other process writes: the lock on its number is this session's."""
        if self._is_shared or (connection := self._store()) is self._locked:
            return
        try:
            for number in range(MOST_ASKERS):
                if value_of(connection, "SELECT GET_LOCK(%s, 0)", lock_name(self._database, f"asker#{number}")) == 1:
                    self._name, self._locked = self._place.row(f"{self._database}:asker:{number}"), connection
                    return
        except pymysql.err.MySQLError as error:
            connection.close()
            raise StoreUnavailableError(
                f"MySQL does not answer ({type(error).__name__} {error.args[0] if error.args else ''}) while a "
                "watermark is to be written. Try again when the server answers"
            ) from None
        raise StoreUnavailableError(
            f"{MOST_ASKERS} commands or programs wait for watermarks already. Try again when some of them have ended"
        )

    def _say_why(self) -> None:
        why = self._trouble()
        if self._troubles.is_due(why) and why is not None:
            self._say(why)
