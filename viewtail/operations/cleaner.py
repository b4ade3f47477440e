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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog

from offsets.runs import counted_up, forget_but_last
from projectors.catalog import Catalog
from projectors.pace import GivingWay, Pace
from projectors.pipeline_run import PipelineRun
from projectors.proving.cascades import Looks
from projectors.proving.comparison import Found
from projectors.proving.first_looks import FirstLooks
from projectors.proving.view_access import ViewAccess
from projectors.stores import guarded
from projectors.stores.registry import store_named
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError, StopRequested, ViewtailError, WaitedTooLongError
from viewtail.changes.writes import Key
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
# While changes come, a round goes on at such a part of its share, and so does the look at what changed a moment ago
# while MANY_A_SECOND come: less than one change in a hundred meets either (measured: bench/cleaning.py).
LIVE_PART = 20
MANY_A_SECOND = 50  # writes to the store
MOST_LIVE_REST_S = 20.0  # a store's pages stay open for minutes, and what changed a moment ago is looked at for one
MOST_BESIDE = 10  # times its own processor time; what takes longer waited for the pipeline, and was no work
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
KEPT_HOURS = 24  # of what was mended as it changed
KIND, MENDED, CASCADED = "clean", "mend", "cascade"
_WHATS = {
    MENDED: "what changed a moment ago, in an hour",
    CASCADED: "what cascades did without a change in the stream, in an hour",
}


@dataclass(eq=False)
class Share(Pace):
    """At work for such a share of the time; waits while the pipeline has other things to do.

    What the servers do for it counts as its own time: a live change waits behind that as well.

    Args:
        owing_s: so much of its rest it may owe, so that a little work is done at once.
        is_live: whether changes come, and it goes on at a LIVE_PART of its share.
    """

    share: float = 0.05
    is_busy: Callable[[], bool] = lambda: False
    owing_s: float = 0.0
    is_live: Callable[[], bool] = lambda: False
    _owed_s: float = 0.0
    _at: float = field(default_factory=time.monotonic)
    _step_at: float = field(default_factory=time.monotonic)
    _spent_at: float = field(default_factory=time.thread_time)

    def begin(self) -> None:
        """What took time until now was waiting."""
        self._step_at = time.monotonic()

    def waited(self, seconds: float) -> None:
        """So much of this step was waiting."""
        self._step_at += seconds

    def after(self, rows: int) -> None:
        now, own_s = time.monotonic(), time.thread_time() - self._spent_at
        spent_s = max(own_s, min(now - self._step_at, MOST_BESIDE * own_s))
        self._owed_s = max(0.0, self._owed_s - (now - self._at)) + spent_s * (1 / self.share - 1)
        self._at = now
        self.stop.wait(max(0.0, self._owed_s - self.owing_s))
        upto = now + min(MOST_LIVE_REST_S, spent_s * (LIVE_PART / self.share - 1))
        while self.is_live() and (left_s := upto - time.monotonic()) > 0:
            if self.stop.wait(min(left_s, LOOK_EVERY_S)):
                return
        while self.is_busy() and not self.stop.wait(LOOK_EVERY_S):
            pass
        self._spent_at = time.thread_time()
        self.begin()


@dataclass(eq=False)
class Rate:
    """Whether more than MANY_A_SECOND changes come.

    Args:
        changes: how many there have been.
    """

    changes: Callable[[], int]
    _count: int = -1
    _at: float = 0.0
    _is_many: bool = False

    def is_many(self) -> bool:
        """As of the last second or so; asked now and then."""
        now = time.monotonic()
        if (took_s := now - self._at) >= LOOK_EVERY_S:
            count = self.changes()
            self._is_many = self._count >= 0 and count - self._count > MANY_A_SECOND * took_s
            self._count, self._at = count, now
        return self._is_many


