"""Lists what is not well: one list, for `status`, the console, the messages to people and whoever asks next.

Each incident is of one kind of one pipeline, or of one view in it. Its words hold names and numbers alone; the reason
may name a server, or a key of a row, and stays where operators look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ingest import Margin
from offsets.views import KEPT, State
from viewtail.changes.copy_ids import is_copy, view_of
from viewtail.changes.counting import counted
from viewtail.changes.pipelines import PipelineId, PipelineState
from viewtail.operations.findings import Findings
from viewtail.operations.health import BEHIND_S
from viewtail.operations.status import PipelineStatus, ViewStatus, as_one


class Kind(StrEnum):
    """The kind of an incident."""

    DOWN = "down"  # nobody runs the pipeline
    HALTED = "halted"  # the pipeline, until an operator mends something
    NOT_RUNNING = "not_running"  # it starts, or waits for a server
    BEHIND = "behind"
    MARGIN = "margin"  # the source may soon remove what it needs
    VIEW_HALTED = "view_halted"
    PARKED = "parked"
    NOT_FILLED = "not_filled"  # an error keeps a new view from being filled
    NOT_RUN = "not_run"  # no run has seen the view yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that is not well."""

    kind: Kind
    pipeline: str  # its name; '' of a view that no run has seen
    view: str | None  # its name, as store:name; None: it is the pipeline
    words: str  # a sentence without a value of any row
    mend: str  # the command to run, or the page to read
    reason: str | None = None  # as the pipeline or the view says; it may hold a key
    since: str | None = None  # UTC, where it is known

    @property
    def is_fault(self) -> bool:
        """Return whether `status` exits 1 for it; else it is a warning."""
        return self.kind is not Kind.MARGIN


def incidents(findings: Findings) -> list[Incident]:
    """Everything that is not well: pipelines first, then views."""
    found = [incident for pipeline in findings.pipelines for incident in _of_pipeline(pipeline)]
    found += [margin_low(pipeline, findings.margins[pipeline.name]) for pipeline in findings.nearly_gone]
    found += of_views(findings.pipelines)
    found += [
        Incident(
            kind=Kind.NOT_RUN,
            pipeline="",
            view=name,
            words=f"view {name} is declared, but no run has seen it yet",
            mend=findings.to_begin(name),
        )
        for name in findings.not_run
    ]
    return found


def _of_pipeline(pipeline: PipelineStatus) -> Iterator[Incident]:
    """One at most says that it does not do its work, and one how far it is behind."""
    if pipeline.state == "down":
        yield _incident(Kind.DOWN, pipeline, "is down: nobody runs it", "viewtail run, or see why it ended in its log")
    elif pipeline.state == PipelineState.HALTED:
        yield _incident(Kind.HALTED, pipeline, "is halted", _of_halt(pipeline.error))
    elif pipeline.state not in (PipelineState.RUNNING, PipelineState.PAUSED):
        yield _incident(Kind.NOT_RUNNING, pipeline, f"is {pipeline.state}", "docs/operations.md, Status")
    if pipeline.lag_s > BEHIND_S and pipeline.state != "down":
        yield behind(pipeline)


def _incident(kind: Kind, pipeline: PipelineStatus, what: str, mend: str) -> Incident:
    words = f"pipeline {pipeline.name} {what}"
    return Incident(kind=kind, pipeline=pipeline.name, view=None, words=words, mend=mend, reason=pipeline.error)


def _of_halt(error: str | None) -> str:
    """The page about a halt, by words of its reason."""
    for words, page in (
        ("history gone", "docs/incidents.md, 2. The binlog was purged"),
        ("divergent history", "docs/incidents.md, 8. A failover that lost something"),
    ):
        if error is not None and words in error:
            return page
    return "viewtail status says why"


