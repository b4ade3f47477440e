"""The states of a pipeline's views, in viewtail's own table `view`, and every way from one to another: TRANSITIONS.

Each method is one transaction on its session. A move that the table does not allow changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, TypeAlias

import orjson

from offsets import Owner, migrations
from offsets.lease import is_held
from offsets.mysql import Session, check_fence, reading, transaction
from projectors.binding import declaration_hash, earlier_fingerprint, shows_all
from projectors.stores.leaving import Place
from projectors.stores.registry import store_of
from projectors.views import BoundView, view_of
from projectors.whole_replays import Ending
from viewtail.changes.errors import DeclarationError, StopRequested
from viewtail.changes.pipelines import DEFAULT_SOURCE, PipelineId
from viewtail.changes.tables import Column, Kind
from viewtail.servers.sessions import quote


class State(StrEnum):
    """What a view's content can be relied on for."""

    NEW = "new"  # for nothing: it is to be backfilled from the beginning
    BACKFILLING = "filling"  # up to the last chunk's key
    FILLED = "filled"  # it equals its table, as far as its pipeline has come
    HALTED = "halted"  # it misses changes since, until an operator replays it
    PAUSED = "paused"  # it misses changes since, as an operator wants it, until one resumes it


GETS_NOTHING = frozenset({State.HALTED, State.PAUSED})  # neither changes nor a backfill


class Event(Enum):
    """What moves a view to another state."""

    REDECLARED = "its declaration in views.py changed"
    RETYPED = "its table's key or columns changed"
    BEGUN = "its backfill begins under a watermark"
    INTERRUPTED = "its backfill must begin again"
    FINISHED = "its backfill is done"
    LOST = "its store lost rows of it"
    REPLACED = "a statement put other rows into its table"
    RETIRED = "views.py no longer declares it, so it misses changes"
    HALTED = "its changes cannot be applied exactly"
    REPLAYED = "an operator asked for it: viewtail replay"
    PAUSED = "an operator asked for it: viewtail pause"
    RESUMED = "an operator asked for it: viewtail resume"


KEPT = frozenset({State.BACKFILLING, State.FILLED})
_NOT_HALTED = KEPT | {State.NEW}
_ANY = frozenset(State)
_NOT_PAUSED = _ANY - {State.PAUSED}

TRANSITIONS: Mapping[Event, tuple[frozenset[State], State]] = {
    Event.REDECLARED: (_NOT_PAUSED, State.NEW),
    Event.RETYPED: (_NOT_HALTED, State.NEW),
    Event.BEGUN: (frozenset({State.NEW}), State.BACKFILLING),
    Event.INTERRUPTED: (frozenset({State.BACKFILLING}), State.NEW),
    Event.FINISHED: (frozenset({State.BACKFILLING}), State.FILLED),
    Event.LOST: (KEPT, State.NEW),
    Event.REPLACED: (_NOT_HALTED, State.NEW),
    Event.RETIRED: (KEPT, State.NEW),
    Event.HALTED: (_ANY, State.HALTED),
    Event.REPLAYED: (_NOT_PAUSED, State.NEW),
    Event.PAUSED: (_NOT_HALTED, State.PAUSED),
    Event.RESUMED: (frozenset({State.PAUSED}), State.NEW),
}

