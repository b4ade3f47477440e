"""Which page of a fan-out is written when, and under which version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ingest import Committed
from ingest.binlog.coordinates import BinlogPosition
from offsets.fan_outs import FanOut
from projectors.derived import Dependents, KeyPage, Touched, fan_outs, pace, pages, postponed
from projectors.derived.fan_outs import FanOuts
from projectors.derived.pace import FEWEST_KEYS, MOST_BESIDE_S, MOST_KEYS, MOST_S, Live, Pace
from projectors.derived.reading import Slice
from viewtail.changes.batches import Batch, Watermark
from viewtail.changes.tables import Column, Kind
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key

VIEW = "redis:order"
PAGE = 10
KEY = (Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False),)
DEPENDENTS: Mapping[str, Sequence[Key]] = {
    "hot": [(number,) for number in range(25)],
    "warm": [(number,) for number in range(100, 115)],
    "cold": [(7,)],
}


def at(number: int) -> BinlogPosition:
    return BinlogPosition(epoch=1, file="binlog.000001", end=1600 * number, start=1600 * number)


def committed(number: int) -> Committed:
    return Committed(gtids=frozenset({f"u:{number}"}), version=at(number).version)


def batch(number: int, *watermarks: Watermark) -> Batch:
    end = at(number)
    return Batch(changes=[], end=end, row_count=0, byte_count=0, oldest_commit_us=0, watermarks=[*watermarks])


class Rows:
    """A `what` is names of changed rows, joined by '+'."""

    def each(self, what: str) -> list[str]:
        return what.split("+")

    def dependents(self, _: Any, what: str, cursor: str | None, limit: int) -> KeyPage:
        keys = [key for name in self.each(what) for key in DEPENDENTS[name]]
        begin = int(cursor or 0)
        end = begin + limit
        return KeyPage(keys[begin:end], str(end) if end < len(keys) else None)

    def about(self, _: Any, what: str) -> int:
        return sum(len(DEPENDENTS[name]) for name in self.each(what))

    def described(self, what: str) -> str:
        return f"shop.product {what}"


class Records:
    """What is durable."""

    def __init__(self) -> None:
        self.kept: dict[str, FanOut] = {}
        self.ended: list[tuple[str, int]] = []
        self.is_gone = False

    def read(self) -> list[FanOut]:
        return [*self.kept.values()]

    def keep(self, fan_outs: Sequence[FanOut]) -> None:
        self.kept.update({fan_out.what: fan_out for fan_out in fan_outs})

    def save(self, fan_outs: Sequence[FanOut]) -> list[FanOut]:
        return [fan_out for fan_out in fan_outs if self.is_gone or fan_out.what not in self.kept]

    def end(self, of: Sequence[FanOut], upto: int) -> None:
        self.ended += [(fan_out.what, upto) for fan_out in of]
        for fan_out in of:
            del self.kept[fan_out.what]


class World:
    def __init__(self) -> None:
        self.records, self.pages, self.gets_changes = Records(), list[tuple[int, list[Key]]](), True
        self.turns: list[str] = []
        self.entity = SimpleNamespace(at_most_every=0.0, table="shop.order")
        self.incarnation = "run 1"
        view = SimpleNamespace(entity=self.entity)
        bound = SimpleNamespace(derived=Rows(), needed=(), key=KEY, is_beside=False, view=view)
        life: Any = SimpleNamespace(
            views={VIEW: bound},
            gets_changes=lambda _: self.gets_changes,
            gate=SimpleNamespace(turns=self._turn, let_pass=lambda _: None),
            projections=SimpleNamespace(of_derived=lambda view, versions, rows, origin: versions),
        )
        reader: Any = SimpleNamespace(in_snapshot=self._in_snapshot, slices=_slices)
        records: Any = self.records
        self.fan_outs = FanOuts(
            records=records,
            reader=reader,
            life=life,
            above=10,
            committed_at=lambda position: Committed(gtids=frozenset({str(position)}), version=position.version),
            incarnation=lambda: self.incarnation,
        )
        self.fan_outs.begin(at(1))

    @contextmanager
    def _turn(self, views: Sequence[str]) -> Iterator[None]:
        self.turns += views
        yield

    def _in_snapshot(self, _: Committed, read: Callable[[Any], Any]) -> Any:
        return read(None)

    def take(self, number: int, *whats: str) -> Mapping[Key, int]:
        touched = Touched({}, [Dependents(what, at(number).version) for what in whats])
        return self.fan_outs.take(VIEW, touched, committed(number), committed_us=number)

    def step(self, *, may_wait: bool = False) -> None:
        self.fan_outs.step(self._write, may_wait=may_wait)

    def _write(self, versions: Any) -> None:
        self.pages.append((next(iter(versions.values())), [*versions]))

    @property
    def is_under_way(self) -> bool:
        return self.fan_outs.due_s(9.0) == 0.0

    def touch(self, number: int, *keys: int) -> list[int]:
        """Keys that a batch touches; returns those that are written with it."""
        touched = Touched({(key,): at(number).version for key in keys})
        return [key for (key,) in self.fan_outs.take(VIEW, touched, committed(number), committed_us=0)]

    def passed(self, of: Batch, took_s: float = 0.003) -> None:
        self.fan_outs.note_live(took_s)
        self.fan_outs.passed(of)

    def finish(self) -> list[Key]:
        before = len(self.pages)
        while self.is_under_way:
            self.step()
        return [key for _, keys in self.pages[before:] for key in keys]


def _slices(_: Any, __: Any, versions: Mapping[Key, int], ___: Any) -> Iterator[Slice]:
    yield Slice(versions, {}, is_last=True)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(pages, "rows_by_key", lambda _, **named: ({}, []))
    monkeypatch.setattr(Pace, "keys", lambda *_: PAGE)
    monkeypatch.setattr(fan_outs, "SAVE_EVERY_S", 0.0)
    return World()


def test_few_dependents_are_written_with_their_batch_and_many_in_pages_behind_it(world: World) -> None:
    assert world.take(2, "cold") == {(7,): at(2).version} and not world.is_under_way
    assert world.take(3, "hot", "cold") == {(7,): at(3).version}
    kept = world.records.kept["hot"]
    assert (kept.table, kept.key, kept.about, kept.version) == ("shop.product", "hot", 25, at(3).version)
    assert world.fan_outs.oldest_us == 3
    assert world.finish() == DEPENDENTS["hot"] and {version for version, _ in world.pages} == {at(3).version}
    assert len(world.pages) == 3 and world.turns == [VIEW] * 3
    assert world.fan_outs.oldest_us == 0 and kept.done == 25


def test_a_page_has_the_version_of_all_that_the_loop_has_come_to(world: World) -> None:
    world.take(3, "hot")
    world.step()
    world.passed(batch(9))
    world.finish()
    assert [version for version, _ in world.pages] == [at(3).version, at(9).version, at(9).version]


def test_it_is_kept_until_the_store_has_shown_a_later_position(world: World) -> None:
    world.take(3, "hot")
    world.passed(batch(3))
    world.finish()
    world.passed(batch(3))
    assert world.records.ended == [] and not world.records.kept["hot"].is_open
    world.passed(batch(4))
    assert world.records.ended == [("hot", at(4).version)] and world.records.kept == {}


def test_several_take_turns(world: World) -> None:
    world.take(3, "hot", "warm")
    for _ in range(4):
        world.step()
    assert [keys[0] for _, keys in world.pages] == [(0,), (100,), (10,), (110,)]


def test_few_changed_rows_are_apart_where_each_has_many(world: World) -> None:
    assert world.take(3, "hot+cold+warm") == {(7,): at(3).version}
    assert [*world.records.kept] == ["hot", "warm"]


def test_many_changed_rows_are_one_and_gone_through_one_by_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_APART", 2)
    assert world.take(3, "cold+warm+hot") == {}
    assert [*world.records.kept] == ["cold+warm+hot"]
    each = [*DEPENDENTS["cold"], *DEPENDENTS["warm"], *DEPENDENTS["hot"]]
    assert world.finish() == list(dict.fromkeys(each)), "one that several lead to is written once"


def test_a_change_before_the_first_page_is_shown_by_the_same_pass(world: World) -> None:
    world.take(3, "hot")
    world.take(4, "hot")
    assert world.finish() == DEPENDENTS["hot"]


def test_changes_meanwhile_have_one_more_pass_follow_which_begins_when_this_one_is_done(world: World) -> None:
    world.take(3, "hot")
    world.step()
    world.take(4, "hot")
    world.take(5, "hot")
    kept = world.records.kept["hot"]
    assert (kept.version, kept.next_version) == (at(3).version, at(4).version)
    assert world.finish() == [*DEPENDENTS["hot"][10:], *DEPENDENTS["hot"]]
    assert (kept.version, kept.next_version, kept.is_open) == (at(4).version, None, False)
    world.take(6, "hot")  # before the store has shown a later position
    assert kept.is_open and world.finish() == DEPENDENTS["hot"]


def test_after_a_restart_it_waits_for_its_change_and_is_no_other_one_when_that_comes_again(world: World) -> None:
    world.take(5, "hot")
    world.step()
    world.fan_outs.begin(at(2))
    assert not world.is_under_way and world.fan_outs.oldest_us == 5
    world.take(5, "hot")
    assert world.records.kept["hot"].next_version is None
    assert world.finish() == DEPENDENTS["hot"][10:]


@pytest.mark.parametrize("end", [3, 8])
def test_a_page_is_newer_than_the_rows_of_a_backfill_that_have_the_version_of_a_watermark(
    world: World, end: int
) -> None:
    """They may lack the change. A prepared XA transaction holds the position back, and not the page."""
    world.take(3, "hot")
    world.passed(batch(end, Watermark("w", at(8).version)))
    assert world.is_under_way
    world.finish()
    assert {version for version, _ in world.pages} == {at(8).version + 1}


def test_a_page_waits_until_reading_has_come_to_what_a_topic_has(world: World) -> None:
    """A prepared XA transaction holds the position back, and nothing guards a topic."""
    world.take(2, "hot")
    world.fan_outs.begin(at(1), at(5).version)
    assert not world.is_under_way
    world.fan_outs.come_to(committed(5))  # published before, and read again
    assert world.is_under_way
    world.finish()
    assert {version for version, _ in world.pages} == {at(5).version}


def test_what_is_not_shown_yet_is_known_by_the_version_of_its_change(world: World) -> None:
    assert world.fan_outs.lacks_from() == MAX_VERSION
    world.take(3, "hot")
    world.take(4, "warm")
    assert world.fan_outs.lacks_from() == at(3).version
    world.finish()
    assert world.fan_outs.lacks_from() == MAX_VERSION


def test_views_whose_fan_outs_are_kept_no_more_are_known_by_what_the_topic_s_record_says(world: World) -> None:
    world.take(3, "hot")
    world.take(4, "warm")
    told = world.fan_outs.unfinished()
    assert told == {VIEW: at(4).version}
    world.fan_outs.begin(at(3))
    assert world.fan_outs.lost(told) == []
    world.records.kept.popitem()  # MySQL took the newest one back
    world.fan_outs.begin(at(3))
    assert world.fan_outs.lost(told) == [VIEW]
    world.finish()
    assert world.fan_outs.unfinished() == {} and world.fan_outs.lost({}) == []


def test_a_store_that_may_have_lost_pages_has_the_pass_begin_again(world: World) -> None:
    world.take(3, "hot")
    world.finish()
    world.incarnation = "run 2"
    world.fan_outs.begin(at(3))
    assert world.finish() == DEPENDENTS["hot"]


def test_what_is_gone_from_the_table_is_over_and_a_halted_view_has_no_turn(world: World) -> None:
    world.take(3, "hot", "warm")
    world.gets_changes = False
    assert not world.is_under_way and world.fan_outs.oldest_us == 0
    world.gets_changes = True
    world.records.is_gone = True
    world.step()
    world.step()
    assert not world.is_under_way and world.fan_outs.oldest_us == 0


def test_one_that_begins_after_a_fill_ended_another_writes_all_rows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other had written may be older than the change that came since."""
    monkeypatch.setattr(fan_outs, "SAVE_EVERY_S", 0)
    world.take(3, "hot")
    world.step()
    world.records.is_gone = True
    world.step()
    world.records.is_gone = False
    written = len(world.pages)
    world.take(4, "hot")
    world.finish()
    assert [key for _, keys in world.pages[written:] for key in keys] == DEPENDENTS["hot"]


