"""Puts one pipeline together from settings and declarations; the only place that knows every implementation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pymysql
import structlog

from changes.batches import Followed, Halt
from changes.errors import AnotherServerError, DeclarationError, SourceError, TemporaryError, ViewtailError
from changes.positions import Position, file_number
from ingest.binlog.continuity import check_identity
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe, is_denied
from ingest.read_ahead import Limits
from offsets import OffsetStore, epochs, schema
from offsets.lease import Lease
from offsets.mysql import BackgroundOffsets, MySQLOffsets, OwnSession, Session, saved_position, transaction
from projectors.backfill import Backfill, FillVitals, fill_order
from projectors.backfill_gate import FillGate
from projectors.binding import bind, declaration_hash, named_columns
from projectors.bound_views import BoundView
from projectors.dead_letters import DeadLetters
from projectors.pipeline import Pipeline
from projectors.projection import Projections, followed_tables
from projectors.registry import FILLED, FILLING, HALTED, NEW, FillProgress, Registry, ViewRecord, known_views
from projectors.stores import Sink
from projectors.stores.index_tables.sink import MySQLSink
from projectors.table_changes import TableChanges
from projectors.views import SearchIndex, View
from projectors.watermarks import Watermarks
from servers.facts import facts_of
from servers.sessions import open_session, session_error
from viewtail.settings import Settings

_log = structlog.get_logger("viewtail.composition")

STORES = ("mysql", "redis", "elasticsearch")
SOURCE_NAME = "default"
CATCH_UP_ROUND_S = 60.0


@dataclass(slots=True, kw_only=True)
class Deployment:
    """Settings and bound views, and how to reach every server."""

    settings: Settings
    views: list[BoundView]
    left_out: Sequence[View] = ()  # halted ones whose table does not fit them

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
        return [store for store in STORES if store in needed]

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
            server_id=server_id and server_id + STORES.index(store),  # each reader needs a number of its own
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

    def sink(self, store: str, views: Sequence[BoundView]) -> Sink:
        """A new writer of one store, not connected yet."""
        if store == "mysql":
            return MySQLSink(self.open_store, self.database, views)
        # A process imports the client of its own store only: the others' would double its memory.
        if store == "redis":
            from projectors.stores.redis.sink import RedisSink

            return RedisSink(self.settings.redis_client_factory(), views, self.database, store)
        from projectors.stores.elasticsearch.sink import ElasticsearchSink

        return ElasticsearchSink(self.settings.elasticsearch_client_factory(), views, name=store)


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


def misfit(settings: Settings, view: View) -> str | None:
    """Why the view cannot be kept as its table is now; None where it can."""
    try:
        deploy(settings, [view])
    except DeclarationError as error:
        return str(error)
    return None


def still_halted(settings: Settings, views: frozenset[str]) -> frozenset[str]:
    """Those of these views that nobody had filled again since they halted."""
    if not views:
        return views
    deployment = Deployment(settings=settings, views=[])
    with closing(deployment.open_store()) as connection:
        known = known_views(connection, deployment.database)
    return frozenset(name for name in views if name not in known or known[name].state == HALTED)


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
        reason = misfit(settings, view) if record is not None else None
        if record is None or reason is None:
            continue
        is_halted = record.state == HALTED
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
                Registry(session, deployment.database, one.view.store).halt(
                    one.view.id, f"{one.reason}. {one.view.entity.table} was changed while its changes were not read, "
                    f"and the view gets none from here on. When that is mended: viewtail replay {one.view.id}",
                )  # fmt: skip
    finally:
        session.close()


@dataclass(slots=True, kw_only=True, eq=False)
class Ownership:
    """What lasts as long as a process owns a pipeline: its lease, fence, source, loop, and what fills need."""

    deployment: Deployment
    store: str
    views: list[BoundView]
    lease: Lease
    stop: threading.Event
    source: BinlogSource
    sink: Sink
    offsets: OffsetStore
    session: OwnSession
    registry: Registry
    projections: Projections
    watermarks: Watermarks
    pipeline: Pipeline
    offset: Position
    fence: int
    fills: dict[str, FillVitals]
    gate: FillGate
    refill: threading.Event  # set when views are to be looked at for filling
    running: frozenset[str]  # the views that were not halted when the pipeline was taken
    held_back: frozenset[str]  # views that follow once the changes of before their time are read
    open_source: Callable[[], pymysql.Connection[Any]]  # the server whose changes are read, and no other
    fill_error: str | None = None
    another_server: AnotherServerError | None = None  # was met by a fill

    def views_to_fill(self, session: OwnSession) -> list[str]:
        """Views that are new, or whose fill was interrupted."""
        records = Registry(session, self.deployment.database, self.store).sync(self.views)
        return [
            name
            for name, record in records.items()
            if record.state in (NEW, FILLING) and name not in self.held_back
        ]

    def has_caught_up(self) -> bool:
        """Wait until all that is committed now was read; False when it was stopped before."""
        mark = self.watermarks.write()
        while not self.stop.is_set():
            if self.watermarks.wait(mark, self.stop, CATCH_UP_ROUND_S) is not None:
                return True
        return False

    def is_brought_back(self, session: OwnSession) -> bool:
        """Whether a view that was left out is to be filled again, and its table fits; where not it is halted anew."""
        deployment = self.deployment
        left_out = {view.id: view for view in deployment.left_out if view.store == self.store}
        registry = Registry(session, deployment.database, self.store)
        is_any = False
        for name in registry.marked(list(left_out)):
            reason = misfit(deployment.settings, left_out[name])
            is_any = is_any or reason is None
            if reason is not None:
                registry.halt(name, f"{reason}. When that is mended: viewtail replay {name}")
        return is_any

    def backfill(self, name: str, session: OwnSession) -> Backfill:
        """A fill of one view, with a sink of its own; `session` is the filling thread's."""
        bound_at = time.monotonic()
        view = next(view for view in self.views if view.id == name)
        sink = self.deployment.sink(self.store, [view])
        rows_session: Session = (lambda: sink.connection) if isinstance(sink, MySQLSink) else session
        database = self.deployment.database
        registry = Registry(session, database, self.store)
        registry.sync(self.views)
        vitals = self.fills.setdefault(name, FillVitals(view=name))
        followed = followed_tables([view])
        return Backfill(
            view=view,
            bound_at=bound_at,
            followed=followed[view.table.schema, view.table.name],
            projections=Projections([view], followed),
            sink=sink,
            progress=FillProgress(rows_session, database, self.store, self.fence, name, fill_order(view)),
            registry=registry,
            dead_letters=self.pipeline.dead_letters.on(session),
            on_halt=self.projections.halt,
            is_halted=self.projections.is_halted,
            watermarks=self.watermarks,
            open_source=self.open_source,
            stop=self.stop,
            gate=self.gate,
            vitals=vitals,
            chunk_rows=self.deployment.settings.run.chunk_rows,
        )

    def close(self) -> None:
        self.sink.close()
        self.session.close()


