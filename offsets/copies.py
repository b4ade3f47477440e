"""The table `rebuild`: which views have a copy beside the live one, and what is asked for it. Statements by name.

A copy is, for all that writes, one more view of its pipeline, with a row of its own in the table `view` and another
place in the store. TRANSITIONS has every way from one stage to another, `next_step` what comes next. Commands and the
owner of the pipeline take these steps; this module only reads and writes the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from offsets import Owner, dead_letters, fan_outs, migrations, view_parts, views
from offsets.fan_outs import FanOut
from offsets.mysql import Session, check_fence, reading, transaction
from offsets.runs import ADOPTION
from offsets.view_parts import PartRecord, PartState
from offsets.views import GETS_NOTHING, State, ViewStates
from viewtail.changes.copy_ids import copy_id, view_of
from viewtail.changes.errors import ViewtailError
from viewtail.servers.sessions import quote

SWAP_AGAIN_S = 10.0  # after one that could not be done: the pipeline restarts for each
DEFAULT_KEEP_S = 24 * 3600  # how long the former copy is kept after a swap
MOST_NOTE = 2000  # characters
NOTES = ("rebuild", "note", "view_name", MOST_NOTE)  # sentences that may name a key: see offsets/sentences.py


class Stage(StrEnum):
    """The work that is to be done with the copy beside a live one."""

    BUILDING = "building"  # it is filled and kept up to date; readers never saw it
    SWAPPING = "swapping"  # an operator asked for the swap
    MOVING = "moving"  # readers get the other copy entity by entity; both are kept up to date
    KEPT = "kept"  # readers saw it until the swap; it is kept up to date until its time is over
    RETURNING = "returning"  # an operator asked to swap back
    DROPPING = "dropping"  # it is to be dropped
    ENDED = "ended"  # there is none


class Event(Enum):
    """An event that moves a copy to another stage."""

    # An operator asks for these; for a changed declaration, or a copy whose time is over, the pipeline's owner does.
    BEGUN = "a copy is asked for"
    SWAP_ASKED = "readers are to get the copy beside"
    DROP_ASKED = "nobody wants the copy beside any more"
    # The owner of the pipeline reports these. It swaps as it takes the pipeline, before anything is written.
    REFUSED = "the swap cannot be done now"
    SWAPPED = "readers have the other copy"
    MOVE_BEGUN = "readers get the other copy entity by entity from now on"
    MOVED = "the last entity is moved"
    DROPPED = "nothing of it is left"


TRANSITIONS: Mapping[tuple[Stage, Event], Stage] = {
    (Stage.ENDED, Event.BEGUN): Stage.BUILDING,
    (Stage.BUILDING, Event.SWAP_ASKED): Stage.SWAPPING,
    (Stage.BUILDING, Event.DROP_ASKED): Stage.DROPPING,
    (Stage.SWAPPING, Event.SWAPPED): Stage.KEPT,
    (Stage.SWAPPING, Event.MOVE_BEGUN): Stage.MOVING,
    (Stage.SWAPPING, Event.REFUSED): Stage.BUILDING,
    (Stage.MOVING, Event.MOVED): Stage.KEPT,
    (Stage.KEPT, Event.SWAP_ASKED): Stage.RETURNING,
    (Stage.KEPT, Event.DROP_ASKED): Stage.DROPPING,
    (Stage.RETURNING, Event.SWAPPED): Stage.KEPT,
    (Stage.RETURNING, Event.MOVE_BEGUN): Stage.MOVING,
    (Stage.RETURNING, Event.REFUSED): Stage.KEPT,
    (Stage.DROPPING, Event.DROPPED): Stage.ENDED,
}
# The owner of the pipeline takes it again to do these, and readers may see these change at any moment.
ASKED = frozenset({Stage.SWAPPING, Stage.RETURNING, Stage.DROPPING})
CHANGING_PLACES = frozenset({Stage.SWAPPING, Stage.RETURNING, Stage.MOVING})


class Choice(NamedTuple):
    """An operator went back to a declaration from another; both are hashes. The declined one is not built by itself."""

    kept: str
    declined: str

    def to_text(self) -> str:
        return "<".join(self)

    @classmethod
    def of_text(cls, text: str) -> Choice:
        return cls(*text.split("<", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The copy beside a live one; of one that has ended, what is remembered."""

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
    state: State | None = None  # of the copy beside; None: its pipeline has not begun it
    choice: Choice | None = None

    @property
    def copy_id(self) -> str:
        """The id of the copy beside."""
        return copy_id(self.view, self.copy)

    @property
    def is_adopting(self) -> bool:
        """Return whether an adopt asked for it last: it may take the place of what another tool keeps."""
        return self.started_by == ADOPTION

    @property
    def is_newest(self) -> bool:
        """Return whether the copy beside is newer than what readers have."""
        return self.copy > self.live

    @property
    def is_expired(self) -> bool:
        """Return whether it was kept for as long as it was to be."""
        return self.stage is Stage.KEPT and self.kept_s is not None and self.kept_s <= 0

    def as_json(self) -> dict[str, Any]:
        """Return what `viewtail status --json` shows of it."""
        return {name: value for name, value in asdict(self).items() if name not in ("state", "choice")}


