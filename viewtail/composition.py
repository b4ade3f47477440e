"""Puts one pipeline together from settings and declarations; the only place that knows every implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pymysql
import structlog

from ingest import History, SourceAccess, Tables
from ingest.canonical import Descriptions, is_denied
from ingest.limits import Limits
from offsets import deployments, epochs, schema
from offsets.mysql import OwnSession, saved_position
from projectors.binding import bind, declaration_hash, named_columns
from projectors.stores import Store
from projectors.stores.access import Access
from projectors.stores.owners import Claimant
from projectors.stores.registry import STORES, store_named
from projectors.view_states import GETS_NOTHING, ViewStates, kept_elsewhere, known_views, places_ours
from projectors.views import BoundView, View
from projectors.watermarks import WatermarkPlace
from viewtail.changes.errors import DeclarationError, SourceError, TemporaryError, ViewtailError
from viewtail.changes.pipelines import DEFAULT_SOURCE, PipelineId
from viewtail.changes.positions import Position
from viewtail.operations import status
from viewtail.operations.check import check_patterns, check_read_back, tables_of
from viewtail.operations.status import PipelineStatus
from viewtail.servers.facts import facts_of
from viewtail.servers.patience import COMMAND
from viewtail.servers.sessions import Connection, asking, open_session, session_error
from viewtail.settings import Settings
from viewtail.sources import read_position

_log = structlog.get_logger("viewtail.composition")

_READERS = 1000  # numbers for readers beside the pipelines, each of which logs in under its own


@dataclass(slots=True, kw_only=True)
class Deployment:
    """Settings and bound views, and how to reach every server."""

    settings: Settings
    views: list[BoundView] = field(default_factory=list)
    left_out: Sequence[View] = ()  # halted ones whose table does not fit them
    mark: Callable[[Connection], None] = lambda _: None  # of the owner's lease, for its sessions

    @property
    def limits(self) -> Limits:
        """Of what a pipeline holds between reading and writing."""
        return self.settings.run

    @property
    def is_cleaned(self) -> bool:
        """Whether a cleaner looks after the views."""
        return self.settings.cleaner.share > 0

    @property
    def marks(self) -> WatermarkPlace:
        """Where watermarks are written."""
        if not self.settings.source_kind.has_watermarks:
            return WatermarkPlace(self.open_store, self.database, is_with_rows=False)
        claimant = self.claimant()
        of = "" if claimant is None else claimant.id[:8]
        return WatermarkPlace(
            self.open_primary, self.settings.source.database, why_missing=self._why_missing, deployment=of
        )

    def _why_missing(self, watermark: str) -> str | None:
        return self.settings.source_kind.why_missing(self.settings.source_access(), watermark)

    def is_filtered(self) -> bool:
        """Whether statements that put other rows into tables may be missing from what the source tells."""
        return self.settings.source_kind.is_filtered(self.settings.source_access())

    @property
    def database(self) -> str:
        """Of index tables and viewtail's own tables."""
        return self.settings.store_database

    def open_source(self) -> Connection:
        return open_session(self.settings.source_address(), role="source")

    def open_limited(self, seconds: float) -> Connection:
        """On the source, for SELECTs that may take long: the server ends one that takes longer than so many seconds."""
        address = self.settings.source_address()
        connection = open_session(address, role="source")
        try:
            connection.query(facts_of(connection).select_limit.format(ms=round(seconds * 1000)))
        except pymysql.err.MySQLError as error:
            connection.close()
            raise session_error(error, address, "source") from None
        return connection

    def open_primary(self) -> Connection:
        return open_session(self.settings.primary_address(), role="source")

    def open_store(self) -> Connection:
        """On the server of index tables and offsets; no database is selected, it may not exist yet."""
        connection = open_session(replace(self.settings.store_address(), database=None), role="store")
        self.mark(connection)
        return connection

    def views_of(self, store: str) -> list[BoundView]:
        return [view for view in self.views if view.view.store == store]

    def stores(self) -> list[str]:
        """The stores that some view needs."""
        needed = {view.store for view in self._declared()}
        return [store.name for store in STORES if store.name in needed]

    def pipelines(self) -> list[PipelineId]:
        """One for each store that some view needs, and each part of the source that holds changes for it."""
        kind, access = self.settings.source_kind, self.settings.source_access()
        return [
            PipelineId(source, partition, store)
            for store in self.stores()
            for source, partition in kind.parts(access, self._tables(store))
        ]

    def siblings(self, pipeline: PipelineId) -> list[PipelineId]:
        """All parts of a pipeline's source, that of the pipeline too: together they keep the same views."""
        kind, access = self.settings.source_kind, self.settings.source_access()
        parts = kind.parts(access, self._tables(pipeline.store))
        return [PipelineId(source, part, pipeline.store) for source, part in parts if source == pipeline.source]

    def _declared(self) -> list[View]:
        return [*(view.view for view in self.views), *self.left_out]

    def _tables(self, store: str) -> Tables:
        return tables_of([view for view in self._declared() if view.store == store])

    def create_tables(self) -> None:
        """viewtail's own tables, on the store's server and on the source's primary."""
        with closing(self.open_store()) as connection:
            schema.create(connection, self.settings.store_address(), self.database, schema.STORE_TABLES, role="store")
        has_watermarks = self.settings.source_kind.has_watermarks
        address = self.settings.primary_address() if has_watermarks else self.settings.store_address()
        with closing(self.marks.open()) as connection:
            schema.create(connection, address, self.marks.schema, schema.SOURCE_TABLES, role="source")

    def history(self, pipeline: PipelineId) -> History:
        """The source's present history, for a pipeline; its epoch is new when another server continues what was read.

        Raises HistoryGoneError when another server does not.
        """
        number = len(STORES) * pipeline.partition + STORES.index(store_named(pipeline.store))
        now = self.settings.source_kind.history(self.settings.source_access(), pipeline, number)

        def check_continues(before: str) -> None:
            if saved is not None:
                now.check_continues(saved, before)

        with closing(OwnSession(self.open_store)) as session:
            saved = saved_position(session, self.database, pipeline.name, read_position)
            epoch = epochs.current(session, self.database, pipeline.source, str(now), check_continues)
        return now.at(epoch)

    def history_beside(self, number: int) -> History:
        """The source's history as the pipelines know it, for a reader beside them; `number` tells such readers apart.

        Raises SourceError where they know of none, or of another server's.
        """
        kind, access = self.settings.source_kind, self.settings.source_access()
        now = kind.history(access, PipelineId.of(STORES[0].name), len(STORES) + number)
        with closing(OwnSession(self.open_store)) as session:
            known = epochs.known(session, self.database, DEFAULT_SOURCE)
        if known is None or known[0] != str(now):
            what = "nothing of it yet" if known is None else f"another server, {known[0]}"
            raise SourceError(
                f"the source is {now}, and viewtail has read {what}. Start `viewtail run`, then try again"
            )
        return now.at(known[1])

    def sources_now(self) -> dict[str, str]:
        """Each source that is read as it describes itself."""
        kind, access = self.settings.source_kind, self.settings.source_access()
        first = {pipeline.source: pipeline for pipeline in reversed(self.pipelines())}
        return {source: str(kind.history(access, pipeline, 0)) for source, pipeline in first.items()}

    @property
    def before_all(self) -> Position:
        """A position before all of every history."""
        return self.settings.source_kind.before_all

    def pipelines_now(self) -> dict[str, PipelineStatus]:
        """By name, every pipeline that ever ran with this database."""
        with asking(replace(self.settings.store_address(), database=None), role="store") as connection:
            return {one.name: one for one in status.read(connection, self.database, read_position)}

    def check_kept_by_one(self, pipeline: PipelineId) -> None:
        """Raises SourceError while a view of this pipeline is kept from the other kind of source.

        Both would write it, and backfill it again whenever they take turns.
        """
        with closing(OwnSession(self.open_store)) as session:
            found = kept_elsewhere(session, self.database, pipeline, [view.id for view in self._declared()])
        if found is None:
            return
        view, other = found
        source, mend = "the binlog", "Set it to mysql://... as there"
        if pipeline.source == DEFAULT_SOURCE:
            source, mend = "Kafka", "Set it to kafka://... as there, or let this one publish alone (--role tail)"
        raise SourceError(
            f"view {view} is kept from {source} by pipeline {other}, and VIEWTAIL_SOURCE__URL of this viewtail is "
            f"another source. {mend}. To move the view over, stop the viewtail that keeps it: this one then goes on"
        )

    def check_changes(self) -> None:
        """Raises DeclarationError for changed views that are to be built beside what readers have, and cannot be."""
        if self.limits.on_change != "beside":
            return
        from projectors.copies import refusals

        is_default = not self.settings.source_kind.is_shared_out
        with closing(OwnSession(self.open_store)) as session:
            found = refusals(session, self.database, self.views, is_default=is_default)
        if found:
            raise DeclarationError("\n".join(f"view {view}: {why}" for view, why in found.items()))

    def positions(self) -> dict[str, Position]:
        """By name, the offset of every pipeline that has one."""
        with asking(replace(self.settings.store_address(), database=None), role="store") as connection:
            return status.positions(connection, self.database, read_position)

    def raise_epoch_above(self, pipeline: PipelineId, epoch: int) -> int:
        """Let the epoch of its source be above this one; returns what it is then."""
        with closing(OwnSession(self.open_store)) as session:
            return epochs.raise_above(session, self.database, pipeline.source, epoch)

    def of(self, view: View) -> Deployment:
        """The deployment with this view alone, bound to its table as it is now. Raises DeclarationError."""
        return deploy(self.settings, [view])

    def misfit(self, view: View) -> str | None:
        """Why the view cannot be kept as its table is now; None where it can."""
        try:
            self.of(view)
        except DeclarationError as error:
            return str(error)
        return None

    def access(self, store: Store) -> Access:
        """What a store needs to be reached."""
        return replace(self.settings.access(store), mark=self.mark, claimant=self.claimant)

    def source_access(self) -> SourceAccess:
        """How the source is reached by who says there of which deployment it is."""
        return replace(self.settings.source_access(), deployment=self.identity())

    def identity(self) -> str:
        """The id of this deployment, which it will have where its tables are not made yet."""
        if (claimant := self.claimant()) is not None:
            return claimant.id
        with closing(self.open_store()) as connection, connection.cursor() as cursor:
            return deployments.id_of(cursor, self.database)

    def claimant(self) -> Claimant | None:
        """This deployment as the owner of places in stores; None where its tables do not say who it is yet.

        They are read each time: a store that lost everything, also who owns what, may hold again what was written to
        it since, by a view that was new when a sink claimed its place.
        """
        with closing(OwnSession(self.open_store)) as session:
            identity = deployments.read(session, self.database)
            if identity is None:
                return None
            return Claimant(id=identity.id, title=identity.title, ours=places_ours(session, self.database))


