"""Why a view shows what it shows of one entity: its row, the view, the pipeline, its dead letter, its last change.

Everything is read, nothing is written but a watermark. The verdict names what is so, and the command to run next.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from ingest import History, TimedSource
from offsets.dead_letters import Letter
from offsets.fan_outs import FanOut
from offsets.keepers import Keeper
from offsets.views import GETS_NOTHING, State
from projectors.binding import made_by
from projectors.derived.postponed import keys_in
from projectors.proving.changed_keys import Change, LookBack, Looked
from projectors.proving.comparison import Comparison, Expected
from projectors.proving.view_access import ViewAccess
from projectors.stores import NOTHING_HELD, Held, Unfit
from projectors.stores.owners import TO_TAKE_OVER
from viewtail.changes.errors import MisuseError, StopRequested, ViewtailError, WatermarkMissingError, once
from viewtail.changes.repeating import looks
from viewtail.changes.versions import parts_of
from viewtail.changes.writes import Key
from viewtail.operations.looked_back import moment, notes, place_of
from viewtail.operations.replay import has_copy_of
from viewtail.operations.status import PipelineStatus

SETTLED_WITHIN_S = 5.0  # so long the pipeline may take to come to this moment
READ_FOR_S, READ_BYTES = 15.0, 1 << 30  # of the binlog, backwards for the last change; the newest file has no bound
_CANNOT_BE = "the row cannot be projected or stored"
_ELSEWHERE = ". Other sets are not searched for it here; `viewtail verify` does"


class Verdict(StrEnum):
    """The verdicts that there are."""

    CURRENT = "current"  # the view shows the row as it is
    ABSENT = "rightly absent"  # there is no row, and the view shows none
    KEPT_OUT = "kept out by where"  # the row does not belong in the view, and is not there
    BEHIND = "behind"  # the pipeline has not come to this moment
    PARKED = "parked"  # the row cannot be in the view
    HALTED = "halted"  # the view gets no changes
    PAUSED = "paused"  # the same, as an operator wants it
    FILLING = "filling"  # the view is being backfilled
    WRONG = "wrong"  # nothing will mend it by itself

    @property
    def is_well(self) -> bool:
        """Return whether the view shows of the entity what it must."""
        return self in (Verdict.CURRENT, Verdict.ABSENT, Verdict.KEPT_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All of it."""

    view: str
    key: str
    verdict: Verdict
    why: str  # in words
    run_next: str  # a command; '' where there is nothing to do
    has_row: bool
    row_version: int | None  # of its last change, or from its version column; None: not known
    row_at: str | None  # when that was committed, UTC
    held: Held | None  # None: the store has nothing of it
    held_at: str | None  # when the change that the view shows was committed, UTC
    held_place: str | None  # where the change that the view shows stands in the binlog
    pipeline: PipelineStatus
    letter: Letter | None
    change: Change | None
    change_at: str | None  # UTC
    change_note: str  # why none is known, or how far it was looked for


