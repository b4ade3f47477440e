"""`viewtail status`: how each pipeline and view is doing, and what to do where something is not well."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from ingest import Sharer
from offsets.copies import Stage, all_records
from offsets.pipelines import positions
from offsets.runs import under_way
from projectors.stores.registry import STORES
from viewtail import declarations, settings
from viewtail.changes.errors import MisuseError, ViewtailError, once
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.positions import Position
from viewtail.commands.output import print_json
from viewtail.commands.status_page import print_page
from viewtail.operations.findings import Findings, as_owned, compared, known, says_its_lag
from viewtail.operations.fleet import Noted
from viewtail.operations.fleet import fleet as as_fleet
from viewtail.operations.fleet import read as read_fleet
from viewtail.operations.remarks import remarks
from viewtail.operations.runs import COMPARISON
from viewtail.operations.status import PipelineStatus, read
from viewtail.servers.patience import QUESTION
from viewtail.servers.sessions import asking
from viewtail.sources import read_position

Positions: TypeAlias = Mapping[str, Position]  # by pipeline
_KEEPS_EVERY_CHANGE = frozenset(store.name for store in STORES if store.keeps_every_change)


def status(loaded: settings.Settings, *, as_json: bool) -> int:
    """Print every pipeline and view; the exit code is 1 when one is down, behind, halted or has parked keys."""
    # Who asks wants to know now; a server that hangs is an answer.
    loaded = loaded.asked_with(QUESTION.once())
    address = replace(loaded.store_address(), database=None)
    database = loaded.store_database
    with asking(address, role="store") as connection:
        pipelines, noted = read(connection, database, read_position), read_fleet(connection, database)
        with connection.cursor() as cursor:
            seen = _seen(loaded, pipelines, noted, positions(cursor, database, read_position))
            comparing = under_way(cursor, database, COMPARISON) if pipelines else {}
            copies = all_records(cursor, database)
    gone_back = sorted(copy.view for copy in copies if copy.stage is Stage.ENDED and copy.choice is not None)
    beside = [copy for copy in copies if copy.stage is not Stage.ENDED]
    seen = replace(seen, rebuilds=beside, comparing=comparing, gone_back=gone_back)
    found = compared(seen, declared(loaded), database, is_shared_out=loaded.source_kind.is_shared_out)
    if as_json:
        print_json(_as_json(found))
    elif not pipelines and not found.fleet.members:
        print(f"viewtail has not run yet with the database {database} at {address}. Start it with: viewtail run")
    else:
        print_page(found.pipelines, found.fleet, remarks(found))
    return 0 if found.is_well else 1


@dataclass(slots=True)
class _Said:
    """What the source says, as far as it answered."""

    risk: str | None = None
    waiting: Mapping[str, int] = field(default_factory=dict)
    ages: Mapping[str, float] = field(default_factory=dict)
    shared: Sequence[Sharer] | None = None
    keeps_s: float | None = None
    error: str | None = None

    def ask(
        self, loaded: settings.Settings, pipelines: Sequence[PipelineStatus], stores: Collection[str], at: Positions
    ) -> None:
        """`stores`: those in use whose pipelines members of a group share."""
        kind, access = loaded.source_kind, loaded.source_access()
        self.risk = kind.risk(access)
        self.waiting = kind.waiting(access, at)
        unsaid = {one.name for one in pipelines if self.waiting.get(one.name) and not says_its_lag(one)}
        self.ages = kind.ages(access, {name: at[name] for name in unsaid})
        self.shared = kind.sharers(access, sorted(stores))
        if any(one.paused for one in pipelines):
            self.keeps_s = kind.keeps_s(access)


def _seen(loaded: settings.Settings, pipelines: Sequence[PipelineStatus], noted: Noted, at: Positions) -> Findings:
    """Return what viewtail's own tables say, and what the source adds to it, where it answers."""
    in_use = {PipelineId.parse(one.name).store for one in pipelines} | {one.store for one in noted.members}
    pipelines = [as_owned(one, noted) for one in pipelines]
    source = _Said()
    try:
        source.ask(loaded, pipelines, in_use - _KEEPS_EVERY_CHANGE, at)
    except ViewtailError as error:
        source.error = once(error)
    fleet = as_fleet(noted, source.shared)
    return Findings(
        pipelines=known(pipelines, fleet, source.waiting, source.ages),
        fleet=fleet,
        source_error=source.error,
        risk=source.risk,
        keeps_s=source.keeps_s,
        not_run=[],
        retired=[],
    )


def declared(loaded: settings.Settings) -> set[str] | None:
    """The ids of the declared views; None when views.py cannot be loaded: `status` shows the rest all the same."""
    try:
        return {view.id for view in declarations.load(loaded.views)}
    except MisuseError:
        return None


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
        "rebuilds": [
            {**copy.as_json(), "is_being_compared": copy.copy_id in found.comparing} for copy in found.rebuilds
        ],
    }