def greeted(settings: Settings, *, reads_source: bool = True) -> Settings:
    """The same settings, for a command that works long, once the MySQL servers let it in; one that hangs raises soon.

    Later it waits for them as a worker does: its work is worth more than a quick answer.
    """
    asked = settings.asked_with(COMMAND.once())
    if reads_source:
        open_session(asked.source_address(), role="source").close()
    open_session(replace(asked.store_address(), database=None), role="store").close()
    return settings


def deploy(settings: Settings, views: Sequence[View]) -> Deployment:
    """Describe the tables and bind the views to them; raises DeclarationError for what cannot work."""
    check_patterns(settings.source_kind, views)
    check_read_back(settings.source_kind, views)
    with asking(settings.source_address(), role="source") as connection:
        described = Descriptions(connection, {view.entity.schema_and_table for view in views})
        bound = bind(views, described.table)
    return Deployment(settings=settings, views=bound)


def deploy_what_works(settings: Settings, views: Sequence[View]) -> Deployment:
    """`deploy`, without those views that their table no longer fits: they must not take the others down. It may be all.

    Those are halted ones, and ones that were kept under the same declaration until their table was changed: they are
    halted here, for the stream has not come to that change yet. Raises DeclarationError for any other that cannot
    work.
    """
    try:
        return deploy(settings, views)
    except DeclarationError as error:
        reasons = _misfits(settings, views)
        if not reasons:
            raise
        left_out = [view for view in views if view.id in reasons]
        deployment = deploy(settings, [view for view in views if view.id not in reasons])
        with closing(OwnSession(deployment.open_store)) as session:
            for view in left_out:
                reason, pipelines = reasons[view.id]
                for name in pipelines if reason else ():
                    ViewStates(session, deployment.database, name).halt(view.id, reason)
        _log.warning("halted views are left out", reason=str(error))
        return replace(deployment, left_out=left_out)


