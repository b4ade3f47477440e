"""Puts the filling of one view of a pipeline together: its strategy, its rows, its throttle."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import closing
from functools import partial

from ingest.canonical.chunks import CHUNK_BYTES, CanonicalRows, row_order
from ingest.canonical.tables import row_estimates
from offsets.backfills import SharedProgress
from offsets.mysql import Session
from projectors.every_change import projections_for
from projectors.fills.filling import Filling, FillVitals, Strategy
from projectors.fills.guarded import GuardedFill
from projectors.fills.published import PublishedFill
from projectors.pipeline_run import PipelineRun
from projectors.projection import followed_tables
from projectors.stores import guarded
from projectors.stores.registry import store_named
from projectors.views import BoundView


def open_filling(
    run: PipelineRun, name: str, session: Session, row_estimate: int = 0, chunk_bytes: int = CHUNK_BYTES
) -> Filling:
    """A filling of one view; `session` is the thread's that runs it."""
    bound_at = time.monotonic()
    view = run.life.views[name]
    strategy, rows_session = _strategy(run, view, session)
    is_awaited = run.is_awaited(view)
    vitals = run.fills.under_way.setdefault(name, FillVitals(view=name))
    vitals.row_estimate = row_estimate
    return Filling(
        view=view,
        bound_at=bound_at,
        life=run.life.on(session),
        rows=_rows(run, view, chunk_bytes, is_awaited=is_awaited),
        projections=projections_for(store_named(run.identity.store), [view], followed_tables([view])),
        strategy=strategy,
        progress=_progress(run, view, rows_session),
        dead_letters=run.pipeline.dead_letters.on(session),
        watermarks=run.pipeline.watermarks,
        stop=run.stop,
        vitals=vitals,
        throttle_of=partial(run.throttle, view),
        reads_ahead=run.windows is None and is_awaited,
    )


def _strategy(run: PipelineRun, view: BoundView, session: Session) -> tuple[Strategy, Session]:
    """How the view is filled, and the session that makes its rows durable."""
    if run.windows is not None:
        return PublishedFill(run.windows, view.id), session
    store = store_named(run.identity.store)
    sink, rows_session = store.for_backfill(run.catalog.access(store), view, run.identity.name, session)
    guard = guarded(sink)
    assert guard is not None, "a store keeps every change, or versions"
    return GuardedFill(guard), rows_session


def _rows(run: PipelineRun, view: BoundView, chunk_bytes: int, *, is_awaited: bool) -> CanonicalRows:
    most_rows = run.catalog.servers.limits.chunk_rows
    return CanonicalRows(
        view.rows,
        view.needed,
        open_source=run.pipeline.open_source,
        shows=run.pipeline.watermarks.is_visible,
        stop=run.stop,
        only=view.condition,
        without=view.paused,
        chunk_rows=most_rows if is_awaited else min(most_rows, store_named(run.identity.store).unhurried_rows),
        chunk_bytes=chunk_bytes,
    )


def _progress(run: PipelineRun, view: BoundView, session: Session) -> SharedProgress:
    def others() -> set[str]:
        return {one.name for one in run.catalog.partitions(run.identity) if one != run.identity}

    order = row_order(view.table)
    source = run.catalog.servers.named_source
    return SharedProgress(session, run.catalog.database, run.owner, view.id, order, source, others=others)


def row_estimates_of(run: PipelineRun, views: Collection[str]) -> dict[str, int]:
    """By view, about how many rows its table has."""
    tables = {name: run.life.views[name].table for name in views}
    with closing(run.pipeline.open_source()) as connection:
        estimates = row_estimates(connection, {(table.schema, table.name) for table in tables.values()})
    return {name: estimates.get((table.schema, table.name), 0) for name, table in tables.items()}
