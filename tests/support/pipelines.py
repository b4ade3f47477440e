"""A pipeline of the real parts in this process, for tests that place what happens between two steps exactly."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from offsets.lease import Lease
from offsets.views import Event
from projectors.catalog import Catalog
from projectors.fills.filling import Filling
from projectors.fills.opening import open_filling
from projectors.outcomes import DONE
from projectors.pipeline_run import PipelineRun, open_run
from projectors.views import View
from stack import Server
from tests.support.running import addresses, wait_for
from viewtail import settings
from viewtail.changes.errors import ViewtailError
from viewtail.changes.pipelines import PipelineId
from viewtail.composition import deploy


def deployed(views: Sequence[View], *servers: Server) -> Catalog:
    """These views over these servers (MySQL first), viewtail's own tables made."""
    found = deploy(settings.load(None, {**_without_settings(), **addresses(*servers)}), views)
    found.create_tables()
    return found


def _without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("VIEWTAIL_")}


class Owner:
    """A taken pipeline that follows the changes in a thread of its own."""

    def __init__(self, own: PipelineRun) -> None:
        self.own = own
        self.failure: ViewtailError | None = None
        self._session = own.catalog.session()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        try:
            self.own.pipeline.run(self.own.offset)
        except ViewtailError as error:
            self.failure = error

    def pass_everything(self) -> None:
        """Return when all that is committed now has been applied."""
        marks = self.own.pipeline.watermarks
        assert marks.waiter.wait([marks.write()], self.own.stop, 30) is not None, self.failure

    def to_fill(self) -> list[str]:
        return self.own.life.on(self._session).to_backfill()

    def backfill(self, view: str, chunk_rows: int = 5000) -> Filling:
        filling = open_filling(self.own, view, self._session)
        filling.rows.chunk_rows = chunk_rows
        return filling

    def fill(self, view: str, chunk_rows: int = 5000) -> None:
        """Once, to its end; raises what kept it from that."""
        outcome = self.backfill(view, chunk_rows).run()
        if outcome.error is not None:
            raise outcome.error
        assert outcome == DONE

    def fill_all(self) -> None:
        for view in self.to_fill():
            self.fill(view)

    def fill_again(self, view: str, chunk_rows: int = 5000) -> None:
        self.own.life.states.move(Event.REPLAYED, [view])
        self.fill(view, chunk_rows)

    def pause(self, view: str) -> None:
        """As an operator does; the process sees it at its next `look`."""
        self.own.life.on(self._session).states.move(Event.PAUSED, [view], by="ada@desk", reason=None)

    def look(self) -> None:
        self.own.look(self._session)

    def state(self, view: str) -> str:
        return self.own.life.states.read(view).state

    def close(self) -> None:
        self.own.stop.set()
        self.own.source.interrupt()
        self._thread.join()
        self.own.pipeline.offsets.abandon()
        self._session.close()
        self.own.close()


@contextmanager
def owned(catalog: Catalog, store: str) -> Iterator[Owner]:
    """The pipeline of one store, taken and following."""
    lease = Lease(catalog.servers.open_own, catalog.database, store)
    assert lease.acquire(10)
    try:
        owner = Owner(open_run(catalog, PipelineId.of(store), lease, threading.Event()))
        try:
            wait_for("the pipeline runs", lambda: owner.own.pipeline.vitals.state == "running" or owner.failure)
            yield owner
        finally:
            owner.close()
    finally:
        lease.release()