_UNPROVEN = "proven_at = NULL, loss_count = loss_count + 1"
_NOT_PAUSED_NOW = "paused_at = NULL, paused_by = NULL"
_FORGOTTEN = f"reason = NULL, {_NOT_PAUSED_NOW}, fill_key = NULL, fill_row_count = 0, filled_at = NULL"
_ASSIGNMENTS = {
    State.NEW: f"{_FORGOTTEN}, {_UNPROVEN}, fill_row_estimate = 0, fill_started_at = NULL, "
    "fill_rows_a_second = %(rows_a_second)s, watermark_version = %(floor)s",
    State.BACKFILLING: f"{_FORGOTTEN}, fill_row_estimate = %(row_estimate)s, fill_incarnation = %(incarnation)s, "
    "fill_started_at = CURRENT_TIMESTAMP(6), watermark_version = %(watermark)s, is_place_ours = 1",
    State.FILLED: "watermark_version = %(end)s, fill_row_count = %(kept_count)s, filled_at = CURRENT_TIMESTAMP(6)",
    State.HALTED: f"reason = %(reason)s, {_NOT_PAUSED_NOW}, {_UNPROVEN}",
    State.PAUSED: f"reason = %(reason)s, paused_at = CURRENT_TIMESTAMP(6), paused_by = %(by)s, {_UNPROVEN}",
}
# A backfill must not begin under a watermark from before its table's rows were replaced.
_ONLY_IF = {Event.BEGUN: "COALESCE(watermark_version, 0) < %(watermark)s"}


def move(cursor: Any, table: str, pipeline_id: int, event: Event, views: Iterable[str], **values: object) -> int:
    """Those of the pipeline's views that the event moves from where they are, as a part of the caller's transaction.

    Returns how many were moved.

    Args:
        table: `view`, quoted, with its database.
        values: what the new state is kept with: `floor` (of the next watermark's version) and `rows_a_second` (the
            most that its backfill may read; 0: no limit) of a new view; `watermark`, `row_estimate`, `incarnation` of
            a backfill; `end`, `kept_count` of a filled one; `reason` of a halted one, with `by` of a paused one.
    """
    sources, to = TRANSITIONS[event]
    states = ", ".join(f"'{state}'" for state in sorted(sources))
    statement = (
        f"UPDATE {table} SET state = '{to}', {_ASSIGNMENTS[to]} WHERE pipeline_id = {pipeline_id} "
        f"AND name = %(view)s AND state IN ({states}) AND {_ONLY_IF.get(event, 'TRUE')}"
    )
    given = {"floor": None, "rows_a_second": 0, **values}
    return sum(cursor.execute(statement, {**given, "view": view}) for view in views)


# Why a view is halted while `viewtail forget` drops it, also after that was cut off.
BEING_DROPPED = (
    "viewtail forget began to drop it, and was cut off or is still at it. Run the same command again, without the view "
    "in views.py, to drop the rest; or declare it again, restart viewtail run, and have it back: viewtail replay"
)


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """One view's row in the table `view`."""

    id: int
    name: str  # the view's id: 'store:name'
    state: State
    reason: str | None  # why it is halted, or paused
    # Of a running backfill; of a finished one, its end; of a new view, what its next watermark must be above.
    watermark_version: int | None
    last_key: tuple[Any, ...] | None  # of the table's paging key, in the last row of the last finished chunk
    row_order: str  # in which its rows were read; '' where none was kept
    row_count: int  # read by the backfill
    kept_count: int  # rows written of these, one a key and chunk
    incarnation: str  # of the store, when the backfill began
    rows_a_second: int = 0  # at most so many are read; 0: no limit
    proven_s: float | None = None  # Unix time through which it was compared with its table, and equal


Where: TypeAlias = Callable[[ViewRecord], bool]


