"""The table `rebuild`: which views have a copy beside the live one, and what is asked for it. Statements by name.

A copy is, for all that writes, one more view of its pipeline, with a row of its own in the table `view` and another
place in the store. Every way from one stage to another is in TRANSITIONS: commands ask, the owner of the pipeline does
it (projectors/copies.py). Here is what is known and asked for, not what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from offsets import Owner, migrations, views
from offsets.mysql import Session, check_fence, reading, transaction
from offsets.views import State, ViewStates
from viewtail.changes.copy_ids import copy_id, view_of
from viewtail.changes.errors import ViewtailError
from viewtail.servers.sessions import quote

SWAP_AGAIN_S = 10.0  # after one that could not be done: the pipeline restarts for each
DEFAULT_KEEP_S = 24 * 3600  # how long the former copy is kept after a swap


class Stage(StrEnum):
    """What is to be done with the copy beside a live one."""

    BUILDING = "building"  # it is filled and kept up to date; readers never saw it
    SWAPPING = "swapping"  # an operator asked for the swap
    MOVING = "moving"  # readers get the other copy entity by entity; both are kept up to date
    KEPT = "kept"  # readers saw it until the swap; it is kept up to date until its time is over
    RETURNING = "returning"  # an operator asked to swap back
    DROPPING = "dropping"  # it is to be dropped
    ENDED = "ended"  # there is none


class Event(Enum):
    """What moves a copy to another stage."""

    BEGUN = "a copy is asked for"
    SWAP_ASKED = "readers are to get the copy beside"
    REFUSED = "the swap cannot be done now"
    SWAPPED = "readers have the other copy"
    MOVE_BEGUN = "readers get the other copy entity by entity from now on"
    MOVED = "the last entity is moved"
    DROP_ASKED = "nobody wants the copy beside any more"
    DROPPED = "nothing of it is left"


class By(Enum):
    """Who brings an event about."""

    ASKED = "an operator, or the owner of the pipeline for a changed declaration or a copy whose time is over"
    OWNER = "the owner of the pipeline: it swaps as it takes it, before anything is written; it drops then or beside"
    MOVER = "the owner's mover, beside the pipeline"


class Transition(NamedTuple):
    """One way from a stage to another."""

    stage: Stage
    event: Event
    to: Stage
    by: By
    work: str  # what is done for it


TRANSITIONS = (
    Transition(Stage.ENDED, Event.BEGUN, Stage.BUILDING, By.ASKED, "the copy gets a number"),
    Transition(Stage.BUILDING, Event.SWAP_ASKED, Stage.SWAPPING, By.ASKED, "it was filled and compared before"),
    Transition(Stage.SWAPPING, Event.SWAPPED, Stage.KEPT, By.OWNER, "Swapping.swap, and the rows change names"),
    Transition(Stage.SWAPPING, Event.MOVE_BEGUN, Stage.MOVING, By.OWNER, "Swapping.swap, and the rows change names"),
    Transition(Stage.SWAPPING, Event.REFUSED, Stage.BUILDING, By.OWNER, "the reason is noted"),
    Transition(Stage.MOVING, Event.MOVED, Stage.KEPT, By.MOVER, "GradualSwapping.move"),
    Transition(Stage.KEPT, Event.SWAP_ASKED, Stage.RETURNING, By.ASKED, "nothing: it was kept up to date"),
    Transition(Stage.RETURNING, Event.SWAPPED, Stage.KEPT, By.OWNER, "Swapping.swap, and the rows change names"),
    Transition(Stage.RETURNING, Event.MOVE_BEGUN, Stage.MOVING, By.OWNER, "Swapping.swap, and the rows change names"),
    Transition(Stage.RETURNING, Event.REFUSED, Stage.KEPT, By.OWNER, "the reason is noted"),
    Transition(Stage.BUILDING, Event.DROP_ASKED, Stage.DROPPING, By.ASKED, "the pipeline is taken without it"),
    Transition(Stage.KEPT, Event.DROP_ASKED, Stage.DROPPING, By.ASKED, "the pipeline is taken without it"),
    Transition(Stage.DROPPING, Event.DROPPED, Stage.ENDED, By.OWNER, "Swapping.drop, and its rows are deleted"),
)
_TO = {(way.stage, way.event): way.to for way in TRANSITIONS}
# What waits for the owner, and what readers may see change at any moment.
ASKED = frozenset(way.stage for way in TRANSITIONS if way.by is By.OWNER)
CHANGING_PLACES = frozenset(way.stage for way in TRANSITIONS if way.event in (Event.SWAPPED, Event.MOVED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The copy beside a live one."""

    view: str  # the id of the view
    live: int  # the number of the live copy
    copy: int  # the number of the one beside
    stage: Stage
    is_automatic: bool  # a changed declaration began it: it is swapped when it is filled and was compared
    is_compared: bool  # the copy is filled, was found to be as its table is, and has lost nothing since
    note: str | None  # why what was asked for last could not be done
    started_by: str
    keep_s: int
    kept_s: float | None  # how long the copy beside is kept from now on
    upto: int | None = None  # of copies that are moved: the version up to which the one that readers get was whole
    moved_count: int = 0  # entities that were moved, as of some seconds ago
    is_hurried: bool = False  # its copy does not give way to live changes
    is_paused: bool = False  # an operator paused the view, so readers keep what they have: nothing is swapped

    @property
    def copy_id(self) -> str:
        """The id of the copy beside."""
        return copy_id(self.view, self.copy)

    @property
    def is_newest(self) -> bool:
        """Whether the copy beside is newer than what readers have."""
        return self.copy > self.live

    def due(self, owned_s: float) -> Event | None:
        """What the owner asks for by itself: it drops what was kept long enough, and swaps new declarations in.

        A swap that could not be done is asked for again after SWAP_AGAIN_S of this ownership.
        """
        if self.stage is Stage.KEPT and self.kept_s is not None and self.kept_s <= 0:
            return Event.DROP_ASKED
        is_ready = self.is_automatic and self.is_compared and not self.is_paused
        if self.stage is Stage.BUILDING and is_ready and (not self.note or owned_s > SWAP_AGAIN_S):
            return Event.SWAP_ASKED
        return None