class Goal(Enum):
    """The one of two copies that readers are to have."""

    NEWEST = "the newer one: viewtail rebuild, or a changed declaration"
    FORMER = "the older one: viewtail rebuild --rollback"
    PRESENT = "what they have now"

    def is_reached(self, copy: Copy) -> bool:
        """Return whether readers have it."""
        return self is Goal.PRESENT or copy.is_newest == (self is Goal.FORMER)


class Step(Enum):
    """The next step on the way to a goal."""

    WAIT = "the owner of the pipeline changes what readers have"
    DONE = "readers have what they are to have"
    DROP = "the other copy's time is over: ask to have it dropped"
    GONE = "the copy is being dropped, or was"
    RESUME = "an operator must resume the view first"
    MEND = "an operator must mend what halted the copy, or drop it, first"
    FILL = "the pipeline fills the copy"
    COMPARE = "compare the copy with its table"
    SWAP = "ask for the swap"


def next_step(copy: Copy, goal: Goal, *, is_proven: bool) -> Step:
    """The next step to the goal, for whoever drives a copy there: a command, or the pipeline for itself.

    Args:
        is_proven: whether the copy was compared with its table and may be swapped.
    """
    if copy.stage in CHANGING_PLACES:
        return Step.WAIT
    if goal.is_reached(copy):
        return Step.DROP if copy.is_expired else Step.DONE
    if copy.stage in (Stage.DROPPING, Stage.ENDED):
        return Step.GONE
    if copy.state is not State.FILLED:
        return Step.MEND if copy.state in GETS_NOTHING else Step.FILL
    if not is_proven:
        return Step.COMPARE
    return Step.RESUME if copy.is_paused else Step.SWAP


def next_by_itself(copy: Copy) -> Step:
    """The next step that the owner of the pipeline takes unasked: it swaps new declarations in, and drops old copies.

    An operator's copy stays as it is, and so does one that an operator went back from.
    """
    is_new = copy.is_automatic and copy.stage is Stage.BUILDING
    return next_step(copy, Goal.NEWEST if is_new else Goal.PRESENT, is_proven=copy.is_compared)


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
    "is_paused": (f"COALESCE(v.state = '{State.PAUSED}', 0)", bool),
    "state": ("c.state", State),
    "choice": ("r.declined", Choice.of_text),
}


