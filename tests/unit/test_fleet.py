"""What `status` makes of the notes about members and owners, and that a large fleet fits a screen."""

from __future__ import annotations

from typing import Any

import pytest

from ingest import Sharer
from offsets.members import Member as NotedMember
from offsets.owners import Owned
from offsets.pauses import Pause
from viewtail.commands.status_page import print_page
from viewtail.operations.fleet import Fleet, Noted, fleet
from viewtail.operations.status import PipelineStatus, ViewStatus

AT = "2024-01-02 03:04:05"


def owned(
    process: str, fence: int, *, ago: float, present: int = 2, gave_up: float | None = None, of: int = 0
) -> Owned:
    return Owned(
        pipeline=f"t.{of}.redis",
        fence=fence,
        present_fence=present,
        process=process,
        taken_at=AT,
        taken_s_ago=ago,
        gave_up_s_ago=gave_up,
    )


def member(name: str, store: str = "redis", *, is_silent: bool = False) -> NotedMember:
    return NotedMember(name=name, store=store, is_in_group=store == "redis", started_at=AT, is_silent=is_silent)


def states(found: Fleet) -> dict[str, str]:
    return {one.name: one.state for one in found.members}


def sharer(process: str | None) -> Sharer:
    return Sharer(store="redis", process=process, client=f"viewtail@{process} at 10.0.0.1", parts=(("t", 1), ("t", 0)))


def test_who_owns_nothing_stands_by_and_who_holds_no_lock_is_silent() -> None:
    noted = Noted(members=[member("a:1"), member("b:2"), member("c:3", is_silent=True)], owned=[owned("a:1", 2, ago=5)])
    found = fleet(noted, None)
    assert states(found) == {"a:1": "running", "b:2": "standby", "c:3": "silent"}
    assert found.members[0].pipelines == ("t.0.redis",)


def test_a_member_that_the_group_lacks_and_one_that_mysql_lacks_are_told() -> None:
    noted = Noted(members=[member("a:1"), member("b:2"), member("t:9", "kafka")])
    found = fleet(noted, [sharer("b:2"), sharer("x:7"), sharer(None)])
    assert states(found) == {
        "a:1": "not in group",
        "b:2": "standby",
        "t:9": "standby",
        "x:7": "unknown",
        "viewtail@None at 10.0.0.1": "unknown",
    }
    assert [one.assigned for one in found.members[:2]] == [None, ("t/0", "t/1")]


def test_who_gave_a_pipeline_up_before_it_was_taken_is_not_fenced() -> None:
    noted = Noted(
        members=[member("a:1"), member("b:2")], owned=[owned("a:1", 1, ago=90, gave_up=6), owned("b:2", 2, ago=5)]
    )
    found = fleet(noted, None)
    assert found.fenced == () and found.last_takeover is None


@pytest.mark.parametrize(
    ("is_silent", "ago", "is_told"), [(False, 5, True), (True, 5, True), (False, 9000, True), (True, 9000, False)]
)
def test_who_did_not_give_it_up_is_fenced_until_it_may_count_as_dead(
    is_silent: bool, ago: float, is_told: bool
) -> None:
    noted = Noted(
        members=[member("a:1", is_silent=is_silent), member("b:2")],
        owned=[owned("a:1", 1, ago=ago + 60), owned("b:2", 2, ago=ago)],
    )
    found = fleet(noted, None)
    assert bool(found.fenced) == is_told
    assert found.last_takeover is not None
    assert (found.last_takeover.taken_from, found.last_takeover.is_silent) == ("a:1", is_silent)


def test_who_saw_that_it_was_fenced_is_told_as_the_last_takeover_alone() -> None:
    found = fleet(Noted(owned=[owned("a:1", 1, ago=90, gave_up=3), owned("b:2", 2, ago=5)]), None)
    assert found.fenced == ()
    assert found.last_takeover is not None and found.last_takeover.is_noticed


def test_pipelines_that_are_taken_at_once_are_one_takeover() -> None:
    steps = [owned("a:1", 1, ago=99, of=of) for of in range(3)], [owned("b:2", 2, ago=5 + of, of=of) for of in range(3)]
    (found,) = fleet(
        Noted(owned=sorted((*steps[0], *steps[1]), key=lambda one: (one.pipeline, one.fence))), None
    ).fenced
    assert found.pipelines == ("t.0.redis", "t.1.redis", "t.2.redis")


def pipeline(number: int, **changes: Any) -> PipelineStatus:
    view = ViewStatus(
        name="redis:user", state="filled", reason=None, filled_percent=100.0, row_count=1, row_estimate=1,
        rows_per_second=0.0, eta_s=None, parked=0,
    )  # fmt: skip
    given: dict[str, Any] = {
        "name": f"shop.user.{number}.redis", "state": "running", "position": f"shop.user/{number}:5", "gtid": None,
        "lag_s": 0.1, "rows_per_second": 2, "applied_row_count": 5, "reconnect_count": 0, "error": None,
        "owner": f"host:{number % 7}", "reported_s_ago": 1.0, "views": (view,), "waiting": 3,
    }  # fmt: skip
    return PipelineStatus(**{**given, **changes})


def test_a_thousand_partitions_and_a_hundred_members_fit_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    down = {"state": "down", "error": "no viewtail runs this pipeline. Start one: viewtail run", "lag_s": 75.0}
    pipelines = [pipeline(number, **(down if number in range(30, 50) else {})) for number in range(1000)]
    notes = Noted(
        members=[member(f"host:{number}", is_silent=number > 90) for number in range(100)],
        owned=[owned(f"host:{number}", 1 + step, ago=9 - step, of=number) for number in range(100) for step in (0, 1)],
    )
    print_page(pipelines, fleet(notes, None), [])
    told = capsys.readouterr().out
    assert len(told.splitlines()) < 40, told
    assert re_spaced(
        "shop.user.*.redis 20 down, 980 running 75.0 s 3,000 2,000 7 processes 1,000 partitions"
    ) in re_spaced(told)
    assert "and 17 more that are not well" in told
    assert "pipelines shop.user.30.redis, shop.user.31.redis, shop.user.32.redis and 17 more: no viewtail runs" in told
    assert "and 88 more" in told and "9 silent" in told


@pytest.mark.parametrize(
    ("names", "resumed_by"),
    [
        (["shop.user.0.redis"], "--pipeline shop.user.0.redis"),
        (["shop.user.0.redis", "shop.user.1.redis"], "--pipeline redis"),
        (["shop.user.0.redis", "shop.user.0.mysql"], "--all"),
    ],
)
def test_what_was_paused_at_once_is_one_line_with_the_command_that_resumes_it(
    names: list[str], resumed_by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pause = Pause(since=AT, by="ada@desk", reason="a disk is exchanged", lag_s=12.0)
    pipelines = [pipeline(0, name=name, state="paused", paused=pause) for name in names]
    print_page([*pipelines, pipeline(5)], fleet(Noted(), None), [])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "paused since" in line]
    assert line.startswith(f"pipeline{'s' * (len(names) > 1)} {', '.join(names)}: paused since {AT} UTC by ada@desk: ")
    assert line.endswith(f"viewtail resume {resumed_by}")


def re_spaced(text: str) -> str:
    return " ".join(text.split())
