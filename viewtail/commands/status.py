"""`viewtail status`: how each pipeline and view is doing, and what to do where something is not well."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from changes.errors import MisuseError, ViewtailError, once
from changes.pipelines import PipelineId
from changes.positions import Position
from changes.retrying import PAUSED
from ingest import Sharer
from operations.fleet import Fleet, Noted
from operations.fleet import fleet as as_fleet
from operations.fleet import read as read_fleet
from operations.other_apps import MEND, OtherApp, kept_now, other_app
from operations.runs import COMPARISON, under_way
from operations.status import BUSY_ABOVE_S, PipelineStatus, is_replaced, positions, read
from projectors.rebuilds import Rebuild, Stage, all_rebuilds, gone_back
from projectors.stores.registry import STORES
from projectors.views import is_copy, view_of
from servers.patience import QUESTION
from servers.sessions import asking
from viewtail import declarations, settings
from viewtail.commands.output import print_json
from viewtail.commands.status_page import print_page
from viewtail.sources import read_position

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
    rebuilds: Sequence[Rebuild] = ()  # of the views that have a second copy
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


def status(loaded: settings.Settings, *, as_json: bool) -> int:
    """Print every pipeline and view; the exit code is 1 when one is down, behind, halted or has parked keys."""
    # Who asks wants to know now; a server that hangs is an answer.
    loaded = loaded.asked_with(QUESTION.once())
    address = replace(loaded.store_address(), database=None)
    database = loaded.store_database
    with asking(address, role="store") as connection:
        pipelines, noted = read(connection, database, read_position), read_fleet(connection, database)
        seen = _seen(loaded, pipelines, noted, positions(connection, database, read_position))
        with connection.cursor() as cursor:
            comparing = under_way(cursor, database, COMPARISON)
            seen = replace(seen, rebuilds=all_rebuilds(cursor, database), comparing=comparing)
            seen = replace(seen, gone_back=gone_back(cursor, database))
    found = compared(loaded, seen, declared(loaded))
    if as_json:
        print_json(_as_json(found))
    elif not pipelines and not found.fleet.members:
        print(f"viewtail has not run yet with the database {database} at {address}. Start it with: viewtail run")
    else:
        print_page(found.pipelines, found.fleet, remarks(found))
    return 0 if found.is_well else 1


def _seen(
    loaded: settings.Settings, pipelines: Sequence[PipelineStatus], noted: Noted, at: Mapping[str, Position]
) -> Findings:
    """What viewtail's own tables say, and what the source adds to it, where it answers."""
    kind, stores = loaded.source_kind, {store.name for store in STORES if not store.keeps_every_change}
    in_use = {PipelineId.parse(one.name).store for one in pipelines} | {one.store for one in noted.members}
    waiting: Mapping[str, int] = {}
    ages: Mapping[str, float] = {}
    shared: Sequence[Sharer] | None = None
    keeps_s: float | None = None
    source_error = risk = None
    pipelines = [as_owned(one, noted) for one in pipelines]
    try:
        access = loaded.source_access()
        risk = kind.risk(access)
        waiting = kind.waiting(access, at)
        unsaid = {one.name for one in pipelines if waiting.get(one.name) and not _says_its_lag(one)}
        ages = kind.ages(access, {name: at[name] for name in unsaid})
        shared = kind.sharers(access, sorted(stores & in_use))
        keeps_s = kind.keeps_s(access) if any(one.paused for one in pipelines) else None
    except ViewtailError as error:
        source_error = once(error)
    fleet = as_fleet(noted, shared)
    known = [
        replace(
            one,
            waiting=waiting.get(one.name),
            lag_s=_lag_s(one, waiting.get(one.name), ages.get(one.name)),
            owner=fleet.owners[one.name].process if one.name in fleet.owners else one.owner,
            owned_since=fleet.owners[one.name].taken_at if one.name in fleet.owners else None,
        )
        for one in pipelines
    ]
    return Findings(
        pipelines=known, fleet=fleet, source_error=source_error, risk=risk, keeps_s=keeps_s, not_run=[], retired=[]
    )


