"""Erases one entity's values, after its row is gone, from everywhere that viewtail wrote them; and proves it.

    1. its canonical row is gone, on the source and on its primary
    2. every pipeline that keeps a view of it has passed that moment, so the delete is durable in their stores
    3. the row is still gone: nobody put it back meanwhile
    4. each view's place is looked at; values that are there all the same get a tombstone through the guard. Rows of
       others that had it among their related rows are written without it by then, where their views are filled
    5. its dead letters go, for they hold the key; where viewtail's other own tables name it, they do no more
What stays is said, and until when: the key in tombstones, older messages of topics, and what is not viewtail's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain

import pymysql

from ingest.canonical.rows import TableRows, source_error
from offsets import dead_letters, runs
from offsets.copies import require_not_moving
from offsets.keepers import known_views
from offsets.mysql import reading, transaction
from offsets.views import State, ViewRecord, known_places, note_written
from projectors.binding import declaration_hash
from projectors.catalog import Catalog
from projectors.read_and_written import everywhere
from projectors.stores import guarded
from projectors.stores.leaving import Holds, Place, Trace
from projectors.stores.registry import needed, store_of
from projectors.views import BoundView, View
from viewtail.changes.copy_ids import view_of
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError, UnknownNameError, ViewtailError, nearest
from viewtail.changes.patterns import source_in, without_source
from viewtail.changes.rendering import render_key
from viewtail.changes.tables import names_of
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key, ViewWrites, Write
from viewtail.operations.given import own_keys, plain_key_of_text
from viewtail.operations.own_traces import OwnTrace, OwnTraces
from viewtail.operations.waiting import passed_now, troubles
from viewtail.servers.literals import equals, one_of
from viewtail.servers.sessions import quote, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """The place of archived rows of a table, on its primary."""

    table: str  # quoted, with the same key columns
    files: Sequence[str]  # that hold rows, too: paths


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A place that was looked at."""

    view: str
    place: str
    found: str
    is_clean: bool
    was_erased: bool = False  # by this command; values through the guard
    held: str = "values"  # what was erased
    stays: str = ""
    until: str = ""
    run: str = ""  # what the operator does where it is not clean


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A place that stays outside of viewtail's reach."""

    what: str
    until: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The traces of an entity after its row was gone."""

    entity: str
    key: str
    proven_at: str  # UTC
    looked: Sequence[Looked]  # of views
    letters: int  # that were deleted
    own: Sequence[Looked]  # viewtail's own tables, beside the dead letters
    rests: Sequence[Rest]
    is_known: bool  # a view, a dead letter or viewtail's own tables had something of the key, if a tombstone only

    @property
    def is_erased(self) -> bool:
        """Return whether nothing but what is named stays."""
        return all(place.is_clean for place in (*self.looked, *self.own))


# --- Which views are meant ---


def views_of(entity: str, views: Sequence[View]) -> list[View]:
    """The views of a table, by 'schema.table' or the table's name. Raises MisuseError for none, or for two tables.

    A name may be in backticks.
    """
    tables = {view.entity.table: view.entity.schema_and_table for view in views}
    meant = _tables_meant(entity, tables)
    if len(meant) == 1:
        return [view for view in views if view.entity.table == meant[0]]
    if meant:
        raise MisuseError(f"{entity!r} is the name of {len(meant)} tables; say which: {', '.join(sorted(meant))}")
    raise UnknownNameError(f"no view is of a table {entity!r}{_instead(entity, sorted(tables), views)}")


def _instead(entity: str, tables: Sequence[str], views: Sequence[View]) -> str:
    """What the table has to do with views that are not of it, or which tables views are of."""
    asked = names_of(entity)
    if asked is not None and (having := views_with(asked, views)):
        return (
            f". Rows of {', '.join(view.id for view in having)} have rows of it among theirs, and are written again "
            "when one is deleted: viewtail wait says when"
        )
    return nearest(entity, tables) or f"; views are of {', '.join(tables) or 'no table'}"


def views_with(table: tuple[str, str], views: Sequence[View]) -> list[View]:
    """The views in which rows of other keys may hold values of a table's row: related rows, numbers over rows."""
    return [view for view in views if table in _tables_of_others(view)]


def _tables_of_others(view: View) -> set[tuple[str, str]]:
    entity = view.entity
    tables = {table for _, related in entity.related for table in related.tables}
    return {*tables, entity.schema_and_table} if entity.values else tables


