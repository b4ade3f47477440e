"""When the cleaner waits, and for how long."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from projectors.pace import GivingWay
from viewtail import worker
from viewtail.changes.errors import MisuseError, StopRequested, ViewtailError, WaitedTooLongError
from viewtail.operations import cleaner
from viewtail.operations.cleaner import FILTERED_REST_S, LIVE_PART, MANY_A_SECOND, MOST_BESIDE, Cleaner, Rate, Share
from viewtail.operations.status import BUSY_ABOVE_S


def test_the_cleaner_goes_on_after_a_replica_stood_still_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner, "STUCK_AGAIN_AFTER_S", 0.0)
    own: Any = SimpleNamespace(stop=threading.Event(), identity="mysql")
    catalog: Any = None
    made = Cleaner(catalog=catalog, own=own, share=0.05, rest_s=1, is_busy=lambda: False)
    attempts: list[str] = []

    def work() -> None:
        attempts.append("look")
        if len(attempts) == 1:
            raise WaitedTooLongError("a watermark did not come through the stream")
        raise StopRequested

    made._try(work)
    assert len(attempts) == 2


@pytest.mark.parametrize("error", [MisuseError("a is missing"), WaitedTooLongError("no watermark came")])
def test_an_error_in_the_round_of_one_view_keeps_no_other_from_its_own(
    error: ViewtailError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner, "AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(cleaner, "STUCK_AGAIN_AFTER_S", 0.0)
    life = SimpleNamespace(views=dict.fromkeys("abc"), gets_changes=lambda view: view != "b")
    pipeline = SimpleNamespace(vitals=SimpleNamespace(write_count=0))
    own: Any = SimpleNamespace(stop=threading.Event(), identity="mysql", life=life, pipeline=pipeline)
    catalog: Any = SimpleNamespace(servers=SimpleNamespace(is_filtered=lambda: False))
    made = Cleaner(catalog=catalog, own=own, share=0.05, rest_s=0, is_busy=lambda: False)
    begun: list[str] = []

    def beside(view: str) -> Any:
        begun.append(view)
        if len(begun) == 4:
            raise StopRequested
        raise error if view == "a" else MisuseError("c is missing")

    monkeypatch.setattr(made, "_beside", beside)
    with capture_logs() as told:
        made._try(made._rounds)
    assert begun == ["a", "c", "a", "c"]
    first = {"log_level": "warning", "view": "a", "error": str(error)}
    assert told[0] == {"event": "the cleaner goes on with the next view", **first}


@pytest.mark.parametrize(("is_filtered", "rest_s"), [(True, FILTERED_REST_S), (False, 300)])
def test_rounds_follow_each_other_soon_where_the_source_may_leave_statements_out(
    is_filtered: bool, rest_s: float
) -> None:
    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            rests.append(timeout)
            return len(rests) == 2

    rests: list[float | None] = []
    pipeline = SimpleNamespace(vitals=SimpleNamespace(write_count=0))
    own: Any = SimpleNamespace(stop=Stop(), identity="mysql", life=SimpleNamespace(views={}), pipeline=pipeline)
    asked: list[bool] = []
    servers = SimpleNamespace(is_filtered=lambda: asked.append(is_filtered) or is_filtered)
    catalog: Any = SimpleNamespace(servers=servers)
    Cleaner(catalog=catalog, own=own, share=0.05, rest_s=300, is_busy=lambda: False)._rounds()
    assert rests == [rest_s, rest_s]
    assert len(asked) == 1, "not after every round: each time takes a session"


def test_it_looks_at_nothing_while_the_pipeline_lags_or_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "thread_time", lambda: clock.spent)

    def is_behind() -> bool:
        own: Any = SimpleNamespace(
            pipeline=SimpleNamespace(vitals=SimpleNamespace(state="paused" if clock.now < 110 else "running")),
            lag_s=120 - clock.now,
        )
        return worker._is_behind(own)

    pace = Share(0, clock, share=0.5, is_busy=is_behind, _at=clock.now, _spent_at=clock.spent)
    pace.after(0)
    assert clock.now == pytest.approx(120 - BUSY_ABOVE_S)
    pace.after(0)
    assert clock.now == pytest.approx(120 - BUSY_ABOVE_S), "no longer than that"


class Clock(threading.Event):
    """A clock that goes on by what is waited for, and a core's time that is spent by hand."""

    now, spent = 100.0, 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0
        return False


