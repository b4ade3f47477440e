"""Keeps what operators had done to views: a row each in the table `operator_run`. A stopped run goes on there.

A command holds a lock on its row while it runs, so that the same one is not done twice at once, and one that was killed
is seen to be over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from offsets.lease import lock_name
from offsets.mysql import Session, reading, transaction
from offsets.pauses import this_person
from viewtail.changes.counting import counted
from viewtail.servers.sessions import quote

MOST_TEXT = 2000  # characters that are kept of what an operator asked for, and of what came of it
ADOPTION = "adopt"  # the kind of a run that took over what another tool kept in the view's place
PAUSED, RESUMED = "pause", "resume"
DROP = "drop"  # of dead letters: what the view shows of their keys is not what the rows are
REFILL = "refill"  # of a view whose store lost rows of it; nobody asked for it
KEPT_RECORDED = 200  # rows of what was done at once, of one kind and view
KEPT_HOURS = 24  # rows of what happens again and again, of one kind and view
GOES_ON_WITHIN_H = 24  # what was stopped longer ago begins again


class RunState(StrEnum):
    """The state of one run."""

    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"
    MARKED = "marked"  # a replay of a whole view, which is as far as the view is: whole_replays.py


@dataclass(frozen=True, slots=True)
class Past:
    """One row, as it is shown."""

    id: int
    kind: str
    view: str
    what: str
    operator: str
    state: str  # of RunState; of a replay of a whole view also waiting, halted, paused
    result: str
    progress: Mapping[str, Any]
    started_at: str  # UTC
    ended_at: str | None
    source: str  # of a replay of a whole view that draws on several: the one whose rows are replayed; else ''


class Unfinished(NamedTuple):
    """A run that is not over."""

    id: int
    progress: dict[str, Any]
    operator: str


def lock_of(database: str, number: int) -> str:
    """The name of the lock that the process holds which is at a run."""
    return lock_name(database, f"operator_run#{number}")


def unfinished(cursor: Any, database: str, kind: str, view: str, fingerprint: str) -> Unfinished | None:
    """The last run of that fingerprint, where it is not over and not too old."""
    cursor.execute(
        f"SELECT id, progress, operator FROM {_table(database)} WHERE view = %s AND kind = %s AND fingerprint = %s "
        f"AND state IN ('{RunState.RUNNING}', '{RunState.STOPPED}') "
        f"AND updated_at > CURRENT_TIMESTAMP(6) - INTERVAL {GOES_ON_WITHIN_H} HOUR ORDER BY id DESC LIMIT 1",
        (view, kind, fingerprint),
    )
    row = cursor.fetchone()
    return None if row is None else Unfinished(row[0], orjson.loads(row[1]), row[2])


def go_on(cursor: Any, database: str, number: int) -> None:
    """Note that a run is not stopped any more."""
    cursor.execute(f"UPDATE {_table(database)} SET state = '{RunState.RUNNING}' WHERE id = %s", (number,))


def insert(cursor: Any, database: str, kind: str, view: str, what: str, fingerprint: str, state: str) -> int:
    """Insert a new run of this person's; return its number."""
    cursor.execute(
        f"INSERT INTO {_table(database)} (kind, view, what, fingerprint, operator, state, progress) "
        "VALUES (%s, %s, %s, %s, %s, %s, '{}')",
        (kind, view, what[:MOST_TEXT], fingerprint, this_person(), state),
    )
    return int(cursor.lastrowid)


def save(cursor: Any, database: str, number: int, progress: Mapping[str, Any]) -> None:
    """Save how far a run is."""
    cursor.execute(f"UPDATE {_table(database)} SET progress = %s WHERE id = %s", (_text_of(progress), number))


def end(
    cursor: Any, database: str, numbers: Sequence[int], state: str, progress: Mapping[str, Any], result: str
) -> None:
    """Note that these runs are over, or stopped; and what came of them, in words."""
    ended = "NULL" if state == RunState.STOPPED else "CURRENT_TIMESTAMP(6)"
    cursor.execute(
        f"UPDATE {_table(database)} SET state = %s, result = %s, progress = %s, ended_at = {ended} WHERE id IN %s",
        (state, result[:MOST_TEXT], _text_of(progress), list(numbers)),
    )


def is_running(cursor: Any, database: str, number: int) -> bool:
    """Return whether a run goes on, and keep others from ending it until the caller's transaction ends."""
    cursor.execute(f"SELECT state FROM {_table(database)} WHERE id = %s FOR UPDATE", (number,))
    return bool(cursor.fetchone() == (RunState.RUNNING,))


def cancel(cursor: Any, database: str, kind: str, view: str, result: str) -> int:
    """End those of a view's runs that are not over; their processes see it. Returns how many they were."""
    return int(
        cursor.execute(
            f"UPDATE {_table(database)} SET state = '{RunState.FAILED}', result = %s, ended_at = CURRENT_TIMESTAMP(6) "
            f"WHERE kind = %s AND view = %s AND state IN ('{RunState.RUNNING}', '{RunState.STOPPED}')",
            (result[:MOST_TEXT], kind, view),
        )
    )


@contextmanager
def counted_up(
    session: Session, database: str, kind: str, view: str, what: str, words: Callable[[Mapping[str, Any]], str]
) -> Iterator[dict[str, Any]]:
    """The progress of this hour's row of what happens again and again, to be added to; `words` of it are its result."""
    with transaction(session, f"recording a {kind}") as cursor:
        cursor.execute(
            f"SELECT id, progress FROM {_table(database)} WHERE kind = %s AND view = %s "
            "AND started_at > CURRENT_TIMESTAMP(6) - INTERVAL 1 HOUR ORDER BY id DESC LIMIT 1 FOR UPDATE",
            (kind, view),
        )
        number, text = cursor.fetchone() or (None, "{}")
        progress = orjson.loads(text)
        yield progress
        if number is None:
            number = insert(cursor, database, kind, view, what, "", RunState.DONE)
        end(cursor, database, [number], RunState.DONE, progress, words(progress))


