"""The views of each pipeline: a row each, its state, and every way from one state to another: TRANSITIONS.

Each method of `ViewStates` is one transaction on its session. A move that the table does not allow changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from enum import Enum, StrEnum
from typing import Any, TypeAlias

import orjson

from offsets import fan_outs, pipelines, view_parts
from offsets.fill_keys import key_from_text
from offsets.mysql import Session, reading, transaction
from offsets.pauses import OF_VIEW, Pause, pause_of
from offsets.runs import record_refill
from viewtail.changes.copy_ids import view_of
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind
from viewtail.servers.sessions import quote

Place: TypeAlias = Mapping[str, Any]  # where a view is, as its store says; plain JSON


class State(StrEnum):
    """The state of a view: what its content can be relied on for."""

    NEW = "new"  # for nothing: it is to be backfilled from the beginning
    BACKFILLING = "filling"  # up to the last chunk's key
    FILLED = "filled"  # it equals its table, as far as its pipeline has come
    HALTED = "halted"  # it misses changes since, until an operator replays it
    PAUSED = "paused"  # it misses changes since, as an operator wants it, until one resumes it
    RELEASED = "released"  # its place is an application's, for good


GETS_NOTHING = frozenset({State.HALTED, State.PAUSED, State.RELEASED})  # neither changes nor a backfill


class Event(Enum):
    """An event that moves a view to another state."""

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
    RELEASED = "an operator asked for it: viewtail cutover"


KEPT = frozenset({State.BACKFILLING, State.FILLED})
_NOT_HALTED = KEPT | {State.NEW}
_ANY = frozenset(State) - {State.RELEASED}
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
    Event.RELEASED: (_ANY, State.RELEASED),
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
    State.RELEASED: f"reason = %(reason)s, {_NOT_PAUSED_NOW}",
    State.PAUSED: f"reason = %(reason)s, paused_at = CURRENT_TIMESTAMP(6), paused_by = %(by)s, {_UNPROVEN}",
}
# A backfill must not begin under a watermark from before its table's rows were replaced.
_ONLY_IF = {Event.BEGUN: "COALESCE(watermark_version, 0) < %(watermark)s"}

# What comes later has no use for the fan-outs from before. A view that is marked for a backfill while it gets changes
# keeps them: the watermark may be known already, and older than some. Each is brought by its backfill: then they go.
_ENDS_FAN_OUTS = frozenset(
    {Event.REDECLARED, Event.RETYPED, Event.RETIRED, Event.HALTED, Event.PAUSED, Event.BEGUN, Event.RELEASED}
)

# Why a view is halted while `viewtail forget` drops it, also after that was cut off.
BEING_DROPPED = (
    "viewtail forget began to drop it, and was cut off or is still at it. Run the same command again, without the view "
    "in views.py, to drop the rest; or declare it again, restart viewtail run, and have it back: viewtail replay"
)


def move(cursor: Any, database: str, pipeline_id: int, event: Event, views: Iterable[str], **values: object) -> int:
    """Move those of the pipeline's views that the event moves, as a part of the caller's transaction.

    Returns how many were moved.

    Args:
        values: what the new state is kept with: `floor` (of the next watermark's version) and `rows_a_second` (the
            most that its backfill may read; 0: no limit) of a new view; `watermark`, `row_estimate`, `incarnation` of
            a backfill; `end`, `kept_count` of a filled one; `reason` of a halted or released one, with `by` of a
            paused one.
    """
    sources, to = TRANSITIONS[event]
    states = ", ".join(f"'{state}'" for state in sorted(sources))
    statement = (
        f"UPDATE {quote(database, 'view')} SET state = '{to}', {_ASSIGNMENTS[to]} WHERE pipeline_id = {pipeline_id} "
        f"AND name = %(view)s AND state IN ({states}) AND {_ONLY_IF.get(event, 'TRUE')}"
    )
    given = {"floor": None, "rows_a_second": 0, **values}
    moved = [view for view in views if cursor.execute(statement, {**given, "view": view})]
    for view in moved if event in _ENDS_FAN_OUTS else ():
        upto = values["watermark"] if event is Event.BEGUN else None
        assert upto is None or isinstance(upto, int)
        fan_outs.forget_upto(cursor, database, pipeline_id, view, upto)
    return len(moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRecord:
    """A view's row in the table `view`: the view as one pipeline has it."""

    id: int
    pipeline_id: int
    name: str  # the view's id: 'store:name'; ~number behind it: a copy beside the live one
    copy: int  # the number of this copy of the view
    fingerprint: str  # of declaration and table
    declaration: str  # hash of the declaration alone
    version_kind: str
    state: State
    reason: str | None  # why it is halted, or paused; when it was released, and by whom
    pause: Pause | None
    # Of a running backfill; of a finished one, its end; of a new view, what its next watermark must be above.
    watermark_version: int | None
    last_key: tuple[Any, ...] | None  # of the table's paging key, in the last row of the last finished chunk
    row_order: str  # in which its rows were read; '' where none was kept
    row_count: int  # read by the backfill; of a filled view, kept
    kept_count: int  # rows written of these, one a key and chunk
    row_estimate: int  # rows of the table when the backfill began
    incarnation: str  # of the store, when the backfill began
    rows_a_second: int  # at most so many are read; 0: no limit
    fill_s: float | None  # how long the backfill has taken, seconds
    filled_at: Any
    loss_count: int  # how often it could not be relied on any more
    proven_s: float | None  # Unix time through which it was compared with its table, and equal


