"""Compares the copy of a changed declaration with its table before readers get it, in the process that keeps the view.

With `on_change = "beside"` nobody stands by with `viewtail rebuild`, which compares before it swaps. So a thread of the
pipeline's process makes the same pass, for a share of one core's time and while the pipeline does not lag. Only a copy
that is found equal is swapped (`next_by_itself`); what differs is noted, and compared again later. A pass that was cut
off goes on in the next process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import structlog

from offsets.copies import Copies, Copy, Step, next_by_itself
from offsets.mysql import Session
from offsets.runs import forget_but_last
from projectors.catalog import Catalog
from projectors.pipeline_run import PipelineRun
from projectors.proving.view_access import ViewAccess
from projectors.throttle import CpuShareThrottle
from viewtail.changes.errors import StopRequested, ViewtailError, place_of
from viewtail.operations import rebuild
from viewtail.operations.cleaner import PASSED_WITHIN_S, ROWS_AT_ONCE
from viewtail.operations.runs import COMPARISON

_log = structlog.get_logger("viewtail.rebuild")

LOOK_EVERY_S = 1.0
SHARE = 0.25  # of one core's time
FIRST_AGAIN_S, LAST_AGAIN_S = 60.0, 3600.0  # after one that found differences, or could not be done; each time twice
KEPT_RUNS = 5  # passes of one copy that stay in the record


@dataclass(eq=False, kw_only=True)
class NewDeclarations:
    """Compares the copies of one ownership. `run` returns when that ends.

    Args:
        is_busy: whether the pipeline lags, or does not run.
    """

    catalog: Catalog
    own: PipelineRun
    is_busy: Callable[[], bool]
    _pauses: dict[str, tuple[float, float]] = field(default_factory=dict)  # by copy: until when (monotonic), how long

    def run(self) -> None:
        if not self.own.copies:  # one that comes has the pipeline taken again
            return
        with closing(self.own.catalog.session()) as session:
            while not self.own.stop.wait(LOOK_EVERY_S):
                try:
                    self._look(session)
                except StopRequested:
                    return
                except ViewtailError as error:
                    _log.info("new declarations wait", pipeline=str(self.own.identity), error=str(error))

    def _look(self, session: Session) -> None:
        records = Copies(session, self.own.catalog.database, self.own.identity.name)
        for view in records.read():
            copy = records.read().get(view)  # a comparison takes long, and others may have changed meanwhile
            if copy is None:
                continue
            is_paused = self._pauses.get(copy.copy_id, (0.0, 0.0))[0] > time.monotonic()
            if next_by_itself(copy) is Step.COMPARE and copy.copy_id in self.own.life.views and not is_paused:
                self._compare(records, copy)

    def _compare(self, records: Copies, copy: Copy) -> None:
        losses, difference = 0, None
        try:
            losses, difference = self._pass(copy)
        except ViewtailError as error:
            difference = f"it could not be compared with its table: {error}"
        except StopRequested:
            raise
        except Exception as error:
            difference = f"comparing it failed: {type(error).__name__}{place_of(error)}; please report it"
        records.note_comparison(copy, difference, losses)
        if difference is None:
            self._pauses.pop(copy.copy_id, None)
            _log.info("the copy of the new declaration is as its table is", view=copy.copy_id)
            self.own.life.wake.set()  # whoever looks for what is due
            return
        _, last_s = self._pauses.get(copy.copy_id, (0.0, FIRST_AGAIN_S / 2))
        pause_s = min(2 * last_s, LAST_AGAIN_S)
        self._pauses[copy.copy_id] = (time.monotonic() + pause_s, pause_s)
        _log.warning("the copy of the new declaration is not swapped", view=copy.copy_id, reason=difference)

    def _pass(self, copy: Copy) -> tuple[int, str | None]:
        """Return how often the copy had lost something when it began, and what differs."""
        view, stop = self.own.life.views[copy.copy_id], self.own.stop
        with ViewAccess(self.catalog, view, stop, chunk_rows=ROWS_AT_ONCE, passed_within_s=PASSED_WITHIN_S) as beside:
            losses = beside.first[0].view.loss_count
            throttle = CpuShareThrottle(share=SHARE, stop=stop, is_busy=self.is_busy)
            differences = rebuild.compared(beside, throttle, "compare the new declaration before the swap")
            forget_but_last(beside.session, self.catalog.database, COMPARISON, copy.copy_id, KEPT_RUNS)
        return losses, f"it is not as its table is: {'; '.join(differences)}" if differences else None
