"""Which entities of a view the stream says changed in a part of it; nothing is projected, and no value is kept."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple, TypeAlias

from ingest import History, Part, Source, TimedSource
from projectors.derived import DerivedRows, InSnapshot, touched_keys, version_of
from projectors.projection import followed_tables
from projectors.views import BoundView
from viewtail.changes.batches import (
    DELETE,
    INSERT,
    UPDATE,
    Batch,
    Followed,
    Halt,
    Origin,
    Refused,
    Row,
    RowChanges,
    Unreadable,
    unreadable_in,
)
from viewtail.changes.errors import HistoryGoneError, StopRequested, ViewtailError
from viewtail.changes.positions import Position
from viewtail.changes.rendering import in_a_line, render_key
from viewtail.changes.writes import Key

MOST_KEYS = 1_000_000  # in memory
PASSED_OVER = 1 << 12  # of versions, 64 KiB of a binlog: where a table is another one, and twice as many each time
_OPS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}


Event: TypeAlias = RowChanges | Refused
FitsFrom: TypeAlias = Mapping[tuple[str, str], int]  # version, by schema and name of a table


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRange:
    """A part of the stream: behind a version or a time, up to a version or a watermark."""

    begin: Position  # reading begins here, or before
    above: int = -1  # version
    since_us: int = 0  # when a change was committed, microseconds since 1970
    upto: int | None = None  # version
    token: str | None = None  # of a watermark

    def has(self, version: int) -> bool:
        return version > self.above and (self.upto is None or version <= self.upto)

    def ends_in(self, batch: Batch) -> bool:
        is_at_end = self.upto is not None and batch.end is not None and batch.end.version >= self.upto
        return is_at_end or self._watermark(batch) is not None

    def upto_watermark(self, batch: Batch) -> StreamRange:
        """Without what comes behind its watermark in a batch."""
        version = self._watermark(batch)
        return self if version is None else replace(self, upto=version)

    def events(self, batch: Batch) -> list[Event]:
        """Return the events of a batch that are in it."""
        events: list[Event] = [*batch.changes, *batch.refused]
        return [event for event in events if self.has(event.version) and self._is_in_time(batch, event)]

    def _is_in_time(self, batch: Batch, event: Event) -> bool:
        return not self.since_us or batch.origin_of(event).committed_us >= self.since_us

    def _watermark(self, batch: Batch) -> int | None:
        return next((mark.version for mark in batch.watermarks if mark.token == self.token), None)


def changed_keys(
    history: History,
    view: BoundView,
    wanted: StreamRange,
    stop: threading.Event,
    say: Callable[[int, Position], None],
    in_snapshot: InSnapshot,
) -> list[Key]:
    """List the keys in the order in which they first changed, each once. `say` gets how many, and how far reading is.

    Raises HistoryGoneError where the stream no longer has all of it, ViewtailError where it does not say all that
    changed, StopRequested.
    """
    begin = _close_before(history.reader({}, {}), wanted, stop)
    source = _reader(history, view, dict.fromkeys(followed_tables([view]), begin.version))
    keys: dict[Key, None] = {}
    for batch in _batches(source, begin, stop):
        of_batch = wanted.upto_watermark(batch)
        _require_whole(batch, wanted, of_batch, view)
        keys.update(dict.fromkeys(_touched(of_batch.events(batch), view, in_snapshot)))
        if len(keys) > MOST_KEYS:
            source.interrupt()
            raise ViewtailError(
                f"more than {MOST_KEYS:,} entities changed in that time: the whole view is sooner done. "
                f"viewtail replay {view.id}"
            )
        if batch.end is not None:
            say(len(keys), batch.end)
            if wanted.ends_in(batch):
                source.interrupt()
                break
    return list(keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of an entity, as the stream has it."""

    version: int
    op: str  # insert, update, delete
    origin: Origin
    of: str  # the row: 'shop.product 7'; without a key where the view follows none of the table


_LATE_S = 0.5  # so long a batch may take that comes as the time ends


