"""Rebuilds a view beside the one that readers read, then swaps the two.

1. A copy is asked for. The process that runs the view's pipeline makes its place and backfills it under live writes.
2. The filled copy is compared with its table (`Proof`); one that differs is not swapped.
3. The swap is asked for; the process does it, and readers have the copy from one moment to the next.
4. The former copy is kept up to date until its time is over: `roll_back` is the same swap the other way.

What was asked for is in MySQL, so each of these may be cut off, and goes on when it is asked for again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from offsets import dead_letters
from offsets.copies import CHANGING_PLACES, SWAP_AGAIN_S, Choice, Copies, Copy, Event, Goal, Stage, Step, next_step
from offsets.views import State, ViewRecord
from projectors.binding import declaration_hash, made_by
from projectors.catalog import Catalog
from projectors.proving.view_access import ViewAccess
from projectors.stores.registry import store_of
from projectors.throttle import Throttle
from projectors.views import BoundView, View
from viewtail.changes.copy_ids import view_of
from viewtail.changes.counting import agreeing, counted
from viewtail.changes.errors import MisuseError, StopRequested, ViewtailError
from viewtail.changes.pipelines import PipelineId
from viewtail.operations.runs import COMPARISON, Run
from viewtail.operations.status import PipelineStatus, ViewStatus, pipelines_now
from viewtail.operations.verify import Report, Verify

LOOK_EVERY_S = (0.5, 2.0)  # first, and at most: each look is work for the server that live changes go to
LOOKS_SHARE = 0.05  # of the time that it has taken, between two looks
SHOWN = 5  # entities in a sentence


def compared(beside: ViewAccess, throttle: Throttle, what: str, *, accepts_parked: bool = False) -> list[str]:
    """Compare a copy in a whole pass, which writes nothing; return what keeps readers from it, a sentence each.

    Raises ViewtailError, StopRequested; it goes on where it was. `what`: for the record. Two of one kind do not run at
    once.
    """
    if not accepts_parked and (parked := parked_alone(beside)):
        return parked  # known at once; the comparison takes long
    run = Run(beside.session, beside.catalog.database, COMPARISON, beside.view.id, what, beside.view.fingerprint)
    report = Verify(beside=beside, run=run, throttle=throttle).execute()
    return differences(report) + ([] if accepts_parked else parked_alone(beside))


def parked_alone(beside: ViewAccess) -> list[str]:
    """Return what keeps readers from the copy, a sentence: keys that are parked in it, and not in what they have."""
    copy, live = beside.view.id, beside.view.view.id
    count, keys = dead_letters.parked_alone(beside.session, beside.catalog.database, copy, live, SHOWN)
    if not count:
        return []
    how = f"why: viewtail dead-letters list {copy}; to swap all the same: viewtail rebuild {live} --accept-parked"
    return [
        f"{counted(count, 'keys', 'are')} parked in the copy and not in what readers have ({how}), {_such_as(keys)}"
    ]


def differences(report: Report) -> list[str]:
    """Return what keeps readers from the copy, a sentence each; `parked_alone` reports parked keys."""
    lines = [f"{counted(count, 'entities', 'are')} {kind}" for kind, count in sorted(report.counts.differing.items())]
    if report.found:
        lines.append(_such_as([mismatch.name for mismatch in report.found[:SHOWN]]))
    if report.foreign:
        foreign = counted(report.counts.foreign, "keys")
        lines.append(f"{foreign} that viewtail did not write {agreeing(report.counts.foreign, 'are')} in its place")
    return lines


def _such_as(keys: Sequence[str]) -> str:
    """It calls them keys: `viewtail forget` finds one by that (own_traces.py)."""
    return f"such as key{'s' * (len(keys) > 1)} {', '.join(keys)}"


class Proof(Protocol):
    """Compares a copy with its table while both change; returns what differs, a sentence each."""

    def __call__(self, copy: BoundView, stop: threading.Event, *, is_hurried: bool) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a rebuild."""

    stage: str  # building, verifying, swapping, dropping
    copy: ViewStatus | None  # that is filled, or moved into place; None: the pipeline's process has not begun it
    remark: str | None  # what it waits for
    moved_count: int | None = None  # entities, of copies that change places one entity after the other