def read(
    cursor: Any,
    database: str,
    *,
    names: Collection[str] | None = None,
    pipeline_id: int | None = None,
    lock: str = "",
) -> list[ViewRecord]:
    """Return the views of these names and of this pipeline, by name; None: of all."""
    if names is not None and not names:
        return []
    conditions = ["TRUE" if names is None else "v.name IN %(names)s"]
    if pipeline_id is not None:
        conditions.append(f"v.pipeline_id = {pipeline_id}")
    cursor.execute(
        "SELECT v.id, v.pipeline_id, v.name, v.copy, v.fingerprint, v.declaration, v.version_kind, v.state, v.reason, "
        "v.watermark_version, v.fill_key, v.fill_row_count, v.fill_row_estimate, v.fill_incarnation, "
        "v.fill_rows_a_second, "
        "TIMESTAMPDIFF(MICROSECOND, v.fill_started_at, COALESCE(v.filled_at, CURRENT_TIMESTAMP(6))) / 1e6, "
        f"v.filled_at, v.loss_count, UNIX_TIMESTAMP(v.proven_at), {OF_VIEW} FROM {quote(database, 'view')} v "
        f"WHERE {' AND '.join(conditions)} ORDER BY v.name{lock}",
        {"names": sorted(names or ())},
    )
    return [_record(row) for row in cursor.fetchall()]


