"""What the owner of a pipeline does about copies: it swaps them, begins new ones, drops old ones.

Copies are swapped as the pipeline is taken: nothing writes then, and readers read on. Where a store moves entities one
by one, a thread does it beside the pipeline (`Mover`). A new copy gets its place before the pipeline is taken with it,
and an old one loses it after the pipeline was taken without it: changes need not wait for that. What is asked for is in
offsets/copies.py; each step can be done again, so an owner that was killed in it is followed by one that finishes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from offsets import Owner
from offsets.copies import ASKED, DEFAULT_KEEP_S, Choice, Copies, Copy, Event, Stage
from offsets.keepers import known_views
from offsets.mysql import Session
from offsets.views import KEPT, State, ViewRecord, ViewStates
from projectors import failpoints
from projectors.binding import declaration_hash, made_by
from projectors.catalog import Catalog
from projectors.read_and_written import Places, places
from projectors.stores import GradualSwapping, NoCopy, Store, Swapping
from projectors.stores.registry import store_of
from projectors.throttle import Throttle
from projectors.views import BoundView
from viewtail.changes.copy_ids import view_of
from viewtail.changes.errors import DeclarationError, StoreError, ViewtailError
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.retrying import reaction_to

_log = structlog.get_logger("viewtail.rebuild")

NOTE_MOVED_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Placed:
    """The views of a pipeline with their places in the store."""

    views: list[BoundView]  # that get changes: live ones, and copies beside
    copies: Mapping[str, Copy]  # by view, those that have a copy beside the live one


def placed(catalog: Catalog, pipeline: str, store: Store, views: Sequence[BoundView]) -> Placed:
    """The declared views where they are now, each copy by the declaration that keeps it; the lease must be held.

    First it swaps the copies for which that is asked. Raises StoreUnavailableError; taken again, it goes on.
    """
    is_beside = catalog.servers.limits.on_change == "beside"
    _say_ignored(views, is_beside=is_beside)
    with closing(catalog.session()) as session:
        copies = _owned(catalog, pipeline, store, views, session)
        while asked := copies.asked():
            _do(catalog, pipeline, store, copies, asked)
        copies.forget_choices()
        if is_beside:
            _say_in_place(store, copies)
        changed = copies.changed()
        for view in changed:  # all of them were asked about before `run` began, but views.py may have changed since
            if why := _no_copy(copies.records.states, pipeline, copies.views[view]):
                raise DeclarationError(f"view {view}: {why}")
        for view in changed:
            _begin(copies, view)
        return copies.placed()


def refusals(session: Session, database: str, views: Sequence[BoundView], *, is_default: bool) -> dict[str, NoCopy]:
    """By id, changed views for which `on_change = "beside"` cannot be followed.

    Asked before any pipeline is taken, so that whoever keeps the views goes on. `is_default`: one pipeline of the
    binlog keeps each view; else those of topics do. Nothing is written. Raises StoreUnavailableError.
    """
    found: dict[str, NoCopy | None] = {}
    by_id = {view.id: view for view in views if not store_of(view.view).no_copies(view.view)}
    for (pipeline, name), one in sorted(known_views(session, database).items()):
        if name not in by_id or PipelineId.parse(pipeline).is_default != is_default:
            continue
        if _is_changed(by_id[name], one):
            found[name] = _no_copy(ViewStates(session, database, pipeline), pipeline, by_id[name])
    return {name: one for name, one in found.items() if one is not None}


def make_places(catalog: Catalog, pipeline: str, store: Store, views: Sequence[BoundView]) -> None:
    """Make the places of copies that are to come, so that the pipeline need not stand still for that when it is taken.

    Whatever is wrong with one is told then.
    """
    access = catalog.access(store)
    with closing(catalog.session()) as session:
        copies = _owned(catalog, pipeline, store, views, session)
        for one in copies.beside.values():
            if one.stage is Stage.BUILDING and one.copy_id not in copies.known:
                sink, _ = store.for_backfill(access, copies.pair(one)[1], pipeline, session)
                with closing(sink), suppress(ViewtailError):
                    sink.prepare()


def drop_places(catalog: Catalog, pipeline: str, store: Store, views: Sequence[BoundView]) -> None:
    """Drop the copies that are to go, and that the pipeline was taken without.

    Raises StoreUnavailableError; called again, it goes on.
    """
    swapping = store.swapping(catalog.access(store))
    assert swapping is not None, "no command asks it of another store"
    with closing(swapping), closing(catalog.session()) as session:
        copies = _owned(catalog, pipeline, store, views, session)
        for one in copies.beside.values():
            if one.stage is Stage.DROPPING:
                _drop_one(swapping, copies, one)


def _owned(catalog: Catalog, pipeline: str, store: Store, views: Sequence[BoundView], session: Session) -> _Owned:
    is_beside = catalog.servers.limits.on_change == "beside"
    of_two = {view.id for view in views if is_beside and not store.no_copies(view.view)}
    return _Owned(Copies(session, catalog.database, pipeline), views, of_two)


class _Owned:
    """The copies of a pipeline that is being taken, and which declaration made each."""

    def __init__(self, records: Copies, views: Sequence[BoundView], of_two: Set[str]) -> None:
        """`of_two`: the ids of views whose copies may be of two declarations; others change in place."""
        self.records = records
        self.views = {
            view.id: view if view.id in of_two else replace(view, previous=None, previous_misfit="") for view in views
        }
        self._of_two = of_two
        self.look()

    def look(self) -> None:
        """At what is in the tables now."""
        self.known: Mapping[str, ViewRecord] = self.records.states.declarations()
        self.beside = {name: one for name, one in self.records.read().items() if name in self.views}
        self._choices = self.records.choices()

    def forget_choices(self) -> None:
        """Where views.py is back at what readers have, nothing is declined any more."""
        for view in self._choices.keys() & self.views.keys() & self.known.keys():
            if self.maker(view) is self.views[view]:
                self.records.choose_again(view)

    def maker(self, name: str) -> BoundView | None:
        """The view by the declaration that made a copy, which is to be found by its id; None: views.py has it no more.

        One that is not there yet is made by the present declaration.
        """
        view = self.views[view_of(name)]
        return made_by(view, self.known[name].declaration) if name in self.known else view

    def changed(self) -> list[str]:
        """Views that readers read, and whose live copy another declaration made than the present one."""
        known = self._of_two & self.known.keys()
        return [view for view in sorted(known) if self._is_changed(view)]

    def _is_changed(self, view: str) -> bool:
        one = self.beside.get(view)
        # A view that was resumed is new, and readers have it all the same, until the copy that was begun comes.
        is_begun = one is not None and one.is_automatic and one.stage is Stage.BUILDING and self.maker(view) is None
        return is_begun or _is_changed(self.views[view], self.known[view])

    def is_halted(self, view: str) -> bool:
        return self.known[view].state == State.HALTED

    def is_declined(self, view: str) -> bool:
        """Whether an operator went back from the present declaration to the one that made the live copy."""
        if self.maker(view) is None:
            return False
        declared = declaration_hash(self.views[view].view)
        return self._choices.get(view) == Choice(self.known[view].declaration, declared)

    def asked(self) -> list[Copy]:
        """What is to be done while nothing writes, with copies that are there for nothing any more.

        Those that are to go can wait, but where they make room for the copy of a changed declaration.

        What is asked of a view that is not declared waits until it is, or is forgotten.
        """
        self.look()
        for one in self.beside.values():
            if {one.view, one.copy_id} <= self.known.keys() and self._is_over(one):
                self.records.move(one, Event.DROP_ASKED)
        self.look()
        in_the_way = self.changed()
        asked = (one for one in self.beside.values() if one.stage in ASKED)
        return [one for one in asked if one.stage is not Stage.DROPPING or one.view in in_the_way]

    def _is_over(self, one: Copy) -> bool:
        live, copy = self.known[one.view], self.known[one.copy_id]
        if one.stage is Stage.BUILDING:  # the change that it is for was taken back, and nothing was missed
            is_present = self.maker(one.view) is self.views[one.view]
            return one.is_automatic and is_present and live.state != State.HALTED
        if one.stage is not Stage.KEPT:
            return False
        if one.view in self.changed():  # it makes room for that of the changed declaration, unless it is that
            return self.maker(one.copy_id) is not self.views[one.view] or not self.is_declined(one.view)
        return self.maker(one.copy_id) is None and copy.declaration != live.declaration

    def places(self, view: str) -> Places:
        """Where the view's copies are; a live one that nothing can keep up to date is not written."""
        is_left = self.maker(view) is None and view in self.changed()
        return places(self.views[view], self.known, self.beside.get(view), is_left=is_left)

    def pair(self, one: Copy) -> tuple[BoundView, BoundView]:
        """The copy that readers see, and the one beside it."""
        found = self.places(one.view)
        assert found.beside is not None, "there is a record of it"
        return found.read, found.beside

    def placed(self) -> Placed:
        """Where all are that get changes."""
        self.look()
        written = [view for name in self.views for view in self.places(name).written]
        kept = {name: one for name, one in self.beside.items() if one.stage is not Stage.DROPPING}
        return Placed(sorted(written, key=lambda view: view.is_beside), kept)