class ViewStates:
    """Reads and moves the views of one pipeline."""

    def __init__(self, session: Session, database: str, pipeline: str) -> None:
        self._session = session
        self._database = database
        self._table = quote(database, "view")
        self._pipeline = pipeline
        self._pipeline_id: int | None = None
        self.ids: dict[str, int] = {}
        self.redeclared: set[str] = set()  # views that `sync` found to be others than their content was made with

    def on(self, session: Session) -> ViewStates:
        """The same views on another thread's session."""
        twin = ViewStates(session, self._database, self._pipeline)
        twin._pipeline_id = self._pipeline_id
        return twin

    @property
    def pipeline_id(self) -> int:
        """The pipeline's number; -1 for one that never ran, which has no views."""
        if self._pipeline_id is None:
            with transaction(self._session, "looking for the pipeline") as cursor:
                cursor.execute(f"SELECT id FROM {quote(self._database, 'pipeline')} WHERE name = %s", (self._pipeline,))
                row = cursor.fetchone()
            if row is None:
                return -1
            self._pipeline_id = row[0]
        return self._pipeline_id

    def _transaction(self, doing: str) -> AbstractContextManager[Any]:
        _ = self.pipeline_id  # asked for in a transaction of its own
        return transaction(self._session, doing)

    @property
    def _ours(self) -> str:
        return f"WHERE pipeline_id = {self.pipeline_id}"

    def sync(self, views: Sequence[BoundView]) -> dict[str, ViewRecord]:
        """Make a row for each declared view; one whose declaration or table changed is new again.

        Raises DeclarationError for a view whose kind of version changed.
        """
        with self._transaction("reading the views") as cursor:
            present = self._fingerprints(cursor)
            for view in views:
                if view.id in present:
                    self._compare(cursor, view, *present[view.id])
            self._add_places(cursor, [view for view in views if view.id in present])
            self._insert(cursor, [view for view in views if view.id not in present])
            self._keep_columns(cursor, views)
            records = self._records(cursor, [view.id for view in views])
        self.ids |= {name: record.id for name, record in records.items()}
        return records

    def _fingerprints(self, cursor: Any) -> dict[str, tuple[str, str, str]]:
        cursor.execute(f"SELECT name, fingerprint, version_kind, declaration FROM {self._table} {self._ours}")
        return {name: (fingerprint, kind, hashed) for name, fingerprint, kind, hashed in cursor.fetchall()}

    def declarations(self) -> dict[str, KnownView]:
        """By id, what each view and copy that has a row was declared as when it was bound last."""
        with self._transaction("reading declarations") as cursor:
            cursor.execute(f"SELECT name, state, declaration FROM {self._table} {self._ours}")
            return {name: KnownView(state=state, declaration=hashed) for name, state, hashed in cursor.fetchall()}

    def _compare(self, cursor: Any, view: BoundView, fingerprint: str, version_kind: str, declaration: str) -> None:
        if version_kind != _version_kind(view):
            raise DeclarationError(
                f"view {view.id} has versions of kind {version_kind!r}, and its declaration now asks for "
                f"{_version_kind(view)!r}, which cannot be compared with them. Give the view a new name, or change the "
                "entity back"
            )
        declared = declaration_hash(view.view)
        if (fingerprint, declaration) == (view.fingerprint, declared):
            return
        self._keep(cursor, view, declared)
        if fingerprint not in (view.fingerprint, earlier_fingerprint(view)):
            # An earlier viewtail kept no hash of the declaration alone.
            event = Event.RETYPED if declaration in (declared, "") else Event.REDECLARED
            self.move_in(cursor, event, [view.id])
            self.redeclared.add(view.id)

    def _keep(self, cursor: Any, view: BoundView, declaration: str) -> None:
        cursor.execute(
            f"UPDATE {self._table} SET fingerprint = %(fingerprint)s, declaration = %(declaration)s "
            f"{self._ours} AND name = %(view)s",
            {"fingerprint": view.fingerprint, "declaration": declaration, "view": view.id},
        )

    def _insert(self, cursor: Any, views: Sequence[BoundView]) -> None:
        # Only those that are not there: InnoDB spends a number of the key on each INSERT, ignored ones too.
        cursor.executemany(
            f"INSERT INTO {self._table} "
            "(name, copy, pipeline_id, fingerprint, version_kind, declaration, places, is_place_ours, state) "
            f"VALUES (%s, %s, {self.pipeline_id}, %s, %s, %s, %s, 0, '{State.NEW}')",
            [
                (
                    *(view.id, view.copy, view.fingerprint, _version_kind(view), declaration_hash(view.view)),
                    _text_of([_place(view)]),
                )
                for view in views
            ],
        )

    def _add_places(self, cursor: Any, views: Sequence[BoundView]) -> None:
        """A place that a view had before stays known: what is there may be older than the view's newest declaration.

        The present one is the last. One that says a part of what the present one says is the same: an earlier viewtail
        kept less.
        """
        known = self._places(cursor)
        for view in views:
            before, now = known[view.id], _place(view)
            if before[-1:] != [now]:
                places = [*(one for one in before if not one.items() <= now.items()), now]
                cursor.execute(
                    f"UPDATE {self._table} SET places = %s {self._ours} AND name = %s", (_text_of(places), view.id)
                )

    def _keep_columns(self, cursor: Any, views: Sequence[BoundView]) -> None:
        """Until a view of all columns is filled with the present ones, changes may come that have earlier ones."""
        whole = {view.id: view for view in views if store_of(view.view).keeps_every_change and shows_all(view.view)}
        known = self._columns(cursor, whole)
        for name, view in whole.items():
            is_filled, before = known[name]
            now = [column for column in view.table.columns if column.name in view.needed]
            kept = now if is_filled else _with_former(now, before)
            if kept != before:
                statement = f"UPDATE {self._table} SET columns = %s {self._ours} AND name = %s"
                cursor.execute(statement, (_columns_text(kept), name))

    def _columns(self, cursor: Any, views: Collection[str]) -> dict[str, tuple[bool, list[Column]]]:
        """By view, whether it is filled, and the columns that were kept."""
        if not views:
            return {}
        cursor.execute(
            f"SELECT name, state, columns FROM {self._table} {self._ours} AND name IN %(views)s",
            {"views": sorted(views)},
        )
        return {name: (state == State.FILLED, _columns_from(text)) for name, state, text in cursor.fetchall()}

    def former(self, views: Sequence[BoundView]) -> dict[str, list[Column]]:
        """By view, the columns of its table, and earlier ones that changes may have that are not read yet."""
        with self._transaction("reading the views' columns") as cursor:
            return {name: columns for name, (_, columns) in self._columns(cursor, [view.id for view in views]).items()}

    def _places(self, cursor: Any) -> dict[str, list[Place]]:
        cursor.execute(f"SELECT name, places FROM {self._table} {self._ours}")
        return {name: places_from(text) for name, text in cursor.fetchall()}

    def last_places(self) -> dict[str, Place]:
        """By id, where each view is, as far as that was noted."""
        with self._transaction("reading where views are") as cursor:
            if "places" not in migrations.columns(cursor, self._database)["view"]:  # of an earlier viewtail
                return {}
            return {name: places[-1] for name, places in self._places(cursor).items() if places}

    def read(self, view: str) -> ViewRecord:
        return self.read_all([view])[view]

    def read_all(self, views: Collection[str]) -> dict[str, ViewRecord]:
        """By id, those of these views that have a row."""
        if not views:
            return {}
        _ = self.pipeline_id  # asked for by itself
        with reading(self._session, "reading views") as cursor:
            return self._records(cursor, views)

    def _records(self, cursor: Any, views: Collection[str]) -> dict[str, ViewRecord]:
        if not views:
            return {}
        cursor.execute(
            "SELECT id, name, state, reason, watermark_version, fill_key, fill_row_count, fill_incarnation, "
            "fill_rows_a_second, UNIX_TIMESTAMP(proven_at) "
            f"FROM {self._table} {self._ours} AND name IN %(views)s",
            {"views": sorted(views)},
        )
        records = {}
        for number, name, state, reason, watermark, last, count, incarnation, limit, proven in cursor.fetchall():
            key, order, kept = key_from_text(last, count)
            proven_s = None if proven is None else float(proven)
            records[name] = ViewRecord(
                number, name, State(state), reason, watermark, key, order, count, kept, incarnation, limit, proven_s
            )
        return records

    def move_in(self, cursor: Any, event: Event, views: Iterable[str], **values: object) -> int:
        """`move` of these views in the caller's transaction; `pipeline_id` must have been asked for before."""
        return move(cursor, self._table, self.pipeline_id, event, views, **values)

    def move(
        self, event: Event, views: Collection[str], *, where: Where = lambda _: True, **values: object
    ) -> list[str]:
        """Move those of these views that the event moves and `where` chooses; returns them. `values` as of `move`."""
        with self._transaction(f"moving views ({event.value})") as cursor:
            sources, _ = TRANSITIONS[event]
            records = self._records(cursor, views).values()
            moved = [record.name for record in records if record.state in sources and where(record)]
            self.move_in(cursor, event, moved, **values)
        return moved

    def halt(self, view: str, reason: str) -> None:
        with self._transaction("halting a view") as cursor:
            self.move_in(cursor, Event.HALTED, [view], reason=reason[:2000])

    def begin_backfill(self, view: str, watermark: int, row_estimate: int, incarnation: str) -> ViewRecord:
        """The view as it is then: one that was halted, or whose rows were replaced behind the watermark, stays so."""
        with self._transaction("beginning a backfill") as cursor:
            values = {"watermark": watermark, "row_estimate": row_estimate, "incarnation": incarnation}
            self.move_in(cursor, Event.BEGUN, [view], **values)
            return self._records(cursor, [view])[view]

    def lost_some(self) -> None:
        """The store came back with less than it had acknowledged: whatever was proven of the views is not any more."""
        with self._transaction("taking back what was proven") as cursor:
            cursor.execute(f"UPDATE {self._table} SET {_UNPROVEN} {self._ours}")

    def keep(self, view: BoundView) -> None:
        """The view was bound to its table as that is now, and its content needs no backfill for that."""
        with self._transaction("keeping a view as it is") as cursor:
            self._keep(cursor, view, declaration_hash(view.view))

    def forget(self, view: str) -> None:
        """Nothing is known of the view any more, nor of a copy beside it; what they show stays in their store."""
        with self._transaction("forgetting a view") as cursor:
            self._forget(cursor, view)

    def forget_dropped(self, view: str) -> bool:
        """`forget`, unless somebody declared the view again since it was halted as `BEING_DROPPED`."""
        with self._transaction("forgetting a view") as cursor:
            if not self._is_being_dropped(cursor, view, " FOR UPDATE"):
                return False
            self._forget(cursor, view)
        return True

    def is_being_dropped(self, view: str) -> bool:
        """Whether the view is halted as `BEING_DROPPED` still, with all of its copies that are known now."""
        with self._transaction("asking whether a view is dropped") as cursor:
            return self._is_being_dropped(cursor, view)

    def _is_being_dropped(self, cursor: Any, view: str, lock: str = "") -> bool:
        cursor.execute(f"SELECT name, state, reason FROM {self._table} {self._ours}{lock}")
        found = {name: (state, reason) for name, state, reason in cursor.fetchall() if view_of(name) == view}
        return view in found and set(found.values()) == {(State.HALTED, BEING_DROPPED)}

    def _forget(self, cursor: Any, view: str) -> None:
        letters, rebuilds = quote(self._database, "dead_letter"), quote(self._database, "rebuild")
        for name in [name for name in self._fingerprints(cursor) if view in (name, view_of(name))]:
            of_view = f"{self._ours} AND name = %s"
            cursor.execute(f"DELETE FROM {letters} WHERE view_id = (SELECT id FROM {self._table} {of_view})", (name,))
            cursor.execute(f"DELETE FROM {self._table} {of_view}", (name,))
        cursor.execute(f"DELETE FROM {rebuilds} {self._ours} AND view_name = %s", (view,))

    def retire_others(self, declared: Iterable[str]) -> None:
        """Views of this pipeline that are no longer declared miss its changes from now on: put back, they are new."""
        with self._transaction("retiring views") as cursor:
            others = sorted(self._fingerprints(cursor).keys() - set(declared))
            self.move_in(cursor, Event.RETIRED, others)


