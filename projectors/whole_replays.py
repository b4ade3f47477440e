"""Replays of whole views, in the record of what operators had done: a command marks the view, its pipelines fill it.

The row of such a replay in `operator_run` is in the state MARKED until the view is filled, and is done in the same
transaction: no restart and no kill comes between. Until then the view's own row says how far it is. A view has one
such replay at most, since the next one cuts it off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from offsets.lease import is_held
from offsets.pauses import this_person
from servers.sessions import quote

MARKED = "marked"
_BACKFILLING, _FILLED, _HALTED, _PAUSED = "filling", "filled", "halted", "paused"  # of State, whose module needs this


@dataclass(frozen=True, slots=True, kw_only=True)
class HowFar:
    """How far a replay is that is not over."""

    state: str  # waiting, running, halted, paused; stopped: it will never be over
    words: str
    rows: int = 0  # that were read
    estimate: int = 0


def begin(cursor: Any, database: str, view: str, what: str) -> None:
    """Record that one is asked for; one that is not over is cut off by it.

    In the transaction that marks the view, and before that: `ending` locks the rows in this order.
    """
    if (number := _lock(cursor, database, view)) is not None:
        before = how_far(cursor, database, view)
        progress = {"entities": before.rows, "estimate": before.estimate}
        _end(cursor, database, number, "stopped", progress, f"cut off by another replay; until then: {before.words}")
    cursor.execute(
        f"INSERT INTO {quote(database, 'operator_run')} (kind, view, what, fingerprint, operator, state, progress) "
        f"VALUES ('replay', %s, %s, '', %s, '{MARKED}', '{{}}')",
        (view, what[:2000], this_person()),
    )


def how_far(cursor: Any, database: str, view: str) -> HowFar:
    """By what the view's rows say, one a pipeline."""
    cursor.execute(
        f"SELECT p.name, v.state, v.reason, v.fill_row_count, v.fill_row_estimate FROM {quote(database, 'view')} v "
        f"JOIN {quote(database, 'pipeline')} p ON p.id = v.pipeline_id WHERE v.name = %s",
        (view,),
    )
    rows = cursor.fetchall()
    if not rows:
        return HowFar(state="stopped", words="the view was forgotten")
    halted = next((reason for _, state, reason, *_ in rows if state == _HALTED), None)
    states = {state for _, state, *_ in rows}
    read = max(count for *_, count, _ in rows) if _BACKFILLING in states else 0
    estimate = max(row[-1] for row in rows)
    done = f"{read:,} of about {estimate:,} rows were read" if read else "no row was read"
    if halted is not None:
        return HowFar(state="halted", words=f"the view is halted: {halted}")
    if _PAUSED in states:
        return HowFar(state="paused", words="the view is paused")
    if not all(is_held(cursor, database, name) for name, *_ in rows):
        return HowFar(state="waiting", words=f"{done}; no viewtail runs its pipeline", rows=read, estimate=estimate)
    state = "running" if _BACKFILLING in states else "waiting"
    return HowFar(state=state, words=done, rows=read, estimate=estimate)


@dataclass(slots=True)
class Ending:
    """Of the transaction in which a view is filled."""

    cursor: Any
    database: str
    view: str
    _number: int | None = None  # of the replay that it is filled for

    def lock(self) -> None:
        """Before the view's rows."""
        self._number = _lock(self.cursor, self.database, self.view)

    def end(self, row_count: int, kept_count: int | None) -> None:
        """The replay is over where all pipelines have filled the view.

        Args:
            row_count: rows that were read.
            kept_count: of these, those that the view shows; None: nobody counted.
        """
        if self._number is None:
            return
        # What another pipeline committed is seen: who fills the view too waits for the lock, and READ COMMITTED.
        self.cursor.execute(f"SELECT id, state FROM {quote(self.database, 'view')} WHERE name = %s", (self.view,))
        found = list(self.cursor.fetchall())
        if any(state != _FILLED for _, state in found):
            return
        self.cursor.execute(
            f"SELECT COUNT(*) FROM {quote(self.database, 'dead_letter')} WHERE view_id IN %s",
            ([number for number, _ in found],),
        )
        (parked,) = self.cursor.fetchone()
        progress, words = {"parked": parked}, "filled from its topic, which counts no rows"
        if kept_count is not None:
            progress |= {"entities": row_count, "shown": kept_count}
            words = f"{row_count:,} rows read: {kept_count:,} shown"
        _end(self.cursor, self.database, self._number, "done", progress, f"{words}, {parked:,} parked")


def _lock(cursor: Any, database: str, view: str) -> int | None:
    cursor.execute(
        f"SELECT id FROM {quote(database, 'operator_run')} WHERE view = %s AND kind = 'replay' "
        f"AND state = '{MARKED}' FOR UPDATE",
        (view,),
    )
    row = cursor.fetchone()
    return None if row is None else int(row[0])


def _end(cursor: Any, database: str, number: int, state: str, progress: dict[str, int], words: str) -> None:
    cursor.execute(
        f"UPDATE {quote(database, 'operator_run')} SET state = %s, progress = %s, result = %s, "
        "ended_at = CURRENT_TIMESTAMP(6) WHERE id = %s",
        (state, orjson.dumps(progress).decode(), words[:2000], number),
    )
