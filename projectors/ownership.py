"""What lasts as long as a process owns a pipeline: its fence, source, loop, the life of its views, their backfills."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from changes.batches import Followed
from changes.errors import AnotherServerError
from changes.positions import Position
from ingest import Source
from ingest.canonical.chunks import CHUNK_BYTES, CanonicalRows, row_order
from ingest.canonical.tables import row_estimates
from ingest.read_ahead import Limits
from offsets import OffsetStore, Owner
from offsets.epochs import History
from offsets.lease import Lease
from offsets.mysql import OwnSession, Session
from projectors.backfill import Backfill, BackfillVitals
from projectors.backfill_progress import BackfillProgress
from projectors.bound_views import BoundView
from projectors.dead_letters import DeadLetters
from projectors.every_change import projections_for
from projectors.pipeline import Pipeline
from projectors.projection import followed_tables
from projectors.stores import Sink
from projectors.stores.access import Access
from projectors.stores.registry import store_named
from projectors.table_changes import TableChanges
from projectors.view_life import FitsFrom, ViewLife
from projectors.view_states import State, ViewRecord, ViewStates
from projectors.views import View
from projectors.watermarks import Watermarks
from servers.sessions import Connection

CATCH_UP_ROUND_S = 60.0


class Deployment(Protocol):
    """What the composition root knows: servers, settings, sources, stores."""

    @property
    def database(self) -> str:
        """Of viewtail's own tables."""

    @property
    def watermark_database(self) -> str:
        """Of the watermark table, on the source's primary."""

    @property
    def limits(self) -> Limits:
        """Of what a pipeline holds."""

    @property
    def chunk_rows(self) -> int:
        """The most rows of a backfill's chunk."""

    @property
    def left_out(self) -> Collection[View]:
        """Halted views whose table does not fit them."""

    def open_store(self) -> Connection: ...
    def open_primary(self) -> Connection: ...
    def open_source_read(self, identity: str) -> Connection: ...
    def views_of(self, store: str) -> list[BoundView]: ...
    def misfit(self, view: View) -> str | None: ...
    def access(self, store: str) -> Access: ...
    def history(self, pipeline: str) -> History: ...
    def raise_epoch_above(self, epoch: int) -> int: ...
    def source(
        self,
        followed: Mapping[tuple[str, str], Followed],
        history: History,
        store: str,
        fits_from: Mapping[tuple[str, str], int] | None = None,
    ) -> Source: ...