def _misfits(settings: Settings, views: Sequence[View]) -> dict[str, tuple[str, list[str]]]:
    """By id, views that cannot be kept now: halted and paused ones (with ''), and those whose table changed since.

    The latter with the reason to halt them for. And the pipelines that keep each.
    """
    deployment = Deployment(settings=settings)
    try:
        with closing(OwnSession(deployment.open_store)) as session:
            known = known_views(session, deployment.database)
    except TemporaryError:  # once the store answers, it says which of them were kept
        raise
    except ViewtailError:
        return {}
    found = {}
    for view in views:
        records = {pipeline: record for (pipeline, name), record in known.items() if name == view.id}
        why = deployment.misfit(view) if records else None
        if why is None:
            continue
        if all(record.state in GETS_NOTHING for record in records.values()):
            found[view.id] = ("", list(records))
        elif declaration_hash(view) in {one.declaration for one in records.values()} and not _is_hidden(
            deployment, view
        ):
            reason = (
                f"{why}. {view.entity.table} was changed while its changes were not read, "
                f"and the view gets none from here on. When that is mended: viewtail replay {view.id}"
            )
            found[view.id] = (reason, list(records))
    return found


def _is_hidden(deployment: Deployment, view: View) -> bool:
    """Whether rights are missing: they may come back, and no change is lost until then."""
    with asking(deployment.settings.source_address(), role="source") as connection:
        return is_denied(connection, *view.entity.schema_and_table, sorted(named_columns(view)[0]))