def forget_but_last(session: Session, database: str, kind: str, view: str, kept: int) -> None:
    """Take older rows of what happens again and again out of the record."""
    with transaction(session, f"forgetting older runs of {kind}") as cursor:
        cursor.execute(
            f"SELECT id FROM {_table(database)} WHERE kind = %s AND view = %s ORDER BY id DESC LIMIT 1 OFFSET %s",
            (kind, view, kept),
        )
        row = cursor.fetchone()
        if row is not None:
            cursor.execute(
                f"DELETE FROM {_table(database)} WHERE kind = %s AND view = %s AND id <= %s", (kind, view, row[0])
            )


def read(cursor: Any, database: str, kinds: Sequence[str], limit: int) -> list[Past]:
    """Read the newest runs first. One that says that it is running, and whose process is gone, was stopped."""
    cursor.execute(
        "SELECT id, kind, view, what, operator, state, result, progress, "
        "DATE_FORMAT(started_at, '%Y-%m-%d %H:%i:%s'), DATE_FORMAT(ended_at, '%Y-%m-%d %H:%i:%s'), "
        f"IF(kind = 'replay' AND CHAR_LENGTH(fingerprint) < 64, fingerprint, '') "
        f"FROM {_table(database)} WHERE kind IN %s ORDER BY id DESC LIMIT %s",
        (list(kinds), limit),
    )
    return [_past(cursor, database, row) for row in cursor.fetchall()]


def _past(cursor: Any, database: str, row: tuple[Any, ...]) -> Past:
    past = Past(*row)
    is_over = past.state == RunState.RUNNING and not is_under_way(cursor, database, past.id)
    return replace(past, state=RunState.STOPPED if is_over else past.state, progress=orjson.loads(row[7]))


def lock_marked(cursor: Any, database: str, view: str, source: str) -> list[int]:
    """The numbers of the replays of a whole view, of a source, that are not over, with a lock on each row."""
    cursor.execute(
        f"SELECT id FROM {_table(database)} WHERE view = %s AND kind = 'replay' AND state = '{RunState.MARKED}' "
        "AND fingerprint = %s FOR UPDATE",
        (view, source),
    )
    return [number for (number,) in cursor.fetchall()]


def is_under_way(cursor: Any, database: str, number: int) -> bool:
    """Return whether a process is at the run of this id now."""
    cursor.execute("SELECT IS_USED_LOCK(%s)", (lock_of(database, number),))
    return cursor.fetchone()[0] is not None


def under_way(cursor: Any, database: str, kind: str) -> dict[str, Mapping[str, Any]]:
    """Return, by view, how far the runs of a kind are that a process is at now."""
    cursor.execute(
        f"SELECT id, view, progress FROM {_table(database)} WHERE kind = %s AND state = '{RunState.RUNNING}'", (kind,)
    )
    return {
        view: orjson.loads(progress)
        for number, view, progress in cursor.fetchall()
        if is_under_way(cursor, database, number)
    }


def record(session: Session, database: str, kind: str, view: str, what: str, result: str = "") -> None:
    """Put what was done at once into the record. `view` is '' where it was not done to a view."""
    with transaction(session, f"recording a {kind}") as cursor:
        record_in(cursor, database, kind, view, what, result)
    forget_but_last(session, database, kind, view, KEPT_RECORDED)


def record_in(cursor: Any, database: str, kind: str, view: str, what: str, result: str) -> None:
    """Put it into the record in the caller's transaction, in which it is done."""
    number = insert(cursor, database, kind, view, what, "", RunState.DONE)
    end(cursor, database, [number], RunState.DONE, {}, result)


def last_times(cursor: Any, database: str, kind: str) -> dict[str, float]:
    """When something of a kind was done last to each view, Unix time."""
    cursor.execute(
        f"SELECT view, UNIX_TIMESTAMP(MAX(started_at)) FROM {_table(database)} WHERE kind = %s GROUP BY view", (kind,)
    )
    return {view: float(at) for view, at in cursor.fetchall()}


def record_refill(session: Session, database: str, view: str, why: str) -> None:
    """Put into this hour's row of the record that a view is backfilled again, since it could not be relied on."""

    def words(progress: Mapping[str, Any]) -> str:
        return f"backfilled again, {counted(progress['times'], 'times')}"

    with counted_up(session, database, REFILL, view, why, words) as progress:
        progress["times"] = progress.get("times", 0) + 1
    forget_but_last(session, database, REFILL, view, KEPT_HOURS)


def note_adopted(session: Session, database: str, view: str) -> None:
    """Note that what another tool kept in the view's place is taken over, once."""
    if is_adopted(session, database, view):
        return
    record(session, database, ADOPTION, view, "what another tool kept in its place", "taken over")


def is_adopted(session: Session, database: str, view: str) -> bool:
    """Return whether something in the view's place may be another tool's."""
    with reading(session, "asking whether a view was adopted") as cursor:
        cursor.execute(f"SELECT 1 FROM {_table(database)} WHERE view = %s AND kind = '{ADOPTION}' LIMIT 1", (view,))
        return cursor.fetchone() is not None


def _table(database: str) -> str:
    return quote(database, "operator_run")


def _text_of(progress: Mapping[str, Any]) -> str:
    return orjson.dumps(progress).decode()