def _say_ignored(views: Sequence[BoundView], *, is_beside: bool) -> None:
    for view in views:
        if view.view.previous is None:
            continue
        why = view.previous_misfit if is_beside else "run.on_change is in_place"
        if why:
            _log.warning("previous= has no effect", view=view.id, reason=why)


def _say_in_place(store: Store, copies: _Owned) -> None:
    for name in sorted(copies.views.keys() & copies.known.keys()):
        view = copies.views[name]
        if (why := store.no_copies(view.view)) and _is_changed(view, copies.known[name]):
            _log.warning("a changed view is not built beside the one that readers have", view=name, reason=why)


def _is_changed(view: BoundView, known: ViewRecord) -> bool:
    """Whether another declaration made the live copy than the present one."""
    maker = made_by(view, known.declaration)
    # One that is new shows nothing that readers could rely on, unless its declaration is there to fill it.
    return maker is not view and (maker is not None or known.state != State.NEW)


def _no_copy(states: ViewStates, pipeline: str, view: BoundView) -> NoCopy | None:
    """Why no copy of a changed declaration can be built beside what readers have; None: it can."""
    if not PipelineId.parse(pipeline).is_default:
        return NoCopy(
            why="its declaration changed, run.on_change is beside, and a view that is kept from Kafka has no second "
            "copy: several pipelines keep it",
            mend="Declare it under another name, and forget this one when nobody reads it any more; or have it changed "
            "in place: VIEWTAIL_RUN__ON_CHANGE=in_place; or take the change back",
        )
    places = states.last_places()
    found = store_of(view.view).no_copy_from(view, places[view.id]) if view.id in places else None
    return found and replace(found, why=f"{found.why} (run.on_change is beside)")