def test_changes_that_wait_come_first_unless_they_come_without_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.take(3, "hot")
    world.step()
    world.step(may_wait=True)
    assert len(world.pages) == 1
    monkeypatch.setattr(fan_outs, "WAITS_AT_MOST_S", 0.0)
    world.step(may_wait=True)
    assert len(world.pages) == 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    for module in (fan_outs, pace, postponed):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now))
    return clock


def test_a_page_takes_about_as_long_as_changes_beside_it_and_longer_while_there_are_none(
    clock: SimpleNamespace,
) -> None:
    live = Live()
    assert live.page_s() == MOST_S, "nobody waits"
    for _ in range(50):
        live.note(0.006)
    assert live.page_s() == pytest.approx(0.009, rel=0.01)
    clock.now += 0.5
    assert live.page_s() == pytest.approx(0.025)
    clock.now += 60
    assert live.page_s() == MOST_S
    live.note(30.0)  # a large one is no reason for large pages
    assert live.page_s() == MOST_BESIDE_S


@pytest.mark.parametrize(("fixed_s", "a_key_s"), [(0.001, 0.0001), (0.004, 0.0001), (0.02, 0.0001), (0.001, 0.02)])
@pytest.mark.parametrize("page_s", [0.01, 0.05])
def test_a_page_comes_to_take_as_long_as_it_may_whatever_is_slow(fixed_s: float, a_key_s: float, page_s: float) -> None:
    of_view = Pace()
    for _ in range(60):
        keys = of_view.keys(page_s)
        of_view.note(keys, fixed_s + keys * a_key_s)
    took_s = fixed_s + keys * a_key_s
    assert took_s <= max(1.1 * page_s, fixed_s + FEWEST_KEYS * a_key_s)
    assert took_s >= min(0.8 * page_s, fixed_s + MOST_KEYS * a_key_s) or keys == FEWEST_KEYS


