"""The catalog of a deployment: viewtail's own tables, and the views that are kept, bound to their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from zlib import crc32

import structlog

from ingest import History, SourceAccess, SourceKind, Tables
from ingest.canonical import Descriptions, is_denied
from offsets import deployments, epochs, schema
from offsets.deployments import Identity
from offsets.keepers import kept_elsewhere, known_views, processes_now, to_begin
from offsets.mysql import OwnSession, Session, reading, saved_position
from offsets.views import GETS_NOTHING, ViewRecord, ViewStates, places_ours
from projectors.binding import Describe, bind, columns_named, declaration_hash
from projectors.masking import conflicts
from projectors.servers import Servers
from projectors.stores import Store
from projectors.stores.access import Access
from projectors.stores.owners import NOBODY, Claimant
from projectors.stores.registry import STORES, store_named, store_of
from projectors.views import BoundView, View
from projectors.watermark_rows import WatermarkPlace
from viewtail.changes.errors import DeclarationError, SourceError, TemporaryError, ViewtailError
from viewtail.changes.masks import NO_SECRET, Masks
from viewtail.changes.patterns import Pattern, pattern_of
from viewtail.changes.pipelines import DEFAULT_SOURCE, PipelineId
from viewtail.changes.tables import full_name
from viewtail.servers.sessions import Connection, asking

_log = structlog.get_logger("viewtail.catalog")

_READERS = 1000  # numbers for readers beside the pipelines, each of which logs in under its own


def tables_of(views: Sequence[View]) -> Tables:
    """The tables that views are of, in order."""
    return sorted({table for view in views for table in view.entity.tables})


def streams_of(kind: SourceKind, views: Sequence[View]) -> Tables:
    """What a source of this kind is to bring the changes of, in order: tables, or ('', TOPIC) for a topic's rows."""
    if not kind.brings_whole_rows:
        return tables_of(views)
    return sorted({stream_of(kind, view) for view in views})