def take(
    deployment: Deployment,
    store: str,
    lease: Lease,
    stop: threading.Event,
    held_back: frozenset[str] = frozenset(),
    fits_from: dict[tuple[str, str], int] | None = None,
) -> Ownership:
    """Take a pipeline whose lease is held: raise its fence, read its offset and its views' states.

    Views that are `held_back` wait: the table as they need it is newer than the changes that come first. `fits_from`:
    by table, the version up to which nothing that became of it concerns its views, since none of them was filled then;
    noted here for the next time that the pipeline is taken.
    """
    known_from = {} if fits_from is None else fits_from
    settings = deployment.settings
    database = deployment.database
    views = deployment.views_of(store)
    history = deployment.history(store)
    session = OwnSession(deployment.open_store)
    sink = deployment.sink(store, views)
    if isinstance(sink, MySQLSink):
        sink.connect()
        shared = MySQLOffsets(lambda: sink.connection, database, store)
        sink.share_transaction(shared)
        offsets: OffsetStore = shared
    else:
        offsets = BackgroundOffsets(
            MySQLOffsets(OwnSession(deployment.open_store), database, store), settings.run.offset_interval_s
        )
    taken = offsets.take()
    registry = Registry(session, database, store)
    records = registry.sync(views)
    registry.retire_others([view.id for view in views])
    running = [view for view in views if records[view.id].state != HALTED and view.id not in held_back]
    followed = followed_tables(running)
    source = deployment.source(followed, history, store, known_from)
    offset = _offset(source, offsets, taken.position, history.epoch, records)
    letters = DeadLetters(session, database, views, registry.ids)
    letters.load()
    refill = threading.Event()
    watermarks = Watermarks(deployment.open_primary, settings.source.database, f"{database}:{store}")
    projections = Projections(running, followed)

    def fill_again(is_lost: Callable[[ViewRecord], bool]) -> None:
        records = [registry.read(view.id) for view in running]
        lost = [one.name for one in records if one.state in (FILLING, FILLED) and is_lost(one)]
        if lost:
            registry.fill_anew(lost)
            refill.set()

    def fill_after(view: str, version: int) -> None:
        registry.fill_after(view, version)
        refill.set()

    def is_before_its_fill(view: str) -> bool:
        if registry.read(view).state != NEW:
            return False
        fits = misfit(settings, next(one.view for one in views if one.id == view)) is None
        if fits:
            refill.set()  # whoever fills finds that the view gets no changes, and has the pipeline taken anew
        return fits

    def follow_from(halt: Halt) -> None:
        # Where an XA transaction holds the offset back, reading begins before this again.
        known_from[halt.followed.table.schema, halt.followed.table.name] = halt.version

    def bind_anew(view: BoundView) -> None:
        at = [one.id for one in views].index(view.id)
        before, views[at] = views[at], view  # fills from now on know it
        if isinstance(sink, MySQLSink):
            sink.fit(view)
        elif isinstance(view.view, SearchIndex) and _has_other_fields(before, view):
            # An index is made anew for that, and only before there are changes: see the fingerprint.
            projections.halt(view.id)
            refill.set()
            return
        registry.keep(view)

    def begin_again_after(view: str, version: int) -> None:
        registry.begin_again_after(view, version)
        refill.set()

    open_source = partial(deployment.open_source_read, history.server_identity)
    gate = FillGate()
    table_changes = TableChanges(
        projections=projections,
        sink=sink,
        offsets=offsets,
        dead_letters=letters,
        open_source=open_source,
        gate=gate,
        fill_after=fill_after,
        bind_anew=bind_anew,
        begin_again_after=begin_again_after,
        check_lease=lease.check,
        stop=stop,
    )

    def begin_epoch_above(epoch: int) -> None:
        with closing(deployment.open_store()) as connection:
            raised = epochs.raise_above(connection, database, SOURCE_NAME, epoch)
        raise AnotherServerError(
            f"{store} holds what was read from another server in epoch {epoch}, and this one continues it: the "
            f"pipeline is taken anew under epoch {raised}"
        )

    pipeline = Pipeline(
        name=store,
        source=source,
        projections=projections,
        sink=sink,
        offsets=offsets,
        registry=registry,
        dead_letters=letters,
        watermarks=watermarks,
        table_changes=table_changes,
        stop=stop,
        epoch=history.epoch,
        server=history.server_identity,
        begin_epoch_above=begin_epoch_above,
        check_lease=lease.check,
        is_before_its_fill=is_before_its_fill,
        follow_from=follow_from,
        on_store_lost=lambda lost: fill_again(lambda view: view.name in lost),
        on_store_behind=lambda kept: fill_again(
            lambda view: view.state == FILLED and (view.watermark_version or 0) > kept
        ),
        limits=Limits(
            rows=settings.run.batch_rows,
            bytes=settings.run.batch_bytes,
            waiting_bytes=settings.run.waiting_bytes,
        ),
    )
    pipeline.vitals.parked_count = letters.count
    return Ownership(
        deployment=deployment,
        store=store,
        views=views,
        lease=lease,
        stop=stop,
        source=source,
        sink=sink,
        offsets=offsets,
        session=session,
        registry=registry,
        projections=projections,
        watermarks=watermarks,
        pipeline=pipeline,
        offset=offset,
        fence=taken.fence,
        fills={},
        gate=gate,
        refill=refill,
        running=frozenset(view.id for view in running),
        held_back=held_back & {view.id for view in views},
        open_source=open_source,
    )