class _Unreadable(NamedTuple):
    """The last place where a table was another one than it is now."""

    before: Position
    version: int


@dataclass(slots=True, kw_only=True)
class Looked:
    """A look back through the stream found this of one entity, and went so far."""

    last: Change | None = None  # its last change
    removed: Change | None = None  # of an append-only entity, the last DELETE of a row: archiving, or a mistake
    shown: Change | None = None  # that of the version which was asked for
    back_to: Position | None = None  # all from there on was read; None: nothing was
    begun_us: int = 0  # when that place was written, microseconds since 1970
    byte_count: int = 0  # from there on
    is_all: bool = False  # the source has nothing before that
    stopped_at: Position | None = None  # looking ended there, in the part before `back_to`
    failure: str = ""  # the error that ended it
    unreadable_upto: int = -1  # version; up to there the table was another one, or was emptied

    @property
    def is_sure(self) -> bool:
        """Whether `last` is the last change there is."""
        if self.last is None or self.back_to is None:
            return False
        upto = -1 if self.stopped_at is None else self.back_to.version  # a transaction may be read in part
        return self.last.version > max(upto, self.unreadable_upto)


class _OutOfTime(Exception):
    """Very many rows depend on what changed, and their pages take longer than a look back may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookBack:
    """For the last change of one entity: the newest part of the stream first, each from its begin to its end.

    Args:
        version: of the change that the view shows, where it is known.
        token: of a watermark, where the newest part ends.
        most_bytes: are read, but the newest part is read whatever it has.
    """

    history: History
    view: BoundView
    key: Key
    version: int | None
    token: str
    most_bytes: int
    within_s: float
    stop: threading.Event
    in_snapshot: InSnapshot

    def execute(self) -> Looked:
        """Keep what was found where an error ends it: a binlog may be purged meanwhile. Raises StopRequested."""
        looked = Looked()
        try:
            looked.is_all = self._look_through(looked)
        except ViewtailError as error:
            looked.failure = str(error)
        return looked

    def _look_through(self, looked: Looked) -> bool:
        """Whether all that the source has was read."""
        deadline = time.monotonic() + self.within_s
        source = self.history.reader({}, {})
        assert isinstance(source, TimedSource), "only of such a source it is asked"
        upto = None
        for part in source.newest_first():
            is_too_much = looked.byte_count and looked.byte_count + part.byte_count > self.most_bytes
            if is_too_much or not self._look(part, upto, deadline, looked):
                return False
            if looked.last is not None and (self.version is None or part.begin.version <= self.version):
                return False
            upto = part.begin.version
        return True

    def _look(self, part: Part, upto: int | None, deadline: float, looked: Looked) -> bool:
        """Look through one part; whether it was read to its end."""
        wanted = StreamRange(begin=part.begin, upto=upto, token=self.token if upto is None else None)
        fits_from = dict.fromkeys(followed_tables([self.view]), part.begin.version)
        unreadable: dict[tuple[str, str], _Unreadable] = {}
        at, attempts = part.begin, Counter[tuple[str, str]]()
        while True:
            at, halt = self._read(at, fits_from, wanted, deadline, looked)
            if halt is None:
                break
            if time.monotonic() > deadline:
                looked.stopped_at = at
                break
            # The table was another one there, perhaps for long: more and more is passed over until it is this one.
            table = halt.followed.table.schema, halt.followed.table.name
            fits_from[table] = halt.version + (PASSED_OVER << attempts[table] if attempts[table] else 0)
            attempts[table] += 1
            unreadable[table] = _Unreadable(at, halt.version)
        if looked.stopped_at is None:
            self._come_closer(fits_from, unreadable, wanted, deadline, looked)
        looked.unreadable_upto = max([looked.unreadable_upto, *(fits_from[table] for table in unreadable)])
        if looked.stopped_at is not None:
            return False
        looked.back_to, looked.begun_us = part.begin, part.begun_us
        looked.byte_count += part.byte_count
        return True

    def _come_closer(
        self,
        fits_from: dict[tuple[str, str], int],
        unreadable: dict[tuple[str, str], _Unreadable],
        wanted: StreamRange,
        deadline: float,
        looked: Looked,
    ) -> None:
        """Too much was passed over: read what is behind the last place where a table was another one, by halves."""
        for table, last in unreadable.items():
            before, version = last
            while fits_from[table] - version > PASSED_OVER and time.monotonic() < deadline:
                middle = (fits_from[table] + version) // 2
                before, halt = self._read(before, {**fits_from, table: middle}, wanted, deadline, looked)
                if looked.stopped_at is not None:
                    looked.stopped_at, looked.failure = None, ""  # all was read once, but for what is passed over
                    break
                if halt is None:
                    before, fits_from[table] = last.before, middle
                else:
                    last = _Unreadable(before, version := halt.version)

    def _read(
        self, at: Position, fits_from: FitsFrom, wanted: StreamRange, deadline: float, looked: Looked
    ) -> tuple[Position, Halt | None]:
        """Read to the range's end, or to where the table cannot be read: a place before that, and why."""
        source = _reader(self.history, self.view, fits_from)
        # A source that is away is waited for where it is read, and no batch comes then that could be too late.
        late = threading.Timer(max(0.0, deadline - time.monotonic()) + _LATE_S, source.interrupt)
        late.start()
        try:
            for batch in _batches(source, at, self.stop):
                self._note(batch, wanted, deadline, looked)
                halt = _halt_in(batch, wanted)
                if halt is not None or wanted.ends_in(batch):
                    source.interrupt()
                    return at, halt
                at = batch.end or at
                if time.monotonic() > deadline:
                    source.interrupt()
                    looked.stopped_at = at
                    break
            else:
                looked.stopped_at, looked.failure = at, source.progress.trouble or ""
        except _OutOfTime:
            source.interrupt()
            looked.stopped_at = at
        except ViewtailError:
            looked.stopped_at = at
            raise
        finally:
            late.cancel()
        return at, None

    def _note(self, batch: Batch, wanted: StreamRange, deadline: float, looked: Looked) -> None:
        for event in self._of_entity(wanted.events(batch), deadline):
            origin, of = batch.origin_of(event), _named(event.followed, self._row(event, deadline))
            change = Change(version=event.version, op=_OPS[event.kind], origin=origin, of=of)
            self._note_change(change, event.kind, looked)
        for altered in batch.table_changes:
            if not altered.kind.keeps_rows and wanted.has(altered.version):
                looked.unreadable_upto = max(looked.unreadable_upto, altered.version)

    def _of_entity(self, events: Sequence[Event], deadline: float) -> list[Event]:
        """The events that changed the entity; where its row is made of several, the last of them."""
        derived = self.view.derived
        if derived is None:
            return [event for event in events if self.key in _keys_of_rows(event, self.view)]
        if self._version(derived, events, deadline) is None:
            return []
        # Rows of one table are looked up together, under the version of the last: only fewer tell which it was.
        while len(events) > 1:
            earlier, later = events[: len(events) // 2], events[len(events) // 2 :]
            events = earlier if self._version(derived, later, deadline) is None else later
        return [*events]

    def _version(self, derived: DerivedRows, events: Sequence[Event], deadline: float) -> int | None:
        """The version under which events touched the entity. Raises _OutOfTime, StopRequested."""

        def require_time() -> None:
            if self.stop.is_set():
                raise StopRequested
            if time.monotonic() > deadline:
                raise _OutOfTime

        return version_of(derived, derived.touched(events), self.key, self.in_snapshot, require_time)

    def _row(self, event: Event, deadline: float) -> Row:
        """The last image of the row, or of one of them, by which an event changed the entity."""
        derived, width = self.view.derived, 2 if event.kind == UPDATE else 1
        rows = event.rows
        if derived is None:
            of_entity = (row for row in rows if self.key in _keys_of_rows(event._replace(rows=[row]), self.view))
            return next(of_entity, rows[-1])
        while len(rows) > width:
            half = len(rows) // width // 2 * width
            is_there = self._version(derived, [event._replace(rows=rows[:half])], deadline) is not None
            rows = rows[:half] if is_there else rows[half:]
        return rows[-1]

    def _note_change(self, change: Change, kind: int, looked: Looked) -> None:
        if kind == DELETE and self.view.view.entity.append_only:
            looked.removed = max(looked.removed or change, change, key=lambda of: of.version)
            return
        if looked.last is None or change.version >= looked.last.version:
            looked.last = change
        if self._is_shown(change) and (looked.shown is None or change.version >= looked.shown.version):
            looked.shown = change

    def _is_shown(self, change: Change) -> bool:
        """Whether it is the change that the view shows; derived rows show all up to the version that they have."""
        if self.version is None or self.view.derived is None:
            return change.version == self.version
        return change.version <= self.version


def _halt_in(batch: Batch, wanted: StreamRange) -> Halt | None:
    return next((halt for halt in batch.halts if wanted.has(halt.version)), None)


def _named(followed: Followed, row: Row) -> str:
    """'shop.product 7'"""
    table, at = followed.table, dict(zip(followed.columns, row, strict=True))
    key = [column for column in table.columns if column.name in table.primary_key]
    values = tuple(at.get(column.name, Unreadable) for column in key)
    if not key or any(value is Unreadable or isinstance(value, Unreadable) for value in values):
        return table.full_name
    return f"{table.full_name} {in_a_line(render_key(values, key))}"


def _reader(history: History, view: BoundView, fits_from: FitsFrom) -> Source:
    """Statements on a table before its version do not concern it."""
    return history.reader(followed_tables([view]), dict(fits_from))


def _close_before(source: Source, wanted: StreamRange, stop: threading.Event) -> Position:
    """The end of a batch close before the range, found by a reader that follows no table: nothing halts that."""
    at = before = wanted.begin
    source.check(at)
    for batch in _batches(source, at, stop):
        is_in_time = bool(wanted.since_us) and batch.oldest_commit_us >= wanted.since_us
        is_behind = not wanted.since_us and batch.end is not None and batch.end.version > wanted.above
        if is_in_time or is_behind or wanted.ends_in(batch):
            source.interrupt()
            break
        before, at = at, batch.end or at
    # A batch is told by its oldest change: the one before may hold newer ones that are in time.
    return before if wanted.since_us else at


def _batches(source: Source, begin: Position, stop: threading.Event) -> Iterator[Batch]:
    for batch in source.read(begin):
        if stop.is_set():
            source.interrupt()
            raise StopRequested
        yield batch


def _require_whole(batch: Batch, wanted: StreamRange, of_batch: StreamRange, view: BoundView) -> None:
    whole = f"The whole view: viewtail replay {view.id}"
    for halt in batch.halts:
        if halt.version <= (wanted.upto or halt.version):  # what is behind it is not read, either
            raise HistoryGoneError(f"a part of that cannot be read with the table as it is now: {halt.reason}. {whole}")
    for change in batch.table_changes:
        if not change.kind.keeps_rows and of_batch.has(change.version):
            raise ViewtailError(f"{change.reason}: rows changed without a change for each. {whole}")


def _touched(events: Sequence[Event], view: BoundView, in_snapshot: InSnapshot) -> Iterable[Key]:
    """The keys of a view that these events changed; some twice."""
    if view.derived is not None:
        return touched_keys(view.derived, view.derived.touched(events), in_snapshot)
    keys = chain.from_iterable(_keys_of_rows(event, view) for event in events)
    return (key for key in keys if unreadable_in(key) is None) if Unreadable.made else keys


def _keys_of_rows(event: Event, view: BoundView) -> Iterator[Key]:
    """The key of each image of the rows of an event that are the entity's."""
    columns = event.followed.columns
    key_at, belongs = [columns.index(column.name) for column in view.key], view.belongs(columns)
    rows = event.rows if belongs is None else filter(belongs, event.rows)
    return (tuple([row[at] for at in key_at]) for row in rows)
