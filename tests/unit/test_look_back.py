"""A look back for the last change of one entity, in a source that fails midway: what was found before is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from ingest import Part
from projectors.binding import bind
from projectors.proving.changed_keys import LookBack, Looked
from projectors.stores.topics.views import Topic
from projectors.views import Entity
from tests.unit.test_binlog_range import TimedFake
from tests.unit.test_fill_windows import TABLE
from tests.unit.test_pipeline import at
from viewtail.changes.batches import INSERT, Batch, RowChanges, Watermark
from viewtail.changes.errors import HistoryGoneError
from viewtail.changes.positions import Position

PARTS = [Part(begin=at(begin), byte_count=1, begun_us=0) for begin in (10, 0)]


class FailingFake(TimedFake):
    """Gives nothing behind `fails_behind` to whoever begins before it; without `has_older` it does not even begin."""

    fails_behind = 0
    has_older = True

    def newest_first(self) -> Iterator[Part]:
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


def looked(changed: list[int], fails_behind: int, *, has_older: bool = True) -> Looked:
    """With a change of the entity at each of these places, 1 to 20."""
    (view,) = bind([Topic("into", Entity("shop.user"))], lambda *_: TABLE)

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
        within_s=60,
        stop=threading.Event(),
        in_snapshot=lambda _: {},
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