Say = Callable[[Progress], None]


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """Rebuilds one view. Each method returns when it is done, and raises StopRequested when `stop` is set before.

    Raises MisuseError for what cannot be asked of this view, ViewtailError for what failed.
    """

    catalog: Catalog
    view: BoundView
    say: Say
    stop: threading.Event
    _began_at: float = field(default_factory=time.monotonic, init=False)

    def rebuild(self, proof: Proof, started_by: str, *, keep_s: int, is_held: bool, is_hurried: bool = False) -> Copy:
        """Have readers get the newest copy, which is built first; `is_held` waits before the swap.

        `is_hurried`: it gives no way to live changes, from now on.
        Called again it goes on where it was; behind the swap it changes nothing.
        """
        with self._records() as records:
            live = records.states.read(self.view.id)
            if live.state is State.RELEASED:
                raise MisuseError(f"view {self.view.id} was {live.reason}: its table is no view any more")
            if live.state is State.PAUSED:
                raise self._cannot_go_on(records, None, Step.RESUME)
            if not records.begin(self.view.id, started_by, keep_s, is_hurried=is_hurried):
                (part, *_) = records.paused_parts(self.view.id)
                raise MisuseError(
                    f"view {self.view.id} cannot be rebuilt: {part}, and a copy would lack the rows that readers have "
                    f"of it. First: {part.to_go_on}"
                )
            copy = self._settled(records, self._now(records))
            if copy.stage is Stage.DROPPING:
                raise self._cannot_go_on(records, copy, Step.GONE)
            return self._drive(records, copy, Goal.NEWEST, proof, keep_s=keep_s, is_held=is_held)

    def roll_back(self) -> Copy:
        """Have readers get the former copy again, which was kept up to date. Called again it changes nothing."""
        with self._records() as records:
            copy = self._present(records)
            if copy.is_paused:
                raise self._cannot_go_on(records, copy, Step.RESUME)
            copy = self._settled(records, copy)
            if copy.stage is not Stage.KEPT:
                raise MisuseError(
                    f"view {self.view.id} was not swapped, its copy is {copy.stage}: there is nothing to go back to"
                )
            return self._drive(records, copy, Goal.FORMER, None, keep_s=None)

    def require_copy(self) -> None:
        """Raises MisuseError where there is no copy beside the live one."""
        with self._records() as records:
            self._present(records)

    def abort(self) -> bool:
        """Drop the copy beside the live one: one that is being built, or the former one before its time.

        Returns whether viewtail builds another one by itself: no declaration of views.py keeps what readers have.
        """
        with self._records() as records:
            copy = self._settled(records, self._present(records))
            if copy.stage is Stage.BUILDING:
                records.decline(copy)
            records.move(copy, Event.DROP_ASKED)
            while (now := records.read().get(self.view.id)) is not None and now.copy == copy.copy:
                self._wait("dropping", records.pipeline)
            live, declaration = records.live(self.view.id)
            if now is not None and live == copy.copy:
                raise ViewtailError(
                    f"copy {copy.copy} of view {self.view.id} was swapped in before it could be dropped: readers have "
                    "it"
                )
            return copy.stage is Stage.BUILDING and made_by(self.view, declaration) is None

    # -- steps --------------------------------------------------------------------------------------------------

    @contextmanager
    def _records(self) -> Iterator[Copies]:
        """Return the records of the view's pipeline. Raises MisuseError where the store keeps no second copy."""
        if why := store_of(self.view.view).no_copies(self.view.view):
            raise MisuseError(f"view {self.view.id} cannot be rebuilt: {why}")
        with closing(self.catalog.session()) as session:
            rows: dict[str, list[ViewRecord]] = {}
            for (pipeline, name), row in self.catalog.known_views(session).items():
                if view_of(name) == self.view.id:
                    rows.setdefault(pipeline, []).append(row)
            records = Copies(session, self.catalog.database, only_pipeline(self.view.view, rows))
            last = records.records().get(self.view.id)
            check_is_kept(self.view.view, rows[records.pipeline], None if last is None else last.choice)
            yield records

    def _drive(
        self, records: Copies, copy: Copy, goal: Goal, proof: Proof | None, *, keep_s: int | None, is_held: bool = False
    ) -> Copy:
        """Take one step after another until readers have what they are to have.

        The pipeline's process takes steps too, and so may another command, so each one begins with what is there then.
        Without a proof nothing is compared.
        """
        is_proven = proof is None
        while True:
            step = _next_step(copy, goal, is_proven=is_proven)
            if step in (Step.DONE, Step.DROP) or (step is Step.SWAP and is_held):
                return copy
            is_proven = proof is None  # a copy that was not filled, or not swapped, since is compared again
            if step is Step.SWAP:
                copy = self._swap(records, copy, keep_s)
                continue
            if step is Step.WAIT:
                copy = self._settled(records, copy)
                continue
            if step is Step.COMPARE and proof is not None:
                is_proven = self._is_proven(proof, records, copy)
            elif step is Step.FILL:
                self._wait("building", records.pipeline, copy.copy_id)
            else:
                raise self._cannot_go_on(records, copy, step)
            copy = self._now(records, copy)

    def _cannot_go_on(self, records: Copies, copy: Copy | None, step: Step) -> ViewtailError:
        """Return the message for an operator whose next step is not viewtail's."""
        view = self.view.id
        if step is Step.RESUME:
            return ViewtailError(
                f"view {view} is paused: readers keep what they have, and nothing is swapped. A copy beside it "
                f"stays. First: viewtail resume {view}; then this command again"
            )
        if step is Step.MEND and copy is not None:
            record = records.states.read(copy.copy_id)
            return ViewtailError(
                f"the copy beside view {view} is {record.state}: {record.reason or 'it gets no changes'}. Readers have "
                f"the view as it was. Mend that, drop the copy (viewtail rebuild {view} --abort) and begin again"
            )
        return MisuseError(f"the copy beside view {view} is being dropped; ask again in a moment")

    def _is_proven(self, proof: Proof, records: Copies, copy: Copy) -> bool:
        """Compare the copy; False where a running viewtail swapped it meanwhile, which compares copies itself.

        Raises ViewtailError where it differs, or cannot be compared.
        """
        self.say(Progress(stage="verifying", copy=None, remark=None))
        beside = replace(self.view, copy=copy.copy, is_beside=True)
        try:
            if differences := proof(beside, self.stop, is_hurried=copy.is_hurried):
                raise ViewtailError(
                    f"the copy beside view {self.view.id} is not as its table is, and was not swapped: "
                    f"{'; '.join(differences)}. Readers have the view as it was. Ask again, or drop the copy: "
                    f"viewtail rebuild {self.view.id} --abort"
                )
        except ViewtailError:
            if self._now(records, copy).copy == copy.copy:
                raise
            return False
        return True

    def _swap(self, records: Copies, copy: Copy, keep_s: int | None) -> Copy:
        """Ask, and wait until it was done or refused; a refusal is told, and waited out. Returns the copy then."""
        records.move(copy, Event.SWAP_ASKED, keep_s=keep_s)
        copy = self._settled(records, self._now(records, copy))
        if copy.note is not None:
            self.say(Progress(stage="swapping", copy=None, remark=copy.note))
            self._pause(SWAP_AGAIN_S)
        return copy

    def _settled(self, records: Copies, copy: Copy) -> Copy:
        """The copy when nothing is asked for any more."""
        while copy.stage in CHANGING_PLACES:
            if copy.stage is Stage.MOVING:
                self._wait("swapping", records.pipeline, self.view.id, copy.moved_count)
            else:
                self._wait("swapping", records.pipeline)
            copy = self._now(records, copy)
        return copy

    def _now(self, records: Copies, before: Copy | None = None) -> Copy:
        """The copy as it is now, which was as `before`. Raises ViewtailError where it was dropped, and not swapped.

        A former copy that no declaration keeps is dropped behind the swap: then the rebuild has ended.
        """
        copy = records.read().get(self.view.id)
        if copy is not None:
            return copy
        if before is not None:
            live, _ = records.live(self.view.id)
            newest, former = max(before.live, before.copy), min(before.live, before.copy)
            if live == newest and (before.is_newest or before.stage is Stage.MOVING):
                return replace(before, live=newest, copy=former, stage=Stage.ENDED, note=None, kept_s=None)
        raise ViewtailError(f"somebody else dropped the copy beside view {self.view.id} meanwhile")

    def _present(self, records: Copies) -> Copy:
        copy = records.read().get(self.view.id)
        if copy is None:
            raise MisuseError(
                f"view {self.view.id} has no copy beside it. To make one: viewtail rebuild {self.view.id}"
            )
        return copy

    def _wait(self, stage: str, pipeline: str, shown: str | None = None, moved_count: int | None = None) -> None:
        """Say how far it is, with the copy of the id `shown`, and wait for a moment."""
        now = pipelines_now(self.catalog).get(pipeline)
        copy = None if shown is None else _view_of(now, shown)
        self.say(Progress(stage=stage, copy=copy, remark=_trouble(pipeline, now), moved_count=moved_count))
        least_s, most_s = LOOK_EVERY_S
        self._pause(min(max(least_s, LOOKS_SHARE * (time.monotonic() - self._began_at)), most_s))

    def _pause(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise StopRequested


def _next_step(copy: Copy, goal: Goal, *, is_proven: bool) -> Step:
    """The next step of a command, which does not wait for a copy of a paused view to be filled and compared."""
    step = next_step(copy, goal, is_proven=is_proven)
    return Step.RESUME if copy.is_paused and step in (Step.MEND, Step.FILL, Step.COMPARE, Step.SWAP) else step


def _view_of(pipeline: PipelineStatus | None, name: str) -> ViewStatus | None:
    views: Sequence[ViewStatus] = () if pipeline is None else pipeline.views
    return next((view for view in views if view.name == name), None)


def _trouble(pipeline: str, now: PipelineStatus | None) -> str | None:
    """Why it does nothing of what was asked for, and what to run."""
    if now is None or now.state == "down":
        return f"no viewtail runs pipeline {pipeline}, which does this. Start one: viewtail run"
    if now.paused is not None:
        return f"pipeline {pipeline}, which does this, is paused. To go on: viewtail resume --pipeline {pipeline}"
    if now.error is not None:
        return f"pipeline {pipeline}, which does this, is {now.state}: {now.error}"
    return None


def only_pipeline(view: View, known: Mapping[str, Sequence[ViewRecord]]) -> str:
    """The one that keeps the view, of `known` by pipeline. Raises MisuseError for a view that has none, or several."""
    if not known:
        raise MisuseError(
            f"view {view.id} was never backfilled, so there is nothing to rebuild. `viewtail run` backfills it first "
            "of all"
        )
    if len(known) > 1 or not PipelineId.parse(next(iter(known))).is_default:
        raise MisuseError(
            f"view {view.id} is kept by {', '.join(sorted(known))}, and a view has a second copy only where one "
            f"pipeline of the binlog keeps it. To project it again in place: viewtail replay {view.id}"
        )
    return next(iter(known))


def check_is_kept(view: View, copies: Sequence[ViewRecord], choice: Choice | None) -> None:
    """Raises MisuseError where the viewtail that ran last did not know this declaration.

    It did where a copy is of it, or where an operator went back from it (`choice`).
    """
    declared = declaration_hash(view)
    is_known = any(copy.declaration in ("", declared) for copy in copies)
    if not is_known and (choice is None or choice.declined != declared):
        raise MisuseError(
            f"views.py declares view {view.id} otherwise than the viewtail that ran last, which does not read views.py "
            "again. Start `viewtail run` again: it backfills the view first"
        )