class Choice(NamedTuple):
    """An operator went back to a declaration from another; both are hashes. The declined one is not built by itself."""

    kept: str
    declined: str

    def to_text(self) -> str:
        return "<".join(self)


_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "view": ("r.view_name", str),
    "live": ("COALESCE(v.copy, 1)", int),
    "copy": ("r.copy", int),
    "stage": ("r.stage", Stage),
    "is_automatic": ("r.is_automatic", bool),
    "is_compared": (f"COALESCE(c.state = '{State.FILLED}' AND c.loss_count = r.compared, 0)", bool),
    "note": ("r.note", str),
    "started_by": ("r.started_by", str),
    "keep_s": ("r.keep_s", int),
    "kept_s": ("TIMESTAMPDIFF(MICROSECOND, CURRENT_TIMESTAMP(6), r.kept_until) / 1e6", float),
    "upto": ("r.moved_upto", int),
    "moved_count": ("r.moved_count", int),
    "is_hurried": ("r.is_hurried", bool),
    "is_paused": (f"COALESCE(v.state = '{State.PAUSED}', 0) OR COALESCE(c.state = '{State.PAUSED}', 0)", bool),
}


class Copies:
    """Of one pipeline. Each method is one transaction on `session`."""

    def __init__(self, session: Session, database: str, pipeline: str) -> None:
        self._session, self._database = session, database
        self._table, self._view = quote(database, "rebuild"), quote(database, "view")
        self.states = ViewStates(session, database, pipeline)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self) -> dict[str, Copy]:
        """By view, the copies beside live ones."""
        number = self._id
        with reading(self._session, "reading rebuilds") as cursor:
            return {copy.view: copy for copy in _read(cursor, self._database, f"r.pipeline_id = {number}")}

    def is_paused(self, view: str) -> bool:
        """Whether an operator paused the view, or a copy of it."""
        records = self.states.declarations().values()
        return any(record.state is State.PAUSED and view_of(record.name) == view for record in records)

    def live(self, view: str) -> tuple[int, str]:
        """The number of the copy that readers see, and the hash of the declaration that made it."""
        with self._transaction("reading which copy is live") as cursor:
            return self._live(cursor, view)

    def choices(self) -> dict[str, Choice]:
        """By view, what an operator chose; also where there is no copy beside the live one any more."""
        with self._transaction("reading what operators went back to") as cursor:
            cursor.execute(
                f"SELECT view_name, declined FROM {self._table} WHERE pipeline_id = {self._id} AND declined IS NOT NULL"
            )
            return {view: Choice(*text.split("<", 1)) for view, text in cursor.fetchall()}

    # -- moving -------------------------------------------------------------------------------------------------

    def begin(
        self, view: str, started_by: str, keep_s: int, *, is_automatic: bool = False, is_hurried: bool = False
    ) -> None:
        """Have a copy made beside the live one. Where there is one already, `is_hurried` alone is noted."""
        with self._transaction("beginning a rebuild") as cursor:
            before = self._lock(cursor, view)
            if before is not None and (before[1], Event.BEGUN) not in _TO:
                if is_hurried:
                    self._set(cursor, view, "is_hurried = 1")
                return
            live, _ = self._live(cursor, view)
            number = 1 + max(live, before[0] if before else 0)
            cursor.execute(
                f"REPLACE INTO {self._table} (view_name, pipeline_id, copy, stage, is_automatic, started_by, keep_s, "
                f"is_hurried) VALUES (%s, {self._id}, %s, '{_TO[Stage.ENDED, Event.BEGUN]}', %s, %s, %s, %s)",
                (view, number, is_automatic, started_by[:255], keep_s, is_hurried),
            )

    def move(self, copy: Copy, event: Event, *, note: str | None = None, keep_s: int | None = None) -> bool:
        """Move a copy to its next stage; False where it is in another one by now, or the event does not move it."""
        with self._transaction(f"noting about a copy: {event.value}") as cursor:
            keeping = "keep_s = COALESCE(%s, keep_s)"
            return self._move(cursor, copy, event, note, keeping, keep_s)

    def swapped(self, copy: Copy, owner: Owner, upto: int | None, *, is_kept: bool) -> None:
        """The two copies have each other's place: their rows have each other's names from now on.

        With `upto` their entities are still to be moved. `is_kept`: the former one is kept up to date; if not, its time
        is over at once.
        """
        former, passing = copy_id(copy.view, copy.live), f"{copy.view}~"
        event = Event.SWAPPED if upto is None else Event.MOVE_BEGUN
        with self._transaction("noting a swap") as cursor:
            check_fence(cursor, owner)
            assignments = (
                "copy = %s, compared = NULL, declined = NULL, moved_upto = %s, moved_count = 0, "
                "swapped_at = CURRENT_TIMESTAMP(6), kept_until = IF(%s, "
                "COALESCE(kept_until, CURRENT_TIMESTAMP(6) + INTERVAL keep_s SECOND), CURRENT_TIMESTAMP(6))"
            )
            if not self._move(cursor, copy, event, None, assignments, copy.live, upto, is_kept):
                return
            for name, to in ((copy.view, passing), (copy.copy_id, copy.view), (passing, former)):
                cursor.execute(
                    f"UPDATE {self._view} SET name = %s WHERE name = %s AND pipeline_id = {self._id}", (to, name)
                )
            if not copy.is_newest:  # an operator went back
                self._decline(cursor, copy.view, former)

    def dropped(self, copy: Copy, note: str | None) -> None:
        """The copy beside is gone; `note` says what of it is not."""
        self.states.forget(copy.copy_id)
        with self._transaction("noting that a copy was dropped") as cursor:
            self._move(cursor, copy, Event.DROPPED, note, "ended_at = CURRENT_TIMESTAMP(6)")

    def pause(self, view: str, by: str, reason: str | None) -> bool | None:
        """Whether the view was in a state to be paused, and is now; None: its copies change places, so it cannot be.

        A swap would give the pause to the copy that readers leave. The lock keeps one from being asked for meanwhile.
        """
        with self._transaction("pausing a view") as cursor:
            before = self._lock(cursor, view)
            if before is not None and before[1] in CHANGING_PLACES:
                return None
            return bool(self.states.move_in(cursor, views.Event.PAUSED, [view], by=by, reason=reason))

    # -- noting -------------------------------------------------------------------------------------------------

    def note_comparison(self, copy: Copy, difference: str | None, losses: int) -> None:
        """The copy of a new declaration was compared with its table; None: it is as that is.

        `losses` is how often the copy had lost something when the comparison began.
        """
        with self._transaction("noting how a comparison ended") as cursor:
            compared = losses if difference is None else None
            where = f"copy = {copy.copy} AND stage = '{Stage.BUILDING}'"
            self._set(cursor, copy.view, "compared = %s, note = %s", compared, _cut(difference), where=where)

    def note_moved(self, view: str, count: int) -> None:
        """So many entities of two copies that change places were moved so far."""
        with self._transaction("noting how many entities were moved") as cursor:
            self._set(cursor, view, "moved_count = %s", count, where=f"stage = '{Stage.MOVING}'")

    def adopt(self, view: str) -> None:
        """The copy that an operator began is that of a changed declaration by now: it comes by itself."""
        with self._transaction("taking over a rebuild") as cursor:
            self._set(cursor, view, "is_automatic = 1", where=f"stage = '{Stage.BUILDING}'")

    def decline(self, copy: Copy) -> None:
        """Readers keep what they have: the declaration of the copy beside is not built again by itself."""
        with self._transaction("noting that a declaration is declined") as cursor:
            self._decline(cursor, copy.view, copy.copy_id)

    def choose_again(self, view: str) -> None:
        """Nothing is declined any more."""
        with self._transaction("forgetting what was declined") as cursor:
            self._set(cursor, view, "declined = NULL")

    def _decline(self, cursor: Any, view: str, other: str) -> None:
        (_, kept), (_, declined) = self._live(cursor, view), self._live(cursor, other)
        self._set(cursor, view, "declined = %s", None if kept == declined else Choice(kept, declined).to_text())

    def _live(self, cursor: Any, name: str) -> tuple[int, str]:
        """The number of a copy, and the hash of the declaration that made it."""
        rows = views.read(cursor, self._database, names=[name], pipeline_id=self._id)
        return (rows[0].copy, rows[0].declaration) if rows else (1, "")

    def _lock(self, cursor: Any, view: str) -> tuple[int, Stage] | None:
        """The number of the last copy beside, and its stage."""
        cursor.execute(
            f"SELECT copy, stage FROM {self._table} WHERE view_name = %s AND pipeline_id = {self._id} FOR UPDATE",
            (view,),
        )
        row = cursor.fetchone()
        return None if row is None else (row[0], Stage(row[1]))

    def _move(self, cursor: Any, copy: Copy, event: Event, note: str | None, assignments: str, *values: object) -> bool:
        to = _TO.get((copy.stage, event))
        if to is None:
            return False
        where, now = f"stage = '{copy.stage}'", f"stage = '{to}', note = %s, {assignments}"
        return self._set(cursor, copy.view, now, _cut(note), *values, where=where) == 1

    def _set(self, cursor: Any, view: str, assignments: str, *values: object, where: str = "TRUE") -> int:
        """How many rows were found."""
        count: int = cursor.execute(
            f"UPDATE {self._table} SET {assignments} WHERE view_name = %s AND pipeline_id = {self._id} AND {where}",
            (*values, view),
        )
        return count

    @property
    def _id(self) -> int:
        return self.states.pipeline_id

    def _transaction(self, doing: str) -> Any:
        _ = self._id  # asked for in a transaction of its own
        return transaction(self._session, doing)


