"""All that `viewtail check` looks at: servers and views (check.py), and the deployment as it is set and as it ran."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from ingest import History
from projectors.catalog import Catalog
from projectors.pipeline_run import begins_at
from projectors.stores.registry import needed
from projectors.views import View
from viewtail.changes.errors import HistoryGoneError, ViewtailError
from viewtail.changes.findings import Finding, fail, warn
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.positions import Position
from viewtail.operations.check import check, needed_servers
from viewtail.operations.other_apps import MEND, other_app
from viewtail.operations.status import pipelines_now, positions_now

_READ_WITHIN_S = 5.0


def check_deployment(catalog: Catalog, views: Sequence[View], declared: Collection[str]) -> list[Finding]:
    """Every finding; `declared` are the ids of all views that are declared, those too that are not kept from here."""
    servers = needed_servers(catalog, views)
    with suppress(ViewtailError):  # a server that is away is a finding of its own
        servers = replace(servers, source=catalog.source_access())
    return [
        *check(servers, views),
        *_offsets(catalog, views),
        *_other_app(catalog, declared),
        *_previous(catalog, views),
    ]


def _previous(catalog: Catalog, views: Sequence[View]) -> Iterator[Finding]:
    """Warn of each previous= that has no effect under the settings."""
    why, mend = "readers see the view change, and there is no way back", "VIEWTAIL_RUN__ON_CHANGE=beside"
    seen = "previous= has no effect while VIEWTAIL_RUN__ON_CHANGE is in_place"
    for view in views:
        if view.previous is not None and catalog.servers.limits.on_change == "in_place":
            yield warn("views", f"view {view.id}", seen, why, mend)


def _offsets(catalog: Catalog, views: Sequence[View]) -> Iterator[Finding]:
    """Ask, as a reader does at its start, whether the source still has the changes behind each offset."""
    kind, stores = catalog.servers.kind, {store.name for store in needed(views)}
    if not kind.can_check_offsets:
        return
    positions: dict[str, Position] = {}
    with suppress(ViewtailError):  # a server that is away is a finding already
        history, known, positions = catalog.history_beside("check"), pipelines_now(catalog), positions_now(catalog)
    for name, position in sorted(positions.items()):
        pipeline = PipelineId.parse(name)
        if (
            pipeline.store not in stores
            or not catalog.servers.keeps(name)
            or type(position) is not type(kind.before_all)
        ):
            continue
        views_of = known[name].views if name in known else ()
        if begins_at(position, history.epoch, (view.state for view in views_of)):
            yield from _offset(history, name, position)


def _offset(history: History, name: str, position: Position) -> Iterator[Finding]:
    """Ask for one pipeline's offset. Where a binlog is purged, the rest may have to be read: not for long here."""
    what, reader = f"offset of {name}", history.reader({}, {})
    why = "`viewtail run` looks at its start, and halts where changes are missing"
    is_late = threading.Event()

    def interrupt() -> None:
        is_late.set()
        reader.interrupt()

    timer = threading.Timer(_READ_WITHIN_S, interrupt)
    timer.start()
    try:
        reader.check(position)
    except HistoryGoneError as error:
        seen, _, mend = str(error).partition(". ")
        yield fail("source", what, seen, "`viewtail run` halts there", mend)
    except ViewtailError as error:
        yield warn("source", what, f"not known: {error}", why, "viewtail check")
    else:
        if is_late.is_set():
            seen = f"not known: binlogs behind it are purged, and to read the others takes above {_READ_WITHIN_S:.0f} s"
            yield warn("source", what, seen, why, "viewtail run")
    finally:
        timer.cancel()


def _other_app(catalog: Catalog, declared: Collection[str]) -> Iterator[Finding]:
    """Warn if another app uses the database of viewtail's own tables."""
    with suppress(ViewtailError):  # a server that is away is a finding already
        other = other_app(pipelines_now(catalog).values(), catalog.database, declared)
        if other is not None:
            why = "`viewtail run` stands by for it, and when it takes over, the other app's views get no changes"
            yield warn("views", f"database {catalog.database}", str(other), why, MEND)
