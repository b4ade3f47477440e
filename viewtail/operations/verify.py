"""Proves that a view shows what its table says, or says where not, under live writes; writes what is wrong again.

A pass goes through the table by key, chunk by chunk, and through what the store shows besides. What differs at first is
looked at again once the pipeline has passed that moment (projectors/proving/comparison.py), so lag is never taken for
damage. A whole pass that found nothing wrong, or mended all of it and found it equal then, proves the view through the
moment at which it began.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

from ingest.canonical.chunks import row_order
from ingest.canonical.tables import row_estimates
from offsets.dead_letters import Letter
from offsets.fill_keys import key_from_text, key_text
from offsets.keepers import Keeper
from offsets.mysql import Session, transaction
from offsets.runs import RunState
from offsets.view_parts import PartRecord
from offsets.views import note_proven
from projectors.catalog import Catalog
from projectors.proving.comparison import Comparison, Found, Settled
from projectors.proving.view_access import ViewAccess
from projectors.throttle import Throttle
from projectors.views import BoundView
from viewtail.changes.counting import counted
from viewtail.changes.errors import StopRequested, ViewtailError
from viewtail.changes.writes import Key
from viewtail.operations.repair import MOST_LISTED, Repair
from viewtail.operations.runs import Run
from viewtail.operations.version_resets import VersionReset

SUSPECTS_AT_ONCE = 2_000
SAVE_EVERY_S = 5.0
MOST_KNOWN = 100_000  # entities that differ and are known again, should the store show them once more
SAMPLED_ROWS = 100  # of a chunk of a sample; fewer are better spread, and cost more
MOST_PASSED_OVER = 100  # chunks in one step
LED_WITHIN_S = 15.0  # readers, by the running viewtail, once something else leads them
MISLED = "misled"  # counted with the kinds of difference: what leads readers to the view leads elsewhere


@dataclass(slots=True, kw_only=True)
class Counts:
    """The counts of a pass; kept with its progress."""

    rows: int = 0  # of the table, compared
    shown: int = 0  # keys of the store, looked up in the table
    passed_over: int = 0  # rows that a sample left out
    differing: Counter[str] = field(default_factory=Counter)  # by kind of difference, when they were found
    repaired: int = 0
    left: int = 0  # of those that differ, on purpose
    parked: int = 0
    changing: int = 0
    foreign: int = 0
    behind: int = 0  # changed since the place at which a view stands that nobody runs

    @property
    def is_equal(self) -> bool:
        """Return whether the view shows by now what its table says."""
        left = self.differing.total() - self.repaired
        return not (left or self.parked or self.changing or self.foreign)


class StandingView(Protocol):
    """A view whose pipeline nobody runs, or is paused: it gets no changes, while its table may go on changing."""

    @property
    def at(self) -> str:
        """The place in the stream at which the view stands."""

    def changed(self) -> Collection[Key]:
        """The keys that the stream says changed since then, up to the moment at which this is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of one pass over one view."""

    view: str
    counts: Counts
    found: tuple[Found, ...]  # the first MOST_LISTED that differ
    repaired: tuple[Found, ...]  # of these, those that were written again and are equal now
    parked: tuple[str, ...]
    letters: Mapping[str, Letter]  # of these, those that have a dead letter
    foreign: tuple[str, ...]
    misled: str  # how readers were led elsewhere, in a sentence; '' where they were not
    is_equal: bool  # by now
    is_whole: bool  # a pass over all of it, which a sample is not
    proven_through: str | None  # UTC
    lowered: Mapping[str, VersionReset] = field(default_factory=dict)  # by rendered key, of those in `repaired`
    lowered_count: int = 0  # of the run: also before it was stopped, and beyond MOST_LISTED
    behind: int = 0  # entities that changed behind the place at which the view stands, where nobody runs its pipeline
    stands_at: str | None = None  # that place
    paused: tuple[PartRecord, ...] = ()  # one table of many each, which was left out
    took_s: float = 0.0
    estimate: int = 0
    confidence: str = ""


@dataclass(eq=False, kw_only=True)
class Verify:
    """One pass over one view.

    Args:
        is_repair: write what is wrong through the guard, and compare it again.
        is_unasked: nobody asked for the repair (see Repair).
        is_left: whether an entity that differs is not repaired, on purpose.
        share: of the table that is compared; 1.0: all of it.
        say: is called with the counts and the estimate of rows, now and then.
        found: is called with each entity that differs for good, and whether it was mended.
        standing: the view as it stands where nothing is written into it.
    """

    beside: ViewAccess
    run: Run
    throttle: Throttle
    is_repair: bool = False
    is_unasked: bool = False
    is_left: Callable[[Found], bool] = lambda _: False
    share: float = 1.0
    say: Callable[[Counts, int], None] = lambda *_: None
    found: Callable[[Found, bool], None] = lambda *_: None
    standing: Callable[[], StandingView] | None = None
    counts: Counts = field(default_factory=Counts)
    _listed: list[Found] = field(default_factory=list)
    _repaired: list[Found] = field(default_factory=list)
    _parked: set[str] = field(default_factory=set)
    _comparison: Comparison = field(init=False)
    _repair: Repair | None = None  # None: nothing is written
    _estimate: int = 0  # of rows
    _differing: set[Key] = field(default_factory=set)  # what is not repaired, and may come a second time
    save_every_s: float = SAVE_EVERY_S
    _saved_at: float = field(default_factory=time.monotonic)
    _after: str | None = None  # how far the table was compared; its suspects may be unsettled
    _lasting: Counts | None = None  # of `counts`, what is not counted again by a pass that goes on; None: all of it
    _suspects: list[Key] = field(default_factory=list)
    _seed: int = 0
    _stands: StandingView | None = None
    _changed: Collection[Key] = ()  # of a view that stands still; more of them are known later

    def execute(self) -> Report:
        """Compare. Raises ViewtailError; StopRequested where it was stopped: another one goes on where it was."""
        began = time.monotonic()
        beside = self.beside
        beside.check()
        beside.require_place()
        self._stand_still_if_down()
        self.run.begin()
        try:
            return self._execute(began)
        except StopRequested:
            self.run.end(RunState.STOPPED, _words(self.counts))
            raise
        except ViewtailError as error:
            self.run.fail(error)
            raise

    def _execute(self, began: float) -> Report:
        beside = self.beside
        keepers = beside.keepers()
        self._estimate = rows_about(beside.catalog, beside.view)
        self._comparison = beside.comparison()
        if self.is_repair:
            self._repair = Repair(
                beside=beside,
                comparison=self._comparison,
                writer=beside.reprojection,
                run=self.run,
                is_unasked=self.is_unasked,
            )
        self._begin_or_go_on(sum(keeper.view.loss_count for keeper in keepers))
        self._seed = self.run.id
        if not self.run.progress["is_through"]:
            self._through_table()
        if not self._comparison.sees_strangers and self.share == 1.0:
            self._through_store()
        self._settle()
        beside.require_place()
        self.counts.foreign = len(self._comparison.reader.foreign)
        misled = self._misled()
        return self._report(keepers, began, misled)

    def _begin_or_go_on(self, losses: int) -> None:
        """Go on where a stopped pass of this kind was.

        It begins again where the table is read in another order by now, or the view is not what was compared before.
        """
        progress, order, is_standing = self.run.progress, row_order(self.beside.view.table), self._stands is not None
        before = progress.get("order"), progress.get("losses"), progress.get("is_standing", False)
        if before == (order, losses, is_standing):
            self.counts, self._parked = _counts(progress["counts"]), set(progress["parked"])
            self.counts.parked = len(self._parked)
            progress["watermark"] = self.beside.now()  # this process knows no other
            return
        started = _now(self.beside.session)
        resets: dict[str, Any] = {name: progress[name] for name in ("lowered", "lowered_count") if name in progress}
        progress.clear()
        progress |= resets
        progress |= {"order": order, "began_at": started, "watermark": self.beside.now(), "is_through": False}
        progress |= {"losses": losses, "is_standing": is_standing}
        self._save()

    def _stand_still_if_down(self) -> None:
        """A view that gets no changes, since its pipeline is down or paused, is compared as it stands."""
        if self.standing is None or (standstill := self.beside.standstill()) is None:
            return
        if self.is_repair:
            why, mend = standstill
            raise ViewtailError(f"{why}, and what is wrong is written as of a moment that it has passed. {mend}")
        self.beside.is_standing = True
        self._stands = self.standing()
        self._changed = self._stands.changed()

    def _require_standing(self) -> None:
        """Raise ViewtailError where the pipelines go on by now: what differs may be about to come."""
        if self._stands is not None and self.beside.standstill() is None:
            raise ViewtailError(
                f"the pipeline of {self.beside.view.id} was started or resumed meanwhile, so the view does not stand "
                "still any more. Run the same command again: it compares the view while that gets changes"
            )

    def _without_behind(self, mismatches: list[Found]) -> list[Found]:
        """Leave out those that changed since the place at which the view stands.

        A row may have changed after that was asked first: it is asked again once rows that differ have been read.
        """
        if self._stands is None or not mismatches:
            return mismatches
        self._require_standing()
        if any(mismatch.key not in self._changed for mismatch in mismatches):
            self._changed = self._stands.changed()
        left = [mismatch for mismatch in mismatches if mismatch.key not in self._changed]
        self.counts.behind += len(mismatches) - len(left)
        return left

    # -- the pass -----------------------------------------------------------------------------------------------

    def _through_table(self) -> None:
        comparison, progress = self._comparison, self.run.progress
        self._after = progress["after"]
        self.throttle.begin()
        chance = random.Random(f"{self._seed}:{self._after}")
        is_last, to_pass_over = False, _chunks_to_pass_over(chance, self.share)
        while not is_last:
            after, _, _ = key_from_text(self._after)
            if to_pass_over:
                rows = min(to_pass_over, MOST_PASSED_OVER) * SAMPLED_ROWS
                to_pass_over -= min(to_pass_over, MOST_PASSED_OVER)
                last, count = comparison.rows.key_after(after, rows, progress["watermark"]), 0
                self.counts.passed_over += rows if last is not None else 0
            else:
                to_pass_over = _chunks_to_pass_over(chance, self.share)
                chunk, suspects = comparison.look(after, progress["watermark"])
                self._suspects += suspects
                last, count = (None, 0) if chunk is None else (chunk.last_key, len(chunk.rows))
                self.counts.rows += count
                is_last = chunk is not None and chunk.is_last and self.share == 1.0
            if last is None:
                break
            self._after = key_text(last, progress["order"], 0)
            self._go_on(count)
        self._settle()
        progress["is_through"] = True
        self._save()

    def _through_store(self) -> None:
        """Compare what the store shows and the table does not have; begin again where it was stopped."""
        self.counts.shown = 0
        self.throttle.begin()
        self._lasting = _counts(_as_dict(self.counts))
        for count, suspects in self._comparison.orphans(self.run.progress["watermark"]):
            self._suspects += suspects
            self.counts.shown += count
            self._go_on(count)

    def _go_on(self, rows: int) -> None:
        is_stopped = self.beside.stop.is_set()
        is_due = time.monotonic() - self._saved_at > self.save_every_s
        # Settling waits, which one that was stopped does not: what is unsettled is compared again.
        if not is_stopped and (is_due or len(self._suspects) >= SUSPECTS_AT_ONCE):
            self._settle()
            self.throttle.begin()  # most of that is waiting
        if not self._suspects and (is_due or is_stopped):
            self._save()
        self.say(self.counts, self._estimate)
        if is_stopped:
            raise StopRequested
        self.throttle.after(rows)

    def _save(self) -> None:
        """Save how far the pass is, when no suspect waits: a pass that goes on there would never see it again."""
        self.beside.check()  # a view that was halted meanwhile is compared no further
        progress = self.run.progress
        progress["after"], progress["counts"] = self._after, _as_dict(self._lasting or self.counts)
        progress["parked"] = sorted(self._parked)[:MOST_LISTED]
        self.run.save()
        self._saved_at = time.monotonic()

    # -- what differs -------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        suspects, self._suspects = self._suspects, []
        if not suspects:
            return
        settled = self._comparison.settle(suspects)
        settled.found = self._without_behind(settled.found)
        staying, mendable = self._parted(settled.found)
        settled.found = [*staying, *mendable]
        if settled.found:
            self.beside.require_place()  # or all of it differs, and is about to be backfilled
            self.beside.check()
        self.run.progress["watermark"] = max(self.run.progress["watermark"], settled.watermark)
        self._note(settled)
        mended = set[Key]()
        if self._repair is not None:
            self.counts.left += len(staying)
            mended = self._repair.mend(mendable)
        for mismatch in settled.found:
            self.found(mismatch, mismatch.key in mended)
        self._note_repaired([mismatch for mismatch in settled.found if mismatch.key in mended])
        self._save()

    def _parted(self, mismatches: Sequence[Found]) -> tuple[list[Found], list[Found]]:
        """Part those that stay as they are, new ones alone, from those that are mended."""
        if self._repair is None:
            return self._at_first(mismatches), []
        mendable = [mismatch for mismatch in mismatches if not self.is_left(mismatch)]
        return self._at_first([mismatch for mismatch in mismatches if self.is_left(mismatch)]), mendable

    def _at_first(self, mismatches: Sequence[Found]) -> list[Found]:
        """Leave out those that were found before: a store may show a key twice, or in a place besides its own."""
        new = [mismatch for mismatch in mismatches if mismatch.key not in self._differing]
        self._differing.update(mismatch.key for mismatch in new[: MOST_KNOWN - len(self._differing)])
        return new

    def _note_repaired(self, repaired: list[Found]) -> None:
        for counts in (self.counts, self._lasting):
            if counts is not None:
                counts.repaired += len(repaired)
        if self._lasting is not None:
            self._lasting.differing.update(mismatch.difference.value for mismatch in repaired)
        self._repaired += repaired[: MOST_LISTED - len(self._repaired)]

    def _note(self, settled: Settled) -> None:
        for mismatch in settled.found:
            self.counts.differing[mismatch.difference.value] += 1
        self._listed += settled.found[: MOST_LISTED - len(self._listed)]
        self._parked.update(settled.parked)
        self.counts.parked = len(self._parked)
        self.counts.changing += len(settled.changing)

    # -- the end ------------------------------------------------------------------------------------------------

    def _misled(self) -> str:
        """Return how readers are led elsewhere. The pipeline alone puts that right, and a repair waits for it."""
        reader = self._comparison.reader
        first = why = reader.pointer_problem()
        if not first:
            return ""
        self.counts.differing[MISLED] += 1
        began = time.monotonic()
        while why and self.is_repair and time.monotonic() - began < LED_WITHIN_S:
            if self.beside.stop.wait(0.5):
                raise StopRequested
            self.beside.check()
            why = reader.pointer_problem()
        self.counts.repaired += not why
        return why or first

    def _report(self, keepers: Sequence[Keeper], began: float, misled: str) -> Report:
        self._require_standing()
        parked = tuple(sorted(self._parked))[:MOST_LISTED]
        counts, foreign = self.counts, tuple(self._comparison.reader.foreign)
        is_whole = self.share == 1.0
        is_proof = counts.is_equal and is_whole and self._stands is None and not self.beside.paused
        through = self._prove(keepers) if is_proof else None
        self.run.progress["counts"] = _as_dict(counts)
        self.run.end(RunState.DONE, _words(counts))
        return Report(
            view=self.beside.view.id,
            counts=counts,
            found=tuple(self._listed),
            repaired=tuple(self._repaired),
            lowered={} if self._repair is None else self._repair.resets,
            lowered_count=self.run.progress.get("lowered_count", 0),
            parked=parked,
            letters=self.beside.letters_of(parked) if parked else {},
            foreign=foreign,
            misled=misled,
            is_equal=counts.is_equal,
            is_whole=is_whole,
            proven_through=through,
            took_s=time.monotonic() - began,
            estimate=self._estimate,
            confidence="" if is_whole else _confidence(counts, self._comparison),
            behind=counts.behind,
            stands_at=None if self._stands is None else self._stands.at,
            paused=self.beside.paused,
        )

    def _prove(self, keepers: Sequence[Keeper]) -> str:
        """Note that the view is proven, and return through which moment. Raises ViewtailError where it changed."""
        began_at, losses = str(self.run.progress["began_at"]), self.run.progress["losses"]
        ids = [view.id for _, view in keepers]
        if not note_proven(self.beside.session, self.beside.catalog.database, ids, began_at, losses):
            raise ViewtailError(
                f"view {self.beside.view.id} lost something, or was halted, while it was compared: nothing is "
                "proven. Run the same command again"
            )
        return began_at


def rows_about(catalog: Catalog, view: BoundView) -> int:
    """The source's estimate of the rows of a view's table."""
    name = (view.table.schema, view.table.name)
    with closing(catalog.servers.open_source()) as connection:
        return row_estimates(connection, {name}).get(name, 0)


def _now(session: Session) -> str:
    """The time of the server of viewtail's own tables, UTC."""
    with transaction(session, "asking for the time") as cursor:
        cursor.execute("SELECT CAST(CURRENT_TIMESTAMP(6) AS CHAR)")
        return str(cursor.fetchone()[0])


