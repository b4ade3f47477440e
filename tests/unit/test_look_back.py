"""A look back for the last change of one entity, in a source that fails midway: what was found before is kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ingest import Part as StreamPart
from projectors.binding import bind
from projectors.derived import Dependents, KeyPage, Part, Touched
from projectors.proving import changed_keys
from projectors.proving.changed_keys import LookBack, Looked
from projectors.stores.topics.views import Topic
from projectors.views import Entity
from tests.unit.test_binlog_range import TimedFake
from tests.unit.test_fill_windows import TABLE
from tests.unit.test_pipeline import at
from viewtail.changes.batches import INSERT, Batch, Halt, RowChanges, Watermark
from viewtail.changes.errors import HistoryGoneError
from viewtail.changes.positions import Position
from viewtail.servers.sessions import Connection

PARTS = [StreamPart(begin=at(begin), byte_count=1, begun_us=0) for begin in (10, 0)]


class FailingFake(TimedFake):
    """Gives nothing behind `fails_behind` to whoever begins before it; without `has_older` it does not even begin."""

    fails_behind = 0
    has_older = True

    def newest_first(self) -> Iterator[StreamPart]:
        yield PARTS[0]
        if not self.has_older:
            raise HistoryGoneError("the older part is gone")
        yield PARTS[1]

    def read(self, after: Position) -> Iterator[Batch]:
        for batch in super().read(after):
            assert batch.end is not None
            if after.version <= at(self.fails_behind).version < batch.end.version:
                raise HistoryGoneError("the older part is gone")
            yield batch


class ManyDependents:
    """Derived rows: each change touches the entities 0 to 999, a page of one each, and takes `page_s` for it."""

    def __init__(self, page_s: float) -> None:
        self.page_s, self.page_count = page_s, 0
        self.parts = [Part(TABLE, tuple(column.name for column in TABLE.columns), ())]

    def touched(self, events: Sequence[Any]) -> Touched:
        return Touched({}, [Dependents("a row", event.version) for event in events])

    def dependents(self, connection: Any, what: str, cursor: str | None, limit: int) -> KeyPage:
        self.page_count += 1
        time.sleep(self.page_s)
        number = int(cursor or 0)
        return KeyPage([(number,)], None if number == 999 else str(number + 1))


def looked(
    changed: list[int], fails_behind: int, *, has_older: bool = True, derived: Any = None, within_s: float = 60
) -> Looked:
    """With a change of the entity at each of these places, 1 to 20."""
    (view,) = bind([Topic("into", Entity("shop.user"))], lambda *_: TABLE)
    view = replace(view, derived=derived)

    def reader(followed: Any, _: Any) -> FailingFake:
        batches = []
        for number in range(1, 21):
            batch = Batch(changes=[], end=at(number), row_count=1, byte_count=1, oldest_commit_us=0)
            for of in followed.values() if number in changed else ():
                batch.changes = [RowChanges(of, INSERT, at(number).version, [(7, "n", 0)])]
            batches.append(batch)
        batches[-1].watermarks = [Watermark("token", at(20).version)]
        source = FailingFake(at(0), batches)
        source.fails_behind, source.has_older = fails_behind, has_older
        return source

    history: Any = SimpleNamespace(reader=reader)
    return LookBack(
        history=history,
        view=view,
        key=(7,),
        version=at(2).version,
        token="token",
        most_bytes=1 << 20,
        within_s=within_s,
        stop=threading.Event(),
        in_snapshot=lambda look_up: look_up(cast(Connection, None)),
    ).execute()


def test_the_last_change_is_kept_where_the_part_before_it_is_gone() -> None:
    for found in (looked([2, 12], 0), looked([2, 12], 0, has_older=False)):
        assert found.last is not None and found.last.version == at(12).version and found.is_sure
        assert (found.shown, found.is_all, found.failure) == (None, False, "the older part is gone")


def test_a_change_before_the_place_where_reading_failed_is_kept_but_may_not_be_the_last() -> None:
    for changed, fails_behind in (([12], 14), ([2], 5)):
        found = looked(changed, fails_behind)
        assert found.last is not None and found.last.version == at(changed[0]).version
        assert found.stopped_at == at(fails_behind) and not found.is_sure and found.failure


def test_a_look_that_nothing_ends_finds_the_change_that_the_view_shows() -> None:
    found = looked([2, 12], 30)
    assert found.shown is not None and found.shown.version == at(2).version
    assert found.is_sure and not found.failure and found.stopped_at is None


def test_no_page_of_dependents_is_read_behind_the_one_that_has_the_entity() -> None:
    rows = ManyDependents(0.0)
    found = looked([12, 13], 30, derived=rows)
    assert found.last is not None and found.last.version == at(13).version and found.is_sure
    assert rows.page_count == 2 * 8


def test_a_look_ends_in_time_amid_the_dependents_of_a_change() -> None:
    rows = ManyDependents(0.1)
    began = time.monotonic()
    found = looked([12], 30, derived=rows, within_s=0.3)
    assert time.monotonic() - began < 0.7 and rows.page_count < 8
    assert found.last is None and found.stopped_at == at(11)
    assert not found.failure and not found.is_all


class AwayFake(FailingFake):
    """What is there at one place does not come: the server went, and is waited for."""

    away_from = 14

    def read(self, after: Position) -> Iterator[Batch]:
        for batch in super().read(after):
            assert batch.end is not None
            if batch.end.version >= at(self.away_from).version:
                self.progress.trouble = "the server is away"
                assert self._interrupted.wait(30)
                return
            yield batch


def test_a_look_ends_in_time_while_the_source_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FailingFake", AwayFake)
    began = time.monotonic()
    found = looked([12], 30, within_s=0.3)
    assert time.monotonic() - began < 5
    assert found.last is not None and found.last.version == at(12).version and not found.is_sure
    assert (found.stopped_at, found.failure, found.is_all) == (at(13), "the server is away", False)


def looked_across(
    another_upto: int, monkeypatch: pytest.MonkeyPatch, *, away_for: int = 0, within_s: float = 60
) -> tuple[Looked, int]:
    """Up to that place the table was another one, dropped and made again; each batch there halts a reader that takes it
    for the table of now. The source is away for one of the readers. Returns their count, too."""
    monkeypatch.setattr(changed_keys, "PASSED_OVER", 1)
    (view,) = bind([Topic("into", Entity("shop.user"))], lambda *_: TABLE)
    readers = 0

    def reader(followed: Mapping[Any, Any], fits_from: Mapping[Any, int]) -> FailingFake:
        nonlocal readers
        readers += 1
        batches = []
        for number in range(1, 21):
            batch = Batch(changes=[], end=at(number), row_count=1, byte_count=1, oldest_commit_us=0)
            for table, of in followed.items():
                if number <= another_upto and at(number).version >= fits_from[table]:
                    batch.halts = [Halt(of, at(number).version, "it is another one")]
                elif number == another_upto + 1 and at(number).version >= fits_from[table]:
                    batch.changes = [RowChanges(of, INSERT, at(number).version, [(7, "n", 0)])]
            batches.append(batch)
        batches[-1].watermarks = [Watermark("token", at(20).version)]
        source = (AwayFake if readers == away_for else FailingFake)(at(0), batches)
        source.fails_behind = 30
        return source

    found = LookBack(
        history=cast(Any, SimpleNamespace(reader=reader)),
        view=view,
        key=(7,),
        version=at(1).version,
        token="token",
        most_bytes=1 << 20,
        within_s=within_s,
        stop=threading.Event(),
        in_snapshot=lambda look_up: look_up(cast(Connection, None)),
    ).execute()
    return found, readers


@pytest.mark.parametrize("another_upto", [1, 5, 8, 9])
def test_a_change_behind_the_place_where_the_table_was_another_one_is_found(
    another_upto: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, readers = looked_across(another_upto, monkeypatch)
    assert found.last is not None and found.last.version == at(another_upto + 1).version
    assert found.is_sure and found.stopped_at is None and readers < 100
    assert at(another_upto).version < found.unreadable_upto <= at(another_upto + 1).version


def test_what_was_read_is_told_as_read_where_the_source_goes_away_behind_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_keys, "_LATE_S", 0.1)
    monkeypatch.setattr(AwayFake, "away_from", 0)
    _, readers = looked_across(5, monkeypatch)
    found, _ = looked_across(5, monkeypatch, away_for=readers, within_s=1)
    assert (found.stopped_at, found.failure, found.is_sure) == (None, "", True)
