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
    """How far a replay is whose end is not recorded."""

    state: str  # waiting, running, halted, paused; done; stopped: it will never be over
    words: str
    rows: int = 0  # that were read
    estimate: int = 0


def begin(cursor: Any, database: str, view: str, what: str) -> None:
    """Record that one is asked for; one that is not over is cut off by it.

    In the transaction that marks the view, and before that: `Ending` locks the rows in this order.
    """
    if numbers := runs.lock_marked(cursor, database, view):
        before = how_far(cursor, database, view)
        progress = {"entities": before.rows, "estimate": before.estimate}
        state, words = RunState.STOPPED, f"cut off by another replay; until then: {before.words}"
        if before.state == RunState.DONE:
            state, words = RunState.DONE, before.words
        runs.end(cursor, database, numbers, state, progress, words)
    runs.insert(cursor, database, "replay", view, what, "", RunState.MARKED)


def how_far(cursor: Any, database: str, view: str) -> HowFar:
    """By what the view's rows say, one a pipeline."""
    found = _keepers(cursor, database, view)
    if not found:
        return HowFar(state=RunState.STOPPED, words="the view was forgotten")
    rows = [row for _, row in found]
    halted = next((row.reason for row in rows if row.state is State.HALTED), None)
    states = {row.state for row in rows}
    estimate, read = max(row.row_estimate for row in rows), max(row.row_count for row in rows)
    if states == {State.FILLED}:
        return HowFar(state=RunState.DONE, words="the view is filled", rows=read, estimate=estimate)
    if State.BACKFILLING not in states:
        read = 0
    done = f"{read:,} of about {counted(estimate, 'rows')} {agreeing(read, 'were')} read" if read else "no row was read"
    if halted is not None:
        return HowFar(state=State.HALTED, words=f"the view is halted: {halted}")
    if State.PAUSED in states:
        return HowFar(state=State.PAUSED, words="the view is paused")
    if not all(pipeline.is_held for pipeline, _ in found):
        return HowFar(state="waiting", words=f"{done}; no viewtail runs its pipeline", rows=read, estimate=estimate)
    state = RunState.RUNNING if State.BACKFILLING in states else "waiting"
    return HowFar(state=state, words=done, rows=read, estimate=estimate)


def _keepers(cursor: Any, database: str, view: str) -> list[Keeper]:
    """Where a view moved between the binlog and topics, the pipelines of the kind that is run now."""
    found = keepers.read(cursor, database, names=[view])
    kinds = {_is_default(keeper) for keeper in found if keeper.pipeline.is_held}
    return [keeper for keeper in found if _is_default(keeper) in kinds] if kinds else found


def _is_default(keeper: Keeper) -> bool:
    return keeper.pipeline.identity.source == DEFAULT_SOURCE


@dataclass(slots=True)
class Ending:
    """Of the transaction in which a view is filled."""

    cursor: Any
    database: str
    view: str
    _numbers: list[int] = field(default_factory=list)  # of replays that it is filled for

    def lock(self) -> None:
        """Before the view's rows."""
        self._numbers = runs.lock_marked(self.cursor, self.database, self.view)

    def end(self, row_count: int, kept_count: int | None) -> None:
        """The replay is over where all pipelines have filled the view.

        Args:
            row_count: rows that were read.
            kept_count: rows that were written of them, one a key and chunk; None: nobody counted.
        """
        if not self._numbers:
            return
        # What another pipeline committed is seen: who fills the view too waits for the lock, and READ COMMITTED.
        rows = [row for _, row in _keepers(self.cursor, self.database, self.view)]
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
