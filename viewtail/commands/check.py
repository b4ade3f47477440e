"""`viewtail check`: every requirement of the source and the stores, with what mends those that are not met."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

from rich.text import Text

from ingest import History, SourceAccess
from projectors.catalog import Catalog
from projectors.pipeline_run import begins_at
from projectors.stores.registry import STORES, needed
from projectors.views import View
from viewtail import declarations, settings
from viewtail.changes.counting import counted
from viewtail.changes.errors import HistoryGoneError, ViewtailError
from viewtail.changes.findings import Finding, Level, fail, warn
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.positions import Position
from viewtail.commands.output import print_json, print_table
from viewtail.operations.check import Checked, grants, is_well
from viewtail.operations.check import check as look
from viewtail.operations.other_apps import MEND, other_app
from viewtail.operations.status import pipelines_now, positions_now
from viewtail.servers.patience import QUESTION
from viewtail.sources import BINLOG

_READ_WITHIN_S = 5.0
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


def print_grants(loaded: settings.Settings) -> int:
    """Print the statements that grant exactly what these settings and views need; nothing is asked of any server."""
    views = declarations.configured(loaded)
    loaded.check_stores(views)
    print("\n".join(grants(_servers(loaded, views), views)))
    return 0


def check(loaded: settings.Settings, *, as_json: bool) -> int:
    """Print every finding; the exit code is 1 when one is a failure."""
    views = declarations.configured(loaded)
    loaded.check_stores(views)
    loaded = loaded.asked_with(QUESTION.once())
    found = [
        *look(_servers(loaded, views), views),
        *_offsets(loaded, views),
        *_other_app(loaded),
        *_previous(loaded, views),
    ]
    if as_json:
        print_json({"is_well": is_well(found), "findings": found})
    else:
        _print(found)
    return 0 if is_well(found) else 1


def _previous(loaded: settings.Settings, views: Sequence[View]) -> list[Finding]:
    """Warn of each previous= that has no effect under the settings."""
    why, mend = "readers see the view change, and there is no way back", "VIEWTAIL_RUN__ON_CHANGE=beside"
    seen = "previous= has no effect while VIEWTAIL_RUN__ON_CHANGE is in_place"
    in_place = loaded.run.on_change == "in_place"
    return [warn("views", f"view {one.id}", seen, why, mend) for one in views if in_place and one.previous is not None]


def _offsets(loaded: settings.Settings, views: Sequence[View]) -> Iterator[Finding]:
    """Ask, as a reader does at its start, whether the source still has the changes behind each offset."""
    kind, stores = loaded.source_kind, {store.name for store in needed(views)}
    if kind is not BINLOG:
        return
    catalog = Catalog(servers=loaded.servers())
    positions: dict[str, Position] = {}
    with suppress(ViewtailError):  # a server that is away is a finding already
        history, known, positions = catalog.history_beside("check"), pipelines_now(catalog), positions_now(catalog)
    for name, position in sorted(positions.items()):
        pipeline = PipelineId.parse(name)
        if pipeline.store not in stores or not pipeline.is_default or type(position) is not type(kind.before_all):
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


def _other_app(loaded: settings.Settings) -> list[Finding]:
    """Warn if another app uses the database of viewtail's own tables."""
    catalog = Catalog(servers=loaded.servers())
    with suppress(ViewtailError):  # a server that is away is a finding already
        declared = {view.id for view in declarations.load(loaded.views)}
        found = other_app(pipelines_now(catalog).values(), catalog.database, declared)
        if found is not None:
            why = "`viewtail run` stands by for it, and when it takes over, the other app's views get no changes"
            return [warn("views", f"database {catalog.database}", str(found), why, MEND)]
    return []


def _servers(loaded: settings.Settings, views: Sequence[View]) -> Checked:
    catalog = Catalog(servers=loaded.servers())
    return Checked(
        kind=loaded.source_kind,
        source=_source(catalog),
        stores=[(store, catalog.access(store)) for store in STORES if store.has_own_tables or store in needed(views)],
    )


def _source(catalog: Catalog) -> SourceAccess:
    with suppress(ViewtailError):  # a server that is away is a finding of its own
        return catalog.source_access()
    return catalog.servers.source()


def _print(found: Sequence[Finding]) -> None:
    if sys.stdout.isatty():
        rows = ((Text(one.level.value, _STYLES[one.level]), one.where, one.what, one.seen) for one in found)
        print_table(("", "where", "what", "seen"), rows)
    else:
        for one in found:
            print(f"{one.level.value:<4}  {one.where:<13}  {one.what}: {one.seen}")
    for one in found:
        if one.level is not Level.OK:
            print(f"\n{one.level.value}: {one.where}, {one.what}: {one.seen}")
            print(f"  why:  {one.why}")
            print(f"  mend: {one.mend}")
    counts = {level: sum(one.level is level for one in found) for level in Level}
    print(
        f"\n{counts[Level.OK]} ok, {counted(counts[Level.WARN], 'warnings')}, {counted(counts[Level.FAIL], 'failures')}"
    )
