"""Works off changed rows that many rows depend on: the offset moves on, and these are written page by page.

A fan-out is durable before the offset is saved behind its change (offsets/fan_outs.py). The loop then writes a page of
it whenever no change waits, and now and then where changes come without end. A page is read in a snapshot that shows
all that the loop has come to, and is written under the version of that: so it is newer than everything before, and what
the guard refuses shows the change already. A change of the same rows meanwhile has another pass follow; none begins
again in its middle, so a row that changes all the time holds up nothing.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TypeAlias

import structlog

from ingest import Committed
from offsets.fan_outs import FanOut, FanOutRecords
from projectors import failpoints
from projectors.derived import Dependents, Touched
from projectors.derived.pace import Live, Pace
from projectors.derived.pages import Page, few_and_many, page_of
from projectors.derived.postponed import Postponed, described, keys_in
from projectors.derived.reading import DerivedReader, Slice
from projectors.projection import Projected
from projectors.view_life import ViewLife
from projectors.views import BoundView
from viewtail.changes.batches import Batch, Origin
from viewtail.changes.errors import SourceError
from viewtail.changes.positions import Position
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key

_log = structlog.get_logger("viewtail.pipeline")

WAITS_AT_MOST_S = 0.1  # for a moment in which no change waits
SAVE_EVERY_S = 0.5  # so much is written again after a kill; then it is another one's turn
MOST_REMEMBERED = 100_000  # keys that a pass wrote, of all fan-outs: an order of many lines is met once for each
_Id: TypeAlias = tuple[str, str]  # a view, and `what`
_NONE = Committed(gtids=frozenset(), version=-1)


@dataclass(slots=True, kw_only=True, eq=False)
class FanOuts:
    """Those of one pipeline; for its loop's thread. Others may ask `oldest_us`.

    Args:
        above: dependents of changed rows that are written with their batch, at most.
        committed_at: the changes up to a position.
        incarnation: of the store; see GuardedSink.
    """

    records: FanOutRecords
    reader: DerivedReader
    life: ViewLife
    above: int
    committed_at: Callable[[Position], Committed]
    incarnation: Callable[[], str]
    _all: dict[_Id, FanOut] = field(default_factory=dict)
    _turns: OrderedDict[_Id, FanOut] = field(default_factory=OrderedDict)  # that have pages to be written; next first
    _done: dict[_Id, FanOut] = field(default_factory=dict)  # written, until the store has shown a later position
    # By view, those that are due later: at which time (monotonic), the first one first.
    _later: defaultdict[str, OrderedDict[_Id, float]] = field(default_factory=lambda: defaultdict(OrderedDict))
    _postponed: dict[str, Postponed] = field(default_factory=dict)  # of views with at_most_every
    _paces: defaultdict[str, Pace] = field(default_factory=lambda: defaultdict(Pace))
    _live: Live = field(default_factory=Live)
    _saved_at: float = 0.0
    _stepped_at: float = 0.0
    _written: defaultdict[_Id, set[Key]] = field(default_factory=lambda: defaultdict(set))  # in their pass
    # What the loop has come to: a position may stay before changes (XA), and behind no change that is known.
    _position: Position | None = None
    _changes: Committed = _NONE
    _must: Committed | None = None  # what a page must show; None: not asked for yet
    _mark: int = -1  # version of the last watermark that was passed
    _published: int = -1  # version of the newest change that a topic has: what reading comes to first

    def begin(self, begin: Position, published: int = -1) -> None:
        """Reading begins at a position: go on with what is kept. No page has a version below `published`.

        Pages are in no stream. Where the store may have lost some of what it acknowledged, a pass begins again.
        """
        self._position, self._must, self._mark, self._published = begin, None, -1, published
        self._changes = _NONE
        for kept_in_memory in (
            self._all,
            self._turns,
            self._done,
            self._later,
            self._postponed,
            self._written,
        ):
            kept_in_memory.clear()
        kept = self.records.read()
        incarnation = self.incarnation() if kept else ""
        for fan_out in kept:
            if fan_out.incarnation != incarnation:
                _log.warning("a fan-out begins again: the store was restarted", view=fan_out.view, of=_name(fan_out))
                _begin_again(fan_out, incarnation)
                self.records.keep([fan_out])
            self._all[_id(fan_out)] = fan_out
            if not fan_out.is_open:
                self._done[_id(fan_out)] = fan_out
            elif keys_in(fan_out.what):
                waited_s = max(0.0, time.time() - fan_out.committed_us / 1e6)
                self._put_off(fan_out, self._every_s(fan_out.view) - waited_s)
            else:
                self._turns[_id(fan_out)] = fan_out

    # -- what a batch touches ------------------------------------------------------------------------------------

    def take(self, view: str, touched: Touched, changes: Committed, committed_us: int) -> Mapping[Key, int]:
        """The keys that are to be written with the batch, each with its version; the others are kept as fan-outs.

        Args:
            changes: of the batch, or of a piece of one.
            committed_us: when the first of them was committed; 0: not known.
        """
        self.come_to(changes)
        committed_us = committed_us or int(time.time() * 1e6)
        versions = touched.versions
        if touched.dependents:
            versions = self._with_dependents(view, touched, changes, committed_us)
        return self._not_postponed(view, versions, committed_us) if self._every_s(view) else versions

    def _with_dependents(self, view: str, touched: Touched, changes: Committed, committed_us: int) -> Mapping[Key, int]:
        rows = self.life.views[view].derived
        assert rows is not None
        look_up = partial(few_and_many, rows=rows, of=touched.dependents, above=self.above)
        versions, many = self.reader.in_snapshot(changes, look_up)
        for dependents, about in many:
            table, _, key = rows.described(dependents.what).partition(" ")
            fan_out, is_new = self._of(view, dependents, table, key, committed_us)
            if is_new or self._note(fan_out, dependents.version, committed_us):
                fan_out.about = about if is_new else fan_out.about
                self._begin_turns(fan_out)
                self.records.keep([fan_out])
        for touched_key, version in touched.versions.items():
            versions[touched_key] = max(version, versions.get(touched_key, 0))
        return versions

    def _begin_turns(self, fan_out: FanOut) -> None:
        if _id(fan_out) in self._turns or _id(fan_out) in self._later[fan_out.view]:
            return
        _log.info("fan-out begins", view=fan_out.view, of=_name(fan_out))
        self._turns[_id(fan_out)] = fan_out
        every_s = self._every_s(fan_out.view)
        if every_s and self._postponed_of(fan_out.view).is_written_lately((fan_out.what,)):
            self._put_off(fan_out, every_s)

    def _of(self, view: str, of: Dependents, table: str, key: str, committed_us: int) -> tuple[FanOut, bool]:
        """The fan-out of some changed rows, or keys, and whether it is new."""
        if (fan_out := self._all.get((view, of.what))) is not None:
            return fan_out, False
        fan_out = self._all[view, of.what] = FanOut(
            view=view,
            what=of.what,
            table=table,
            key=key,
            version=of.version,
            committed_us=committed_us,
            incarnation=self.incarnation(),
        )
        return fan_out, True

    def _note(self, fan_out: FanOut, version: int, committed_us: int) -> bool:
        """Its rows changed again; return whether to keep that. What was read before a restart is known already."""
        if version <= max(fan_out.version, fan_out.next_version or 0):
            return False
        if not fan_out.is_open:
            self._done.pop(_id(fan_out), None)
            fan_out.version, fan_out.committed_us = version, committed_us
            fan_out.about = fan_out.done
            _begin_again(fan_out, self.incarnation())
        elif fan_out.next_version is None:
            fan_out.next_version, fan_out.next_committed_us = version, committed_us
        else:
            return False  # the pass that follows shows it, too
        return True

    def _not_postponed(self, view: str, versions: Mapping[Key, int], committed_us: int) -> Mapping[Key, int]:
        """The keys that are written now; the others are kept, or are already."""
        divided = self._postponed_of(view).divided(versions)
        noted: list[FanOut] = []
        for what, version in divided.waiting.items():
            fan_out = self._all[view, what]
            if self._note(fan_out, version, committed_us):
                noted.append(fan_out)
        for what, least, most in divided.rows():
            fan_out = self._wait_for(view, what, least, committed_us)
            self._note(fan_out, most, committed_us)
            noted.append(fan_out)
        if noted:
            self.records.keep(noted)
        return divided.now

    def _wait_for(self, view: str, what: str, version: int, committed_us: int) -> FanOut:
        """A fan-out of keys that are written later."""
        bound, every_s = self.life.views[view], self._every_s(view)
        key = described(what, bound.key, every_s)
        of = Dependents(what, version)
        fan_out, is_new = self._of(view, of, bound.view.entity.table, key, committed_us)
        if not is_new:
            self._note(fan_out, version, committed_us)
        fan_out.about = len(keys_in(what))
        if fan_out.is_open:  # it is not where a restart has its change read once more
            self._put_off(fan_out, every_s)
        return fan_out

    def _put_off(self, fan_out: FanOut, for_s: float) -> None:
        self._turns.pop(_id(fan_out), None)
        later = self._later[fan_out.view]
        later[_id(fan_out)] = time.monotonic() + for_s
        later.move_to_end(_id(fan_out))
        self._postponed_of(fan_out.view).note_waiting(fan_out.what)

    def _every_s(self, view: str) -> float:
        bound = self.life.views[view]
        return 0.0 if bound.is_beside else bound.view.entity.at_most_every  # a copy is to get ready

    def _postponed_of(self, view: str) -> Postponed:
        if view not in self._postponed:
            self._postponed[view] = Postponed(self._every_s(view))
        return self._postponed[view]

    def come_to(self, changes: Committed) -> None:
        """Changes of derived rows were read, which pages show from here on."""
        if changes.version > self._changes.version:
            self._changes, self._must = changes, None

    def note_live(self, took_s: float) -> None:
        """A batch was written in so long."""
        self._live.note(took_s)

    def passed(self, batch: Batch) -> None:
        """The store has a batch, and the position behind it: it has all pages that were written before."""
        if batch.end is None:
            return
        self._position, self._must = batch.end, None
        self._mark = max([self._mark, *(mark.version for mark in batch.watermarks)])
        if ended := [of for of in self._done.values() if (of.written_upto or 0) < batch.end.version]:
            self.records.end(ended, batch.end.version)
            for fan_out in ended:
                del self._all[_id(fan_out)], self._done[_id(fan_out)]

    # -- what is under way ---------------------------------------------------------------------------------------

    def due_s(self, most_s: float) -> float:
        """In how many seconds there is a page to write, at most so many; 0: now."""
        if not self._all:
            return most_s
        if self._next() is not None:
            return 0.0
        due = min((next(iter(later.values())) for later in self._later.values() if later), default=inf)
        return max(0.0, min(most_s, due - time.monotonic()))

    @property
    def oldest_us(self) -> int:
        """When the oldest change was to be shown that entities lack yet, microseconds since 1970; 0: there is none.

        That is when it was committed, and with at_most_every= so much later.
        """
        return min(
            (
                fan_out.committed_us + int(self._every_s(fan_out.view) * 1e6)
                for fan_out in [*self._all.values()]
                if self._is_open(fan_out)
            ),
            default=0,
        )

    def lacks_from(self) -> int:
        """The version of the oldest change that entities are to show yet; MAX_VERSION: there is none."""
        return min((fan_out.version for fan_out in self._all.values() if self._is_open(fan_out)), default=MAX_VERSION)

    def unfinished(self) -> dict[str, int]:
        """The version of the newest change of each view of which entities lack something yet."""
        newest: dict[str, int] = {}
        for fan_out in filter(self._is_open, self._all.values()):
            version = fan_out.next_version or fan_out.version
            newest[fan_out.view] = max(version, newest.get(fan_out.view, 0))
        return newest

    def lost(self, was_unfinished: Mapping[str, int]) -> list[str]:
        """The views that lack something of which nothing is kept: MySQL took back what it had acknowledged."""
        kept = {
            view: max((of.next_version or of.version for of in self._all.values() if of.view == view), default=-1)
            for view in was_unfinished
        }
        return [view for view, version in was_unfinished.items() if kept[view] < version]

    def _is_open(self, fan_out: FanOut) -> bool:
        return fan_out.is_open and self.life.gets_changes(fan_out.view)

    def _next(self) -> FanOut | None:
        """The one whose turn it is; None where none is open, or none may be written yet.

        After a restart the loop may not have come to its change again.
        """
        if not self._all:
            return None
        self._wake()
        return next(self._ready(), None) if self._turns else None

    def _wake(self) -> None:
        """Those that are due have their turn."""
        for later in self._later.values():
            while later and next(iter(later.values())) <= time.monotonic():
                which, _ = later.popitem(last=False)
                self._turns[which] = self._all[which]

    def _ready(self) -> Iterator[FanOut]:
        must = self._must_show()
        if must.version < self._published:
            return
        for fan_out in self._turns.values():
            if fan_out.version <= must.version and self._is_open(fan_out):
                yield fan_out

    def _must_show(self) -> Committed:
        if self._must is None:
            assert self._position is not None, "reading has begun"
            self._must = at = self.committed_at(self._position)
            if self._changes.version > at.version:
                self._must = Committed(gtids=at.gtids | self._changes.gtids, version=self._changes.version)
        return self._must

    def _page_version(self) -> int:
        """The version that says: all that the loop has come to.

        Rows of a backfill have a watermark's, and were perhaps read before a change. No change has the version above
        it, and those before it are shown, though an XA transaction may hold the position back.
        """
        return max(self._must_show().version, self._mark + 1)

    def step(self, write: Callable[[Projected], None], *, may_wait: bool) -> None:
        """Write one page, if there is any; `write` makes it durable.

        Args:
            may_wait: changes may be waiting, which come first unless they come without end.
        """
        fan_out = self._next()
        if fan_out is None or (may_wait and time.monotonic() - self._stepped_at < WAITS_AT_MOST_S):
            return
        try:
            if keys_in(fan_out.what):
                self._write_postponed(fan_out.view, write)
            else:
                self._go_on(fan_out, write)
        except SourceError as error:  # its table is another one by now
            self.life.halt(fan_out.view, f"its rows cannot be read back: {error}")
        self._stepped_at = time.monotonic()

    def _go_on(self, fan_out: FanOut, write: Callable[[Projected], None]) -> None:
        fan_out.cursor = cursor = self._write_page(fan_out, write)
        if cursor is None:
            _log.info("fan-out written", view=fan_out.view, of=_name(fan_out), count=fan_out.done)
            self._end_pass(fan_out)
        if cursor is None or time.monotonic() - self._saved_at > SAVE_EVERY_S:
            self._save([fan_out])

    def _write_postponed(self, view: str, write: Callable[[Projected], None]) -> None:
        """Write keys that have waited, of several fan-outs where they are few: at least one has as many as a batch."""
        changes, version = self._must_show(), self._page_version()
        most = self._paces[view].keys(self._live.page_s())
        of_view: list[FanOut] = []
        versions: dict[Key, int] = {}
        for fan_out in self._ready():
            if fan_out.view == view and (keys := keys_in(fan_out.what)):
                if versions and len(versions) + len(keys) > most:
                    break
                of_view.append(fan_out)
                versions.update(dict.fromkeys(keys, version))
        for fan_out in of_view:
            _show_next_too(fan_out, changes)
        bound = self.life.views[view]
        assert bound.derived is not None
        self.life.gate.let_pass(view)
        with self.life.gate.turns([view]):
            failpoints.reach("before page")
            for some in self.reader.slices(bound.derived, bound.needed, versions, changes):
                origin = Origin(committed_us=of_view[0].committed_us)
                write(self.life.projections.of_derived(view, some.versions, some.rows, origin))
        failpoints.reach("after page")
        for fan_out in of_view:
            fan_out.done = len(keys_in(fan_out.what))
            self._end_pass(fan_out)
        self._save(of_view)

    def _write_page(self, fan_out: FanOut, write: Callable[[Projected], None]) -> str | None:
        """Write the next page; returns where the one behind it begins."""
        changes, view, pace = self._must_show(), fan_out.view, self._paces[fan_out.view]
        page_s = self._live.page_s()
        limit = pace.keys(page_s)
        if fan_out.cursor is None:
            _show_next_too(fan_out, changes)
        bound = self.life.views[view]
        self.life.gate.let_pass(view)
        written = self._written[_id(fan_out)]
        began = time.monotonic()
        with self.life.gate.turns([view]):
            read = partial(page_of, view=bound, fan_out=fan_out, limit=limit, page_s=page_s, written=written)
            page = self.reader.in_snapshot(changes, read)
            failpoints.reach("before page")
            for some in self._slices(bound, page, changes):
                origin = Origin(committed_us=fan_out.committed_us)
                write(self.life.projections.of_derived(view, some.versions, some.rows, origin))
        if len(page.keys) >= limit:
            pace.note(len(page.keys), time.monotonic() - began)
        failpoints.reach("after page")
        if sum(map(len, self._written.values())) < MOST_REMEMBERED:
            written.update(page.keys)
        fan_out.done += len(page.keys)
        return page.cursor

    def _slices(self, view: BoundView, page: Page, changes: Committed) -> Iterator[Slice]:
        left, version = {*page.left}, self._page_version()
        done = dict.fromkeys((key for key in page.keys if key not in left), version)
        if done:
            yield Slice(done, {key: page.rows[key] for key in done if key in page.rows}, is_last=not left)
        if left:
            assert view.derived is not None
            yield from self.reader.slices(view.derived, view.needed, dict.fromkeys(left, version), changes)

    def _end_pass(self, fan_out: FanOut) -> None:
        """Another one follows, or the fan-out is over once the store has shown a later position."""
        self._written.pop(_id(fan_out), None)
        every_s = self._every_s(fan_out.view)
        if every_s:
            self._postponed_of(fan_out.view).note_written([*keys_in(fan_out.what), (fan_out.what,)])
        if fan_out.next_version is None:
            fan_out.written_upto = self._page_version()
            self._leave(fan_out)
            self._done[_id(fan_out)] = fan_out
            return
        fan_out.version, fan_out.committed_us = fan_out.next_version, fan_out.next_committed_us or 0
        fan_out.next_version = fan_out.next_committed_us = None
        fan_out.about, fan_out.done = fan_out.done, 0
        if every_s:
            self._put_off(fan_out, every_s)

    def _leave(self, fan_out: FanOut) -> None:
        """It has no more turn, and its keys wait no more."""
        self._turns.pop(_id(fan_out), None)
        self._later[fan_out.view].pop(_id(fan_out), None)
        if fan_out.view in self._postponed:
            self._postponed[fan_out.view].note_gone(fan_out.what)

    def _save(self, fan_outs: Sequence[FanOut]) -> None:
        """Then it is the next one's turn."""
        self._saved_at = time.monotonic()
        for fan_out in fan_outs:
            if _id(fan_out) in self._turns:
                self._turns.move_to_end(_id(fan_out))
        for fan_out in self.records.save(fan_outs):  # a later one of the same rows writes all of them
            self._leave(fan_out)
            for of_all in (self._all, self._done, self._written):
                of_all.pop(_id(fan_out), None)
        failpoints.reach("after cursor")


def _id(fan_out: FanOut) -> _Id:
    return fan_out.view, fan_out.what


def _show_next_too(fan_out: FanOut, changes: Committed) -> None:
    """A pass begins, which shows the change that has another one follow."""
    if (fan_out.next_version or inf) <= changes.version:
        fan_out.next_version = fan_out.next_committed_us = None


def _begin_again(fan_out: FanOut, incarnation: str) -> None:
    fan_out.cursor = fan_out.written_upto = None
    fan_out.done, fan_out.incarnation = 0, incarnation


def _name(fan_out: FanOut) -> str:
    return f"{fan_out.table} {fan_out.key}"