def _record(row: tuple[Any, ...]) -> ViewRecord:
    number, pipeline_id, name, copy, fingerprint, declaration, kind, state, reason, watermark, *more = row
    last, count, estimate, incarnation, limit, fill_s, filled_at, losses, proven, *pause = more
    key, order, kept = key_from_text(last)
    return ViewRecord(
        id=number,
        pipeline_id=pipeline_id,
        name=name,
        copy=copy,
        fingerprint=fingerprint,
        declaration=declaration,
        version_kind=kind,
        state=State(state),
        reason=reason,
        pause=pause_of(pause),
        watermark_version=watermark,
        last_key=key,
        row_order=order,
        row_count=count,
        kept_count=kept,
        row_estimate=estimate,
        incarnation=incarnation,
        rows_a_second=limit,
        fill_s=None if fill_s is None else float(fill_s),
        filled_at=filled_at,
        loss_count=losses,
        proven_s=None if proven is None else float(proven),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredView:
    """A view as it is declared and bound to its table."""

    id: str
    copy: int
    fingerprint: str
    declaration: str
    version_kind: str
    place: Place
    columns: Sequence[Column] | None  # of its table; None where those of earlier changes need not be known


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
            self._pipeline_id = pipelines.ids(self._session, self._database, [self._pipeline]).get(self._pipeline)
        return -1 if self._pipeline_id is None else self._pipeline_id

    def _transaction(self, doing: str) -> AbstractContextManager[Any]:
        _ = self.pipeline_id  # asked for in a transaction of its own
        return transaction(self._session, doing)

    @property
    def _ours(self) -> str:
        return f"WHERE pipeline_id = {self.pipeline_id}"

    # -- declarations -------------------------------------------------------------------------------------------

    def sync(self, views: Sequence[DeclaredView]) -> dict[str, ViewRecord]:
        """Make a row for each declared view; one whose declaration or table changed is new again.

        Raises DeclarationError for a view whose kind of version changed.
        """
        with self._transaction("reading the views") as cursor:
            present = self._records(cursor)
            known = [view for view in views if view.id in present]
            for view in known:
                self._compare(cursor, view, present[view.id])
            self._add_places(cursor, known)
            self._insert(cursor, [view for view in views if view.id not in present])
            self._keep_columns(cursor, [view for view in views if view.columns is not None])
            records = self._records(cursor, [view.id for view in views])
        self.ids |= {name: record.id for name, record in records.items()}
        return records

    def _compare(self, cursor: Any, view: DeclaredView, kept: ViewRecord) -> None:
        if kept.version_kind != view.version_kind:
            raise DeclarationError(
                f"view {view.id} has versions of kind {kept.version_kind!r}, and its declaration now asks for "
                f"{view.version_kind!r}, which cannot be compared with them. Give the view a new name, or change the "
                "entity back"
            )
        if (kept.fingerprint, kept.declaration) == (view.fingerprint, view.declaration):
            return
        self._keep(cursor, view)
        if kept.fingerprint != view.fingerprint:
            event = Event.RETYPED if kept.declaration == view.declaration else Event.REDECLARED
            self.move_in(cursor, event, [view.id])
            self.redeclared.add(view.id)

    def _keep(self, cursor: Any, view: DeclaredView) -> None:
        cursor.execute(
            f"UPDATE {self._table} SET fingerprint = %s, declaration = %s {self._ours} AND name = %s",
            (view.fingerprint, view.declaration, view.id),
        )

    def _insert(self, cursor: Any, views: Sequence[DeclaredView]) -> None:
        # Only those that are not there: InnoDB spends a number of the key on each INSERT, ignored ones too.
        cursor.executemany(
            f"INSERT INTO {self._table} "
            "(name, copy, pipeline_id, fingerprint, version_kind, declaration, places, is_place_ours, state) "
            f"VALUES (%s, %s, {self.pipeline_id}, %s, %s, %s, %s, 0, '{State.NEW}')",
            [
                (view.id, view.copy, view.fingerprint, view.version_kind, view.declaration, _json_of([view.place]))
                for view in views
            ],
        )

    def _add_places(self, cursor: Any, views: Sequence[DeclaredView]) -> None:
        """A place that a view had before stays known: what is there may be older than the view's newest declaration.

        The present one is the last.
        """
        known = self._places(cursor)
        for view in views:
            before = known[view.id]
            if before[-1:] != [view.place]:
                places = [*(place for place in before if place != view.place), view.place]
                cursor.execute(
                    f"UPDATE {self._table} SET places = %s {self._ours} AND name = %s", (_json_of(places), view.id)
                )

    def _keep_columns(self, cursor: Any, views: Sequence[DeclaredView]) -> None:
        """Keep earlier columns: until a view of all columns is filled with the present ones, changes may have them."""
        known = self._columns(cursor, [view.id for view in views])
        for view in views:
            is_filled, before = known[view.id]
            now = view.columns or ()
            kept = [*now] if is_filled else [*now, *(column for column in before if column not in now)]
            if kept != before:
                statement = f"UPDATE {self._table} SET columns = %s {self._ours} AND name = %s"
                cursor.execute(statement, (_columns_text(kept), view.id))

    def _columns(self, cursor: Any, views: Collection[str]) -> dict[str, tuple[bool, list[Column]]]:
        """Return, by view, whether it is filled, and the columns that were kept."""
        if not views:
            return {}
        cursor.execute(f"SELECT name, state, columns FROM {self._table} {self._ours} AND name IN %s", (sorted(views),))
        return {name: (state == State.FILLED, _columns_from(text)) for name, state, text in cursor.fetchall()}

    def former(self, views: Collection[str]) -> dict[str, list[Column]]:
        """Return, by view, the columns of its table, and earlier ones that changes may have that are not read yet."""
        with self._transaction("reading the views' columns") as cursor:
            return {name: columns for name, (_, columns) in self._columns(cursor, views).items()}

    def _places(self, cursor: Any) -> dict[str, list[Place]]:
        cursor.execute(f"SELECT name, places FROM {self._table} {self._ours}")
        return {name: orjson.loads(text) for name, text in cursor.fetchall()}

    def last_places(self) -> dict[str, Place]:
        """Return, by id, where each view is."""
        with self._transaction("reading where views are") as cursor:
            return {name: places[-1] for name, places in self._places(cursor).items()}

    def declarations(self) -> dict[str, ViewRecord]:
        """Return, by id, each view and copy that has a row, as it was declared when it was bound last."""
        with self._transaction("reading declarations") as cursor:
            return self._records(cursor)

    def keep(self, view: DeclaredView) -> None:
        """The view was bound to its table as that is now, and its content needs no backfill for that."""
        with self._transaction("keeping a view as it is") as cursor:
            self._keep(cursor, view)

    # -- states -------------------------------------------------------------------------------------------------

    def read(self, view: str) -> ViewRecord:
        return self.read_all([view])[view]

    def read_all(self, views: Collection[str]) -> dict[str, ViewRecord]:
        """Return, by id, those of these views that have a row."""
        if not views:
            return {}
        _ = self.pipeline_id  # asked for by itself
        with reading(self._session, "reading views") as cursor:
            return self._records(cursor, views)

    def _records(self, cursor: Any, views: Collection[str] | None = None, lock: str = "") -> dict[str, ViewRecord]:
        records = read(cursor, self._database, names=views, pipeline_id=self.pipeline_id, lock=lock)
        return {record.name: record for record in records}

    def move_in(self, cursor: Any, event: Event, views: Iterable[str], **values: object) -> int:
        """`move` of these views in the caller's transaction; `pipeline_id` must have been asked for before."""
        return move(cursor, self._database, self.pipeline_id, event, views, **values)

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

    def lost(self, views: Collection[str], *, where: Where = lambda _: True) -> list[str]:
        """The store lost rows of these views: as `move`, and the record says so.

        Others are moved by the same event, because they missed changes: that is no loss of the store.
        """
        moved = self.move(Event.LOST, views, where=where)
        for view in moved:
            record_refill(self._session, self._database, view, Event.LOST.value)
        return moved

    def lost_for_others(self, views: Collection[str]) -> None:
        """The place of these views is gone, with the rows that the pipelines of other sources had written there."""
        with self._transaction("telling other pipelines what the store lost") as cursor:
            records = read(cursor, self._database, names=views) if views else []
            for record in records:
                if record.pipeline_id != self.pipeline_id:
                    move(cursor, self._database, record.pipeline_id, Event.LOST, [record.name])

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

    def retire_others(self, declared: Iterable[str]) -> None:
        """Views of this pipeline that are no longer declared miss its changes from now on: put back, they are new."""
        with self._transaction("retiring views") as cursor:
            others = sorted(self._records(cursor).keys() - set(declared))
            self.move_in(cursor, Event.RETIRED, others)

    # -- dropping -----------------------------------------------------------------------------------------------

    def is_being_dropped(self, view: str) -> bool:
        """Return whether the view is halted as `BEING_DROPPED` still, with all of its copies that are known now."""
        with self._transaction("asking whether a view is dropped") as cursor:
            return self.is_being_dropped_in(cursor, view)

    def is_being_dropped_in(self, cursor: Any, view: str, lock: str = "") -> bool:
        """`is_being_dropped` in the caller's transaction; `pipeline_id` must have been asked for before."""
        copies = [record for record in self._records(cursor, lock=lock).values() if view_of(record.name) == view]
        is_known = any(record.name == view for record in copies)
        return is_known and {(record.state, record.reason) for record in copies} == {(State.HALTED, BEING_DROPPED)}


# -- views of every pipeline ------------------------------------------------------------------------------------


def delete(cursor: Any, database: str, ids: Collection[int]) -> None:
    """Delete the rows of these views, in the caller's transaction."""
    if ids:
        fan_outs.forget(cursor, database, ids)
        view_parts.forget(cursor, database, ids)
        cursor.execute(f"DELETE FROM {quote(database, 'view')} WHERE id IN %s", (sorted(ids),))


def names(session: Session, database: str) -> list[str]:
    """The ids of all views and copies that have a row."""
    with transaction(session, "reading the views") as cursor:
        cursor.execute(f"SELECT DISTINCT name FROM {quote(database, 'view')} ORDER BY name")
        return [name for (name,) in cursor.fetchall()]


def places_ours(session: Session, database: str) -> frozenset[str]:
    """The ids of views whose places are this deployment's, where the store does not say whose they are."""
    with transaction(session, "reading whose the places are") as cursor:
        cursor.execute(f"SELECT name FROM {quote(database, 'view')} WHERE is_place_ours = 1")
        return frozenset(name for (name,) in cursor.fetchall())


def known_places(session: Session, database: str) -> dict[str, list[Place]]:
    """Return, by id, the places of each view that viewtail's tables know."""
    with transaction(session, "reading where views are") as cursor:
        cursor.execute(f"SELECT name, places FROM {quote(database, 'view')}")
        found: dict[str, list[Place]] = {}
        for name, text in cursor.fetchall():
            kept = found.setdefault(name, [])
            kept += [place for place in orjson.loads(text) if place not in kept]
        return found


def note_proven(session: Session, database: str, ids: Collection[int], through: str, losses: int) -> bool:
    """Note that a view, of these rows, is proven through a moment; False where it was halted, or lost something, since.

    `losses` is how often its rows had lost something when the comparison began.
    """
    table = quote(database, "view")
    with transaction(session, "noting that a view is proven") as cursor:
        cursor.execute(
            f"SELECT SUM(loss_count) FROM {table} WHERE id IN %s AND state = %s FOR UPDATE", (sorted(ids), State.FILLED)
        )
        if cursor.fetchone() != (losses,):
            return False
        cursor.execute(
            f"UPDATE {table} SET proven_at = GREATEST(COALESCE(proven_at, %s), %s) WHERE id IN %s",
            (through, through, sorted(ids)),
        )
    return True


def note_written(session: Session, database: str, ids: Collection[int], version: int) -> None:
    """Note that single entities, whose changes are behind the pipeline, were written again as of a version.

    A store that comes back with less than that version has lost them, and the view is filled again, as where it has
    lost what a backfill wrote.
    """
    with transaction(session, "noting what was written again") as cursor:
        cursor.execute(
            f"UPDATE {quote(database, 'view')} SET watermark_version = GREATEST(%s, COALESCE(watermark_version, 0)) "
            "WHERE id IN %s AND state = %s",
            (version, sorted(ids), State.FILLED),
        )


def _json_of(places: Sequence[Place]) -> str:
    return orjson.dumps(places).decode()


def _columns_text(columns: Sequence[Column]) -> str:
    return orjson.dumps([_kept(column) for column in columns]).decode()


def _kept(column: Column) -> dict[str, Any]:
    """As the table has it, and whether it is masked; the secret of a mask is not kept."""
    kept = asdict(replace(column.stored, tags=(), made_from=None, fields=()))
    fields = [_kept(field) for field in column.fields]
    return {**kept, "kind": column.stored.kind.value, "fields": fields, "mask": column.mask is not None}


def _columns_from(text: str | None) -> list[Column]:
    """Return the columns that a text of `_columns_text` keeps."""
    return [] if text is None else [_column_from(kept) for kept in orjson.loads(text)]


def _column_from(kept: dict[str, Any]) -> Column:
    """A column that was masked, and that the table may have no more, is read as NULL."""
    fields = tuple(map(_column_from, kept.get("fields", ())))
    texts = {"labels": tuple(kept["labels"]), "fields": fields, "tags": ()}
    column = Column(**{**kept, "kind": Kind(kept["kind"]), **texts, "mask": None})
    if not kept.get("mask"):
        return column
    from viewtail.changes.masks import masked  # `status` reads views, and renders nothing

    return masked(column, "null")