@pytest.fixture
def seldom(world: World, clock: SimpleNamespace) -> World:
    world.entity.at_most_every = 60.0
    return world


def test_a_key_that_changes_all_the_time_is_written_at_most_every_so_often(
    seldom: World, clock: SimpleNamespace
) -> None:
    assert seldom.touch(2, 7, 8) == [7, 8], "nothing is put off that was not written lately"
    clock.now += 1
    assert seldom.touch(3, 7, 9) == [9]
    (kept,) = seldom.records.kept.values()
    assert (kept.table, kept.key, kept.version) == ("shop.order", "7 (at_most_every=60)", at(3).version)
    for number in range(4, 50):
        clock.now += 1
        assert seldom.touch(number, 7) == [] and not seldom.is_under_way
    assert [*seldom.records.kept.values()] == [kept], "it waits already"
    clock.now += 14
    assert seldom.is_under_way and seldom.fan_outs.oldest_us > 0
    seldom.step()
    assert seldom.pages == [(at(49).version, [(7,)])], "and shows all that came meanwhile"
    assert not seldom.is_under_way and seldom.fan_outs.oldest_us == 0 and not kept.is_open
    assert seldom.touch(50, 7) == [], "that was a writing, too"
    seldom.passed(batch(50))
    clock.now += 61
    assert seldom.finish() == [(7,)]
    clock.now += 61
    assert seldom.touch(51, 7) == [7]


