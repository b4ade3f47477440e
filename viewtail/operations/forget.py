"""Forgets a view that is no longer declared: drops what it left in its store, then what viewtail's own tables know.

choose      which view is meant, and that nobody keeps it
leftover    what it left in its store, and that it is the view's and no other's: what another deployment has stays
drop        1. halt the view in viewtail's tables, so that no `run` fills it again meanwhile
            2. drop its data, a page at a time
            3. drop its dead letters and its row, last: until then the same command goes on after it was killed
forget_rows step 3 alone; the data stays
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from threading import Event

from offsets.copies import Copies, copies_left
from offsets.views import BEING_DROPPED, State, known_places
from projectors.catalog import Catalog
from projectors.failpoints import reach
from projectors.stores.leaving import Found, Leftover, Place, Retired
from projectors.stores.registry import store_named
from projectors.throttle import LiveTrafficThrottle
from viewtail.changes.copy_ids import is_copy, view_of
from viewtail.changes.errors import MisuseError, SettingsError, UnknownNameError, ViewtailError
from viewtail.changes.pipelines import DEFAULT_SOURCE, PipelineId
from viewtail.operations.status import PipelineStatus, ViewStatus, pipelines_now

MOST_PAUSE_S = 0.5  # between two pages
_LOOK_EVERY_S = 1.0  # whether somebody declared the view again


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A view that nobody declares and nobody keeps."""

    id: str
    pipelines: Sequence[str]  # that kept it
    places: Sequence[Place]
    others: dict[str, list[Place]]  # by id: views of its store that stay, declared or not
    beside: Sequence[str]  # the ids of copies beside the one that readers had
    copies: Sequence[int]  # the numbers of copies that may be beside the one that readers had
    is_released: bool  # its place is an application's: viewtail cutover
    sources: dict[str, str]  # by pipeline that viewtail's tables know, its source, where that is a topic

    @property
    def store(self) -> str:
        return self.id.partition(":")[0]

    @property
    def name(self) -> str:
        """The name within its store."""
        return self.id.partition(":")[2]


def choose(catalog: Catalog, declared: Collection[str], name: str) -> Chosen:
    """The view that is meant. Raises MisuseError for one that is declared, not known, or that a running viewtail keeps.

    Args:
        declared: ids of the views that views.py has now.
    """
    pipelines = pipelines_now(catalog)
    known = [(view, pipeline) for pipeline in pipelines.values() for view in pipeline.views]
    chosen = _chosen(name, _but_copies(known), declared)
    _require_not_kept(chosen, [(view, pipeline) for view, pipeline in known if view_of(view.name) == chosen])
    with closing(catalog.session()) as session:
        places = known_places(session, catalog.database)
        copies = copies_left(session, catalog.database, chosen)
    beside = sorted({view for view in places if view_of(view) == chosen} - {chosen})
    return Chosen(
        id=chosen,
        pipelines=[pipeline.name for view, pipeline in known if view.name == chosen],
        places=list(chain.from_iterable(places.get(view, []) for view in (chosen, *beside))),
        beside=beside,
        copies=copies,
        is_released=_is_released(chosen, known),
        others=_others(chosen, places, declared),
        sources=_other_sources(pipelines),
    )


def _is_released(chosen: str, known: Sequence[tuple[ViewStatus, PipelineStatus]]) -> bool:
    return any(view.name == chosen and view.state is State.RELEASED for view, _ in known)


def _but_copies(known: Sequence[tuple[ViewStatus, PipelineStatus]]) -> list[str]:
    return sorted({view.name for view, _ in known if not is_copy(view.name)})


def _other_sources(pipelines: Iterable[str]) -> dict[str, str]:
    """Return the source of each pipeline that does not read the default one."""
    sources = {name: PipelineId.parse(name).source for name in pipelines}
    return {name: source for name, source in sources.items() if source != DEFAULT_SOURCE}


def _require_not_kept(chosen: str, kept: Sequence[tuple[ViewStatus, PipelineStatus]]) -> None:
    """Raise MisuseError where a running viewtail keeps the view, or a copy of it: `kept` with their pipelines.

    A `run` that was started without it has marked them new, whatever they were before, but for halted ones.
    """
    if any(pipeline.state != "down" and view.state in (State.BACKFILLING, State.FILLED) for view, pipeline in kept):
        raise MisuseError(
            f"the running viewtail still keeps view {chosen}: it was started when views.py declared it. Restart "
            "`viewtail run`, then repeat this command"
        )


def _others(chosen: str, places: dict[str, list[Place]], declared: Collection[str]) -> dict[str, list[Place]]:
    """Return the views of its store that stay, declared or not, by id."""
    store = f"{chosen.partition(':')[0]}:"
    known = {view: of for view, of in places.items() if view.startswith(store) and view_of(view) != chosen}
    return {view: [] for view in declared if view.startswith(store)} | known


def by_hand(catalog: Catalog, chosen: Chosen) -> str:
    """Return what the view leaves in its store, and how an operator drops it."""
    if chosen.is_released:
        return "its table, which is the application's"
    return store_named(chosen.store).left_behind(chosen.name, catalog.database)


