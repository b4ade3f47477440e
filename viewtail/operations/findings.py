"""Has the findings of `status`: the pipelines and views of a deployment, which are well, and which nobody keeps.

They are judged from viewtail's own tables, the source and the declarations; whoever shows them says the same. What to
do where something is not well: operations/remarks.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ingest import Margin
from offsets.copies import Copy
from offsets.keepers import to_begin
from offsets.views import State
from projectors.stores.registry import STORES
from viewtail.changes.copy_ids import is_copy, view_of
from viewtail.changes.pipelines import PipelineId, PipelineState
from viewtail.operations.fleet import Fleet, Noted
from viewtail.operations.other_apps import OtherApp, kept_now, other_app
from viewtail.operations.status import PipelineStatus, is_replaced

_SAID_IS_FRESH_S = 10.0  # what a pipeline that is idle says of its lag may be a minute old


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The findings from the tables and the source, and what the declarations add to them."""

    pipelines: Sequence[PipelineStatus]
    fleet: Fleet = field(default_factory=Fleet)
    source_error: str | None = None  # why the source does not say what waits in it, and who is in its group
    # By pipeline: how long its source keeps what it needs next; none where the source removes nothing by itself.
    margins: Mapping[str, Margin] = field(default_factory=dict)
    not_run: Sequence[
        str
    ] = ()  # views that are declared, and no `run` has seen yet: 'redis:user', or 'redis:user (eu)'
    retired: Sequence[str] = ()  # views that a `run` once kept, and that are not declared any more
    rebuilds: Sequence[Copy] = ()  # of the views that have a second copy
    comparing: Collection[str] = ()  # copies that are compared with their table now
    risk: str | None = None  # what the source's settings accept that may be lost
    gone_back: Sequence[str] = ()  # views that an operator keeps as they were declared before
    kept_as_before: Sequence[str] = ()  # views that the running viewtail keeps by an older declaration than views.py's
    kept: Mapping[str, str | None] = field(default_factory=dict)  # those of `retired` that a process keeps, and which
    other_app: OtherApp | None = None  # keeps other views with the same database

    @property
    def nearly_gone(self) -> list[PipelineStatus]:
        """Pipelines whose next changes the source may soon keep no more."""
        return [each for each in self.pipelines if each.name in self.margins and self.margins[each.name].is_low]

    def to_begin(self, view: str) -> str:
        """What to do about one of `not_run`."""
        source = view.rpartition(" (")[2].removesuffix(")") if view.endswith(")") else ""
        shown = [each for each in self.pipelines if source in ("", PipelineId.parse(each.name).source)]
        running = {each.owner for each in shown if each.state != "down"} | {*(self.kept.values() if not source else ())}
        return to_begin([process for process in running if process])

    @property
    def is_well(self) -> bool:
        return bool(self.pipelines) and not self.not_run and all(pipeline.is_well for pipeline in self.pipelines)

    @property
    def has_pauses(self) -> bool:
        """Return whether an operator has paused a pipeline, a view or one of its tables."""
        views = [view for pipeline in self.pipelines for view in pipeline.views]
        return any(pipeline.paused for pipeline in self.pipelines) or any(view.paused or view.parts for view in views)

    def as_json(self) -> dict[str, Any]:
        """Return what `status --json` prints."""
        fleet = self.fleet
        return {
            "is_well": self.is_well,
            "pipelines": [_pipeline(pipeline, self.margins.get(pipeline.name)) for pipeline in self.pipelines],
            "fan_outs": [asdict(fan_out) for pipeline in self.pipelines for fan_out in pipeline.fan_outs],
            "members": [asdict(member) for member in fleet.members],
            "fenced": [asdict(takeover) for takeover in fleet.fenced],
            "last_takeover": None if fleet.last_takeover is None else asdict(fleet.last_takeover),
            "source_error": self.source_error,
            "risk": self.risk,
            "nearly_gone": [pipeline.name for pipeline in self.nearly_gone],
            "not_run": self.not_run,
            "retired": self.retired,
            "kept_by_another": dict(self.kept),
            "other_app": None if self.other_app is None else str(self.other_app),
            "gone_back": self.gone_back,
            "kept_as_before": self.kept_as_before,
            "rebuilds": [
                {**copy.as_json(), "is_being_compared": copy.copy_id in self.comparing} for copy in self.rebuilds
            ],
        }


def _pipeline(pipeline: PipelineStatus, margin: Margin | None) -> dict[str, Any]:
    values = asdict(pipeline)
    del values["fan_outs"]  # those of all pipelines are one list
    for view in values["views"]:
        del view["declaration"]
    return {**values, "is_well": pipeline.is_well, "margin": None if margin is None else asdict(margin)}


def as_owned(pipeline: PipelineStatus, noted: Noted) -> PipelineStatus:
    """Return it as starting where another process took it since its last report, which counts no more.

    One that holds its lease, and whose reporter is silent, is another process's that has not noted itself yet.
    """
    owner = noted.owners.get(pipeline.name)
    is_of_another = (
        owner is not None and owner.process != pipeline.owner and owner.taken_s_ago < (pipeline.reported_s_ago or 0.0)
    )
    if pipeline.state in ("down", PipelineState.PAUSED) or not (
        is_of_another or (pipeline.state == PipelineState.RUNNING and pipeline.owner in noted.silent)
    ):
        return pipeline
    return replace(pipeline, state=PipelineState.STARTING, rows_per_second=0, error=None, reported_s_ago=None)