@dataclass(eq=False)
class BackfillProgress:
    """How far the backfill of one view has come. Each method commits `session`; FencedError for a stale owner."""

    session: Session  # where the sink's rows wait for their commit, or any other
    database: str
    owner: Owner  # of the pipeline
    view: str
    row_order: str  # in which the rows are read

    def save(self, key: tuple[Any, ...], row_count: int, kept_count: int) -> None:
        """The chunk that ends with `key` is durable; so many rows were read, and so many does the view show.

        Raises StopRequested where the view is not being backfilled any more: it was halted, paused or marked meanwhile.
        """
        with self._owned() as cursor:
            found = cursor.execute(
                f"UPDATE {quote(self.database, 'view')} SET fill_key = %s, fill_row_count = %s "
                f"WHERE pipeline_id = %s AND name = %s AND state = '{State.BACKFILLING}'",
                (key_text(key, self.row_order, kept_count), row_count, self.owner.id, self.view),
            )
            if not found:
                raise StopRequested

    def finish(self, end: int, kept_count: int | None) -> None:
        """A store that has a witness of version `end` or above has every row of the backfill.

        Args:
            kept_count: rows that were written; None: nobody counted.
        """
        with self._ending(kept_count) as cursor:
            self._finish(cursor, self.owner.id, end, kept_count)

    def _finish(self, cursor: Any, pipeline_id: int, end: int, kept_count: int | None) -> None:
        values = {"end": end, "kept_count": kept_count or 0}
        move(cursor, quote(self.database, "view"), pipeline_id, Event.FINISHED, [self.view], **values)

    @contextmanager
    def _ending(self, kept_count: int | None) -> Iterator[Any]:
        """The view is filled in this transaction, and a replay that asked for it is over."""
        with self._owned() as cursor:
            ending = Ending(cursor, self.database, self.view)
            ending.lock()
            cursor.execute(
                f"SELECT fill_row_count FROM {quote(self.database, 'view')} WHERE pipeline_id = %s AND name = %s",
                (self.owner.id, self.view),
            )
            (row_count,) = cursor.fetchone() or (0,)
            yield cursor
            ending.end(row_count, kept_count)

    def commit_rows(self) -> None:
        """Make rows durable that move no progress (the sweep's tombstones)."""
        with self._owned():
            pass

    @contextmanager
    def _owned(self) -> Iterator[Any]:
        """A cursor of a transaction that is committed only for the owner."""
        with transaction(self.session, "saving a backfill's progress") as cursor:
            # The pipeline's row first: its thread may halt this view while a batch of it holds that row.
            check_fence(cursor, self.owner)
            yield cursor


