"""Rebuilds: a second copy of a view beside the live one, and the swap of the two.

A copy is, for all that writes, one more view of its pipeline, with a row of its own in the table `view` and another
place in the store. The table `rebuild` says which views have one and what is asked for it; commands ask, and the owner
of the pipeline does it (projectors/copies.py). Here is what is known and asked for, not what is done.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from offsets import Owner, migrations
from offsets.mysql import Session, check_fence, reading, transaction
from offsets.views import Event, State, ViewStates
from projectors.binding import made_by
from projectors.views import BoundView, Move
from viewtail.changes.copy_ids import copy_id, view_of
from viewtail.changes.errors import ViewtailError
from viewtail.servers.sessions import quote

SWAP_AGAIN_S = 10.0
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


ASKED = frozenset({Stage.SWAPPING, Stage.RETURNING, Stage.DROPPING})
_CHANGING_PLACES = frozenset({Stage.SWAPPING, Stage.RETURNING, Stage.MOVING})
# Where a stage goes when what was asked for cannot be done now.
_BACK = {Stage.SWAPPING: Stage.BUILDING, Stage.RETURNING: Stage.KEPT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
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
    upto: int | None = None  # of copies that are moved; see `Move`
    moved_count: int = 0  # entities that were moved, as of some seconds ago
    is_hurried: bool = False  # its copy does not give way to live changes
    is_paused: bool = False  # an operator paused the view, so readers keep what they have: nothing is swapped

    @property
    def move(self) -> Move | None:
        """What both copies are bound with while they change places."""
        if self.stage is not Stage.MOVING:
            return None
        assert self.upto is not None, "it was noted when they began to"
        return Move(self.live, self.copy, self.upto)

    @property
    def copy_id(self) -> str:
        """The id of the copy beside."""
        return copy_id(self.view, self.copy)

    @property
    def is_kept_long_enough(self) -> bool:
        """Whether the copy that readers left may go."""
        return self.stage is Stage.KEPT and self.kept_s is not None and self.kept_s <= 0

    @property
    def is_ready(self) -> bool:
        """Whether it is the copy of a changed declaration, and may be swapped in."""
        return self.stage is Stage.BUILDING and self.is_automatic and self.is_compared and not self.is_paused


def choice(kept: str, declined: str) -> str:
    """How it is noted that an operator went back to a declaration from another; both are hashes."""
    return f"{kept}<{declined}"


class Rebuilds:
    """Of one pipeline. Each method is one transaction on `session`."""

    def __init__(self, session: Session, database: str, pipeline: str) -> None:
        self._session = session
        self._table, self._view = quote(database, "rebuild"), quote(database, "view")
        self.states = ViewStates(session, database, pipeline)

    def read(self) -> dict[str, Rebuild]:
        """By view, those that have a copy beside the live one."""
        number = self._id
        with reading(self._session, "reading rebuilds") as cursor:
            return {one.view: one for one in _read(cursor, self._table, self._view, f"r.pipeline_id = {number}")}

    def is_paused(self, view: str) -> bool:
        """Whether an operator paused the view, or a copy beside it is: an earlier viewtail swapped paused ones."""
        with self._transaction("asking whether a view is paused") as cursor:
            cursor.execute(f"SELECT name FROM {self._view} WHERE pipeline_id = {self._id} AND state = '{State.PAUSED}'")
            return any(view == view_of(name) for (name,) in cursor.fetchall())

    def live_copies(self) -> dict[str, tuple[int, str]]:
        """By view, the number of the copy that readers see, and the hash of the declaration that it is kept by."""
        with self._transaction("reading which copies are live") as cursor:
            cursor.execute(f"SELECT name, copy, declaration FROM {self._view} WHERE pipeline_id = {self._id}")
            return {name: (copy, declaration) for name, copy, declaration in cursor.fetchall()}

    def choices(self) -> dict[str, str]:
        """By view, the `choice` of an operator; also where there is no copy beside the live one any more."""
        with self._transaction("reading what operators went back to") as cursor:
            cursor.execute(
                f"SELECT view_name, declined FROM {self._table} WHERE pipeline_id = {self._id} AND declined IS NOT NULL"
            )
            return dict(cursor.fetchall())

    def begin(
        self, view: str, started_by: str, keep_s: int, *, is_automatic: bool = False, is_hurried: bool = False
    ) -> None:
        """Have a copy made beside the live one. Where there is one already, `is_hurried` alone is noted."""
        with self._transaction("beginning a rebuild") as cursor:
            of_view = f"WHERE view_name = %s AND pipeline_id = {self._id}"
            cursor.execute(f"SELECT copy, stage FROM {self._table} {of_view} FOR UPDATE", (view,))
            before = cursor.fetchone()
            if before is not None and before[1] != Stage.ENDED:
                if is_hurried:
                    cursor.execute(f"UPDATE {self._table} SET is_hurried = 1 {of_view}", (view,))
                return
            cursor.execute(f"SELECT copy FROM {self._view} WHERE name = %s AND pipeline_id = {self._id}", (view,))
            (live,) = cursor.fetchone() or (1,)
            copy = 1 + max(live, before[0] if before else 0)
            cursor.execute(
                f"REPLACE INTO {self._table} (view_name, pipeline_id, copy, stage, is_automatic, started_by, keep_s, "
                f"is_hurried) VALUES (%s, {self._id}, %s, '{Stage.BUILDING}', %s, %s, %s, %s)",
                (view, copy, is_automatic, started_by[:255], keep_s, is_hurried),
            )

    def ask(self, view: str, sources: Collection[Stage], to: Stage, keep_s: int | None = None) -> bool:
        """Move a view's rebuild to a stage; False where it is in none of `sources`."""
        with self._transaction(f"asking for a rebuild's next stage ({to})") as cursor:
            return _move(cursor, self._table, self._id, view, sources, to, keep_s=keep_s) == 1

    def due(self, present: Collection[Rebuild], owned_s: float) -> bool:
        """Ask for what nobody has to: copies go that were kept long enough, and compared ones of new declarations come.

        Returns whether there was such a one. A swap that could not be done is asked for again after SWAP_AGAIN_S of
        this ownership.
        """
        over = [copy for copy in present if copy.is_kept_long_enough]
        ready = [copy for copy in present if copy.is_ready and (not copy.note or owned_s > SWAP_AGAIN_S)]
        for copy in over:
            self.ask(copy.view, {Stage.KEPT}, Stage.DROPPING)
        for copy in ready:
            self.ask(copy.view, {Stage.BUILDING}, Stage.SWAPPING)
        return bool(over or ready)

    def pause(self, view: str, by: str, reason: str | None) -> bool | None:
        """Whether the view was in a state to be paused, and is now; None: its copies change places, so it cannot be.

        A swap would give the pause to the copy that readers leave. The lock keeps one from being asked for meanwhile.
        """
        with self._transaction("pausing a view") as cursor:
            cursor.execute(
                f"SELECT stage FROM {self._table} WHERE view_name = %s AND pipeline_id = {self._id} FOR UPDATE", (view,)
            )
            (stage,) = cursor.fetchone() or (Stage.ENDED,)
            if stage in _CHANGING_PLACES:
                return None
            return bool(self.states.move_in(cursor, Event.PAUSED, [view], by=by, reason=reason))

    def found(self, one: Rebuild, difference: str | None, losses: int) -> None:
        """The copy of a new declaration was compared with its table; None: it is as that is.

        `losses` is how often the copy had lost something when the comparison began.
        """
        with self._transaction("noting how a comparison ended") as cursor:
            cursor.execute(
                f"UPDATE {self._table} SET compared = %s, note = %s WHERE view_name = %s AND copy = %s "
                f"AND pipeline_id = {self._id} AND stage = '{Stage.BUILDING}'",
                (losses if difference is None else None, difference and difference[:2000], one.view, one.copy),
            )

    def adopt(self, view: str) -> None:
        """The copy that an operator began is that of a changed declaration by now: it comes by itself."""
        with self._transaction("taking over a rebuild") as cursor:
            cursor.execute(
                f"UPDATE {self._table} SET is_automatic = 1 WHERE view_name = %s "
                f"AND pipeline_id = {self._id} AND stage = '{Stage.BUILDING}'",
                (view,),
            )

    def decline(self, view: str) -> None:
        """Readers keep what they have: the declaration of the copy beside is not built again by itself."""
        with self._transaction("noting that a declaration is declined") as cursor:
            cursor.execute(f"SELECT copy FROM {self._table} WHERE view_name = %s AND pipeline_id = {self._id}", (view,))
            row = cursor.fetchone()
            if row is not None:
                self._decline(cursor, view, self._declaration(cursor, view), copy_id(view, row[0]))

    def choose_again(self, view: str) -> None:
        """Nothing is declined any more."""
        with self._transaction("forgetting what was declined") as cursor:
            cursor.execute(
                f"UPDATE {self._table} SET declined = NULL WHERE view_name = %s AND pipeline_id = {self._id}", (view,)
            )

    def _decline(self, cursor: Any, view: str, kept: str, copy: str) -> None:
        declined = self._declaration(cursor, copy)
        cursor.execute(
            f"UPDATE {self._table} SET declined = %s WHERE view_name = %s AND pipeline_id = {self._id}",
            (choice(kept, declined) if kept != declined else None, view),
        )

    def _declaration(self, cursor: Any, name: str) -> str:
        cursor.execute(f"SELECT declaration FROM {self._view} WHERE name = %s AND pipeline_id = {self._id}", (name,))
        (declaration,) = cursor.fetchone() or ("",)
        return str(declaration)

    def could_not(self, one: Rebuild, why: str) -> None:
        """What was asked for cannot be done now."""
        with self._transaction("noting why a rebuild cannot go on") as cursor:
            _move(cursor, self._table, self._id, one.view, {one.stage}, _BACK[one.stage], note=why)

    def swapped(self, one: Rebuild, owner: Owner, upto: int | None, *, is_kept: bool) -> None:
        """The two copies have each other's place: their rows have each other's names from now on.

        With `upto` their entities are still to be moved. `is_kept`: the former one is kept up to date; if not, its time
        is over at once.
        """
        former, passing = copy_id(one.view, one.live), f"{one.view}~"
        with self._transaction("noting a swap") as cursor:
            check_fence(cursor, owner)
            for name, to in ((one.view, passing), (one.copy_id, one.view), (passing, former)):
                cursor.execute(
                    f"UPDATE {self._view} SET name = %s WHERE name = %s AND pipeline_id = {self._id}", (to, name)
                )
            cursor.execute(
                f"UPDATE {self._table} SET copy = %s, note = NULL, compared = NULL, declined = NULL, "
                f"stage = '{Stage.KEPT if upto is None else Stage.MOVING}', moved_upto = %s, moved_count = 0, "
                "swapped_at = CURRENT_TIMESTAMP(6), kept_until = IF(%s, "
                "COALESCE(kept_until, CURRENT_TIMESTAMP(6) + INTERVAL keep_s SECOND), CURRENT_TIMESTAMP(6)) "
                f"WHERE view_name = %s AND pipeline_id = {self._id}",
                (one.live, upto, is_kept, one.view),
            )
            if one.copy < one.live:  # an operator went back
                self._decline(cursor, one.view, self._declaration(cursor, one.view), former)

    def note_moved(self, view: str, count: int) -> None:
        """So many entities of two copies that change places were moved so far."""
        with self._transaction("noting how many entities were moved") as cursor:
            cursor.execute(
                f"UPDATE {self._table} SET moved_count = %s WHERE view_name = %s AND pipeline_id = {self._id} "
                f"AND stage = '{Stage.MOVING}'",
                (count, view),
            )

    def moved(self, view: str) -> None:
        """The entities of two copies that change places are all moved."""
        with self._transaction("noting that a copy is whole in its place") as cursor:
            cursor.execute(
                f"UPDATE {self._table} SET stage = '{Stage.KEPT}' WHERE view_name = %s AND pipeline_id = {self._id} "
                f"AND stage = '{Stage.MOVING}'",
                (view,),
            )

    def dropped(self, one: Rebuild, note: str | None) -> None:
        """The copy beside is gone; `note` says what of it is not."""
        self.states.forget(one.copy_id)
        with self._transaction("noting that a copy was dropped") as cursor:
            _move(cursor, self._table, self._id, one.view, {Stage.DROPPING}, Stage.ENDED, note=note)
            cursor.execute(
                f"UPDATE {self._table} SET ended_at = CURRENT_TIMESTAMP(6) WHERE view_name = %s "
                f"AND pipeline_id = {self._id}",
                (one.view,),
            )

    @property
    def _id(self) -> int:
        return self.states.pipeline_id

    def _transaction(self, doing: str) -> Any:
        _ = self._id  # asked for in a transaction of its own
        return transaction(self._session, doing)


