"""What the pages show of all pipelines and views: what `viewtail status` finds, asked at most once a second.

Nothing is asked while nobody looks. However many people look, one question is under way at a time.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ingest import Margin
from offsets.copies import Copy
from projectors.views import View
from viewtail import declarations, shards
from viewtail.changes.errors import MisuseError, UnknownNameError, ViewtailError, nearest, once
from viewtail.composition import findings_of
from viewtail.operations.findings import Findings
from viewtail.operations.remarks import of_fleet, to_do, told
from viewtail.operations.status import PipelineStatus, ViewStatus, as_one
from viewtail.settings import Settings

FRESH_S = 1.0
STALE = (
    "views.py has changed since this console read it, and what it declares now is looked at by commands alone: "
    "`viewtail status` names the views that are kept as they were declared before. To have them kept as they are "
    "declared now, restart `viewtail run`, and `viewtail console` where this is one"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was found of one deployment."""

    findings: Findings | None = None
    error: str | None = None  # why nothing newer is known
    at: float = 0.0  # monotonic, of `findings`
    is_stale: bool = False  # views.py is not what this process has loaded

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.at

    @property
    def pipelines(self) -> Sequence[PipelineStatus]:
        return self.findings.pipelines if self.findings is not None else ()

    @property
    def is_well(self) -> bool:
        return self.error is None and self.findings is not None and self.findings.is_well

    @property
    def lines(self) -> list[str]:
        """What to do, as `viewtail status` says it."""
        found, stale = self.findings, [STALE] if self.is_stale else []
        return stale if found is None else [*told(found.pipelines), *of_fleet(found.fleet), *to_do(found), *stale]

    def lines_of(self, name: str) -> list[str]:
        """Those of them that name a view or a pipeline."""
        whole = re.compile(rf"(?<![\w:#.]){re.escape(name)}(?![\w#])")
        return [line for line in self.lines if whole.search(line)]

    @property
    def kept_as_before(self) -> Sequence[str]:
        """The views that the running viewtail keeps by an older declaration."""
        return self.findings.kept_as_before if self.findings is not None else ()

    @property
    def has_pauses(self) -> bool:
        """Return whether an operator has paused something."""
        return self.findings is not None and self.findings.has_pauses

    def margin_of(self, pipeline: str) -> Margin | None:
        """How long the source keeps what a pipeline needs next, where that is known."""
        return None if self.findings is None else self.findings.margins.get(pipeline)

    def pipelines_of(self, view: str) -> list[PipelineStatus]:
        """The pipelines that keep a view."""
        return [pipeline for pipeline in self.pipelines if view in {each.name for each in pipeline.views}]

    def copy_of(self, view: str) -> Copy | None:
        """The copy beside a view, if it has one."""
        copies = self.findings.rebuilds if self.findings is not None else ()
        return next((copy for copy in copies if copy.view == view), None)


@dataclass(eq=False)
class Deployment:
    """One deployment: views, pipelines, a database of viewtail's own tables.

    Args:
        name: '' where it is the only one.
        sources: of a deployment whose views are of several servers, the settings of each by its name.
    """

    name: str
    loaded: Settings
    sources: Mapping[str, Callable[[], Settings]] = field(default_factory=dict)
    _hashes: Mapping[str, Collection[str]] = field(default_factory=dict)  # of the declarations, as they were loaded
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _seen: Seen = field(default_factory=Seen)
    _asked_at: float = 0.0

    def seen(self) -> Seen:
        """Return what was found a moment ago, or find it."""
        with self._lock:
            if time.monotonic() - self._asked_at >= FRESH_S:
                try:
                    self._seen = Seen(findings=self._found(), at=time.monotonic(), is_stale=self.is_stale)
                except ViewtailError as error:
                    self._seen = replace(self._seen, error=once(error))
                self._asked_at = time.monotonic()
            return self._seen

    @property
    def is_stale(self) -> bool:
        """Return whether views.py was edited since this process loaded it."""
        return declarations.has_changed(self.loaded)

    def _found(self) -> Findings:
        if self.is_stale:  # what it declares now is not known here
            return findings_of(self.loaded, {})
        self._hashes = self._hashes or declarations.declared_hashes(self.loaded)
        return findings_of(self.loaded, self._hashes)

    def views(self) -> list[ViewStatus]:
        """Each view once, as it is where it is least well."""
        of_view: dict[str, list[ViewStatus]] = {}
        for pipeline in self.seen().pipelines:
            for view in pipeline.views:
                of_view.setdefault(view.name, []).append(view)
        return [as_one(of) for _, of in sorted(of_view.items())]

    def settings_of(self, view: str) -> list[tuple[str | None, Settings]]:
        """The settings that a command on a view works with, one of each source that the view draws on."""
        if not self.sources:
            return [(self.name or None, self.loaded)]
        found = [(name, load()) for name, load in self.sources.items()]
        return [(name, loaded) for name, loaded in found if any(each.id == view for each in _views(loaded))]


def _views(loaded: Settings) -> list[View]:
    try:
        return declarations.configured(loaded)
    except MisuseError:
        return []


class Fleet:
    """All deployments that the settings name, and their views."""

    def __init__(self, config: Path | None) -> None:
        """Raise SettingsError, DeclarationError, MisuseError."""
        found = shards.targets(config)
        first = found[0]
        if first.shard is None:
            self.deployments = [Deployment("", first.settings)]
        elif first.is_source:
            sources = {f"{target.shard}": target.load for target in found}
            self.deployments = [Deployment("", first.settings, sources)]
        else:
            self.deployments = [Deployment(f"{target.shard}", target.settings) for target in found]

    def named(self, name: str) -> Deployment:
        """Raise UnknownNameError."""
        for deployment in self.deployments:
            if deployment.name == name:
                return deployment
        names = [deployment.name for deployment in self.deployments if deployment.name]
        if not name:
            raise UnknownNameError(
                f"there are several deployments ({', '.join(names)}): say which, as in ?of={names[0]}"
            )
        raise UnknownNameError(f"there is no deployment {name!r}{nearest(name, names)}")

    def view(self, of: str, name: str) -> tuple[Deployment, ViewStatus]:
        """Raise UnknownNameError."""
        deployment = self.named(of)
        views = {view.name: view for view in deployment.views()}
        if name not in views:
            raise UnknownNameError(f"no run has seen a view {name!r}{nearest(name, views)}")
        return deployment, views[name]

    def pipeline(self, of: str, name: str) -> tuple[Deployment, PipelineStatus]:
        """Raise UnknownNameError."""
        deployment = self.named(of)
        pipelines = {pipeline.name: pipeline for pipeline in deployment.seen().pipelines}
        if name not in pipelines:
            raise UnknownNameError(f"there is no pipeline {name!r}{nearest(name, pipelines)}")
        return deployment, pipelines[name]
