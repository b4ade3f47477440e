"""Says what the next `viewtail run` would backfill, what that reads, and about how long it takes. Nothing is started.

The time is an estimate: some rows are read and projected here with the view's own code, and what earlier backfills
reached is noted with their views. How fast a store takes rows only those know.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from ingest.canonical.chunks import CanonicalRows
from ingest.canonical.tables import sizes_now
from offsets.views import State, ViewRecord
from projectors.catalog import Catalog
from projectors.every_change import projections_for
from projectors.projection import followed_tables
from projectors.stores.registry import store_of
from projectors.views import BoundView
from viewtail.changes.copy_ids import is_copy, view_of
from viewtail.operations.changed_views import changed

SAMPLE_ROWS = 2_000
_LEAST_ROWS = 1_000  # of a backfill that tells how fast the next one is: a smaller one mostly waited
_LEAST_S = 0.5
Known = Mapping[tuple[str, str], ViewRecord]  # by pipeline and view


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a backfill of a view reads, and about how long it takes."""

    tables: tuple[str, ...]
    row_count: int  # about, of the table whose rows are read in order
    byte_count: int | None  # about, of all the tables; None: not known
    order: tuple[str, ...]  # the columns by which the rows are read, in chunks
    chunk_rows: int  # at most
    expected_s: float | None  # None: nothing tells, as of rows that come from a topic
    is_least: bool  # how fast the store takes rows is not known
    basis: str  # of the estimate, in words
    refused_count: int = 0  # rows of the sample that could not be projected, and would be parked
    is_from_topic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FillPlan:
    """One backfill that the next run would begin, or go on with."""

    view: str  # or a copy of it
    why: str
    store: str  # that is written
    is_beside: bool  # into a second copy, which gives way to live changes
    reading: Reading


def planned(catalog: Catalog, known: Known) -> list[FillPlan]:
    """Every backfill of the catalog's views that the next run would begin; `known`: as `Catalog.known_views`."""
    found = []
    for view in catalog.views:
        of_view = {
            name: record for (pipeline, name), record in known.items()
            if view_of(name) == view.view.id and catalog.servers.keeps(pipeline)
        }  # fmt: skip
        for name, why, is_beside in _due(catalog, view, of_view):
            done = of_view[name].row_count if name in of_view and of_view[name].state is State.BACKFILLING else 0
            store = store_of(view.view)
            reading = reading_of(catalog, view, known, done=done)
            found.append(FillPlan(view=name, why=why, store=store.title, is_beside=is_beside, reading=reading))
    return found


def _due(catalog: Catalog, view: BoundView, known: Mapping[str, ViewRecord]) -> Iterator[tuple[str, str, bool]]:
    """The copies of a view that are to be filled, why, and whether beside the one that readers have."""
    live = known.get(view.view.id)
    if live is None:
        yield view.view.id, "it is new", False
    elif live.state is State.BACKFILLING and not changed(view, live):
        yield live.name, "its backfill was interrupted, and goes on", False
    elif live.state is State.NEW:
        yield live.name, "it is marked for a backfill", False
    elif live.state not in (State.PAUSED, State.RELEASED) and (what := changed(view, live)):
        has_copies = not store_of(view.view).no_copies(view.view)
        is_beside = (
            catalog.servers.limits.on_change == "beside"
            and has_copies
            and live.state is State.FILLED
            and "declaration" in what
        )
        yield live.name, f"{what} since it was filled", is_beside
    for name, record in known.items():
        if is_copy(name) and record.state in (State.NEW, State.BACKFILLING):
            yield name, "it is a second copy that is being built", True


