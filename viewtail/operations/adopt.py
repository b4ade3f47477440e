"""Takes over what another tool keeps in the places of views: in place, without running viewtail, readers read on.

look      whether it can be, and what it would change
take      1. each place becomes this deployment's, and what is there gets versions below all of viewtail's
          2. views that `viewtail run` halted, since their places were another tool's, are to be backfilled
          Where a place cannot become the view's, readers keep it until a copy of the view takes its place.
fill      the views' pipelines run until the views are filled: each row is written with a watermark's version, and what
          is right already gets only that; changes are applied meanwhile (`keeping` runs them)
replace   such copies are built, compared and swapped in as those of `viewtail rebuild` are; the view that `take` left
          without a place is halted for it until then
prove     each view is compared as a whole while its pipeline goes on, and what is left is mended
          A key that no row is for stays, unless it is to be dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from offsets.copies import Copies, Stage
from offsets.keepers import keepers, known_views
from offsets.lease import lock_name
from offsets.mysql import Session, transaction
from offsets.runs import ADOPTION, note_adopted
from offsets.runs import is_adopted as was_adopted
from offsets.views import KEPT, State, ViewRecord
from projectors import failpoints
from projectors.binding import declaration_hash
from projectors.catalog import Catalog
from projectors.proving.comparison import Difference, Found
from projectors.proving.view_access import ViewAccess
from projectors.stores import UNREADABLE, Adoption
from projectors.stores.registry import store_of
from projectors.throttle import Throttle
from projectors.views import BoundView
from viewtail.changes.errors import MisuseError, StopRequested, StoreError, ViewtailError
from viewtail.changes.repeating import Repeats
from viewtail.operations.audit import require_plain_keys
from viewtail.operations.rebuild import Operation, Progress, Proof
from viewtail.operations.replay import replay, would_replay
from viewtail.operations.runs import Run
from viewtail.operations.status import pipelines_now
from viewtail.operations.verify import Report, Verify

LOOK_EVERY_S = 0.5
SAY_AGAIN_S = 30.0

_ONLY_BINLOGS = (
    "adopt takes views over that are kept from the binlog: set VIEWTAIL_SOURCE__URL to the MySQL server, mode binlog"
)


def check(catalog: Catalog) -> None:
    """Raises MisuseError for views that are not adopted, whatever is in their places."""
    kind = catalog.servers.kind
    if kind.polls or kind.is_shared_out:
        raise MisuseError(_ONLY_BINLOGS)
    for view in catalog.views:
        require_plain_keys(view)
        if view.view.entity.version is not None:
            raise MisuseError(
                f"{view.id}: its entity has a version column, whose values another tool's rows cannot be told from. "
                "Declare it under a new name, let `viewtail run` fill it, and lead the readers there"
            )


@contextmanager
def adoption_of(catalog: Catalog, view: BoundView, *, drops_extra: bool) -> Iterator[Adoption]:
    """What takes the view's place over. Raises StoreError where it cannot be."""
    store = store_of(view.view)
    with closing(store.adoption(catalog.access(store), view)) as adoption:
        if (why := adoption.refusal(drops_extra=drops_extra)) is not None:
            raise StoreError(why)
        yield adoption


