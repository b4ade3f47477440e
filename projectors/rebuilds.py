"""Rebuilds: a second copy of a view beside the live one, and the swap of the two.

A copy is, for all that writes, one more view of its pipeline, with a row of its own in the table `view` and another
place in the store. The table `rebuild` says which views have one and what is asked for it; commands ask, and the owner
of the pipeline does it as it takes the pipeline: nothing writes then, and readers read on. Each step can be done
again, so an owner that was killed in it is followed by one that finishes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

import structlog

from changes.errors import StoreError
from offsets import Owner, migrations
from offsets.mysql import OwnSession, Session, check_fence, transaction
from projectors import failpoints
from projectors.stores import Store, Swapping
from projectors.stores.access import Access
from projectors.view_states import State, ViewStates
from projectors.views import BoundView, copy_id
from servers.sessions import Connection, quote

_log = structlog.get_logger("viewtail.rebuild")


class Stage(StrEnum):
    """What is to be done with the copy beside a live one."""

    BUILDING = "building"  # it is filled and kept up to date; readers never saw it
    SWAPPING = "swapping"  # an operator asked for the swap
    KEPT = "kept"  # readers saw it until the swap; it is kept up to date until its time is over
    RETURNING = "returning"  # an operator asked to swap back
    DROPPING = "dropping"  # it is to be dropped
    ENDED = "ended"  # there is none


IN_PLACE = frozenset({Stage.BUILDING, Stage.KEPT})  # the pipeline writes both copies, and nothing is asked for
ASKED = frozenset({Stage.SWAPPING, Stage.RETURNING, Stage.DROPPING})
# Where a stage goes when what was asked for cannot be done now.
_BACK = {Stage.SWAPPING: Stage.BUILDING, Stage.RETURNING: Stage.KEPT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """The copy beside a live one."""

    view: str  # the id of the view
    live: int  # the number of the live copy
    copy: int  # the number of the one beside
    stage: Stage
    note: str | None  # why what was asked for last could not be done
    started_by: str
    keep_s: int
    kept_s: float | None  # how long the copy beside is kept from now on

    @property
    def copy_id(self) -> str:
        """The id of the copy beside."""
        return copy_id(self.view, self.copy)


class Rebuilds:
    """Of one pipeline. Each method is one transaction on `session`."""

    def __init__(self, session: Session, database: str, pipeline: str) -> None:
        self._session = session
        self._table, self._view = quote(database, "rebuild"), quote(database, "view")
        self.states = ViewStates(session, database, pipeline)

    def read(self) -> dict[str, Rebuild]:
        """By view, those that have a copy beside the live one."""
        with self._transaction("reading rebuilds") as cursor:
            return {one.view: one for one in _read(cursor, self._table, self._view, f"r.pipeline_id = {self._id}")}

    def live_copies(self) -> dict[str, int]:
        """By view, the number of the copy that readers see; of those that ever had another."""
        with self._transaction("reading which copies are live") as cursor:
            cursor.execute(f"SELECT name, copy FROM {self._view} WHERE pipeline_id = {self._id} AND copy > 1")
            return dict(cursor.fetchall())

    def begin(self, view: str, started_by: str, keep_s: int) -> None:
        """Have a copy made beside the live one. Nothing where there is one already."""
        with self._transaction("beginning a rebuild") as cursor:
            of_view = f"WHERE view_name = %s AND pipeline_id = {self._id}"
            cursor.execute(f"SELECT copy, stage FROM {self._table} {of_view} FOR UPDATE", (view,))
            before = cursor.fetchone()
            if before is not None and before[1] != Stage.ENDED:
                return
            cursor.execute(f"SELECT copy FROM {self._view} WHERE name = %s AND pipeline_id = {self._id}", (view,))
            (live,) = cursor.fetchone() or (1,)
            copy = 1 + max(live, before[0] if before else 0)
            cursor.execute(
                f"REPLACE INTO {self._table} (view_name, pipeline_id, copy, stage, started_by, keep_s) "
                f"VALUES (%s, {self._id}, %s, '{Stage.BUILDING}', %s, %s)",
                (view, copy, started_by[:255], keep_s),
            )

    def ask(self, view: str, sources: Collection[Stage], to: Stage, keep_s: int | None = None) -> bool:
        """Move a view's rebuild to a stage; False where it is in none of `sources`."""
        with self._transaction(f"asking for a rebuild's next stage ({to})") as cursor:
            return _move(cursor, self._table, self._id, view, sources, to, keep_s=keep_s) == 1

    def end_of_time(self) -> list[str]:
        """Have the copies dropped that were kept for as long as was asked for; returns their views."""
        over = [one.view for one in self.read().values() if _is_over(one)]
        return [view for view in over if self.ask(view, {Stage.KEPT}, Stage.DROPPING)]

    def could_not(self, one: Rebuild, why: str) -> None:
        """What was asked for cannot be done now."""
        with self._transaction("noting why a rebuild cannot go on") as cursor:
            _move(cursor, self._table, self._id, one.view, {one.stage}, _BACK[one.stage], note=why)

    def swapped(self, one: Rebuild, owner: Owner) -> None:
        """The two copies have each other's place: their rows have each other's names from now on."""
        former, passing = copy_id(one.view, one.live), f"{one.view}~"
        with self._transaction("noting a swap") as cursor:
            check_fence(cursor, owner)
            for name, to in ((one.view, passing), (one.copy_id, one.view), (passing, former)):
                cursor.execute(
                    f"UPDATE {self._view} SET name = %s WHERE name = %s AND pipeline_id = {self._id}", (to, name)
                )
            cursor.execute(
                f"UPDATE {self._table} SET copy = %s, stage = '{Stage.KEPT}', note = NULL, "
                "swapped_at = CURRENT_TIMESTAMP(6), "
                "kept_until = COALESCE(kept_until, CURRENT_TIMESTAMP(6) + INTERVAL keep_s SECOND) "
                f"WHERE view_name = %s AND pipeline_id = {self._id}",
                (one.live, one.view),
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


def _read(cursor: Any, rebuilds: str, views: str, which: str) -> list[Rebuild]:
    cursor.execute(
        "SELECT r.view_name, COALESCE(v.copy, 1), r.copy, r.stage, r.note, r.started_by, r.keep_s, "
        "TIMESTAMPDIFF(MICROSECOND, CURRENT_TIMESTAMP(6), r.kept_until) / 1e6 "
        f"FROM {rebuilds} r LEFT JOIN {views} v ON v.name = r.view_name AND v.pipeline_id = r.pipeline_id "
        f"WHERE {which} AND r.stage <> '{Stage.ENDED}' ORDER BY r.view_name"
    )
    return [_rebuild(row) for row in cursor.fetchall()]


def _rebuild(row: tuple[Any, ...]) -> Rebuild:
    view, live, copy, stage, note, started_by, keep_s, kept_s = row
    return Rebuild(
        view=view,
        live=live,
        copy=copy,
        stage=Stage(stage),
        note=note,
        started_by=started_by,
        keep_s=keep_s,
        kept_s=None if kept_s is None else float(kept_s),
    )


def _is_over(one: Rebuild) -> bool:
    return one.stage is Stage.KEPT and one.kept_s is not None and one.kept_s <= 0


# --- What the owner of a pipeline does ---


class Deployment(Protocol):
    """What is asked of the composition root."""

    @property
    def database(self) -> str: ...  # of viewtail's own tables
    def open_store(self) -> Connection: ...
    def access(self, store: Store) -> Access: ...


def with_copies(
    deployment: Deployment, pipeline: str, store: Store, views: Sequence[BoundView]
) -> tuple[list[BoundView], Mapping[str, int]]:
    """The views that a pipeline keeps, and by view the number of the copy beside it; the lease must be held.

    First it does what is asked for: swaps copies, drops one. Raises StoreUnavailableError; taken again, it goes on.
    """
    with closing(OwnSession(deployment.open_store)) as session:
        rebuilds = Rebuilds(session, deployment.database, pipeline)
        asked = [one for one in rebuilds.read().values() if one.stage in ASKED]
        if asked:
            _do(deployment, pipeline, store, {view.id: view for view in views}, rebuilds, asked)
        live = rebuilds.live_copies()
        beside = {one.view: one.copy for one in rebuilds.read().values()}
    found = [replace(view, copy=live.get(view.id, 1)) for view in views]
    copies = [replace(view, copy=beside[view.id], is_beside=True) for view in found if view.id in beside]
    return [*found, *copies], {view.view.id: view.copy for view in copies}


def _do(
    deployment: Deployment,
    pipeline: str,
    store: Store,
    views: Mapping[str, BoundView],
    rebuilds: Rebuilds,
    asked: Sequence[Rebuild],
) -> None:
    access = deployment.access(store)
    swapping = store.swapping(access)
    assert swapping is not None, "no command asks it of another store"
    offsets = access.background_offsets(pipeline)
    with closing(swapping):
        try:
            owner = offsets.take().owner  # whoever had the pipeline before writes nothing from now on
        finally:
            offsets.abandon()
        for one in asked:
            if one.view in views:  # one that is not declared waits until it is, or is forgotten
                _do_one(swapping, views[one.view], rebuilds, one, owner)


def _do_one(swapping: Swapping, view: BoundView, rebuilds: Rebuilds, one: Rebuild, owner: Owner) -> None:
    live, beside = replace(view, copy=one.live), replace(view, copy=one.copy, is_beside=True)
    failpoints.reach(f"before {one.stage}")
    if one.stage is Stage.DROPPING:
        rebuilds.dropped(one, _drop(swapping, beside))
        return
    record = rebuilds.states.read_all([beside.id]).get(beside.id)
    if record is None or record.state is not State.FILLED:
        state = "not there" if record is None else record.state
        rebuilds.could_not(one, f"the copy beside is {state}, and only a filled one may be read")
        return
    try:
        swapping.swap(live, beside, record.watermark_version or 0)
    except StoreError as error:
        rebuilds.could_not(one, str(error))
        _log.warning("the copies were not swapped", view=one.view, reason=str(error))
        return
    failpoints.reach(f"after {one.stage}")
    rebuilds.swapped(one, owner)
    _log.info("readers see the other copy", view=one.view, copy=one.copy, former=one.live)


def _drop(swapping: Swapping, beside: BoundView) -> str | None:
    try:
        swapping.drop(beside)
    except StoreError as error:
        _log.warning("a copy was not dropped", view=beside.id, reason=str(error))
        return str(error)
    failpoints.reach("after dropping")
    _log.info("copy dropped", view=beside.id)
    return None


def all_rebuilds(cursor: Any, database: str) -> list[Rebuild]:
    """Of every pipeline; none where no viewtail of this kind ever ran."""
    if "rebuild" not in migrations.columns(cursor, database):
        return []
    return _read(cursor, quote(database, "rebuild"), quote(database, "view"), "TRUE")
