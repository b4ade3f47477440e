"""Runs the backfills that a pipeline's views need, for as long as the pipeline is owned.

Small tables are read side by side, so that many new views cost little more than one; large ones one after another.
All share watermarks and one bound of memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from changes.errors import AnotherServerError, FencedError, StopRequested, ViewtailError
from changes.retrying import reaction_to
from ingest.canonical.chunks import CHUNK_BYTES
from offsets.mysql import OwnSession
from projectors.ownership import Ownership

_log = structlog.get_logger("viewtail.backfill")

SIDE_BY_SIDE = 4
SMALL_ROWS = 10_000  # by the server's estimate, which may be wrong: so the chunks are smaller, too
LOOK_EVERY_S = 2.0  # for views that an operator marked


class Backfills:
    """Of one ownership. `run` returns when it ends, and ends it where the pipeline is to be taken again."""

    def __init__(self, own: Ownership) -> None:
        self._own = own
        self._ending = own.stop
        self.has_caught_up = False  # views that were held back may follow from now on

    def run(self) -> None:
        session = OwnSession(self._own.deployment.open_store)
        try:
            attempt = 0
            while not self._ending.is_set():
                error = self._met(session)
                if error is None:
                    attempt = 0
                    self._own.life.wake.wait(LOOK_EVERY_S)
                    self._own.life.wake.clear()
                else:
                    self._ending.wait(reaction_to(error).pause_s(attempt))
                    attempt += 1
        finally:
            session.close()

    def _met(self, session: OwnSession) -> ViewtailError | None:
        """The error of a round, after which it is tried again; None where it is done, or the ownership ends."""
        try:
            self._round(session)
        except StopRequested:  # asked to, or its view was halted
            self._own.life.wake.set()
        except FencedError:
            self._ending.set()
        except AnotherServerError as error:  # what it means is decided as the pipeline is taken again
            self._own.another_server = error
            self._ending.set()
        except ViewtailError as error:
            _log.warning("backfill interrupted", error=str(error))
            self._own.backfill_error = str(error)
            return error
        except Exception as error:
            fault = ViewtailError(
                f"a backfill failed: {type(error).__name__}{_place(error)}; please report it"
            )
            _log.error(str(fault))
            self._own.backfill_error = str(fault)
            return fault
        else:
            self._own.backfill_error = None
        return None

    def _round(self, session: OwnSession) -> None:
        own, life = self._own, self._own.life.on(session)
        if life.held_back and own.has_caught_up():
            self.has_caught_up = True
            return self._take_again("views that were held back", life.held_back)
        if life.is_brought_back():
            return self._take_again("a view that was left out", ())
        views = life.to_backfill()
        if halted := [view for view in views if not life.gets_changes(view)]:
            # Halted, then or since: its table is followed again once the pipeline is taken again.
            return self._take_again("halted views", halted)
        estimates = own.row_estimates(views) if views else {}
        small = deque(view for view in views if estimates[view] <= SMALL_ROWS)
        large = deque(view for view in views if estimates[view] > SMALL_ROWS)
        errors: list[BaseException] = []
        lanes = min(SIDE_BY_SIDE, len(small))
        _in_threads(lanes, lambda: self._all(small, estimates, CHUNK_BYTES // SIDE_BY_SIDE, errors))
        self._all(large, estimates, CHUNK_BYTES, errors)
        if errors:
            raise errors[0]
        return None

    def _take_again(self, for_what: str, views: Collection[str]) -> None:
        _log.info("taking the pipeline again", for_what=for_what, views=sorted(views))
        self._ending.set()

    def _all(
        self, waiting: deque[str], estimates: dict[str, int], chunk_bytes: int, errors: list[BaseException]
    ) -> None:
        """Each view that waits, until none does: one that fails does not keep the others."""
        session = OwnSession(self._own.deployment.open_store)
        while not self._ending.is_set():
            try:
                view = waiting.popleft()
            except IndexError:
                break
            try:
                self._one(view, estimates[view], session, chunk_bytes)
            except BaseException as error:
                errors.append(error)
        session.close()

    def _one(self, view: str, row_estimate: int, session: OwnSession, chunk_bytes: int) -> None:
        backfill = self._own.backfill(view, session, row_estimate, chunk_bytes)
        try:
            backfill.run()
        finally:
            backfill.sink.close()
        del self._own.backfills[view]


def _in_threads(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work, name="backfill", daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""