@dataclass(eq=False, kw_only=True)
class Adopt:
    """Adopts the views of a catalog, which has viewtail's own tables by then."""

    catalog: Catalog
    stop: threading.Event
    say: Callable[[str], None]
    drops_extra: bool
    _halted: list[BoundView] = field(default_factory=list)
    _beside: list[BoundView] = field(default_factory=list)  # that get a copy in place of what is there
    _filled: set[str] = field(default_factory=set)  # views that an earlier command took over, up to the comparison
    _remarks: Repeats = field(default_factory=lambda: Repeats(SAY_AGAIN_S))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other commands of this kind out meanwhile. Raises MisuseError where one is at it."""
        name = lock_name(self.catalog.database, ADOPTION)
        with closing(self.catalog.session()) as session:
            with transaction(session, "keeping other commands out") as cursor:
                cursor.execute("SELECT GET_LOCK(%s, 0)", (name,))
                is_alone = cursor.fetchone() == (1,)
            if not is_alone:
                raise MisuseError(
                    "another viewtail adopt of this deployment is at work. Wait until it ends, or stop it"
                )
            yield

    def require_free(self) -> None:
        """Raises MisuseError where a viewtail runs, or keeps one of the views already and filled it itself."""
        names = {pipeline.name for pipeline in self.catalog.pipelines()}
        for name, status in pipelines_now(self.catalog).items():
            if name in names and status.state != "down":
                raise MisuseError(
                    f"pipeline {name} is run by a viewtail, which knows nothing of this. Stop `viewtail run`, adopt, "
                    "and start it again: it goes on where it was"
                )
        with closing(self.catalog.session()) as session:
            known = known_views(session, self.catalog.database)
            for view in self.catalog.views:
                states = {record.state for (_, name), record in known.items() if name == view.id}
                self._require_new_or_adopted(session, view, states)

    def _require_new_or_adopted(self, session: Session, view: BoundView, states: set[State]) -> None:
        is_kept = State.FILLED in states and states <= KEPT | {State.NEW}
        if is_kept and was_adopted(session, self.catalog.database, view.id):
            self._filled.add(view.id)
        elif states & {State.FILLED, State.PAUSED, State.RELEASED}:
            raise MisuseError(
                f"{view.id} is this viewtail's already ({', '.join(sorted(states))}): viewtail status. Where another "
                "tool's keys lie in its place all the same, and are parked: take the view out of views.py, give "
                f"viewtail forget {view.id} --keep-data, declare it again, and adopt it"
            )
        if State.HALTED in states:
            self._halted.append(view)

    def take(self) -> None:
        """Take each place over, once none of them is refused."""
        for view in self.catalog.views:
            with adoption_of(self.catalog, view, drops_extra=self.drops_extra):
                pass
        self._begin_anew()
        for view in self.catalog.views:
            if view.id in self._filled:
                self.say(f"{view.id}: was taken over and filled before, and is compared as a whole")
                continue
            self._take(view)
        halted = [view.view for view in self._halted if view not in self._beside]
        if halted:
            replay(self.catalog, halted)

    def _begin_anew(self) -> None:
        """Forget views that `viewtail run` halted before they were ever filled, and that are declared otherwise now.

        Their pipelines meet them as new ones then; with run.on_change "beside" they would have readers keep what is
        there, and build a copy. One such copy is dropped. Raises MisuseError for what needs an operator first.
        """
        would = would_replay(self.catalog, [view.view for view in self._halted])
        for view in [view for view in self._halted if view.id in (*would.redeclared, *would.beside)]:
            with closing(self.catalog.session()) as session:
                for (pipeline, name), record in known_views(session, self.catalog.database).items():
                    if name == view.id:
                        self._forget(view, record, Copies(session, self.catalog.database, pipeline))
            self._halted.remove(view)

    def _forget(self, view: BoundView, record: ViewRecord, records: Copies) -> None:
        if record.filled_at is not None:
            raise MisuseError(f"{view.id} was filled by this viewtail, and halted since: viewtail status says why")
        copy = records.read().get(view.id)
        if copy is not None and copy.stage not in (Stage.BUILDING, Stage.DROPPING):
            raise MisuseError(
                f"{view.id}: readers are to get another copy of it ({copy.stage}). Start `viewtail run`, which "
                "finishes that; adopt it then, if it is halted still"
            )
        store = store_of(view.view)
        if copy is not None and (swapping := store.swapping(self.catalog.access(store))) is not None:
            with closing(swapping):
                swapping.drop(replace(view, copy=copy.live), replace(view, copy=copy.copy, is_beside=True))
        records.forget(view.id)

    def _take(self, view: BoundView) -> None:
        with closing(self.catalog.session()) as session:
            note_adopted(session, self.catalog.database, view.id)
        failpoints.reach("before taking")
        with adoption_of(self.catalog, view, drops_extra=self.drops_extra) as adoption:
            if (why := adoption.beside()) is None:
                self.say(f"{view.id}: taking its place over")
            else:
                self.say(f"{view.id}: a copy is built from the table and takes its place, since {why}")
                self._beside.append(view)
            adoption.take(is_beside=why is not None)
        failpoints.reach("after taking")

    def replace(self, proof: Proof) -> None:
        """Build, compare and swap in the copies, while somebody runs the pipelines. Raises ViewtailError."""
        for view in self._beside:
            if self._settled(view) is State.FILLED:
                continue  # an earlier command, that was cut off, asked for the swap
            rebuild = Operation(catalog=self.catalog, view=view, say=self._say_remark, stop=self.stop)
            try:
                rebuild.rebuild(proof, ADOPTION, keep_s=0, is_held=False, is_hurried=True)
            except MisuseError:  # the former copy is dropped already
                if self._settled(view) is not State.FILLED:
                    raise

    def _say_remark(self, progress: Progress) -> None:
        if progress.remark is not None and self._remarks.is_due(progress.remark):
            self.say(progress.remark)

    def _settled(self, view: BoundView) -> State:
        """Wait until the view's pipeline has met this declaration, and has halted the view, or filled it."""
        while True:
            with closing(self.catalog.session()) as session:
                known = known_views(session, self.catalog.database)
            met = [
                record.state
                for (_, name), record in known.items()
                if name == view.id and record.declaration == declaration_hash(view.view)
            ]
            for state in met:
                if state in (State.HALTED, State.FILLED):
                    return state
            if self.stop.wait(LOOK_EVERY_S):
                raise StopRequested

    def wait_until_filled(self) -> None:
        """Return once the pipelines, which somebody runs, have filled each view. Raises ViewtailError for a halt."""
        pipelines = [pipeline.name for pipeline in self.catalog.pipelines()]
        waiting = list(self.catalog.views)
        while waiting:
            if self.stop.wait(LOOK_EVERY_S):
                raise StopRequested
            with closing(self.catalog.session()) as session:
                waiting = [view for view in waiting if not _is_filled(session, self.catalog.database, view, pipelines)]

    def prove(self, view: BoundView, throttle: Throttle) -> Report:
        """Compare the view as a whole, and mend what is left."""
        with ViewAccess(self.catalog, view, self.stop, self.say) as beside:
            fingerprint = beside.view.fingerprint
            what = "adopt --drop-extra" if self.drops_extra else "adopt"
            run = Run(beside.session, self.catalog.database, "repair", view.id, what, fingerprint)
            is_left = _is_of_another_form if self.drops_extra else _is_extra
            verify = Verify(beside=beside, run=run, throttle=throttle, is_repair=True, is_left=is_left)
            return verify.execute()


def _is_filled(session: Session, database: str, view: BoundView, pipelines: Sequence[str]) -> bool:
    """Raise ViewtailError for one that is halted."""
    records = [record for _, record in keepers(session, database, view.id, pipelines)]
    for record in records:
        if record.state is State.HALTED:
            raise ViewtailError(
                f"view {view.id} was halted: {record.reason}. When that is mended, give the same command again"
            )
    return bool(records) and all(record.state is State.FILLED for record in records)


def _is_extra(mismatch: Found) -> bool:
    return mismatch.difference is Difference.EXTRA


def _is_of_another_form(mismatch: Found) -> bool:
    """A value that no such view has, under a name like those of the view's keys: nobody says that it was meant."""
    return _is_extra(mismatch) and mismatch.held.content == UNREADABLE


def still_differing(report: Report) -> int:
    """How many entities differ that should not: neither written again by now, nor left on purpose."""
    counts = report.counts
    return counts.differing.total() - counts.repaired - counts.left


def is_adopted(report: Report) -> bool:
    """Return whether the view shows what its table says, but for keys that were left on purpose."""
    counts = report.counts
    return not (still_differing(report) or counts.parked or counts.changing)
