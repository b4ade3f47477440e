"""Puts one pipeline together from settings and declarations; the only place that knows every implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import structlog

from changes.errors import DeclarationError, TemporaryError, ViewtailError
from changes.pipelines import PipelineId
from changes.positions import Position
from ingest import History
from ingest.canonical import Descriptions, is_denied
from ingest.limits import Limits
from offsets import epochs, schema
from offsets.mysql import OwnSession, saved_position
from operations import status
from operations.status import PipelineStatus
from projectors.binding import bind, declaration_hash, named_columns
from projectors.stores import Store
from projectors.stores.access import Access
from projectors.stores.registry import STORES, store_named
from projectors.view_states import State, ViewStates, known_views
from projectors.views import BoundView, View
from servers.sessions import Connection, open_session
from viewtail.settings import Settings
from viewtail.sources import SOURCE

_log = structlog.get_logger("viewtail.composition")


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
    def watermark_database(self) -> str:
        """Of the watermark table, on the source's primary."""
        return self.settings.source.database

    @property
    def database(self) -> str:
        """Of index tables and viewtail's own tables."""
        return self.settings.store_database

    def open_source(self) -> Connection:
        return open_session(self.settings.source_address(), role="source")

    def open_primary(self) -> Connection:
        return open_session(self.settings.primary_address(), role="source")

    def open_store(self) -> Connection:
        """On the server of index tables and offsets; no database is selected, it may not exist yet."""
        connection = open_session(replace(self.settings.store_address(), database=None), role="store")
        self.mark(connection)
        return connection

    def views_of(self, store: str) -> list[BoundView]:
        return [view for view in self.views if view.view.store == store]

    def pipelines(self) -> list[PipelineId]:
        """One for each store that some view needs: there is one source, in one part."""
        needed = {view.view.store for view in self.views} | {view.store for view in self.left_out}
        return [PipelineId.of(store.name) for store in STORES if store.name in needed]

    def create_tables(self) -> None:
        """viewtail's own tables, on the store's server and on the source's primary."""
        with closing(self.open_store()) as connection:
            schema.create(connection, self.settings.store_address(), self.database, schema.STORE_TABLES, role="store")
        with closing(self.open_primary()) as connection:
            address = self.settings.primary_address()
            schema.create(connection, address, self.watermark_database, schema.SOURCE_TABLES, role="source")

    def history(self, pipeline: PipelineId) -> History:
        """The source's present history, for a pipeline; its epoch is new when another server continues what was read.

        Raises HistoryGoneError when another server does not.
        """
        number = len(STORES) * pipeline.partition + STORES.index(store_named(pipeline.store))
        now = SOURCE.history(self.settings.source_access(), number)

        def check_continues() -> None:
            if saved is not None:
                now.reader({}, {}).check(saved)

        with closing(OwnSession(self.open_store)) as session:
            saved = saved_position(session, self.database, pipeline.name, SOURCE.read_position)
            epoch = epochs.current(session, self.database, pipeline.source, str(now), check_continues)
        return now.at(epoch)

    def source_now(self) -> tuple[str, Position]:
        """The source as it describes itself, and a position before all of its own."""
        return str(SOURCE.history(self.settings.source_access(), 0)), SOURCE.before_all

    def pipelines_now(self) -> dict[str, PipelineStatus]:
        """By name, every pipeline that ever ran with this database."""
        with closing(self.open_store()) as connection:
            return {one.name: one for one in status.read(connection, self.database, SOURCE.read_position)}

    def raise_epoch_above(self, pipeline: PipelineId, epoch: int) -> int:
        """Let the epoch of its source be above this one; returns what it is then."""
        with closing(OwnSession(self.open_store)) as session:
            return epochs.raise_above(session, self.database, pipeline.source, epoch)

    def misfit(self, view: View) -> str | None:
        """Why the view cannot be kept as its table is now; None where it can."""
        try:
            deploy(self.settings, [view])
        except DeclarationError as error:
            return str(error)
        return None

    def access(self, store: Store) -> Access:
        """What a store needs to be reached."""
        return replace(self.settings.access(store), mark=self.mark)


def deploy(settings: Settings, views: Sequence[View]) -> Deployment:
    """Describe the tables and bind the views to them; raises DeclarationError for what cannot work."""
    with closing(open_session(settings.source_address(), role="source")) as connection:
        described = Descriptions(connection, {view.entity.schema_and_table for view in views})
        bound = bind(views, described.table)
        connection.commit()
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
                if reason := reasons[view.id]:
                    states = ViewStates(session, deployment.database, PipelineId.of(view.store).name)
                    states.halt(view.id, reason)
        _log.warning("halted views are left out", reason=str(error))
        return replace(deployment, left_out=left_out)


def _misfits(settings: Settings, views: Sequence[View]) -> dict[str, str]:
    """By id, views that cannot be kept now: halted ones (with ''), and those whose table changed since they were kept.

    The latter with the reason to halt them for.
    """
    deployment = Deployment(settings=settings)
    try:
        with closing(deployment.open_store()) as connection:
            known = known_views(connection, deployment.database)
    except TemporaryError:  # once the store answers, it says which of them were kept
        raise
    except ViewtailError:
        return {}
    found = {}
    for view in views:
        record = known.get((PipelineId.of(view.store).name, view.id))
        why = deployment.misfit(view) if record is not None else None
        if record is None or why is None:
            continue
        if record.state == State.HALTED:
            found[view.id] = ""
        elif record.declaration == declaration_hash(view) and not _is_hidden(deployment, view):
            found[view.id] = (
                f"{why}. {view.entity.table} was changed while its changes were not read, "
                f"and the view gets none from here on. When that is mended: viewtail replay {view.id}"
            )
    return found


def _is_hidden(deployment: Deployment, view: View) -> bool:
    """Whether rights are missing: they may come back, and no change is lost until then."""
    with closing(deployment.open_source()) as connection:
        return is_denied(connection, *view.entity.schema_and_table, sorted(named_columns(view)[0]))