def test_keys_that_wait_are_written_together(seldom: World, clock: SimpleNamespace) -> None:
    seldom.touch(2, *range(30))
    for number in range(3, 33):
        clock.now += 0.1
        assert seldom.touch(number, number - 3) == []
    assert len(seldom.records.kept) == 30 and seldom.fan_outs.due_s(9.0) == 9.0
    clock.now += 61
    assert seldom.finish() == [(key,) for key in range(30)] and len(seldom.pages) == 3


def test_keys_that_wait_are_written_after_a_restart(seldom: World, clock: SimpleNamespace) -> None:
    seldom.touch(2, 7)
    clock.now += 10
    seldom.touch(5, 7)
    clock.now += 10
    seldom.fan_outs.begin(at(2))
    assert not seldom.is_under_way
    assert seldom.touch(5, 7) == [], "its change comes again"
    assert len(seldom.records.kept) == 1
    clock.now += 45
    assert not seldom.is_under_way, "since its change a minute has not passed"
    clock.now += 6
    assert seldom.finish() == [(7,)]


def test_a_key_that_changes_after_a_fill_ended_its_waiting_is_kept_again(seldom: World, clock: SimpleNamespace) -> None:
    seldom.touch(2, 7)
    seldom.touch(3, 7)
    seldom.records.kept.clear()
    seldom.touch(4, 7)
    (kept,) = seldom.records.kept.values()
    assert kept.next_version == at(4).version
    clock.now += 61
    assert seldom.finish() == [(7,)]


def test_passes_of_a_row_that_changes_all_the_time_are_as_seldom(seldom: World, clock: SimpleNamespace) -> None:
    seldom.take(3, "hot")
    seldom.step()
    seldom.take(4, "hot")
    assert seldom.finish() == DEPENDENTS["hot"][10:] and not seldom.is_under_way
    assert seldom.fan_outs.oldest_us == 4 + 60_000_000, "late from then on"
    clock.now += 61
    assert seldom.finish() == DEPENDENTS["hot"]
    seldom.passed(batch(5))
    assert seldom.records.kept == {}
    seldom.take(6, "hot")
    assert not seldom.is_under_way, "the last one ended just now"
    clock.now += 61
    assert seldom.finish() == DEPENDENTS["hot"]


def test_more_keys_than_are_remembered_are_written_earlier(seldom: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postponed, "MOST_REMEMBERED", 3)
    assert seldom.touch(2, 1, 2, 3, 4) == [1, 2, 3, 4]
    assert seldom.touch(3, 1, 4) == [1]