def _version_kind(view: BoundView) -> str:
    return view.view.entity.version or "binlog"  # as it is stored: the kind of all versions that are no column's


def _place(view: BoundView) -> Place:
    return {"entity": view.table.full_name, **store_of(view.view).place(view)}


def _text_of(places: Sequence[Place]) -> str:
    return orjson.dumps(places).decode()


def _with_former(now: Sequence[Column], before: Sequence[Column]) -> list[Column]:
    """The present columns, then the former ones that are no more as they were."""
    return [*now, *(column for column in before if column not in now)]


def _columns_text(columns: Sequence[Column]) -> str:
    return orjson.dumps([{**asdict(column), "kind": column.kind.value} for column in columns]).decode()


def _columns_from(text: str | None) -> list[Column]:
    """As `_columns_text` keeps them; none where an earlier viewtail kept the view."""
    found: list[dict[str, Any]] = [] if text is None else orjson.loads(text)
    return [Column(**{**one, "kind": Kind(one["kind"]), "labels": tuple(one["labels"])}) for one in found]


def places_from(text: str | None) -> list[Place]:
    """The places that a view has and had; none where an earlier viewtail kept it."""
    return [] if text is None else list(orjson.loads(text))


def places_ours(session: Session, database: str) -> frozenset[str]:
    """The ids of views whose places are this deployment's, where the store does not say whose they are."""
    with transaction(session, "reading whose the places are") as cursor:
        if "is_place_ours" not in migrations.columns(cursor, database).get("view", ()):
            return frozenset()
        cursor.execute(f"SELECT name FROM {quote(database, 'view')} WHERE is_place_ours = 1")
        return frozenset(name for (name,) in cursor.fetchall())


