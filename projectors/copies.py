"""What the owner of a pipeline does about copies: it swaps them, begins new ones, drops old ones.

Copies are swapped as the pipeline is taken: nothing writes then, and readers read on. Where a store moves entities one
by one, a thread does it beside the pipeline (`Mover`). A new copy gets its place before the pipeline is taken with it,
and an old one loses it after the pipeline was taken without it: changes need not wait for that. offsets/copies.py has
what is asked for and what comes next; each step can be done again, so the next owner finishes what one was killed in.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from offsets import Owner
from offsets.copies import (
    DEFAULT_KEEP_S,
    SWAP_AGAIN_S,
    Copies,
    Copy,
    Event,
    Stage,
    Step,
    next_by_itself,
)
from offsets.keepers import known_views
from offsets.mysql import Session
from offsets.views import KEPT, State
from projectors import failpoints
from projectors.catalog import Catalog
from projectors.read_and_written import ViewCopies, copies_of
from projectors.stores import GradualSwapping, NoCopy, Store, Swapping
from projectors.stores.registry import store_of
from projectors.throttle import Throttle
from projectors.views import BoundView
from viewtail.changes.errors import DeclarationError, StoreError, ViewtailError
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.retrying import reaction_to

_log = structlog.get_logger("viewtail.rebuild")

NOTE_MOVED_EVERY_S = 2.0
_ASKS = {Step.SWAP: Event.SWAP_ASKED, Step.DROP: Event.DROP_ASKED}


@dataclass(frozen=True, slots=True)
class Placed:
    """The views of a pipeline with their places in the store."""

    views: list[BoundView]  # that get changes: live ones, and copies beside
    copies: Mapping[str, Copy]  # by view, those that have a copy beside the live one


@dataclass(slots=True, eq=False)
class OwnedCopies:
    """The copies of the views of one pipeline, for the process that holds its lease.

    Each method raises StoreUnavailableError; called again, it goes on.
    """

    catalog: Catalog
    pipeline: str
    store: Store
    views: Sequence[BoundView]  # as they are declared

    @property
    def is_beside(self) -> bool:
        """Return whether changed declarations are built beside what readers have."""
        return self.catalog.servers.limits.on_change == "beside"

    def placed(self) -> Placed:
        """The declared views where they are now, each copy by the declaration that keeps it.

        First it swaps the copies for which that is asked, and begins those of changed declarations.
        """
        _say_ignored(self.views, is_beside=self.is_beside)
        with closing(self.catalog.session()) as session:
            records = self._records(session)
            while self._asked(records):
                self._do_asked(records)
            self._begin_changed(records)
            return _placed(self._known(records))

    def _begin_changed(self, records: Copies) -> None:
        """Begin the copies of changed declarations. Raises DeclarationError where one can have none."""
        known = self._known(records)
        for view, copies in known.items():
            if copies.is_chosen_again:
                records.choose_again(view)
        if self.is_beside:
            _say_in_place(self.store, known.values())
        changed = [known[view] for view in sorted(known) if known[view].is_changed]
        for copies in changed:  # all were asked about before `run` began, but views.py may have changed since
            if why := _no_copy(records, copies.declared):
                raise DeclarationError(f"view {copies.declared.id}: {why}")
        for copies in changed:
            _begin(records, copies)

    def make_places(self) -> None:
        """Make the places of copies that are to come, so that the pipeline need not stand still for that.

        Whatever is wrong with one is told when the pipeline is taken.
        """
        access = self.catalog.access(self.store)
        with closing(self.catalog.session()) as session:
            for copy, known in self._beside(self._records(session)):
                if copy.stage is Stage.BUILDING and known.beside is None:
                    sink, _ = self.store.for_backfill(access, known.pair()[1], self.pipeline, session)
                    with closing(sink), suppress(ViewtailError):
                        sink.prepare()

    def drop_places(self) -> None:
        """Drop the copies that are to go, and that the pipeline was taken without."""
        with closing(self._swapping()) as swapping, closing(self.catalog.session()) as session:
            records = self._records(session)
            for copy, known in self._beside(records):
                if copy.stage is Stage.DROPPING:
                    _drop(swapping, records, copy, known)

    def _records(self, session: Session) -> Copies:
        return Copies(session, self.catalog.database, self.pipeline)

    def _known(self, records: Copies) -> dict[str, ViewCopies]:
        built_beside = {view.id for view in self.views if self.is_beside and not self.store.no_copies(view.view)}
        # The copies of a view that changes in place are all of its present declaration.
        views = [
            view if view.id in built_beside else replace(view, previous=None, previous_misfit="") for view in self.views
        ]
        return copies_of(records, views, built_beside)

    def _beside(self, records: Copies) -> list[tuple[Copy, ViewCopies]]:
        return [(known.copy, known) for known in self._known(records).values() if known.copy is not None]

    def _asked(self, records: Copies) -> list[tuple[Copy, ViewCopies]]:
        """What is to be done while nothing writes; first, copies that are there for nothing any more are to go.

        They can wait, but where they make room for that of a changed declaration. What is asked of a view that is not
        declared waits until it is, or is forgotten.
        """
        for copy, known in self._beside(records):
            if known.is_over:
                records.move(copy, Event.DROP_ASKED)
        beside = self._beside(records)
        due = records.due([copy for copy, _ in beside])
        asked = (both for both in beside if both[0] in due)
        return [(copy, known) for copy, known in asked if copy.stage is not Stage.DROPPING or known.is_changed]

    def _do_asked(self, records: Copies) -> None:
        offsets = self.catalog.access(self.store).background_offsets(self.pipeline)
        with closing(self._swapping()) as swapping:
            try:
                owner = offsets.take().owner  # whoever had the pipeline before writes nothing from now on
            finally:
                offsets.abandon()
            for copy, known in self._asked(records):
                if copy.stage is Stage.DROPPING:
                    _drop(swapping, records, copy, known)
                else:
                    _swap(swapping, records, copy, known, owner)

    def _swapping(self) -> Swapping:
        swapping = self.store.swapping(self.catalog.access(self.store))
        assert swapping is not None, "no command asks it of another store"
        return swapping


def ask_for_next(records: Copies, copies: Iterable[Copy], owned_s: float) -> bool:
    """Ask for what the owner of a pipeline does with copies by itself; returns whether there is anything.

    A swap that could not be done is asked for again after SWAP_AGAIN_S of this ownership.
    """
    due = [(copy, _ASKS[step]) for copy in copies if (step := next_by_itself(copy)) in _ASKS]
    due = [(copy, event) for copy, event in due if event is Event.DROP_ASKED or not copy.note or owned_s > SWAP_AGAIN_S]
    for copy, event in due:
        records.move(copy, event)
    return bool(due)


def _placed(known: Mapping[str, ViewCopies]) -> Placed:
    written = [view for copies in known.values() for view in copies.places().written]
    beside = {
        view: copies.copy
        for view, copies in known.items()
        if copies.copy is not None and copies.copy.stage is not Stage.DROPPING
    }
    return Placed(sorted(written, key=lambda view: view.is_beside), beside)


def _say_ignored(views: Iterable[BoundView], *, is_beside: bool) -> None:
    for view in views:
        if view.view.previous is None:
            continue
        why = view.previous_misfit if is_beside else "run.on_change is in_place"
        if why:
            _log.warning("previous= has no effect", view=view.id, reason=why)


def _say_in_place(store: Store, known: Iterable[ViewCopies]) -> None:
    for copies in known:
        view = copies.declared
        if (why := store.no_copies(view.view)) and copies.is_redeclared:
            _log.warning("a changed view is not built beside the one that readers have", view=view.id, reason=why)


def _no_copy(records: Copies, view: BoundView) -> NoCopy | None:
    """Why no copy of a changed declaration can be built beside what readers have; None: it can."""
    if not PipelineId.parse(records.pipeline).is_default:
        return NoCopy(
            why="its declaration changed, run.on_change is beside, and a view that is kept from Kafka, or from several "
            "sources, has no second copy: several pipelines keep it",
            mend="Declare it under another name, and forget this one when nobody reads it any more; or have it changed "
            "in place: VIEWTAIL_RUN__ON_CHANGE=in_place; or take the change back",
        )
    if paused := records.paused_parts(view.id):
        return NoCopy(
            why=f"its declaration changed, run.on_change is beside, and {paused[0]}: a copy would lack its rows",
            mend=f"First: {paused[0].to_go_on}. Or have it changed in place: VIEWTAIL_RUN__ON_CHANGE=in_place",
        )
    places = records.states.last_places()
    reason = store_of(view.view).no_copy_from(view, places[view.id]) if view.id in places else None
    return reason and replace(reason, why=f"{reason.why} (run.on_change is beside)")


def refusals(
    session: Session, database: str, views: Sequence[BoundView], keeps: Callable[[str], bool]
) -> dict[str, NoCopy]:
    """By id, changed views for which `on_change = "beside"` cannot be followed.

    Asked before any pipeline is taken, so that whoever keeps the views goes on. `keeps`: whether a pipeline is of the
    source that is read. Nothing is written. Raises StoreUnavailableError.
    """
    refused: dict[str, NoCopy] = {}
    by_id = {view.id: view for view in views if not store_of(view.view).no_copies(view.view)}
    for (pipeline, name), row in sorted(known_views(session, database).items()):
        if name not in by_id or not keeps(pipeline):
            continue
        view = by_id[name]
        if ViewCopies(declared=view, live=row).is_redeclared:
            why = _no_copy(Copies(session, database, pipeline), view)
            refused |= {} if why is None else {name: why}
    return refused


def check_changes(catalog: Catalog) -> None:
    """Raises DeclarationError for changed views that are to be built beside what readers have, and cannot be."""
    if catalog.servers.limits.on_change != "beside":
        return
    with closing(catalog.session()) as session:
        refused = refusals(session, catalog.database, catalog.views, catalog.servers.keeps)
    if refused:
        raise DeclarationError("\n".join(f"view {view}: {why}" for view, why in refused.items()))


def _begin(records: Copies, known: ViewCopies) -> None:
    """Readers keep what an earlier declaration made, and a copy of the new one is begun beside it."""
    assert known.live is not None, "its declaration changed"
    view, is_begun = known.declared.id, known.copy is not None
    if known.is_kept and is_begun:
        return
    # A pause is not ended by that: a paused copy gets no changes already.
    gets_nothing = {State.PAUSED, State.HALTED} if is_begun else {State.PAUSED}
    if not known.is_kept and known.live.state not in gets_nothing:
        records.states.halt(view, _why_halted(known.declared))
    if known.is_declined:
        _log.info("readers keep the previous declaration, to which an operator went back", view=view)
    else:
        records.begin(view, "run.on_change", DEFAULT_KEEP_S, is_automatic=True)


def _why_halted(view: BoundView) -> str:
    now, why = datetime.now(UTC), ""
    if view.previous_misfit:
        why = f"previous= does not fit the table ({view.previous_misfit}), so it cannot keep it. "
    elif view.previous is not None:
        why = "Its previous= is not the declaration that made it, so it cannot keep it. "
    return (
        f"its declaration changed: it gets no changes since {now:%Y-%m-%d %H:%M:%S} UTC. {why}The new one is built "
        "beside it, compared with its table, and then swapped in by itself (run.on_change). What keeps it from that: "
        "viewtail status"
    )


def _swap(swapping: Swapping, records: Copies, copy: Copy, known: ViewCopies, owner: Owner) -> None:
    live, beside = known.pair()
    failpoints.reach(f"before {copy.stage}")
    upto = 0 if known.beside is None else known.beside.watermark_version or 0
    try:
        _require_kept(known)
        _require_swappable(swapping, copy, live, beside)
        is_done = swapping.swap(live, beside, upto, is_adopting=copy.is_adopting)
    except StoreError as error:
        records.move(copy, Event.REFUSED, note=str(error))
        _log.warning("the copies were not swapped", view=copy.view, reason=str(error))
        return
    failpoints.reach(f"after {copy.stage}")
    # What an earlier declaration made gets changes only where that is there as previous=; else nobody could go back.
    gets_changes = known.is_kept and known.live is not None and known.live.state in KEPT
    is_kept = gets_changes or not copy.is_automatic or copy.stage is not Stage.SWAPPING
    records.swapped(copy, owner, None if is_done else upto, is_kept=is_kept)
    _log.info("readers see the other copy", view=copy.view, copy=copy.copy, former=copy.live)


def _require_kept(known: ViewCopies) -> None:
    """Raises StoreError where an application has what readers had."""
    if known.live is not None and known.live.state is State.RELEASED:
        raise StoreError(f"its table was {known.live.reason}")


def _require_swappable(swapping: Swapping, copy: Copy, live: BoundView, beside: BoundView) -> None:
    """Raises StoreError where readers must not get the copy beside; one that they have by now is noted all the same."""
    if copy.state is State.FILLED and not copy.is_paused:
        return
    if copy.state is not None and swapping.is_swapped(live, beside):
        return
    if copy.is_paused:
        raise StoreError(f"the view is paused, so readers keep what they have. First: viewtail resume {copy.view}")
    raise StoreError(f"the copy beside is {copy.state or 'not there'}, and only a filled one may be read")


def _drop(swapping: Swapping, records: Copies, copy: Copy, known: ViewCopies) -> None:
    failpoints.reach(f"before {copy.stage}")
    live, beside = known.pair()
    note = None
    try:
        swapping.drop(live, beside)
    except StoreError as error:
        note = str(error)
        _log.warning("a copy was not dropped", view=beside.id, reason=note)
    else:
        failpoints.reach("after dropping")
        _log.info("copy dropped", view=beside.id)
    records.dropped(copy, note)


class _Moved:
    """Counts the entities that were moved, those before a restart too, and notes it now and then."""

    def __init__(self, records: Copies, one: Copy, throttle: Throttle) -> None:
        self._records, self._view, self._throttle = records, one.view, throttle
        self._count = one.moved_count
        self._noted_at = time.monotonic()

    def after(self, count: int) -> None:
        """A step moved so many; returns when the next one may begin."""
        self._count += count
        now = time.monotonic()
        if now - self._noted_at > NOTE_MOVED_EVERY_S:
            self._noted_at = now
            with suppress(ViewtailError):  # it tells how far it is, and nothing else
                self._records.note_moved(self._view, self._count)
        self._throttle.after(count)


@dataclass(eq=False, kw_only=True)
class Mover:
    """Moves the entities of copies that change places one after the other, beside a pipeline that writes both.

    Args:
        views: of the pipeline, as they are bound.
        throttle_of: returns what limits the move of a view.
        wake: the owner is to look at what copies there are.
    """

    catalog: Catalog
    pipeline: str
    store: Store
    views: Collection[BoundView]
    throttle_of: Callable[[BoundView], Throttle]
    stop: threading.Event
    wake: threading.Event

    def run(self) -> None:
        """Until all are moved, or it is stopped. A store that is away is waited for."""
        waiting = deque(view for view in self.views if view.move is not None and view.is_beside)
        attempt = 0
        while waiting and not self.stop.is_set():
            try:
                if self._move(waiting[0]):
                    waiting.popleft()
            except ViewtailError as error:
                _log.warning("copies wait on their way", view=waiting[0].view.id, reason=str(error))
                attempt += 1
                self.stop.wait(reaction_to(error).pause_s(attempt))

    def _move(self, former: BoundView) -> bool:
        swapping = self.store.swapping(self.catalog.access(self.store))
        assert isinstance(swapping, GradualSwapping), "it has begun to"
        throttle = self.throttle_of(former)
        with closing(swapping), closing(self.catalog.session()) as session:
            records = Copies(session, self.catalog.database, self.pipeline)
            one = records.read().get(former.view.id)
            if one is None:  # somebody else finished it
                return True
            moved = _Moved(records, one, throttle)
            throttle.begin()
            if not swapping.move(former, self.stop, moved.after):
                return False
            records.move(one, Event.MOVED)
        self.wake.set()
        _log.info("the copy is whole in its place", view=former.view.id)
        return True