def _begin(copies: _Owned, view: str) -> None:
    """Readers keep what an earlier declaration made, and a copy of the new one is begun beside it."""
    is_kept, is_begun = copies.maker(view) is not None, view in copies.beside
    # A pause is not ended by that: a paused copy gets no changes already.
    if not is_kept and copies.known[view].state != State.PAUSED and not (is_begun and copies.is_halted(view)):
        copies.records.states.halt(view, _why_halted(copies.views[view]))
    if is_begun:
        if not is_kept:
            copies.records.adopt(view)
    elif is_kept and copies.is_declined(view):
        _log.info("readers keep the previous declaration, to which an operator went back", view=view)
    else:
        copies.records.begin(view, "run.on_change", DEFAULT_KEEP_S, is_automatic=True)


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


def _do(catalog: Catalog, pipeline: str, store: Store, copies: _Owned, asked: Sequence[Copy]) -> None:
    access = catalog.access(store)
    swapping = store.swapping(access)
    assert swapping is not None, "no command asks it of another store"
    offsets = access.background_offsets(pipeline)
    with closing(swapping):
        try:
            owner = offsets.take().owner  # whoever had the pipeline before writes nothing from now on
        finally:
            offsets.abandon()
        for one in asked:
            _do_one(swapping, copies, one, owner)


def _do_one(swapping: Swapping, copies: _Owned, one: Copy, owner: Owner) -> None:
    if one.stage is Stage.DROPPING:
        _drop_one(swapping, copies, one)
        return
    records, (live, beside) = copies.records, copies.pair(one)
    failpoints.reach(f"before {one.stage}")
    record = records.states.read_all([beside.id]).get(beside.id)
    upto = 0 if record is None else record.watermark_version or 0
    try:
        _require_swappable(swapping, one, live, beside, record)
        is_done = swapping.swap(live, beside, upto)
    except StoreError as error:
        records.move(one, Event.REFUSED, note=str(error))
        _log.warning("the copies were not swapped", view=one.view, reason=str(error))
        return
    failpoints.reach(f"after {one.stage}")
    # What an earlier declaration made gets changes only where that is there as previous=; else nobody could go back.
    gets_changes = copies.maker(one.view) is not None and copies.known[one.view].state in KEPT
    is_kept = gets_changes or not one.is_automatic or one.stage is not Stage.SWAPPING
    records.swapped(one, owner, None if is_done else upto, is_kept=is_kept)
    _log.info("readers see the other copy", view=one.view, copy=one.copy, former=one.live)


def _require_swappable(
    swapping: Swapping, one: Copy, live: BoundView, beside: BoundView, record: ViewRecord | None
) -> None:
    """Raises StoreError where readers must not get the copy beside; one that they have by now is noted all the same."""
    is_ready = record is not None and record.state is State.FILLED and not one.is_paused
    if is_ready or (record is not None and swapping.is_swapped(live, beside)):
        return
    if one.is_paused:
        raise StoreError(f"the view is paused, so readers keep what they have. First: viewtail resume {one.view}")
    state = "not there" if record is None else record.state
    raise StoreError(f"the copy beside is {state}, and only a filled one may be read")


def _drop_one(swapping: Swapping, copies: _Owned, one: Copy) -> None:
    failpoints.reach(f"before {one.stage}")
    copies.records.dropped(one, _drop(swapping, *copies.pair(one)))


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


def _drop(swapping: Swapping, live: BoundView, beside: BoundView) -> str | None:
    try:
        swapping.drop(live, beside)
    except StoreError as error:
        _log.warning("a copy was not dropped", view=beside.id, reason=str(error))
        return str(error)
    failpoints.reach("after dropping")
    _log.info("copy dropped", view=beside.id)
    return None


def check_changes(catalog: Catalog) -> None:
    """Raises DeclarationError for changed views that are to be built beside what readers have, and cannot be."""
    if catalog.servers.limits.on_change != "beside":
        return
    is_default = not catalog.servers.kind.is_shared_out
    with closing(catalog.session()) as session:
        found = refusals(session, catalog.database, catalog.views, is_default=is_default)
    if found:
        raise DeclarationError("\n".join(f"view {view}: {why}" for view, why in found.items()))
