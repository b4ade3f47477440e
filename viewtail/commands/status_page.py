"""What `viewtail status` prints for people: tables that fit a screen, and a line for everything that is not well.

A large fleet is folded: partitions of one topic and store are one line, and only those that are not well are listed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from changes.counting import agreeing, counted
from changes.pipelines import DEFAULT_SOURCE, PipelineId
from operations.fleet import Fleet, Member, Takeover
from operations.status import BEHIND_S, PipelineStatus, ViewStatus, as_one
from projectors.stores.registry import STORES
from projectors.views import is_copy, view_of
from viewtail.commands.output import print_table

MOST_PIPELINES = 16  # that are listed one by one
MOST_MEMBERS = 12
_MOST_NAMES = 3  # in a sentence
_RATE_IS_FRESH_S = 10.0
_RIGHT = frozenset({"lag", "waiting", "rows/s", "rows", "filled", "parked", "reported", "pipelines", "assigned"})
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
        _table(("view", "state", "filled", "rows", "parked", "proven through"), views)
    for line in (*told(pipelines), *_of_fleet(fleet), *remarks):
        print(f"\n{line}")


# --- Rows ---


def _pipeline_rows(pipelines: Sequence[PipelineStatus]) -> Iterator[tuple[str, ...]]:
    if len(pipelines) <= MOST_PIPELINES:
        yield from map(_pipeline_row, pipelines)
        return
    groups: dict[tuple[str, str], list[PipelineStatus]] = {}
    for one in pipelines:
        identity = PipelineId.parse(one.name)
        groups.setdefault((identity.source, identity.store), []).append(one)
    for (source, store), ones in groups.items():
        if len(ones) == 1:
            yield _pipeline_row(ones[0])
            continue
        yield _folded(f"{source}.*.{store}", ones)
        unwell = [one for one in ones if one.state != "running" or is_behind(one)]
        yield from map(_pipeline_row, unwell[:_MOST_NAMES])
        if (left := len(unwell) - _MOST_NAMES) > 0:
            yield (f"and {left} more that {agreeing(left, 'are')} not well", *[""] * 7)


def _folded(name: str, ones: Sequence[PipelineStatus]) -> tuple[str, ...]:
    states = [shown_state(one) for one in ones]
    counts = {state: states.count(state) for state in sorted(set(states))}
    waiting = [one.waiting for one in ones if one.waiting is not None]
    owners = {one.owner for one in ones if one.owner and one.state != "down"}
    return (
        name,
        states[0] if len(counts) == 1 else ", ".join(f"{count} {state}" for state, count in counts.items()),
        f"{max(one.lag_s for one in ones):.1f} s",
        f"{sum(waiting):,}" if waiting else "-",
        f"{sum(map(shown_rate, ones)):,}",
        counted(len(owners), "processes"),
        counted(len(ones), "partitions"),
        shown_age(max((one.reported_s_ago for one in ones if one.reported_s_ago is not None), default=None)),
    )


def _pipeline_row(one: PipelineStatus) -> tuple[str, ...]:
    return (
        one.name,
        shown_state(one),
        f"{one.lag_s:.1f} s",
        "-" if one.waiting is None else f"{one.waiting:,}",
        f"{shown_rate(one):,}",
        (one.state != "down" and one.owner) or "-",
        one.position or "-",
        shown_age(one.reported_s_ago),
    )


def is_behind(one: PipelineStatus) -> bool:
    """Whether it runs, and its lag is too large all the same."""
    return one.state == "running" and one.lag_s > BEHIND_S


def shown_state(one: PipelineStatus) -> str:
    """Its state, or that it is behind."""
    return "behind" if is_behind(one) else one.state


def shown_rate(one: PipelineStatus) -> int:
    """An idle pipeline reports rarely: what it said of a busy moment is not true of now."""
    return one.rows_per_second if (one.reported_s_ago or 0) < _RATE_IS_FRESH_S else 0


def shown_age(seconds: float | None) -> str:
    """How long ago; - where that is not known."""
    return "-" if seconds is None else f"{seconds:.0f} s ago"


def _member_rows(members: Sequence[Member]) -> Iterator[tuple[str, ...]]:
    for one in members[:MOST_MEMBERS]:
        role = "tailer" if one.store in _TAILERS else "projector"
        assigned = "-" if one.assigned is None else str(len(one.assigned))
        yield one.name, one.state, one.store, role, str(len(one.pipelines)), assigned, one.since or "-"
    if len(members) > MOST_MEMBERS:
        states = [one.state for one in members[MOST_MEMBERS:]]
        counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        yield f"and {len(states)} more", counts, *[""] * 5


def each_view(pipelines: Sequence[PipelineStatus]) -> list[tuple[str, ViewStatus]]:
    """Each view once a source, and that source where it is not the default one."""
    found: dict[tuple[str, str], list[ViewStatus]] = {}
    for one in pipelines:
        identity = PipelineId.parse(one.name)
        where = "" if identity.is_default else one.name if identity.source == DEFAULT_SOURCE else identity.source
        for view in one.views:
            found.setdefault((where, view.name), []).append(view)
    return [(where, as_one(views)) for (where, _), views in found.items()]


def _view_row(where: str, view: ViewStatus) -> tuple[str, ...]:
    filled = "-" if view.filled_percent is None else f"{view.filled_percent:.0f} %"
    if view.eta_s is not None:
        filled += f", {view.rows_per_second:,.0f}/s, {view.eta_s:.0f} s left"
    name = f"{view.name} ({where})" if where else view.name
    return (name, view.state, filled, f"{view.row_count:,}", str(view.parked), view.proven_through or "-")


# --- Remarks: each ends with what to do ---


def told(pipelines: Sequence[PipelineStatus]) -> Iterator[str]:
    """Of pipelines and views that are not well."""
    yield from _of_pipelines(pipelines)
    yield from _of_paused(pipelines)
    yield from _of_views(pipelines)


def _of_pipelines(pipelines: Sequence[PipelineStatus]) -> Iterator[str]:
    named: dict[str, list[str]] = {}
    for one in pipelines:
        if one.error:
            named.setdefault(one.error, []).append(one.name)
        elif is_behind(one):
            yield (
                f"pipeline {one.name}: {one.lag_s:.0f} s behind. While lag falls it is catching up; when it rises, the "
                "store is slower than the changes come: docs/operations.md, Behind"
            )
    for error, names in named.items():
        yield f"{_listed('pipeline', names)}: {error}"


def _of_paused(pipelines: Sequence[PipelineStatus]) -> Iterator[str]:
    paused: dict[str, list[str]] = {}
    for one in pipelines:
        if one.paused is not None:
            paused.setdefault(str(one.paused), []).append(one.name)
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
        elif view.reason:
            yield f"view {view.name} is halted: {view.reason}"
        if view.parked:
            keys, of = counted(view.parked, "keys"), view_of(view.name)
            mend = f"viewtail replay {view.name}"
            if is_copy(view.name):
                mend = f"viewtail rebuild {of} --abort drops this copy, and viewtail rebuild {of} builds one anew"
            yield (
                f"view {view.name}: {keys} could not be applied; all others were. The reasons: viewtail "
                f"dead-letters list {view.name}. When they are mended: {mend}"
            )


def _of_fleet(fleet: Fleet) -> Iterator[str]:
    for one in fleet.fenced[:_MOST_NAMES]:
        what = "is silent" if one.is_silent else "is fenced"
        yield f"{one.taken_from} {what}: {_taken(one)} {_believes(one)}"
    if (left := len(fleet.fenced) - _MOST_NAMES) > 0:
        yield f"{left} more {agreeing(left, 'are')} fenced: viewtail status --json"
    last = fleet.last_takeover
    if last is not None and last not in fleet.fenced:
        yield f"last takeover: {_taken(last)}"
    unknown = [one.name for one in fleet.members if one.state == "unknown"]
    if unknown:
        yield (
            f"{_listed('member', unknown)}: in the consumer group, but not noted in MySQL. Where that is no viewtail "
            "of this deployment, it takes partitions that views need: end it, or set another VIEWTAIL_SOURCE__GROUP"
        )


def _taken(one: Takeover) -> str:
    return (
        f"{one.process} took {_listed('pipeline', one.pipelines)} from {one.taken_from} at {one.at} UTC, "
        f"{one.s_ago:.0f} s ago."
    )


def _believes(one: Takeover) -> str:
    if one.is_silent:
        return "It died, or hangs. It is fenced: if it wakes up, its writes are refused and it stands by"
    return "It lives, and may believe that it owns them still: its next write is refused, and then it stands by"


def _listed(what: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{what} {names[0]}"
    rest = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{what}s {', '.join(names[:_MOST_NAMES])}{rest}"


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