def _has_other_fields(before: BoundView, now: BoundView) -> bool:
    from projectors.stores.elasticsearch.index import mapping_of

    return mapping_of(before) != mapping_of(now)


def _offset(
    source: BinlogSource,
    offsets: OffsetStore,
    saved: Position | None,
    epoch: int,
    records: dict[str, ViewRecord],
) -> Position:
    """Where to begin: the saved offset, whose set of transactions tells the place when it is of an earlier epoch.

    With none, and where every view is filled again (a new history), the stream's present end.
    """
    is_needed = any(record.state not in (NEW, HALTED) for record in records.values())
    if saved is not None and (saved.epoch == epoch or is_needed):
        return saved
    now = source.now()
    offsets.save(now)
    return now


def begin_new_history(deployment: Deployment) -> int:
    """A new epoch from the source as it is now: every view is filled again under it. Returns the epoch.

    Refused while a pipeline runs: its process would go on in the old epoch.
    """
    identity, base = deployment.server_identity()
    above = max(_kept_epoch(deployment, store) for store in deployment.stores())
    session = OwnSession(deployment.open_store)
    with transaction(session, "beginning a new history") as cursor:
        epoch = epochs.begin_new_history(session(), deployment.database, SOURCE_NAME, identity, base, above)
        for store in deployment.stores():
            registry_names = [view.id for view in deployment.views_of(store)]
            Registry(session, deployment.database, store).mark_anew(cursor, registry_names)
    session.close()
    return epoch


def _kept_epoch(deployment: Deployment, store: str) -> int:
    """The epoch of a store's witness, 0 when it has none. The store must answer: its versions must stay below."""
    sink = deployment.sink(store, deployment.views_of(store))
    try:
        sink.prepare()
        kept = sink.witness(Position(epoch=0, file="none.000000", end=0, start=0))
    finally:
        sink.close()
    return kept.epoch if kept is not None else 0


def open_store_session(settings: Settings) -> pymysql.Connection[Any]:
    """A session on the server of index tables and offsets; no database is selected, it may not exist yet."""
    return open_session(replace(settings.store_address(), database=None), role="store")
