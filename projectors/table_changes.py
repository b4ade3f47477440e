"""Applies to views that a statement took rows of their table away, or put others in their place.

- All rows are gone (TRUNCATE): each key that the view shows with an older version gets a tombstone with the version of
  the statement. Rows inserted later stay, and the statement can be applied twice.
- Some rows are gone (DROP PARTITION), or all rows that derived ones are of, or one of many tables with its rows (DROP,
  which may have been about a temporary one, or RENAME): the keys that the table no longer has, or whose rows the view
  leaves out now, get tombstones. A row deleted since is gone a moment early; one that was inserted again comes with its
  own event.
- A store that appends every change has no guard for either: its view is filled again in the order of the stream, and
  the end of that deletes the keys that the table no longer has.
- Other rows may have come (the tables of gh-ost, an exchanged partition): the view is backfilled again in place, if the
  table as it is now still fits it.
- One of many tables came by RENAME, with rows: they are written here, with the version of the statement.
- A column became wider: the store makes room before the first row behind the statement.
- A column was added: views that show every column have it after the next start, which the log says.
- Rows are read in another way from here on (another character set, another order of the keys): the view is bound to the
  table as it is now, and a backfill under way begins again.
- The same of a table that derived rows are made of, and another collation: they were read ahead of the statement, and
  what a condition, an order or a reference makes of texts is not in any row. The view is backfilled again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import pymysql
import structlog

from ingest.canonical import describe
from ingest.canonical.chunks import CanonicalRows, absent_keys, reading_of
from ingest.canonical.parts import exists, rows_about
from ingest.canonical.rows import TableRows
from ingest.canonical.tables import with_part
from offsets import OffsetStore
from offsets.views import State
from projectors import failpoints
from projectors.binding import bind, shown_whole, shows_new_columns
from projectors.dead_letters import DeadLetters, Parking
from projectors.derived import Part
from projectors.outcomes import End, Ended, Outcome
from projectors.projection import Projections, followed_tables, parts_of
from projectors.stores import GuardedSink, Sink, guarded, publisher
from projectors.view_life import ViewLife
from projectors.views import BoundView
from viewtail.changes.batches import Row, TableChange, TableChangeKind
from viewtail.changes.errors import (
    RETRIES,
    DeclarationError,
    SourceError,
    SourceUnavailableError,
    StopRequested,
    StoreError,
)
from viewtail.changes.patterns import Part as TablePart
from viewtail.changes.rendering import render_key
from viewtail.changes.tables import Table, unlike
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key, ViewWrites, Write
from viewtail.servers.sessions import Connection

_log = structlog.get_logger("viewtail.pipeline")
MOST_ROWS_MEANWHILE = 100_000  # of one table, while the stream waits for them; by the server's estimate


@dataclass(frozen=True, slots=True, eq=False)
class TableChanges:
    """Applies them to the views of one pipeline, whose parts these are."""

    life: ViewLife
    sink: Sink
    offsets: OffsetStore
    dead_letters: DeadLetters
    open_source: Callable[[], Connection]  # may raise AnotherServerError, which restarts the pipeline and halts no view
    check_lease: Callable[[], None]  # raises FencedError when the pipeline was lost
    stop: threading.Event  # a large view takes longer than a stop may

    def prepare(self, changes: Iterable[TableChange]) -> None:
        """Ahead of the rows of their batch: room in the store for what they may hold now."""
        for change in changes:
            if not change.kind.keeps_rows and change.kind is not TableChangeKind.REPLACED:
                continue
            for view in self.life.following(change.followed):
                if change.kind is TableChangeKind.EXTENDED:
                    _tell_of_new_column(view, change)
                    continue
                try:
                    self._bind(view, change)
                except (SourceError, DeclarationError, StoreError) as error:
                    if change.kind.keeps_rows:  # of a table that was replaced `apply` says what is wrong
                        self.life.halt(view.id, _cannot_go_on(view, change, error))

    def _bind(self, view: BoundView, change: TableChange) -> BoundView:
        """Bind a view anew. Raises SourceError, DeclarationError or StoreError where that cannot be.

        Raises Ended where the views of a store that keeps every change, or those that use columns which are not
        followed, are to be bound to it as the pipeline is taken again; nothing of the batch was committed.
        """
        now = self._bound_now(view, change.part)
        if changed := _masked_otherwise(view, now):
            # From here on the stream is to have them so, whoever reads it.
            _log.warning("columns are masked otherwise: the view is filled again", view=view.id, columns=changed)
            raise Ended(Outcome(End.DESCRIBE_AGAIN, f"a table changed: {view.id}: {change.reason}"))
        is_other = not _is_alike(view, now) or view.key != now.key
        if publisher(self.sink) is not None and _is_keyed_alike(view, now) and is_other:
            # Its changes are read in the form that they have, and the keys of its topic as its columns are now.
            raise Ended(Outcome(End.DESCRIBE_AGAIN, f"a table changed: {view.id}: {change.reason}"))
        _check_alike(view, now)
        if _uses_more(view, now):
            # Its changes come with the columns that were used when the pipeline was taken.
            raise Ended(Outcome(End.DESCRIBE_AGAIN, f"a table changed: {view.id}: {change.reason}"))
        if _reading_of(view) != _reading_of(now):
            with self.life.gate.binding(view.id):
                # First: once bound, nothing shows that the backfill must begin again.
                begin_again = self.life.read_in_another_way if view.derived is None else self.life.replaced
                begin_again(view.id, change.version)
                self.life.bind(now, self.sink)
        elif now.fingerprint != view.fingerprint:
            with self.life.gate.closed(view.id):
                self.life.bind(now, self.sink)
        else:
            return now
        _log.info("view fits its table as it is now", view=view.id, why=change.reason)
        return now

    def apply(self, changes: Iterable[TableChange]) -> bool:
        """Apply them in order, behind the rows of their batch: versions tell which came before and which after.

        A view whose table does not fit it any more is halted. False: it was stopped half-way, and the batch is to be
        read again.
        """
        try:
            for change in changes:
                if not change.kind.keeps_rows:
                    _log.info("a statement took rows away or replaced them", what=change.kind.value, why=change.reason)
                    for view in self.life.following(change.followed):
                        self._apply(view, change)
        except StopRequested:
            return False
        return True

    def _apply(self, view: BoundView, change: TableChange) -> None:
        try:
            if change.kind is TableChangeKind.REPLACED:
                self._replace(view, change)
            else:
                self._take_away(view, change)
        except (SourceError, DeclarationError) as error:
            self.life.halt(view.id, _cannot_go_on(view, change, error))

    def _replace(self, view: BoundView, change: TableChange) -> None:
        """Another table has the name: backfilled again if what the view uses of it is as it was."""
        try:
            now = self._bind(view, change).table
        except StoreError as error:
            raise SourceError(f"its store has no room for it: {error}") from None
        if change.part is not None:
            if change.values not in view.paused:
                self._fill_part(self.life.views[view.id], change.part, change.version)
            return
        self.life.replaced(view.id, change.version)
        before = change.followed.table
        if (now.primary_key, now.unique_names) != (before.primary_key, before.unique_names):
            # Statements about its keys are judged by the description that the table is followed with. Halted in this
            # process alone: marked for a backfill, the view has the pipeline taken again.
            self.life.projections.halt(view.id)

    def _fill_part(self, view: BoundView, part: TablePart, version: int) -> None:
        """One of many tables has other rows than before: those that it has now, and no key besides.

        They are read as they are now, and written with the statement's version: what changed since comes with a newer
        one. The stream waits meanwhile, so of a large table the whole view is filled again, beside the stream.
        """
        sink = guarded(self.sink)
        assert sink is not None, "no topic is of many tables"
        with closing(self.open_source()) as connection:
            count = rows_about(connection, part)
        if count > MOST_ROWS_MEANWHILE:
            self.life.replaced(view.id, version)
            return
        projections = Projections([view], followed_tables([view]))
        parking = Parking(self.dead_letters, self.life.halt)
        rows = CanonicalRows(
            TableRows(view.table.at(part)),
            view.needed,
            open_source=self.open_source,
            shows=None,
            stop=self.stop,
            only=view.condition,
        )
        with self.life.gate.closed(view.id), closing(rows):
            if view.view.entity.version is None:
                self.dead_letters.clear_part(view, part.values, version)  # as where a backfill begins
            last_key: Key | None = None
            read = 0
            while (chunk := rows.after(last_key, version)) is not None:
                self.check_lease()
                projected = projections.of_rows(view.id, chunk.rows, version)
                refused = self.sink.write(projected.writes, None)
                self.offsets.save_rows()
                parking.park(projected.writes, projected.parked, refused)
                self.dead_letters.clear_applied(projected.writes, [*projected.parked, *refused])
                last_key, read = chunk.last_key, read + len(chunk.rows)
                if read > MOST_ROWS_MEANWHILE:  # the server's statistics were behind
                    self.life.replaced(view.id, version)
                    return
                failpoints.reach(failpoints.PART_STEP)
                if self.stop.is_set():
                    raise StopRequested
            if not view.view.entity.append_only:
                self._thin(sink, view, version, part.values)
        _log.info("one of many tables was filled", view=view.id, table=part.full_name, about=count)

    def make_right(self, view: BoundView, part: TablePart, version: int) -> None:
        """One of many tables gets changes again from `version` on: its rows as they are now, and no key besides.

        A view that is not whole gets them with its backfill, which begins again. Raises StopRequested, Ended.
        """
        if not self.life.gets_changes(view.id):
            return  # its next backfill reads all of its tables
        if self.life.states.read(view.id).state is not State.FILLED:
            self.life.replaced(view.id, version)
            return
        followed = followed_tables([view])[view.table.schema, view.table.name]
        kind = TableChangeKind.REPLACED if self._exists(part) else TableChangeKind.LEFT
        change = TableChange(followed, version, kind, f"{part.full_name} was resumed", part)
        try:
            self._replace(view, change) if kind is TableChangeKind.REPLACED else self._take_away(view, change)
        except (SourceError, DeclarationError) as error:
            if kind is TableChangeKind.REPLACED and not self._exists(part):  # dropped meanwhile
                self._take_away(view, change._replace(kind=TableChangeKind.LEFT))
                return
            self.life.halt(view.id, _cannot_go_on(view, change, error))

    def _exists(self, part: TablePart) -> bool:
        with closing(self.open_source()) as connection:
            return exists(connection, part)

    def _take_away(self, view: BoundView, change: TableChange) -> None:
        if _is_archiving(view, change) or change.values in view.paused:
            return
        sink = guarded(self.sink)
        if sink is None:
            self._fill_again(view, change)
            return
        if view.derived is not None and not _is_emptied(view, change):
            self.life.replaced(view.id, change.version)  # rows are there still, and may be others
            return
        with self.life.gate.closed(view.id):
            if _is_emptied(view, change) and _has_own_versions(view):
                self.dead_letters.clear_part(view, change.values, change.version)
                for page in sink.keys_of_part(view.id, change.values, change.version):
                    self._bury(view, {key: Write(change.version, None) for key, _ in page})
            else:
                self._thin(sink, self._keyed_now(view, change), change.version, change.values)

    def _keyed_now(self, view: BoundView, change: TableChange) -> BoundView:
        """Its keys may be read in another way than when it was bound; those of one of many tables are as they were."""
        if change.part is not None:
            return view
        now = self._bound_now(view)
        _check_alike(view, now)
        return now

    def _fill_again(self, view: BoundView, change: TableChange) -> None:
        if publisher(self.sink) is None:
            raise SourceError("its store keeps every change and cannot tell which keys it holds, to delete them")
        with self.life.gate.closed(view.id):
            self.life.replaced(view.id, change.version)

    def _thin(self, sink: GuardedSink, view: BoundView, version: int, part: Key) -> None:
        """Bury the keys that begin with the values of `part`, and of which the view shows no row any more.

        A row that it leaves out may have come in the place of one that it showed, and no event says so. With a version
        column a delete is one above the row's version, and nothing shows which rows are older. Derived rows were read
        ahead of the statement: one that came after it may be shown already.
        """
        is_column = view.view.entity.version is not None
        leaves_out = view.derived is None and (view.view.where is not None or view.view.document is not None)
        projections = Projections([view], followed_tables([view])) if leaves_out else None
        with closing(self.open_source()) as connection:
            for page in sink.keys_of_part(view.id, part, MAX_VERSION if is_column else version):
                keys = [key for key, _ in page]
                gone = absent_keys(keys, partial(_shown, connection, view, projections))
                stale = {key: Write(stored | 1 if is_column else version, None) for key, stored in page if key in gone}
                self._bury(view, stale)

    def _bury(self, view: BoundView, tombstones: dict[Key, Write]) -> None:
        """One page, durable by itself: the offset stays before the statement until all are.

        A statement about a schema is about tables in it that are paused, too.
        """
        tombstones = {key: tombstones[key] for key in view.own([*tombstones])}
        self.check_lease()
        if self.stop.is_set():
            raise StopRequested
        if tombstones:
            writes = [ViewWrites(view.id, tombstones)]
            self.sink.write(writes, None)
            self.offsets.save_rows()
            self.dead_letters.clear_applied(writes, [])

    def _bound_now(self, view: BoundView, part: TablePart | None = None) -> BoundView:
        """The view with its table as it is now; of a pattern the one table `part` is looked at."""
        with closing(self.open_source()) as connection:

            def described(schema: str, name: str) -> Table:
                if part is not None:
                    return with_part(connection, view.table, part)
                return _without_new(describe(connection, schema, name), view)

            (now,) = bind([view.view], described, view.masks)
        return replace(now, copy=view.copy, is_beside=view.is_beside, move=view.move, paused=view.paused)


def _is_archiving(view: BoundView, change: TableChange) -> bool:
    """Return whether the view keeps what the table loses, as it does with row deletes, or with tables that are gone."""
    entity = view.view.entity
    return entity.append_only or (change.kind is TableChangeKind.LEFT and entity.dropped == "keep")


def _is_emptied(view: BoundView, change: TableChange) -> bool:
    """Return whether the view has no rows any more."""
    return change.kind is TableChangeKind.EMPTIED and _is_own(view, change)


def _has_own_versions(view: BoundView) -> bool:
    """Return whether its rows have the versions of the stream: what has a smaller one came before a statement."""
    return view.view.entity.version is None and view.derived is None


def _is_own(view: BoundView, change: TableChange) -> bool:
    """Return whether the statement was about the entity's table."""
    table = change.followed.table
    return (table.schema, table.name) == (view.canonical.schema, view.canonical.name)


