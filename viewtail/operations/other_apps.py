"""Finds another app that keeps views of its own with the same database of viewtail's own tables.

Two processes with one views.py are one deployment: the second stands by. So are they while a changed views.py is rolled
out, which shares most of its views with the one before. An app with views of its own needs a database of its own: with
this one, each of the two would stand by for the other, and leave the other's views behind when it takes over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from offsets.views import State
from viewtail.changes.copy_ids import view_of
from viewtail.operations.status import PipelineStatus

_MOST_NAMES = 3
MEND = (
    "If that is another app, give this one a database of its own: VIEWTAIL_MYSQL__URL=mysql://USER:PASSWORD@HOST:PORT/"
    "NAME. If it is this app with the views.py before this one, it stands back when it is restarted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherApp:
    """A viewtail that runs with the same database, and keeps other views."""

    database: str
    processes: tuple[str, ...]  # host and process id
    views: tuple[str, ...]  # that it keeps, and that are not declared here

    def __str__(self) -> str:
        names = ", ".join(self.views[:_MOST_NAMES])
        more = f" and {len(self.views) - _MOST_NAMES} more" if len(self.views) > _MOST_NAMES else ""
        which = f" ({', '.join(self.processes)})" if self.processes else ""
        return f"another viewtail{which} runs with the database {self.database}, and keeps other views: {names}{more}"


def kept_now(pipelines: Iterable[PipelineStatus]) -> dict[str, str | None]:
    """Return the views that running pipelines keep, by id, and the process that does."""
    return {
        view_of(view.name): pipeline.owner
        for pipeline in pipelines
        if pipeline.state != "down"
        for view in pipeline.views
        if view.state in (State.BACKFILLING, State.FILLED)
    }


def other_app(pipelines: Iterable[PipelineStatus], database: str, declared: Collection[str]) -> OtherApp | None:
    """Return None where nobody runs, or whoever runs keeps about the views that are declared here."""
    kept = kept_now(pipelines)
    shared = kept.keys() & set(declared)
    if not kept or not declared or 2 * len(shared) >= min(len(kept), len(set(declared))):
        return None
    others = sorted(kept.keys() - shared)
    processes = sorted({owner for view in others if (owner := kept[view]) is not None})
    return OtherApp(database=database, processes=tuple(processes), views=tuple(others))
