"""Hands the table of a view over to the application that has written the old tables so far.

look   what is proven of the view, and what is missing
go     1. compare all of the view with its table, under live writes
       2. see that nothing came meanwhile: the stream has passed a moment after the comparison, and no row of the view
          was written since one before it. As long as rows come, begin again
       3. release the table, in one step: until then nothing has changed
       4. write the record: who, when, and what was proven
abort  end a `go` that is at 1 or 2

A `go` that was killed between 3 and 4 is finished by the next one. The old tables are not touched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ingest.canonical.tables import next_number
from offsets import runs
from offsets.keepers import Keeper, keepers, known_views
from offsets.mysql import Session, transaction
from offsets.pauses import this_person
from offsets.runs import Past, RunState
from offsets.views import Event, State, ViewStates
from projectors import failpoints
from projectors.catalog import Catalog
from projectors.proving.view_access import ViewAccess
from projectors.stores import Release
from projectors.stores.registry import store_of
from projectors.throttle import Throttles
from projectors.views import BoundView
from viewtail.changes.copy_ids import view_of
from viewtail.changes.counting import counted
from viewtail.changes.errors import DeclarationError, MisuseError, StopRequested, ViewtailError
from viewtail.changes.pipelines import PipelineState
from viewtail.operations.runs import Run
from viewtail.operations.status import PipelineStatus, ViewStatus, as_one, pipelines_now
from viewtail.operations.verify import Report, Verify

KIND = "cutover"  # of a run, in the record
QUIET_S = 2.0  # so long nothing must have come, at least
LOOK_EVERY_S = 1.0  # whether somebody aborted it

Say = Callable[[str], None]


def require_not_released(catalog: Catalog) -> None:
    """Raises DeclarationError for views that are declared, and whose tables are an application's by now."""
    declared = {view.id for view in catalog.views} | {view.id for view in catalog.left_out}
    with closing(catalog.session()) as session:
        known = known_views(session, catalog.database)
    reasons = {
        name: record.reason
        for (_, name), record in known.items()
        if record.state is State.RELEASED and name in declared
    }
    if reasons:
        raise DeclarationError(
            "\n".join(f"view {name} was {why}, take it out of views.py" for name, why in sorted(reasons.items()))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a view is on the way to a cutover."""

    view: str
    place: str
    released: str | None  # when and by whom
    record: str | None  # of the last cutover that was done: what was proven
    proven_through: str | None  # UTC: equal to its table then
    rows: int  # that its last backfill kept
    missing: Sequence[str]  # what must be so before it can be released, a sentence each
    remarks: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found before the table was released."""

    report: Report
    through: str  # UTC: nothing had come until then
    is_promised: bool  # that nobody writes, by the operator; it was not looked at

    def __str__(self) -> str:
        compared = f"{counted(self.report.counts.rows, 'rows')} compared, all equal"
        if self.is_promised:
            return f"{compared} by {self.through}; that nobody wrote meanwhile is the operator's word (--read-only)"
        return f"{compared}; no row was written from before the comparison through {self.through}"


@dataclass(slots=True, kw_only=True, eq=False)
class Cutover:
    """The cutover of one view. Raises MisuseError for a view that has no table to release.

    Args:
        stop: ends whatever waits; StopRequested is raised then.
        say: is told what it waits for.
        progress: around each comparison; gives what is called with the rows that are compared, and an estimate of all.
    """

    catalog: Catalog
    view: BoundView
    stop: threading.Event
    say: Say
    progress: Callable[[], AbstractContextManager[Callable[[int, int], None]]] = lambda: nullcontext(lambda *_: None)
    _looked_at: float = field(default=0.0, init=False)

    def look(self) -> Standing:
        """Changes nothing."""
        of_view, pipelines = self._now()
        with self._release() as release, closing(self.catalog.session()) as session:
            record = self._last(session)
            state = of_view.state if of_view is not None else None
            reason = of_view.reason if of_view is not None and state is State.RELEASED else release.released_at()
            missing = [] if reason is not None else [*self._missing(session, of_view, pipelines, release)]
            return Standing(
                view=self.view.id,
                place=release.place,
                released=reason,
                record=None if record is None else record.result,
                proven_through=of_view.proven_through if of_view is not None else None,
                rows=of_view.row_count if of_view is not None else 0,
                missing=missing,
                remarks=[] if reason is not None else [*self._left_out(), *release.remarks()],
            )

    def go(self, *, is_read_only: bool) -> str:
        """Release the table once all is proven; returns the record.

        Args:
            is_read_only: the operator says that nobody writes the old tables, so rows that come are not waited for.
        """
        standing = self.look()
        if standing.released is not None and (standing.record or "").startswith(standing.released):
            return standing.record or ""
        if standing.missing:
            raise MisuseError(
                f"view {self.view.id} cannot be released yet, and nothing was changed: {'. '.join(standing.missing)}"
            )
        with self._release() as release, closing(self.catalog.session()) as session:
            run = Run(session, self.catalog.database, KIND, self.view.id, "release its table", self.view.fingerprint)
            run.begin()
            try:
                if standing.released is None:
                    proof = self._proven(release, run, is_read_only=is_read_only)
                    run.progress["proof"] = str(proof)
                    run.save()
                    self._hand_over(release, run)
                return self._record(release, run)
            except (ViewtailError, StopRequested, KeyboardInterrupt) as error:
                self._give_up(run, error)
                raise

    def abort(self) -> bool:
        """End a `go` that has not released the table; returns whether there was one."""
        with (
            closing(self.catalog.session()) as session,
            self._release() as release,
            transaction(session, "aborting a cutover") as cursor,
        ):
            why = f"aborted by {this_person()}; nothing was changed"
            is_ended = bool(runs.cancel(cursor, self.catalog.database, KIND, self.view.id, why))
            # Behind that: it waits for a release that is under way, and then is taken back.
            if (released := release.released_at()) is not None:
                raise MisuseError(f"view {self.view.id} was released on {released}: there is nothing to abort")
            return is_ended

    # -- what is missing ----------------------------------------------------------------------------------------

    def _now(self) -> tuple[ViewStatus | None, list[PipelineStatus]]:
        """The view, and the pipelines that keep it; a view that no run has seen is None."""
        kept = [
            (view, pipeline)
            for pipeline in pipelines_now(self.catalog).values()
            for view in pipeline.views
            if view.name == self.view.id
        ]
        return (as_one([view for view, _ in kept]) if kept else None), [pipeline for _, pipeline in kept]

    def _missing(
        self, session: Session, of_view: ViewStatus | None, pipelines: Sequence[PipelineStatus], release: Release
    ) -> Iterator[str]:
        yield from self._masked()
        if of_view is None:
            yield f"No run has seen the view. {self.catalog.to_begin(session)}"
            return
        if of_view.state is not State.FILLED:
            why = f", {of_view.reason}" if of_view.reason else ""
            yield f"It is {of_view.state}{why}; it must be filled. See viewtail status"
        if of_view.parked:
            yield f"{counted(of_view.parked, 'keys')} parked: viewtail dead-letters list {self.view.id}"
        for pipeline in pipelines:
            if pipeline.state != PipelineState.RUNNING:
                yield f"Pipeline {pipeline.name} is {pipeline.state}; it must run: viewtail status"
        copies = {name for _, name in known_views(session, self.catalog.database) if view_of(name) == self.view.id}
        if len(copies) > 1:
            yield f"A copy is beside it. Drop that: viewtail rebuild {self.view.id} --abort"
        yield from release.obstacles()

    def _masked(self) -> Iterator[str]:
        """Whoever drops the old tables would lose what is masked."""
        masked = [column.name for column in self.view.table.columns if column.mask and column.name in self.view.needed]
        if masked:
            yield (
                f"Masked in it: {', '.join(masked)}. The values would be lost with the old tables: say "
                f"unmasked={masked!r} of the view, or leave them out of it"
            )

    def _left_out(self) -> Iterator[str]:
        """What the old tables have, and the view's does not."""
        entity, shown = self.view.table, {column.name for column in (*self.view.key, *self.view.values)}
        if self.view.view.where is not None:
            yield f"where= keeps rows of {entity.full_name} out of it"
        left = [column.name for column in entity.columns if column.name not in shown]
        if left and not self.view.view.computed:
            yield f"columns of {entity.full_name} that it does not have: {', '.join(left)}"

    # -- the steps ----------------------------------------------------------------------------------------------

    def _proven(self, release: Release, run: Run, *, is_read_only: bool) -> Proof:
        with ViewAccess(self.catalog, self.view, self.stop, self.say) as beside:
            beside.check()
            beside.require_none_paused()
            while True:
                proof = self._attempt(beside, release, run, is_read_only=is_read_only)
                if proof is not None:
                    return proof

    def _attempt(self, beside: ViewAccess, release: Release, run: Run, *, is_read_only: bool) -> Proof | None:
        """Compare all; None if rows came meanwhile."""
        self._require_wanted(run)
        beside.shown_now()
        before, began = release.content(), time.monotonic()
        report = self._compared(beside)
        while time.monotonic() - began < QUIET_S and not is_read_only:
            self._pause()
            self._require_wanted(run)
        through = datetime.now(UTC)
        beside.shown_now()
        beside.check()
        if not is_read_only and (report.counts.changing or release.content() != before):
            self.say(
                f"rows of {self.view.table.full_name} are written still. Stop the application's writes there; this "
                "begins again until none comes"
            )
            return None
        if not report.is_equal or beside.parked():
            raise ViewtailError(
                f"view {self.view.id} is not equal to its table, and nothing was changed. To see where, and mend it: "
                f"viewtail verify {self.view.id} --repair"
            )
        return Proof(report=report, through=f"{through:%Y-%m-%d %H:%M:%S} UTC", is_promised=is_read_only)

    def _compared(self, beside: ViewAccess) -> Report:
        # No pass that was stopped is gone on with: all is compared after this moment.
        what = f"compare before the cutover, from {datetime.now(UTC).isoformat()}"
        run = Run(beside.session, self.catalog.database, "verify", self.view.id, what, self.view.fingerprint)
        with self.progress() as show:
            verify = Verify(
                beside=beside, run=run, throttle=Throttles(), say=lambda counts, estimate: show(counts.rows, estimate)
            )
            return verify.execute()

    def _hand_over(self, release: Release, run: Run) -> None:
        """While it happens nobody can abort it."""
        with closing(self.catalog.servers.open_source()) as source:
            number = next_number(source, self.view.canonical)
        with transaction(run.session, "releasing a table") as cursor:
            if not runs.is_running(cursor, self.catalog.database, run.id):
                raise self._aborted()
            if self.stop.is_set():
                raise StopRequested
            with closing(self.catalog.session()) as session:  # the comparison may have taken hours
                if missing := [*self._missing(session, *self._now(), release)]:
                    raise ViewtailError(f"view {self.view.id}: nothing was changed. {'. '.join(missing)}")
            release.release(number)
        failpoints.reach("after release")

    def _record(self, release: Release, run: Run) -> str:
        by, at = this_person(), release.released_at()
        proof = run.progress.get("proof") or "its proof was cut off with the command that released it"
        reason = f"released on {at} by {by}"
        for pipeline, _ in self._keepers(run.session):
            states = ViewStates(run.session, self.catalog.database, pipeline.name)
            states.move(Event.RELEASED, [self.view.id], reason=reason)
        release.clear()
        record = f"{reason}: {proof}"
        run.end(RunState.DONE, record)
        return record

    def _keepers(self, session: Session) -> list[Keeper]:
        names = [pipeline.name for pipeline in self.catalog.pipelines()]
        return keepers(session, self.catalog.database, self.view.id, names)

    # -- waiting ------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        if self.stop.wait(0.2):
            raise StopRequested

    def _require_wanted(self, run: Run) -> None:
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = time.monotonic()
        with transaction(run.session, "looking whether a cutover is wanted") as cursor:
            if not runs.is_running(cursor, self.catalog.database, run.id):
                raise self._aborted()

    def _aborted(self) -> MisuseError:
        return MisuseError(f"view {self.view.id}: somebody aborted the cutover; nothing was changed")

    def _give_up(self, run: Run, error: BaseException) -> None:
        with transaction(run.session, "giving a cutover up") as cursor:
            is_wanted = runs.is_running(cursor, self.catalog.database, run.id)
        if is_wanted:
            run.end(RunState.STOPPED, str(error) or "stopped")

    def _last(self, session: Session) -> Past | None:
        with transaction(session, "reading the record") as cursor:
            past = runs.read(cursor, self.catalog.database, [KIND], 1_000)
        return next((run for run in past if run.view == self.view.id and run.state == RunState.DONE), None)

    @contextmanager
    def _release(self) -> Iterator[Release]:
        store = store_of(self.view.view)
        release = store.release(self.catalog.access(store), self.view)
        if release is None:
            raise MisuseError(f"view {self.view.id} is no table that an application could write: only a MySQLTable is")
        with closing(release):
            yield release