def _without_new(table: Table, view: BoundView) -> Table:
    """Leave out the new columns of a view that shows all: its sink, projection and stream do not have them.

    So the next start finds it changed, and backfills it.
    """
    before = next((part.table for part in parts_of(view) if part.table.full_name == table.full_name), None)
    if before is None or (view.derived is None and not shows_new_columns(view.view)):
        return table
    known = {column.name for column in before.columns} | {*table.paging_key}
    return replace(table, columns=tuple(column for column in table.columns if column.name in known))


def _tell_of_new_column(view: BoundView, change: TableChange) -> None:
    table = change.followed.table
    name = view.view.entity.schema_and_table if _is_own(view, change) else (table.schema, table.name)
    if name in shown_whole(view.view):
        _log.warning(
            "the view lacks a new column until its pipeline starts again, which backfills the view with it",
            view=view.id,
            why=change.reason,
        )


def _masked_otherwise(view: BoundView, now: BoundView) -> list[str]:
    """The columns that a view uses, or would show, whose masks are not those of before."""
    changed = []
    for part in parts_of(view):
        table = now.described(part.table.schema, part.table.name)
        for name in part.columns:
            before, after = part.table.column(name), table.column(name)
            if before is not None and after is not None and before.mask != after.mask:
                changed.append(f"{table.full_name}.{name}")
    return changed