class Judgement(NamedTuple):
    """A verdict on one entity."""

    verdict: Verdict
    why: str  # in words
    run_next: str  # a command; '' where there is nothing to do


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Facts:
    """The facts that are known before anything is waited for."""

    key: Key
    name: str  # the rendered key
    keeper: Keeper
    pipeline: PipelineStatus
    expected: Expected  # by the row as it is now
    has_row: bool
    held: Held
    letter: Letter | None

    @property
    def quoted(self) -> str:
        """The key as an argument of a command."""
        return self.name if re.fullmatch("[\\w:.%@+-]+", self.name) else shlex.quote(self.name)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Why:
    """A question about one entity, which is asked once.

    Args:
        status: by name, the pipelines as they are now.
        history: the source's, for a reader that nobody else uses; None where it is no binlog.
    """

    beside: ViewAccess
    status: Callable[[], Mapping[str, PipelineStatus]]
    history: Callable[[], History | None]

    def of(self, key: Key) -> Answer:
        """Return the answer. Raises ViewtailError where the source or the store does not answer."""
        self.beside.require_not_paused(key)
        if (before := self.beside.kept_as_before()) is None:
            return self._answer(key, "")
        try:
            return self._answer(key, before)
        except ViewtailError as error:  # a column that only the new declaration has, for one
            raise MisuseError(f"{before}, then try again. By views.py as it is now: {once(error)}") from None

    def _answer(self, key: Key, before: str) -> Answer:
        """`before`: that the running viewtail keeps the view by an older declaration than the one that judges here."""
        comparison = self.beside.comparison()
        facts = self._facts(comparison, key)
        judgement = _by_which(before, self._judgement(comparison, facts))
        held = facts.held if judgement.verdict.is_well else self._held(comparison, key, facts.keeper)
        looked, note = self._looked(key, held)
        change = _change_to_tell(looked, judgement.verdict)
        row_version, row_at = self._row_change(facts, looked)
        return Answer(
            view=self.beside.view.id,
            key=facts.name,
            verdict=judgement.verdict,
            why=judgement.why,
            run_next=judgement.run_next,
            has_row=facts.has_row,
            row_version=row_version,
            row_at=row_at,
            held_at=_committed(looked.shown),
            held=None if held == NOTHING_HELD else held,
            held_place=self._place(held, facts.pipeline),
            pipeline=facts.pipeline,
            letter=facts.letter,
            change=change,
            change_at=_committed(change),
            change_note=note,
        )

    def _facts(self, comparison: Comparison, key: Key) -> _Facts:
        keeper = self._keeper()
        pipeline = self.status()[keeper.pipeline.name]
        expected, has_row = self._expected(comparison, key)
        held, name = self._held(comparison, key, keeper), comparison.name_of(key)
        return _Facts(
            key=key,
            name=name,
            keeper=keeper,
            pipeline=pipeline,
            expected=expected,
            has_row=has_row,
            held=held,
            letter=self.beside.letter_of(name),
        )

    def _row_change(self, facts: _Facts, looked: Looked) -> tuple[int | None, str | None]:
        """The version of the row's last change, and when that was committed, as far as they are known."""
        if not facts.has_row:
            return None, None
        last = looked.last if looked.is_sure else None
        if self._has_column:
            write = facts.expected.writes.get(facts.key)
            return None if write is None else write[0], _committed(last)
        return None if last is None else last.version, _committed(last)

    def _held(self, comparison: Comparison, key: Key, keeper: Keeper) -> Held:
        if self._is_of_another(keeper):
            return _OF_ANOTHER  # it may have other columns, or another form
        return comparison.reader.held([key]).get(key, NOTHING_HELD)

    def _is_of_another(self, keeper: Keeper) -> bool:
        """Return whether readers have what no declaration of views.py made, and nothing keeps."""
        return keeper.view.state == State.HALTED and made_by(self.beside.view, keeper.view.declaration) is None

    def _is_built_beside(self, keeper: Keeper) -> bool:
        """Return whether what views.py declares is in a copy beside what readers have of something else."""
        known = self.beside.catalog.known_views(self.beside.session)
        return self._is_of_another(keeper) and has_copy_of(self.beside.view.view, known)

    # -- the verdict --------------------------------------------------------------------------------------------

    def _judgement(self, comparison: Comparison, facts: _Facts) -> Judgement:
        besides = _ELSEWHERE if comparison.reader.has_orphans else ""
        well = _well(facts.key, facts.expected, has_row=facts.has_row, besides=besides)
        judgement = well if _is_equal(comparison, facts) else self._what_is_wrong(comparison, facts) or well
        if judgement.verdict.is_well and (problem := comparison.reader.pointer_problem()):
            return Judgement(Verdict.WRONG, problem, f"viewtail verify {self.beside.view.id} --repair")
        kept = facts.keeper.view
        if judgement.verdict.is_well and kept.state in GETS_NOTHING:
            how = f"{kept.state} {kept.pause}" if kept.pause is not None else kept.state
            return judgement._replace(why=f"{judgement.why}; but the view gets no changes: it is {how}")
        return judgement

    def _what_is_wrong(self, comparison: Comparison, facts: _Facts) -> Judgement | None:
        """Return why the view does not show the row; None where it will once the pipeline has come to it."""
        view = self.beside.view.id
        if facts.keeper.view.state != State.FILLED:
            return _unfilled(facts.keeper, view, is_built_beside=self._is_built_beside(facts.keeper))
        if facts.letter is not None or facts.name in facts.expected.parked:
            return _parked(facts, view)
        return self._late(facts) or self._unsettled(comparison, facts)

    def _unsettled(self, comparison: Comparison, facts: _Facts) -> Judgement | None:
        """Return what differs still after the pipeline has passed this moment."""
        view, settled = self.beside.view.id, comparison.settle([facts.key])
        for mismatch in settled.found:
            again = f"viewtail replay {view} --key {facts.quoted}"
            mend = f"viewtail verify {view} --repair" if mismatch.is_unexplained else again
            return Judgement(Verdict.WRONG, mismatch.why, mend)
        if settled.parked:
            return Judgement(Verdict.PARKED, _CANNOT_BE, f"viewtail dead-letters show {view} {facts.quoted}")
        if settled.changing:
            return Judgement(Verdict.BEHIND, "the row changed at each look", f"viewtail why {view} {facts.quoted}")
        return None

    def _late(self, facts: _Facts) -> Judgement | None:
        """Return why the view has not come to this moment; None where it does soon."""
        pipeline, name = facts.pipeline, facts.keeper.pipeline.name
        if not self.beside.is_run():
            why = f"no viewtail runs pipeline {name}; the view stands at {pipeline.position}"
            return Judgement(Verdict.BEHIND, why, "viewtail run")
        if pipeline.paused is not None:
            why = f"pipeline {name} is paused {pipeline.paused}"
            return Judgement(Verdict.BEHIND, why, f"viewtail resume --pipeline {name}")
        try:
            version = self.beside.watermarks.now_within(self.beside.stop, SETTLED_WITHIN_S)
            if version is not None:
                return self._fanning_out(version, facts.key)
        except WatermarkMissingError as error:
            return Judgement(Verdict.BEHIND, str(error), "viewtail check")
        lag = f"{pipeline.lag_s:.0f} s, as it last said" if pipeline.lag_s else "this moment"
        why = f"pipeline {name} is behind by {lag} ({pipeline.state})"
        return Judgement(Verdict.BEHIND, why, "viewtail status")

    def _fanning_out(self, version: int, key: Key) -> Judgement | None:
        """Return which fan-out may not have come to the entity; None where none is under way any more soon."""
        under_way: list[FanOut] = []
        for _ in looks(self.beside.stop, SETTLED_WITHIN_S):
            under_way = [of for of in self.beside.fan_outs(version) if key in (keys_in(of.what) or [key])]
            if not under_way:
                return None
        return Judgement(Verdict.BEHIND, str(under_way[0]), "viewtail status")

    def _expected(self, comparison: Comparison, key: Key) -> tuple[Expected, bool]:
        """Project the row as it is now, whatever the pipeline has passed; also return whether there is a row."""
        rows = self.beside.rows_now
        matching = [row for row in rows.having(self.beside.view.key, [key], 1) if self._key_of(row) == key]
        return comparison.projected(matching, 1), bool(matching)

    def _key_of(self, row: tuple[Any, ...]) -> Key:
        view = self.beside.view
        names = [column.name for column in view.table.columns if column.name in view.needed]
        return tuple([row[names.index(column.name)] for column in view.key])

    # -- what is known besides ----------------------------------------------------------------------------------

    def _keeper(self) -> Keeper:
        """The pipeline where the view is least well."""
        order = [State.RELEASED, State.HALTED, State.PAUSED, State.NEW, State.BACKFILLING, State.FILLED]
        return min(self.beside.keepers(), key=lambda keeper: order.index(keeper.view.state))

    def _place(self, held: Held, pipeline: PipelineStatus) -> str | None:
        """Return where in the binlog the change is that the view shows; None where its version does not say."""
        if held.version is None or self._has_column or pipeline.position is None:
            return None
        if not self.beside.catalog.servers.kind.has_rows:
            _, number, position = parts_of(held.version)
            return f"file {number}:{position}"  # of the server that the topic is fed from, whose names are not known
        return place_of(held.version, pipeline.position)

    @property
    def _has_column(self) -> bool:
        return self.beside.view.view.entity.version is not None

    def _looked(self, key: Key, held: Held) -> tuple[Looked, str]:
        """Return what the binlog says of the entity, and in words what it does not."""
        try:
            history = self.history()
            if history is None or not isinstance(history.reader({}, {}), TimedSource):
                return Looked(), "not looked for: only a binlog is searched by key, and the source is none"
            looked = LookBack(
                history=history,
                view=self.beside.view,
                key=key,
                version=None if self._has_column else held.version,
                token=self.beside.watermarks.writer.mark_end(),
                most_bytes=READ_BYTES,
                within_s=READ_FOR_S,
                stop=self.beside.stop,
                in_snapshot=self.beside.in_snapshot,
            ).execute()
        except StopRequested:
            raise
        except ViewtailError as error:
            return Looked(), f"not looked for: {once(error)}"
        told = notes(looked, held, within_s=READ_FOR_S, has_version_column=self._has_column)
        return looked, "; ".join(told)


