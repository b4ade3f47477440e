"""This process among those of its deployment: noted in MySQL for `status`, and what metrics say of the fleet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import structlog

from offsets.members import Membership
from offsets.owners import this_process
from viewtail.changes.errors import ViewtailError
from viewtail.servers.sessions import Connection

_log = structlog.get_logger("viewtail.worker")

COUNT_EVERY_S = 2.0  # less than what the server ends a silent session after
END_WITHIN_S = 2.0


class Presence:
    """The process of one store, as it is noted. Nobody waits for it, and what fails is tried again."""

    def __init__(self, store: str, database: str, open_store: Callable[[], Connection], *, is_in_group: bool) -> None:
        self.takeover_count = 0  # pipelines that this process took from one that had not given them up
        self.fenced_count = 0  # pipelines that another process had taken when this one gave them up
        self._members: int | None = None
        self._store, self._database = store, database
        self._open_store = open_store
        self._is_in_group = is_in_group
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(END_WITHIN_S)

    def told(self) -> dict[str, Any]:
        """Return what a line to the supervisor says of it."""
        known = {} if self._members is None else {"members": self._members}
        return {**known, "takeovers": self.takeover_count, "fenced": self.fenced_count}

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with closing(self._open_store()) as session:
                    self._be_there(Membership(session, self._database, this_process()))
            except ViewtailError as error:  # a first process makes the tables meanwhile
                _log.debug("not noted as a member", error=str(error))
                self._members = None
                self._stop.wait(COUNT_EVERY_S)

    def _be_there(self, membership: Membership) -> None:
        membership.begin(self._store, is_in_group=self._is_in_group)
        while True:
            self._members = membership.count(self._store)
            if self._stop.wait(COUNT_EVERY_S):
                break
        with suppress(ViewtailError):  # then it is one that is silent, and forgotten after a while
            membership.end()
