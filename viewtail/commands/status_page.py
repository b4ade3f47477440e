"""Prints `viewtail status` for people: tables that fit a screen, and a line for everything that is not well.

A large fleet is folded: partitions of one topic and store are one line, and only those that are not well are listed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from projectors.stores.registry import STORES
from viewtail.changes.counting import agreeing, counted
from viewtail.changes.pipelines import PipelineId
from viewtail.commands.output import print_table
from viewtail.operations.fleet import Fleet, Member
from viewtail.operations.remarks import MOST_NAMES, of_fleet, told
from viewtail.operations.status import PipelineStatus, ViewStatus, each_view

MOST_PIPELINES = 16  # that are listed one by one
MOST_MEMBERS = 12
_RATE_IS_FRESH_S = 10.0
_RIGHT = frozenset({"lag", "waiting", "rows/s", "rows filled", "filled", "parked", "reported", "pipelines", "assigned"})
_GREEN, _CYAN, _RED = ("running", "filled"), ("filling", "new", "standby"), ("down", "halted", "silent")
STYLES = {
    **dict.fromkeys(_GREEN, "green"),
    **dict.fromkeys(_CYAN, "cyan"),
    **dict.fromkeys(_RED, "red"),
}
_TAILERS = frozenset(store.name for store in STORES if store.keeps_every_change)


def print_page(pipelines: Sequence[PipelineStatus], fleet: Fleet, remarks: Sequence[str]) -> None:
    """`remarks` come behind those of the pipelines and the fleet."""
    titles = ("pipeline", "state", "lag", "waiting", "rows/s", "owner", "position", "reported")
    _table(titles, list(_pipeline_rows(pipelines)))
    if fleet.members:
        print()
        _table(
            ("member", "state", "store", "role", "pipelines", "assigned", "since (UTC)"),
            list(_member_rows(fleet.members)),
        )
    if pipelines:
        print()
        views = [_view_row(where, view) for where, view in each_view(pipelines)]
        _table(("view", "state", "filled", "rows filled", "parked", "proven through"), views)
    for line in (*told(pipelines), *of_fleet(fleet), *remarks):
        print(f"\n{line}")


# --- Rows ---


def _pipeline_rows(pipelines: Sequence[PipelineStatus]) -> Iterator[tuple[str, ...]]:
    if len(pipelines) <= MOST_PIPELINES:
        yield from map(_pipeline_row, pipelines)
        return
    groups: dict[tuple[str, str], list[PipelineStatus]] = {}
    for pipeline in pipelines:
        identity = PipelineId.parse(pipeline.name)
        groups.setdefault((identity.source, identity.store), []).append(pipeline)
    for (source, store), parts in groups.items():
        if len(parts) == 1:
            yield _pipeline_row(parts[0])
            continue
        yield _folded(f"{source}.*.{store}", parts)
        unwell = [pipeline for pipeline in parts if not pipeline.keeps_up]
        yield from map(_pipeline_row, unwell[:MOST_NAMES])
        if (left := len(unwell) - MOST_NAMES) > 0:
            yield (f"and {left} more that {agreeing(left, 'are')} not well", *[""] * 7)


def _folded(name: str, pipelines: Sequence[PipelineStatus]) -> tuple[str, ...]:
    states = [pipeline.condition for pipeline in pipelines]
    waiting = [pipeline.waiting for pipeline in pipelines if pipeline.waiting is not None]
    owners = {_owner(pipeline) for pipeline in pipelines} - {None}
    ages = [pipeline.reported_s_ago for pipeline in pipelines if pipeline.reported_s_ago is not None]
    return (
        name,
        states[0] if len(set(states)) == 1 else _each_counted(states),
        f"{max(pipeline.lag_s for pipeline in pipelines):.1f} s",
        f"{sum(waiting):,}" if waiting else "-",
        f"{sum(map(shown_rate, pipelines)):,}",
        counted(len(owners), "processes"),
        counted(len(pipelines), "partitions"),
        shown_age(max(ages, default=None)),
    )


def _pipeline_row(pipeline: PipelineStatus) -> tuple[str, ...]:
    return (
        pipeline.name,
        pipeline.condition,
        f"{pipeline.lag_s:.1f} s",
        "-" if pipeline.waiting is None else f"{pipeline.waiting:,}",
        f"{shown_rate(pipeline):,}",
        _owner(pipeline) or "-",
        pipeline.position or "-",
        shown_age(pipeline.reported_s_ago),
    )


def _owner(pipeline: PipelineStatus) -> str | None:
    """The process that has it; what is down belongs to nobody."""
    return None if pipeline.state == "down" else pipeline.owner or None


def shown_rate(pipeline: PipelineStatus) -> int:
    """An idle pipeline reports rarely: what it said of a busy moment is not true of now."""
    return pipeline.rows_per_second if (pipeline.reported_s_ago or 0) < _RATE_IS_FRESH_S else 0


def shown_age(seconds: float | None) -> str:
    """Return how long ago; - where that is not known."""
    return "-" if seconds is None else f"{seconds:.0f} s ago"


def _member_rows(members: Sequence[Member]) -> Iterator[tuple[str, ...]]:
    for member in members[:MOST_MEMBERS]:
        role = "tailer" if member.store in _TAILERS else "projector"
        assigned = "-" if member.assigned is None else str(len(member.assigned))
        yield member.name, member.state, member.store, role, str(len(member.pipelines)), assigned, member.since or "-"
    if len(members) > MOST_MEMBERS:
        states = [member.state for member in members[MOST_MEMBERS:]]
        yield f"and {len(states)} more", _each_counted(states), *[""] * 5


def _each_counted(states: Sequence[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(Counter(states).items()))


def _view_row(where: str, view: ViewStatus) -> tuple[str, ...]:
    filled = "-" if view.filled_percent is None else f"{view.filled_percent:.0f} %"
    if view.eta_s is not None:
        filled += f", {view.rows_per_second:,.0f}/s, {view.eta_s:.0f} s left"
    name = f"{view.name} ({where})" if where else view.name
    return (name, view.state, filled, f"{view.row_count:,}", str(view.parked), view.proven_through or "-")


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Colours on a terminal; columns of plain text otherwise, never cut."""
    if sys.stdout.isatty():
        from rich.text import Text  # nothing of it is needed elsewhere

        coloured: list[list[str | Text]] = [
            [row[0], Text(row[1], STYLES.get(row[1], "yellow")), *row[2:]] for row in rows
        ]
        print_table(titles, coloured, right=_RIGHT)
        return
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = (
            text.rjust(width) if title in _RIGHT else text.ljust(width)
            for title, text, width in zip(titles, row, widths, strict=True)
        )
        print("  ".join(cells).rstrip())
