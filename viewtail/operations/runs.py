"""Runs that an operator asks for: each has a row of its own, and goes on where one that was stopped ended.

The rows themselves, and what is shown of them, are in offsets/runs.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pymysql

from offsets import runs, whole_replays
from offsets.mysql import Session, transaction
from offsets.runs import Past, RunState
from projectors import failpoints
from viewtail.changes.errors import MisuseError, StoreUnavailableError, ViewtailError
from viewtail.servers.sessions import value_of

COMPARISON = "rebuild"  # the kind of a pass over the copy beside a live one, before it is swapped


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
        stopped = runs.unfinished(cursor, self.database, self.kind, self.view, fingerprint)
        if stopped is None:
            self.id = runs.insert(cursor, self.database, self.kind, self.view, self.what, fingerprint, RunState.RUNNING)
            self._is_locked()
            return
        self.id, self.progress, self.is_resumed = stopped.id, stopped.progress, True
        if not self._is_locked():
            raise ViewtailError(
                f"{stopped.operator} runs the same {self.kind} of {self.view} now. `viewtail replays` shows it"
            )
        runs.go_on(cursor, self.database, self.id)

    def save(self) -> None:
        """Save how far it is, in `progress`."""
        with transaction(self.session, f"saving how far a {self.kind} is") as cursor:
            runs.save(cursor, self.database, self.id, self.progress)
        failpoints.reach("after save")

    def end(self, state: RunState, result: str) -> None:
        failpoints.reach("before end")
        with transaction(self.session, f"ending a {self.kind}") as cursor:
            runs.end(cursor, self.database, [self.id], state, self.progress, result)
            cursor.execute("SELECT RELEASE_LOCK(%s)", (runs.lock_of(self.database, self.id),))

    def fail(self, error: BaseException) -> None:
        """It ended with an error, or was interrupted; where the server answers, its row says so."""
        with suppress(ViewtailError):
            if isinstance(error, ViewtailError):
                self.end(RunState.FAILED if isinstance(error, MisuseError) else RunState.STOPPED, str(error))
            else:
                self.end(RunState.STOPPED, "stopped")

    def _is_locked(self) -> bool:
        try:
            return bool(value_of(self.session(), "SELECT GET_LOCK(%s, 0)", runs.lock_of(self.database, self.id)) == 1)
        except pymysql.err.MySQLError as error:
            raise StoreUnavailableError(f"MySQL does not answer ({type(error).__name__}). Try again") from None


def past(session: Session, database: str, kinds: Sequence[str], limit: int) -> list[Past]:
    """The newest first. A replay of a whole view is carried out by the view's pipelines, and is as far as the view."""
    with transaction(session, "reading what operators had done") as cursor:
        rows = runs.read(cursor, database, kinds, limit)
        return [_as_far_as_its_view(cursor, database, run) if run.state == RunState.MARKED else run for run in rows]


def _as_far_as_its_view(cursor: Any, database: str, run: Past) -> Past:
    whole = whole_replays.how_far(cursor, database, run.view, run.source)
    counts = {**run.progress, "entities": whole.rows, "estimate": whole.estimate}
    return replace(run, state=whole.state, result=whole.words, progress=counts)
