"""Work that gives way to live traffic."""

from __future__ import annotations

import threading
import time

import pytest

from projectors import pace
from projectors.pace import REST, GivingWay
from viewtail.commands import replay
from viewtail.main import main


class Clock(threading.Event):
    """Time passes only where somebody waits, or works."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now_s = 100.0
        self.rested: list[float] = []
        patch.setattr(time, "monotonic", lambda: self.now_s)

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now_s += timeout
        self.rested.append(timeout)
        return self.is_set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def worked(clock: Clock, way: GivingWay, seconds: float) -> float:
    """How long it rested behind a step that took so long."""
    clock.now_s += seconds
    before = clock.now_s
    way.after(500)
    return clock.now_s - before


def test_a_rest_is_in_proportion_to_the_step_before_it_and_has_an_end(clock: Clock) -> None:
    way = GivingWay(stop=clock)
    way.begin()
    assert worked(clock, way, 0.02) == pytest.approx(0.02 * REST)
    assert worked(clock, way, 0.1) == pytest.approx(0.1 * REST), "the rest itself is no work"
    assert worked(clock, way, 60) == pace.MOST_RESTED_S
    longer = GivingWay(stop=clock, rest=6.0)
    longer.begin()
    assert worked(clock, longer, 0.02) == pytest.approx(0.02 * 6)


def test_nothing_rests_beside_a_pipeline_that_has_nothing_to_do(clock: Clock) -> None:
    count = 5
    way = GivingWay(stop=clock, changes=lambda: count)
    way.begin()
    assert worked(clock, way, 0.1) > 0
    assert worked(clock, way, pace.LIVE_WITHIN_S) == 0
    count += 1
    assert worked(clock, way, 0.1) > 0
    clock.rested.clear()
    assert worked(clock, way, pace.LIVE_WITHIN_S) == 0 and clock.rested == []


def test_a_pipeline_that_is_late_is_waited_for_but_not_for_ever(clock: Clock) -> None:
    ends_at = clock.now_s + 4
    way = GivingWay(stop=clock, changes=lambda: 0, lag_s=lambda: 5.0 if clock.now_s < ends_at else 0.0)
    way.begin()
    assert worked(clock, way, 1) == pytest.approx(3, abs=0.1)
    ends_at = clock.now_s + 1000
    assert worked(clock, way, 1) == pytest.approx(pace.MOST_WAITED_S, abs=0.1)
    clock.set()
    assert worked(clock, way, 1) < pace.MOST_RESTED_S + 0.1, "asked to stop"


def test_short_steps_beside_a_pipeline_that_stays_late_keep_their_share_of_the_time(clock: Clock) -> None:
    """The move of a Redis view goes in steps of ten entities, a millisecond each."""
    way = GivingWay(stop=clock, changes=lambda: 0, lag_s=lambda: 5.0)
    way.begin()
    assert worked(clock, way, 0.001) == pytest.approx(0.001 * pace.LATE_REST)
    assert worked(clock, way, 0.1) == pytest.approx(0.1 * pace.LATE_REST)


def test_a_limit_of_less_than_a_row_a_second_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr(replay, "replay", lambda *_, **options: given.append(options["rows_a_second"]) or 0)
    for limit in ("0", "0.5", "7"):
        with pytest.raises(SystemExit):
            main(["replay", "people", "--max-rows-per-second", limit])
    assert given == [0, 1, 7]