def _cut(note: str | None) -> str | None:
    return note and note[:2000]


def _read(cursor: Any, database: str, which: str) -> list[Copy]:
    view = quote(database, "view")
    cursor.execute(
        f"SELECT {', '.join(column for column, _ in _FIELDS.values())} FROM {quote(database, 'rebuild')} r "
        f"LEFT JOIN {view} v ON v.name = r.view_name AND v.pipeline_id = r.pipeline_id "
        f"LEFT JOIN {view} c ON c.name = CONCAT(r.view_name, '~', r.copy) AND c.pipeline_id = r.pipeline_id "
        f"WHERE {which} AND r.stage <> '{Stage.ENDED}' ORDER BY r.view_name"
    )
    return [_copy(row) for row in cursor.fetchall()]


def _copy(row: tuple[Any, ...]) -> Copy:
    cells = zip(_FIELDS.items(), row, strict=True)
    values: dict[str, Any] = {name: None if cell is None else read(cell) for (name, (_, read)), cell in cells}
    return Copy(**values)


def all_copies(cursor: Any, database: str) -> list[Copy]:
    """Of every pipeline; none where no viewtail ever ran."""
    return _read(cursor, database, "TRUE") if migrations.are_there(cursor, database) else []


def copies_left(session: Session, database: str, view: str) -> list[int]:
    """The numbers of a view's copies that may lie beside the one that readers have, or be left there in part."""
    with transaction(session, "looking for the copies of a view") as cursor:
        if not migrations.are_there(cursor, database):
            return []
        cursor.execute(
            f"SELECT r.copy, r.stage, v.copy FROM {quote(database, 'rebuild')} r LEFT JOIN {quote(database, 'view')} v "
            "ON v.name = r.view_name AND v.pipeline_id = r.pipeline_id "
            f"WHERE r.view_name = %s AND (r.stage <> '{Stage.ENDED}' OR r.note IS NOT NULL)",
            (view,),
        )
        rows = cursor.fetchall()
    beside = {copy for copy, _, _ in rows}
    # One that was cut off as they changed places may have left either.
    return sorted(beside | {live for _, stage, live in rows if live is not None and stage in CHANGING_PLACES})


def moving(cursor: Any, database: str) -> set[str]:
    """The views whose copies change places, entity by entity."""
    return {copy.view for copy in all_copies(cursor, database) if copy.stage is Stage.MOVING}


def require_not_moving(session: Session, database: str, views: Collection[str]) -> None:
    """Raises ViewtailError while the copies of one of these views change places, entity by entity."""
    with transaction(session, "asking which copies change places") as cursor:
        changing = sorted(moving(cursor, database).intersection(views))
    for view in changing:
        raise ViewtailError(
            f"the two copies of view {view} change places, entity by entity: `viewtail status` says when that is over. "
            "Try again then"
        )


def gone_back(cursor: Any, database: str) -> list[str]:
    """Views without a copy beside them that are kept as they were declared before, since an operator wants it."""
    if not migrations.are_there(cursor, database):
        return []
    cursor.execute(
        f"SELECT view_name FROM {quote(database, 'rebuild')} WHERE stage = '{Stage.ENDED}' AND declined IS NOT NULL"
    )
    return sorted(name for (name,) in cursor.fetchall())
