"""Replays of whole views, in the record of what operators had done: a command marks the view, its pipelines fill it.

The row of such a replay in `operator_run` is in the state MARKED until the view is filled, and is done in the same
transaction: no restart and no kill comes between. Until then the view's own row says how far it is, also that it is
filled: what filled it may have been a viewtail of before this record, or a copy that took the view's place since. A
view has one such replay, since the next one cuts it off; two that are asked for at one moment are over together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from offsets.lease import is_held
from offsets.pauses import this_person
from viewtail.changes.counting import agreeing, counted
from viewtail.changes.pipelines import DEFAULT_SOURCE
from viewtail.servers.sessions import quote

MARKED = "marked"
_BACKFILLING, _FILLED, _HALTED, _PAUSED = "filling", "filled", "halted", "paused"  # of State, whose module needs this


@dataclass(frozen=True, slots=True, kw_only=True)
class HowFar:
    """How far a replay is whose end is not recorded."""

    state: str  # waiting, running, halted, paused; done; stopped: it will never be over
    words: str
    rows: int = 0  # that were read
    estimate: int = 0


def begin(cursor: Any, database: str, view: str, what: str) -> None:
    """Record that one is asked for; one that is not over is cut off by it.

    In the transaction that marks the view, and before that: `ending` locks the rows in this order.
    """
    if numbers := _lock(cursor, database, view):
        before = how_far(cursor, database, view)
        progress = {"entities": before.rows, "estimate": before.estimate}
        state, words = "stopped", f"cut off by another replay; until then: {before.words}"
        if before.state == "done":
            state, words = before.state, before.words
        _end(cursor, database, numbers, state, progress, words)
    cursor.execute(
        f"INSERT INTO {quote(database, 'operator_run')} (kind, view, what, fingerprint, operator, state, progress) "
        f"VALUES ('replay', %s, %s, '', %s, '{MARKED}', '{{}}')",
        (view, what[:2000], this_person()),
    )


def how_far(cursor: Any, database: str, view: str) -> HowFar:
    """By what the view's rows say, one a pipeline."""
    rows = _rows(cursor, database, view)
    if not rows:
        return HowFar(state="stopped", words="the view was forgotten")
    halted = next((row.reason for row in rows if row.state == _HALTED), None)
    states = {row.state for row in rows}
    estimate = max(row.estimate for row in rows)
    if states == {_FILLED}:
        return HowFar(state="done", words="the view is filled", rows=max(row.read for row in rows), estimate=estimate)
    read = max(row.read for row in rows) if _BACKFILLING in states else 0
    done = f"{read:,} of about {counted(estimate, 'rows')} {agreeing(read, 'were')} read" if read else "no row was read"
    if halted is not None:
        return HowFar(state="halted", words=f"the view is halted: {halted}")
    if _PAUSED in states:
        return HowFar(state="paused", words="the view is paused")
    if not all(row.is_held for row in rows):
        return HowFar(state="waiting", words=f"{done}; no viewtail runs its pipeline", rows=read, estimate=estimate)
    state = "running" if _BACKFILLING in states else "waiting"
    return HowFar(state=state, words=done, rows=read, estimate=estimate)


class _Row(NamedTuple):
    """A view as one pipeline has it."""

    id: int
    is_default: bool  # whether its source is the binlog
    is_held: bool  # whether somebody runs the pipeline now
    state: str
    reason: str | None
    read: int  # rows; of a filled view, those that were written
    estimate: int


def _rows(cursor: Any, database: str, view: str) -> list[_Row]:
    """One a pipeline. Where a view moved between the binlog and topics, those of the kind that is run now."""
    cursor.execute(
        "SELECT p.name, v.id, p.source, v.state, v.reason, v.fill_row_count, v.fill_row_estimate "
        f"FROM {quote(database, 'view')} v JOIN {quote(database, 'pipeline')} p ON p.id = v.pipeline_id "
        "WHERE v.name = %s",
        (view,),
    )
    rows = [
        _Row(number, source == DEFAULT_SOURCE, is_held(cursor, database, pipeline), *rest)
        for pipeline, number, source, *rest in cursor.fetchall()
    ]
    kinds = {row.is_default for row in rows if row.is_held}
    return [row for row in rows if row.is_default in kinds] if kinds else rows


@dataclass(slots=True)
class Ending:
    """Of the transaction in which a view is filled."""

    cursor: Any
    database: str
    view: str
    _numbers: list[int] = field(default_factory=list)  # of replays that it is filled for

    def lock(self) -> None:
        """Before the view's rows."""
        self._numbers = _lock(self.cursor, self.database, self.view)

    def end(self, row_count: int, kept_count: int | None) -> None:
        """The replay is over where all pipelines have filled the view.

        Args:
            row_count: rows that were read.
            kept_count: rows that were written of them, one a key and chunk; None: nobody counted.
        """
        if not self._numbers:
            return
        # What another pipeline committed is seen: who fills the view too waits for the lock, and READ COMMITTED.
        rows = _rows(self.cursor, self.database, self.view)
        if any(row.state != _FILLED for row in rows):
            return
        self.cursor.execute(
            f"SELECT COUNT(*) FROM {quote(self.database, 'dead_letter')} WHERE view_id IN %s",
            ([row.id for row in rows],),
        )
        (parked,) = self.cursor.fetchone()
        progress, words = {"parked": parked}, "filled from its topic, which counts no rows"
        if kept_count is not None:
            progress |= {"entities": row_count, "shown": kept_count}  # as those of keys have it
            words = f"{counted(row_count, 'rows')} read: {kept_count:,} written"
        _end(self.cursor, self.database, self._numbers, "done", progress, f"{words}, {parked:,} parked")


def _lock(cursor: Any, database: str, view: str) -> list[int]:
    cursor.execute(
        f"SELECT id FROM {quote(database, 'operator_run')} WHERE view = %s AND kind = 'replay' "
        f"AND state = '{MARKED}' FOR UPDATE",
        (view,),
    )
    return [number for (number,) in cursor.fetchall()]


def _end(cursor: Any, database: str, numbers: Sequence[int], state: str, progress: dict[str, int], words: str) -> None:
    cursor.execute(
        f"UPDATE {quote(database, 'operator_run')} SET state = %s, progress = %s, result = %s, "
        "ended_at = CURRENT_TIMESTAMP(6) WHERE id IN %s",
        (state, orjson.dumps(progress).decode(), words[:2000], numbers),
    )