def _uses_more(view: BoundView, now: BoundView) -> bool:
    """Return whether derived rows are made of columns that they were not made of, as those of another primary key."""
    return view.derived is not None and not _used(now) <= _used(view)


def _used(view: BoundView) -> set[tuple[str, str]]:
    return {(part.table.full_name, name) for part in parts_of(view) for name in part.columns}


def _reading_of(view: BoundView) -> object:
    """Describe how its rows are read; where it is equal, what was read before is the same now."""
    own = reading_of(view.table, view.needed)
    if view.derived is None:
        return own
    return own, [(reading_of(part.table, part.columns), _collations(part)) for part in view.derived.parts]


def _collations(part: Part) -> list[str | None]:
    return [column.collation for column in part.table.columns if column.name in part.columns]


def _cannot_go_on(view: BoundView, change: TableChange, error: Exception) -> str:
    return (
        f"{change.reason}, and the view cannot go on with its table: {error}. When that is mended, backfill the view "
        f"again: viewtail replay {view.id}"
    )


def _is_keyed_alike(view: BoundView, now: BoundView) -> bool:
    return [column.name for column in now.key] == [column.name for column in view.key]


def _is_alike(view: BoundView, now: BoundView) -> bool:
    try:
        _check_alike(view, now)
    except SourceError:
        return False
    return True


