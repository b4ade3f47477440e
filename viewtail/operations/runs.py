"""What operators had done to views: a row each in viewtail's table `operator_run`. One that was stopped goes on there.

A command holds a lock on its row while it runs, so that the same one is not done twice at once, and one that was killed
is seen to be over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
import pymysql

from offsets import migrations
from offsets.lease import lock_name
from offsets.mysql import Session, transaction
from offsets.pauses import this_person
from projectors import failpoints, whole_replays
from viewtail.changes.errors import MisuseError, StoreUnavailableError, ViewtailError
from viewtail.servers.sessions import quote, value_of

RUNNING, STOPPED, DONE, FAILED = "running", "stopped", "done", "failed"
COMPARISON = "rebuild"  # the kind of a pass over the copy beside a live one, before it is swapped
CUT_AT = 2000  # characters of what an operator asked for
GOES_ON_WITHIN_H = 24  # what was stopped longer ago begins again


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One row, as it is shown."""

    id: int
    kind: str
    view: str
    what: str
    operator: str
    state: str  # running, stopped, done, failed; of a replay of a whole view also waiting, halted, paused
    result: str
    progress: Mapping[str, Any]
    started_at: str  # UTC
    ended_at: str | None


@dataclass(eq=False)
class Run:
    """One operation on one view.

    Args:
        session: holds the lock of its row, and writes it.
        what: what the operator asked for, in words.
        same: what must be equal for it to go on with one that was stopped, beside that.
    """

    session: Session
    database: str
    kind: str
    view: str
    what: str
    same: str
    progress: dict[str, Any] = field(default_factory=dict)
    id: int = 0
    is_resumed: bool = False

    def begin(self) -> None:
        """Make its row, or go on with that of one which was stopped. Raises ViewtailError where that one is running."""
        with transaction(self.session, f"beginning a {self.kind}") as cursor:
            self._take_row(cursor)
        failpoints.reach("after begin")

    def _take_row(self, cursor: Any) -> None:
        fingerprint = hashlib.sha256(orjson.dumps([self.kind, self.view, self.what, self.same])).hexdigest()
        cursor.execute(
            f"SELECT id, progress, operator FROM {self._table} WHERE view = %s AND kind = %s AND fingerprint = %s "
            f"AND state IN ('{RUNNING}', '{STOPPED}') "
            f"AND updated_at > CURRENT_TIMESTAMP(6) - INTERVAL {GOES_ON_WITHIN_H} HOUR ORDER BY id DESC LIMIT 1",
            (self.view, self.kind, fingerprint),
        )
        row = cursor.fetchone()
        if row is not None:
            self.id, self.progress, self.is_resumed = row[0], orjson.loads(row[1]), True
            if not self._is_locked():
                raise ViewtailError(
                    f"{row[2]} runs the same {self.kind} of {self.view} now. `viewtail replays` shows it"
                )
            cursor.execute(f"UPDATE {self._table} SET state = '{RUNNING}' WHERE id = %s", (self.id,))
            return
        cursor.execute(
            f"INSERT INTO {self._table} (kind, view, what, fingerprint, operator, state, progress) "
            f"VALUES (%s, %s, %s, %s, %s, '{RUNNING}', '{{}}')",
            (self.kind, self.view, self.what[:CUT_AT], fingerprint, this_person()),
        )
        self.id = cursor.lastrowid
        self._is_locked()

    def save(self) -> None:
        """How far it is, in `progress`."""
        with transaction(self.session, f"saving how far a {self.kind} is") as cursor:
            cursor.execute(
                f"UPDATE {self._table} SET progress = %s WHERE id = %s", (orjson.dumps(self.progress).decode(), self.id)
            )
        failpoints.reach("after save")

    def end(self, state: str, result: str) -> None:
        failpoints.reach("before end")
        ended = "NULL" if state == STOPPED else "CURRENT_TIMESTAMP(6)"
        with transaction(self.session, f"ending a {self.kind}") as cursor:
            cursor.execute(
                f"UPDATE {self._table} SET state = %s, result = %s, progress = %s, ended_at = {ended} WHERE id = %s",
                (state, result[:2000], orjson.dumps(self.progress).decode(), self.id),
            )
            cursor.execute("SELECT RELEASE_LOCK(%s)", (self._lock,))

    def fail(self, error: BaseException) -> None:
        """It ended with an error, or was interrupted; where the server answers, its row says so."""
        with suppress(ViewtailError):
            if isinstance(error, ViewtailError):
                self.end(FAILED if isinstance(error, MisuseError) else STOPPED, str(error))
            else:
                self.end(STOPPED, "stopped")

    @property
    def _table(self) -> str:
        return quote(self.database, "operator_run")

    @property
    def _lock(self) -> str:
        return lock_name(self.database, f"operator_run#{self.id}")

    def _is_locked(self) -> bool:
        try:
            return bool(value_of(self.session(), "SELECT GET_LOCK(%s, 0)", self._lock) == 1)
        except pymysql.err.MySQLError as error:
            raise StoreUnavailableError(f"MySQL does not answer ({type(error).__name__}). Try again") from None


