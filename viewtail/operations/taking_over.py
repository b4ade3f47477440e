"""Takes the place of a view over from another deployment, because an operator says so.

look       who has the place
take_over  1. the place is noted as this deployment's: the former one halts its view, within seconds where it runs
           2. wait until it has noticed
           3. drop what it left, whose versions are of another history
           4. have the view backfilled
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from projectors.catalog import Catalog
from projectors.stores.owners import NOTICED_WITHIN_S, Places
from projectors.views import BoundView, View
from viewtail.changes.errors import MisuseError
from viewtail.operations.replay import Replayed, place_of, replay

_BEGUN = "being taken over from"
_DONE = "taken over from"


def look(catalog: Catalog, view: View) -> str | None:
    """Whose place it would be taken from, in words; None: it is this deployment's, or nobody's. Nothing is changed.

    Raises MisuseError where no other deployment can reach such a place.
    """
    with _place_of(catalog, view) as (places, bound):
        return _former(places, bound)


def take_over(catalog: Catalog, view: View, by: str, say: Callable[[str], None]) -> Replayed:
    """Do it. `by`: who asked for it; `say` is told each step. Cut off, and called again, it finishes."""
    with _place_of(catalog, view) as (places, bound):
        whose = _former(places, bound) or NOBODY_KNOWN
        places.take_over(bound, f"{_BEGUN} {whose} by {by}")
        say(f"{view.id}: its place is this deployment's; {NOTICED_WITHIN_S:.0f} s for the former one to notice")
        time.sleep(NOTICED_WITHIN_S)
        say(f"{view.id}: dropping what the former one left")
        places.clear(bound)
        places.take_over(bound, f"{_DONE} {whose} by {by}")
    return replay(catalog, [view])


NOBODY_KNOWN = "one that noted no owner"


def _former(places: Places, view: BoundView) -> str | None:
    """Return who had the place; None where nobody else had it."""
    if others := places.others(view):
        return "; ".join(sorted({other.title for other in others}))
    own = places.own(view)
    if own is not None and own.taken.startswith(_BEGUN):  # a take-over that was cut off
        return own.taken.removeprefix(_BEGUN).rpartition(" by ")[0].strip()
    return NOBODY_KNOWN if places.refusal(view) is not None else None


@contextmanager
def _place_of(catalog: Catalog, view: View) -> Iterator[tuple[Places, BoundView]]:
    with place_of(catalog, view) as found:
        if found is None:
            raise MisuseError(
                f"{view.id} is in this deployment's own database, where no other one writes: there is nothing to take "
                "over"
            )
        yield found
