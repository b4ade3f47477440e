"""Keeps views right in the background: what changed a moment ago is looked at first, then all of it, round and round.

After FriendFeed's Cleaner: a view that was damaged, or that missed a change no binlog tells of, is wrong for seconds or
for one round, not for ever. What another program put under a view's name it leaves alone, as the guard does.

Two threads of a pipeline's process: one looks at the entities that changed in the last minute, the other makes passes
as `viewtail verify --repair` does. A third one looks for what a cascade did without a change in the stream, as soon as
its parent's row went (projectors/proving/cascades.py); passes wait meanwhile. All work for a share of one core's time,
and not at all while the pipeline lags.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from offsets.runs import KEPT_HOURS, counted_up, forget_but_last, is_adopted
from projectors.catalog import Catalog
from projectors.pipeline_run import PipelineRun
from projectors.proving.cascades import Looks
from projectors.proving.comparison import Found
from projectors.proving.first_looks import FirstLooks
from projectors.proving.view_access import ViewAccess
from projectors.stores import guarded
from projectors.stores.registry import store_named
from projectors.throttle import CpuShareThrottle, LiveTraffic
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError, StopRequested, ViewtailError, WaitedTooLongError
from viewtail.changes.writes import Key
from viewtail.operations.repair import is_anothers_extra
from viewtail.operations.replay_keys import Where
from viewtail.operations.runs import Run
from viewtail.operations.verify import Verify
from viewtail.operations.version_resets import lowered_by, note

_log = structlog.get_logger("viewtail.cleaner")

LOOK_EVERY_S = 1.0
SUSPECTS_AFTER_S = 0.2
# What is looked at at once. Live changes wait behind a look, for the store and for the processor. Larger ones take less
# time for each key; so they hold up more of a change now and then, but fewer changes.
ROWS_AT_ONCE = 200
KEYS_AT_ONCE = 60
MANY_A_SECOND = 50  # writes to the store; while more come, what changed a moment ago gets a part of the share
MOST_SHOWN = 10_000  # keys with one value that are asked for; where there are more, all keys are looked at
SAVE_EVERY_S = 60.0
AGAIN_AFTER_S = 30.0  # after an error
PASSED_WITHIN_S = 60.0  # a watermark; while the stream brings none, nothing can be proven
STUCK_AGAIN_AFTER_S = 300.0  # a replica that stands still goes on, one day
OWING_S = 10.0  # of rest, by who looks for cascades: a quarter of a second's work with the default share
ROUNDS_WAIT_S = 10.0  # while cascades are looked for; what took longer is followed by as long a rest
FILTERED_REST_S = 15.0  # between rounds, where the source may put other rows into a table and not tell it
FILTERS_AGAIN_AFTER_S = 300.0  # the source is asked for them
KEPT_RUNS = 5  # passes of one view that stay in the record
KIND, MENDED, CASCADED = "clean", "mend", "cascade"
_WHATS = {
    MENDED: "what changed a moment ago, in an hour",
    CASCADED: "what cascades did without a change in the stream, in an hour",
}


@dataclass(eq=False)
class Rate:
    """Tells whether more than MANY_A_SECOND changes come."""

    changes: Callable[[], int]  # returns how many there have been
    _count: int = -1
    _at: float = 0.0
    _is_many: bool = False

    def is_many(self) -> bool:
        """Return what was so in the last second or more."""
        now = time.monotonic()
        if (took_s := now - self._at) >= LOOK_EVERY_S:
            count = self.changes()
            self._is_many = self._count >= 0 and count - self._count > MANY_A_SECOND * took_s
            self._count, self._at = count, now
        return self._is_many


@dataclass(eq=False, kw_only=True)
class Cleaner:
    """Cleans the views of one pipeline run; `run` returns when that ends."""

    catalog: Catalog
    own: PipelineRun
    share: float  # of one core's time, for each thread; 0: it does nothing
    rest_s: float  # between two rounds
    is_busy: Callable[[], bool]  # whether the pipeline lags, or does not run
    _is_healing: bool = False  # rounds wait
    _traffic: LiveTraffic = field(init=False)  # one for all rounds: a new one would take any count for a change

    def __post_init__(self) -> None:
        self._traffic = LiveTraffic(self._write_count)

    def run(self) -> None:
        if not self.share or guarded(self.own.pipeline.sink) is None:
            return
        works = {"clean recent": self._recent}
        if not self.own.identity.partition:  # one of several pipelines of a view goes round for all
            works["clean round"] = self._rounds
        if not self.own.cascades.is_empty:
            works["clean cascades"] = self._cascaded
        threads = [
            threading.Thread(target=self._try, args=(work,), name=name, daemon=True) for name, work in works.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _try(self, work: Callable[[], None]) -> None:
        while not self.own.stop.is_set():
            try:
                work()
            except StopRequested:
                return
            except WaitedTooLongError as error:
                _log.warning("the cleaner waits", pipeline=str(self.own.identity), error=str(error))
                self.own.stop.wait(STUCK_AGAIN_AFTER_S)
            except ViewtailError as error:
                _log.info("the cleaner waits", pipeline=str(self.own.identity), error=str(error))
                self.own.stop.wait(AGAIN_AFTER_S)

    def _write_count(self) -> int:
        """Return how many writes there were; changes would count the watermarks of rounds too."""
        return self.own.pipeline.vitals.write_count

    def _throttle(
        self, is_busy: Callable[[], bool], is_live: Callable[[], bool] = lambda: False, owing_s: float = 0.0
    ) -> CpuShareThrottle:
        """Return what limits a thread; it is made in that thread, whose time it counts."""
        return CpuShareThrottle(share=self.share, stop=self.own.stop, is_busy=is_busy, is_live=is_live, owing_s=owing_s)

    def _beside(self, view: str) -> ViewAccess:
        bound, stop = self.own.life.views[view], self.own.stop
        return ViewAccess(self.catalog, bound, stop, chunk_rows=ROWS_AT_ONCE, passed_within_s=PASSED_WITHIN_S)

    # -- what changed a moment ago ------------------------------------------------------------------------------

    def _recent(self) -> None:
        throttle = self._throttle(self.is_busy, is_live=Rate(self._write_count).is_many)
        with closing(self._first_looks()) as looks:
            while not self.own.stop.wait(LOOK_EVERY_S):
                throttle.begin()
                throttle.after(0)
                while self._look_at(self.own.recent.take(KEYS_AT_ONCE), looks, throttle):
                    pass

    def _look_at(self, taken: Mapping[str, Sequence[Key]], looks: FirstLooks, throttle: CpuShareThrottle) -> bool:
        """Look at these, and return whether more of them may be due."""
        for view, keys in taken.items():
            if self.own.life.gets_changes(view):
                self._look(view, keys, looks, throttle, partial(self._mend_alone, view))
        return not self.own.stop.is_set() and any(len(keys) == KEYS_AT_ONCE for keys in taken.values())

    def _look(
        self,
        view: str,
        keys: Sequence[Key],
        looks: FirstLooks,
        throttle: CpuShareThrottle,
        mend: Callable[[Sequence[Key]], None],
    ) -> None:
        bound = self.own.life.views[view]
        for at in range(0, len(keys), KEYS_AT_ONCE):
            if self.own.stop.is_set():
                return
            some = keys[at : at + KEYS_AT_ONCE]
            # Twice: most of what differs is under way.
            suspects = looks.suspects(bound, some)
            if suspects and not self.own.stop.wait(SUSPECTS_AFTER_S):
                throttle.waited(SUSPECTS_AFTER_S)
                suspects = looks.suspects(bound, suspects)
            if suspects:
                mend(suspects)
                throttle.begin()
            throttle.after(len(some))

    def _first_looks(self) -> FirstLooks:
        """Return what one thread looks at any of the pipeline's views with."""
        return FirstLooks(self.catalog, store_named(self.own.identity.store), self.own.stop, ROWS_AT_ONCE)

    def _mend_alone(self, view: str, suspects: Sequence[Key]) -> None:
        with self._beside(view) as beside:  # sessions of its own, and not for long: this is rare
            self._mend(beside, MENDED, suspects)

    def _mend(self, beside: ViewAccess, kind: str, suspects: Sequence[Key]) -> None:
        """Write those of the suspects that do differ again; it is recorded under `kind`."""
        beside.check()
        settled = beside.comparison().settle(suspects)
        wrong = [entity for entity in settled.found if not (entity.held.is_foreign or entity.may_be_archiving)]
        if wrong:
            self._write(beside, kind, wrong)

    def _write(self, beside: ViewAccess, kind: str, wrong: Sequence[Found]) -> None:
        """Write these entities again, and into the record and the log why."""
        unexplained = {entity.key: entity.held for entity in wrong if entity.is_unexplained}
        version = beside.now()
        if lowered := lowered_by(beside.view, wrong, version):  # named before it is done
            with self._recorded(beside, kind) as progress:
                note(progress, lowered)
        beside.reprojection.of_keys([entity.key for entity in wrong], version, unexplained)
        with self._recorded(beside, kind) as progress:
            progress["entities"] = progress.get("entities", 0) + len(wrong)
            progress["differing"] = Counter(progress.get("differing")) + Counter(str(each.difference) for each in wrong)
        forget_but_last(beside.session, self.catalog.database, kind, beside.view.id, KEPT_HOURS)
        if kind == CASCADED:  # the binlog does not tell it, so nothing was wrong with the view before
            _log.info("the cleaner wrote what cascades did", view=beside.view.id, count=len(wrong))
            return
        kinds = ", ".join(sorted({entity.difference.value for entity in wrong}))
        self._count_repaired(beside.view.id, len(wrong), kinds)

    def _count_repaired(self, view: str, count: int, why: str) -> None:
        self.own.repaired_count += count
        _log.warning("the cleaner wrote entities again", view=view, count=count, because=why)

    def _recorded(self, beside: ViewAccess, kind: str) -> AbstractContextManager[dict[str, Any]]:
        return counted_up(beside.session, self.catalog.database, kind, beside.view.id, _WHATS[kind], _words)

    # -- what cascades did without a change in the stream -------------------------------------------------------

    def _cascaded(self) -> None:
        cascades, throttle = self.own.cascades, self._throttle(self.is_busy, owing_s=OWING_S)
        while not self.own.stop.wait(LOOK_EVERY_S):
            throttle.begin()
            throttle.after(0)
            began = time.monotonic()
            for view in cascades.due():
                looks = cascades.take(view)
                try:
                    self._heal(view, looks, throttle)
                except ViewtailError:
                    cascades.put(view, looks)
                    raise
            if (took_s := time.monotonic() - began) > ROUNDS_WAIT_S:
                self.own.stop.wait(took_s)

    def _heal(self, view: str, looks: Looks, throttle: CpuShareThrottle) -> None:
        if not self.own.life.gets_changes(view):
            return  # its next backfill reads all rows
        if looks.is_any_gone or looks.is_any_changed:
            _log.info("the cleaner looks through a whole view for what cascades did", view=view)
        self._is_healing = True
        try:
            with self._beside(view) as beside, closing(self._first_looks()) as first:
                beside.check()
                for keys in _looked_for(beside, looks):
                    self._look(view, keys, first, throttle, partial(self._mend, beside, CASCADED))
                    throttle.after(len(keys))
                    if self.own.stop.is_set():
                        return
        finally:
            self._is_healing = False

    # -- all of it, round and round -----------------------------------------------------------------------------

    def _rounds(self) -> None:
        looked_at, is_filtered = float("-inf"), False
        while True:
            for view in sorted(self.own.life.views):
                if self.own.stop.is_set():
                    return
                if self.own.life.gets_changes(view):
                    self._round_or_wait(view)
            if time.monotonic() - looked_at >= FILTERS_AGAIN_AFTER_S:
                looked_at, is_filtered = time.monotonic(), self.catalog.servers.is_filtered()
            if self.own.stop.wait(min(self.rest_s, FILTERED_REST_S) if is_filtered else self.rest_s):
                return

    def _round_or_wait(self, view: str) -> None:
        """Go round one view; an error there keeps no other view from its own round."""
        try:
            self._round(view)
        except ViewtailError as error:
            _log.warning("the cleaner goes on with the next view", view=view, error=str(error))
            self.own.stop.wait(STUCK_AGAIN_AFTER_S if isinstance(error, WaitedTooLongError) else AGAIN_AFTER_S)

    def _round(self, view: str) -> None:
        throttle = self._throttle(lambda: self._is_healing or self.is_busy(), is_live=self._traffic.is_live)
        throttle.after(0)
        with self._beside(view) as beside:
            try:
                beside.check()
            except MisuseError:
                raise
            except ViewtailError:
                return  # it is not filled; the next round looks again
            run = Run(beside.session, self.catalog.database, KIND, view, "in the background", beside.view.fingerprint)
            adopted = is_adopted(beside.session, self.catalog.database, view)
            verify = Verify(
                beside=beside,
                run=run,
                throttle=throttle,
                is_repair=True,
                is_unasked=True,
                is_left=lambda mismatch: adopted and is_anothers_extra(beside.view, mismatch),
                save_every_s=SAVE_EVERY_S,
            )
            counts = verify.execute().counts
            forget_but_last(beside.session, self.catalog.database, KIND, view, KEPT_RUNS)
            if counts.repaired:
                self._count_repaired(view, counts.repaired, "a round found them")
            if left := counts.differing.total() - counts.repaired:
                _log.warning(
                    "the cleaner left entities as they are", view=view, count=left, see=f"viewtail verify {view}"
                )


def _words(progress: Mapping[str, Any]) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(progress.get("differing", {}).items()))
    return f"{counted(progress.get('entities', 0), 'entities')} written again: {kinds}"


def _looked_for(beside: ViewAccess, looks: Looks) -> Iterator[list[Key]]:
    """Yield the keys that may differ, read under a watermark: the table shows what the stream told by then."""
    version = beside.now()
    is_any_gone = looks.is_any_gone
    for values in looks.shown_with:
        keys = beside.reader.keys_with(values, MOST_SHOWN)
        is_any_gone |= len(keys) == MOST_SHOWN
        yield keys
    if condition := looks.condition(beside.view.table):
        for keys, _ in Where(condition, 0).batches(beside, version, None):
            yield keys
    if is_any_gone:
        for _, keys in beside.comparison().orphans(version):
            yield keys