def known_places(session: Session, database: str) -> dict[str, list[Place]]:
    """By id, the places of each view that viewtail's tables know."""
    with transaction(session, "reading where views are") as cursor:
        places = "places" if "places" in migrations.columns(cursor, database)["view"] else "NULL"
        cursor.execute(f"SELECT name, {places} FROM {quote(database, 'view')}")
        found: dict[str, list[Place]] = {}
        for name, text in cursor.fetchall():
            kept = found.setdefault(name, [])
            kept += [one for one in places_from(text) if one not in kept]
        return found


def key_text(key: tuple[Any, ...], row_order: str, kept_count: int) -> str:
    """How the last key of a chunk is kept, with the order of its rows and how many rows the view shows."""
    return orjson.dumps({"order": row_order, "key": key, "kept": kept_count}, default=_tagged).decode()


def key_from_text(text: str | None, row_count: int) -> tuple[tuple[Any, ...] | None, str, int]:
    """The key, the order of its rows, and how many were kept; an earlier viewtail did not save the latter two."""
    if text is None:
        return None, "", 0
    found = orjson.loads(text)
    kept: dict[str, Any] = {"key": found} if isinstance(found, list) else found
    return tuple(_untagged(part) for part in kept["key"]), kept.get("order", ""), kept.get("kept", row_count)


