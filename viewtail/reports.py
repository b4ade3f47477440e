"""Reports on a pipeline from its own process: a line a moment to the supervisor, and now and then a row in MySQL.

While nothing happens rows are rare, so that viewtail's own writes do not feed themselves.
"""

from __future__ import annotations

import gc
import os
import resource
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import structlog

from offsets.owners import this_process
from offsets.pauses import Pause
from offsets.pipelines import Report, save_report
from offsets.views import State
from projectors.catalog import Catalog
from projectors.pipeline_run import PipelineRun
from viewtail.changes.errors import ViewtailError
from viewtail.changes.pipelines import PipelineState

_log = structlog.get_logger("viewtail.worker")

REPORT_EVERY_S = 0.5
REPORT_IDLE_EVERY_S = 1.0  # while it runs and nothing is written: waking up is most of what an idle process costs
SAVE_REPORT_EVERY_S = 5.0  # while rows flow; on a change of state at once, else only now and then
SAVE_IDLE_REPORT_EVERY_S = 60.0
IS_WAITING_S = 1.0  # above this lag it is not idle, though nothing was written: the store hangs
TELL_PREPARED_AFTER_S = 10.0
COLLECT_GARBAGE_EVERY_S = 60.0

_writing = threading.Lock()  # pipelines of one process share the descriptor, and a long line is written in pieces

_Told = tuple[str | None, str | None, int | None]  # of a report: state, error, and how many writes


def tell(report_to: int, line: Mapping[str, object]) -> None:
    """Write a line to the supervisor. Raises OSError when that is gone."""
    text = memoryview(orjson.dumps(line) + b"\n")
    with _writing:
        while text:
            text = text[os.write(report_to, text) :]


class Reporter:
    """The reports of one pipeline. `run` is a thread's; the others say what changes.

    Args:
        report_to: a file descriptor of the supervisor, one line of JSON a report.
        stop: set here when the supervisor is gone: nobody would stop us later.
        more: what a line to the supervisor says beside that.
    """

    def __init__(
        self,
        pipeline: str,
        report_to: int,
        catalog: Catalog,
        stop: threading.Event,
        more: Callable[[], Mapping[str, object]],
    ) -> None:
        self.own: PipelineRun | None = None
        self.state: str = PipelineState.STARTING
        self._error: str | None = None
        self._pause: Pause | None = None
        self._pipeline = pipeline
        self._report_to = report_to
        self._catalog = catalog
        self._stop = stop
        self._more = more
        self._rate = 0  # writes a second, over the last report
        # Two threads save reports: what was looked at last must be what stays.
        self._saving = threading.Lock()
        self._saved: _Told = (None, None, None)
        self._saved_lag_s = 0.0  # a lag that is over is told as that at once: the next report of an idle one is far off
        self._saved_at = 0.0

    def say(self, state: str, error: str | None) -> None:
        """Say how the process is; while it runs its pipeline says more."""
        self.state, self._error = state, error

    def pause(self, found: Pause | None) -> None:
        """Say that the process has its pipeline paused by an operator."""
        self._pause = found
        if found is not None and self.state != PipelineState.PAUSED:
            _log.warning("pipeline paused", pipeline=self._pipeline, paused=str(found))
            self.say(PipelineState.PAUSED, None)
            self.save()

    def run(self) -> None:
        collected_at = last_at = time.monotonic()
        last_count, is_idle = 0, False
        while True:
            is_last = self._stop.wait(REPORT_IDLE_EVERY_S if is_idle else REPORT_EVERY_S)
            now = time.monotonic()
            if now - collected_at > COLLECT_GARBAGE_EVERY_S:
                gc.collect()
                collected_at = now
            own = self.own
            count = own.pipeline.vitals.write_count if own else 0
            self._rate = max(0, int((count - last_count) / max(now - last_at, 0.001)))
            is_unchanged = count == last_count
            last_count, last_at = count, now
            line = self._line()
            is_idle = is_unchanged and line["state"] == PipelineState.RUNNING
            try:
                tell(self._report_to, line)
            except OSError:
                self._stop.set()
            if is_last:
                return
            if own and self._is_due(line):
                self.save()

    def _is_due(self, line: dict[str, Any]) -> bool:
        """Return whether what was saved last, by whichever thread, is not true any more or too old."""
        told, saved = _told(line), self._saved
        is_idle = told == saved and line.get("lag_s", 0) < IS_WAITING_S
        if told[:2] != saved[:2] or (is_idle and self._saved_lag_s >= IS_WAITING_S):
            return True
        every_s = SAVE_IDLE_REPORT_EVERY_S if is_idle else SAVE_REPORT_EVERY_S
        return time.monotonic() - self._saved_at > every_s

    def _line(self) -> dict[str, Any]:
        """This process, as the supervisor shows it."""
        own = self.own
        return {
            "pipeline": self._pipeline,
            "rate": self._rate,
            "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            **({} if own is None else _owned(own)),
            **({} if self._pause is None else {"lag_s": round(self._pause.lag_s, 3), "paused": 1}),
            **self._more(),
            **self._state(own),
        }

    def _state(self, own: PipelineRun | None) -> dict[str, Any]:
        state, error = self.state, self._error
        if own and state == PipelineState.RUNNING:
            state, error = own.pipeline.vitals.state, own.pipeline.vitals.error
            if trouble := own.source.progress.trouble or own.pipeline.trouble:
                state, error = PipelineState.RETRYING, trouble
            error = error or _held_back(*own.source.progress.prepared)
            error = error or own.fills.trouble or own.pipeline.watermarks.waiter.trouble
        return {"state": state, "error": error or (own.fills.trouble if own else None)}

    def save(self, *, unless_owned: bool = False) -> None:
        """Into MySQL, for `status`; a failure here is no reason to stop. `unless_owned` is as of `save_report`."""
        with self._saving:
            line = self._line()
            report = Report(
                state=line["state"],
                error=line["error"],
                lag_ms=int(line.get("lag_s", 0) * 1000),
                rows_per_second=line["rate"],
                applied_row_count=line.get("writes", 0),
                reconnect_count=line.get("reconnects", 0),
                owner=this_process(),
            )
            own = self.own
            catalog = self._catalog if own is None else own.catalog
            session = catalog.session()
            try:
                database = catalog.database
                is_saved = save_report(session, database, self._pipeline, report, unless_owned=unless_owned)
                self._saved = _told(line) if is_saved else (None, None, None)
            except ViewtailError as error:
                _log.debug("status not saved", error=str(error))
                self._saved = (line["state"], line["error"], None)  # tried again after a while, not at each look
            finally:
                session.close()
            self._saved_lag_s = line.get("lag_s", 0.0)
            self._saved_at = time.monotonic()