def _move(
    cursor: Any,
    table: str,
    pipeline_id: int,
    view: str,
    sources: Collection[Stage],
    to: Stage,
    *,
    note: str | None = None,
    keep_s: int | None = None,
) -> int:
    """How many rows were found."""
    stages = ", ".join(f"'{stage}'" for stage in sorted(sources))
    found: int = cursor.execute(
        f"UPDATE {table} SET stage = '{to}', note = %s, keep_s = COALESCE(%s, keep_s) "
        f"WHERE view_name = %s AND pipeline_id = {pipeline_id} AND stage IN ({stages})",
        (note and note[:2000], keep_s, view),
    )
    return found


# Columns that an earlier version's table lacks until `run` adds them, and what stands for them.
_NEW = {"compared": "NULL", "moved_upto": "NULL", "moved_count": "0", "is_hurried": "0"}


def _read(cursor: Any, rebuilds: str, views: str, which: str, present: Collection[str] = _NEW.keys()) -> list[Rebuild]:
    compared, upto, moved, hurried = (f"r.{name}" if name in present else without for name, without in _NEW.items())
    cursor.execute(
        f"SELECT r.view_name, COALESCE(v.copy, 1), r.copy, r.stage, r.is_automatic, "
        f"COALESCE(c.state = '{State.FILLED}' AND c.loss_count = {compared}, 0), r.note, r.started_by, r.keep_s, "
        f"TIMESTAMPDIFF(MICROSECOND, CURRENT_TIMESTAMP(6), r.kept_until) / 1e6, {upto}, {moved}, {hurried}, "
        f"COALESCE(v.state = '{State.PAUSED}', 0) OR COALESCE(c.state = '{State.PAUSED}', 0) "
        f"FROM {rebuilds} r LEFT JOIN {views} v ON v.name = r.view_name AND v.pipeline_id = r.pipeline_id "
        f"LEFT JOIN {views} c ON c.name = CONCAT(r.view_name, '~', r.copy) AND c.pipeline_id = r.pipeline_id "
        f"WHERE {which} AND r.stage <> '{Stage.ENDED}' ORDER BY r.view_name"
    )
    return [_rebuild(row) for row in cursor.fetchall()]


