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
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

import orjson
import structlog

from ingest import Committed
from offsets.fan_outs import FanOut, FanOutRecords
from projectors import failpoints
from projectors.derived import Dependents, DerivedRows, Touched
from projectors.derived.reading import DerivedReader, Slice, rows_by_key
from projectors.projection import Projected
from projectors.view_life import ViewLife
from projectors.views import BoundView
from viewtail.changes.batches import Batch, Origin, Row
from viewtail.changes.errors import SourceError
from viewtail.changes.positions import Position
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key
from viewtail.servers.sessions import Connection

_log = structlog.get_logger("viewtail.pipeline")

FIRST_KEYS, FEWEST_KEYS, MOST_KEYS = 20, 10, 1_000  # of a page
# A page takes so long: beside changes twice what one of their batches takes; the longer none came, the more.
LEAST_S, MOST_S = 0.004, 0.2
BESIDE_BATCHES, QUIET_PART = 2.0, 0.05
WAITS_AT_MOST_S = 0.1  # for a moment in which no change waits
MOST_APART = 20  # changed rows of one look-up of which it is asked which have many dependents
SAVE_EVERY_S = 0.5  # so much is written again after a kill; then it is another one's turn
MOST_REMEMBERED = 100_000  # keys that a pass wrote, of all fan-outs: an order of many lines is met once for each
_NONE = Committed(gtids=frozenset(), version=-1)


@dataclass(slots=True)
class Pace:
    """How many keys a page of one view has, by what one of them took before."""

    _key_s: float | None = None  # what a page costs whatever its size is a part of it

    def keys(self, page_s: float) -> int:
        """As many as a page of so many seconds has."""
        return FIRST_KEYS if self._key_s is None else max(FEWEST_KEYS, min(MOST_KEYS, int(page_s / self._key_s)))

    def note(self, keys: int, took_s: float) -> None:
        """A page of so many keys took so long. One page tells little: it may have waited for a disk."""
        key_s = took_s / keys
        self._key_s = key_s if self._key_s is None else max(0.5 * self._key_s, min(1.5 * self._key_s, key_s))