def _owned(own: PipelineRun) -> dict[str, Any]:
    vitals = own.pipeline.vitals
    return {
        "position": str(vitals.position) if vitals.position else None,
        "rows": vitals.row_count,
        "writes": vitals.write_count,
        "batches": vitals.batch_count,
        "parked": own.pipeline.dead_letters.count,
        "store_retries": vitals.store_retry_count,
        "lag_s": round(own.lag_s, 3),
        "reconnects": own.source.progress.reconnect_count,
        "prepared": own.source.progress.prepared[0],
        "paused_views": len(own.paused_views),
        "repaired": own.repaired_count,
        "backfills": [
            {"view": one.view, "rows": one.row_count, "about": one.row_estimate, "state": one.state}
            for one in list(own.fills.under_way.values())
        ],
        "views": _views(own),
    }


def _views(own: PipelineRun) -> list[dict[str, Any]]:
    """State, parked keys, how much of it is filled, from 0 to 1, and through when it is proven (Unix time).

    None where this process does not know, or nothing is proven.
    """
    parked = own.pipeline.dead_letters.counts()
    under_way = dict(own.fills.under_way)
    found = []
    for name, state in sorted(own.life.seen.copy().items()):
        filled = {State.NEW: 0.0, State.FILLED: 1.0}.get(state)
        if name in under_way and state in (State.NEW, State.BACKFILLING):
            state, about = State.BACKFILLING, under_way[name].row_estimate
            filled = min(0.999, under_way[name].row_count / about) if about else None
        proven_s = own.life.proven_s.get(name)
        found.append(
            {"view": name, "state": state, "filled": filled, "parked": parked.get(name, 0), "proven_s": proven_s}
        )
    return found


def _told(line: dict[str, Any]) -> _Told:
    return line["state"], line["error"], line.get("writes", 0)


def _held_back(prepared_count: int, oldest_us: int) -> str | None:
    """Return what is said of XA transactions that stay prepared for longer than they do where all is well."""
    if not prepared_count or time.time() - oldest_us / 1e6 < TELL_PREPARED_AFTER_S:
        return None
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(oldest_us / 1e6))
    return (
        f"prepared: {prepared_count} XA transactions are not decided, the oldest since {since} UTC; the offset stays "
        "before it, and so must the source's binlogs. XA RECOVER lists them: XA COMMIT or XA ROLLBACK each"
    )