def _rebuild(row: tuple[Any, ...]) -> Rebuild:
    (
        view,
        live,
        copy,
        stage,
        is_automatic,
        is_compared,
        note,
        started_by,
        keep_s,
        kept_s,
        upto,
        moved_count,
        is_hurried,
        is_paused,
    ) = row
    return Rebuild(
        view=view,
        live=live,
        copy=copy,
        stage=Stage(stage),
        is_automatic=bool(is_automatic),
        is_compared=bool(is_compared),
        note=note,
        started_by=started_by,
        keep_s=keep_s,
        kept_s=None if kept_s is None else float(kept_s),
        upto=upto,
        moved_count=moved_count,
        is_hurried=bool(is_hurried),
        is_paused=bool(is_paused),
    )


def all_rebuilds(cursor: Any, database: str) -> list[Rebuild]:
    """Of every pipeline; none where no viewtail of this kind ever ran."""
    present = migrations.columns(cursor, database).get("rebuild")
    if present is None:
        return []
    return _read(cursor, quote(database, "rebuild"), quote(database, "view"), "TRUE", present)


def copies_left(session: Session, database: str, view: str) -> list[int]:
    """The numbers of a view's copies that may lie beside the one that readers have, or be left there in part."""
    with transaction(session, "looking for the copies of a view") as cursor:
        if "rebuild" not in migrations.columns(cursor, database):
            return []
        cursor.execute(
            f"SELECT r.copy, r.stage, v.copy FROM {quote(database, 'rebuild')} r LEFT JOIN {quote(database, 'view')} v "
            "ON v.name = r.view_name AND v.pipeline_id = r.pipeline_id "
            f"WHERE r.view_name = %s AND (r.stage <> '{Stage.ENDED}' OR r.note IS NOT NULL)",
            (view,),
        )
        found = cursor.fetchall()
    beside = {copy for copy, _, _ in found}
    # One that was cut off as they changed places may have left either.
    return sorted(beside | {live for _, stage, live in found if live is not None and stage in _CHANGING_PLACES})