def _check_alike(view: BoundView, now: BoundView) -> None:
    """Raises SourceError where the values that a view uses are not of the kind that they were."""
    if not _is_keyed_alike(view, now):
        raise SourceError("its key changed")
    for part in parts_of(view):
        table = now.described(part.table.schema, part.table.name)
        for name in part.columns:
            before, after = part.table.column(name), table.column(name)
            assert before is not None
            if after is None:
                raise SourceError(f"column {name} is gone")
            if (difference := unlike(before, after)) is not None:
                raise SourceError(f"column {name}: {difference}")


def _shown(connection: Connection, view: BoundView, projections: Projections | None, keys: Sequence[Key]) -> list[Row]:
    """Those of these keys whose rows are in the view, or are refused: those keep what is shown of them.

    Rows are read as they are now: the statement's event came after it had taken effect. Without `projections` the view
    leaves none out.
    """
    needed = [column for column in view.table.columns if column.name in view.needed]
    columns = view.key if projections is None else needed
    try:
        rows = view.rows.having(connection, columns, view.key, keys, view.condition)
        connection.commit()  # the next one sees what was committed since
    except pymysql.err.MySQLError:
        raise SourceUnavailableError(f"the source broke off; {RETRIES}") from None
    return rows if projections is None else _projected(view, projections, rows, keys)


def _projected(view: BoundView, projections: Projections, rows: list[Row], keys: Sequence[Key]) -> list[Row]:
    """Those of these keys that the view shows of the rows, or refuses."""
    projected = projections.of_rows(view.id, rows, MAX_VERSION)
    shown = {key for of_view in projected.writes for key, write in of_view.writes.items() if write[1] is not None}
    refused = {letter.key for letter in projected.parked}
    return [key for key in keys if key in shown or (refused and render_key(key, view.key) in refused)]