def reading_of(catalog: Catalog, view: BoundView, known: Known, *, done: int = 0) -> Reading:
    """Estimate a backfill of one view; `done` rows of it are read already."""
    servers = catalog.servers
    with closing(servers.open_source()) as connection:
        tables = sorted({*view.view.entity.tables})
        sizes = sizes_now(connection, tables)
    rows = max(0, sizes.get(view.view.entity.schema_and_table, (0, None))[0] - done)
    byte_counts = [sizes[table][1] for table in tables if table in sizes]
    is_from_topic = servers.kind.is_shared_out and servers.source().section.fill_from == "topic"
    sample = None if is_from_topic else _sampled(catalog, view)
    expected_s, is_least, basis = _expected(view, rows, sample, known)
    return Reading(
        tables=tuple(f"{schema}.{name}" for schema, name in tables),
        row_count=rows,
        byte_count=None if None in byte_counts else sum(count or 0 for count in byte_counts),
        order=tuple(view.table.paging_key),
        chunk_rows=servers.limits.chunk_rows,
        expected_s=expected_s,
        is_least=is_least,
        basis=basis,
        refused_count=0 if sample is None else sample.refused_count,
        is_from_topic=is_from_topic,
    )


# -- how long ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sample:
    row_count: int
    seconds: float
    refused_count: int


def _sampled(catalog: Catalog, view: BoundView) -> _Sample:
    """Read and project rows as a backfill does: the second chunk, if there is one; the first opens a session."""
    store = store_of(view.view)
    projections = projections_for(store, [view], followed_tables([view]))
    rows = CanonicalRows(
        view.rows,
        view.needed,
        open_source=catalog.servers.open_source,
        shows=None,
        stop=threading.Event(),
        chunk_rows=SAMPLE_ROWS,
        only=view.condition,
        without=view.paused,
    )
    key, sample = None, _Sample(0, 0.0, 0)
    with closing(rows):
        for _ in range(2):
            began = time.perf_counter()
            chunk = rows.after(key, 0)
            if chunk is None:
                break
            projected = projections.of_rows(view.id, chunk.rows, 0)
            sample = _Sample(len(chunk.rows), time.perf_counter() - began, len(projected.parked))
            key = chunk.last_key
            if chunk.is_last:
                break
    return sample


def _expected(view: BoundView, rows: int, sample: _Sample | None, known: Known) -> tuple[float | None, bool, str]:
    """Return how long it takes, in seconds, whether at least, and what that is from."""
    if sample is None:
        return None, False, "its rows come from a topic, which is read from its beginning"
    if not rows or not sample.row_count:
        return 0.0, False, "the table has no rows"
    pace = sample.row_count / max(sample.seconds, 1e-6)
    told = f"a sample of {sample.row_count:,} rows was read and projected at {pace:,.0f} rows/s"
    own, of_store = _reached(view, known)
    limit = max((record.rows_a_second for (_, name), record in known.items() if name == view.view.id), default=0)
    paces = [pace, *([limit] if limit else [])]
    if own is not None:
        paces.append(own)
        told += f"; the last backfill of the view reached {own:,.0f} rows/s"
    elif of_store is not None:
        paces.append(of_store)
        told += f"; backfills of other views in the store reached {of_store:,.0f} rows/s"
    else:
        told += "; how fast the store takes rows is not known, since no backfill into it is recorded"
    if limit:
        told += f"; an operator asked for {limit:,} rows/s at most"
    return rows / min(paces), own is None and of_store is None, told


def _reached(view: BoundView, known: Known) -> tuple[float | None, float | None]:
    """How many rows a second earlier backfills read: of this view, and of others in its store."""
    own, others = _paces(
        [record for (_, name), record in known.items() if name == view.view.id]
    ), _paces(
        [record for (_, name), record in known.items() if name.partition(":")[0] == view.view.store]
    )  # fmt: skip
    return (median(own) if own else None), (median(others) if others else None)


def _paces(records: Collection[ViewRecord]) -> Sequence[float]:
    return [
        record.row_estimate / record.fill_s
        for record in records
        if record.state is State.FILLED and record.row_estimate >= _LEAST_ROWS and (record.fill_s or 0.0) >= _LEAST_S
        if record.fill_s
    ]
