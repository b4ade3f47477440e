"""The life of a pipeline's views while one process owns the pipeline.

It knows which views get changes, which are halted and which need a backfill. The pipeline and the handling of table
changes report what happened; backfills ask what to do. The states and the ways between them are in offsets/views.py.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from offsets.mysql import Session
from offsets.views import KEPT, Event, State, ViewRecord, ViewStates
from projectors.declared import declared
from projectors.outcomes import End, Ended, Outcome, again
from projectors.projection import Projections, parts_of
from projectors.stores import NOT_AS_DECLARED, Sink, guarded
from projectors.stores.owners import TO_TAKE_OVER
from projectors.stores.registry import store_of
from projectors.views import BoundView, View
from viewtail.changes.batches import Followed, Halt
from viewtail.changes.tables import Table

_log = structlog.get_logger("viewtail.pipeline")

_LET_PASS_S = 0.001
_WITHOUT_HALTED = "reading again without halted views"
Check = Callable[[], object]  # raises StoreUnavailableError where a lock was lost
FitsFrom = MutableMapping[tuple[str, str], int]
# Of a view: why its table as it is now cannot be kept in it; None where it can.
Misfit = Callable[[View], str | None]


class BackfillGate:
    """Keeps a backfill from writing rows that it read before a statement took them away; one lock a view.

    A row's delete leaves a tombstone that such a write meets. A TRUNCATE or DROP PARTITION leaves some only for the
    keys that are shown, so a backfill reads a chunk again that it read before the statement. `outside` locks a view
    against commands, and gives what checks that it still does.

    Derived rows take turns by the same locks: see `turns`.
    """

    def __init__(self, outside: Callable[[str], AbstractContextManager[Check]] = lambda _: nullcontext(int)) -> None:
        self._outside = outside
        self._checks: dict[str, Check] = {}  # by view, while it is the loop's turn
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        # By view; each count is changed by one thread alone.
        self._chunks_waiting, self._turns_waiting = Counter[str](), Counter[str]()
        self._closed_at: dict[str, float] = {}  # monotonic
        self._bound_at: dict[str, float] = {}  # monotonic

    @contextmanager
    def closed(self, view: str) -> Iterator[None]:
        """While rows are taken away: no chunk is written, and none later that was read by now."""
        with self._locks[view], self._outside(view):
            self._closed_at[view] = time.monotonic()
            yield

    @contextmanager
    def binding(self, view: str) -> Iterator[None]:
        """While a view is bound to its changed table: `closed`, and backfills from before do not go on."""
        with self.closed(view):
            self._bound_at[view] = time.monotonic()
            yield
            # A filling that began meanwhile may have the view as it was bound before.
            self._bound_at[view] = self._closed_at[view] = time.monotonic()

    @contextmanager
    def turns(self, views: Iterable[str]) -> Iterator[None]:
        """While derived rows of these views are read and written: until readers see them, nobody else writes any.

        What a backfill or a command reads meanwhile is newer than what is read here, and its version is older: it would
        be shown, and then be replaced by what was read before it.
        """
        with ExitStack() as turns:
            for view in sorted(views):
                self._turns_waiting[view] += 1
                turns.enter_context(self._locks[view])
                self._turns_waiting[view] -= 1
                self._checks[view] = turns.enter_context(self._outside(view))
                turns.callback(self._checks.pop, view)
            yield

    def check_turns(self) -> None:
        """Raises StoreUnavailableError where a command may have written meanwhile: its lock went with a session."""
        for check in self._checks.values():
            check()

    def is_bound_since(self, view: str, bound_at: float) -> bool:
        """Return whether the view was bound to a changed table after a time."""
        return bound_at <= self._bound_at.get(view, float("-inf"))

    @contextmanager
    def open(self, view: str, read_at: float) -> Iterator[bool]:
        """While a chunk is written; False where it was read before rows were taken away."""
        self._chunks_waiting[view] += 1
        with self._locks[view]:
            self._chunks_waiting[view] -= 1
            yield read_at > self._closed_at.get(view, float("-inf"))

    def let_pass(self, view: str) -> None:
        """Let who waits come first: one that takes a lock again and again would have it again before another wakes."""
        if self._chunks_waiting[view] or self._turns_waiting[view]:
            time.sleep(_LET_PASS_S)


@dataclass(slots=True, kw_only=True, eq=False)
class ViewLife:
    """Shared by the threads of one ownership; each uses a twin `on` its own session.

    Args:
        views: by id, bound to their tables; one that is bound again takes its place here.
        projections: of the views that get changes: neither halted nor held back when the pipeline was taken.
        left_out: halted views whose table does not fit them.
        fits_from: by table: statements up to this version are ignored, since no view of the table had rows then.
            Kept from one ownership to the next.
    """

    views: dict[str, BoundView]
    held_back: frozenset[str]
    left_out: Collection[View]
    states: ViewStates
    projections: Projections
    misfit: Misfit
    fits_from: FitsFrom
    gate: BackfillGate = field(default_factory=BackfillGate)
    wake: threading.Event = field(default_factory=threading.Event)  # views are to be looked at for a backfill
    seen: dict[str, State] = field(default_factory=dict)  # by view, as it last was found or made; for reports
    proven_s: dict[str, float | None] = field(default_factory=dict)  # by view, at the last look; for reports

    def on(self, session: Session) -> ViewLife:
        """The same on another thread's session."""
        return replace(self, states=self.states.on(session))

    # -- changes ------------------------------------------------------------------------------------------------

    def following(self, followed: Followed) -> list[BoundView]:
        """The views of a table that get its changes, as they are bound now."""
        ids = [view.id for view in self.projections.views_of(followed)]
        return [self.views[name] for name in ids if not self.projections.is_halted(name)]

    def halt(self, view: str, reason: str) -> None:
        """The view gets nothing from now on, until a backfill. The first reason stays."""
        if self.projections.is_halted(view):
            return
        _log.error("view halted", view=view, reason=reason)
        self.states.halt(view, reason)
        self.projections.halt(view)
        self.seen[view] = State.HALTED

    def look_for_paused(self) -> list[str]:
        """The views that an operator has paused, or released; they get nothing from now on."""
        records = self.look()
        paused = [name for name, record in records.items() if record.state in (State.PAUSED, State.RELEASED)]
        for name in paused:
            if self.gets_changes(name):
                _log.info(f"view {records[name].state}", view=name)
                self.projections.halt(name)
        kept = [name for name, record in records.items() if record.state in KEPT]
        if resumed := list(filter(self.projections.is_halted, kept)):
            # They were backfilled, too, between this look's question and its answer.
            self._backfill(Event.LOST, resumed)
        return paused

    def cannot_read(self, halts: Iterable[Halt]) -> None:
        """Halt the views that need what cannot be read exactly from here on.

        Raises Ended where other views can follow the table: the pipeline reads on without the columns of halted views,
        and views that were never filled wait until the changes from before their time are read. Nothing of the batch
        was written.
        """
        others = [self._stop_at(halt) for halt in halts]
        if any(others):
            raise again(_WITHOUT_HALTED)

    def _stop_at(self, halt: Halt) -> frozenset[str]:
        """The views that need what cannot be read follow the table no more; returns those that can.

        Raises Ended where these must wait for others.
        """
        of_table = self.projections.views_of(halt.followed)
        if not of_table:  # followed for what its foreign keys do to others
            _log.warning("what cascades from a table do is found in rounds only from here on", why=halt.reason)
        running = frozenset(view.id for view in of_table if not self.projections.is_halted(view.id))
        stopped = sorted(running & _concerned(halt, of_table))
        early = frozenset(filter(self._is_before_its_backfill, stopped))
        for name in early:  # its backfill will read what became of the table before
            _log.info("view is new: it follows its table from here on", view=name, reason=halt.reason)
            self.projections.halt(name)
            # Then: a backfill that began since it was looked at has a watermark from before what is passed over here.
            # One that begins after this finds that the view gets no changes.
            self._backfill(Event.INTERRUPTED, [name], floor=halt.version)
        if early and early != running:
            raise Ended(Outcome(End.AGAIN, _WITHOUT_HALTED, held_back=self.held_back | early))
        if early:
            # Where an XA transaction holds the offset back, reading begins before this again.
            self.fits_from[halt.followed.table.schema, halt.followed.table.name] = halt.version
        for name in stopped:
            if name not in early:
                self.halt(name, halt.reason.replace("viewtail replay VIEW", f"viewtail replay {name}"))
        return running.difference(stopped)

    def _is_before_its_backfill(self, view: str) -> bool:
        """Return whether nothing of it was backfilled and its table fits it now, so that it can begin behind this.

        A store that keeps every change has those from before: no backfill brings back what it does not get.
        """
        record, declared = self.states.read(view), self.views[view].view
        if record.state is not State.NEW or (store_of(declared).keeps_every_change and record.incarnation):
            return False
        if self.misfit(declared) is not None:
            return False
        self.wake.set()  # whoever backfills finds that it gets no changes, and has the pipeline taken again
        return True

    # -- the store ----------------------------------------------------------------------------------------------

    def refused(self, view: str, reason: str) -> None:
        """The store has no place for the view."""
        if view in self.projections.views:
            if NOT_AS_DECLARED in reason:
                reason = f"{reason}. When that is mended: start viewtail run again"
            elif TO_TAKE_OVER not in reason:  # which says all that helps
                reason = f"{reason}. When that is mended: viewtail replay {view}"
            self.halt(view, reason)

    def accepted(self, views: Collection[str]) -> None:
        """The store has places for these views that are as they are declared: whoever mended that wants them back."""

        def was_refused(record: ViewRecord) -> bool:
            return record.state is State.HALTED and NOT_AS_DECLARED in (record.reason or "")

        self._backfill(Event.REPLAYED, views, where=was_refused)

    def lost(self, views: Collection[str]) -> None:
        """The store holds nothing of these views."""
        self._lost(self.projections.views & frozenset(views))

    def place_lost(self, views: Collection[str]) -> None:
        """The store has no place of these views, and makes one: what other sources had there is gone, too."""
        self.lost_for_others(views)
        self.lost(views)

    def lost_for_others(self, views: Collection[str]) -> None:
        """`place_lost`, for the pipelines of other sources."""
        bound = [self.views[name] for name in views if name in self.views]
        if shared := [view.id for view in bound if view.source and store_of(view.view).shares_places]:
            self.states.lost_for_others(shared)

    def only_in(self, places: Mapping[str, str]) -> None:
        """Where the views are now: one that was filled in another place has lost it."""

        def is_lost(record: ViewRecord) -> bool:
            return record.incarnation not in ("", places.get(record.name, record.incarnation))

        self._lost(self.projections.views & places.keys(), where=is_lost)

    def kept_only(self, version: int) -> None:
        """The store has kept no more than this version: backfills that ended later are lost."""

        def is_lost(record: ViewRecord) -> bool:
            return record.state is State.FILLED and (record.watermark_version or 0) > version

        self._lost(self.projections.views, where=is_lost)

    # -- table changes ------------------------------------------------------------------------------------------

    def replaced(self, view: str, version: int) -> None:
        """Other rows came into its table, at this version: it is backfilled under a later watermark."""
        self._backfill(Event.REPLACED, [view], floor=version)

    def read_in_another_way(self, view: str, version: int) -> None:
        """A backfill under way begins again under a watermark above this version."""
        self._backfill(Event.INTERRUPTED, [view], floor=version)

    def bind(self, view: BoundView, sink: Sink) -> None:
        """The view is bound to its table as that is now; `sink` is the pipeline's."""
        guard = guarded(sink)
        if guard is None or guard.fit(view):
            self.states.keep(declared(view))
        else:  # its place is made again for that, and only before there are changes: the view is new
            self.states.sync([declared(view)])
            self.projections.halt(view.id)
            self.wake.set()
        # Last: where something failed, the statement comes again and finds the view as it was bound before.
        self.views[view.id] = view

    # -- backfills ----------------------------------------------------------------------------------------------

    def to_backfill(self) -> list[str]:
        """Views that are new, or whose backfill was interrupted."""
        waiting = [name for name, one in self.look().items() if one.state in (State.NEW, State.BACKFILLING)]
        return [name for name in waiting if name in self.views and name not in self.held_back]

    def look(self) -> dict[str, ViewRecord]:
        """All views as they are now, those left out too; reports say the same until the next look."""
        records = self.states.read_all({*self.views, *(view.id for view in self.left_out)})
        self.seen.update({name: record.state for name, record in records.items()})
        self.proven_s.update({name: record.proven_s for name, record in records.items()})
        return records

    def gets_changes(self, view: str) -> bool:
        """Return whether it gets changes now; a halted view gets them after the pipeline restarts."""
        return view in self.projections.views and not self.projections.is_halted(view)

    def is_brought_back(self) -> bool:
        """Return whether a view that was left out is to be backfilled and fits its table; else it is halted again."""
        records = self.states.read_all([view.id for view in self.left_out])
        is_any = False
        for view in self.left_out:
            if view.id in records and records[view.id].state is State.NEW:
                if (reason := self.misfit(view)) is None:
                    is_any = True
                else:
                    self.states.halt(view.id, f"{reason}. When that is mended: viewtail replay {view.id}")
        return is_any

    def _lost(self, views: Collection[str], **chosen: Any) -> None:
        if self.states.lost(views, **chosen):
            self.wake.set()

    def _backfill(self, event: Event, views: Collection[str], **chosen: Any) -> None:
        if self.states.move(event, views, **chosen):
            self.wake.set()


def _concerned(halt: Halt, views: Collection[BoundView]) -> set[str]:
    """The ids of a table's views that need what cannot be read.

    These are all where no view needs such a column, so that reading again leaves one out.
    """
    needing = {view.id for view in views if halt.concerns(_read_of(view, halt.followed.table))}
    return needing or {view.id for view in views}


def _read_of(view: BoundView, table: Table) -> Sequence[str]:
    """The columns of a table that a view is made of."""
    name = (table.schema, table.name)
    return next((part.columns for part in parts_of(view) if (part.table.schema, part.table.name) == name), ())