def known(
    pipelines: Sequence[PipelineStatus], fleet: Fleet, waiting: Mapping[str, int], ages: Mapping[str, float]
) -> list[PipelineStatus]:
    """Add who owns each, and what the source says by its name: how many changes wait, and for how long."""
    return [
        replace(
            pipeline,
            waiting=waiting.get(pipeline.name),
            lag_s=_lag_s(pipeline, waiting.get(pipeline.name), ages.get(pipeline.name)),
            owner=fleet.owners[pipeline.name].process if pipeline.name in fleet.owners else pipeline.owner,
            owned_since=fleet.owners[pipeline.name].taken_at if pipeline.name in fleet.owners else None,
        )
        for pipeline in pipelines
    ]


def _lag_s(pipeline: PipelineStatus, waiting: int | None, age_s: float | None) -> float:
    """Return the lag as the source says; else as the pipeline does."""
    if age_s is not None:
        return age_s
    return 0.0 if pipeline.state in (PipelineState.PAUSED, "down") and waiting == 0 else pipeline.lag_s


def says_its_lag(pipeline: PipelineStatus) -> bool:
    """Return whether what it last said of its lag is true of now."""
    return (
        pipeline.state == PipelineState.RUNNING
        and pipeline.reported_s_ago is not None
        and pipeline.reported_s_ago < _SAID_IS_FRESH_S
    )


def compared(
    findings: Findings, declared: Mapping[str, Collection[str]] | None, database: str, *, is_shared_out: bool
) -> Findings:
    """Add what the declarations, where they are known, and the source make of it: whether others read it too.

    `declared` has by view the named sources that it draws on, if any.
    """
    other = None if declared is None else other_app(findings.pipelines, database, {*declared})
    with_declared = findings if declared is None else _compared(findings, declared)
    return _of_this_source(replace(with_declared, other_app=other), is_shared_out)


def _compared(findings: Findings, sources: Mapping[str, Collection[str]]) -> Findings:
    seen = {
        (PipelineId.parse(pipeline.name).source, view.name)
        for pipeline in findings.pipelines
        for view in pipeline.views
        if not is_copy(view.name)
    }
    known, declared = {view for _, view in seen}, {*sources}
    retired, alive = sorted(known - declared), kept_now(findings.pipelines)
    return replace(
        findings,
        pipelines=[
            _of_declared(pipeline, declared) for pipeline in findings.pipelines if _is_shown(pipeline, declared)
        ],
        not_run=sorted(_unseen(sources, seen)),
        retired=retired,
        kept={view: alive[view] for view in retired if view in alive},
    )


def with_declarations(findings: Findings, declared: Mapping[str, Collection[str]]) -> Findings:
    """Add which views are kept by an older declaration.

    `declared` has by view the hashes of what views.py declares now, one of each source.
    """
    before = {
        view.name
        for pipeline in findings.pipelines
        if pipeline.state == PipelineState.RUNNING  # any other takes up what views.py declares once it runs
        for view in pipeline.views
        if view.name in declared and view.state not in (State.PAUSED, State.RELEASED)  # those it leaves as they are
        if not _has_one_of(declared[view.name], view.name, pipeline)
    }
    return replace(findings, kept_as_before=sorted(before - {*findings.gone_back}))


def _has_one_of(declarations: Collection[str], view: str, pipeline: PipelineStatus) -> bool:
    """Return whether the view, or a copy of it, is kept by one of these."""
    return any(view_of(each.name) == view and each.declaration in ("", *declarations) for each in pipeline.views)


def _unseen(sources: Mapping[str, Collection[str]], seen: Collection[tuple[str, str]]) -> Iterator[str]:
    """The views that no pipeline keeps, and those that none keeps of a source."""
    known = {view for _, view in seen}
    for view, of_view in sources.items():
        if not of_view and view not in known:
            yield view
        yield from (f"{view} ({source})" for source in of_view if (source, view) not in seen)


def _of_declared(pipeline: PipelineStatus, declared: set[str]) -> PipelineStatus:
    return replace(pipeline, views=tuple(view for view in pipeline.views if view_of(view.name) in declared))


def _of_this_source(findings: Findings, is_shared_out: bool) -> Findings:
    """Leave out pipelines whose views another source keeps by now. Where that is Kafka, others publish the topics."""
    kept = [pipeline for pipeline in findings.pipelines if not is_replaced(pipeline, findings.pipelines)]
    published = {store.name for store in STORES if store.keeps_every_change and is_shared_out}
    return replace(
        findings, pipelines=kept, not_run=[view for view in findings.not_run if view.partition(":")[0] not in published]
    )


def _is_shown(pipeline: PipelineStatus, declared: set[str]) -> bool:
    """Return whether it keeps a declared view, or has just begun and knows none yet."""
    if not pipeline.views:
        return pipeline.state != "down"
    return any(view.name in declared for view in pipeline.views)