def _tables_meant(entity: str, tables: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return tables by their name alone, or as it was declared; else by schema and name, however they are written."""
    by_name = [table for table, (_, name) in tables.items() if entity in (table, name, quote(name))]
    if by_name:
        return by_name
    asked = names_of(entity)
    written = {table: (names, (without_source(names[0]), names[1])) for table, names in tables.items()}
    return [table for table, forms in written.items() if asked in forms or entity in map(".".join, forms)]


def of_one_key(views: Sequence[BoundView], by: str | None) -> list[BoundView]:
    """The views with the key that is meant. Raises MisuseError where views of the table have several keys."""
    keys: dict[str, list[BoundView]] = {}
    for view in views:
        keys.setdefault(",".join(column.name for column in view.key), []).append(view)
    if by is not None and by in keys:
        return keys[by]
    if by is None and len(keys) == 1:
        return list(views)
    known = "; ".join(f"--by {names} for {', '.join(view.id for view in of)}" for names, of in keys.items())
    raise MisuseError(
        f"the views of {views[0].table.full_name} have these keys: {known}. Give the entity's key in each of them, in "
        "a command of its own"
    )


# --- The steps ---


def erase(
    catalog: Catalog,
    views: Sequence[BoundView],
    declared: Sequence[View],
    key: str,
    *,
    archived: Callable[[], Archived | None],
    timeout_s: float,
    waits: Callable[[Sequence[str], Sequence[str]], None] = lambda *_: None,
) -> Proof:
    """Prove that nothing of an entity is left, erasing what is. Raises MisuseError while its row is there.

    Args:
        views: of one table and key, as declared now.
        declared: all views of views.py.
        archived: where archived rows of the table are; None where it was never archived.
        key: rendered; one that may be meant in two ways raises MisuseError.
        waits: is called before pipelines are waited for: with the views that they keep, those too that have rows of
            the table among theirs; and with what keeps pipelines from coming to this moment, a sentence each.
    """
    (parsed,) = own_keys([plain_key_of_text(key, views[0].key)], views[0])
    _require_gone(catalog, views[0], parsed, archived())
    with closing(catalog.session()) as session:
        require_not_moving(session, catalog.database, [view.id for view in views])
        views = everywhere(session, catalog.database, views)
    keepers = _keepers(catalog, views)
    others = views_with((views[0].table.schema, views[0].table.name), declared)
    ids = {view.id for view in declared}
    version = _passed(catalog, views, others, keepers, timeout_s, waits)
    _require_gone(catalog, views[0], parsed, archived())
    of_key = [place for view in views for place in _look(catalog, view, keepers[view.id], parsed, version)]
    looked = [*of_key, *_look_at_others(catalog, others)]
    looked += _beyond(catalog, views, {*ids, *(view.id for view in views)})
    letters, own = _letters(catalog, views, parsed), _own(catalog, views, ids, parsed)
    is_known = letters > 0 or any(place.was_erased or place.found != Holds.NOTHING for place in (*of_key, *own))
    return Proof(
        entity=views[0].table.full_name,
        key=render_key(parsed, views[0].key),
        proven_at=f"{datetime.now(UTC):{_UTC}}",
        looked=looked,
        letters=letters,
        own=own,
        rests=[*_rests(catalog, views, others, archived()), *_of_former(catalog, views, others, declared)],
        is_known=is_known,
    )


def _passed(
    catalog: Catalog,
    views: Sequence[BoundView],
    others: Sequence[View],
    keepers: Mapping[str, Sequence[str]],
    timeout_s: float,
    waits: Callable[[Sequence[str], Sequence[str]], None],
) -> int:
    """Wait until all pipelines of the views have passed this moment; returns its version."""
    pipelines = sorted({*_pipelines_of(catalog, others), *chain.from_iterable(keepers.values())})
    awaited = [*dict.fromkeys([view_of(view.id) for view in views] + [view.id for view in others])]
    waits(awaited, troubles(catalog, pipelines))
    version = passed_now(catalog, pipelines, timeout_s)
    if others or any(view.derived is not None for view in views):
        passed_now(catalog, pipelines, timeout_s)  # a fan-out that is written is forgotten behind this
    return version


def _require_gone(catalog: Catalog, view: BoundView, key: Key, archived: Archived | None) -> None:
    pattern, width = view.table.pattern, view.prefix
    part = None if pattern is None else pattern.of(key[:width])
    table = quote(view.table.schema, view.table.name) if part is None else quote(part.schema, part.name)
    for open_, where in ((catalog.servers.open_primary, "the primary"), (catalog.servers.open_source, "the source")):
        with closing(open_()) as connection:
            count = sum(row == key for row in TableRows(view.table).having(connection, view.key, view.key, [key]))
        if count:
            rows = "its row is" if count == 1 else f"{count} rows of it are"
            raise MisuseError(
                f"{rows} still in {view.table.full_name} on {where}. viewtail erases what was made of rows that are "
                f"gone, and would make it again. First: DELETE FROM {table} "
                f"WHERE {equals(view.key[width:], key[width:])};"
            )
    if archived is not None:
        _require_not_archived(catalog, view, key, archived.table)


def _require_not_archived(catalog: Catalog, view: BoundView, key: Key, table: str) -> None:
    with closing(catalog.servers.open_primary()) as connection, connection.cursor() as cursor:
        try:
            cursor.execute(f"SELECT 1 FROM {table} WHERE {one_of(view.key, [key])} LIMIT 1")
            is_there = cursor.fetchone() is not None
        except pymysql.err.MySQLError as error:
            raise source_error(error, connection) from None
    if is_there:
        raise MisuseError(
            f"archived rows of it are in {table}. First: DELETE FROM {table} WHERE {equals(view.key, key)};"
        )


def _keepers(catalog: Catalog, views: Sequence[BoundView]) -> dict[str, list[str]]:
    """Return the pipelines that keep each view. Raises MisuseError where they keep it by another declaration."""
    with closing(catalog.session()) as session:
        known = catalog.known_views(session)
    keepers: dict[str, list[str]] = {view.id: [] for view in views}
    for view in views:
        for (pipeline, name), record in known.items():
            if name != view.id:
                continue
            if record.declaration not in ("", declaration_hash(view.view)):
                raise MisuseError(
                    f"views.py declares view {view.id} otherwise than the viewtail that ran last. Restart `viewtail "
                    "run`, and repeat this command when the view is filled"
                )
            keepers[view.id].append(pipeline)
    return keepers


def _look(catalog: Catalog, view: BoundView, pipelines: Sequence[str], key: Key, version: int) -> list[Looked]:
    """Look at what the view holds now; what it should not hold was erased, where the guard let it."""
    store = store_of(view.view)
    with closing(store.traces(catalog.access(store), view)) as traces:
        present = traces.of(key)
        held = next((trace for trace in present if trace.holds is Holds.VALUES), None)
        tombstone = None if held is None else _tombstone_version(view, held, version)
        if held is None or tombstone is None or not pipelines:
            return [_looked(view, trace) for trace in present]
        _write_tombstone(catalog, view, pipelines[0], key, tombstone)
        after = {trace.place: trace for trace in traces.of(key)}
    return [_looked(view, after.get(trace.place, trace), before=trace) for trace in present]


def _tombstone_version(view: BoundView, held: Trace, passed: int) -> int | None:
    """A version above that of the values, and not above what the pipelines have passed; None where there is none."""
    if held.version is None:
        return None
    if view.view.entity.version is not None:  # 2 * column, and a delete is one above it
        return held.version + 1 if held.version % 2 == 0 and held.version < MAX_VERSION else None
    return passed if held.version < passed else None


def _write_tombstone(catalog: Catalog, view: BoundView, pipeline: str, key: Key, version: int) -> None:
    store = store_of(view.view)
    with closing(catalog.session()) as session:
        sink, committed = store.for_backfill(catalog.access(store), view, pipeline, session)
        with closing(sink):
            guard = guarded(sink)
            assert guard is not None, "what appends every change has no values of an entity"
            if view.id not in guard.attach():  # and it is not made here: that would hide that its rows were lost
                raise ViewtailError(
                    f"view {view.id}: its place is not as it is declared, so that nothing is written there. Start "
                    "viewtail run, then repeat this command"
                )
            sink.write([ViewWrites(view.id, {key: Write(version, None)})], None)
            with transaction(committed, "erasing an entity"):
                pass  # commits what was written where the session is the sink's
        known = known_views(session, catalog.database).items()
        note_written(session, catalog.database, [kept.id for (_, name), kept in known if name == view.id], version)


def _looked(view: BoundView, trace: Trace, before: Trace | None = None) -> Looked:
    is_clean = trace.holds in (Holds.NOTHING, Holds.TOMBSTONE)
    was_erased = is_clean and before is not None and before.holds is Holds.VALUES
    looked = Looked(view=view.id, place=trace.place, found=str(trace.holds), is_clean=is_clean, was_erased=was_erased)
    if trace.holds is Holds.TOMBSTONE:
        stays = f"the key; and {trace.stays}" if trace.stays else "the key"
        return replace(looked, stays=stays, until=trace.until or _UNTIL_DROPPED)
    if trace.holds is Holds.VALUES and store_of(view.view).keeps_every_change:
        return replace(looked, run=f"viewtail replay {view.id} (it publishes a tombstone), then this command again")
    if trace.holds is Holds.VALUES:
        return replace(
            looked, run=f"viewtail verify {view.id} --repair (the guard let no tombstone through), then again"
        )
    if trace.holds is Holds.FOREIGN:
        run = f"viewtail verify {view.id} --repair takes out what no row has; delete by hand what it leaves. Then again"
        return replace(looked, run=run)
    return looked


def _pipelines_of(catalog: Catalog, views: Sequence[View]) -> set[str]:
    """The pipelines that keep views, and their copies."""
    ids = {view.id for view in views}
    with closing(catalog.session()) as session:
        return {pipeline for pipeline, name in catalog.known_views(session) if view_of(name) in ids}


def _look_at_others(catalog: Catalog, views: Sequence[View]) -> list[Looked]:
    """Whether rows that had values of the entity among theirs were written again.

    Those of filled views were, but for parked keys: these show what they showed before, also when somebody dropped
    their dead letters.
    """
    with closing(catalog.session()) as session:
        known = catalog.known_views(session)
        with reading(session, "looking for dead letters that were dropped") as cursor:
            drops = runs.last_times(cursor, catalog.database, runs.DROP)
    letters, looked = _letters_of(catalog), list[Looked]()
    for view in views:
        records = [record for (_, name), record in known.items() if view_of(name) == view.id]
        dropped_s = max((at for name, at in drops.items() if view_of(name) == view.id), default=0.0)
        parked = sum(letters.get(record.id, 0) for record in records)
        looked.append(_look_at_other(view, records, parked, dropped_s))
    return looked


def _look_at_other(view: View, records: Sequence[ViewRecord], parked: int, dropped_s: float) -> Looked:
    """`dropped_s` is when dead letters of the view were dropped last, Unix time."""
    place = Looked(view=view.id, place="rows that had it among theirs", found=_WITHOUT_IT, is_clean=False)
    if states := sorted({record.state for record in records} - {State.FILLED}):
        run = f"{_BRINGS_BACK.get(states[0], '').format(view.id)}when the view is filled, this command again"
        return replace(place, found=f"no proof while the view is {states[0]}", run=run)
    if parked:
        run = (
            f"viewtail dead-letters list {view.id}; when that is mended, viewtail dead-letters redrive {view.id}, then "
            "this command again"
        )
        return replace(place, found=f"{counted(parked, 'keys', 'are')} parked, and may show it as before", run=run)
    if stale := [record.name for record in records if not _is_right_since(record, dropped_s)]:
        at = datetime.fromtimestamp(dropped_s, UTC)
        found = f"dead letters were dropped at {at:{_UTC}}, whose keys may show it as before"
        return replace(place, found=found, run=_after_drop(view, stale))
    if store_of(view).keeps_every_change:
        stays, until = "older messages of these rows", "the topic's cleanup removes them"
    else:
        stays, until = "what was put there by other hands", _until_proven(view, records)
    return replace(place, is_clean=True, stays=stays, until=until)


def _until_proven(view: View, records: Sequence[ViewRecord]) -> str:
    proven = min((record.proven_s or 0.0 for record in records), default=0.0)
    now = f"{datetime.fromtimestamp(proven, UTC):{_UTC}}" if proven else "never"
    return f"{view.id} is proven through a moment after this proof's (now: {now}): viewtail verify {view.id}"


def _is_right_since(record: ViewRecord, moment_s: float) -> bool:
    """Whether the view was compared as a whole, and equal, or backfilled from its beginning, since a moment."""
    if (record.proven_s or 0.0) > moment_s or not moment_s:
        return True
    if record.filled_at is None or record.fill_s is None:
        return False
    return bool(record.filled_at.replace(tzinfo=UTC).timestamp() - record.fill_s > moment_s)


def _after_drop(view: View, stale: Sequence[str]) -> str:
    """What the operator does; `stale` has the ids of the view and its copies that may show what they should not."""
    if view.id not in stale:
        return f"when its copy {', '.join(stale)} is dropped (viewtail status says when), this command again"
    if store_of(view).keeps_every_change:
        return f"viewtail replay {view.id}; when the view is filled, this command again"
    return f"viewtail verify {view.id} --repair, then this command again"


_UTC = "%Y-%m-%dT%H:%M:%SZ"
_BRINGS_BACK = {State.HALTED: "viewtail replay {}; ", State.PAUSED: "viewtail resume {}; "}
_WITHOUT_IT = "written again without it by the stream; not compared"
_UNTIL_DROPPED = "the view is dropped: viewtail gives tombstones no expiry, since older changes must not come back"


def _beyond(catalog: Catalog, views: Sequence[BoundView], declared: Collection[str]) -> list[Looked]:
    """Name what nobody looks at: former places of these views, and views of the entity that nobody declares now."""
    with closing(catalog.session()) as session:
        places = known_places(session, catalog.database)
    table, looked = views[0].table.full_name, []
    for view in views:
        if earlier := _earlier(view, places.get(view.id, [])):
            looked.append(_not_looked(view.id, f"where it lay before its declaration changed: {earlier}", _EARLIER))
    for name, of in sorted(places.items()):
        if view_of(name) not in declared and _may_be_of(table, of):
            run = f"viewtail forget {view_of(name)}"
            looked.append(_not_looked(name, "what it left: it is not declared any more", run))
    return looked


def _earlier(view: BoundView, places: Sequence[Place]) -> list[Place]:
    """Return those places that a view has had where it does not lie now; `forget` of another source tells its own."""
    store = store_of(view.view)
    if not store.needs_place:
        return []
    now = {"entity": view.table.full_name, **store.place(view)}
    return [place for place in places if place != now and not _is_of_another(place["entity"], view)]


def _is_of_another(entity: str, view: BoundView) -> bool:
    """Return whether it is an entity as another source than the view's has it."""
    names = names_of(entity)
    source = None if names is None else source_in(names[0])
    return bool(view.source) and source is not None and (source,) != view.source


def _not_looked(view: str, place: str, run: str) -> Looked:
    return Looked(view=view, place=place, found="not looked at", is_clean=False, run=run)


_EARLIER = "give the view another name, then viewtail forget this one, which drops what lies in all its places"


def _letters(catalog: Catalog, views: Sequence[BoundView], key: Key) -> int:
    """Dead letters of the entity, deleted; also of views that nobody declares now. Those of other sources stay."""
    table, ids = views[0].table.full_name, {view.id for view in views}
    with closing(catalog.session()) as session:
        places = known_places(session, catalog.database)
        ids |= {view for view, of in places.items() if any(place["entity"] == table for place in of)}
        rows = [record.id for (_, name), record in catalog.known_views(session).items() if name in ids]
        return dead_letters.erase(session, catalog.database, rows, _by_rendered(views, key))


def _by_rendered(views: Sequence[BoundView], key: Key) -> dict[str, list[BoundView]]:
    """The views by how they write the key: with unique_over_sources without the source's name."""
    found: dict[str, list[BoundView]] = {}
    for view in views:
        found.setdefault(render_key(key, view.key), []).append(view)
    return found


def _own(catalog: Catalog, views: Sequence[BoundView], declared: Collection[str], key: Key) -> list[Looked]:
    """Erase what viewtail's own tables say of the entity, for views that nobody declares now and forgotten ones too."""
    table = views[0].table.full_name
    with closing(catalog.session()) as session:
        places = known_places(session, catalog.database)
        left = {view for view, of in places.items() if any(place["entity"] == table for place in of)} - {*declared}
        with transaction(session, "erasing a key from viewtail's own tables") as cursor:
            written = [
                OwnTraces(
                    cursor=cursor,
                    database=catalog.database,
                    tables={table, views[0].view.entity.table},
                    key=key,
                    columns=alike[0].key,
                    views={view_of(name) for name in (*left, *(view.id for view in alike))},
                    known={view_of(name) for name in places},
                ).erase()
                for alike in _by_rendered(views, key).values()
            ]
    return [_looked_own(catalog.database, _as_one(traces)) for traces in zip(*written, strict=True)]


def _as_one(traces: Sequence[OwnTrace]) -> OwnTrace:
    """What one table held of a key that views write in several ways."""
    return replace(
        traces[0],
        erased=sum(trace.erased for trace in traces),
        left=next(filter(None, (trace.left for trace in traces)), ""),
        conditions=tuple(sorted({number for trace in traces for number in trace.conditions})),
    )


def _looked_own(database: str, trace: OwnTrace) -> Looked:
    table = quote(database, trace.table)
    looked = Looked(
        view="viewtail's own",
        place=f"table {table}",
        found=f"the key: {trace.left}" if trace.left else str(Holds.NOTHING),
        is_clean=not trace.left,
        was_erased=trace.erased > 0,
        held=f"the key in {counted(trace.erased, 'rows')}",
        run="wait until that is over, then this command again" if trace.left else "",
    )
    if not trace.conditions:
        return looked
    ids, count = ", ".join(map(str, trace.conditions)), len(trace.conditions)
    return replace(
        looked,
        stays=f"{counted(count, 'texts')} that operators wrote (--where, --reason), which may name values of it",
        until=f"you delete them: DELETE FROM {table} WHERE id IN ({ids});",
    )


# --- What stays ---


def _rests(
    catalog: Catalog, views: Sequence[BoundView], others: Sequence[View], archived: Archived | None
) -> list[Rest]:
    rests = [
        Rest(what="the values in binlogs of the source and its replicas", until=_binlogs_until(catalog)),
        Rest(what="backups of MySQL and of the stores", until="you delete them: they are not viewtail's"),
    ]
    files = [store.files for store in needed([*(view.view for view in views), *others])]
    rests += [Rest(what=what, until=until) for what, until in files if what]
    if any(store_of(view.view).keeps_every_change for view in views):
        what = "what consumers of the topics made of the messages, and topics made by viewtail replay --into"
        rests.append(Rest(what=what, until="you erase it there: they are not views"))
    for file in archived.files if archived is not None else ():
        until = "you delete it; viewtail restore --from FILE brings back first what it has of others"
        rests.append(Rest(what=f"archived rows in {file}, if it has any of the entity", until=until))
    return rests


def _of_former(
    catalog: Catalog, views: Sequence[BoundView], others: Sequence[View], declared: Sequence[View]
) -> list[Rest]:
    """What views may show that had rows of the table among theirs once, by a declaration that nobody knows now."""
    table = views[0].table.full_name
    looked_at = {view.id for view in views} | {view.id for view in others}
    ids = {view.id for view in declared} | looked_at
    with closing(catalog.session()) as session:
        known, places = catalog.known_views(session), known_places(session, catalog.database)
    letters = _letters_of(catalog)
    parked = {view_of(name) for (_, name), record in known.items() if letters.get(record.id)}
    left = {view_of(name) for name, of in places.items() if not _may_be_of(table, of)}
    once = f"if its declaration once had rows of {table} among its own"
    rests = [
        Rest(what=f"what parked keys of {name} show, {once}", until=f"they go in: viewtail dead-letters list {name}")
        for name in sorted(parked & ids - looked_at)
    ]
    return rests + [
        Rest(what=f"what {name} left, which nobody declares now, {once}", until=f"viewtail forget {name}")
        for name in sorted(left - ids)
    ]


def _letters_of(catalog: Catalog) -> dict[int, int]:
    """How many dead letters there are of each view, by the number of its row."""
    with closing(catalog.session()) as session, reading(session, "counting the dead letters") as cursor:
        return dead_letters.counts(cursor, catalog.database)


def _may_be_of(table: str, places: Sequence[Place]) -> bool:
    """Whether a view that has lain in these places was, as far as they tell, one of the table itself."""
    return not places or any(place["entity"] == table for place in places)


def _binlogs_until(catalog: Catalog) -> str:
    try:
        with closing(catalog.servers.open_primary()) as connection:
            kept_s = int(value_of(connection, "SELECT @@GLOBAL.binlog_expire_logs_seconds") or 0)
    except pymysql.err.MySQLError:
        return "the server removes them: see its setting for that"
    if not kept_s:
        return "for ever: binlog_expire_logs_seconds is 0"
    moment = datetime.now(UTC) + timedelta(seconds=kept_s)
    return f"about {moment:{_UTC}}: the server removes them after binlog_expire_logs_seconds"
