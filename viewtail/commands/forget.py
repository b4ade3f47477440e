"""`viewtail forget`: a view that is no longer declared leaves viewtail's own tables; its data stays in the store."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from changes.errors import MisuseError
from offsets.mysql import OwnSession
from operations.status import ViewStatus, read
from projectors.stores.registry import store_named
from projectors.view_states import State, ViewStates
from viewtail import declarations, settings
from viewtail.composition import Deployment
from viewtail.sources import read_position


def forget(config: Path | None, name: str) -> int:
    """Remove what is known of a view that is not declared any more; returns the exit code."""
    loaded = settings.load(config, os.environ)
    declared = {view.id for view in declarations.load(loaded.views)}
    deployment = Deployment(settings=loaded, views=[])
    with closing(deployment.open_store()) as connection:
        pipelines = read(connection, deployment.database, read_position)
    known = {view.name: (view, pipeline) for pipeline in pipelines for view in pipeline.views}
    view, pipeline = known[_chosen(name, sorted(known), declared)]
    if pipeline.state != "down" and _is_kept(view):
        raise MisuseError(
            f"the running viewtail still keeps view {view.name}: it was started when views.py declared it. Restart "
            "`viewtail run`, then repeat this command"
        )
    session = OwnSession(deployment.open_store)
    try:
        ViewStates(session, deployment.database, pipeline.name).forget(view.name)
    finally:
        session.close()
    store, _, short = view.name.partition(":")
    left = store_named(store).left_behind(short, deployment.database)
    print(f"{view.name}: forgotten, with its dead letters. What stays is {left}")
    return 0


def _chosen(name: str, known: list[str], declared: set[str]) -> str:
    """The id of the view that is meant. Raises MisuseError where it is none, several or declared."""
    meant = {one for one in known if name in (one, one.partition(":")[2])}
    retired = sorted(meant - declared)
    if len(retired) == 1:
        return retired[0]
    if retired:
        raise MisuseError(f"{name!r} is the name of {len(retired)} views; say which: {', '.join(retired)}")
    if meant:
        raise MisuseError(
            f"view {name} is declared in views.py. Take it out there and restart `viewtail run` first"
        )
    others = ", ".join(sorted(set(known) - declared)) or "none"
    raise MisuseError(f"viewtail knows no view {name!r}; views that are no longer declared: {others}")


def _is_kept(view: ViewStatus) -> bool:
    """A `run` that is started without it says that it is new, whatever it was before, but for a halted one."""
    return view.state in (State.BACKFILLING, State.FILLED)