class Copies:
    """The copies of one pipeline's views. Each method is one transaction on `session`."""

    def __init__(self, session: Session, database: str, pipeline: str) -> None:
        self._session, self._database, self.pipeline = session, database, pipeline
        self._table, self._view = quote(database, "rebuild"), quote(database, "view")
        self.states = ViewStates(session, database, pipeline)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self) -> dict[str, Copy]:
        """Return, by view, the copies beside live ones."""
        return {view: copy for view, copy in self.records().items() if copy.stage is not Stage.ENDED}

    def records(self) -> dict[str, Copy]:
        """Return, by view, the last copy that it had beside the live one, those that have ended too."""
        number = self._id
        with reading(self._session, "reading rebuilds") as cursor:
            return {copy.view: copy for copy in _read(cursor, self._database, f"r.pipeline_id = {number}")}

    def due(self, copies: Iterable[Copy]) -> list[Copy]:
        """Return those of these copies whose stage was asked for, and can be done now."""
        asked = [copy for copy in copies if copy.stage in ASKED]
        behind = self.behind(asked)
        return [copy for copy in asked if copy.copy_id not in behind]

    def behind(self, copies: Iterable[Copy]) -> dict[str, FanOut]:
        """Return, by id, the copies that readers are to get and must not get now, with what keeps them from it.

        While a fan-out is under way in one, the live one may show more.
        """
        wanted = {copy.copy_id for copy in copies if copy.stage in (Stage.SWAPPING, Stage.RETURNING)}
        if not wanted:
            return {}
        with reading(self._session, "looking for fan-outs") as cursor:
            under_way = fan_outs.under_way(cursor, self._database)
        return {fan_out.view: fan_out for _, fan_out in under_way if fan_out.view in wanted}

    def paused_parts(self, view: str) -> list[PartRecord]:
        """Return the tables of many that are paused in a view: a copy would lack what readers have of them."""
        with reading(self._session, "reading which parts are paused") as cursor:
            return self._paused_parts(cursor, view)

    def live(self, view: str) -> tuple[int, str]:
        """The number of the copy that readers see, and the hash of the declaration that made it."""
        with self._transaction("reading which copy is live") as cursor:
            return self._live(cursor, view)

    # -- moving -------------------------------------------------------------------------------------------------

    def begin(
        self, view: str, started_by: str, keep_s: int, *, is_automatic: bool = False, is_hurried: bool = False
    ) -> bool:
        """Have a copy made beside the live one. One that is there already becomes hurried, or automatic, by this.

        False: a table of many was paused in the view meanwhile.

        Only an adopt's may take the place of what another tool keeps: one that is being built becomes an adopt's when
        that asks for it, and is none any more when somebody else does. A changed declaration leaves an adopt's alone.
        """
        with self._transaction("beginning a rebuild") as cursor:
            before = self._lock(cursor, view)
            if before is not None and (before[1], Event.BEGUN) not in TRANSITIONS:
                self._set(cursor, view, "is_hurried = is_hurried OR %s", is_hurried)
                self._begin_again(cursor, view, started_by[:255], is_automatic=is_automatic)
                return True
            if self._paused_parts(cursor, view):
                return False
            live, _ = self._live(cursor, view)
            number = 1 + max(live, before[0] if before else 0)
            cursor.execute(
                f"REPLACE INTO {self._table} (view_name, pipeline_id, copy, stage, is_automatic, started_by, keep_s, "
                f"is_hurried) VALUES (%s, {self._id}, %s, '{TRANSITIONS[Stage.ENDED, Event.BEGUN]}', %s, %s, %s, %s)",
                (view, number, is_automatic, started_by[:255], keep_s, is_hurried),
            )
            return True

    def _begin_again(self, cursor: Any, view: str, started_by: str, *, is_automatic: bool) -> None:
        building = f"stage = '{Stage.BUILDING}'"
        if is_automatic:
            self._set(cursor, view, "is_automatic = 1", where=f"{building} AND started_by <> '{ADOPTION}'")
        elif started_by == ADOPTION:
            self._set(cursor, view, "is_automatic = 0, started_by = %s", started_by, where=building)
        else:
            self._set(cursor, view, "started_by = %s", started_by, where=f"{building} AND started_by = '{ADOPTION}'")

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
        with self._transaction("noting that a copy was dropped") as cursor:
            self._forget_rows(cursor, [copy.copy_id])
            self._move(cursor, copy, Event.DROPPED, note, "ended_at = CURRENT_TIMESTAMP(6)")

    def pause(self, view: str, by: str, reason: str | None) -> bool | None:
        """Pause the view; return whether its state allowed that. None: its copies change places, so it cannot be.

        A swap would give the pause to the copy that readers leave. The lock keeps one from being asked for meanwhile.
        """
        with self._transaction("pausing a view") as cursor:
            before = self._lock(cursor, view)
            if before is not None and before[1] in CHANGING_PLACES:
                return None
            return bool(self.states.move_in(cursor, views.Event.PAUSED, [view], by=by, reason=reason))

    def pause_part(self, record: PartRecord) -> bool:
        """Pause one table of many; False where a copy is beside the live one, or was asked for."""
        with self._transaction("pausing a part") as cursor:
            before = self._lock(cursor, record.view)
            if before is not None and before[1] is not Stage.ENDED:
                return False
            view_parts.pause(cursor, self._database, record)
            return True

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
        """Note how many entities of two copies that change places were moved so far."""
        with self._transaction("noting how many entities were moved") as cursor:
            self._set(cursor, view, "moved_count = %s", count, where=f"stage = '{Stage.MOVING}'")

    def decline(self, copy: Copy) -> None:
        """Readers keep what they have: the declaration of the copy beside is not built again by itself."""
        with self._transaction("noting that a declaration is declined") as cursor:
            self._decline(cursor, copy.view, copy.copy_id)

    def choose_again(self, view: str) -> None:
        """Nothing is declined any more."""
        with self._transaction("forgetting what was declined") as cursor:
            self._set(cursor, view, "declined = NULL")

    # -- forgetting ---------------------------------------------------------------------------------------------

    def forget(self, view: str) -> None:
        """Forget the view and its copies, in these tables; what they show stays in their store."""
        with self._transaction("forgetting a view") as cursor:
            self._forget(cursor, view)

    def forget_dropped(self, view: str) -> bool:
        """`forget`, unless somebody declared the view again since it was halted as `BEING_DROPPED`."""
        with self._transaction("forgetting a view") as cursor:
            if not self.states.is_being_dropped_in(cursor, view, " FOR UPDATE"):
                return False
            self._forget(cursor, view)
        return True

    def _forget(self, cursor: Any, view: str) -> None:
        known = views.read(cursor, self._database, pipeline_id=self._id)
        self._forget_rows(cursor, [record.name for record in known if view_of(record.name) == view])
        cursor.execute(f"DELETE FROM {self._table} WHERE view_name = %s AND pipeline_id = {self._id}", (view,))

    def _forget_rows(self, cursor: Any, names: Collection[str]) -> None:
        ids = [record.id for record in views.read(cursor, self._database, names=names, pipeline_id=self._id)]
        dead_letters.forget_views(cursor, self._database, ids)
        views.delete(cursor, self._database, ids)

    # -- within a transaction -----------------------------------------------------------------------------------

    def _paused_parts(self, cursor: Any, view: str) -> list[PartRecord]:
        records = view_parts.read(cursor, self._database, views=[view], pipeline=self.pipeline)
        return [record for record in records if record.state is PartState.PAUSED]

    def _decline(self, cursor: Any, view: str, other: str) -> None:
        (_, kept), (_, declined) = self._live(cursor, view), self._live(cursor, other)
        self._set(cursor, view, "declined = %s", None if kept == declined else Choice(kept, declined).to_text())

    def _live(self, cursor: Any, name: str) -> tuple[int, str]:
        """The number of a copy, and the hash of the declaration that made it."""
        rows = views.read(cursor, self._database, names=[name], pipeline_id=self._id)
        return (rows[0].copy, rows[0].declaration) if rows else (1, "")

    def _lock(self, cursor: Any, view: str) -> tuple[int, Stage] | None:
        """The number of the last copy beside, and its stage. A copy and a pause of a part wait for each other."""
        cursor.execute(f"SELECT id FROM {self._view} WHERE name = %s AND pipeline_id = {self._id} FOR UPDATE", (view,))
        cursor.execute(
            f"SELECT copy, stage FROM {self._table} WHERE view_name = %s AND pipeline_id = {self._id} FOR UPDATE",
            (view,),
        )
        row = cursor.fetchone()
        return None if row is None else (row[0], Stage(row[1]))

    def _move(self, cursor: Any, copy: Copy, event: Event, note: str | None, assignments: str, *values: object) -> bool:
        to = TRANSITIONS.get((copy.stage, event))
        if to is None:
            return False
        where, now = f"stage = '{copy.stage}'", f"stage = '{to}', note = %s, {assignments}"
        return self._set(cursor, copy.view, now, _cut(note), *values, where=where) == 1

    def _set(self, cursor: Any, view: str, assignments: str, *values: object, where: str = "TRUE") -> int:
        """Set values of a row; return how many rows were found."""
        count: int = cursor.execute(
            f"UPDATE {self._table} SET {assignments} WHERE view_name = %s AND pipeline_id = {self._id} AND {where}",
            (*values, view),
        )
        return count

    @property
    def _id(self) -> int:
        return self.states.pipeline_id

    def _transaction(self, doing: str) -> AbstractContextManager[Any]:
        _ = self._id  # asked for in a transaction of its own
        return transaction(self._session, doing)


