"""Replays of whole views, in the record of what operators had done: a command marks the view, its pipelines fill it.

The row of such a replay in `operator_run` is in the state MARKED until the view is filled, and is done in the same
transaction: no restart and no kill comes between. Until the replay ends, progress is read from the view's row, which
may say that it is filled: by a copy that took the view's place since. A view has one such replay, since the next one
cuts it off; two that are asked for at one moment are over together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offsets import dead_letters, keepers, runs
from offsets.keepers import Keeper
from offsets.runs import RunState
from offsets.views import State
from viewtail.changes.counting import agreeing, counted
from viewtail.changes.pipelines import DEFAULT_SOURCE


@dataclass(frozen=True, slots=True, kw_only=True)
class HowFar:
    """The progress of a replay whose end is not recorded."""

    state: str  # waiting, running, halted, paused; done; stopped: it will never be over
    words: str
    rows: int = 0  # that were read
    estimate: int = 0


def begin(cursor: Any, database: str, view: str, what: str, source: str = "") -> None:
    """Record that a replay is asked for; it cuts off one that is not over.

    Of a view that draws on several sources, `source` is the one whose rows are replayed; else ''.

    In the transaction that marks the view, and before that: `Ending` locks the rows in this order.
    """
    if numbers := runs.lock_marked(cursor, database, view, source):
        before = how_far(cursor, database, view, source)
        progress = {"entities": before.rows, "estimate": before.estimate}
        state, words = RunState.STOPPED, f"cut off by another replay; until then: {before.words}"
        if before.state == RunState.DONE:
            state, words = RunState.DONE, before.words
        runs.end(cursor, database, numbers, state, progress, words)
    runs.insert(cursor, database, "replay", view, what, source, RunState.MARKED)


def how_far(cursor: Any, database: str, view: str, source: str = "") -> HowFar:
    """Judge how far a view's replay is by the view's rows, one for each pipeline that keeps it."""
    present = _keepers(cursor, database, view, source)
    if not present:
        return HowFar(state=RunState.STOPPED, words="the view was forgotten")
    reasons = {row.state: row.reason for _, row in reversed(present)}
    if State.HALTED in reasons:
        return HowFar(state=State.HALTED, words=f"the view is halted: {reasons[State.HALTED]}")
    if State.PAUSED in reasons:
        return HowFar(state=State.PAUSED, words="the view is paused")
    estimate, read = max(row.row_estimate for _, row in present), max(row.row_count for _, row in present)
    if reasons.keys() == {State.FILLED}:
        return HowFar(state=RunState.DONE, words="the view is filled", rows=read, estimate=estimate)
    if State.BACKFILLING not in reasons:
        return _under_way("waiting", 0, estimate, present)
    return _under_way(RunState.RUNNING, read, estimate, present)


def _under_way(state: str, read: int, estimate: int, present: list[Keeper]) -> HowFar:
    """Describe a replay that goes on; it waits where no process runs one of the view's pipelines."""
    words = "no row was read"
    if read:
        words = f"{read:,} of about {counted(estimate, 'rows')} {agreeing(read, 'were')} read"
    if not all(pipeline.is_held for pipeline, _ in present):
        state, words = "waiting", f"{words}; no viewtail runs its pipeline"
    return HowFar(state=state, words=words, rows=read, estimate=estimate)


def _keepers(cursor: Any, database: str, view: str, source: str) -> list[Keeper]:
    """Read the view's pipelines; where it moved between the binlog and topics, those of the kind that is run now."""
    present = keepers.read(cursor, database, names=[view])
    if source:
        return [keeper for keeper in present if keeper.pipeline.identity.source == source]
    kinds = {_is_default(keeper) for keeper in present if keeper.pipeline.is_held}
    return [keeper for keeper in present if _is_default(keeper) in kinds] if kinds else present


def _is_default(keeper: Keeper) -> bool:
    return keeper.pipeline.identity.source == DEFAULT_SOURCE


@dataclass(slots=True)
class Ending:
    """Ends replays in the transaction in which a view is filled."""

    cursor: Any
    database: str
    view: str
    source: str = ""
    _numbers: list[int] = field(default_factory=list)  # of replays that it is filled for

    def lock(self) -> None:
        """Lock the replays' rows, before the view's rows."""
        self._numbers = runs.lock_marked(self.cursor, self.database, self.view, self.source)

    def end(self, row_count: int, kept_count: int | None) -> None:
        """End the replay where all pipelines have filled the view.

        Args:
            row_count: rows that were read.
            kept_count: rows that were written of them, one a key and chunk; None: nobody counted.
        """
        if not self._numbers:
            return
        # What another pipeline committed is seen: who fills the view too waits for the lock, and READ COMMITTED.
        rows = [row for _, row in _keepers(self.cursor, self.database, self.view, self.source)]
        if any(row.state is not State.FILLED for row in rows):
            return
        letters = dead_letters.counts(self.cursor, self.database)
        parked = sum(letters.get(row.id, 0) for row in rows)
        progress, words = {"parked": parked}, "filled from its topic, which counts no rows"
        if kept_count is not None:
            progress |= {"entities": row_count, "shown": kept_count}  # as those of keys have it
            words = f"{counted(row_count, 'rows')} read: {kept_count:,} written"
        result = f"{words}, {parked:,} parked"
        runs.end(self.cursor, self.database, self._numbers, RunState.DONE, progress, result)
