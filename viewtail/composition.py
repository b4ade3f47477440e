"""Puts one pipeline together from settings and declarations; the only place that knows every implementation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pymysql
import structlog

from changes.batches import Followed
from changes.errors import DeclarationError, SourceError, TemporaryError, ViewtailError
from changes.positions import Position, file_number
from ingest.binlog.continuity import check_identity
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe, is_denied
from ingest.read_ahead import Limits
from offsets import epochs, schema
from offsets.mysql import OwnSession, saved_position, transaction
from projectors.binding import bind, declaration_hash, named_columns
from projectors.bound_views import BoundView
from projectors.stores import Sink, guarded
from projectors.stores.access import Access
from projectors.stores.registry import STORES, store_named
from projectors.view_states import Event, State, ViewStates, known_views
from projectors.views import View
from servers.facts import facts_of
from servers.sessions import open_session, session_error
from viewtail.settings import Settings

_log = structlog.get_logger("viewtail.composition")

SOURCE_NAME = "default"
CATCH_UP_ROUND_S = 60.0


@dataclass(slots=True, kw_only=True)
class Deployment:
    """Settings and bound views, and how to reach every server."""

    settings: Settings
    views: list[BoundView]
    left_out: Sequence[View] = ()  # halted ones whose table does not fit them

    @property
    def limits(self) -> Limits:
        """Of what a pipeline holds between reading and writing."""
        run = self.settings.run
        return Limits(rows=run.batch_rows, bytes=run.batch_bytes, waiting_bytes=run.waiting_bytes)

    @property
    def chunk_rows(self) -> int:
        """The most rows of a backfill's chunk."""
        return self.settings.run.chunk_rows

    @property
    def watermark_database(self) -> str:
        """Of the watermark table, on the source's primary."""
        return self.settings.source.database

    @property
    def database(self) -> str:
        """Of index tables and viewtail's own tables."""
        database = self.settings.store_address().database
        assert database is not None
        return database

    def open_source(self) -> pymysql.Connection[Any]:
        return open_session(self.settings.source_address(), role="source")

    def open_source_read(self, identity: str) -> pymysql.Connection[Any]:
        """A session on the server whose changes are read; raises AnotherServerError where the address leads elsewhere.

        Rows of another server do not belong to the versions of this one's history.
        """
        connection = self.open_source()
        try:
            check_identity(connection, identity)
        except pymysql.err.MySQLError as error:
            connection.close()
            raise session_error(error, self.settings.source_address(), "source") from None
        except ViewtailError:
            connection.close()
            raise
        return connection

    def open_primary(self) -> pymysql.Connection[Any]:
        return open_session(self.settings.primary_address(), role="source")

    def open_store(self) -> pymysql.Connection[Any]:
        return open_store_session(self.settings)

    def views_of(self, store: str) -> list[BoundView]:
        return [view for view in self.views if view.view.store == store]

    def stores(self) -> list[str]:
        """The stores that some view needs; each has a pipeline of the same name."""
        needed = {view.view.store for view in self.views} | {view.store for view in self.left_out}
        return [store.name for store in STORES if store.name in needed]

    def create_tables(self) -> None:
        """viewtail's own tables, on the store's server and on the source's primary."""
        with closing(self.open_store()) as connection:
            schema.create(
                connection, self.settings.store_address(), self.database, schema.STORE_TABLES, role="store"
            )
        with closing(self.open_primary()) as connection:
            schema.create(
                connection,
                self.settings.primary_address(),
                self.settings.source.database,
                schema.SOURCE_TABLES,
                role="source",
            )

    def history(self, pipeline: str) -> epochs.History:
        """The history of the source, for a pipeline; a new epoch of it when another server continues it.

        Raises HistoryGoneError when another server does not.
        """
        identity, base = self.server_identity()

        def check_continues() -> None:
            if saved is not None:
                source = self.source({}, epochs.History(identity, base, 0), pipeline)
                source.check(saved)

        with closing(self.open_store()) as connection:
            saved = saved_position(connection, self.database, pipeline)
            return epochs.current(connection, self.database, SOURCE_NAME, identity, base, check_continues)

    def raise_epoch_above(self, epoch: int) -> int:
        """Let the source's epoch be above this one; returns what it is then."""
        with closing(self.open_store()) as connection:
            return epochs.raise_above(connection, self.database, SOURCE_NAME, epoch)

    def misfit(self, view: View) -> str | None:
        """Why the view cannot be kept as its table is now; None where it can."""
        try:
            deploy(self.settings, [view])
        except DeclarationError as error:
            return str(error)
        return None

    def source(
        self,
        followed: Mapping[tuple[str, str], Followed],
        history: epochs.History,
        store: str,
        fits_from: Mapping[tuple[str, str], int] | None = None,
    ) -> BinlogSource:
        """A reader of the tailed server for one pipeline, not connected yet."""
        settings = self.settings
        server_id = settings.source.server_id
        return BinlogSource(
            settings.source_address(),
            followed,
            own_schemas=frozenset({settings.source.database, self.database}),
            watermark_schema=settings.source.database,
            epoch=history.epoch,
            identity=history.server_identity,
            heartbeat_s=settings.source.heartbeat_s,
            # Each reader needs a number of its own.
            server_id=server_id and server_id + STORES.index(store_named(store)),
            spool_bytes=settings.run.spool_bytes,
            max_event_bytes=settings.run.max_event_bytes,
            fits_from=fits_from,
        )

    def server_identity(self) -> tuple[str, str]:
        """(identity, binlog base name) of the tailed server."""
        with closing(self.open_source()) as connection, connection.cursor() as cursor:
            facts = facts_of(connection)
            cursor.execute(facts.identity)
            (identity,) = cursor.fetchone() or ("",)
            cursor.execute(facts.status)
            status = cursor.fetchone()
        if status is None:
            raise SourceError(
                "the source writes no binlog. Start it with --log-bin; `viewtail check` says more"
            )
        file_number(status[0])
        return identity, status[0].rsplit(".", 1)[0]

    def access(self, store: str) -> Access:
        """How a store is reached."""
        return self.settings.access(store_named(store))

    def sink(self, store: str, views: Sequence[BoundView]) -> Sink:
        """A new writer of one store, not connected yet."""
        return store_named(store).sink(self.access(store), views, store)


