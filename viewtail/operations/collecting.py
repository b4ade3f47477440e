"""Collects what `status` shows: what viewtail's own tables say, and what the source adds to it, where it answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ingest import Margin, Sharer
from offsets.copies import Copy, Stage, all_records
from offsets.pipelines import positions
from offsets.runs import under_way
from projectors.servers import Servers
from projectors.stores.registry import STORES
from viewtail.changes.errors import ViewtailError, once
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.positions import Position
from viewtail.operations import fleet
from viewtail.operations.findings import Findings, as_owned, known, says_its_lag
from viewtail.operations.runs import COMPARISON
from viewtail.operations.status import PipelineStatus, read

_KEEPS_EVERY_CHANGE = frozenset(store.name for store in STORES if store.keeps_every_change)


def collected(servers: Servers, others: Sequence[Servers] = ()) -> Findings:
    """Return everything but what the declarations add: findings.py `compared`. Raises ViewtailError without MySQL.

    `others`: of other sources of the same deployment.
    """
    database, read_position = servers.database, servers.read_position
    with servers.asking_own() as connection:
        pipelines, noted = read(connection, database, read_position), fleet.read(connection, database)
        with connection.cursor() as cursor:
            in_use = {PipelineId.parse(pipeline.name).store for pipeline in pipelines}
            in_use.update(member.store for member in noted.members)
            pipelines = [as_owned(pipeline, noted) for pipeline in pipelines]
            offsets = positions(cursor, database, read_position)
            source = _SourceAnswers.of(servers, pipelines, in_use - _KEEPS_EVERY_CHANGE, offsets)
            comparing = under_way(cursor, database, COMPARISON) if pipelines else {}
            copies = all_records(cursor, database)
    whole_fleet = fleet.fleet(noted, source.shared)
    pipelines = known(pipelines, whole_fleet, source.waiting, source.ages)
    for each in (servers, *others):
        source.ask_margins(each, pipelines, offsets)
    return Findings(
        pipelines=pipelines,
        fleet=whole_fleet,
        source_error=source.error,
        risk=source.risk,
        margins=source.margins,
        rebuilds=[copy for copy in copies if copy.stage is not Stage.ENDED],
        comparing=comparing,
        gone_back=sorted(copy.view for copy in copies if _is_declined(copy)),
    )


def _is_declined(copy: Copy) -> bool:
    """Return whether an operator went back to the declaration of before."""
    return copy.stage is Stage.ENDED and copy.choice is not None


@dataclass(slots=True)
class _SourceAnswers:
    """The answers of the source, or of several, as far as they gave them."""

    risk: str | None = None
    waiting: Mapping[str, int] = field(default_factory=dict)
    ages: Mapping[str, float] = field(default_factory=dict)
    shared: Sequence[Sharer] | None = None
    margins: dict[str, Margin] = field(default_factory=dict)  # by pipeline
    error: str | None = None

    @classmethod
    def of(
        cls,
        servers: Servers,
        pipelines: Sequence[PipelineStatus],
        stores: Collection[str],
        offsets: Mapping[str, Position],
    ) -> _SourceAnswers:
        """`stores`: those in use whose pipelines members of a group share."""
        answers = cls()
        with answers._errors_of(servers):
            answers._ask(servers, pipelines, stores, offsets)
        return answers

    def ask_margins(
        self, servers: Servers, pipelines: Sequence[PipelineStatus], offsets: Mapping[str, Position]
    ) -> None:
        """Ask a source how long it keeps what its pipelines need next."""
        lags_s = {each.name: each.lag_s for each in pipelines if servers.keeps(each.name)}
        positions = {name: position for name, position in offsets.items() if name in lags_s}
        if positions:
            with self._errors_of(servers):
                self.margins |= servers.kind.margins(servers.source(), positions, lags_s)

    @contextmanager
    def _errors_of(self, servers: Servers) -> Iterator[None]:
        try:
            yield
        except ViewtailError as error:
            what = f"source {servers.named_source}: {once(error)}" if servers.named_source else once(error)
            if self.error is None or what not in self.error:  # it was asked two things
                self.error = what if self.error is None else f"{self.error}; {what}"

    def _ask(
        self,
        servers: Servers,
        pipelines: Sequence[PipelineStatus],
        stores: Collection[str],
        offsets: Mapping[str, Position],
    ) -> None:
        kind, access = servers.kind, servers.source()
        self.risk = kind.risk(access)
        self.waiting = kind.waiting(access, offsets)
        unsaid = {each.name for each in pipelines if self.waiting.get(each.name) and not says_its_lag(each)}
        self.ages = kind.ages(access, {name: offsets[name] for name in unsaid})
        self.shared = kind.sharers(access, sorted(stores))
