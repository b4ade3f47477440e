"""Runs the fillings that a pipeline's views need, for as long as the pipeline is owned.

Small tables are read side by side, so that many new views cost little more than one; large ones one after another,
beside them. All share watermarks and one bound of memory.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import structlog

from ingest.canonical.chunks import CHUNK_BYTES
from offsets.backfills import BackfillProgress
from offsets.copies import Copies, Copy, Event, Stage
from offsets.mysql import OwnSession, looking
from projectors.copies import OwnedCopies, ask_for_next
from projectors.fills import from_topic
from projectors.fills.opening import open_filling, row_estimates_of
from projectors.fills.partitioned import PartitionedFill
from projectors.outcomes import DONE, STOPPED, End, Outcome, outcome_of
from projectors.pipeline_run import PipelineRun
from projectors.stores.registry import store_named
from projectors.view_life import ViewLife
from viewtail.changes.errors import ViewtailError
from viewtail.changes.retrying import reaction_to

_log = structlog.get_logger("viewtail.backfill")

SIDE_BY_SIDE = 4
SMALL_ROWS = 10_000  # by the server's estimate, which may be wrong: so the chunks are smaller, too
LOOK_EVERY_S = 2.0  # for views that an operator marked
SWAP_WAITS_S = 60.0  # for fan-outs


class FillRunner:
    """Fills the views of one run of a pipeline."""

    def __init__(self, own: PipelineRun) -> None:
        self._own = own
        self._stop = own.stop
        self._began_at = time.monotonic()
        self._errors: list[ViewtailError] = []  # met since the last round
        self._end: Outcome | None = None  # of the pipeline, where a filling showed that it must end
        self._large: threading.Thread | None = None  # fills a view of a large table
        self._under_way = ""  # that view
        self._behind_since: dict[
            str, float
        ] = {}  # copies that readers are to get when their fan-outs are done; monotonic
        self._failed = Counter[str]()  # how often, by view of a large table; the others come first

    def run(self) -> Outcome:
        """Until the pipeline ends; returns why, where it ends for this. Then `stop` is set."""
        own = self._own
        with closing(OwnSession(looking(own.catalog.servers.open_own))) as session:
            records = Copies(session, own.catalog.database, own.identity.name)
            attempt = 0
            while not self._stop.is_set():
                outcome = outcome_of(lambda: self._round(session, records), self._stop)
                if outcome.end in (End.AGAIN, End.DESCRIBE_AGAIN):
                    _log.info("restarting the pipeline", for_what=outcome.why)
                    self._end_with(outcome)
                else:
                    self._act_on(outcome)
                errors, self._errors = self._errors, []
                if errors:
                    self._stop.wait(reaction_to(errors[0]).pause_s(attempt))
                    attempt += 1
                else:
                    attempt, own.fills.trouble = 0, None
                    own.life.wake.wait(LOOK_EVERY_S)
                    own.life.wake.clear()
        if self._large is not None:
            self._large.join()
        return self._end or STOPPED

    def _act_on(self, outcome: Outcome) -> None:
        """On how a round or the filling of a view ended. Errors are shown at once; a round tries again."""
        if outcome.end is End.FAILED:
            assert outcome.error is not None
            self._note(outcome.error)
        elif outcome.end in (End.FENCED, End.ANOTHER_SERVER):
            self._end_with(outcome)
        elif outcome.end is not End.DONE:
            self._own.life.wake.set()  # the view is halted, or begins again: another round sees which

    def _end_with(self, outcome: Outcome) -> None:
        self._end = self._end or outcome
        self._stop.set()

    def _note(self, error: ViewtailError) -> None:
        if str(error) != self._own.fills.trouble:  # once, however many views meet it, and how often
            _log.warning("backfills wait", error=str(error))
        self._own.fills.trouble = str(error)
        self._errors.append(error)

    def _round(self, session: OwnSession, records: Copies) -> Outcome:
        """Fill what is to be filled now, or find why the pipeline must be taken again."""
        own, life = self._own, self._own.life.on(session)
        if self._must_change_copies(records):
            self._owned_copies().make_places()
            return Outcome(End.AGAIN, "rebuilds")
        views = life.to_backfill()
        if (restart := self._why_restart(life, views)) is not None:
            return restart
        if views and from_topic.is_needed(own.source):
            return self._fill_from_topic(life, session, views)
        views = self._partitioned().views_to_fill(life, session, views)
        if self._large is not None and self._large.is_alive():
            views = [view for view in views if view != self._under_way]
        self._fill(views)
        return DONE

    def _partitioned(self) -> PartitionedFill:
        own = self._own
        now = partial(own.pipeline.watermarks.now, own.stop)
        return PartitionedFill(own.identity, own.catalog.database, own.catalog.partitions, now)

    def _must_change_copies(self, records: Copies) -> bool:
        """Return whether a copy came, is to be left alone, or is to be swapped: the pipeline is taken again for that.

        What it does not write any more is dropped.
        """
        beside = self._of_own_views(records)
        if ask_for_next(records, beside, time.monotonic() - self._began_at):
            return True
        kept = [copy for copy in beside if copy.stage is not Stage.DROPPING]
        if records.due(kept) or _bound_as(kept) != _bound_as(self._own.copies.values()):
            return True
        self._refuse_late(records, kept)
        if kept != beside:
            self._owned_copies().drop_places()
        return False

    def _refuse_late(self, records: Copies, copies: Sequence[Copy]) -> None:
        """Refuse the swaps that have waited for fan-outs for long; who asked is told, and may ask again, or drop it."""
        behind, now = records.behind(copies), time.monotonic()
        self._behind_since = {id_: self._behind_since.get(id_, now) for id_ in behind}
        for copy in copies:
            if copy.copy_id in behind and now - self._behind_since[copy.copy_id] > SWAP_WAITS_S:
                note = (
                    f"readers get the copy when no fan-out is under way in it, and {behind[copy.copy_id]}. A row that "
                    "changes all the time with so many entities under it has one under way at each moment: have it "
                    "rest for as long as one takes"
                )
                records.move(copy, Event.REFUSED, note=note)
                _log.warning("the copies were not swapped", view=copy.view, reason=note)

    def _of_own_views(self, records: Copies) -> list[Copy]:
        declared = {view.view.id for view in self._own.life.views.values()}
        return [copy for copy in records.read().values() if copy.view in declared]

    def _owned_copies(self) -> OwnedCopies:
        catalog, identity = self._own.catalog, self._own.identity
        return OwnedCopies(catalog, identity.name, store_named(identity.store), catalog.views_of(identity.store))

    def _why_restart(self, life: ViewLife, views: Collection[str]) -> Outcome | None:
        """None: the pipeline goes on as it is."""
        own = self._own
        if life.held_back:
            own.pipeline.watermarks.now(own.stop)
            why = f"views that were held back: {', '.join(sorted(life.held_back))}"
            return Outcome(End.DESCRIBE_AGAIN, why, held_back=frozenset())
        if life.is_brought_back():
            return Outcome(End.DESCRIBE_AGAIN, "a view that was left out")
        # Halted, then or since: they get changes after the pipeline restarts.
        halted = [view for view in views if not life.gets_changes(view)]
        return Outcome(End.DESCRIBE_AGAIN, f"halted views: {', '.join(sorted(halted))}") if halted else None

    def _fill_from_topic(self, life: ViewLife, session: OwnSession, views: Collection[str]) -> Outcome:
        own = self._own

        def progress(view: str) -> BackfillProgress:
            return BackfillProgress(session, own.catalog.database, own.owner, view, "")

        return from_topic.finish(life, views, own.pipeline.watermarks.waiter, progress, self._stop)

    # -- several at once ----------------------------------------------------------------------------------------

    def _fill(self, views: Collection[str]) -> None:
        """The small ones, until they are done; a large one goes on beside."""
        estimates = row_estimates_of(self._own, views) if views else {}
        self._begin_large([view for view in views if estimates[view] > SMALL_ROWS], estimates)
        small = deque(view for view in views if estimates[view] <= SMALL_ROWS)
        with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="backfill") as threads:
            workers = [threads.submit(self._fill_small, small, estimates) for _ in range(min(SIDE_BY_SIDE, len(small)))]
        for worker in workers:
            worker.result()  # raises what was raised there

    def _begin_large(self, views: list[str], estimates: dict[str, int]) -> None:
        """One at a time, beside the rounds of small ones."""
        if not views or (self._large is not None and self._large.is_alive()):
            return
        view = self._under_way = min(views, key=self._failed.__getitem__)

        def work() -> None:
            with closing(self._own.catalog.session()) as session:
                outcome = self._fill_one(view, estimates[view], session, CHUNK_BYTES)
            self._failed[view] += outcome.end is not End.DONE
            self._own.life.wake.set()  # the next one

        self._large = threading.Thread(target=work, name="backfill large", daemon=True)
        self._large.start()

    def _fill_small(self, waiting: deque[str], estimates: dict[str, int]) -> None:
        """Each view that waits, until none does: one that fails does not keep the others."""
        chunk_bytes = CHUNK_BYTES // (2 * SIDE_BY_SIDE)
        with closing(self._own.catalog.session()) as session:
            while not self._stop.is_set():
                try:
                    view = waiting.popleft()
                except IndexError:
                    return
                self._fill_one(view, estimates[view], session, chunk_bytes)

    def _fill_one(self, view: str, row_estimate: int, session: OwnSession, chunk_bytes: int) -> Outcome:
        under_way = self._own.fills.under_way

        def fill() -> Outcome:
            with closing(open_filling(self._own, view, session, row_estimate, chunk_bytes)) as filling:
                outcome = filling.run()
            if outcome.end is End.DONE:
                under_way.pop(view, None)
                self._own.life.on(session).look()  # a round may take long, and reports say what was seen last
            return outcome

        outcome = outcome_of(fill, self._stop)  # opening it may fail, too
        if self._own.life.projections.is_halted(view):
            under_way.pop(view, None)
        self._act_on(outcome)
        return outcome


def _bound_as(copies: Iterable[Copy]) -> dict[str, tuple[int, bool, bool, bool]]:
    """What a pipeline that writes these copies must know of them: when this changes, it restarts."""
    return {copy.view: (copy.copy, copy.stage is Stage.MOVING, copy.is_hurried, copy.is_paused) for copy in copies}
