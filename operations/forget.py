"""Forgets a view that is no longer declared: its row and its dead letters. Its data stays in the store."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from changes.errors import MisuseError
from offsets.mysql import OwnSession
from operations.replay import Deployment
from projectors.stores.registry import store_named
from projectors.view_states import State, ViewStates
from projectors.views import is_copy


def forget(deployment: Deployment, declared: Collection[str], name: str) -> tuple[str, str]:
    """The id of the view that was meant, and what of it stays in its store and how to drop that.

    Raises MisuseError for a view that is declared, not known, or still kept by a running viewtail.
    """
    pipelines = deployment.pipelines_now().values()
    known = [(view, pipeline) for pipeline in pipelines for view in pipeline.views]
    chosen = _chosen(name, sorted({view.name for view, _ in known if not is_copy(view.name)}), declared)
    kept = [(view, pipeline) for view, pipeline in known if view.name == chosen]
    # A `run` that was started without it has marked it new, whatever it was before, but for a halted one.
    if any(one.state != "down" and view.state in (State.BACKFILLING, State.FILLED) for view, one in kept):
        raise MisuseError(
            f"the running viewtail still keeps view {chosen}: it was started when views.py declared it. Restart "
            "`viewtail run`, then repeat this command"
        )
    with closing(OwnSession(deployment.open_store)) as session:
        for _, pipeline in kept:
            ViewStates(session, deployment.database, pipeline.name).forget(chosen)
    store, _, short = chosen.partition(":")
    return chosen, store_named(store).left_behind(short, deployment.database)


def _chosen(name: str, known: list[str], declared: Collection[str]) -> str:
    """The id of the view that is meant. Raises MisuseError where it is none, several or declared."""
    meant = {one for one in known if name in (one, one.partition(":")[2])}
    retired = sorted(meant.difference(declared))
    if len(retired) == 1:
        return retired[0]
    if retired:
        raise MisuseError(f"{name!r} is the name of {len(retired)} views; say which: {', '.join(retired)}")
    if meant:
        raise MisuseError(f"view {name} is declared in views.py. Take it out there and restart `viewtail run` first")
    others = ", ".join(sorted(set(known).difference(declared))) or "none"
    raise MisuseError(f"viewtail knows no view {name!r}; views that are no longer declared: {others}")
