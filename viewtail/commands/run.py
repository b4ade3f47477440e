"""`viewtail run`: all pipelines, new views backfilled first, until SIGTERM."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from ingest import Margin
from projectors.catalog import Catalog, bound_to_what_fits, tables_of
from projectors.copies import check_changes
from projectors.views import View
from viewtail import declarations, deployment_watch, logs, metrics, shards
from viewtail.changes.errors import TemporaryError
from viewtail.changes.pipelines import DEFAULT_SOURCE, PipelineId
from viewtail.changes.retrying import reaction_to
from viewtail.console_beside import ConsoleBeside
from viewtail.deployment_watch import DeploymentWatch
from viewtail.operations.cutover import require_not_released
from viewtail.roles import Role, views_of
from viewtail.shards import Target
from viewtail.signals import end_at_once, kept_from_threads, on_stop
from viewtail.supervisor import Supervisor

_log = structlog.get_logger("viewtail.run")

PLAIN_EVERY_S = 5.0


def run(config: Path | None, role: Role = Role.ALL) -> int:
    """Check what can be checked at once, then run until stopped; returns the exit code."""
    targets = _publishing(shards.targets(config)) if role is Role.TAIL else shards.targets(config)
    first = targets[0].settings
    logs.configure(first.logs)
    views = [views_of(role, target.settings, declarations.load(target.settings.views)) for target in targets]
    for target, of_target in zip(targets, views, strict=True):
        target.settings.check_stores(of_target)
    end_at_once()
    show, begin, finish = _display()
    supervisor = Supervisor(config, show)
    watches = [DeploymentWatch(target) for target in targets]
    with ExitStack() as at_end:
        if first.metrics.port:
            with kept_from_threads():  # the probes answer while servers are waited for
                server = metrics.Server(first.metrics.host, first.metrics.port, supervisor, partial(_margins, watches))
            at_end.callback(server.close)
        with kept_from_threads():
            at_end.callback(ConsoleBeside(first.console, config).close)
        pipelines = [
            (target, _pipeline(target, store))
            for target, of_target in zip(targets, views, strict=True)
            for store in _stores(target, of_target, is_waited_for=len(targets) == 1)
        ]
        on_stop(supervisor.stop)
        at_end.callback(deployment_watch.end, watches)
        for watch in watches:
            watch.begin()
        begin()
        at_end.callback(finish)
        code = supervisor.run(pipelines)
        for target, of_target in zip(targets, views, strict=True):
            target.settings.source_kind.ended(target.settings.source_access(), tables_of(of_target))
        return code


def _margins(watches: Sequence[DeploymentWatch]) -> dict[str, Margin]:
    return {name: margin for watch in watches for name, margin in watch.margins().items()}


def _publishing(targets: list[Target]) -> list[Target]:
    """Those of which anything may be published: nothing is of named sources."""
    return [target for target in targets if target.shard == DEFAULT_SOURCE or not target.is_source] or targets


def _pipeline(target: Target, store: str) -> str:
    """What the process is called that writes a store: as its pipeline, or the store of all those that it shares."""
    servers = target.settings.servers()
    return store if servers.kind.is_shared_out else PipelineId(servers.source_name, 0, store).name


def _stores(target: Target, views: Sequence[View], *, is_waited_for: bool) -> list[str]:
    """The stores that these views need, once the views fit their tables.

    A server that does not answer yet, as after a common restart, is waited for; Ctrl-C ends the wait. Where there are
    others, its pipelines wait for it themselves, and those of the others begin.
    """
    for attempt in itertools.count():
        try:
            catalog = bound_to_what_fits(target.settings.servers(), views)
            require_not_released(catalog)
            check_changes(catalog)
            return catalog.stores()
        except TemporaryError as error:
            if not is_waited_for:
                _log.warning("a server does not answer yet", shard=target.shard, error=str(error))
                return Catalog(servers=target.settings.servers(), left_out=views).stores()
            pause_s = reaction_to(error).pause_s(attempt)
            _log.warning("waiting for a server", error=str(error), next_attempt_in_s=round(pause_s, 1))
            time.sleep(pause_s)
    raise AssertionError("unreachable")


Show = Callable[[Sequence[Mapping[str, Any]]], None]


def _display() -> tuple[Show, Callable[[], None], Callable[[], None]]:
    """Return how to show reports, to begin and to end: a live table on a terminal, a line now and then otherwise."""
    if sys.stderr.isatty():
        live = Live(console=Console(stderr=True), refresh_per_second=4, transient=False)
        return (lambda reports: live.update(_table(reports))), live.start, live.stop
    return _Lines().show, lambda: None, lambda: None


def _table(reports: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for title in ("pipeline", "state", "lag", "writes/s", "writes", "parked", "position"):
        table.add_column(title, justify="right" if title in ("lag", "writes/s", "writes", "parked") else "left")
    backfills = Table.grid(padding=(0, 2))
    for report in reports:
        table.add_row(
            report["pipeline"],
            report["state"],
            f"{report.get('lag_s', 0):.1f} s",
            f"{report.get('rate', 0):,}",
            f"{report.get('writes', 0):,}",
            str(report.get("parked", 0)),
            report.get("position") or "",
        )
        for backfill in report.get("backfills", ()):
            backfills.add_row(
                backfill["view"],
                backfill["state"],
                ProgressBar(total=max(backfill["about"], backfill["rows"], 1), completed=backfill["rows"], width=30),
                f"{backfill['rows']:,} of about {max(backfill['about'], backfill['rows']):,}",
            )
    errors = [f"{report['pipeline']}: {report['error']}" for report in reports if report.get("error")]
    return Group(table, backfills, *errors)


class _Lines:
    """Plain lines: each change of a pipeline's state, and backfills every few seconds."""

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}
        self._backfills_at = 0.0

    def show(self, reports: Sequence[Mapping[str, Any]]) -> None:
        for report in reports:
            told = (report["state"], report.get("error"))
            if self._states.get(report["pipeline"]) != told:
                self._states[report["pipeline"]] = told
                _log.info("pipeline", pipeline=report["pipeline"], state=told[0], error=told[1])
        if time.monotonic() - self._backfills_at < PLAIN_EVERY_S:
            return
        self._backfills_at = time.monotonic()
        for report in reports:
            for backfill in report.get("backfills", ()):
                _log.info("backfilling", **{name: backfill[name] for name in ("view", "state", "rows", "about")})
