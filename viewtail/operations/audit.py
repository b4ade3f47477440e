"""Compares what another tool keeps in a view's place with what the declaration would put there, under live writes.

Nothing is written: neither a watermark, nor an own table, nor a claim of the place. Who keeps the place is not known,
so what differs is looked at again some seconds later (projectors/proving/second_looks.py).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

from ingest.canonical.chunks import CanonicalRows
from projectors.catalog import Catalog
from projectors.projection import Projections, followed_tables
from projectors.proving.comparison import Comparison
from projectors.proving.second_looks import Differing, SecondLooks
from projectors.proving.seen_keys import SeenKeys
from projectors.stores import AuditedPlace
from projectors.stores.registry import store_of
from projectors.throttle import Throttle
from projectors.views import BoundView
from viewtail.changes.errors import MisuseError, StopRequested
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key
from viewtail.operations.repair import MOST_LISTED
from viewtail.operations.verify import rows_about

MOST_KNOWN = 100_000  # entities that differ and are known again, should the place show them once more


@dataclass(slots=True, kw_only=True)
class AuditCounts:
    """The counts of an audit."""

    rows: int = 0  # of the table
    shown: int = 0  # keys of the place that were looked up in the table; none where both are read in one order
    differing: Counter[str] = field(default_factory=Counter)  # by kind of difference
    fields: Counter[str] = field(default_factory=Counter)  # by name, in how many entities it is wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The outcome of one audit. Holds no values but keys."""

    view: str
    table: str
    place: str
    counts: AuditCounts
    listed: Sequence[Differing]  # the first MOST_LISTED
    refused: Sequence[str]  # the first rendered keys of rows that such a view cannot have: they would be parked
    refused_count: int
    changing: int
    foreign: Sequence[str]  # names in the place that are no keys
    undeclared: Sequence[str]  # fields of the place that the declaration has not
    remarks: Sequence[str]
    again_after_s: float
    took_s: float

    @property
    def is_equal(self) -> bool:
        return not (self.counts.differing or self.refused_count or self.changing or self.is_of_nothing)

    @property
    def is_of_nothing(self) -> bool:
        """Return whether there was nothing to compare: neither a row nor a key. Most often the name is wrong."""
        counts = self.counts
        return not (counts.rows or counts.shown or counts.differing or self.changing)


def _not_noted(keys: Iterable[Key]) -> None:
    pass


@dataclass(eq=False, kw_only=True)
class Audit:
    """Audits one view.

    Args:
        say: is called with the counts and the estimate of rows, now and then.
    """

    catalog: Catalog
    view: BoundView
    stop: threading.Event
    throttle: Throttle
    again_after_s: float
    say: Callable[[AuditCounts, int], None] = lambda *_: None
    counts: AuditCounts = field(default_factory=AuditCounts)
    _listed: list[Differing] = field(default_factory=list)
    _told: set[str] = field(default_factory=set)  # the place may show a key twice

    def execute(self) -> AuditReport:
        """Compare. Raises ViewtailError, StopRequested."""
        require_plain_keys(self.view)
        began, store = time.monotonic(), store_of(self.view.view)
        place = store.audited(self.catalog.access(store), self.view)
        rows, ahead = self._rows(), self._rows()
        with closing(place.reader), closing(rows), closing(ahead):
            comparison = Comparison(
                view=self.view,
                rows=rows,
                reader=place.reader,
                projections=Projections([self.view], followed_tables([self.view])),
                now=lambda: MAX_VERSION,
                parked=frozenset,
            )
            seen = SeenKeys(comparison.name_of)
            looks = SecondLooks(comparison=comparison, again_after_s=self.again_after_s, stop=self.stop)
            estimate = rows_about(self.catalog, self.view)
            self.throttle.begin()
            self._through_table(comparison, looks, ahead, estimate, seen)
            if not comparison.sees_strangers:
                seen.settle()
                for count, strangers in comparison.orphans(MAX_VERSION, seen.unseen):
                    self.counts.shown += count
                    self._go_on(looks, strangers, 0, estimate)
            looks.finish()
            self._take(looks)
        return self._report(place, looks, time.monotonic() - began)

    def _rows(self) -> CanonicalRows:
        servers = self.catalog.servers
        return CanonicalRows(
            self.view.rows,
            self.view.needed,
            open_source=servers.open_source,
            shows=None,
            stop=self.stop,
            only=self.view.condition,
            chunk_rows=servers.limits.chunk_rows,
        )

    def _through_table(
        self, comparison: Comparison, looks: SecondLooks, rows: CanonicalRows, estimate: int, seen: SeenKeys
    ) -> None:
        """The next chunk is read, in a thread and by a reader of its own, while one is compared."""
        after: Key | None = None
        saw = _not_noted if comparison.sees_strangers else seen.add
        with ThreadPoolExecutor(1, thread_name_prefix="chunk") as reader:
            chunk = rows.after(None, MAX_VERSION)
            while True:
                following = (
                    None if chunk is None or chunk.is_last else reader.submit(rows.after, chunk.last_key, MAX_VERSION)
                )
                suspects = comparison.suspects_in(after, chunk, MAX_VERSION, saw)
                count = 0 if chunk is None else len(chunk.rows)
                self.counts.rows += count
                self._go_on(looks, suspects, count, estimate)
                if chunk is None or following is None:
                    return
                after, chunk = chunk.last_key, following.result()

    def _go_on(self, looks: SecondLooks, suspects: Sequence[Key], rows: int, estimate: int) -> None:
        looks.add(suspects)
        self._take(looks)
        self.say(self.counts, estimate)
        if self.stop.is_set():
            raise StopRequested
        self.throttle.after(rows)

    def _take(self, looks: SecondLooks) -> None:
        found, looks.found = looks.found, []
        for differing in found:
            if differing.name in self._told:
                continue
            if len(self._told) < MOST_KNOWN:
                self._told.add(differing.name)
            self.counts.differing[differing.difference.value] += 1
            self.counts.fields.update(differing.fields)
            if len(self._listed) < MOST_LISTED:
                self._listed.append(differing)

    def _report(self, place: AuditedPlace, looks: SecondLooks, took_s: float) -> AuditReport:
        return AuditReport(
            view=self.view.id,
            table=self.view.table.full_name,
            place=place.title,
            counts=self.counts,
            listed=self._listed,
            refused=sorted(looks.refused),
            refused_count=looks.refused_count,
            changing=looks.changing,
            foreign=place.reader.foreign,
            undeclared=list(place.undeclared),
            remarks=place.remarks,
            again_after_s=self.again_after_s,
            took_s=took_s,
        )


def require_plain_keys(view: BoundView) -> None:
    """Raises MisuseError for a view whose rows say which source they are of: no other tool wrote that."""
    if view.is_unique_over_sources:
        raise MisuseError(
            f"{view.id}: with unique_over_sources=True each row says which source it is of, and another tool's do not. "
            "Declare it under a new name, let `viewtail run` fill it, and lead the readers there"
        )