def require_not_moving(session: Session, database: str, views: Collection[str]) -> None:
    """Raises ViewtailError while the copies of one of these views change places, entity by entity."""
    with transaction(session, "asking which copies change places") as cursor:
        moving = [one.view for one in all_rebuilds(cursor, database) if one.move is not None and one.view in views]
    for view in moving:
        raise ViewtailError(
            f"the two copies of view {view} change places, entity by entity: `viewtail status` says when that is over. "
            "Try again then"
        )


def where_live(rebuilds: Rebuilds, views: Sequence[BoundView]) -> list[BoundView]:
    """The declared views in the places of their live copies, as those are kept: for what writes beside a pipeline."""
    live, moves = rebuilds.live_copies(), {one.view: one.move for one in rebuilds.read().values()}
    return [replace(kept_as(view, *live.get(view.id, (1, ""))), move=moves.get(view.id)) for view in views]


def kept_as(view: BoundView, copy: int, declaration: str) -> BoundView:
    """A copy of a declared view by the declaration of that hash, where views.py has it."""
    return replace(made_by(view, declaration) or view, copy=copy)


def gone_back(cursor: Any, database: str) -> list[str]:
    """Views without a copy beside them that are kept as they were declared before, since an operator wants it."""
    if "declined" not in migrations.columns(cursor, database).get("rebuild", []):
        return []
    cursor.execute(
        f"SELECT view_name FROM {quote(database, 'rebuild')} WHERE stage = '{Stage.ENDED}' AND declined IS NOT NULL"
    )
    return sorted(name for (name,) in cursor.fetchall())


