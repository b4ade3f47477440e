"""What `status` finds: the pipelines and views of a deployment, which of them are well, and which nobody keeps.

Judged from what viewtail's own tables, the source and the declarations say; whoever shows it says the same. What to do
where something is not well: operations/remarks.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from offsets.copies import Copy
from projectors.stores.registry import STORES
from viewtail.changes.copy_ids import is_copy, view_of
from viewtail.changes.pipelines import PipelineState
from viewtail.operations.fleet import Fleet, Noted
from viewtail.operations.other_apps import OtherApp, kept_now, other_app
from viewtail.operations.status import PipelineStatus, is_replaced

_NEARLY_GONE = 0.5  # of the time that the source keeps its changes
_SAID_IS_FRESH_S = 10.0  # what a pipeline that is idle says of its lag may be a minute old


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the tables say, and what the declarations add to it."""

    pipelines: Sequence[PipelineStatus]
    fleet: Fleet
    source_error: str | None  # why the source does not say what waits in it, and who is in its group
    keeps_s: float | None  # how long the source keeps its changes; asked for where a pipeline is paused
    not_run: Sequence[str]  # views that are declared, and that no `run` has seen yet
    retired: Sequence[str]  # views that a `run` once kept, and that are not declared any more
    rebuilds: Sequence[Copy] = ()  # of the views that have a second copy
    comparing: Collection[str] = ()  # copies that are compared with their table now
    risk: str | None = None  # what the source's settings accept that may be lost
    gone_back: Sequence[str] = ()  # views that an operator keeps as they were declared before
    kept: Mapping[str, str | None] = field(default_factory=dict)  # those of `retired` that a process keeps, and which
    other_app: OtherApp | None = None  # keeps other views with the same database

    @property
    def nearly_gone(self) -> list[PipelineStatus]:
        """Paused pipelines whose next changes the source may soon keep no more."""
        if self.keeps_s is None:
            return []
        return [one for one in self.pipelines if one.paused and one.lag_s > self.keeps_s * _NEARLY_GONE]

    @property
    def is_well(self) -> bool:
        return bool(self.pipelines) and not self.not_run and all(one.is_well for one in self.pipelines)


def as_owned(one: PipelineStatus, noted: Noted) -> PipelineStatus:
    """Return it as starting where another process took it since its last report, which counts no more.

    One that holds its lease, and whose reporter is silent, is another process's that has not noted itself yet.
    """
    owner = noted.owners.get(one.name)
    is_of_another = owner is not None and owner.process != one.owner and owner.taken_s_ago < (one.reported_s_ago or 0.0)
    if one.state in ("down", PipelineState.PAUSED) or not (
        is_of_another or (one.state == PipelineState.RUNNING and one.owner in noted.silent)
    ):
        return one
    return replace(one, state=PipelineState.STARTING, rows_per_second=0, error=None, reported_s_ago=None)


def known(
    pipelines: Sequence[PipelineStatus], fleet: Fleet, waiting: Mapping[str, int], ages: Mapping[str, float]
) -> list[PipelineStatus]:
    """Add who owns each, and what the source says by its name: how many changes wait, and for how long."""
    return [
        replace(
            one,
            waiting=waiting.get(one.name),
            lag_s=_lag_s(one, waiting.get(one.name), ages.get(one.name)),
            owner=fleet.owners[one.name].process if one.name in fleet.owners else one.owner,
            owned_since=fleet.owners[one.name].taken_at if one.name in fleet.owners else None,
        )
        for one in pipelines
    ]


def _lag_s(one: PipelineStatus, waiting: int | None, age_s: float | None) -> float:
    """Return the lag as the source says; else as the pipeline does."""
    if age_s is not None:
        return age_s
    return 0.0 if one.state in (PipelineState.PAUSED, "down") and waiting == 0 else one.lag_s


def says_its_lag(one: PipelineStatus) -> bool:
    """Return whether what it last said of its lag is true of now."""
    return (
        one.state == PipelineState.RUNNING and one.reported_s_ago is not None and one.reported_s_ago < _SAID_IS_FRESH_S
    )


def compared(found: Findings, declared: set[str] | None, database: str, *, is_shared_out: bool) -> Findings:
    """Add what the declarations, where they are known, and the source make of it: whether others read it too."""
    other = None if declared is None else other_app(found.pipelines, database, declared)
    with_declared = found if declared is None else _compared(found, declared)
    return _of_this_source(replace(with_declared, other_app=other), is_shared_out)


def _compared(found: Findings, declared: set[str]) -> Findings:
    known = {view.name for one in found.pipelines for view in one.views if not is_copy(view.name)}
    retired, alive = sorted(known - declared), kept_now(found.pipelines)
    return replace(
        found,
        pipelines=[_of_declared(one, declared) for one in found.pipelines if _is_shown(one, declared)],
        not_run=sorted(declared - known),
        retired=retired,
        kept={view: alive[view] for view in retired if view in alive},
    )


def _of_declared(pipeline: PipelineStatus, declared: set[str]) -> PipelineStatus:
    return replace(pipeline, views=tuple(view for view in pipeline.views if view_of(view.name) in declared))


def _of_this_source(found: Findings, is_shared_out: bool) -> Findings:
    """Leave out pipelines whose views another source keeps by now. Where that is Kafka, others publish the topics."""
    kept = [one for one in found.pipelines if not is_replaced(one, found.pipelines)]
    published = {store.name for store in STORES if store.keeps_every_change and is_shared_out}
    return replace(
        found, pipelines=kept, not_run=[view for view in found.not_run if view.partition(":")[0] not in published]
    )


def _is_shown(pipeline: PipelineStatus, declared: set[str]) -> bool:
    """Return whether it keeps a declared view, or has just begun and knows none yet."""
    if not pipeline.views:
        return pipeline.state != "down"
    return any(view.name in declared for view in pipeline.views)
