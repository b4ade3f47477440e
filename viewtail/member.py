"""One store's process where the source is shared out: a pipeline, in a thread, for each part that is this process's.

The other members are processes like this one, here and on other machines. Which part is whose the source's own group
decides; that only one writes it, lease and fence do, as everywhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import structlog

from ingest import Members
from projectors.catalog import Catalog, streams_of
from viewtail import declarations, settings
from viewtail.changes.errors import MisuseError, ViewtailError
from viewtail.changes.pipelines import PipelineId, PipelineState
from viewtail.changes.positions import Position
from viewtail.changes.retrying import reaction_to
from viewtail.presence import Presence
from viewtail.reports import REPORT_EVERY_S, tell
from viewtail.worker import Worker

_log = structlog.get_logger("viewtail.worker")

Parts: TypeAlias = Sequence[tuple[str, int]]  # (source, partition)

COUNT_WAITING_EVERY_S = 5.0
GIVE_UP_WITHIN_S = 4.0  # less than others wait for this member; what takes longer is fenced


@dataclass(frozen=True, slots=True)
class _Hired:
    worker: Worker
    thread: threading.Thread


class Member:
    """Runs the pipelines of the parts that it is given, until told to stop."""

    def __init__(self, identity: PipelineId, config: settings.Settings, report_to: int, presence: Presence) -> None:
        self.stop = threading.Event()
        self.has_fitted = False  # some worker's declarations, here or in a process before this one
        self._store = identity.store
        self._settings = config
        self._report_to = report_to
        self._presence = presence
        self._waiting: Mapping[str, int] = {}  # messages, by pipeline
        self._hired: dict[tuple[str, int], _Hired] = {}
        self._failure: BaseException | None = None  # of a worker
        self._state = PipelineState.STARTING
        self._error: str | None = None
        self._members: Members | None = None

    def run(self) -> None:
        """Run until `stop` is set. Raises MisuseError for what the user must change."""
        report = threading.Thread(target=self._report, name="report", daemon=True)
        report.start()
        threading.Thread(target=self._count_waiting, name="waiting", daemon=True).start()
        attempt = 0
        while not self.stop.is_set():
            try:
                self._be_one()
            except MisuseError:
                raise
            except ViewtailError as error:
                reaction = reaction_to(error)
                self._state, self._error = reaction.state, str(error)
                _log.warning("not a member of the group", error=str(error), state=reaction.state)
                self.stop.wait(reaction.pause_s(attempt))
                attempt += 1
        if self._failure is not None:
            raise self._failure
        self._state = PipelineState.STOPPED
        report.join()

    def _be_one(self) -> None:
        views = [view for view in declarations.load(self._settings.views) if view.store == self._store]
        kind, access = self._settings.source_kind, Catalog(servers=self._settings.servers()).source_access()
        self._members = kind.members(access, self._store, streams_of(kind, views), self._take, self._give_up)
        self._state, self._error = PipelineState.RUNNING, None
        self._members.run(self.stop, self._positions)

    def _take(self, parts: Parts) -> None:
        _log.info("partitions taken", partitions=[f"{source}/{part}" for source, part in parts])
        for source, part in parts:
            identity = PipelineId(source, part, self._store)
            more = partial(self._waiting_for, identity.name)
            worker = Worker(identity, self._settings, self._report_to, self._presence, more)
            self.has_fitted = self.has_fitted or any(one.worker.has_fitted for one in self._hired.values())
            worker.has_fitted = self.has_fitted
            thread = threading.Thread(target=self._run, args=(worker,), name=worker.identity.name, daemon=True)
            self._hired[source, part] = _Hired(worker, thread)
            thread.start()

    def _give_up(self, parts: Parts) -> None:
        _log.info("partitions given up", partitions=[f"{source}/{part}" for source, part in parts])
        leaving = [self._hired.pop(part) for part in parts if part in self._hired]
        for one in leaving:
            one.worker.ends_as = PipelineState.STOPPED if self.stop.is_set() else PipelineState.GIVEN_UP
            one.worker.stop.set()
        deadline = time.monotonic() + GIVE_UP_WITHIN_S
        for one in leaving:
            one.thread.join(max(0.0, deadline - time.monotonic()))
            if one.thread.is_alive():
                _log.warning("a pipeline did not end in time; whoever takes it fences it", pipeline=one.thread.name)

    def _run(self, worker: Worker) -> None:
        structlog.contextvars.bind_contextvars(pipeline=worker.identity.name)
        try:
            worker.run()
        except BaseException as error:  # the process ends with it, as that of a single pipeline does
            self._failure = error
            self.stop.set()
        finally:
            self._tell({"pipeline": worker.identity.name, "state": PipelineState.GIVEN_UP})

    def _positions(self) -> list[Position]:
        return list(self._positions_by_name().values())

    def _positions_by_name(self) -> dict[str, Position]:
        owned = [one.worker.reporter.own for one in list(self._hired.values())]
        found = {own.identity.name: own.pipeline.vitals.position for own in owned if own is not None}
        return {name: position for name, position in found.items() if position is not None}

    def _count_waiting(self) -> None:
        kind, access = self._settings.source_kind, self._settings.source_access()
        while not self.stop.wait(COUNT_WAITING_EVERY_S):
            try:
                self._waiting = kind.waiting(access, self._positions_by_name())
            except ViewtailError as error:
                _log.debug("what waits is not known", error=str(error))
                self._waiting = {}

    def _waiting_for(self, pipeline: str) -> dict[str, object]:
        """Return what a line to the supervisor says of them."""
        waiting = self._waiting.get(pipeline)
        return {} if waiting is None else {"waiting": waiting}

    def _report(self) -> None:
        while not self.stop.wait(REPORT_EVERY_S):
            error = self._error or (self._members.trouble if self._members is not None else None)
            rebalances = 0 if self._members is None else self._members.rebalance_count
            line = {"pipeline": self._store, "state": self._state, "error": error, "parts": len(self._hired)}
            self._tell({**line, "rebalances": rebalances, **self._presence.told()})

    def _tell(self, line: dict[str, object]) -> None:
        with suppress(OSError):
            tell(self._report_to, line)
            return
        self.stop.set()  # the supervisor is gone: nobody would stop us later