def _is_equal(comparison: Comparison, facts: _Facts) -> bool:
    with suppress(Unfit, ValueError, TypeError):
        is_parked = facts.name in facts.expected.parked
        return not is_parked and comparison.is_shown(facts.key, facts.held, facts.expected)
    return False


def _change_to_tell(looked: Looked, verdict: Verdict) -> Change | None:
    """The entity's last change, or the newer one that removed its row, which may be what is wrong."""
    changes = [looked.last, looked.removed if verdict is Verdict.WRONG else None]
    return max(filter(None, changes), key=lambda change: change.version, default=None)


_OF_ANOTHER = Held(None, None, "what another declaration than that of views.py made, so it was not looked at")


def _by_which(before: str, judgement: Judgement) -> Judgement:
    if not before:
        return judgement
    why = f"{before}. By views.py as it is now: {judgement.why}"
    return Judgement(judgement.verdict, why, "" if judgement.verdict.is_well else "restart viewtail run")


def _unfilled(keeper: Keeper, view: str, *, is_built_beside: bool) -> Judgement:
    if keeper.view.state == State.HALTED:
        mend = f"viewtail rebuild {view}" if is_built_beside else f"viewtail replay {view}"
        if TO_TAKE_OVER in (keeper.view.reason or ""):
            mend = "viewtail check"  # another deployment has its place: which of several mends is an operator's to say
        return Judgement(Verdict.HALTED, keeper.view.reason or "", mend)
    if keeper.view.state == State.RELEASED:
        return Judgement(Verdict.HALTED, f"the view was {keeper.view.reason}", "take it out of views.py")
    if keeper.view.state == State.PAUSED:
        return Judgement(Verdict.PAUSED, "the view gets no changes until it is resumed", f"viewtail resume {view}")
    return Judgement(Verdict.FILLING, "the view is being backfilled", "viewtail status")


