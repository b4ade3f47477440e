"""What the owner of a pipeline does about copies as it takes the pipeline: it swaps them, drops them, begins new ones.

Nothing writes then, and readers read on. Where a store moves entities one by one, a thread does it beside the pipeline
(`Mover`). What is asked for is in projectors/rebuilds.py; each step can be done again,
so an owner that was killed in it is followed by one that finishes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

import structlog

from changes.errors import StoreError, ViewtailError
from changes.retrying import reaction_to
from ingest.limits import Limits
from offsets import Owner
from offsets.mysql import OwnSession
from projectors import failpoints
from projectors.binding import declaration_hash
from projectors.rebuilds import ASKED, Rebuild, Rebuilds, Stage, where_live
from projectors.stores import GradualSwapping, Store, Swapping
from projectors.stores.access import Access
from projectors.view_states import State, ViewStates
from projectors.views import BoundView
from servers.sessions import Connection

_log = structlog.get_logger("viewtail.rebuild")

REST = 1.0  # between two steps of a move, as a share of what the last one took: the pipeline's writes come first


class Deployment(Protocol):
    """What is asked of the composition root."""

    @property
    def database(self) -> str: ...  # of viewtail's own tables
    @property
    def limits(self) -> Limits: ...  # with what to do about a changed declaration
    def open_store(self) -> Connection: ...
    def access(self, store: Store) -> Access: ...


@dataclass(frozen=True, slots=True)
class Placed:
    """The views of a pipeline with their places in the store."""

    views: list[BoundView]  # that get changes: live ones, and copies beside
    copies: Mapping[str, Rebuild]  # by view, those that have a copy beside the live one


def placed(deployment: Deployment, pipeline: str, store: Store, views: Sequence[BoundView]) -> Placed:
    """The declared views where they are now; the lease must be held.

    First it does what is asked for: swaps copies, drops them. Raises StoreUnavailableError; taken again, it goes on.
    """
    by_id = {view.id: view for view in views}
    with closing(OwnSession(deployment.open_store)) as session:
        rebuilds = Rebuilds(session, deployment.database, pipeline)
        single = {view.id: why for view in views if (why := store.no_copies(view.view))}
        if deployment.limits.on_change == "beside":
            _say_in_place(rebuilds.states, views, single)
            may_change = [view for view in views if view.id not in single]
        else:
            may_change = []
        _drop_copies(rebuilds, single)
        changed = _changed(rebuilds.states, may_change)
        while asked := _asked(rebuilds, by_id, changed):
            _do(deployment, pipeline, store, by_id, rebuilds, asked)
            changed = _changed(rebuilds.states, may_change)
        for view in sorted(changed):
            _set_aside(rebuilds, view)
        found = where_live(rebuilds, views)
        beside = {one.view: one for one in rebuilds.read().values() if one.view in by_id}
    copies = [replace(view, copy=beside[view.id].copy, is_beside=True) for view in found if view.id in beside]
    return Placed([*(view for view in found if view.id not in changed), *copies], beside)


def _changed(states: ViewStates, views: Sequence[BoundView]) -> set[str]:
    """Views that readers read, and whose declaration is another than the live copy was made with."""
    known = states.declarations([view.id for view in views])
    return {
        view.id
        for view in views
        if view.id in known
        and known[view.id].state != State.NEW
        and known[view.id].declaration not in ("", declaration_hash(view.view))
    }


def _say_in_place(states: ViewStates, views: Sequence[BoundView], single: Mapping[str, str]) -> None:
    """Readers of a view that has no second copy see it change."""
    for view in sorted(_changed(states, [view for view in views if view.id in single])):
        _log.warning("the declaration changed, and the view is backfilled in place", view=view, reason=single[view])


def _drop_copies(rebuilds: Rebuilds, single: Collection[str]) -> None:
    """As they are declared now these views have no second copy: the one of an earlier declaration goes."""
    for one in rebuilds.read().values():
        if one.view in single:
            rebuilds.ask(one.view, set(Stage) - {Stage.ENDED, Stage.MOVING}, Stage.DROPPING)


def _asked(rebuilds: Rebuilds, views: Collection[str], changed: Collection[str]) -> list[Rebuild]:
    """What is to be done now; a former copy goes to make room for that of a changed declaration.

    What is asked of a view that is not declared waits until it is, or is forgotten.
    """
    for one in rebuilds.read().values():
        if one.view in changed and one.stage is Stage.KEPT:
            rebuilds.ask(one.view, {Stage.KEPT}, Stage.DROPPING)
    return [one for one in rebuilds.read().values() if one.stage in ASKED and one.view in views]


def _set_aside(rebuilds: Rebuilds, view: str) -> None:
    """Readers keep what an earlier declaration made, and a copy of the new one is begun beside it."""
    if view not in rebuilds.read():
        now = datetime.now(UTC)
        rebuilds.states.halt(
            view,
            f"its declaration changed: it gets no changes since {now:%Y-%m-%d %H:%M:%S} UTC. The new one is built "
            "beside it, and readers get that when it is filled (run.on_change). You need do nothing",
        )
        rebuilds.begin(view, "run.on_change", 0, is_automatic=True)


def _do(
    deployment: Deployment,
    pipeline: str,
    store: Store,
    views: Mapping[str, BoundView],
    rebuilds: Rebuilds,
    asked: Sequence[Rebuild],
) -> None:
    access = deployment.access(store)
    swapping = store.swapping(access)
    assert swapping is not None, "no command asks it of another store"
    offsets = access.background_offsets(pipeline)
    with closing(swapping):
        try:
            owner = offsets.take().owner  # whoever had the pipeline before writes nothing from now on
        finally:
            offsets.abandon()
        for one in asked:
            _do_one(swapping, views[one.view], rebuilds, one, owner)


def _do_one(swapping: Swapping, view: BoundView, rebuilds: Rebuilds, one: Rebuild, owner: Owner) -> None:
    live, beside = replace(view, copy=one.live), replace(view, copy=one.copy, is_beside=True)
    failpoints.reach(f"before {one.stage}")
    if one.stage is Stage.DROPPING:
        rebuilds.dropped(one, _drop(swapping, live, beside))
        return
    record = rebuilds.states.read_all([beside.id]).get(beside.id)
    if record is None or record.state is not State.FILLED:
        state = "not there" if record is None else record.state
        rebuilds.could_not(one, f"the copy beside is {state}, and only a filled one may be read")
        return
    upto = record.watermark_version or 0
    try:
        is_done = swapping.swap(live, beside, upto)
    except StoreError as error:
        rebuilds.could_not(one, str(error))
        _log.warning("the copies were not swapped", view=one.view, reason=str(error))
        return
    failpoints.reach(f"after {one.stage}")
    rebuilds.swapped(one, owner, None if is_done else upto)
    _log.info("readers see the other copy", view=one.view, copy=one.copy, former=one.live)


@dataclass(eq=False, kw_only=True)
class Mover:
    """Moves the entities of copies that change places one after the other, beside a pipeline that writes both.

    Args:
        views: of the pipeline, as they are bound.
        wake: the owner is to look at what rebuilds there are.
    """

    deployment: Deployment
    pipeline: str
    store: Store
    views: Collection[BoundView]
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
        swapping = self.store.swapping(self.deployment.access(self.store))
        assert isinstance(swapping, GradualSwapping), "it has begun to"
        with closing(swapping):
            if not swapping.move(former, self.stop, self._rest):
                return False
        with closing(OwnSession(self.deployment.open_store)) as session:
            rebuilds = Rebuilds(session, self.deployment.database, self.pipeline)
            rebuilds.moved(former.view.id)
        self.wake.set()
        _log.info("the copy is whole in its place", view=former.view.id)
        return True

    def _rest(self, seconds: float) -> None:
        self.stop.wait(seconds * REST)


def _drop(swapping: Swapping, live: BoundView, beside: BoundView) -> str | None:
    try:
        swapping.drop(live, beside)
    except StoreError as error:
        _log.warning("a copy was not dropped", view=beside.id, reason=str(error))
        return str(error)
    failpoints.reach("after dropping")
    _log.info("copy dropped", view=beside.id)
    return None