def as_owned(one: PipelineStatus, noted: Noted) -> PipelineStatus:
    """As it is where another process took it since the last report: the word of the one before counts no more.

    One that holds its lease, and whose reporter is silent, is another process's that has not noted itself yet.
    """
    owner = noted.owners.get(one.name)
    is_of_another = owner is not None and owner.process != one.owner and owner.taken_s_ago < (one.reported_s_ago or 0.0)
    if one.state in ("down", PAUSED) or not (is_of_another or (one.state == "running" and one.owner in noted.silent)):
        return one
    return replace(one, state="starting", rows_per_second=0, error=None, reported_s_ago=None)


def _lag_s(one: PipelineStatus, waiting: int | None, age_s: float | None) -> float:
    """As the source says; else as the pipeline does."""
    if age_s is not None:
        return age_s
    return 0.0 if one.state in (PAUSED, "down") and waiting == 0 else one.lag_s


def _says_its_lag(one: PipelineStatus) -> bool:
    return one.state == "running" and one.reported_s_ago is not None and one.reported_s_ago < _SAID_IS_FRESH_S


def declared(loaded: settings.Settings) -> set[str] | None:
    """The ids of the declared views; None when views.py cannot be loaded: `status` shows the rest all the same."""
    try:
        return {view.id for view in declarations.load(loaded.views)}
    except MisuseError:
        return None


def compared(loaded: settings.Settings, found: Findings, declared: set[str] | None) -> Findings:
    """With what the declarations and the source of these settings make of it."""
    other = None if declared is None else other_app(found.pipelines, loaded.store_database, declared)
    with_declared = found if declared is None else _compared(found, declared)
    return _of_this_source(loaded, replace(with_declared, other_app=other))


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


def _of_this_source(loaded: settings.Settings, found: Findings) -> Findings:
    """Without pipelines whose views another source keeps by now. Where that is Kafka, others publish the topics."""
    kept = [one for one in found.pipelines if not is_replaced(one, found.pipelines)]
    published = {store.name for store in STORES if store.keeps_every_change and loaded.source_kind.is_shared_out}
    return replace(
        found, pipelines=kept, not_run=[view for view in found.not_run if view.partition(":")[0] not in published]
    )


def _is_shown(pipeline: PipelineStatus, declared: set[str]) -> bool:
    """Whether it keeps a declared view, or has just begun and knows none yet."""
    if not pipeline.views:
        return pipeline.state != "down"
    return any(view.name in declared for view in pipeline.views)