@dataclass(eq=False, kw_only=True)
class Cleaner:
    """Of one ownership. `run` returns when that ends.

    Args:
        share: of one core's time, for what changed a moment ago, and for all else; 0: it does nothing.
        rest_s: between two rounds, seconds.
        is_busy: whether the pipeline lags, or does not run.
    """

    catalog: Catalog
    own: PipelineRun
    share: float
    rest_s: float
    is_busy: Callable[[], bool]
    _is_healing: bool = False  # rounds wait
    _live: GivingWay = field(init=False)  # of all rounds: one that began anew would take any count for a change

    def __post_init__(self) -> None:
        self._live = GivingWay(stop=self.own.stop, changes=self._write_count)

    def run(self) -> None:
        if not self.share or guarded(self.own.pipeline.sink) is None:
            return
        threads = [threading.Thread(target=self._try, args=(self._recent,), name="clean recent", daemon=True)]
        if not self.own.identity.partition:  # one of several pipelines of a view goes round for all
            threads.append(threading.Thread(target=self._try, args=(self._rounds,), name="clean round", daemon=True))
        if not self.own.cascades.is_empty:
            threads.append(
                threading.Thread(target=self._try, args=(self._cascaded,), name="clean cascades", daemon=True)
            )
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
        """Writes: rounds have changes of their own in the stream, their watermarks."""
        return self.own.pipeline.vitals.write_count

    def _pace(self) -> Share:
        return Share(0, self.own.stop, share=self.share, is_busy=self.is_busy)

    def _beside(self, view: str) -> ViewAccess:
        beside = ViewAccess(self.catalog, self.own.life.views[view], self.own.stop, chunk_rows=ROWS_AT_ONCE)
        beside.passed_within_s = PASSED_WITHIN_S
        return beside

    # -- what changed a moment ago ------------------------------------------------------------------------------

    def _recent(self) -> None:
        pace = replace(self._pace(), is_live=Rate(self._write_count).is_many)
        with closing(self._first_looks()) as looks:
            while not self.own.stop.wait(LOOK_EVERY_S):
                pace.begin()
                pace.after(0)
                while self._look_at(self.own.recent.take(KEYS_AT_ONCE), looks, pace):
                    pass

    def _look_at(self, taken: Mapping[str, Sequence[Key]], looks: FirstLooks, pace: Share) -> bool:
        """Whether more of them may be due."""
        for view, keys in taken.items():
            if self.own.life.gets_changes(view):
                self._look(view, keys, looks, pace, partial(self._mend_alone, view))
        return not self.own.stop.is_set() and any(len(keys) == KEYS_AT_ONCE for keys in taken.values())

    def _look(
        self, view: str, keys: Sequence[Key], looks: FirstLooks, pace: Share, mend: Callable[[Sequence[Key]], None]
    ) -> None:
        bound = self.own.life.views[view]
        for at in range(0, len(keys), KEYS_AT_ONCE):
            if self.own.stop.is_set():
                return
            some = keys[at : at + KEYS_AT_ONCE]
            # Twice: most of what differs is under way.
            suspects = looks.suspects(bound, some)
            if suspects and not self.own.stop.wait(SUSPECTS_AFTER_S):
                pace.waited(SUSPECTS_AFTER_S)
                suspects = looks.suspects(bound, suspects)
            if suspects:
                mend(suspects)
                pace.begin()
            pace.after(len(some))

    def _first_looks(self) -> FirstLooks:
        """Of one thread, at any of the pipeline's views."""
        return FirstLooks(self.catalog, store_named(self.own.identity.store), self.own.stop, ROWS_AT_ONCE)

    def _mend_alone(self, view: str, suspects: Sequence[Key]) -> None:
        with self._beside(view) as beside:  # sessions of its own, and not for long: this is rare
            self._mend(beside, MENDED, suspects)

    def _mend(self, beside: ViewAccess, kind: str, suspects: Sequence[Key]) -> None:
        """`kind`: under which what is found is recorded."""
        beside.check()
        settled = beside.comparison().settle(suspects)
        found = [one for one in settled.found if not (one.held.is_foreign or one.may_be_archiving)]
        if found:
            self._write(beside, kind, found)

    def _write(self, beside: ViewAccess, kind: str, found: Sequence[Found]) -> None:
        """These entities again, and into the record and the log why."""
        unexplained = {one.key: one.held for one in found if one.is_unexplained}
        version = beside.now()
        if lowered := lowered_by(beside.view, found, version):  # named before it is done
            with self._recorded(beside, kind) as progress:
                note(progress, lowered)
        beside.reprojection.of_keys([one.key for one in found], version, unexplained)
        with self._recorded(beside, kind) as progress:
            progress["entities"] = progress.get("entities", 0) + len(found)
            progress["differing"] = Counter(progress.get("differing")) + Counter(str(one.difference) for one in found)
        forget_but_last(beside.session, self.catalog.database, kind, beside.view.id, KEPT_HOURS)
        if kind == CASCADED:  # the binlog does not tell it, so nothing was wrong with the view before
            _log.info("the cleaner wrote what cascades did", view=beside.view.id, count=len(found))
            return
        self.own.repaired_count += len(found)
        kinds = ", ".join(sorted({one.difference.value for one in found}))
        _log.warning("the cleaner wrote entities again", view=beside.view.id, count=len(found), because=kinds)

    def _recorded(self, beside: ViewAccess, kind: str) -> AbstractContextManager[dict[str, Any]]:
        return counted_up(beside.session, self.catalog.database, kind, beside.view.id, _WHATS[kind], _words)

    # -- what cascades did without a change in the stream -------------------------------------------------------

    def _cascaded(self) -> None:
        cascades, pace = self.own.cascades, replace(self._pace(), owing_s=OWING_S)
        while not self.own.stop.wait(LOOK_EVERY_S):
            pace.begin()
            pace.after(0)
            began = time.monotonic()
            for view in cascades.due():
                looks = cascades.take(view)
                try:
                    self._heal(view, looks, pace)
                except ViewtailError:
                    cascades.put(view, looks)
                    raise
            if (took_s := time.monotonic() - began) > ROUNDS_WAIT_S:
                self.own.stop.wait(took_s)

    def _heal(self, view: str, looks: Looks, pace: Share) -> None:
        if not self.own.life.gets_changes(view):
            return  # its next backfill reads all rows
        if looks.is_any_gone or looks.is_any_changed:
            _log.info("the cleaner looks through a whole view for what cascades did", view=view)
        self._is_healing = True
        try:
            with self._beside(view) as beside, closing(self._first_looks()) as first:
                beside.check()
                for keys in _looked_for(beside, looks):
                    self._look(view, keys, first, pace, partial(self._mend, beside, CASCADED))
                    pace.after(len(keys))
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
                looked_at, is_filtered = (
                    time.monotonic(),
                    self.catalog.servers.is_filtered(),
                )
            if self.own.stop.wait(min(self.rest_s, FILTERED_REST_S) if is_filtered else self.rest_s):
                return

    def _round_or_wait(self, view: str) -> None:
        """An error in one view's round keeps no other from its own."""
        try:
            self._round(view)
        except ViewtailError as error:
            _log.warning("the cleaner goes on with the next view", view=view, error=str(error))
            self.own.stop.wait(STUCK_AGAIN_AFTER_S if isinstance(error, WaitedTooLongError) else AGAIN_AFTER_S)

    def _round(self, view: str) -> None:
        pace = replace(self._pace(), is_busy=lambda: self._is_healing or self.is_busy(), is_live=self._live.is_live)
        pace.after(0)
        with self._beside(view) as beside:
            try:
                beside.check()
            except MisuseError:
                raise
            except ViewtailError:
                return  # it is not filled; the next round looks again
            run = Run(beside.session, self.catalog.database, KIND, view, "in the background", beside.view.fingerprint)
            verify = Verify(
                beside=beside, run=run, pace=pace, is_repair=True, is_unasked=True, save_every_s=SAVE_EVERY_S
            )
            done = verify.execute()
            forget_but_last(beside.session, self.catalog.database, KIND, view, KEPT_RUNS)
            self.own.repaired_count += done.counts.repaired
            if done.counts.repaired:
                count = done.counts.repaired
                _log.warning("the cleaner wrote entities again", view=view, count=count, because="a round found them")
            if left := done.counts.differing.total() - done.counts.repaired:
                _log.warning(
                    "the cleaner left entities as they are", view=view, count=left, see=f"viewtail verify {view}"
                )


def _words(progress: Mapping[str, Any]) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(progress.get("differing", {}).items()))
    return f"{counted(progress.get('entities', 0), 'entities')} written again: {kinds}"


def _looked_for(beside: ViewAccess, looks: Looks) -> Iterator[list[Key]]:
    """The keys that may differ. Under a watermark: what the stream told is seen in the table then."""
    version = beside.now()
    is_any_gone = looks.is_any_gone
    for values in looks.shown_with:
        found = beside.reader.keys_with(values, MOST_SHOWN)
        is_any_gone |= len(found) == MOST_SHOWN
        yield found
    if condition := looks.condition(beside.view.table):
        for keys, _ in Where(condition, 0).batches(beside, version, None):
            yield keys
    if is_any_gone:
        for _, keys in beside.comparison().orphans(version):
            yield keys