def stream_of(kind: SourceKind, view: View) -> tuple[str, str]:
    """Which of them tells of the view's entities."""
    if kind.brings_whole_rows and view.topic is not None:
        return "", view.topic.name
    return view.entity.schema_and_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """What a deployment keeps, and where it notes that."""

    servers: Servers
    views: list[BoundView] = field(default_factory=list)
    left_out: Sequence[View] = ()  # halted views whose table does not fit them

    @property
    def database(self) -> str:
        """Of index tables and viewtail's own tables."""
        return self.servers.database

    def session(self) -> OwnSession:
        """A session for viewtail's own tables, opened when it is first used."""
        return OwnSession(self.servers.open_own)

    def marked(self, mark: Callable[[Connection], None]) -> Catalog:
        """The same, whose sessions `mark` notes as those of a lease."""
        return replace(self, servers=replace(self.servers, mark=mark))

    # -- the views ------------------------------------------------------------------------------------------------

    def views_of(self, store: str) -> list[BoundView]:
        return [view for view in self.views if view.view.store == store]

    def stores(self) -> list[str]:
        """The stores that some view needs."""
        needed = {view.store for view in self._declared()}
        return [store.name for store in STORES if store.name in needed]

    def pipelines(self) -> list[PipelineId]:
        """One for each store that some view needs, and each part of the source that holds changes for it."""
        return [
            PipelineId(source, partition, store) for store in self.stores() for source, partition in self._parts(store)
        ]

    def partitions(self, pipeline: PipelineId) -> list[PipelineId]:
        """The pipelines of all parts of a pipeline's source, its own too: together they keep the same views."""
        parts = self._parts(pipeline.store)
        return [PipelineId(source, part, pipeline.store) for source, part in parts if source == pipeline.source]

    def _parts(self, store: str) -> Sequence[tuple[str, int]]:
        kind = self.servers.kind
        streams = streams_of(kind, [view for view in self._declared() if view.store == store])
        return kind.parts(self.servers.source(), streams)

    def _declared(self) -> list[View]:
        return [*(view.view for view in self.views), *self.left_out]

    def rebound(self, view: View) -> Catalog:
        """The catalog with this view alone, bound to its table as it is now. Raises DeclarationError."""
        return bound_to_tables(self.servers, [view])

    def misfit(self, view: View) -> str | None:
        """Why the view cannot be kept as its table is now; None where it can."""
        try:
            self.rebound(view)
        except DeclarationError as error:
            return str(error)
        return None

    def check_kept_by_one(self, pipeline: PipelineId) -> None:
        """Raises SourceError while a view of this pipeline is kept from the other kind of source.

        Both would write it, and backfill it again whenever they take turns.
        """
        with closing(self.session()) as session:
            names = [view.id for view in self._declared()]
            found = kept_elsewhere(session, self.database, pipeline, names, self._is_alike)
        if found is None:
            return
        view, other = found.view.name, found.pipeline.name
        if found.pipeline.position is not None and self._is_alike(found.pipeline.position):
            before, now = ("without", "with") if pipeline.source != DEFAULT_SOURCE else ("with", "without")
            raise SourceError(
                f"view {view} was kept {before} sources= by pipeline {other}, and is declared {now}: its keys are "
                f"others. Give it another name; or take it out of views.py, run `viewtail forget {view}`, put it back"
            )
        source, mend = "the binlog", "Set it to mysql://... as there"
        if pipeline.source == DEFAULT_SOURCE:
            source, mend = "Kafka", "Set it to kafka://... as there, or let this one publish alone (--role tail)"
        raise SourceError(
            f"view {view} is kept from {source} by pipeline {other}, and VIEWTAIL_SOURCE__URL of this viewtail is "
            f"another source. {mend}. To move the view over, stop the viewtail that keeps it: this one then goes on"
        )

    def _is_alike(self, offset: str) -> bool:
        """Return whether an offset is of a source of the kind that is read."""
        servers = self.servers
        return type(servers.read_position(offset)) is type(servers.kind.before_all)

    def known_views(self, session: Session) -> dict[tuple[str, str], ViewRecord]:
        """Read each view and copy, by pipeline and id, without those of other sources."""
        known = known_views(session, self.database)
        return {names: record for names, record in known.items() if self.servers.concerns(names[0])}

    def to_begin(self, session: Session) -> str:
        """What to do about a view that no run has seen."""
        with reading(session, "looking for who keeps views") as cursor:
            return to_begin(processes_now(cursor, self.database, self.servers.named_source))

    # -- viewtail's own tables ------------------------------------------------------------------------------------

    def create_tables(self, known: Identity | None = None) -> Identity | None:
        """viewtail's own tables, on the store's server and on the source's primary; returns whose they are.

        Where the server has none, they are those of the deployment that is `known`.
        """
        servers, marks = self.servers, self.marks
        with closing(servers.open_own()) as connection:
            schema.create(connection, servers.own(), self.database, schema.STORE_TABLES, "store", known)
        address = servers.source().primary() if servers.kind.has_watermarks else servers.own()
        with closing(marks.open()) as connection:
            schema.create(connection, address, marks.schema, schema.SOURCE_TABLES, role="source")
        with closing(self.session()) as session:
            return deployments.read(session, self.database)

    @property
    def marks(self) -> WatermarkPlace:
        """Where watermarks are written."""
        servers = self.servers
        if not servers.kind.has_watermarks:
            return WatermarkPlace(servers.open_own, self.database, is_with_rows=False)
        return WatermarkPlace(
            servers.open_primary,
            servers.watermarks_in,
            why_missing=lambda watermark: servers.kind.why_missing(servers.source(), watermark),
            deployment=self.claimant().id[:8],
        )

    def access(self, store: Store) -> Access:
        """What a store needs to be reached by this deployment."""
        return replace(self.servers.store(store), mark=self.servers.mark, claimant=self.claimant)

    def source_access(self) -> SourceAccess:
        """How the source is reached by who says there of which deployment it is."""
        return replace(self.servers.source(), deployment=self.identity())

    def identity(self) -> str:
        """The id of this deployment, which it will have where its tables are not made yet."""
        if known := self.claimant().id:
            return known
        with closing(self.servers.open_own()) as connection, connection.cursor() as cursor:
            return deployments.id_of(cursor, self.database)

    def claimant(self) -> Claimant:
        """This deployment as the owner of places in stores; NOBODY where its tables do not say who it is yet.

        They are read each time: a store that lost everything, also who owns what, may hold again what was written to
        it since, by a view that was new when a sink claimed its place.
        """
        with closing(self.session()) as session:
            identity = deployments.read(session, self.database)
            if identity is None:
                return NOBODY
            return Claimant(id=identity.id, title=identity.title, ours=places_ours(session, self.database))

    # -- the source's history -------------------------------------------------------------------------------------

    def history(self, pipeline: PipelineId) -> History:
        """The source's present history, for a pipeline; its epoch is new when another server continues what was read.

        Raises HistoryGoneError when another server does not.
        """
        servers = self.servers
        number = len(STORES) * pipeline.partition + STORES.index(store_named(pipeline.store))
        now = servers.kind.history(servers.source(), pipeline, number)

        def check_continues(before: str) -> None:
            if saved is not None:
                now.check_continues(saved, before)

        with closing(self.session()) as session:
            saved = saved_position(session, self.database, pipeline.name, servers.read_position)
            epoch = epochs.current(session, self.database, pipeline.source, str(now), check_continues)
        return now.at(epoch)

    def history_beside(self, what: str) -> History:
        """The source's history as the pipelines know it, for a reader beside them; `what` tells such readers apart.

        Raises SourceError where they know of none, or of another server's.
        """
        servers, reader = self.servers, len(STORES) + crc32(what.encode()) % _READERS
        now = servers.kind.history(servers.source(), PipelineId(servers.source_name, 0, STORES[0].name), reader)
        with closing(self.session()) as session:
            known = epochs.known(session, self.database, servers.source_name)
        if known is None or known[0] != str(now):
            what = "nothing of it yet" if known is None else f"another server, {known[0]}"
            raise SourceError(
                f"the source is {now}, and viewtail has read {what}. Start `viewtail run`, then try again"
            )
        return now.at(known[1])

    def sources_now(self) -> dict[str, str]:
        """Each source that is read as it describes itself."""
        kind, access = self.servers.kind, self.servers.source()
        first = {pipeline.source: pipeline for pipeline in reversed(self.pipelines())}
        return {source: str(kind.history(access, pipeline, 0)) for source, pipeline in first.items()}

    def raise_epoch_above(self, pipeline: PipelineId, epoch: int) -> int:
        """Let the epoch of its source be above this one; returns what it is then."""
        with closing(self.session()) as session:
            return epochs.raise_above(session, self.database, pipeline.source, epoch)


