"""One pipeline's process: holds the lease or stands by for it, keeps the views up, fills new ones, reports.

Started by the supervisor as `python -m viewtail.worker STORE FD [--config FILE]`; each second it writes one line of
JSON about itself to the file descriptor FD. Whatever goes wrong with a server is waited out here; only what the user
must change (a declaration, a setting) ends the process, with exit code 2.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import structlog

from changes.errors import (
    AnotherServerError,
    DeclarationError,
    FencedError,
    HistoryGoneError,
    MisuseError,
    SourceError,
    TemporaryError,
    ViewtailError,
)
from offsets.lease import Lease
from offsets.mysql import BackgroundOffsets, OwnSession
from operations import status
from projectors.backfill import Stopped
from projectors.pipeline import ReadAgain, Vitals
from projectors.views import View
from viewtail import declarations, logs, settings
from viewtail.composition import (
    Deployment,
    Ownership,
    deploy_what_works,
    open_store_session,
    still_halted,
    take,
)
from viewtail.signals import on_stop

_log = structlog.get_logger("viewtail.worker")

REPORT_EVERY_S = 0.5
SAVE_REPORT_EVERY_S = 5.0  # while rows flow; on a change of state at once, else only now and then
SAVE_IDLE_REPORT_EVERY_S = 60.0
TELL_PREPARED_AFTER_S = 10.0  # not at once: each report is a row in the binlog that viewtail reads
LOOK_FOR_NEW_FILLS_EVERY_S = 2.0
STANDBY_ROUND_S = 1
COLLECT_GARBAGE_EVERY_S = 60.0
SWITCH_INTERVAL_S = (
    0.001  # two stages share one interpreter: a writer that waits 5 ms for the reader is a late one
)
_LONGEST_PAUSE_S = 5.0

_Told = tuple[str | None, str | None, int | None]  # of a report: state, error, and how many writes


class Worker:
    """Owns one pipeline, again and again, until told to stop."""

    def __init__(self, store: str, config: settings.Settings, report_to: int) -> None:
        self.store = store
        self.settings = config
        self.stop = threading.Event()
        self.report_to = report_to
        self.state = "starting"
        self.error: str | None = None
        self.rate = 0  # writes a second, over the last report
        self.own: Ownership | None = None
        self.fits_from: dict[tuple[str, str], int] = {}  # kept from one ownership to the next
        self.views: tuple[str, ...] = ()  # the ids of those that are kept
        self._held_back: frozenset[str] = frozenset()  # views, at the next taking
        self._left_out: frozenset[str] = frozenset()  # views that halted, until they are to be filled again
        self._saving = (
            threading.Lock()
        )  # two threads save reports: what was looked at last must be what stays
        self._saved: _Told = (None, None, None)
        self._saved_at = 0.0
        self.owner = f"{socket.gethostname()}:{os.getpid()}"

    def run(self) -> None:
        """Until `stop` is set. Raises MisuseError for what the user must change."""
        reporter = threading.Thread(target=self._report, name="report", daemon=True)
        reporter.start()
        attempt = 0
        while not self.stop.is_set():
            began_at = time.monotonic()
            try:
                self._own_once()
                attempt = 0
            except FencedError as error:
                _log.warning("standing by", reason=str(error))
                self.state, self.error = "standby", str(error)
            except MisuseError:
                raise
            except ViewtailError as error:
                attempt = 0 if time.monotonic() - began_at > 60 else attempt + 1
                is_passing = isinstance(error, TemporaryError | AnotherServerError)
                self.state = "retrying" if is_passing else "halted"
                self.error = str(error)
                if isinstance(error, HistoryGoneError) and self.views:
                    self.error += f". Views that need it: {', '.join(self.views)}"
                (_log.warning if attempt > 1 else _log.error)(
                    "pipeline stopped", error=self.error, state=self.state
                )
                self._save_report()
                self.stop.wait(min(_LONGEST_PAUSE_S, 0.2 * 2 ** min(attempt, 8)) * random.uniform(0.5, 1.0))
        self.state = "stopped"
        reporter.join()

    def _own_once(self) -> None:
        """Wait for the lease, take the pipeline, run it until it ends."""
        # Its own store's only: what is wrong with a table of another store's views is not this process's concern.
        views = [view for view in declarations.load(self.settings.views) if view.store == self.store]
        deployment = self._deployed(views)
        deployment.create_tables()
        lease = Lease(deployment.open_store, deployment.database, self.store)
        try:
            if self._acquire(lease):
                if self.state == "standby":
                    deployment = self._deployed_anew(views, deployment)
                following: Deployment | None = deployment
                while following is not None:
                    following = self._run_owned(following, lease)
        finally:
            self.own = None
            lease.release()

    def _deployed_anew(self, views: Sequence[View], before: Deployment) -> Deployment:
        """With the tables as they are now: they may have changed while another viewtail followed them.

        What no longer fits is halted by the stream, which tells the statement too.
        """
        try:
            return self._deployed(views)
        except DeclarationError:
            return before

    def _deployed(self, views: Sequence[View]) -> Deployment:
        self._left_out = still_halted(self.settings, self._left_out)
        found = deploy_what_works(self.settings, [view for view in views if view.id not in self._left_out])
        left_out = [view for view in views if view.id in self._left_out]
        found = replace(found, left_out=[*found.left_out, *left_out])
        if not found.views:
            raise SourceError(
                "every view is halted, and the table of none fits it; `viewtail status` has the reasons"
            )
        return found

    def _acquire(self, lease: Lease) -> bool:
        while not self.stop.is_set():
            if lease.acquire(STANDBY_ROUND_S):
                return True
            self.state, self.error = (
                "standby",
                "another viewtail runs this pipeline; taking over when it ends",
            )
        return False

    def _run_owned(self, deployment: Deployment, lease: Lease) -> Deployment | None:
        """Until it ends; what to go on with at once where views halted and others of their tables can be read for.

        Those are bound as they were: the stream may have come to a first change of a table, with more behind it.
        """
        self.views = tuple(view.view.id for view in deployment.views)
        ending = threading.Event()  # of this ownership; `stop` ends it too
        following = None
        own = take(deployment, self.store, lease, ending, self._held_back, self.fits_from)
        self.own, self.state, self.error = own, "running", None
        self._save_report()
        watcher = threading.Thread(target=self._end_with_stop, args=(ending,), name="stop", daemon=True)
        filler = threading.Thread(target=self._fill, args=(own, ending), name="fill", daemon=True)
        watcher.start()
        filler.start()
        try:
            own.pipeline.run(own.offset)
            own.pipeline.save_now()
            if isinstance(own.offsets, BackgroundOffsets):
                own.offsets.close()
        except ReadAgain as error:
            _log.info("reading again without some views", views=sorted(error.held_back | error.left_out))
            self._held_back |= error.held_back
            self._left_out |= error.left_out
            if error.left_out:
                following = replace(
                    deployment,
                    views=[view for view in own.views if view.id not in error.left_out],
                    left_out=[
                        *deployment.left_out,
                        *(view.view for view in own.views if view.id in error.left_out),
                    ],
                )
        finally:
            if isinstance(own.offsets, BackgroundOffsets):
                own.offsets.abandon()
            ending.set()
            own.refill.set()
            filler.join()
            watcher.join()
            own.close()
        if own.another_server is not None and not self.stop.is_set():
            raise own.another_server
        return following

    def _end_with_stop(self, ending: threading.Event) -> None:
        """Pass `stop` on, and wake a read that waits for the source."""
        while not ending.is_set() and not self.stop.wait(0.1):
            pass
        ending.set()
        if self.own is not None:
            self.own.source.interrupt()

    # -- fills --------------------------------------------------------------------------------------------------

    def _fill(self, own: Ownership, ending: threading.Event) -> None:
        """Fill what is new; look now and then for views that an operator marked to be filled again, left out or not."""
        session = OwnSession(own.deployment.open_store)
        attempt = 0
        while not ending.is_set():
            try:
                if own.held_back and own.has_caught_up():
                    _log.info("taking the pipeline anew", views=sorted(own.held_back))
                    self._held_back = frozenset()
                    ending.set()
                    break
                if own.is_brought_back(session):
                    _log.info("taking the pipeline anew for a view that was left out")
                    ending.set()
                    break
                for view in own.views_to_fill(session):
                    # It was halted, then or since: its table is followed again once the pipeline is taken anew.
                    if view not in own.running or own.projections.is_halted(view):
                        _log.info("taking the pipeline anew", view=view)
                        ending.set()
                        return
                    own.backfill(view, session).run()
                    own.fills.pop(view, None)
                    own.fill_error = None
                    self._save_report()
                attempt = 0
            except Stopped:  # asked to, or its view was halted
                continue
            except FencedError:
                break
            except AnotherServerError as error:  # what it means is decided as the pipeline is taken anew
                own.another_server = error
                ending.set()
                break
            except ViewtailError as error:
                attempt += 1
                _log.warning("filling interrupted", error=str(error), attempt=attempt)
                own.fill_error = str(error)
                ending.wait(min(_LONGEST_PAUSE_S, 0.1 * 2 ** min(attempt, 8)))
                continue
            except Exception as error:
                own.fill_error = f"filling failed: {type(error).__name__}{_place(error)}; please report it"
                _log.error(own.fill_error)
                ending.wait(_LONGEST_PAUSE_S)
                continue
            own.fill_error = None
            own.refill.wait(LOOK_FOR_NEW_FILLS_EVERY_S)
            own.refill.clear()
        session.close()

    # -- reports ------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        collected_at = last_at = time.monotonic()
        last_count = 0
        while True:
            is_last = self.stop.wait(REPORT_EVERY_S)
            now = time.monotonic()
            if now - collected_at > COLLECT_GARBAGE_EVERY_S:
                gc.collect()
                collected_at = now
            own = self.own
            count = own.pipeline.vitals.write_count if own else 0
            self.rate = max(0, int((count - last_count) / max(now - last_at, 0.001)))
            last_count, last_at = count, now
            line = self._vitals()
            try:
                os.write(self.report_to, orjson.dumps(line) + b"\n")
            except OSError:  # the supervisor is gone: nobody would stop us later
                self.stop.set()
            if is_last:
                return
            if own and self._is_due(line):
                self._save_report()

    def _is_due(self, line: dict[str, Any]) -> bool:
        """Whether what was saved last, by whichever thread, is not true any more or too old."""
        told, saved = _told(line), self._saved
        every_s = SAVE_IDLE_REPORT_EVERY_S if told == saved else SAVE_REPORT_EVERY_S
        return told[:2] != saved[:2] or time.monotonic() - self._saved_at > every_s

    def _vitals(self) -> dict[str, Any]:
        """This process, as the supervisor shows it."""
        own = self.own
        vitals = own.pipeline.vitals if own else Vitals()
        state, error = self.state, self.error
        if own and state == "running":
            state, error = vitals.state, vitals.error
            if own.source.progress.trouble:
                state, error = "retrying", own.source.progress.trouble
            error = error or _held_back(*own.source.progress.prepared)
        return {
            "pipeline": self.store,
            "state": state,
            "error": error or (own.fill_error if own else None),
            "position": str(vitals.position) if vitals.position else None,
            "lag_s": round(lag_s(own), 3) if own else 0.0,
            "rate": self.rate,
            "rows": vitals.row_count,
            "writes": vitals.write_count,
            "batches": vitals.batch_count,
            "parked": vitals.parked_count,
            "store_retries": vitals.store_retry_count,
            "reconnects": own.source.progress.reconnect_count if own else 0,
            "prepared": own.source.progress.prepared[0] if own else 0,
            "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "fills": [
                {
                    "view": fill.view,
                    "rows": fill.row_count,
                    "about": fill.row_estimate,
                    "state": fill.state,
                }
                for fill in list(own.fills.values())
            ]
            if own
            else [],
        }

    def _save_report(self) -> None:
        """Into MySQL, for `status`; a failure here is no reason to stop."""
        with self._saving:
            line = self._vitals()
            is_saved = self._save(line)
            # One that failed is tried again after a while, not at each look.
            self._saved = _told(line) if is_saved else (line["state"], line["error"], None)
            self._saved_at = time.monotonic()

    def _save(self, line: dict[str, Any]) -> bool:
        report = status.Report(
            state=line["state"],
            error=line["error"],
            lag_ms=int(line["lag_s"] * 1000),
            rows_per_second=line["rate"],
            applied_row_count=line["writes"],
            reconnect_count=line["reconnects"],
            owner=self.owner,
        )
        session = OwnSession(lambda: open_store_session(self.settings))
        try:
            status.save(session, self.settings.store_database, self.store, report)
        except ViewtailError as error:
            _log.debug("status not saved", error=str(error))
            return False
        finally:
            session.close()
        return True


def _told(line: dict[str, Any]) -> _Told:
    return line["state"], line["error"], line["writes"]


def _held_back(prepared_count: int, oldest_us: int) -> str | None:
    """What is said of XA transactions that stay prepared for longer than they do where all is well."""
    if not prepared_count or time.time() - oldest_us / 1e6 < TELL_PREPARED_AFTER_S:
        return None
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(oldest_us / 1e6))
    return (
        f"prepared: {prepared_count} XA transactions are not decided, the oldest since {since} UTC; the offset stays "
        "before it, and so must the source's binlogs. XA RECOVER lists them: XA COMMIT or XA ROLLBACK each"
    )


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""


def lag_s(own: Ownership) -> float:
    """Age of the oldest change that is not durable yet; 0 at the source's end."""
    vitals, progress = own.pipeline.vitals, own.source.progress
    if vitals.oldest_waiting_us:
        return max(0.0, time.time() - vitals.oldest_waiting_us / 1e6)
    if progress.trouble:
        return time.monotonic() - progress.received_at
    if progress.is_at_end or not vitals.last_commit_us:
        return 0.0
    return max(0.0, time.time() - vitals.last_commit_us / 1e6)


def tune_interpreter() -> None:
    """For two threads that pass rows on: short turns, and no looking for garbage among the rows.

    Rows make no cycles, and looking for some among them took a third of the time; `_report` collects now and then.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.disable()


def main() -> int:
    """Exit 0 after a stop, 2 for what the user must change, 1 for the rest."""
    parser = argparse.ArgumentParser(prog="viewtail.worker", description=__doc__)
    parser.add_argument("store")
    parser.add_argument("report_to", type=int)
    parser.add_argument("--config", type=Path)
    arguments = parser.parse_args()
    tune_interpreter()
    faulthandler.register(signal.SIGUSR1)  # kill -USR1 shows on stderr what every thread is doing
    try:
        config = settings.load(arguments.config, os.environ)
        logs.configure(config.logs)
        structlog.contextvars.bind_contextvars(pipeline=arguments.store)
        worker = Worker(arguments.store, config, arguments.report_to)
        on_stop(worker.stop.set)
        worker.run()
    except ViewtailError as error:
        print(f"viewtail: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
