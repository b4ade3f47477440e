"""Says what to do where something is not well: lines about pipelines, views, processes, copies and the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from offsets.copies import Copy, Stage
from offsets.keepers import kept_as_before
from offsets.views import State
from viewtail.changes.copy_ids import view_of
from viewtail.changes.counting import agreeing, counted
from viewtail.changes.pipelines import PipelineId
from viewtail.operations.findings import Findings
from viewtail.operations.fleet import Fleet, Takeover
from viewtail.operations.incidents import behind, lasting, margin_low, parked, view_halted
from viewtail.operations.other_apps import MEND, OtherApp
from viewtail.operations.status import BUSY_ABOVE_S, PipelineStatus, each_view

MOST_NAMES = 3  # in a sentence
MOST_PARTS = 5  # of a view, a line each
MOST_FAN_OUTS = 5  # a line each


def told(pipelines: Sequence[PipelineStatus]) -> Iterator[str]:
    """Say which pipelines and views are not well."""
    yield from _of_pipelines(pipelines)
    yield from _of_paused(pipelines)
    yield from _of_views(pipelines)
    yield from _of_parts(pipelines)
    yield from _of_fan_outs(pipelines)


def _of_pipelines(pipelines: Sequence[PipelineStatus]) -> Iterator[str]:
    named: dict[str, list[str]] = {}
    for pipeline in pipelines:
        if pipeline.error:
            named.setdefault(pipeline.error, []).append(pipeline.name)
        elif pipeline.is_behind:
            late = behind(pipeline)
            yield (
                f"{late.words}. While lag falls it is catching up; when it rises, the store is slower than the changes "
                f"come: {late.mend}"
            )
    for error, names in named.items():
        yield f"{_listed('pipeline', names)}: {error}"


def _of_paused(pipelines: Sequence[PipelineStatus]) -> Iterator[str]:
    paused: dict[str, list[str]] = {}
    for pipeline in pipelines:
        if pipeline.paused is not None:
            paused.setdefault(str(pipeline.paused), []).append(pipeline.name)
    for since, names in paused.items():
        wanted = names if len(names) == 1 else sorted({PipelineId.parse(name).store for name in names})
        meant = f"--pipeline {wanted[0]}" if len(wanted) == 1 else "--all"
        yield (
            f"{_listed('pipeline', names)}: paused {since}. Nothing is read or written, and nothing lost while the "
            f"source keeps the changes. To go on: viewtail resume {meant}"
        )


def _of_views(pipelines: Sequence[PipelineStatus]) -> Iterator[str]:
    for _, view in each_view(pipelines):
        if view.paused is not None:
            yield (
                f"view {view.name} is paused {view.paused}. It gets no changes; to go on: viewtail resume "
                f"{view_of(view.name)}, which backfills it"
            )
        elif view.state == State.RELEASED:
            yield (
                f"view {view.name} was {view.reason}. Take it out of views.py. To forget it: viewtail forget "
                f"{view.name}"
            )
        elif view.reason:
            yield f"{view_halted(view).words}: {view.reason}"
        if view.parked:
            refused = parked(view)
            yield f"{refused.words}. {refused.mend}"


def _of_parts(pipelines: Sequence[PipelineStatus]) -> Iterator[str]:
    for _, view in each_view(pipelines):
        for part in view.parts[:MOST_PARTS]:
            yield f"view {view.name} shows old rows of one table: {part}. To go on: {part.to_go_on}"
        if (left := len(view.parts) - MOST_PARTS) > 0:
            yield f"view {view.name}: {counted(left, 'more tables', 'are')} paused: viewtail status --json"


def _of_fan_outs(pipelines: Sequence[PipelineStatus]) -> Iterator[str]:
    under_way = [fan_out for pipeline in pipelines for fan_out in pipeline.fan_outs]
    for fan_out in under_way[:MOST_FAN_OUTS]:
        yield f"view {fan_out.view} is behind: {fan_out}"
    if (left := len(under_way) - MOST_FAN_OUTS) > 0:
        yield f"{counted(left, 'more fan-outs', 'are')} under way: viewtail status --json"


def of_fleet(fleet: Fleet) -> Iterator[str]:
    """Say which processes were fenced, or are known to nobody."""
    for takeover in fleet.fenced[:MOST_NAMES]:
        what = "is silent" if takeover.is_silent else "is fenced"
        yield f"{takeover.taken_from} {what}: {_taken(takeover)} {_believes(takeover)}"
    if (left := len(fleet.fenced) - MOST_NAMES) > 0:
        yield f"{left} more {agreeing(left, 'are')} fenced: viewtail status --json"
    last = fleet.last_takeover
    if last is not None and last not in fleet.fenced:
        yield f"last takeover: {_taken(last)}"
    unknown = [member.name for member in fleet.members if member.state == "unknown"]
    if unknown:
        yield (
            f"{_listed('member', unknown)}: in the consumer group, but not noted in MySQL. Where that is no viewtail "
            "of this deployment, it takes partitions that views need: end it, or set another VIEWTAIL_SOURCE__GROUP"
        )


def _taken(takeover: Takeover) -> str:
    what, when = _listed("pipeline", takeover.pipelines), f"at {takeover.at} UTC, {takeover.s_ago:.0f} s ago"
    return f"{takeover.process} took {what} from {takeover.taken_from} {when}."


def _believes(takeover: Takeover) -> str:
    if takeover.is_silent:
        return "It died, or hangs. It is fenced: if it wakes up, its writes are refused and it stands by"
    return "It lives, and may believe that it owns them still: its next write is refused, and then it stands by"


def _listed(what: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{what} {names[0]}"
    rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{what}s {', '.join(names[:MOST_NAMES])}{rest}"


def remarks(findings: Findings) -> list[str]:
    """Say what is to know of the declarations and the source, and what to do."""
    return [*to_do(findings), *_kept(findings)]


def to_do(findings: Findings) -> list[str]:
    """Say what to do about the declarations and the source."""
    lines = [] if findings.risk is None else [findings.risk]
    for pipeline in findings.nearly_gone:
        low = margin_low(pipeline, findings.margins[pipeline.name])
        lines.append(f"{low.words}. {low.mend}")
    lines += _of_this_app(findings) if findings.other_app is None else _beside_another(findings, findings.other_app)
    lines += [
        f"view {name} is not declared any more. The next `viewtail run` leaves it, and what it shows, as it is. To get "
        f"it back, declare it again: viewtail backfills it. Or forget it: viewtail forget {name}"
        for name in findings.retired
        if name not in findings.kept
    ]
    lines += [_of_rebuild(copy, findings) for copy in findings.rebuilds if copy.view not in findings.retired]
    lines += _of_declarations(findings)
    if findings.source_error is not None:
        lines.append(
            f"the source does not say what waits in it, nor how long it keeps that ({findings.source_error}). What "
            "stands above is from viewtail's own tables alone"
        )
    return lines


def _of_declarations(findings: Findings) -> Iterator[str]:
    """Say which views are kept by another declaration than that of views.py."""
    for name in findings.gone_back:
        yield (
            f"view {name} is as it was declared before (previous=), as an operator wants it. To have what views.py "
            f"declares now built beside it: viewtail rebuild {name}"
        )
    for name in findings.kept_as_before:
        yield kept_as_before(f"view {name}")


def _kept(findings: Findings) -> Iterator[str]:
    """Say how long the source has what the pipelines need next, unless that is a warning already."""
    shown = [findings.margins[each.name] for each in findings.pipelines if each.name in findings.margins]
    if shown and not findings.nearly_gone:
        least = min(shown, key=lambda margin: margin.left_s)
        yield (f"the source keeps what the pipelines need next for {lasting(least.left_s)} at least ({least.limit})")


def _beside_another(findings: Findings, other: OtherApp) -> list[str]:
    """Say that another app's viewtail keeps this one's from running."""
    stands_by = "One that is started stands by for the other one"
    return [f"{other}. {MEND}", *(f"{_not_seen(view)}. {stands_by}" for view in findings.not_run)]


def _of_this_app(findings: Findings) -> list[str]:
    """Say which views no run has seen, and which one keeps that are not in this views.py."""
    kept = [
        f"view {name} is not declared in this views.py, and the viewtail that runs ({process}) keeps it: it was "
        "started with another one. Where that is this app's, it leaves the view when it is restarted"
        for name, process in findings.kept.items()
    ]
    return [*(f"{_not_seen(view)}. {findings.to_begin(view)}" for view in findings.not_run), *kept]


def _not_seen(view: str) -> str:
    return f"view {view} is declared, but no run has seen it yet"


def _of_rebuild(copy: Copy, findings: Findings) -> str:
    note = "" if copy.note is None else f" It could not be swapped: {copy.note}."
    kept = "" if copy.kept_s is None else f" It is kept for {max(0.0, copy.kept_s) / 3600:.1f} h more."
    stage = f"{copy.stage}, and being compared with its table" if copy.copy_id in findings.comparing else copy.stage
    what = f"{copy.copy_id} is the copy beside view {copy.view}, {stage}, asked for by {copy.started_by}.{note}{kept}"
    if copy.stage is Stage.MOVING:
        return f"{what} Readers get the other copy entity by entity, {copy.moved_count:,} so far; both are up to date"
    if copy.is_paused and copy.stage is not Stage.DROPPING:
        return f"{what} The view is paused, so nothing is swapped. First: viewtail resume {copy.view}"
    if copy.stage is Stage.DROPPING:
        return f"{what} It is being dropped, by the next `viewtail run` if none runs"
    if (why := _why_not_swapped(copy, findings)) is not None:
        return f"{what} {why}. To have it compared and swapped all the same: viewtail rebuild {copy.view}"
    if copy.live > copy.copy:
        return f"{what} To give it to readers again: viewtail rebuild {copy.view} --rollback"
    return f"{what} To go on: viewtail rebuild {copy.view}. To drop it: viewtail rebuild {copy.view} --abort"


def _why_not_swapped(copy: Copy, findings: Findings) -> str | None:
    """Return why the filled copy of a changed declaration is not compared now; None of others."""
    if not copy.is_automatic or copy.stage is not Stage.BUILDING or copy.is_compared:
        return None
    for pipeline in findings.pipelines:
        is_filled = any(view.name == copy.copy_id and view.state == "filled" for view in pipeline.views)
        if is_filled and _is_late(pipeline):
            return (
                f"viewtail compares it with its table, and then swaps it, only while pipeline {pipeline.name} is less "
                f"than {BUSY_ABOVE_S:.0f} s behind, and it is {pipeline.lag_s:.1f} s behind now"
            )
    return None


def _is_late(pipeline: PipelineStatus) -> bool:
    """Whether it runs, and is too far behind for what can wait; fan-outs are no reason for that."""
    return pipeline.state != "down" and pipeline.lag_s > BUSY_ABOVE_S and not pipeline.fan_outs