def deploy(settings: Settings, views: Sequence[View]) -> Deployment:
    """Describe the tables and bind the views to them; raises DeclarationError for what cannot work."""
    with closing(open_session(settings.source_address(), role="source")) as connection:
        bound = bind(views, lambda schema_name, table: describe(connection, schema_name, table))
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
        left_out = _left_behind(settings, views)
        if not left_out:
            raise
        deployment = deploy(settings, [view for view in views if view.id not in left_out])
        _halt(settings, left_out.values())
        _log.warning("halted views are left out", reason=str(error))
        return replace(deployment, left_out=[one.view for one in left_out.values()])


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeftBehind:
    """A view whose table does not fit it any more."""

    view: View
    reason: str
    is_halted: bool


def _left_behind(settings: Settings, views: Sequence[View]) -> dict[str, _LeftBehind]:
    """By id: halted views, and views whose table changed since they were kept, that cannot be kept now."""
    deployment = Deployment(settings=settings, views=[])
    try:
        with closing(deployment.open_store()) as connection:
            known = known_views(connection, deployment.database)
    except TemporaryError:  # once it answers, it tells which of them were kept
        raise
    except ViewtailError:
        return {}
    found = {}
    for view in views:
        record = known.get(view.id)
        reason = deployment.misfit(view) if record is not None else None
        if record is None or reason is None:
            continue
        is_halted = record.state == State.HALTED
        if is_halted or (record.declaration == declaration_hash(view) and not _is_hidden(deployment, view)):
            found[view.id] = _LeftBehind(view=view, reason=reason, is_halted=is_halted)
    return found


def _is_hidden(deployment: Deployment, view: View) -> bool:
    """Whether rights are missing: they may come back, and no change is lost until then."""
    schema_name, _, table = view.entity.table.partition(".")
    with closing(deployment.open_source()) as connection:
        return is_denied(connection, schema_name, table, sorted(named_columns(view)[0]))


def _halt(settings: Settings, views: Iterable[_LeftBehind]) -> None:
    deployment = Deployment(settings=settings, views=[])
    session = OwnSession(deployment.open_store)
    try:
        for one in views:
            if not one.is_halted:
                ViewStates(session, deployment.database, one.view.store).halt(
                    one.view.id, f"{one.reason}. {one.view.entity.table} was changed while its changes were not read, "
                    f"and the view gets none from here on. When that is mended: viewtail replay {one.view.id}",
                )  # fmt: skip
    finally:
        session.close()


def begin_new_history(deployment: Deployment) -> int:
    """A new epoch from the source as it is now: every view is filled again under it. Returns the epoch.

    Refused while a pipeline runs: its process would go on in the old epoch.
    """
    identity, base = deployment.server_identity()
    above = max(_kept_epoch(deployment, store) for store in deployment.stores())
    session = OwnSession(deployment.open_store)
    states = {store: ViewStates(session, deployment.database, store) for store in deployment.stores()}
    known = {store: one for store, one in states.items() if one.pipeline_id >= 0}
    with transaction(session, "beginning a new history") as cursor:
        epoch = epochs.begin_new_history(session(), deployment.database, SOURCE_NAME, identity, base, above)
        for store, one in known.items():
            one.move_in(cursor, Event.REPLAYED, [view.id for view in deployment.views_of(store)])
    session.close()
    return epoch


def _kept_epoch(deployment: Deployment, store: str) -> int:
    """The epoch of a store's witness, 0 when it has none. The store must answer: its versions must stay below."""
    sink = deployment.sink(store, deployment.views_of(store))
    try:
        sink.prepare()
        by_version = guarded(sink)
        nowhere = Position(epoch=0, file="none.000000", end=0, start=0)
        kept = None if by_version is None else by_version.witness(nowhere)
    finally:
        sink.close()
    return kept.epoch if kept is not None else 0


def open_store_session(settings: Settings) -> pymysql.Connection[Any]:
    """A session on the server of index tables and offsets; no database is selected, it may not exist yet."""
    return open_session(replace(settings.store_address(), database=None), role="store")
