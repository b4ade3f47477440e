"""How long work waits that gives way: to live traffic, to other users of a core, to a limit."""

from __future__ import annotations

from typing import Any

import pytest

from projectors import throttle
from projectors.throttle import (
    LATE_REST,
    LIVE_PART,
    LIVE_WITHIN_S,
    MOST_BESIDE,
    MOST_RESTED_S,
    MOST_WAITED_S,
    CpuShareThrottle,
    LiveTraffic,
    LiveTrafficThrottle,
    RateThrottle,
    SourceLoadThrottle,
    Throttle,
    Throttles,
)
from tests.support.clocks import Clock
from viewtail.commands import replay
from viewtail.main import main

REST = 2.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def beside(clock: Clock, traffic: LiveTraffic) -> LiveTrafficThrottle:
    return LiveTrafficThrottle(stop=clock, rest=REST, is_live=traffic.is_live, is_late=traffic.is_late)


def waited_behind(clock: Clock, way: Throttle, seconds: float, own_s: float = 0.0, rows: int = 500) -> float:
    """How long it waited behind a step that took so long."""
    clock.works(seconds, own_s)
    before = clock.now
    way.after(rows)
    return clock.now - before


def test_a_rest_is_in_proportion_to_the_step_before_it_and_has_an_end(clock: Clock) -> None:
    way = LiveTrafficThrottle(stop=clock, rest=REST)
    way.begin()
    assert waited_behind(clock, way, 0.02) == pytest.approx(0.02 * REST)
    assert waited_behind(clock, way, 0.1) == pytest.approx(0.1 * REST), "the rest itself is no work"
    assert waited_behind(clock, way, 60) == MOST_RESTED_S
    longer = LiveTrafficThrottle(stop=clock, rest=6.0)
    longer.begin()
    assert waited_behind(clock, longer, 0.02) == pytest.approx(0.02 * 6)


def test_nothing_rests_beside_a_pipeline_that_has_nothing_to_do(clock: Clock) -> None:
    count = 5
    way = beside(clock, LiveTraffic(lambda: count))
    way.begin()
    assert waited_behind(clock, way, 0.1) > 0
    assert waited_behind(clock, way, LIVE_WITHIN_S) == 0
    count += 1
    assert waited_behind(clock, way, 0.1) > 0
    clock.rested.clear()
    assert waited_behind(clock, way, LIVE_WITHIN_S) == 0 and clock.rested == []


def test_a_pipeline_that_is_late_is_waited_for_but_not_for_ever(clock: Clock) -> None:
    ends_at = clock.now + 4
    way = beside(clock, LiveTraffic(lambda: 0, lambda: 5.0 if clock.now < ends_at else 0.0))
    way.begin()
    assert waited_behind(clock, way, 1) == pytest.approx(3, abs=0.1)
    ends_at = clock.now + 1000
    assert waited_behind(clock, way, 1) == pytest.approx(MOST_WAITED_S, abs=0.1)
    clock.set()
    assert waited_behind(clock, way, 1) < MOST_RESTED_S + 0.1, "asked to stop"


def test_short_steps_beside_a_pipeline_that_stays_late_keep_their_share_of_the_time(clock: Clock) -> None:
    """The move of a Redis view goes in steps of ten entities, a millisecond each."""
    way = beside(clock, LiveTraffic(lambda: 0, lambda: 5.0))
    way.begin()
    assert waited_behind(clock, way, 0.001) == pytest.approx(0.001 * LATE_REST)
    assert waited_behind(clock, way, 0.1) == pytest.approx(0.1 * LATE_REST)


def test_a_limit_of_rows_a_second_holds_on_the_average(clock: Clock) -> None:
    way, none = RateThrottle(100, clock), RateThrottle(0, clock)
    assert waited_behind(clock, way, 1, rows=200) == pytest.approx(1)
    clock.now += 3
    assert waited_behind(clock, way, 0, rows=300) == 0
    assert waited_behind(clock, way, 0, rows=50) == pytest.approx(0.5)
    assert waited_behind(clock, none, 0, rows=10**9) == 0