def _tagged(value: bytes | Decimal) -> dict[str, str]:
    """What JSON cannot hold of a key."""
    return {"hex": value.hex()} if isinstance(value, bytes) else {"decimal": f"{value:f}"}


def _untagged(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if "hex" in value else Decimal(value["decimal"])
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownView:
    """What is known of a view without its table."""

    state: str
    declaration: str  # hash, as of `declaration_hash`; '' where an earlier viewtail kept none
    fingerprint: str = ""  # of declaration and table; '' where it was not asked for


def kept_elsewhere(
    session: Session, database: str, pipeline: PipelineId, views: Collection[str]
) -> tuple[str, str] | None:
    """One of these views that somebody keeps from a topic now, and the pipeline that does; of a topic's, the binlog."""
    if not views:
        return None
    with transaction(session, "reading who keeps a view") as cursor:
        cursor.execute(
            f"SELECT v.name, p.name FROM {quote(database, 'view')} v "
            f"JOIN {quote(database, 'pipeline')} p ON p.id = v.pipeline_id "
            f"WHERE (p.source = %s) <> %s AND v.state IN (%s, %s) AND v.name IN ({', '.join(['%s'] * len(views))})",
            (DEFAULT_SOURCE, pipeline.source == DEFAULT_SOURCE, State.BACKFILLING, State.FILLED, *views),
        )
        found = {other: view for view, other in cursor.fetchall()}
        held = next((other for other in found if is_held(cursor, database, other)), None)
    return None if held is None else (found[held], held)


def known_views(session: Session, database: str) -> dict[tuple[str, str], KnownView]:
    """By pipeline and id; none where viewtail's tables are not there or not readable."""
    with transaction(session, "reading the views' states") as cursor:
        present = migrations.columns(cursor, database)
        if not {"pipeline", "view"} <= present.keys():
            return {}
        declaration = "v.declaration" if "declaration" in present["view"] else "''"  # of an earlier viewtail
        cursor.execute(
            f"SELECT p.name, v.name, v.state, {declaration}, v.fingerprint FROM {quote(database, 'view')} v "
            f"JOIN {quote(database, 'pipeline')} p ON p.id = v.pipeline_id"
        )
        return {
            (pipeline, name): KnownView(state=state, declaration=hashed, fingerprint=fingerprint)
            for pipeline, name, state, hashed, fingerprint in cursor.fetchall()
        }