@dataclass(slots=True, kw_only=True, eq=False)
class Ownership:
    """A pipeline that this process has taken."""

    deployment: Deployment
    store: str
    owner: Owner
    lease: Lease
    stop: threading.Event
    source: Source
    sink: Sink
    offsets: OffsetStore
    offset: Position
    session: OwnSession  # of the pipeline's thread
    life: ViewLife
    watermarks: Watermarks
    pipeline: Pipeline
    open_source: Callable[[], Connection]  # the server whose changes are read, and no other
    backfills: dict[str, BackfillVitals] = field(default_factory=dict)  # that are under way
    backfill_error: str | None = None
    another_server: AnotherServerError | None = None  # was met by a backfill

    def has_caught_up(self) -> bool:
        """Wait until all that is committed now was read; False when it was stopped before."""
        mark = self.watermarks.write()
        while not self.stop.is_set():
            if self.watermarks.wait(mark, self.stop, CATCH_UP_ROUND_S) is not None:
                return True
        return False

    def row_estimates(self, views: Collection[str]) -> dict[str, int]:
        """By view, about how many rows its table has."""
        tables = {name: self.life.view(name).table for name in views}
        with closing(self.open_source()) as connection:
            found = row_estimates(connection, {(table.schema, table.name) for table in tables.values()})
        return {name: found.get((table.schema, table.name), 0) for name, table in tables.items()}

    def backfill(
        self, name: str, session: Session, row_estimate: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Backfill:
        """A backfill of one view, with a sink of its own; `session` is the thread's that runs it."""
        bound_at = time.monotonic()
        view = self.life.view(name)
        store = store_named(self.store)
        access = self.deployment.access(self.store)
        sink, rows_session = store.for_backfill(access, view, self.store, session)
        followed = followed_tables([view])
        database = self.deployment.database
        return Backfill(
            view=view,
            bound_at=bound_at,
            life=self.life.on(session),
            rows=CanonicalRows(
                view.table,
                followed[view.table.schema, view.table.name].columns,
                open_source=self.open_source,
                shows=self.watermarks.is_visible,
                stop=self.stop,
                chunk_rows=self.deployment.chunk_rows,
                chunk_bytes=chunk_bytes,
            ),
            projections=projections_for(store, [view], followed),
            sink=sink,
            progress=BackfillProgress(rows_session, database, self.owner, name, row_order(view.table)),
            dead_letters=self.pipeline.dead_letters.on(session),
            watermarks=self.watermarks,
            row_estimate=row_estimate,
            stop=self.stop,
            vitals=self.backfills.setdefault(name, BackfillVitals(view=name)),
        )

    def close(self) -> None:
        self.watermarks.close()
        self.sink.close()
        self.session.close()


def take(
    deployment: Deployment,
    store: str,
    lease: Lease,
    stop: threading.Event,
    held_back: frozenset[str] = frozenset(),
    fits_from: FitsFrom | None = None,
) -> Ownership:
    """Take a pipeline whose lease is held: raise its fence, read its offset and its views' states.

    Views that are `held_back` wait: the table as they need it is newer than the changes that come first.
    """
    fits_from = {} if fits_from is None else fits_from
    database = deployment.database
    views = deployment.views_of(store)
    history = deployment.history(store)
    session = OwnSession(deployment.open_store)
    kind = store_named(store)
    sink, offsets = kind.with_offsets(deployment.access(store), views, store)
    taken = offsets.take()
    states = ViewStates(session, database, store)
    records = states.sync(views)
    states.retire_others(records)
    running = [
        view for view in views if records[view.id].state is not State.HALTED and view.id not in held_back
    ]
    followed = followed_tables(running)
    source = deployment.source(followed, history, store, fits_from)
    life = ViewLife(
        views=views,
        running=frozenset(view.id for view in running),
        held_back=held_back & records.keys(),
        left_out=[view for view in deployment.left_out if view.store == store],
        states=states,
        projections=projections_for(kind, running, followed),
        misfit=deployment.misfit,
        fits_from=fits_from,
    )
    letters = DeadLetters(session, database, views, states.ids)
    letters.load()
    watermarks = Watermarks(deployment.open_primary, deployment.watermark_database, f"{database}:{store}")
    open_source = partial(deployment.open_source_read, history.server_identity)
    pipeline = Pipeline(
        name=store,
        source=source,
        sink=sink,
        offsets=offsets,
        life=life,
        dead_letters=letters,
        watermarks=watermarks,
        table_changes=TableChanges(
            life=life,
            sink=sink,
            offsets=offsets,
            dead_letters=letters,
            open_source=open_source,
            check_lease=lease.check,
            stop=stop,
        ),
        stop=stop,
        check_lease=lease.check,
        begin_epoch_above=partial(_begin_epoch_above, deployment, store),
        epoch=history.epoch,
        server=history.server_identity,
        limits=deployment.limits,
    )
    return Ownership(
        deployment=deployment,
        store=store,
        owner=taken.owner,
        lease=lease,
        stop=stop,
        source=source,
        sink=sink,
        offsets=offsets,
        offset=_offset(source, offsets, taken.position, history.epoch, records),
        session=session,
        life=life,
        watermarks=watermarks,
        pipeline=pipeline,
        open_source=open_source,
    )


def _begin_epoch_above(deployment: Deployment, store: str, epoch: int) -> None:
    raised = deployment.raise_epoch_above(epoch)
    raise AnotherServerError(
        f"{store} holds what was read from another server in epoch {epoch}, and this one continues it: the pipeline "
        f"is taken again under epoch {raised}"
    )


def _offset(
    source: Source,
    offsets: OffsetStore,
    saved: Position | None,
    epoch: int,
    records: Mapping[str, ViewRecord],
) -> Position:
    """Where to begin: the saved offset, whose set of transactions tells the place when it is of an earlier epoch.

    With none, and where every view is backfilled again (a new history), the stream's present end.
    """
    is_needed = any(record.state not in (State.NEW, State.HALTED) for record in records.values())
    if saved is not None and (saved.epoch == epoch or is_needed):
        return saved
    now = source.now()
    offsets.save(now)
    return now