def test_a_busy_source_is_waited_for_and_why_is_said_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    ends_at = clock.now + 10
    monkeypatch.setattr(SourceLoadThrottle, "_why_wait", lambda _: "it is busy" if clock.now < ends_at else None)
    way = SourceLoadThrottle(stop=clock, open_source=lambda: None, say=said.append)  # type: ignore[arg-type, return-value]
    assert waited_behind(clock, way, 0) == pytest.approx(10) and said == ["it is busy"]
    ends_at = clock.now + 10
    assert waited_behind(clock, way, 0.5) == 0, "it looks once a second"
    assert waited_behind(clock, way, 0.5) == pytest.approx(9) and said == ["it is busy"] * 2
    clock.set()
    ends_at = clock.now + 10
    assert waited_behind(clock, way, 2) == 0 and len(said) == 2, "asked to stop"


def test_throttles_wait_one_after_the_other_and_a_step_begins_behind_all_of_them(clock: Clock) -> None:
    live = LiveTrafficThrottle(stop=clock, rest=REST)
    closed: list[Throttle] = []

    class Last(Throttle):
        def after(self, rows: int) -> None:
            clock.now += 1

        def close(self) -> None:
            closed.append(self)

    last = Last()
    both = Throttles(RateThrottle(1000, clock), live, last)
    both.begin()
    assert waited_behind(clock, both, 0.1, rows=500) == pytest.approx(0.4 + REST * 0.5 + 1)
    assert waited_behind(clock, both, 0.1, rows=0) == pytest.approx(REST * 0.1 + 1), "what others waited is no work"
    both.close()
    assert closed == [last]
    assert waited_behind(clock, Throttles(), 100) == 0


def test_a_limit_of_less_than_a_row_a_second_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr(replay, "replay", lambda *_, **options: given.append(options["rows_a_second"]) or 0)
    for limit in ("0", "0.5", "7"):
        with pytest.raises(SystemExit):
            main(["replay", "people", "--max-rows-per-second", limit])
    assert given == [0, 1, 7]


def share_of(clock: Clock, share: float, **options: Any) -> CpuShareThrottle:
    return CpuShareThrottle(share=share, stop=clock, is_busy=lambda: False, **options)


def test_rest_may_be_owed_for_a_while_and_the_share_holds_all_the_same(clock: Clock) -> None:
    for owing_s in (0.0, 10.0):
        began = clock.now
        way = share_of(clock, 0.02, owing_s=owing_s)
        waited = [waited_behind(clock, way, 0, own_s=0.1) for _ in range(100)]
        assert waited[0] == pytest.approx(4.9 if owing_s == 0 else 0)
        assert clock.now - began == pytest.approx(100 * 4.9 - owing_s)


def test_what_the_servers_do_for_it_counts_and_what_it_waits_for_does_not(clock: Clock) -> None:
    """A live change waits behind a store's work as well. A wait for the pipeline is no work of anybody's."""
    way = share_of(clock, 0.02)
    assert waited_behind(clock, way, 0.4, own_s=0.1) == pytest.approx(0.4 * 49)
    assert waited_behind(clock, way, 60, own_s=0.1) == pytest.approx(MOST_BESIDE * 0.1 * 49)
    clock.now += 60
    way.begin()
    assert waited_behind(clock, way, 0, own_s=0.1) == pytest.approx(0.1 * 49)


def test_a_round_goes_on_at_a_part_of_its_share_while_changes_come(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = 0.0
    traffic = LiveTraffic(lambda: int(10 * min(clock.now, until)))
    way = share_of(clock, 0.5, is_live=traffic.is_live)

    def rest_after_work() -> float:
        return waited_behind(clock, way, 1, own_s=1)

    traffic.is_live()
    clock.now += 10
    way.begin()
    assert rest_after_work() == pytest.approx(1)
    until = clock.now + 1_000
    monkeypatch.setattr(throttle, "MOST_LIVE_REST_S", 100.0)
    assert rest_after_work() == pytest.approx(LIVE_PART / 0.5 - 1)
    until = clock.now + 10
    assert 9 <= rest_after_work() <= 12, "none came for longer than a second"
    monkeypatch.setattr(throttle, "MOST_LIVE_REST_S", 5.0)
    until = clock.now + 1_000
    assert rest_after_work() == pytest.approx(5)
    until = clock.now
    clock.now += 5
    way.begin()
    clock.now += 60
    way.waited(60)
    assert rest_after_work() == pytest.approx(1), "it waited, and was not at work"
    assert rest_after_work() == pytest.approx(1)
