"""Takes the place of a view over from another deployment, because an operator says so.

look       who has the place
take_over  1. the place is noted as this deployment's: the former one halts its view, within seconds where it runs
           2. wait until it has noticed
           3. drop what it left, whose versions are of another history
           4. have the view backfilled
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from changes.errors import DeclarationError, MisuseError
from offsets.mysql import OwnSession
from operations.replay import Deployment, Replayed, replay
from projectors.rebuilds import Rebuilds, where_live
from projectors.stores.owners import NOTICED_WITHIN_S, Places
from projectors.stores.registry import store_of
from projectors.view_states import known_views
from projectors.views import BoundView, View

_BEGUN = "being taken over from"
_DONE = "taken over from"


def look(deployment: Deployment, view: View) -> str | None:
    """Whose place it would be taken from, in words; None: it is this deployment's, or nobody's. Nothing is changed.

    Raises MisuseError where no other deployment can reach such a place.
    """
    with closing(_places(deployment, view)) as places:
        return _former(places, _bound(deployment, view))


def take_over(deployment: Deployment, view: View, by: str, say: Callable[[str], None]) -> Replayed:
    """Do it. `by`: who asked for it; `say` is told each step. Cut off, and called again, it finishes."""
    bound = _bound(deployment, view)
    with closing(_places(deployment, view)) as places:
        whose = _former(places, bound) or NOBODY_KNOWN
        places.take_over(bound, f"{_BEGUN} {whose} by {by}")
        say(f"{view.id}: its place is this deployment's; {NOTICED_WITHIN_S:.0f} s for the former one to notice")
        time.sleep(NOTICED_WITHIN_S)
        say(f"{view.id}: dropping what the former one left")
        places.clear(bound)
        places.take_over(bound, f"{_DONE} {whose} by {by}")
    return replay(deployment, [view])


NOBODY_KNOWN = "one that noted no owner"


def _former(places: Places, view: BoundView) -> str | None:
    """Who had the place; None where nobody else had it."""
    if others := places.others(view):
        return "; ".join(sorted({one.title for one in others}))
    own = places.own(view)
    if own is not None and own.taken.startswith(_BEGUN):  # a take-over that was cut off
        return own.taken.removeprefix(_BEGUN).rpartition(" by ")[0].strip()
    return NOBODY_KNOWN if places.refusal(view) is not None else None


def _places(deployment: Deployment, view: View) -> Places:
    store = store_of(view)
    found = store.places(deployment.access(store), view.id)
    if found is None:
        raise MisuseError(
            f"{view.id} is in this deployment's own database, where no other one writes: there is nothing to take over"
        )
    return found


def _bound(deployment: Deployment, view: View) -> BoundView:
    """The view where it is in its store."""
    bound = next((one for one in deployment.views_of(view.store) if one.view.id == view.id), None)
    if bound is None:
        raise DeclarationError(f"view {view.id} does not fit its table: {deployment.misfit(view)}")
    with closing(OwnSession(deployment.open_store)) as session:
        keepers = [pipeline for pipeline, name in known_views(session, deployment.database) if name == view.id]
        if not keepers:
            return bound
        (live,) = where_live(Rebuilds(session, deployment.database, keepers[0]), [bound])
    return live
