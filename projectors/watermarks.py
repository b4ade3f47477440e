"""Watermarks: rows committed on the source's primary to find where "now" is in the stream.

`Watermarks` is put together from a writer (watermark_rows.py) and a waiter. In the pipeline's own process that is a
`LocalWaiter`, which the pipeline tells what it passed. Another process has a `RemoteWaiter`: its tokens say so, every
pipeline that passes one notes it in viewtail's table `watermark_passed`, with its version, and there it looks. So a
command knows where it stands in each pipeline's stream, whatever source that reads, and talks to no pipeline.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import structlog

from offsets import watermarks
from offsets.mysql import OwnSession, Session
from projectors.watermark_rows import REMOTE, WatermarkWriter, forget_oldest
from viewtail.changes.batches import Watermark
from viewtail.changes.errors import StopRequested, ViewtailError
from viewtail.changes.repeating import Repeats, looks
from viewtail.servers.sessions import Connection

_log = structlog.get_logger("viewtail.backfill")

_AGAIN_AFTER_S, _AGAIN_AT_MOST_AFTER_S = 1.0, 15.0  # `now_within` writes another one
_CHECK_AFTER_S = 5.0  # `now_within` asks whether one can come
_SAY_AGAIN_S = 30.0
_FORGET_EVERY_S = 60.0
_ATTEMPTS = 5
WHY_LATE = (
    "Either the stream is behind, as the lag says, or a fan-out into its topic is under way (viewtail status); "
    "or it does not have what is committed in viewtail's database on the source's primary: that is another server's "
    "(VIEWTAIL_SOURCE__PRIMARY_URL), or a filter leaves it out. See: viewtail check"
)


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
        self.begun = 0  # how often the pipeline began to read again
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
        """Called by the pipeline where it reads on behind what is published: it may have passed watermarks unseen."""
        with self._changed:
            self.begun += 1
            self._changed.notify_all()

    def passed(self) -> Mapping[str, int]:
        """The versions of those that were passed lately, by token."""
        with self._changed:
            return self._passed.copy()

    def wait(
        self, tokens: Sequence[str], stop: threading.Event, timeout_s: float, begun: int | None = None
    ) -> int | None:
        """The version of the first of these watermarks, once the pipeline passed one.

        None when stopped or too late, and where the pipeline began again since it had begun `begun` times.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not (versions := [self._passed[token] for token in tokens if token in self._passed]):
                if stop.is_set() or time.monotonic() > deadline or begun not in (None, self.begun):
                    return None
                self._changed.wait(0.25)
            self.trouble = None
            return min(versions)

    def late(self, writer: WatermarkWriter) -> None:
        """What was written has not come for `late_after_s`: says why, and raises nothing, for that may go.

        Where no server says why, it is late.
        """
        trouble = writer.why_missing() or (
            f"a watermark that was committed {self.late_after_s:.0f} s ago or earlier has not come through the "
            f"source's stream, and views wait for it. {WHY_LATE}"
        )
        if trouble != self.trouble:
            _log.warning("a watermark does not come", error=trouble)
        self.trouble = trouble


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
    begun: ClassVar[int] = 0  # it does not see when pipelines begin again

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
        """As the local one's."""
        return self._passed

    def wait(
        self, tokens: Sequence[str], stop: threading.Event, timeout_s: float, begun: int | None = None
    ) -> int | None:
        """The version of the first of these watermarks that each pipeline passed; None when stopped or too late."""
        wanted = set(self._pipelines())
        for _ in looks(stop, timeout_s):
            for token, versions in watermarks.passed(self._session, self._database, tokens).items():
                if wanted and wanted <= versions.keys():
                    # Partitions know one watermark by one version.
                    version = self._passed[token] = max(versions[pipeline] for pipeline in wanted)
                    forget_oldest(self._passed)
                    return version
        return None

    def late(self, writer: WatermarkWriter) -> None:
        """Says why to who waits. Raises WatermarkMissingError where it cannot come."""
        writer.check_can_come()
        why = self._trouble()
        if self._troubles.is_due(why) and why is not None:
            self._say(why)


W = TypeVar("W", LocalWaiter, RemoteWaiter)


class Watermarks(Generic[W]):
    """Writes watermarks and waits until they are passed. Thread-safe where the waiter is."""

    def __init__(self, writer: WatermarkWriter, waiter: W) -> None:
        self.writer = writer
        self.waiter: W = waiter
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
            version = self.waiter.wait(tokens, stop, self.waiter.late_after_s, begun)
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
            version = self.waiter.wait(tokens, stop, min(left_s, again_after_s))
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

    def is_visible(self, cursor: Any, version: int) -> bool:
        """Return whether the snapshot of the cursor's transaction has the watermark of that version, or a later one."""
        return self.writer.is_visible(cursor, version, self.waiter.passed())

    def close(self) -> None:
        self.writer.close()


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