def _parked(facts: _Facts, view: str) -> Judgement:
    letter = facts.letter
    if letter is not None and letter.waits:
        return Judgement(Verdict.PARKED, letter.cause, "")
    if letter is not None and facts.held.fault and facts.name not in facts.expected.parked:
        # What is in its place keeps it out; a replay goes past the same guard, and is refused as well.
        why = f"{letter.cause}; or have a repair write the row in its place"
        return Judgement(Verdict.PARKED, why, f"viewtail verify {view} --repair")
    reason = letter.cause if letter is not None else _CANNOT_BE
    again = "first correct that, in the row, in views.py or in the store: until then it is parked again"
    return Judgement(Verdict.PARKED, f"{reason}; {again}", f"viewtail replay {view} --key {facts.quoted}")


def _well(key: Key, expected: Expected, *, has_row: bool, besides: str) -> Judgement:
    write = expected.writes.get(key)
    if write is not None and write[1] is not None:
        return Judgement(Verdict.CURRENT, f"the view shows the row as it is{besides}", "")
    if not has_row:
        return Judgement(Verdict.ABSENT, f"the table has no such row, and the view shows none{besides}", "")
    why = f"the row does not belong in the view (where, or its function), and is not there{besides}"
    return Judgement(Verdict.KEPT_OUT, why, "")


def _committed(change: Change | None) -> str | None:
    return None if change is None else moment(change.origin.committed_us)