@dataclass(slots=True)
class Live:
    """The changes beside which pages are written."""

    _took_s: float = 0.0  # a batch of them, on the average of the last few
    _at: float = -inf  # the last one's end, monotonic

    def note(self, took_s: float) -> None:
        """A batch was written, and took so long."""
        self._took_s += (took_s - self._took_s) / 8
        self._at = time.monotonic()

    def page_s(self) -> float:
        """How long a page may take now."""
        quiet_s = time.monotonic() - self._at
        return min(MOST_S, max(LEAST_S, BESIDE_BATCHES * self._took_s, QUIET_PART * quiet_s))


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the rows that depend on changed rows, as one snapshot shows them."""

    keys: Sequence[Key]
    rows: Mapping[Key, Row]  # of the keys that have one
    left: Sequence[Key]  # that were too large to be read with the others
    cursor: str | None  # where to go on; None: there are no more


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
    _all: OrderedDict[tuple[str, str], FanOut] = field(default_factory=OrderedDict)  # the next one first
    _paces: defaultdict[str, Pace] = field(default_factory=lambda: defaultdict(Pace))
    _live: Live = field(default_factory=Live)
    _saved_at: float = 0.0
    _stepped_at: float = 0.0
    _written: defaultdict[tuple[str, str], set[Key]] = field(default_factory=lambda: defaultdict(set))  # in their pass
    # What the loop has come to: a position may stay before changes (XA), and behind no change that is known.
    _position: Position | None = None
    _changes: Committed = _NONE
    _least: int = -1  # version of the last watermark: rows of a backfill may have it
    _shown: Committed | None = None  # what a page must show; None: not asked for yet

    def begin(self, begin: Position, published: int = -1) -> None:
        """Reading begins at a position: go on with what is kept. Pages have versions above `published`.

        Pages are in no stream. Where the store may have lost some of what it acknowledged, a pass begins again.
        """
        self._position, self._shown, self._least = begin, None, published
        self._changes = _NONE
        self._written.clear()
        kept = self.records.read()
        incarnation = self.incarnation() if kept else ""
        for fan_out in kept:
            if fan_out.incarnation != incarnation:
                _log.warning("a fan-out begins again: the store was restarted", view=fan_out.view, of=_name(fan_out))
                _begin_again(fan_out, incarnation)
                self.records.keep(fan_out)
        self._all = OrderedDict(((fan_out.view, fan_out.what), fan_out) for fan_out in kept)

    # -- what a batch touches ------------------------------------------------------------------------------------

    def take(self, view: str, touched: Touched, changes: Committed, committed_us: int) -> Mapping[Key, int]:
        """The keys that are to be written with the batch, each with its version; the others are kept as fan-outs.

        Args:
            changes: of the batch, or of a piece of one.
            committed_us: when the first of them was committed; 0: not known.
        """
        self._come_to(changes)
        if not touched.dependents:
            return touched.versions
        rows = self.life.views[view].derived
        assert rows is not None
        look_up = partial(_look_up, rows=rows, of=touched.dependents, above=self.above)
        versions, many = self.reader.in_snapshot(changes, look_up)
        for dependents, about in many:
            self._add(view, rows, dependents, about, committed_us or int(time.time() * 1e6))
        for key, version in touched.versions.items():
            versions[key] = max(version, versions.get(key, 0))
        return versions

    def _add(self, view: str, rows: DerivedRows, of: Dependents, about: int | None, committed_us: int) -> None:
        """Durable on return. What was read before a restart is known already."""
        fan_out = self._all.get((view, of.what))
        if fan_out is None:
            table, _, key = rows.described(of.what).partition(" ")
            fan_out = FanOut(
                view=view,
                what=of.what,
                table=table,
                key=key,
                version=of.version,
                committed_us=committed_us,
                about=about,
                incarnation=self.incarnation(),
            )
            self._all[view, of.what] = fan_out
            _log.info("fan-out begins", view=view, of=_name(fan_out))
        elif of.version <= max(fan_out.version, fan_out.next_version or 0):
            return
        elif not fan_out.is_open:
            fan_out.version, fan_out.committed_us = of.version, committed_us
            fan_out.about = fan_out.done
            _begin_again(fan_out, self.incarnation())
        elif fan_out.next_version is None:
            fan_out.next_version, fan_out.next_committed_us = of.version, committed_us
        else:
            return  # the pass that follows shows it, too
        self.records.keep(fan_out)

    def _come_to(self, changes: Committed) -> None:
        if changes.version > self._changes.version:
            self._changes, self._shown = changes, None

    def note_live(self, took_s: float) -> None:
        """A batch was written in so long."""
        self._live.note(took_s)

    def passed(self, batch: Batch) -> None:
        """The store has a batch, and the position behind it: it has all pages that were written before."""
        if batch.end is None:
            return
        self._position, self._shown = batch.end, None
        self._least = max([self._least, *(mark.version for mark in batch.watermarks)])
        written = [of for of in self._all.values() if of.written_upto is not None]
        if ended := [of for of in written if (of.written_upto or 0) < batch.end.version]:
            self.records.end(ended, batch.end.version)
            for fan_out in ended:
                del self._all[fan_out.view, fan_out.what]

    # -- what is under way ---------------------------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """Whether there is a page to write now."""
        return self._next() is not None

    @property
    def oldest_us(self) -> int:
        """When the oldest change was committed that entities are to show yet, microseconds since 1970; 0: none is."""
        return min((fan_out.committed_us for fan_out in [*self._all.values()] if self._is_open(fan_out)), default=0)

    def lacks_from(self) -> int:
        """The version of the oldest change that entities are to show yet; MAX_VERSION: there is none."""
        return min((fan_out.version for fan_out in self._all.values() if self._is_open(fan_out)), default=MAX_VERSION)

    def _is_open(self, fan_out: FanOut) -> bool:
        return fan_out.is_open and self.life.gets_changes(fan_out.view)

    def _next(self) -> FanOut | None:
        """The one whose turn it is; None where none is open, or none may be written yet.

        After a restart the loop may not have come to its change again.
        """
        return next(self._ready(), None) if self._all else None

    def _ready(self) -> Iterator[FanOut]:
        shown = self._must_show()
        if shown.version <= self._least:
            return  # of the same row a chunk of a backfill would not be older by its version, and may be
        for fan_out in self._all.values():
            if fan_out.version <= shown.version and self._is_open(fan_out):
                yield fan_out

    def _must_show(self) -> Committed:
        if self._shown is None:
            assert self._position is not None, "reading has begun"
            self._shown = at = self.committed_at(self._position)
            if self._changes.version > at.version:
                self._shown = Committed(gtids=at.gtids | self._changes.gtids, version=self._changes.version)
        return self._shown

    def step(self, write: Callable[[Projected], None], *, may_wait: bool) -> None:
        """Write one page, if there is any; `write` makes it durable.

        Args:
            may_wait: changes may be waiting, which come first unless they come without end.
        """
        fan_out = self._next()
        if fan_out is None or (may_wait and time.monotonic() - self._stepped_at < WAITS_AT_MOST_S):
            return
        try:
            cursor = self._write_page(fan_out, write)
        except SourceError as error:  # its table is another one by now
            self.life.halt(fan_out.view, f"its rows cannot be read back: {error}")
            return
        fan_out.cursor = cursor
        if cursor is None:
            self._end_pass(fan_out)
        elif time.monotonic() - self._saved_at > SAVE_EVERY_S:
            self._save(fan_out)
        self._stepped_at = time.monotonic()

    def _write_page(self, fan_out: FanOut, write: Callable[[Projected], None]) -> str | None:
        """Write the next page; returns where the one behind it begins."""
        changes, view, pace = self._must_show(), fan_out.view, self._paces[fan_out.view]
        page_s = self._live.page_s()
        limit = pace.keys(page_s)
        if fan_out.cursor is None and (fan_out.next_version or inf) <= changes.version:
            fan_out.next_version = fan_out.next_committed_us = None  # this pass shows that, too
        bound = self.life.views[view]
        self.life.gate.let_pass(view)
        written = self._written[view, fan_out.what]
        began = time.monotonic()
        with self.life.gate.turns([view]):
            read = partial(_page, view=bound, fan_out=fan_out, limit=limit, page_s=page_s, written=written)
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
        left = {*page.left}
        done = dict.fromkeys((key for key in page.keys if key not in left), changes.version)
        if done:
            yield Slice(done, {key: page.rows[key] for key in done if key in page.rows}, is_last=not left)
        if left:
            assert view.derived is not None
            yield from self.reader.slices(view.derived, view.needed, dict.fromkeys(left, changes.version), changes)

    def _end_pass(self, fan_out: FanOut) -> None:
        """Another one follows, or the fan-out is over once the store has shown a later position."""
        self._written.pop((fan_out.view, fan_out.what), None)
        _log.info("fan-out written", view=fan_out.view, of=_name(fan_out), count=fan_out.done)
        if fan_out.next_version is not None:
            fan_out.version, fan_out.committed_us = fan_out.next_version, fan_out.next_committed_us or 0
            fan_out.next_version = fan_out.next_committed_us = None
            fan_out.about, fan_out.done = fan_out.done, 0
        else:
            fan_out.written_upto = self._must_show().version
        self._save(fan_out)

    def _save(self, fan_out: FanOut) -> None:
        self._saved_at = time.monotonic()
        self._all.move_to_end((fan_out.view, fan_out.what))
        if not self.records.save(fan_out):  # a later one of the same rows writes all of them
            del self._all[fan_out.view, fan_out.what]
            self._written.pop((fan_out.view, fan_out.what), None)
        failpoints.reach("after cursor")


def _begin_again(fan_out: FanOut, incarnation: str) -> None:
    fan_out.cursor = fan_out.written_upto = None
    fan_out.done, fan_out.incarnation = 0, incarnation


def _name(fan_out: FanOut) -> str:
    return f"{fan_out.table} {fan_out.key}"


def _look_up(
    connection: Connection, *, rows: DerivedRows, of: Sequence[Dependents], above: int
) -> tuple[dict[Key, int], list[tuple[Dependents, int | None]]]:
    """The keys of dependents by version; and changed rows that have more than so many, with about how many."""
    versions: dict[Key, int] = {}
    many: list[tuple[Dependents, int | None]] = []
    for dependents in of:
        some, rest = _few(connection, rows, dependents, above)
        many += [(each, rows.about(connection, each.what)) for each in rest]
        for key in some:
            versions[key] = max(dependents.version, versions.get(key, 0))
    return versions, many


def _few(
    connection: Connection, rows: DerivedRows, of: Dependents, above: int
) -> tuple[Sequence[Key], list[Dependents]]:
    """The keys where there are no more than so many; else the changed rows that have them.

    Of a few changed rows each is a fan-out of its own where it has many: it may change again alone, or with others.
    """
    keys = _upto(connection, rows, of.what, above)
    if keys is not None:
        return keys, []
    each = rows.each(of.what)
    if not 1 < len(each) <= MOST_APART:
        return (), [of]
    found: list[Key] = []
    many: list[Dependents] = []
    for what in each:
        of_one = _upto(connection, rows, what, above)
        if of_one is None or len(found) + len(of_one) > above:
            many.append(Dependents(what, of.version))
        else:
            found += of_one
    return found, many


def _upto(connection: Connection, rows: DerivedRows, what: str, most: int) -> list[Key] | None:
    """The keys of all dependents; None where there are more than so many."""
    keys: dict[Key, None] = {}
    cursor: str | None = None
    for _ in range(MOST_APART):
        page = rows.dependents(connection, what, cursor, most + 1)
        keys.update(dict.fromkeys(page.keys))
        if len(keys) > most:
            return None
        if page.cursor is None:
            return [*keys]
        cursor = page.cursor
    return None  # many rows between, whatever they lead to


def _page(
    connection: Connection, *, view: BoundView, fan_out: FanOut, limit: int, page_s: float, written: Container[Key]
) -> Page:
    """Of the changed rows one after another: a server finds the dependents of one in the order of an index.

    Those that were `written` in this pass show the change.
    """
    rows = view.derived
    assert rows is not None
    each = rows.each(fan_out.what)
    number, cursor = (0, None) if fan_out.cursor is None else orjson.loads(fan_out.cursor)
    keys: dict[Key, None] = {}
    until = time.monotonic() + page_s
    while True:
        page = rows.dependents(connection, each[number], cursor, limit - len(keys))
        keys.update(dict.fromkeys(key for key in page.keys if key not in written))
        number, cursor = (number + 1, None) if page.cursor is None else (number, page.cursor)
        if number == len(each) or len(keys) >= limit or time.monotonic() > until:
            break
    found, left = rows_by_key(connection, derived=rows, needed=view.needed, keys=[*keys]) if keys else ({}, [])
    behind = None if number == len(each) else orjson.dumps([number, cursor]).decode()
    return Page([*keys], found, left, behind)
