"""Shows views what was committed at once, ahead of the pipeline that brings it too: a thread a store.

Whoever writes a table hands over which rows it has committed. They are read again, as a backfill reads rows, so that
their values are those of the stream. Each is written with its own version, and over an older one only: of two writes of
one version the pipeline has the last word. So nothing depends on a push. What is dropped, because too much waits or the
store is away, comes with the pipeline; what a projection or a store refuses is parked there.

Reading takes as long as a fast store's write, and the disk keeps a COMMIT waiting meanwhile. So rows are announced
before their COMMIT, and read then, uncommitted; they are written once it has come through. Where a store takes writes
without keeping their sender waiting, whoever hands them over sends them: to wake this thread takes as long as a fast
store's write, too.

Nothing is ever taken away from these views (`append_only`): a row that was read may be written whatever became of its
table meanwhile, and no lock is needed against TRUNCATE and its like.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pymysql
import structlog

from ingest.canonical.rows import fetch_rows, select_list, source_error
from offsets import keepers
from offsets.copies import moving
from offsets.keepers import Keeper
from offsets.mysql import OwnSession, Session, transaction
from offsets.views import State, ViewRecord
from projectors import failpoints
from projectors.catalog import Catalog
from projectors.projection import Projections, followed_tables
from projectors.read_and_written import kept_as
from projectors.stores import GuardedSink, guarded
from projectors.stores.registry import store_named
from projectors.views import BoundView, View
from viewtail.changes.batches import Followed, Row
from viewtail.changes.errors import ViewtailError
from viewtail.changes.retrying import reaction_to
from viewtail.changes.tables import Column
from viewtail.changes.writes import ViewWrites
from viewtail.entities.push_queue import (
    ANNOUNCED_AT_ONCE,
    ROWS_AT_ONCE,
    PreparedWrites,
    PushQueue,
    Ready,
    Taken,
    Versions,
)
from viewtail.servers.literals import rows_with
from viewtail.servers.sessions import Connection

_log = structlog.get_logger("viewtail.push")

ASK_EVERY_S = 1.0  # whether the views may be written
ASK_WITHIN_S = 60.0  # of the last push; then no more until the next one
BIND_AGAIN_S = 10.0
WRITTEN_WITHIN_S = 2.0  # of its reading; this process hung otherwise, and much may have happened since
SAID_EVERY_S = 60.0  # that something was dropped
CLOSED_WITHIN_S = 2.0  # what waits is pushed until then


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The table whose rows were committed.

    Args:
        table: quoted, with its database.
        key: the column that names the entity of a row; views may have another key.
        version: with it one row.
    """

    table: str
    key: str
    version: str


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """Views that are made of the same rows, and the way to read these."""

    views: Sequence[BoundView]
    followed: Followed
    projections: Projections

    def columns_of(self, names: Sequence[str]) -> list[Column]:
        by_name = {column.name: column for column in self.followed.table.columns}
        return [by_name[name] for name in names]


@dataclass(eq=False)
class _Opened:
    """All that pushing needs, for some views as they are kept now."""

    marks: Sequence[object]  # of these views
    sink: GuardedSink
    readings: Sequence[_Reading] = ()


