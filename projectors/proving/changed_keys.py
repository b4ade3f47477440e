"""Which entities of a view the stream says changed in a stretch of it; nothing is projected, and no value is kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from changes.batches import DELETE, INSERT, UPDATE, Batch, Origin, Refused, RowChanges, unreadable_in
from changes.errors import HistoryGoneError, StopRequested, ViewtailError
from changes.positions import Position
from changes.writes import Key
from ingest import History, Source
from projectors.projection import followed_tables
from projectors.views import BoundView

MOST_KEYS = 1_000_000  # in memory
_OPS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of the stream: behind a version or a time, up to a version or a watermark."""

    begin: Position  # reading begins here, or before
    above: int = -1  # version
    since_us: int = 0  # when a change was committed, microseconds since 1970
    upto: int | None = None  # version
    token: str | None = None  # of a watermark


def changed_keys(
    history: History, view: BoundView, stretch: Stretch, stop: threading.Event, say: Callable[[int, Position], None]
) -> list[Key]:
    """In the order in which they first changed, each once; `say` is told how many, and how far reading is.

    Raises HistoryGoneError where the stream no longer has all of it, ViewtailError where it does not say all that
    changed, StopRequested.
    """
    begin = _close_before(history.reader({}, {}), stretch, stop)
    source = _reader(history, view, begin)
    found: dict[Key, None] = {}
    for batch in _batches(source, begin, stop):
        end = _end_in(batch, stretch)
        _require_whole(batch, stretch, end, view)
        found.update(dict.fromkeys(_keys_in(batch, stretch, end, view)))
        if len(found) > MOST_KEYS:
            source.interrupt()
            raise ViewtailError(
                f"more than {MOST_KEYS:,} entities changed in that time: the whole view is sooner done. "
                f"viewtail replay {view.id}"
            )
        if batch.end is not None:
            say(len(found), batch.end)
            if end is not None or (stretch.upto is not None and batch.end.version >= stretch.upto):
                source.interrupt()
                break
    return list(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of an entity, as the stream has it."""

    version: int
    op: str  # insert, update, delete
    origin: Origin


def last_change(
    history: History, view: BoundView, key: Key, stretch: Stretch, stop: threading.Event, within_s: float
) -> tuple[Change | None, Position, bool]:
    """The last change of an entity, how far was read, and whether that is the whole stretch."""
    names, deadline = [column.name for column in view.key], time.monotonic() + within_s
    begin = _close_before(history.reader({}, {}), stretch, stop)
    source = _reader(history, view, begin)
    found, reached = None, begin
    for batch in _batches(source, begin, stop):
        events: list[RowChanges | Refused] = [*batch.changes, *batch.refused]
        for one in events:
            at = [one.followed.columns.index(name) for name in names]
            if any(tuple([row[place] for place in at]) == key for row in one.rows):
                found = Change(version=one.version, op=_OPS[one.kind], origin=batch.origin_of(one))
        reached = batch.end or reached
        is_over = _end_in(batch, stretch) is not None
        if is_over or time.monotonic() > deadline:
            source.interrupt()
            return found, reached, is_over
    return found, reached, False


def _reader(history: History, view: BoundView, begin: Position) -> Source:
    """Statements before that do not concern it."""
    return history.reader(followed_tables([view]), {(view.table.schema, view.table.name): begin.version})


def _close_before(source: Source, stretch: Stretch, stop: threading.Event) -> Position:
    """The end of a batch close before the stretch, found by a reader that follows no table: nothing halts that."""
    at = before = stretch.begin
    source.check(at)
    for batch in _batches(source, at, stop):
        is_in_time = bool(stretch.since_us) and batch.oldest_commit_us >= stretch.since_us
        is_behind = not stretch.since_us and batch.end is not None and batch.end.version > stretch.above
        if is_in_time or is_behind or _end_in(batch, stretch) is not None:
            source.interrupt()
            break
        before, at = at, batch.end or at
    # A batch is told by its oldest change: the one before may hold newer ones that are in time.
    return before if stretch.since_us else at


def _batches(source: Source, begin: Position, stop: threading.Event) -> Iterator[Batch]:
    for batch in source.read(begin):
        if stop.is_set():
            source.interrupt()
            raise StopRequested
        yield batch


def _end_in(batch: Batch, stretch: Stretch) -> int | None:
    return next((mark.version for mark in batch.watermarks if mark.token == stretch.token), None)


def _is_in(version: int, stretch: Stretch, end: int | None) -> bool:
    upto = stretch.upto if end is None else end
    return version > stretch.above and (upto is None or version <= upto)


def _require_whole(batch: Batch, stretch: Stretch, end: int | None, view: BoundView) -> None:
    whole = f"The whole view: viewtail replay {view.id}"
    for halt in batch.halts:
        if halt.version <= (stretch.upto or halt.version):  # what is behind it is not read, either
            raise HistoryGoneError(f"a part of that cannot be read with the table as it is now: {halt.reason}. {whole}")
    for change in batch.table_changes:
        if not change.kind.keeps_rows and _is_in(change.version, stretch, end):
            raise ViewtailError(f"{change.reason}: rows changed without a change for each. {whole}")


def _keys_in(batch: Batch, stretch: Stretch, end: int | None, view: BoundView) -> Iterator[Key]:
    names = [column.name for column in view.key]
    events: list[RowChanges | Refused] = [*batch.changes, *batch.refused]
    for one in events:
        if not _is_in(one.version, stretch, end):
            continue
        if stretch.since_us and batch.origin_of(one).committed_us < stretch.since_us:
            continue
        at = [one.followed.columns.index(name) for name in names]
        last: Key | None = None
        for row in one.rows:
            key = tuple([row[place] for place in at])
            if key != last and unreadable_in(key) is None:
                yield key
            last = key if one.kind == UPDATE else None