# -- binding ------------------------------------------------------------------------------------------------------


_PATTERNS = (
    "it stands for many tables, which are read as one from MySQL alone; set VIEWTAIL_SOURCE__URL to the MySQL server"
)
_DIGITS = (
    "each # stands for a digit, and several tables are read as one in this form only where they are polled; write "
    "braces, whose value is a column and part of the key, in its place: 'account_{shard:int}'"
)
_OLD_FORM = "# for a digit is the older form of a pattern; with braces, {shard:int}, what it stands for is a column"
_EACH_TENANT = (
    "a topic of many tables that are read as one is not there yet: the tables that come and go would be in no order "
    "with the keys of its messages. Declare a topic of each table, or keep these views in MySQL, Redis or Elasticsearch"
)
_ALL_SOURCES = (
    "it draws on several servers, and is read as one of them has it: view.of_source('eu'), with the settings of that "
    "source, viewtail.settings.load(None).of_source('eu')"
)
_EACH_SOURCE = (
    "a topic of several servers is not there yet: its pipeline appends, and there is one for each of sources=. Run a "
    "viewtail that publishes for each server, or keep the view in MySQL, Redis or Elasticsearch"
)
_OWN_TABLES = (
    "its tables may be in {database}, where viewtail keeps its own, and the view {view} there, or a table beside its "
    "own, is called as one of them; give the view another name, or viewtail another database "
    "(VIEWTAIL_MYSQL__URL=mysql://.../OTHER)"
)
_TWO_PATTERNS = (
    "the table {table} is one of {first} and of {second}, and a row belongs to one entity; write the same for both, or "
    "names that tell them apart"
)
_READ_BACK = (
    "its rows are made of several rows, which are read again at each change: polled tables have no order among each "
    "other, and only a source that tails the binlog says when a SELECT shows a change; "
    "set VIEWTAIL_SOURCE__URL to the MySQL server, mode binlog; or declare views of single rows"
)
_NO_TOPIC = (
    "its rows are made of several rows, and no topic of views.py has them: the topics of their tables have no order "
    "among each other. Declare one of the same entity, with all its rows, and run the tailer with it: "
    "Topic({name!r}, ENTITY), viewtail run --role tail"
)
_NOT_IN_TOPIC = "the topic {topic}, which it is kept from, lacks {names}; add that to fields=[...] of the Topic"
_UNMASKED = (
    "unmasked= is for views that are kept from the database itself: a topic may have the columns masked, and a hash "
    "would pass for the value. Keep the view where VIEWTAIL_SOURCE__URL is the MySQL server, or leave unmasked= out"
)
_PUBLISHED = (
    "it publishes every change in the order of the stream, in which rows that are polled have no place; "
    "tail the binlog (VIEWTAIL_SOURCE__MODE=binlog), or take it out of views.py"
)
_EACH_BATCH = (
    "a topic has a message of each key that a batch touched, so at_most_every= does nothing there; give the topic an "
    "Entity without it"
)