def copies_beside(rebuilds: Rebuilds) -> list[str]:
    """The ids of the copies that readers do not see."""
    return [one.copy_id for one in rebuilds.read().values()]


def as_live(cursor: Any, database: str, view: BoundView) -> BoundView:
    """A declared view in the place of its live copy, as that is kept: for whatever reads beside the pipelines."""
    if not {"copy", "declaration"} <= {*migrations.columns(cursor, database).get("view", ())}:
        return view  # no viewtail that knows copies ever ran
    cursor.execute(
        f"SELECT copy, declaration FROM {quote(database, 'view')} WHERE name = %s ORDER BY copy DESC LIMIT 1",
        (view.id,),
    )
    return kept_as(view, *(cursor.fetchone() or (1, "")))


def everywhere(session: Session, database: str, views: Sequence[BoundView]) -> list[BoundView]:
    """The declared views where their live copies are, and each copy beside: all places that hold what they show.

    Each by the declaration that it is kept by.
    """
    with transaction(session, "reading where views are") as cursor:
        cursor.execute(f"SELECT DISTINCT name, copy, declaration FROM {quote(database, 'view')}")
        known = {name: (copy, declaration) for name, copy, declaration in cursor.fetchall()}
    found = [kept_as(view, *known.get(view.id, (1, ""))) for view in views]
    beside = [
        replace(kept_as(view, *known[name]), is_beside=True)
        for view in views
        for name in sorted(known)
        if view_of(name) == view.id != name
    ]
    return [*found, *beside]