def behind(pipeline: PipelineStatus) -> Incident:
    """Say how far a pipeline is behind."""
    if pipeline.paused is not None:
        mend, since = f"viewtail resume --pipeline {pipeline.name}", pipeline.paused.since
        return Incident(
            kind=Kind.BEHIND,
            pipeline=pipeline.name,
            view=None,
            words=f"pipeline {pipeline.name} is paused, and {pipeline.lag_s:.0f} s behind",
            mend=mend,
            since=since,
        )
    how = "is" if pipeline.runs else f"is {pipeline.state}, and"
    return Incident(
        kind=Kind.BEHIND,
        pipeline=pipeline.name,
        view=None,
        words=f"pipeline {pipeline.name} {how} {pipeline.lag_s:.0f} s behind",
        mend="docs/operations.md, Behind",
        reason=pipeline.error,
    )


def margin_low(pipeline: PipelineStatus, margin: Margin) -> Incident:
    """Say that the source may soon remove what a pipeline needs next."""
    when = f"in {lasting(margin.left_s)}" if margin.left_s else "at any time, or did"
    if pipeline.paused is not None:
        mend = f"go on before that: viewtail resume --pipeline {pipeline.name}"
    elif pipeline.state == "down":
        mend = "start viewtail before that: viewtail run"
    else:
        mend = "look why it is behind: docs/operations.md, Behind"
    return Incident(
        kind=Kind.MARGIN,
        pipeline=pipeline.name,
        view=None,
        words=(
            f"pipeline {pipeline.name}: the source may remove what it needs next {when}; it keeps changes for "
            f"{lasting(margin.keeps_s)} ({margin.limit})"
        ),
        mend=f"Then every view of the pipeline must be backfilled again. Let the source keep changes longer, or {mend}",
    )


def of_views(pipelines: Sequence[PipelineStatus]) -> list[Incident]:
    """Views that are not well, each once a source."""
    of: dict[tuple[str, str], list[tuple[PipelineStatus, ViewStatus]]] = {}
    for pipeline in pipelines:
        for view in pipeline.views:
            of.setdefault((PipelineId.parse(pipeline.name).source, view.name), []).append((pipeline, view))
    return [incident for kept in of.values() for incident in _of_view(kept)]


def _of_view(kept: Sequence[tuple[PipelineStatus, ViewStatus]]) -> Iterator[Incident]:
    """Of one view, by the pipelines that keep it: it is named with the first of them."""
    view, first = as_one([view for _, view in kept]), kept[0][0].name
    if view.state == State.HALTED:
        yield view_halted(view, first)
    if view.parked:
        yield parked(view, first)
    unfilled = [pipeline for pipeline, view in kept if pipeline.error and view.state in (State.NEW, State.BACKFILLING)]
    if unfilled:
        yield Incident(
            kind=Kind.NOT_FILLED,
            pipeline=first,
            view=view.name,
            words=f"view {view.name} is not filled yet",
            mend="viewtail status says why",
            reason=unfilled[0].error,
        )


def view_halted(view: ViewStatus, pipeline: str = "") -> Incident:
    """Say that a view gets no changes any more."""
    return Incident(
        kind=Kind.VIEW_HALTED,
        pipeline=pipeline,
        view=view.name,
        words=f"view {view.name} is halted",
        mend="viewtail status says why; then docs/operations.md, Halted views",
        reason=view.reason,
    )


def parked(view: ViewStatus, pipeline: str = "") -> Incident:
    """Say how many keys of a view could not be applied."""
    of = view_of(view.name)
    others = "; all others were" if view.state in KEPT else ""
    mend = f"viewtail replay {view.name}"
    if is_copy(view.name):
        mend = f"viewtail rebuild {of} --abort drops this copy, and viewtail rebuild {of} builds one anew"
    return Incident(
        kind=Kind.PARKED,
        pipeline=pipeline,
        view=view.name,
        words=f"view {view.name}: {counted(view.parked, 'keys')} could not be applied{others}",
        mend=f"The reasons: viewtail dead-letters list {view.name}. When they are mended: {mend}",
    )


def lasting(seconds: float) -> str:
    """Return a time in the unit that people would say it in."""
    for unit_s, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} s"
