"""What becomes of views when a statement took rows of their table away, or put others in their place.

A TRUNCATE is one tombstone for each key that the view shows with an older version, with the statement's own: so what is
inserted later stays, and the statement can be applied again. Where only some rows went (DROP PARTITION), the keys that
the table no longer has get theirs: whatever was deleted since is gone a moment early, and whatever was inserted again
comes with its own event. Where others may have come (the tables of gh-ost, an exchanged partition), the views are
filled again in place, if the table as it is now still fits them. Where a column became wider, an index table is made
as wide before the first row behind the statement. Where rows are read in another way from here on (another character
set, another order of the keys), what reads them is made anew, and a fill under way begins again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import pymysql
import structlog

from changes.batches import Row, TableChange, TableChangeKind
from changes.errors import (
    RETRIES,
    AnotherServerError,
    DeclarationError,
    SourceError,
    SourceUnavailableError,
    StoreError,
)
from changes.tables import unlike
from changes.versions import MAX_VERSION
from changes.writes import Key, ViewWrites, Write
from ingest.canonical import describe, fetch_rows
from offsets import OffsetStore
from projectors.backfill import Statement, absent_keys, reads_alike
from projectors.backfill_gate import FillGate
from projectors.binding import bind
from projectors.bound_views import BoundView
from projectors.dead_letters import DeadLetters
from projectors.projection import Projections
from projectors.stores import GuardedSink, Sink, guarded
from projectors.stores.registry import store_of

_log = structlog.get_logger("viewtail.pipeline")


class TableChanges:
    """Applies them to the views of one pipeline.

    Args:
        open_source: a session on the tailed server; raises AnotherServerError where the address leads to another.
        gate: of the fills.
        fill_after: marks a view to be filled anew, under a watermark above a version.
        begin_again_after: the same, where a fill is under way.
        bind_anew: fills read by a view as it is bound to its table now, and its store has room for that.
    """

    def __init__(
        self,
        *,
        projections: Projections,
        sink: Sink,
        offsets: OffsetStore,
        dead_letters: DeadLetters,
        open_source: Callable[[], pymysql.Connection[Any]],
        gate: FillGate,
        fill_after: Callable[[str, int], None],
        begin_again_after: Callable[[str, int], None],
        bind_anew: Callable[[BoundView], None],
        check_lease: Callable[[], None],
        stop: threading.Event,
    ) -> None:
        self._projections = projections
        self._sink = sink
        self._offsets = offsets
        self._dead_letters = dead_letters
        self._open_source = open_source
        self._gate = gate
        self._fill_after = fill_after
        self._begin_again_after = begin_again_after
        self._bind_anew = bind_anew
        self._check_lease = check_lease
        self._stop = stop
        self._bound: dict[str, BoundView] = {}  # by id: those that were bound anew since

    def prepare(self, changes: Iterable[TableChange], halt: Callable[[str, str], None]) -> None:
        """Ahead of the rows of their batch: room in the store for what they may hold now. `halt` as for `apply`."""
        for change in changes:
            if change.kind not in (
                TableChangeKind.WIDENED,
                TableChangeKind.REDEFINED,
                TableChangeKind.REPLACED,
            ):
                continue
            for view in self._views_of(change):
                self._prepare(view, change, halt)

    def _prepare(self, view: BoundView, change: TableChange, halt: Callable[[str, str], None]) -> None:
        try:
            self._bind(view, change)
        except AnotherServerError:
            raise
        except (SourceError, DeclarationError, StoreError) as error:
            if (
                change.kind is not TableChangeKind.REPLACED
            ):  # of a table that was replaced `apply` says what is wrong
                place = store_of(view.view).typed_place if change.kind is TableChangeKind.WIDENED else ""
                what = f"its {place} cannot be made as wide" if place else "the table cannot be gone on with"
                halt(
                    view.id,
                    f"{change.reason}, and {what}: {error}. When that is mended, fill the view again: "
                    f"viewtail replay {view.id}",
                )

    def _bind(self, view: BoundView, change: TableChange) -> BoundView:
        """To the table as it is now. Raises SourceError, DeclarationError or StoreError where that cannot be."""
        now = self._bound_now(view)
        _check_alike(view, now)
        if not reads_alike(view, now):
            with self._gate.binding(view.id):
                self._begin_again_after(
                    view.id, change.version
                )  # first: once bound, nothing shows that it must be
                self._bind_anew(now)
        elif now.fingerprint != view.fingerprint:
            with self._gate.closed(view.id):
                self._bind_anew(now)
        else:
            return now
        self._bound[view.id] = now
        _log.info("view fits its table as it is now", view=view.id, why=change.reason)
        return now

    def apply(self, changes: Iterable[TableChange], halt: Callable[[str, str], None]) -> bool:
        """In order, behind the rows of their batch: the versions tell which came before and which after.

        `halt` is called with a view, and why, where its table cannot be gone on with. False: it was stopped half-way,
        and the batch is to be read again.
        """
        try:
            self._apply_all(changes, halt)
        except _Stopped:
            return False
        return True

    def _apply_all(self, changes: Iterable[TableChange], halt: Callable[[str, str], None]) -> None:
        for change in changes:
            if change.kind in (TableChangeKind.WIDENED, TableChangeKind.REDEFINED):
                continue
            _log.info("rows went without row events", what=change.kind.value, why=change.reason)
            for view in self._views_of(change):
                self._apply(view, change, halt)

    def _views_of(self, change: TableChange) -> list[BoundView]:
        return [
            self._bound.get(view.id, view)
            for view in self._projections.views_of(change.followed)
            if not self._projections.is_halted(view.id)
        ]

    def _bound_now(self, view: BoundView) -> BoundView:
        with closing(self._open_source()) as connection:
            (now,) = bind([view.view], lambda schema, name: describe(connection, schema, name))
        return now

    def _apply(self, view: BoundView, change: TableChange, halt: Callable[[str, str], None]) -> None:
        try:
            if change.kind is TableChangeKind.REPLACED:
                self._replace(view, change)
            else:
                self._take_away(view, change)
        except AnotherServerError:
            raise  # nothing is wrong with the table: what another server means is decided for the whole pipeline
        except (SourceError, DeclarationError) as error:
            halt(
                view.id,
                f"{change.reason}, and the table cannot be gone on with: {error}. When it is as it should be, fill the "
                f"view again: viewtail replay {view.id}",
            )

    def _replace(self, view: BoundView, change: TableChange) -> None:
        """Another table has the name: filled again if what the view uses of it is as it was."""
        try:
            now = self._bind(view, change).table
        except StoreError as error:
            raise SourceError(f"its store has no room for it: {error}") from None
        self._fill_after(view.id, change.version)
        if (now.primary_key, now.unique_names) != (
            change.followed.table.primary_key,
            change.followed.table.unique_names,
        ):
            # Statements about its keys are judged by the description that the table is followed with.
            self._projections.halt(view.id)  # in this process alone: marked, it has the pipeline taken anew

    def _take_away(self, view: BoundView, change: TableChange) -> None:
        entity = view.view.entity
        if entity.append_only:
            return  # archiving, as its row deletes are
        guard = guarded(self._sink)
        if guard is None:
            raise SourceError(
                "its store keeps every change and cannot tell which keys it holds, to delete them"
            )
        with self._gate.closed(view.id):
            if change.kind is TableChangeKind.EMPTIED and entity.version is None:
                self._empty(guard, view, change.version)
            else:
                self._thin(guard, view, change.version)

    def _empty(self, guard: GuardedSink, view: BoundView, version: int) -> None:
        for page in guard.keys_below(view.id, version):
            self._bury(view, {key: Write(version, None) for key, _ in page})

    def _thin(self, guard: GuardedSink, view: BoundView, version: int) -> None:
        """With a version column a delete is one above the row's version, and which rows are older is not told."""
        now = self._bound_now(view)  # its keys may be read in another way than when the view was bound
        _check_alike(view, now)
        is_column = view.view.entity.version is not None
        with closing(self._open_source()) as connection:
            for page in guard.keys_below(view.id, MAX_VERSION if is_column else version):
                keys = [key for key, _ in page]
                absent = absent_keys(now, keys, lambda statement: _read(connection, statement, now))
                self._bury(
                    view,
                    {
                        key: Write(stored | 1 if is_column else version, None)
                        for key, stored in page
                        if key in absent
                    },
                )

    def _bury(self, view: BoundView, tombstones: dict[Key, Write]) -> None:
        """One page, durable by itself: the offset stays before the statement until all are."""
        self._check_lease()
        if self._stop.is_set():
            raise _Stopped
        if tombstones:
            writes = [ViewWrites(view.id, tombstones)]
            self._sink.write(writes, None)
            self._offsets.save_rows()
            self._dead_letters.clear_applied(writes, [])


def _check_alike(view: BoundView, now: BoundView) -> None:
    """Raises SourceError where the values that a view uses are not of the kind that they were."""
    if [column.name for column in now.key] != [column.name for column in view.key]:
        raise SourceError("its key is another")
    for name in view.needed:
        before, after = view.table.column(name), now.table.column(name)
        assert before is not None
        if after is None:
            raise SourceError(f"column {name} is gone")
        if (difference := unlike(before, after)) is not None:
            raise SourceError(f"column {name}: {difference}")


class _Stopped(Exception):
    """A large view takes longer than a stop may."""


def _read(connection: pymysql.Connection[Any], statement: Statement, view: BoundView) -> list[Row]:
    """The statement's rows as they are now: its event came after it had taken effect."""
    try:
        rows = fetch_rows(connection, statement(connection), view.key)
        connection.commit()  # the next one sees what was committed since
    except pymysql.err.MySQLError:
        raise SourceUnavailableError(f"the source broke off; {RETRIES}") from None
    return rows