def _as_dict(counts: Counts) -> dict[str, Any]:
    names = ("rows", "shown", "passed_over", "repaired", "left", "parked", "changing", "foreign", "behind")
    return {**{name: getattr(counts, name) for name in names}, "differing": dict(counts.differing)}


def _counts(kept: dict[str, Any]) -> Counts:
    return Counts(**{**kept, "differing": Counter(kept["differing"])})


def _words(counts: Counts) -> str:
    """Return the counts in words, for the record."""
    differing = [f"{count:,} {name}" for name, count in sorted(counts.differing.items())]
    kinds = ", ".join(differing + ([f"{counts.foreign:,} foreign"] if counts.foreign else [])) or "none differs"
    more = f", {counts.repaired:,} repaired" if counts.repaired else ""
    parked = f", {counts.parked:,} parked" if counts.parked else ""
    return f"{counted(counts.rows, 'rows')} compared: {kinds}{more}{parked}"


def _chunks_to_pass_over(chance: random.Random, share: float) -> int:
    """Chunks before the next one that is compared, where each is with this chance."""
    return 0 if share == 1.0 else int(math.log(1 - chance.random()) / math.log(1 - share))


def _confidence(counts: Counts, comparison: Comparison) -> str:
    """The rule of three, where none of so many rows differs."""
    if not counts.rows or counts.differing:
        return ""
    share = min(1.0, 3 / counts.rows)
    extra = "" if comparison.sees_strangers else "; what the view shows and the table does not have was not looked for"
    return f"with 95% confidence fewer than {share:.2%} of the rows differ, if such rows are spread evenly{extra}"