def _soon_gone(one: PipelineStatus, keeps_s: float | None) -> str:
    return (
        f"pipeline {one.name}: it stands where the source was {_hours(one.lag_s)} ago, and the source keeps "
        f"changes for {_hours(keeps_s or 0.0)}. Let the source keep them longer, or go on before they are gone "
        f"(viewtail resume --pipeline {one.name}): else every view of it must be backfilled again"
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"


def _as_json(found: Findings) -> dict[str, Any]:
    fleet = found.fleet
    return {
        "is_well": found.is_well,
        "pipelines": [{**asdict(one), "is_well": one.is_well} for one in found.pipelines],
        "members": [asdict(one) for one in fleet.members],
        "fenced": [asdict(one) for one in fleet.fenced],
        "last_takeover": None if fleet.last_takeover is None else asdict(fleet.last_takeover),
        "source_error": found.source_error,
        "risk": found.risk,
        "nearly_gone": [one.name for one in found.nearly_gone],
        "not_run": found.not_run,
        "retired": found.retired,
        "kept_by_another": dict(found.kept),
        "other_app": None if found.other_app is None else str(found.other_app),
        "gone_back": found.gone_back,
        "rebuilds": [{**asdict(one), "is_being_compared": one.copy_id in found.comparing} for one in found.rebuilds],
    }


def remarks(found: Findings) -> list[str]:
    """Of the declarations and the source."""
    lines = [] if found.risk is None else [found.risk]
    lines += [_soon_gone(one, found.keeps_s) for one in found.nearly_gone]
    lines += _of_this_app(found) if found.other_app is None else _beside_another(found, found.other_app)
    lines += [
        f"view {name} is not declared any more. The next `viewtail run` leaves it, and what it shows, as it is. To get "
        f"it back, declare it again: viewtail backfills it. Or forget it: viewtail forget {name}"
        for name in found.retired
        if name not in found.kept
    ]
    lines += [_of_rebuild(one, found) for one in found.rebuilds if one.view not in found.retired]
    lines += [
        f"view {name} is as it was declared before (previous=), as an operator wants it. To have what views.py "
        f"declares now built beside it: viewtail rebuild {name}"
        for name in found.gone_back
    ]
    if found.source_error is not None:
        lines.append(
            f"the source does not say what waits in it, nor who is in its group ({found.source_error}). What "
            "stands above is from MySQL alone"
        )
    return lines


def _beside_another(found: Findings, other: OtherApp) -> list[str]:
    """Of another app's viewtail, which keeps this one's from running."""
    return [f"{other}. {MEND}", *_not_seen(found, "One that is started stands by for the other one")]


def _of_this_app(found: Findings) -> list[str]:
    """Of views that no run has seen, and of those that one keeps which are not in this views.py."""
    kept = [
        f"view {name} is not declared in this views.py, and the viewtail that runs ({process}) keeps it: it was "
        "started with another one. Where that is this app's, it leaves the view when it is restarted"
        for name, process in found.kept.items()
    ]
    return [*_not_seen(found, "Start one: viewtail run"), *kept]


def _not_seen(found: Findings, start: str) -> Iterator[str]:
    return (f"view {name} is declared, but no run has seen it yet. {start}" for name in found.not_run)


def _of_rebuild(one: Rebuild, found: Findings) -> str:
    note = "" if one.note is None else f" It could not be swapped: {one.note}."
    kept = "" if one.kept_s is None else f" It is kept for {max(0.0, one.kept_s) / 3600:.1f} h more."
    stage = f"{one.stage}, and being compared with its table" if one.copy_id in found.comparing else one.stage
    what = f"{one.copy_id} is the copy beside view {one.view}, {stage}, asked for by {one.started_by}.{note}{kept}"
    if one.move is not None:
        return f"{what} Readers get the other copy entity by entity, {one.moved_count:,} so far; both are up to date"
    if one.is_paused and one.stage is not Stage.DROPPING:
        return f"{what} The view is paused, so nothing is swapped. First: viewtail resume {one.view}"
    if one.stage is Stage.DROPPING:
        return f"{what} It is being dropped, by the next `viewtail run` if none runs"
    if (why := _why_not_swapped(one, found)) is not None:
        return f"{what} {why}. To have it compared and swapped all the same: viewtail rebuild {one.view}"
    if one.live > one.copy:
        return f"{what} To give it to readers again: viewtail rebuild {one.view} --rollback"
    return f"{what} To go on: viewtail rebuild {one.view}. To drop it: viewtail rebuild {one.view} --abort"


def _why_not_swapped(one: Rebuild, found: Findings) -> str | None:
    """Why the filled copy of a changed declaration is not compared now; None of others."""
    if not one.is_automatic or one.stage is not Stage.BUILDING or one.is_compared:
        return None
    for pipeline in found.pipelines:
        is_filled = any(view.name == one.copy_id and view.state == "filled" for view in pipeline.views)
        if is_filled and pipeline.state != "down" and pipeline.lag_s > BUSY_ABOVE_S:
            return (
                f"viewtail compares it with its table, and then swaps it, only while pipeline {pipeline.name} is less "
                f"than {BUSY_ABOVE_S:.0f} s behind, and it is {pipeline.lag_s:.1f} s behind now"
            )
    return None