def of_others(catalog: Catalog, chosen: Chosen) -> Sequence[str]:
    """Return what is in the view's place and belongs to another deployment, a line each, where its store can tell."""
    with suppress(ViewtailError), closing(leftover(catalog, chosen)) as leaving:
        return leaving.of_others()
    return ()


def why_only_by_hand(chosen: Chosen, declared: Collection[str]) -> str | None:
    """Return why viewtail cannot tell what of the store is the view's; None where it can."""
    if not store_named(chosen.store).needs_place:
        return None
    if unknown := sorted(view for view, places in chosen.others.items() if view in declared and not places):
        return (
            f"viewtail has not noted yet where the data of {', '.join(unknown)} is, and must not drop any of that. "
            "Start `viewtail run` once, then repeat this command"
        )
    return None


def leftover(catalog: Catalog, chosen: Chosen) -> Leftover:
    """Return what the view left in its store; the caller closes it."""
    store = store_named(chosen.store)
    retired = Retired(
        name=chosen.name,
        places=chosen.places,
        others=chosen.others,
        copies=chosen.copies,
        read_by=[name for name, source in chosen.sources.items() if source == chosen.name],
    )
    try:
        return store.leftover(catalog.access(store), retired)
    except SettingsError as error:
        raise MisuseError(
            f"{error}, where view {chosen.id} left its data. To forget it without dropping that: --keep-data"
        ) from None


def drop(catalog: Catalog, chosen: Chosen, leaving: Leftover, say: Callable[[int], None]) -> Found:
    """Drop all of it; `say` is told how many were dropped so far. Returns what is still there, and why.

    Raises MisuseError where somebody declared the view again meanwhile.
    """
    with closing(catalog.session()) as session:
        pipelines = [Copies(session, catalog.database, name) for name in chosen.pipelines]
        for copies in pipelines:
            for view in (chosen.id, *chosen.beside):
                copies.states.halt(view, BEING_DROPPED)
        leaving.drop(_AfterPage(lambda: _check_halted(pipelines, chosen.id), say))
        rest = leaving.look()
        if rest.dropped:
            raise MisuseError(
                f"view {chosen.id}: somebody wrote into it while it was dropped: {'; '.join(rest.dropped)}. Is another "
                "viewtail running with it? Stop that, then repeat this command"
            )
        _release(catalog, chosen)
        reach("before forgetting")
        for copies in pipelines:
            if not copies.forget_dropped(chosen.id):
                raise _declared_again(chosen.id)
    return rest


def forget_rows(catalog: Catalog, chosen: Chosen) -> None:
    """Drop its row and its dead letters; what it shows stays in its store, where it is nobody's from now on."""
    with suppress(SettingsError):  # without an address of the store nobody can be told
        _release(catalog, chosen)
    with closing(catalog.session()) as session:
        for name in chosen.pipelines:
            Copies(session, catalog.database, name).forget(chosen.id)


def _release(catalog: Catalog, chosen: Chosen) -> None:
    store = store_named(chosen.store)
    if (places := store.places(catalog.access(store), chosen.id)) is not None:
        with closing(places):
            places.release(chosen.id)


class _AfterPage:
    """Called after each page: waits as long as the page took, so that the store has half of its time for others."""

    def __init__(self, check: Callable[[], None], say: Callable[[int], None]) -> None:
        self._check, self._say = check, say
        self._count = 0
        self._checked_at = time.monotonic()
        self._throttle = LiveTrafficThrottle(stop=Event(), rest=1.0, most_rested_s=MOST_PAUSE_S)

    def __call__(self, count: int) -> None:
        self._count += count
        reach("after drop" if count else "before drop")
        self._say(self._count)
        if time.monotonic() - self._checked_at > _LOOK_EVERY_S:
            self._check()
            self._checked_at = time.monotonic()
        self._throttle.after(count)


def _check_halted(pipelines: Sequence[Copies], view: str) -> None:
    for copies in pipelines:
        if not copies.states.is_being_dropped(view):
            raise _declared_again(view)


def _declared_again(view: str) -> MisuseError:
    return MisuseError(
        f"view {view} was declared again while it was dropped, and viewtail fills it. Some of its data is gone: run "
        f"viewtail replay {view} if you want to keep it"
    )


def _chosen(name: str, known: list[str], declared: Collection[str]) -> str:
    """The id of the view that is meant. Raises MisuseError where it is none, several or declared."""
    meant = {view for view in known if name in (view, view.partition(":")[2])}
    retired = sorted(meant.difference(declared))
    if len(retired) == 1:
        return retired[0]
    if retired:
        raise MisuseError(f"{name!r} is the name of {len(retired)} views; say which: {', '.join(retired)}")
    if meant:
        raise MisuseError(f"view {name} is declared in views.py. Take it out there and restart `viewtail run` first")
    others = ", ".join(sorted(set(known).difference(declared))) or "none"
    raise UnknownNameError(f"viewtail knows no view {name!r}; views that are no longer declared: {others}")
