"""When the cleaner waits, and for how long."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from projectors.throttle import CpuShareThrottle
from tests.support.clocks import Clock
from viewtail import worker
from viewtail.changes.errors import MisuseError, StopRequested, ViewtailError, WaitedTooLongError
from viewtail.operations import cleaner
from viewtail.operations.cleaner import FILTERED_REST_S, MANY_A_SECOND, Cleaner, Rate
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


def test_it_looks_at_nothing_while_the_stream_lags_or_does_not_run_and_waits_for_no_fan_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)

    def is_behind() -> bool:
        own: Any = SimpleNamespace(
            pipeline=SimpleNamespace(vitals=SimpleNamespace(state="paused" if clock.now < 110 else "running")),
            stream_lag_s=120 - clock.now,
            lag_s=1000,  # of a fan-out: of a row that changes all the time there is always one
        )
        return worker._is_behind(own)

    throttle = CpuShareThrottle(share=0.5, stop=clock, is_busy=is_behind)
    throttle.after(0)
    assert clock.now == pytest.approx(120 - BUSY_ABOVE_S)
    throttle.after(0)
    assert clock.now == pytest.approx(120 - BUSY_ABOVE_S), "no longer than that"


def test_many_changes_are_more_than_so_many_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, count = Clock(monkeypatch), [1_000_000]
    rate = Rate(lambda: count[0])

    def is_many_after(seconds: float, changes: int) -> bool:
        clock.now += seconds
        count[0] += changes
        return rate.is_many()

    assert not is_many_after(5, 0), "what came before is not of this second"
    assert is_many_after(2, 3 * MANY_A_SECOND) and is_many_after(0.1, 0)
    assert not is_many_after(2, MANY_A_SECOND)