def test_rest_may_be_owed_for_a_while_and_the_share_holds_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "thread_time", lambda: clock.spent)
    for owing_s in (0.0, 10.0):
        began = clock.now
        pace = Share(0, clock, share=0.02, owing_s=owing_s, _at=began, _spent_at=clock.spent)
        waited = []
        for _ in range(100):
            before = clock.now
            clock.spent += 0.1
            pace.after(0)
            waited.append(clock.now - before)
        assert waited[0] == pytest.approx(4.9 if owing_s == 0 else 0)
        assert clock.now - began == pytest.approx(100 * 4.9 - owing_s)


def test_what_the_servers_do_for_it_counts_and_what_it_waits_for_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live change waits behind a store's work as well. A wait for the pipeline is no work of anybody's."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "thread_time", lambda: clock.spent)
    pace = Share(0, clock, share=0.02, _at=clock.now, _step_at=clock.now, _spent_at=clock.spent)

    def rest_after(own_s: float, took_s: float) -> float:
        clock.spent += own_s
        clock.now += took_s
        before = clock.now
        pace.after(0)
        return clock.now - before

    assert rest_after(0.1, 0.4) == pytest.approx(0.4 * 49)
    assert rest_after(0.1, 60) == pytest.approx(MOST_BESIDE * 0.1 * 49)
    clock.now += 60
    pace.begin()
    assert rest_after(0.1, 0) == pytest.approx(0.1 * 49)


def test_a_round_goes_on_at_a_part_of_its_share_while_changes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, until = Clock(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "thread_time", lambda: clock.spent)
    live = GivingWay(stop=clock, changes=lambda: int(10 * min(clock.now, until[0])))
    pace = Share(0, clock, share=0.5, is_live=live.is_live, _at=clock.now, _step_at=clock.now, _spent_at=clock.spent)

    def rest_after_work() -> float:
        clock.spent += 1
        clock.now += 1
        before = clock.now
        pace.after(0)
        return clock.now - before

    live.is_live()
    clock.now += 10
    pace.begin()
    assert rest_after_work() == pytest.approx(1)
    until[0] = clock.now + 1_000
    monkeypatch.setattr(cleaner, "MOST_LIVE_REST_S", 100.0)
    assert rest_after_work() == pytest.approx(LIVE_PART / 0.5 - 1)
    until[0] = clock.now + 10
    assert 9 <= rest_after_work() <= 12, "none came for longer than a second"
    monkeypatch.setattr(cleaner, "MOST_LIVE_REST_S", 5.0)
    until[0] = clock.now + 1_000
    assert rest_after_work() == pytest.approx(5)
    until[0] = clock.now
    clock.now += 5
    pace.begin()
    clock.now += 60
    pace.waited(60)
    assert rest_after_work() == pytest.approx(1), "it waited, and was not at work"
    assert rest_after_work() == pytest.approx(1)


def test_many_changes_are_more_than_so_many_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, count = Clock(), [1_000_000]
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    rate = Rate(lambda: count[0])

    def is_many_after(seconds: float, changes: int) -> bool:
        clock.now += seconds
        count[0] += changes
        return rate.is_many()

    assert not is_many_after(5, 0), "what came before is not of this second"
    assert is_many_after(2, 3 * MANY_A_SECOND) and is_many_after(0.1, 0)
    assert not is_many_after(2, MANY_A_SECOND)