def check_source(kind: SourceKind, views: Sequence[View]) -> None:
    """Raises DeclarationError for views that a source of this kind cannot keep."""
    if wrong := [f"view {view.id}: {why}" for view in views for why in _not_kept(kind, view)]:
        raise DeclarationError("\n".join(wrong))


def _not_kept(kind: SourceKind, view: View) -> Iterator[str]:
    """Why a source of this kind cannot keep a view."""
    if view.entity.is_of_all:
        yield _ALL_SOURCES
    if view.entity.pattern is not None:
        yield from (f"{view.entity.table}: {why}" for why in _unread_patterns(kind, view))
    if view.entity.is_derived and not kind.can_read_back:
        yield from _not_brought(kind, view)
    if view.unmasked and kind.brings_whole_rows:
        yield _UNMASKED
    if store_of(view).keeps_every_change:
        yield from _not_published(kind, view)


def _not_published(kind: SourceKind, view: View) -> Iterator[str]:
    """Why changes that a source of this kind brings cannot be published."""
    if not kind.has_watermarks:
        yield _PUBLISHED
    if view.entity.at_most_every:
        yield _EACH_BATCH


def _unread_patterns(kind: SourceKind, view: View) -> Iterator[str]:
    """Why a source of this kind does not bring the rows of many tables."""
    pattern = view.entity.pattern
    assert pattern is not None
    if not kind.has_patterns:
        yield _PATTERNS
    elif store_of(view).keeps_every_change:
        yield _EACH_SOURCE if pattern.source else _EACH_TENANT
    elif not pattern.names and not kind.polls:
        yield _DIGITS


def check_apart(database: str, views: Sequence[View]) -> None:
    """Raises DeclarationError where a table would be of two entities, or a view's own would be one of a pattern's."""
    wrong: list[str] = []
    tables = sorted({view.entity.schema_and_table for view in views})
    for pattern in filter(None, (pattern_of(*names) for names in tables)):
        wrong += _shared(pattern, tables)
        for view in views:
            if any(pattern.part(database, name) is not None for name in store_of(view).names_of_tables(view)):
                wrong.append(f"{pattern.full_name}: {_OWN_TABLES.format(database=database, view=view.id)}")
        if not pattern.names:
            _log.warning(_OLD_FORM, tables=pattern.full_name)
    if wrong:
        raise DeclarationError("\n".join(wrong))


