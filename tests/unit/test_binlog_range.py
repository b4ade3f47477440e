"""A stretch of the stream in a topic of its own: where it begins and ends, and how a run goes on behind another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from ingest import Part
from ingest.limits import Limits
from projectors.binding import bind
from projectors.stores.topics.views import Topic
from projectors.views import Entity
from tests.support.fake_publisher import Broker, FakePublisher
from tests.support.fake_source import FakeSource
from tests.unit.test_fill_windows import TABLE
from tests.unit.test_pipeline import at
from viewtail.changes.batches import (
    INSERT,
    Batch,
    Halt,
    Origin,
    Refused,
    RowChanges,
    TableChange,
    TableChangeKind,
    Unreadable,
    Watermark,
)
from viewtail.changes.errors import HistoryGoneError, MisuseError, SourceError
from viewtail.changes.positions import Position
from viewtail.commands.binlog_range import moment_of
from viewtail.operations import binlog_range as module
from viewtail.operations.binlog_range import PublishedRange, Replay

SINCE = 1000  # microseconds since 1970
VIEW = "kafka:into"
Step = tuple[int, int]  # the key of an inserted row, and when it was committed


class TimedFake(FakeSource):
    """Begins before everything, whatever the time."""

    def since(self, committed_us: int) -> Position:
        if self.purged_up_to != at(0):
            raise HistoryGoneError("history gone: it begins at 3:15")
        return at(0)

    def place(self, text: str) -> tuple[Position, int]:
        return at(0), int(text)

    def newest_first(self) -> Iterator[Part]:
        yield Part(begin=at(0), byte_count=1, begun_us=0)


class Scene:
    """A source of one table, and a broker; `run` is one run of the command."""

    def __init__(self, *steps: Step | str, monkeypatch: pytest.MonkeyPatch) -> None:
        (self.view,) = bind([Topic("into", Entity("shop.user"))], lambda *_: TABLE)
        self.broker = Broker()
        self.steps = steps
        self.said: list[int] = []
        self.purged = 0
        self.followed: Any = None
        store = SimpleNamespace(
            sink_beside=lambda access, view: FakePublisher([view], self.broker), keeps_every_change=True
        )
        monkeypatch.setattr(module, "store_of", lambda _: store)
        monkeypatch.setattr(
            module, "WatermarkWriter", lambda *_: SimpleNamespace(mark_end=lambda: "token", close=lambda: None)
        )
        monkeypatch.setattr(module, "SAVE_EVERY_S", 1000.0)

    def reader(self, followed: Any, _: Any) -> FakeSource:
        if followed:
            (self.followed,) = followed.values()
        source = TimedFake(at(0), list(self._batches()))
        source.purged_up_to = at(self.purged)
        return source

    def _batches(self) -> Iterator[Batch]:
        for number, step in enumerate(self.steps, 1):
            batch = Batch(changes=[], end=at(number), row_count=1, byte_count=1, oldest_commit_us=0)
            version = at(number).version
            if isinstance(step, tuple):
                key, when = step
                batch.changes = [RowChanges(self.followed, INSERT, version, [(key, "n", 0)])]
                batch.oldest_commit_us = when
                batch.origin_of = lambda _, when=when: Origin(committed_us=when)  # type: ignore[misc]
            elif step == "token":
                batch.watermarks, batch.oldest_commit_us = [Watermark("token", version)], 1 << 50
            elif step == "truncate":
                change = TableChange(
                    self.followed, version, TableChangeKind.EMPTIED, "TRUNCATE user at binlog.000001:9"
                )
                batch.table_changes = [change]
            elif step == "nothing of it":
                pass
            elif step == "halt":
                batch.halts = [Halt(self.followed, version, "column name was dropped. Mend it")]
            else:
                bad: Any = Unreadable("name")
                batch.refused = [Refused(self.followed, INSERT, version, [(7, bad, 0)], "column name holds bytes")]
                batch.origin_of = lambda _: Origin(committed_us=SINCE)
            yield batch

    def replay(
        self, say: Callable[[PublishedRange, Position], None] = lambda *_: None, since_us: int = SINCE
    ) -> Replay:
        catalog: Any = SimpleNamespace(
            database="own",
            servers=SimpleNamespace(limits=Limits(batch_rows=1)),
            marks=None,
            access=lambda _: None,
        )
        history: Any = SimpleNamespace(reader=self.reader, epoch=1)
        return Replay(catalog=catalog, view=self.view, live="kafka:user", history=history, since_us=since_us, say=say)

    def keys(self) -> list[int]:
        return [change.key[0] for change in self.broker.of(VIEW)]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scene]:
    return lambda *steps: Scene(*steps, monkeypatch=monkeypatch)


def test_it_begins_with_the_first_change_in_time_and_ends_at_its_watermark(scene: Callable[..., Scene]) -> None:
    """A clock that was set back hides no change."""
    made = scene((1, 10), (2, 999), (3, 1000), (4, 998), (5, 2000), "token", (6, 3000))
    done = made.replay().run()
    assert made.keys() == [3, 4, 5]
    assert (done.count, done.end, done.cut_short) == (3, str(at(6)), "")


def test_a_run_that_was_stopped_goes_on_behind_what_is_published(scene: Callable[..., Scene]) -> None:
    made = scene((1, 1000), (2, 1000), (3, 1000), "token")
    first = made.replay()
    first.say = lambda stretch, _: first.interrupt() if stretch.count == 1 else None
    assert first.run().end == ""
    assert made.keys() == [1]
    assert made.replay().run().count == 3
    assert made.keys() == [1, 2, 3]
    before = made.broker.commit_count
    assert made.replay().run().count == 3, "one that is over says so, and publishes nothing"
    assert (made.keys(), made.broker.commit_count) == ([1, 2, 3], before)


def test_what_is_read_again_is_not_published_again(scene: Callable[..., Scene]) -> None:
    """While an XA transaction is prepared the position stays before it."""
    made = scene((1, 1000), (2, 1000), (3, 1000), "token")
    first = made.replay()
    first.say = lambda stretch, _: first.interrupt() if stretch.count == 2 else None
    first.run()
    made.broker.witness = at(0)
    made.replay().run()
    assert made.keys() == [1, 2, 3]


def test_a_topic_that_holds_anything_else_is_refused(scene: Callable[..., Scene]) -> None:
    made = scene((1, 1000), "token")
    made.replay().run()
    with pytest.raises(MisuseError, match="holds another replay already"):
        made.replay(since_us=SINCE + 1).run()
    made.broker.fills.clear()
    with pytest.raises(MisuseError, match="holds something already"):
        made.replay().run()
    assert made.keys() == [1]
    made.broker.delete(VIEW)
    made.replay().run()
    assert made.keys() == [1], "one that is made again is another topic"


def test_history_that_is_gone_makes_no_topic(scene: Callable[..., Scene]) -> None:
    made = scene((1, 1000), "token")
    made.purged = 1
    with pytest.raises(HistoryGoneError, match="it begins at 3:15"):
        made.replay().run()
    assert made.broker.places == {}


def test_history_that_goes_before_a_run_goes_on_is_said_with_what_is_published(scene: Callable[..., Scene]) -> None:
    made = scene((1, 1000), (2, 1000), "token")
    first = made.replay()
    first.say = lambda *_: first.interrupt()
    first.run()
    made.purged = 2
    with pytest.raises(HistoryGoneError, match=r"published up to binlog.000001:\d+, and cannot go on"):
        made.replay().run()
    assert made.keys() == [1]


def test_a_statement_that_takes_rows_away_ends_the_stretch_before_it(scene: Callable[..., Scene]) -> None:
    made = scene((1, 1000), "truncate", (2, 1000), "token")
    done = made.replay().run()
    assert made.keys() == [1]
    assert "TRUNCATE user at binlog.000001:9, without a change for each row" in done.cut_short
    assert made.replay().run().cut_short == done.cut_short
    assert made.keys() == [1]


def test_rows_that_cannot_be_read_end_the_run_with_what_was_seen(scene: Callable[..., Scene]) -> None:
    made = scene((1, 1000), "halt", (2, 1000), "token")
    for _ in range(2):
        with pytest.raises(SourceError, match=r"published up to binlog.000001:\d+.*column name was dropped"):
            made.replay().run()
    assert made.keys() == [1]


def test_the_place_that_an_error_names_is_where_the_next_run_begins(scene: Callable[..., Scene]) -> None:
    made = scene((1, 1000), "nothing of it", "halt", "token")
    with pytest.raises(SourceError, match=f"published up to {at(2)},"):
        made.replay().run()
    next_run = made.replay()
    next_run.stop.set()
    next_run.run()
    assert next_run._at == at(2)


def test_a_change_that_cannot_be_published_is_counted_and_listed(scene: Callable[..., Scene]) -> None:
    made = scene((1, 1000), "refused", (2, 1000), "token")
    replay = made.replay()
    done = replay.run()
    assert made.keys() == [1, 2]
    assert (done.count, done.refused_count) == (2, 1)
    assert [one.key for one in replay.refused] == ["7"]
    assert replay.refused[0].reason.startswith("column name holds bytes")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-22T03:00", "2026-11-22T03:00:00+00:00"),
        ("2026-11-22 03:00:01.5+01:00", "2026-11-22T02:00:01.500000+00:00"),
        ("2026-11-22", "2026-11-22T00:00:00+00:00"),
        ("03:00", "2026-11-22T03:00:00+00:00"),
        ("23:00", "2026-11-21T23:00:00+00:00"),
    ],
)
def test_times_are_read_as_operators_write_them(text: str, expected: str) -> None:
    assert moment_of(text, datetime(2026, 11, 22, 12, tzinfo=UTC)).isoformat() == expected


@pytest.mark.parametrize(
    ("text", "why"), [("yesterday", "is no time; write"), ("2026-11-23", "and it is 2026-11-22T12")]
)
def test_what_is_no_time_or_lies_ahead_is_refused(text: str, why: str) -> None:
    with pytest.raises(MisuseError, match=why):
        moment_of(text, datetime(2026, 11, 22, 12, tzinfo=UTC))
