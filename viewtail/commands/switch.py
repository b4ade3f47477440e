"""`viewtail switch --to poll` and `--to binlog`: what operations/switch.py does, and what it prints."""

from __future__ import annotations

from ingest import History, SourceKind
from projectors.catalog import check_source
from projectors.stores.registry import STORES
from viewtail import declarations, settings
from viewtail.changes.errors import MisuseError
from viewtail.changes.pipelines import PipelineId
from viewtail.composition import deploy, greeted
from viewtail.operations import switch as operation
from viewtail.operations.status import positions_now
from viewtail.sources import Mode, kind_of


def switch(loaded: settings.Settings, to: Mode, within_s: float) -> int:
    """Switch every pipeline; returns the exit code."""
    views = declarations.configured(loaded)
    loaded.check_stores(views)
    if not loaded.source_kind.has_rows:
        raise MisuseError("the source is Kafka: only a MySQL server can be polled")
    operation.check_views(views)
    target = kind_of(loaded.source.url, to)
    check_source(target, views)
    before = deploy(_in_mode(greeted(loaded), "binlog" if to == "poll" else "poll"), views)
    positions = positions_now(before)
    known = [positions[pipeline.name] for pipeline in before.pipelines() if pipeline.name in positions]
    if operation.is_there(known, target.before_all):
        operation.finish(before, _history(loaded, target))
        print(f"The offsets are of mode {to} already; every store knows it now. {_next(loaded, to)}")
        return 0
    polled = _history(loaded, kind_of(loaded.source.url, "poll"))
    if to == "poll":  # the binlog is not asked: it may be what is gone, or the right to read it
        is_whole = operation.to_polling(before, polled, within_s, say)
        print("Switched. All rows are read again, in the order of their ids." if is_whole else "Switched.", end=" ")
    else:
        operation.to_binlog(before, _history(loaded, target), polled, within_s, say)
        print("Switched.", end=" ")
    print(_next(loaded, to))
    return 0


def say(line: str) -> None:
    """Print a line before what may take long."""
    print(line, flush=True)


def _next(loaded: settings.Settings, to: Mode) -> str:
    where = f'mode="{to}" at its Source in views.py' if "@" in loaded.views else f"VIEWTAIL_SOURCE__MODE={to}"
    mode = "" if loaded.source.mode == to else f"Set {where}, and start"
    return f"{mode or 'Start'} it: viewtail run"


def _in_mode(loaded: settings.Settings, mode: Mode) -> settings.Settings:
    return loaded.model_copy(update={"source": loaded.source.model_copy(update={"mode": mode})})


def _history(loaded: settings.Settings, kind: SourceKind) -> History:
    return kind.history(loaded.source_access(), PipelineId.of(STORES[0].name), 0)
