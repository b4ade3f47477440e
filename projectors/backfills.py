"""Runs the backfills that a pipeline's views need, for as long as the pipeline is owned.

Small tables are read side by side, so that many new views cost little more than one; large ones one after another,
beside them. All share watermarks and one bound of memory.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import structlog

from ingest.canonical.chunks import CHUNK_BYTES
from offsets.backfills import BackfillProgress
from offsets.copies import ASKED, Copies, Copy, Stage
from offsets.mysql import OwnSession, looking
from projectors import copies, log_fill
from projectors.catalog import Catalog
from projectors.pipeline_run import PipelineRun
from projectors.stores import Store
from projectors.stores.registry import store_named
from projectors.view_life import ViewLife
from projectors.views import BoundView
from viewtail.changes.errors import AnotherServerError, FencedError, StopRequested, ViewtailError, place_of
from viewtail.changes.retrying import reaction_to

_log = structlog.get_logger("viewtail.backfill")

SIDE_BY_SIDE = 4
SMALL_ROWS = 10_000  # by the server's estimate, which may be wrong: so the chunks are smaller, too
LOOK_EVERY_S = 2.0  # for views that an operator marked


class Backfills:
    """Of one ownership. `run` returns when it ends, and ends it where the pipeline must restart."""

    def __init__(self, own: PipelineRun) -> None:
        self._own = own
        self._ending = own.stop
        self._began_at = time.monotonic()
        self._errors: list[ViewtailError] = []  # met since the last round
        self._large: threading.Thread | None = None  # backfills a view of a large table
        self._under_way = ""  # that view
        self._failed = Counter[str]()  # how often, by view of a large table; the others come first
        self.is_taken_again = False  # at once, by this process: nothing is to be read again for it
        self.has_caught_up = False  # views that were held back may follow from now on

    def run(self) -> None:
        own, session = self._own, OwnSession(looking(self._own.catalog.servers.open_own))
        records = Copies(session, own.catalog.database, own.identity.name)
        attempt = 0
        while not self._ending.is_set():
            self._try(lambda: self._round(session, records))
            errors, self._errors = self._errors, []
            if errors:
                self._ending.wait(reaction_to(errors[0]).pause_s(attempt))
                attempt += 1
            else:
                attempt, own.backfill_error = 0, None
                own.life.wake.wait(LOOK_EVERY_S)
                own.life.wake.clear()
        session.close()
        if self._large is not None:
            self._large.join()

    def _try(self, work: Callable[[], None]) -> bool:
        """Whether it was done. Errors are noted and shown at once; a round tries again."""
        try:
            work()
            return True
        except StopRequested:  # asked to, or its view was halted
            self._own.life.wake.set()
        except FencedError:
            self._ending.set()
        except AnotherServerError as error:  # the pipeline restarts, and then goes on or halts
            self._own.another_server = error
            self._ending.set()
        except ViewtailError as error:
            self._note(error)
        except Exception as error:
            self._note(ViewtailError(f"a backfill failed: {type(error).__name__}{place_of(error)}; please report it"))
        return False

    def _note(self, error: ViewtailError) -> None:
        if str(error) != self._own.backfill_error:  # once, however many views meet it, and how often
            _log.warning("backfills wait", error=str(error))
        self._own.backfill_error = str(error)
        self._errors.append(error)

    def _round(self, session: OwnSession, records: Copies) -> None:
        own, life = self._own, self._own.life.on(session)
        if self._are_copies_asked_for(records):
            self._with_copies(copies.make_places)
            self.is_taken_again = True
            return self._restart("rebuilds", own.copies)
        views = life.to_backfill()
        if (why := self._why_restart(life, views)) is not None:
            return self._restart(*why)
        if views and log_fill.is_needed(own.source):
            return None if self._is_filled_from_stream(life, session, views) else self._restart("new views", views)
        views = own.siblings().to_backfill(life, session, views)
        if self._large is not None and self._large.is_alive():
            views = [view for view in views if view != self._under_way]
        return self._begin(views)

    def _are_copies_asked_for(self, records: Copies) -> bool:
        """Whether a copy came, is not to be written any more, or is to be swapped: the pipeline is taken again for it.

        What it does not write any more is dropped.
        """
        own, found = self._own, self._of_own_views(records)
        due = [(one, event) for one in found if (event := one.due(time.monotonic() - self._began_at)) is not None]
        if due:
            for one, event in due:
                records.move(one, event)
            return True
        kept = [one for one in found if one.stage is not Stage.DROPPING]
        if any(one.stage in ASKED for one in kept) or _bound_as(kept) != _bound_as(own.copies.values()):
            return True
        if kept != found:
            self._with_copies(copies.drop_places)
        return False

    def _of_own_views(self, records: Copies) -> list[Copy]:
        declared = {view.view.id for view in self._own.life.views.values()}
        return [one for one in records.read().values() if one.view in declared]

    def _with_copies(self, work: Callable[[Catalog, str, Store, Sequence[BoundView]], None]) -> None:
        own = self._own
        views = own.catalog.views_of(own.identity.store)
        work(own.catalog, own.identity.name, store_named(own.identity.store), views)

    def _why_restart(self, life: ViewLife, views: Collection[str]) -> tuple[str, Collection[str]] | None:
        """For what, and which views; None: the pipeline goes on as it is."""
        own = self._own
        if life.held_back:
            own.pipeline.watermarks.now(own.stop)
            self.has_caught_up = True
            return "views that were held back", life.held_back
        if life.is_brought_back():
            return "a view that was left out", ()
        # Halted, then or since: they get changes after the pipeline restarts.
        halted = [view for view in views if not life.gets_changes(view)]
        return ("halted views", halted) if halted else None

    def _begin(self, views: Collection[str]) -> None:
        """The small ones, until they are done; a large one goes on beside."""
        estimates = self._own.row_estimates(views) if views else {}
        self._begin_large([view for view in views if estimates[view] > SMALL_ROWS], estimates)
        small = deque(view for view in views if estimates[view] <= SMALL_ROWS)
        with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="backfill") as threads:
            done = [threads.submit(self._all, small, estimates) for _ in range(min(SIDE_BY_SIDE, len(small)))]
        for one in done:
            one.result()  # raises what was raised there

    def _is_filled_from_stream(self, life: ViewLife, session: OwnSession, views: Collection[str]) -> bool:
        own = self._own

        def progress(view: str) -> BackfillProgress:
            return BackfillProgress(session, own.catalog.database, own.owner, view, "")

        return log_fill.finish(life, views, own.pipeline.watermarks, progress, self._ending)

    def _restart(self, for_what: str, views: Collection[str]) -> None:
        _log.info("restarting the pipeline", for_what=for_what, views=sorted(views))
        self._ending.set()

    def _begin_large(self, views: list[str], estimates: dict[str, int]) -> None:
        """One at a time, beside the rounds of small ones."""
        if not views or (self._large is not None and self._large.is_alive()):
            return
        view = self._under_way = min(views, key=self._failed.__getitem__)

        def work() -> None:
            with closing(self._own.catalog.session()) as session:
                if not self._try(lambda: self._one(view, estimates[view], session, CHUNK_BYTES)):
                    self._failed[view] += 1
            self._own.life.wake.set()  # the next one

        self._large = threading.Thread(target=work, name="backfill large", daemon=True)
        self._large.start()

    def _all(self, waiting: deque[str], estimates: dict[str, int]) -> None:
        """Each view that waits, until none does: one that fails does not keep the others."""
        chunk_bytes = CHUNK_BYTES // (2 * SIDE_BY_SIDE)
        with closing(self._own.catalog.session()) as session:
            while not self._ending.is_set():
                try:
                    view = waiting.popleft()
                except IndexError:
                    return
                self._try(lambda: self._one(view, estimates[view], session, chunk_bytes))  # noqa: B023

    def _one(self, view: str, row_estimate: int, session: OwnSession, chunk_bytes: int) -> None:
        backfill = self._own.backfill(view, session, row_estimate, chunk_bytes)
        with closing(backfill):
            backfill.run()
        del self._own.backfills[view]
        self._own.life.on(session).look()  # a round may take long, and reports say what was seen last


def _bound_as(records: Iterable[Copy]) -> dict[str, tuple[int, bool, bool, bool]]:
    """What a pipeline is taken with: the copies beside, which change places, are hurried, are of a paused view."""
    return {one.view: (one.copy, one.stage is Stage.MOVING, one.is_hurried, one.is_paused) for one in records}