@contextmanager
def counted_up(
    session: Session, database: str, kind: str, view: str, what: str, words: Callable[[Mapping[str, Any]], str]
) -> Iterator[dict[str, Any]]:
    """The progress of this hour's row of what happens again and again, to be added to; `words` of it are its result."""
    table = quote(database, "operator_run")
    with transaction(session, f"recording a {kind}") as cursor:
        cursor.execute(
            f"SELECT id, progress FROM {table} WHERE kind = %s AND view = %s "
            "AND started_at > CURRENT_TIMESTAMP(6) - INTERVAL 1 HOUR ORDER BY id DESC LIMIT 1 FOR UPDATE",
            (kind, view),
        )
        number, text = cursor.fetchone() or (None, "{}")
        progress = orjson.loads(text)
        yield progress
        values = (orjson.dumps(progress).decode(), words(progress)[:2000])
        if number is None:
            cursor.execute(
                f"INSERT INTO {table} (kind, view, what, fingerprint, operator, state, progress, result, ended_at) "
                f"VALUES (%s, %s, %s, '', %s, '{DONE}', %s, %s, CURRENT_TIMESTAMP(6))",
                (kind, view, what, this_person(), *values),
            )
        else:
            cursor.execute(
                f"UPDATE {table} SET progress = %s, result = %s, ended_at = CURRENT_TIMESTAMP(6) WHERE id = %s",
                (*values, number),
            )


def forget_but_last(session: Session, database: str, kind: str, view: str, kept: int) -> None:
    """Take older rows of what happens again and again out of the record."""
    table = quote(database, "operator_run")
    with transaction(session, f"forgetting older runs of {kind}") as cursor:
        cursor.execute(
            f"SELECT id FROM {table} WHERE kind = %s AND view = %s ORDER BY id DESC LIMIT 1 OFFSET %s",
            (kind, view, kept),
        )
        row = cursor.fetchone()
        if row is not None:
            cursor.execute(f"DELETE FROM {table} WHERE kind = %s AND view = %s AND id <= %s", (kind, view, row[0]))


def past(session: Session, database: str, kinds: Sequence[str], limit: int) -> list[Past]:
    """The newest first. One that says that it is running, and whose process is gone, was stopped.

    One of a whole view is carried out by the view's pipelines, and is as far as the view is.
    """
    with transaction(session, "reading what operators had done") as cursor:
        cursor.execute(
            "SELECT id, kind, view, what, operator, state, result, progress, "
            "DATE_FORMAT(started_at, '%Y-%m-%d %H:%i:%s'), DATE_FORMAT(ended_at, '%Y-%m-%d %H:%i:%s') "
            f"FROM {quote(database, 'operator_run')} WHERE kind IN %s ORDER BY id DESC LIMIT %s",
            (list(kinds), limit),
        )
        rows = list(cursor.fetchall())
        return [_past(cursor, database, row) for row in rows]


def is_under_way(cursor: Any, database: str, number: int) -> bool:
    """Whether a process is at the run of this id now."""
    cursor.execute("SELECT IS_USED_LOCK(%s)", (lock_name(database, f"operator_run#{number}"),))
    return cursor.fetchone()[0] is not None


def under_way(cursor: Any, database: str, kind: str) -> dict[str, Mapping[str, Any]]:
    """By view, how far the runs of a kind are that a process is at now."""
    if "operator_run" not in migrations.columns(cursor, database):
        return {}
    cursor.execute(
        f"SELECT id, view, progress FROM {quote(database, 'operator_run')} WHERE kind = %s AND state = '{RUNNING}'",
        (kind,),
    )
    found = {}
    for number, view, progress in cursor.fetchall():
        if is_under_way(cursor, database, number):
            found[view] = orjson.loads(progress)
    return found


def _past(cursor: Any, database: str, row: tuple[Any, ...]) -> Past:
    number, kind, view, what, operator, state, result, progress, started, ended = row
    if state == RUNNING:
        state = RUNNING if is_under_way(cursor, database, number) else STOPPED
    counts = orjson.loads(progress)
    if state == whole_replays.MARKED:
        found = whole_replays.how_far(cursor, database, view)
        state, result = found.state, found.words
        counts |= {"entities": found.rows, "estimate": found.estimate}
    return Past(
        id=number,
        kind=kind,
        view=view,
        what=what,
        operator=operator,
        state=state,
        result=result,
        progress=counts,
        started_at=started,
        ended_at=ended,
    )