def _shared(pattern: Pattern, tables: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Which tables of other entities are of a pattern, too."""
    for names in tables:
        other = pattern_of(*names)
        sample = names if other is None else other.sample[:2]
        if names != (pattern.schema, pattern.name) and pattern.part(*sample) is not None:
            first, second = pattern.full_name, full_name(*names)
            yield _TWO_PATTERNS.format(table=full_name(*sample), first=first, second=second)


def _not_brought(kind: SourceKind, view: View) -> Iterator[str]:
    """Why the rows of a view, which are made of several, do not come from a source that cannot read back."""
    if not kind.brings_whole_rows:
        yield _READ_BACK
    elif view.topic is None:
        yield _NO_TOPIC.format(name=f"{'.'.join(view.entity.schema_and_table)}.{view.name}")


def bound_for(kind: SourceKind, views: Sequence[View], describe: Describe, masks: Masks = NO_SECRET) -> list[BoundView]:
    """As `bind`, for views that a source of this kind keeps. Raises DeclarationError."""
    check_source(kind, views)
    bound = bind(views, describe, masks)
    if wrong := [*conflicts(bound), *_in_two_patterns(bound)]:
        raise DeclarationError("\n".join(wrong))
    if not kind.brings_whole_rows:
        return bound
    if wrong := [f"view {view.id}: {why}" for view in bound for why in _lacking(view)]:
        raise DeclarationError("\n".join(wrong))
    return [replace(view, comes_whole=view.derived is not None) for view in bound]


def _in_two_patterns(views: Sequence[BoundView]) -> Iterator[str]:
    """Which of the tables that are there are of two patterns, where others are of one of them alone."""
    tables = {view.table.full_name: view.table for view in views if view.table.pattern is not None}
    owners: dict[tuple[str, str], str] = {}
    for pattern, table in tables.items() if len(tables) > 1 else ():
        for part in table.parts:
            first = owners.setdefault((part.schema, part.name), pattern)
            if first != pattern:
                yield _TWO_PATTERNS.format(table=part.full_name, first=first, second=pattern)


def _lacking(view: BoundView) -> Iterator[str]:
    """Which columns of a view its topic has not."""
    topic = view.view.topic
    if topic is None or not topic.shown:
        return
    if names := [name for name in view.needed if name not in topic.shown]:
        yield _NOT_IN_TOPIC.format(topic=topic.name, names=", ".join(names))


def bound_to_tables(servers: Servers, views: Sequence[View]) -> Catalog:
    """Describe the tables and bind the views to them; raises DeclarationError for what cannot work."""
    check_source(servers.kind, views)  # before any server is asked
    check_apart(servers.database, views)
    with asking(servers.source().address(), role="source") as connection:
        described = Descriptions(connection, {table for view in views for table in view.entity.tables})
        return Catalog(servers=servers, views=bound_for(servers.kind, views, described.table, servers.masks))


def bound_to_what_fits(servers: Servers, views: Sequence[View]) -> Catalog:
    """`bound_to_tables`, without views that their table no longer fits: they must not take the others down.

    Those are halted ones, and ones that were kept under the same declaration until their table was changed: they are
    halted here, for the stream has not come to that change yet. It may be all. Raises DeclarationError for any other
    that cannot work, and for those that this kind of source cannot keep: no table changed there.
    """
    check_source(servers.kind, views)
    try:
        return bound_to_tables(servers, views)
    except DeclarationError as error:
        reasons = _misfits(servers, views)
        if not reasons:
            raise
        left_out = [view for view in views if view.id in reasons]
        catalog = bound_to_tables(servers, [view for view in views if view.id not in reasons])
        with closing(catalog.session()) as session:
            for view in left_out:
                reason, pipelines = reasons[view.id]
                for name in pipelines if reason else ():
                    ViewStates(session, catalog.database, name).halt(view.id, reason)
        _log.warning("halted views are left out", reason=str(error))
        return replace(catalog, left_out=left_out)


def _misfits(servers: Servers, views: Sequence[View]) -> dict[str, tuple[str, list[str]]]:
    """By id, views that cannot be kept now: halted and paused ones (with ''), and those whose table changed since.

    The latter with the reason to halt them for. And the pipelines that keep each.
    """
    catalog = Catalog(servers=servers)
    try:
        with closing(catalog.session()) as session:
            known = catalog.known_views(session)
    except TemporaryError:  # once the store answers, it says which of them were kept
        raise
    except ViewtailError:
        return {}
    of_view: dict[str, dict[str, ViewRecord]] = {}
    for (pipeline, name), record in known.items():
        of_view.setdefault(name, {})[pipeline] = record
    reasons = {}
    for view in views:
        records = of_view.get(view.id, {})
        if records and (why := catalog.misfit(view)) is not None:
            reason = _reason_to_halt(servers, view, records, why)
            if reason is not None:
                reasons[view.id] = (reason, list(records))
    return reasons


def _reason_to_halt(servers: Servers, view: View, records: Mapping[str, ViewRecord], why: str) -> str | None:
    """Why to halt a view that does not fit its table: `why`. '' where it gets nothing anyway, None where it must not be
    left out: its declaration is new, or the table is only hidden."""
    if all(record.state in GETS_NOTHING for record in records.values()):
        return ""
    if declaration_hash(view) not in {record.declaration for record in records.values()} or _is_hidden(servers, view):
        return None
    return (
        f"{why}. {view.entity.table} was changed while its changes were not read, "
        f"and the view gets none from here on. When that is mended: viewtail replay {view.id}"
    )


def _is_hidden(servers: Servers, view: View) -> bool:
    """Return whether rights on a table are missing: they may come back, and no change is lost until then."""
    own = view.entity.schema_and_table
    if view.entity.pattern is not None:
        return False  # who may not see all of its tables is told so as they are described
    with asking(servers.source().address(), role="source") as connection:
        return any(
            is_denied(connection, *table, sorted(columns_named(view)) if table == own else ())
            for table in sorted(view.entity.tables)
        )
