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
from offsets.copies import Copies
from offsets.mysql import Session
from offsets.views import State, ViewRecord
from projectors.catalog import Catalog
from projectors.every_change import projections_for
from projectors.projection import followed_tables
from projectors.read_and_written import ViewCopies, copies_of
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
    is_refused: bool = False  # the run halts the view instead: read again, its topic would bring no row that is newer


def planned(catalog: Catalog, session: Session, known: Known) -> list[FillPlan]:
    """Every backfill of the catalog's views that the next run would begin; `known`: as `Catalog.known_views`."""
    return [plan for view in catalog.views for plan in _of_view(catalog, session, view, known)]


def _of_view(catalog: Catalog, session: Session, view: BoundView, known: Known) -> Iterator[FillPlan]:
    of_view = {
        name: (pipeline, record) for (pipeline, name), record in known.items()
        if view_of(name) == view.view.id and catalog.servers.keeps(pipeline)
    }  # fmt: skip
    pipeline, live = of_view.get(view.id, ("", None))
    copies = ViewCopies(declared=view, live=None) if live is None else _copies(catalog, session, pipeline, view)
    records = {name: record for name, (_, record) in of_view.items()}
    is_changed = live is not None and bool(changed(view, live))
    for name, why, is_beside in _due(copies, live, records):
        reading = reading_of(catalog, view, known, done=_done(records.get(name)))
        yield FillPlan(
            view=name,
            why=why,
            store=store_of(view.view).title,
            is_beside=is_beside,
            reading=reading,
            is_refused=is_changed and reading.is_from_topic and not is_beside,
        )


def _done(record: ViewRecord | None) -> int:
    """How many rows a backfill that goes on has read already."""
    return 0 if record is None or record.state is not State.BACKFILLING else record.row_count


def _copies(catalog: Catalog, session: Session, pipeline: str, view: BoundView) -> ViewCopies:
    """As the pipeline's next owner sees them."""
    is_beside = catalog.servers.limits.on_change == "beside" and not store_of(view.view).no_copies(view.view)
    records = Copies(session, catalog.database, pipeline)
    return copies_of(records, [view], {view.id} if is_beside else ())[view.id]


def _due(
    copies: ViewCopies, live: ViewRecord | None, known: Mapping[str, ViewRecord]
) -> Iterator[tuple[str, str, bool]]:
    """The copies of a view that are to be filled, why, and whether beside the one that readers have.

    A copy has a record from when its place is made; before that it is the view's own name that stands for it.
    """
    view = copies.declared
    if copies.is_changed:
        if copies.beside is None and not copies.is_declined:
            yield view.id, "its declaration changed since it was filled", True
    elif why := _why_in_place(view, live):
        yield view.id, why, False
    for name, record in known.items():
        if is_copy(name) and record.state in (State.NEW, State.BACKFILLING):
            yield name, "it is a second copy that is being built", True


def _why_in_place(view: BoundView, live: ViewRecord | None) -> str:
    """Why the copy that readers have is to be filled; '' where it is not."""
    if live is None:
        return "it is new"
    if live.state is State.NEW:
        return "it is marked for a backfill"
    if what := changed(view, live):
        return "" if live.state is State.RELEASED else f"{what} since it was filled"
    return "its backfill was interrupted, and goes on" if live.state is State.BACKFILLING else ""


def reading_of(catalog: Catalog, view: BoundView, known: Known, *, done: int = 0) -> Reading:
    """Estimate a backfill of one view; `done` rows of it are read already."""
    servers = catalog.servers
    with closing(servers.open_source()) as connection:
        tables = sorted({*view.view.entity.tables})
        sizes = sizes_now(connection, tables)
    rows = max(0, sizes.get(view.view.entity.schema_and_table, (0, None))[0] - done)
    byte_counts = [sizes[table][1] for table in tables if table in sizes]
    is_from_topic = servers.kind.is_filled_from_stream(servers.source(), view.view.entity.schema_and_table)
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
    basis = f"a sample of {sample.row_count:,} rows was read and projected at {pace:,.0f} rows/s"
    reached, of_what = _reached(view, known)
    if reached is None:
        basis += "; how fast the store takes rows is not known, since no backfill into it is recorded"
    else:
        basis += f"; {of_what} reached {reached:,.0f} rows/s"
    limit = max((record.rows_a_second for (_, name), record in known.items() if name == view.view.id), default=0)
    if limit:
        basis += f"; an operator asked for {limit:,} rows/s at most"
    return rows / min(filter(None, (pace, limit, reached))), reached is None, basis


def _reached(view: BoundView, known: Known) -> tuple[float | None, str]:
    """How many rows a second earlier backfills read, and which ones: the view's, or others in its store."""
    if own := _paces([record for (_, name), record in known.items() if name == view.view.id]):
        return median(own), "the last backfill of the view"
    others = _paces([record for (_, name), record in known.items() if name.partition(":")[0] == view.view.store])
    return (median(others) if others else None), "backfills of other views in the store"


def _paces(records: Collection[ViewRecord]) -> Sequence[float]:
    return [
        record.row_estimate / record.fill_s
        for record in records
        if record.state is State.FILLED and record.row_estimate >= _LEAST_ROWS and (record.fill_s or 0.0) >= _LEAST_S
        if record.fill_s
    ]