class Pusher:
    """Pushes to some views of one table in one store. `hand` and `close` may be called from any thread.

    Args:
        deploy: describes the table as it is now and binds these views to it; raises ViewtailError.
    """

    def __init__(
        self,
        store: str,
        committed: Committed,
        views: Sequence[View],
        deploy: Callable[[Sequence[View]], Catalog],
    ) -> None:
        self._store, self._committed, self._views, self._deploy = store_named(store), committed, views, deploy
        self._queue = PushQueue()
        self._ahead: deque[PreparedWrites] = deque(maxlen=ANNOUNCED_AT_ONCE)  # of what was announced last
        self._next: Ready | None = None
        self._catalog: Catalog | None = None
        self._is_bound = False  # as the table is now, as far as is known
        self._pipelines: list[str] = []
        self._bound_at = self._asked_at = self._handed_at = self._said_at = float("-inf")
        self._session: OwnSession | None = None
        self._source: Connection | None = None
        self._opened: _Opened | None = None
        self._why_not: dict[str, str] = {}
        self._without_place: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=f"push {store}", daemon=True)
        self._thread.start()

    def announce(self, newest: Versions) -> None:
        """As PushQueue has it."""
        self._queue.announce(newest)

    def hand(self, newest: Versions) -> None:
        """As PushQueue has it."""
        self._queue.hand(newest)

    def close(self) -> None:
        """Push what waits, within CLOSED_WITHIN_S; what is left by then is the pipeline's."""
        self._queue.close()
        self._thread.join(CLOSED_WITHIN_S)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        attempt = 0
        while True:
            try:
                if attempt or not self._is_bound:
                    self._ask()
                    attempt = 0
                    self._say_what_was_dropped()
                taken = self._taken()
                if taken is None:
                    break
                self._handle(taken)
                continue
            except ViewtailError as error:
                problem = error
            except Exception as error:
                if not attempt:
                    _log.exception("a fault in viewtail, report it", store=self._store.name)
                problem = ViewtailError(type(error).__name__)
            self._give_up()
            if not self._rests(problem, attempt):
                break
            attempt += 1
        self._give_up()

    def _taken(self) -> Taken | None:
        """Return what is to be done: nothing when it is time to ask again, None at the end."""
        ready, self._next = self._next, None
        is_idle = time.monotonic() - self._handed_at > ASK_WITHIN_S
        taken = self._queue.take(ready, None if is_idle else ASK_EVERY_S)
        if taken is not None and taken.handed:
            self._handed_at = time.monotonic()
        return taken

    def _handle(self, taken: Taken) -> None:
        """Push, and ask again behind that, where it keeps nobody waiting; ask first if the last time was long ago."""
        if taken.handed:
            failpoints.reach(failpoints.PUSH_STEP)
        left = taken.handed if taken.sent is None else self._settled(taken.sent, taken.handed)
        if not (taken.handed or taken.coming) or self._was_asked_before(2 * ASK_EVERY_S):
            self._ask()
        self._push(left)
        if taken.handed and self._was_asked_before(ASK_EVERY_S):
            self._ask()
        self._read_ahead(taken.coming)
        self._say_what_was_dropped()

    def _was_asked_before(self, ago_s: float) -> bool:
        return time.monotonic() - self._asked_at > ago_s

    def _rests(self, error: ViewtailError, attempt: int) -> bool:
        """Rest, and drop what comes meanwhile. False: it is the end."""
        if not attempt:
            _log.warning("nothing is pushed for now, the pipeline brings it", store=self._store.name, why=str(error))
        return self._queue.rest(reaction_to(error).pause_s(attempt))

    def _say_what_was_dropped(self) -> None:
        now = time.monotonic()
        if not self._queue.dropped_count or now - self._said_at < SAID_EVERY_S:
            return
        self._said_at = now
        count = self._queue.take_dropped()
        _log.warning("entities were not pushed, the pipeline brings them", store=self._store.name, count=count)

    def _give_up(self) -> None:
        opened, self._opened = self._opened, None
        self._ahead.clear()
        self._next = None
        session, self._session = self._session, None
        source, self._source = self._source, None
        self._is_bound = False
        try:
            if opened is not None:
                opened.sink.close()
            if session is not None:
                session.close()
            if source is not None and source.open:
                source.close()
        except (ViewtailError, pymysql.err.MySQLError, OSError):
            pass  # it is gone

    # -- whether the views may be written -------------------------------------------------------------------------

    def _ask(self) -> None:
        catalog = self._bound()
        allowed = self._allowed(catalog)
        self._asked_at = time.monotonic()
        views, marks = [view for view, _ in allowed], [mark for _, mark in allowed]
        if self._opened is not None and self._opened.marks == marks:
            return
        opened, self._opened, self._next = self._opened, None, None
        self._ahead.clear()
        if opened is not None:
            opened.sink.close()
        if views:
            self._opened = self._open(catalog, views, marks)

    def _bound(self) -> Catalog:
        if self._catalog is None or not self._is_bound:
            self._catalog = self._deploy(self._views)
            self._is_bound, self._bound_at = True, time.monotonic()
            self._pipelines = [
                pipeline.name for pipeline in self._catalog.pipelines() if pipeline.store == self._store.name
            ]
        if self._session is None:
            self._session = self._catalog.session()
        return self._catalog

    def _allowed(self, catalog: Catalog) -> list[tuple[BoundView, object]]:
        """Return the views that are whole, as they are kept; each with a mark that changes once it was filled again."""
        assert self._session is not None
        kept_now, moving = _kept_now(self._session, catalog, self._pipelines)
        allowed: list[tuple[BoundView, object]] = []
        for view in catalog.views:
            records = [keeper.view for keeper in kept_now.get(view.id, [])]
            kept = kept_as(view, records[0]) if records else view
            why = "its copies change places" if view.id in moving else self._why_none(kept, records)
            if why and self._why_not.get(view.id) != why:
                _log.warning("nothing is pushed to a view for now, its pipeline brings it", view=view.id, why=why)
            self._why_not[view.id] = why
            if not why:
                mark = (view.id, kept.copy, kept.fingerprint, [record.filled_at for record in records])
                allowed.append((replace(kept, is_pushed=True), mark))
        return allowed

    def _why_none(self, view: BoundView, records: Sequence[ViewRecord]) -> str:
        """Return why the view may not be written; '': it may."""
        if not records:
            return "it was never backfilled"
        state = next((record.state for record in records if record.state != State.FILLED), None)
        if state is not None:
            return f"it is {state}"
        if all(record.fingerprint == view.fingerprint and record.copy == records[0].copy for record in records):
            return ""
        if time.monotonic() - self._bound_at > BIND_AGAIN_S:
            self._is_bound = False  # its table may have changed since: the next time it is described again
        return "it is kept by another declaration than this process has, or its table changed"

    def _open(self, catalog: Catalog, views: Sequence[BoundView], marks: Sequence[object]) -> _Opened | None:
        access = catalog.access(self._store)
        sink = guarded(self._store.for_push(access, views, self._pipelines[0]))
        assert sink is not None, "its views take push="
        try:
            attached = sink.attach()
        except BaseException:
            sink.close()
            raise
        there = [view for view in views if view.id in attached]
        self._tell_of_no_place({view.id for view in views} - attached)
        if len(there) < len(views):
            sink.close()
            return self._open(catalog, there, marks) if there else None
        return _Opened(marks, sink, _readings(there))

    def _tell_of_no_place(self, views: set[str]) -> None:
        for view in sorted(views - self._without_place):
            why = "its place in the store is gone"
            _log.warning("nothing is pushed to a view for now, its pipeline brings it", view=view, why=why)
        self._without_place = views

    # -- pushing --------------------------------------------------------------------------------------------------

    def _read_ahead(self, announced: Sequence[Versions]) -> None:
        """Read what is about to be committed, and have the last of it ready to be sent."""
        if self._opened is None or not announced:
            return
        self._ahead.extend(self._prepared(newest) for newest in announced)
        self._next = self._ready_to_send(self._opened.sink, self._ahead[-1])

    def _ready_to_send(self, sink: GuardedSink, prepared: PreparedWrites) -> Ready | None:
        if not prepared.is_whole or not prepared.writes:
            return None
        send = sink.sender(prepared.writes)
        until = min(prepared.read_at + WRITTEN_WITHIN_S, self._asked_at + 2 * ASK_EVERY_S)
        return None if send is None else Ready(prepared, send, until)

    def _settled(self, sent: PreparedWrites, handed: Versions) -> Versions:
        """Return what is left of `handed` once these have come to the store."""
        assert self._opened is not None, "it is this thread that would have closed it"
        if sent in self._ahead:
            self._ahead.remove(sent)
        self._opened.sink.push(sent.writes)
        return {key: version for key, version in handed.items() if sent.newest.get(key) != version}

    def _push(self, handed: Versions) -> None:
        if self._opened is None or not handed:
            return
        ahead = next((prepared for prepared in self._ahead if prepared.newest is handed), None)
        if ahead is not None:
            self._ahead.remove(ahead)
            if ahead.is_whole:
                self._write(ahead)
                return
        keys = list(handed)
        for at in range(0, len(keys), ROWS_AT_ONCE):
            self._write(self._prepared({key: handed[key] for key in keys[at : at + ROWS_AT_ONCE]}))

    def _write(self, prepared: PreparedWrites) -> None:
        assert self._opened is not None
        if prepared.writes and time.monotonic() - prepared.read_at < WRITTEN_WITHIN_S:
            self._opened.sink.push(prepared.writes)

    def _prepared(self, newest: Versions) -> PreparedWrites:
        assert self._opened is not None
        read_at, writes, is_whole = time.monotonic(), list[ViewWrites](), True
        for reading in self._opened.readings:
            rows = self._rows(reading, list(newest.items()))
            is_whole = is_whole and len(rows) == len(newest)
            for view in reading.views:
                writes += reading.projections.of_rows(view.id, rows, 0).writes
        return PreparedWrites(newest, writes, is_whole, read_at)

    def _rows(self, reading: _Reading, keys: Sequence[tuple[Any, int]]) -> list[Row]:
        source, columns = self._living_source(), reading.columns_of(reading.followed.columns)
        named = reading.columns_of((self._committed.key, self._committed.version))
        statement = f"SELECT {select_list(columns)} FROM {self._committed.table} WHERE {rows_with(named, keys)}"
        return fetch_rows(source, statement, columns)

    def _living_source(self) -> Connection:
        if self._source is None or not self._source.open:
            assert self._catalog is not None
            self._source = self._catalog.servers.open_primary()
            try:
                self._source.autocommit(True)
                # Rows of these keys and versions never change, whether their COMMIT has come through or not.
                self._source.query("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
            except pymysql.err.MySQLError as error:
                raise source_error(error, self._source) from None
        return self._source


def _kept_now(session: Session, catalog: Catalog, pipelines: Sequence[str]) -> tuple[dict[str, list[Keeper]], set[str]]:
    """Return, by view, the pipelines that keep it; and the views whose copies change places."""
    kept: dict[str, list[Keeper]] = {}
    with transaction(session, "asking which views may be pushed to") as cursor:
        names = [view.id for view in catalog.views]
        for keeper in keepers.read(cursor, catalog.database, names=names, of=pipelines):
            kept.setdefault(keeper.view.name, []).append(keeper)
        return kept, moving(cursor, catalog.database)


def _readings(views: Sequence[BoundView]) -> list[_Reading]:
    """Return one reading, or several if one entity is of that table and another of a pattern that it matches."""
    by_table: dict[tuple[str, str], list[BoundView]] = {}
    for view in views:
        by_table.setdefault((view.table.schema, view.table.name), []).append(view)
    readings = []
    for some in by_table.values():
        followed = followed_tables(some)
        (of_table,) = followed.values()
        readings.append(_Reading(some, of_table, Projections(some, followed)))
    return readings
