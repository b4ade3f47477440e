"""A view seen from beside its pipelines: what a command, or the cleaner, compares it and writes entities of it with.

Everything here has sessions and clients of its own. The pipelines go on; what they have passed is asked of MySQL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from typing import Any, Self

from ingest.canonical.chunks import CanonicalRows
from offsets import dead_letters, fan_outs
from offsets.copies import require_not_moving
from offsets.dead_letters import Letter
from offsets.fan_outs import FanOut
from offsets.keepers import Keeper, keepers, kept_as_before
from offsets.mysql import Session
from offsets.view_parts import ViewParts
from offsets.views import KEPT, State, ViewRecord, note_written
from projectors.catalog import Catalog
from projectors.dead_letters import DeadLetters
from projectors.derived import LookUp
from projectors.paused_parts import values_of, without_paused
from projectors.projection import Projections, followed_tables
from projectors.proving.comparison import Comparison
from projectors.proving.reprojection import Reprojection
from projectors.proving.view_lock import ViewLock
from projectors.read_and_written import kept_as
from projectors.stores import GuardedSink, Store, guarded
from projectors.stores.registry import store_of
from projectors.views import BoundView
from projectors.watermark_rows import RowNumber, remote_writer
from projectors.watermarks import WHY_LATE, RemoteWaiter, Watermarks
from viewtail.changes.errors import (
    MisuseError,
    SnapshotTooOldError,
    StopRequested,
    StoreError,
    ViewtailError,
    WaitedTooLongError,
)
from viewtail.changes.rendering import key_renderer
from viewtail.changes.repeating import Repeats, looks
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key, Parked, ViewWrites
from viewtail.servers.sessions import SNAPSHOT

SAY_AGAIN_S = 30.0  # what a fan-out has come to
CHUNK_WITHIN_S = 50.0  # rows that meet a condition; less than a session waits for an answer


@dataclass(eq=False)
class ViewAccess:
    """Reaches one view. Not thread-safe; `close` gives everything up.

    Args:
        stop: ends whatever waits.
        say: is told why something takes long.
    """

    catalog: Catalog
    view: BoundView
    stop: threading.Event
    say: Callable[[str], None] = lambda _: None
    chunk_rows: int = 0  # of the table, read at once; 0: as many as a backfill
    passed_within_s: float = inf  # a watermark

    def __post_init__(self) -> None:
        """Raises MisuseError for a view that cannot be compared, or that nobody has run yet."""
        store = store_of(self.view.view)
        if store.keeps_every_change:
            raise MisuseError(
                f"{self.view.id} is a topic: it has changes, not rows, so it is not compared or waited for, and no "
                "single key of it is looked up or published again. How far its pipeline is: viewtail status. To "
                f"publish all of it again: viewtail replay {self.view.id}"
            )
        self._pipelines = [pipeline.name for pipeline in self.catalog.pipelines() if pipeline.store == store.name]
        self.session = self.catalog.session()
        self._resources = ExitStack()
        self._resources.callback(self.session.close)
        self._passed = 0  # the version of the last watermark
        self._has_ended_letters = False
        try:
            self._begin(store)
        except BaseException:
            self.close()
            raise

    def _begin(self, store: Store) -> None:
        self.first = self.keepers()
        if not self.first:
            raise MisuseError(f"view {self.view.id} was never backfilled. {self.catalog.to_begin(self.session)}")
        database = self.catalog.database
        self._parts = ViewParts(self.session, database)
        self.paused = tuple(self._parts.of(self.view.id)) if self.view.prefix else ()
        self.view = without_paused(kept_as(self.view, self.first[0].view), self.paused)
        self.watermarks = Watermarks(
            remote_writer(self.catalog.marks, database, RowNumber(self.session, database)),
            RemoteWaiter(self.session, database, self.pipeline_ids, self._trouble, self.say),
        )
        self._resources.callback(self.watermarks.close)
        self.projections = Projections([self.view], followed_tables([self.view]))
        self.reader = store.reader(self.catalog.access(store), self.view)
        self._resources.callback(self.reader.close)
        self.is_standing = False  # nobody runs its pipelines: nothing is waited for
        self.rows = self.canonical_rows(self._shows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._resources.close()

    # -- the pipelines ------------------------------------------------------------------------------------------

    def keepers(self) -> list[Keeper]:
        """The pipelines that keep the view, as they are now."""
        return keepers(self.session, self.catalog.database, self.view.id, self._pipelines)

    def pipeline_ids(self) -> list[int]:
        return [pipeline.id for pipeline, _ in self.keepers()]

    def is_run(self) -> bool:
        """Return whether a process has all of them, or tries to."""
        return all(pipeline.is_run for pipeline, _ in self.keepers())

    def standstill(self) -> tuple[str, str] | None:
        """Why nothing is written into the view, and what ends that, with the command; None where it gets changes."""
        return next((pipeline.standstill for pipeline, _ in self.keepers() if pipeline.standstill is not None), None)

    def now(self) -> int:
        """The version of a watermark from now on, once the view has everything before it.

        Raises StopRequested, WaitedTooLongError.
        """
        if self.is_standing:
            return MAX_VERSION
        if self.passed_within_s == inf:
            self._passed = self.watermarks.now(self.stop)
            return self._passed
        version = self.watermarks.now_within(self.stop, self.passed_within_s)
        if version is None:
            raise WaitedTooLongError(
                f"{self.view.id}: a watermark did not come through the stream in {self.passed_within_s:.0f} s"
            )
        self._passed = version
        return version

    def fan_outs(self, version: int = MAX_VERSION) -> list[FanOut]:
        """Those under way in the view, of changes up to a version that it has passed: it lacks these in part."""
        return fan_outs.up_to(self.session, self.catalog.database, self.pipeline_ids(), version, self.view.id)

    def shown_now(self) -> int:
        """As `now`, once the view shows all of that, too: no fan-out of a change from before is under way.

        Raises StopRequested, WaitedTooLongError.
        """
        version = self.now()
        if self.is_standing or self.view.derived is None:
            return version
        repeats = Repeats(SAY_AGAIN_S)
        for _ in looks(self.stop, self.passed_within_s + self.view.view.entity.at_most_every):
            if not (under_way := self.fan_outs(version)):
                return version
            if repeats.is_due(f"{under_way[0].table} {under_way[0].key}"):
                self.say(f"waiting: {under_way[0]}")
        if self.stop.is_set():
            raise StopRequested
        raise WaitedTooLongError(f"{self.view.id}: {under_way[0]}")

    def _shows(self, cursor: Any, version: int) -> bool:
        return self.is_standing or self.watermarks.is_visible(cursor, version)

    def check(self) -> None:
        """Raises ViewtailError where the view cannot be relied on, or is declared otherwise than its content is."""
        for _, kept in self.keepers():
            self._check_kept(kept)
        require_not_moving(self.session, self.catalog.database, [self.view.view.id])
        known = {record.part for record in self.paused}
        for record in self._parts.of(self.view.id) if self.view.prefix else ():
            if record.part not in known:
                raise ViewtailError(f"view {self.view.id}: {record}, since this began. Run the same command again")

    def _check_kept(self, kept: ViewRecord) -> None:
        if kept.copy != self.view.copy:
            raise ViewtailError(
                f"the copies of view {self.view.id} were swapped meanwhile: readers have copy {kept.copy} now. Run "
                "the same command again"
            )
        if kept.state == State.HALTED:
            raise ViewtailError(f"view {self.view.id} is halted: {kept.reason}")
        if kept.state == State.RELEASED:
            raise MisuseError(f"view {self.view.id} was {kept.reason}: take it out of views.py")
        if kept.state == State.PAUSED:
            raise ViewtailError(f"view {self.view.id} is paused. To go on: viewtail resume {self.view.view.id}")
        if kept.state != State.FILLED:
            raise ViewtailError(
                f"view {self.view.id} is being backfilled ({kept.state}), so it is not whole yet. Try again when "
                "`viewtail status` says that it is filled"
            )
        if (why := self._kept_as_before(kept)) is not None:
            raise MisuseError(f"{why}, then try again")

    def _kept_as_before(self, kept: ViewRecord) -> str | None:
        if kept.fingerprint == self.view.fingerprint:
            return None
        return kept_as_before(self.view.id, f"views.py, or the table {self.view.table.full_name},")

    def kept_as_before(self) -> str | None:
        """Return what to do where the view gets changes by an older declaration than that of views.py; else None."""
        if not self.is_run():
            return None  # the next one reads views.py as it is
        kept = (self._kept_as_before(record) for _, record in self.keepers() if record.state in KEPT)
        return next(filter(None, kept), None)

    def require_none_paused(self) -> None:
        """Raises ViewtailError where a table is paused in the view, for what is done with the whole of it."""
        for record in self.paused:
            raise ViewtailError(f"view {self.view.id}: {record}, so it may lack rows. First: {record.to_go_on}")

    def require_not_paused(self, *keys: Key) -> None:
        """Raises ViewtailError for keys, or the values of the braces, of a table that is paused in the view."""
        begins = {key[: self.view.prefix] for key in keys}
        for record in self.paused:
            if values_of(self.view.view, record) in begins:
                raise ViewtailError(
                    f"view {self.view.id}: {record}. Nothing is done with its keys until it is resumed. First: "
                    f"{record.to_go_on}"
                )

    def _trouble(self) -> str | None:
        for pipeline, _ in self.keepers():
            if pipeline.trouble_and_mend is not None:
                return f"waiting: {pipeline.trouble_and_mend}"
        return f"waiting until the pipeline of {self.view.id} has come to this moment. {WHY_LATE}"

    # -- the tools ----------------------------------------------------------------------------------------------

    def in_snapshot(self, look_up: LookUp) -> Mapping[Key, int]:
        """The keys that only the tables tell, as they are now; see `Touched.keys`."""
        with closing(self.catalog.servers.open_source()) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            while True:
                cursor.execute(SNAPSHOT)
                with suppress(SnapshotTooOldError):
                    return look_up(connection)

    def canonical_rows(self, shows: Callable[[Any, int], bool] | None) -> CanonicalRows:
        """A reader of the table, on a session of its own."""
        limits = self.catalog.servers.limits
        rows = CanonicalRows(
            self.view.rows,
            self.view.needed,
            open_source=self.catalog.servers.open_source,
            shows=shows,
            stop=self.stop,
            only=self.view.condition,
            chunk_rows=self.chunk_rows or limits.chunk_rows,
            without=self.view.paused,
        )
        self._resources.callback(rows.close)
        return rows

    @cached_property
    def rows_now(self) -> CanonicalRows:
        """Rows as they are now, whatever the pipelines have passed."""
        return self.canonical_rows(None)

    def rows_where(self, condition: str, columns: Sequence[str], chunk_rows: int) -> CanonicalRows:
        """A reader of these columns of rows that meet a condition, written in SQL.

        Raises TookTooLongError for a condition that finds no chunk within CHUNK_WITHIN_S: the server ends the SELECT,
        which it would go on with for nobody once the session had given it up.
        """
        rows = CanonicalRows(
            self.view.rows,
            columns,
            open_source=partial(self.catalog.servers.open_limited, CHUNK_WITHIN_S),
            shows=self.watermarks.is_visible,
            stop=self.stop,
            chunk_rows=chunk_rows,
            only=self.view.condition,
            condition=condition,
            without=self.view.paused,
        )
        self._resources.callback(rows.close)
        return rows

    def comparison(self) -> Comparison:
        return Comparison(
            view=self.view,
            rows=self.rows,
            reader=self.reader,
            projections=self.projections,
            now=self.shown_now,
            parked=self.parked,
        )

    @cached_property
    def reprojection(self) -> Reprojection:
        """With a sink that is ready. Raises StoreError where the view's place is gone: nothing is made for it."""
        self.require_place()
        guard, session = self._sink
        for why in guard.prepare().values():
            raise StoreError(why)
        lock = ViewLock(self.session, self.catalog.database, self.view.id)
        return Reprojection(
            view=self.view,
            rows=self.rows,
            projections=self.projections,
            sink=guard,
            session=session,
            lock=lock.held,
            check=self.check,
            settle=self._settle,
            end=self._end_letters,
            held=self.reader.held,
        )

    @property
    def sink(self) -> GuardedSink:
        """A writer of the view alone, ready. Raises StoreError as `reprojection` does."""
        return self.reprojection.sink

    def require_place(self) -> None:
        """Raises StoreError where the view's table, index or keys are gone as a whole."""
        sink, _ = self._sink
        if sink.is_gone(self.view.id):
            raise StoreError(
                f"the place of {self.view.id} in {store_of(self.view.view).title} is gone, or empty. The running "
                f"viewtail backfills it when it sees that; at once: viewtail replay {self.view.id}"
            )

    @cached_property
    def _sink(self) -> tuple[GuardedSink, Session]:
        store = store_of(self.view.view)
        access, name = self.catalog.access(store), self.first[0].pipeline.name
        sink, session = store.for_backfill(access, self.view, name, self.session)
        self._resources.callback(sink.close)
        guard = guarded(sink)
        assert guard is not None
        return guard, session

    def parked(self) -> frozenset[str]:
        """The rendered keys of the view's dead letters."""
        return frozenset().union(*(letters.keys_of(self.view.id) for letters in self._letters()))

    def letter_of(self, name: str) -> Letter | None:
        """The dead letter of a rendered key."""
        return self.letters_of([name]).get(name)

    def letters_of(self, names: Sequence[str]) -> dict[str, Letter]:
        """Those of these rendered keys that have dead letters, with them."""
        if not names:
            return {}
        of = {pipeline.name for pipeline, _ in self.first}
        letters = dead_letters.of_keys(self.session, self.catalog.database, self.view.id, names)
        return {letter.key: letter for letter in letters if letter.pipeline in of}

    def _letters(self) -> list[DeadLetters]:
        of_pipelines = []
        for _, row in self.keepers():
            ids = {self.view.id: row.id}
            letters = DeadLetters(self.session, self.catalog.database, [self.view], ids)
            letters.load()
            of_pipelines.append(letters)
        return of_pipelines

    def _settle(self, writes: Sequence[ViewWrites], parked: Sequence[Parked]) -> None:
        letters = self._letters()
        if any(of_pipeline.has_letters(writes) for of_pipeline in letters):
            self._note_written()  # first: without its letter, nothing else tells of it
            self._has_ended_letters = True
        for of_pipeline in letters:
            of_pipeline.clear_applied(writes, parked)
        if parked:
            letters[0].record(parked)

    def note_ended(self) -> None:
        """`note_behind`, where dead letters of keys ended here: nothing else tells of these any more."""
        if self._has_ended_letters:
            self.note_behind()
            self._has_ended_letters = False

    def note_behind(self) -> None:
        """Note a watermark behind all that was written here.

        The changes of these keys are long behind the pipeline: a store that comes back without that watermark may have
        lost them, and the view is filled again. Raises StopRequested, WaitedTooLongError.
        """
        if self.now() < MAX_VERSION:
            self._note_written()

    def _note_written(self) -> None:
        ids = [record.id for _, record in self.first]
        note_written(self.session, self.catalog.database, ids, self._passed)

    def _end_letters(self, keys: Sequence[Key]) -> None:
        """Forget the letters of those keys that have no row; of one whose row comes back meanwhile it is refused again,
        and stays."""
        render = key_renderer(self.view.key)
        named = {render(key): key for key in keys}
        if not (letters := self.letters_of([*named])):
            return
        gone = self.rows_now.absent(self.view.key, [named[name] for name in letters], 1)
        ended = [letter for name, letter in letters.items() if named[name] in gone]
        dead_letters.forget(self.session, self.catalog.database, ended)