def _cut(note: str | None) -> str | None:
    return note and note[:MOST_NOTE]


def _read(cursor: Any, database: str, which: str) -> list[Copy]:
    view = quote(database, "view")
    cursor.execute(
        f"SELECT {', '.join(column for column, _ in _FIELDS.values())} FROM {quote(database, 'rebuild')} r "
        f"LEFT JOIN {view} v ON v.name = r.view_name AND v.pipeline_id = r.pipeline_id "
        f"LEFT JOIN {view} c ON c.name = CONCAT(r.view_name, '~', r.copy) AND c.pipeline_id = r.pipeline_id "
        f"WHERE {which} ORDER BY r.view_name"
    )
    return [_copy(row) for row in cursor.fetchall()]


def _copy(row: tuple[Any, ...]) -> Copy:
    cells = zip(_FIELDS.items(), row, strict=True)
    values: dict[str, Any] = {name: None if cell is None else read(cell) for (name, (_, read)), cell in cells}
    return Copy(**values)


# -- copies of every pipeline -----------------------------------------------------------------------------------


def all_records(cursor: Any, database: str) -> list[Copy]:
    """The last copy of each view, those that have ended too; none where no viewtail ever ran."""
    return _read(cursor, database, "TRUE") if migrations.are_there(cursor, database) else []


def copies_left(session: Session, database: str, view: str) -> list[int]:
    """The numbers of a view's copies that may lie beside the one that readers have, or be left there in part."""
    with transaction(session, "looking for the copies of a view") as cursor:
        records = [copy for copy in all_records(cursor, database) if copy.view == view]
    beside = {copy.copy for copy in records if copy.stage is not Stage.ENDED or copy.note is not None}
    # One that was cut off as they changed places may have left either.
    return sorted(beside | {copy.live for copy in records if copy.stage in CHANGING_PLACES})


def moving(cursor: Any, database: str) -> set[str]:
    """The views whose copies change places, entity by entity."""
    return {copy.view for copy in all_records(cursor, database) if copy.stage is Stage.MOVING}


def require_not_moving(session: Session, database: str, views: Collection[str]) -> None:
    """Raises ViewtailError while the copies of one of these views change places, entity by entity."""
    with transaction(session, "asking which copies change places") as cursor:
        changing = sorted(moving(cursor, database).intersection(views))
    for view in changing:
        raise ViewtailError(
            f"the two copies of view {view} change places, entity by entity: `viewtail status` says when that is over. "
            "Try again then"
        )
