"""What the probes make of what was reported."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from viewtail import probes
from viewtail.operations.health import SILENT_AFTER_S


@dataclass
class Fake:
    said: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    turned_s_ago: float | None = 0.1
    is_stopping: bool = False

    def reports(self) -> Mapping[str, Mapping[str, Any]]:
        return self.said

    def silent_s(self) -> float | None:
        return self.turned_s_ago


def report(state: str, *views: Mapping[str, Any], age_s: float = 0.1) -> dict[str, Any]:
    return {"state": state, "error": None, "views": list(views), "heard_at": time.monotonic() - age_s}


def view(state: str) -> dict[str, Any]:
    return {"view": "mysql:v", "state": state, "filled": None, "parked": 0}


@pytest.mark.parametrize("state", ["starting", "retrying", "halted", "restarting", "stopped", "anything else"])
def test_it_is_ready_in_no_state_but_running_standby_and_paused(state: str) -> None:
    for well in ("standby", "paused"):
        assert probes.readyz(Fake({"mysql": report("running"), "redis": report(well)})).is_good
    answer = probes.readyz(Fake({"mysql": report("running"), "redis": report(state)}))
    assert not answer.is_good
    assert [(one["pipeline"], one["state"]) for one in answer.body["down"]] == [("redis", state)]


def test_a_halted_view_makes_it_unready_and_a_filling_one_does_not() -> None:
    assert not probes.readyz(Fake({"mysql": report("running", view("filled"), view("halted"))})).is_good
    answer = probes.readyz(Fake({"mysql": report("running", view("filling"), view("new"))}))
    assert answer.is_good and len(answer.body["filling"]) == 2


def test_it_is_not_ready_before_there_is_a_pipeline_nor_while_it_ends() -> None:
    assert not probes.readyz(Fake({})).is_good
    assert not probes.readyz(Fake({"mysql": report("running")}, is_stopping=True)).is_good


def test_a_process_that_reports_nothing_is_down() -> None:
    answer = probes.readyz(Fake({"mysql": report("running", age_s=SILENT_AFTER_S + 1)}))
    assert not answer.is_good and answer.body["down"][0]["state"] == "silent"


def test_it_lives_while_its_loop_turns_and_while_servers_are_waited_for() -> None:
    assert probes.livez(Fake(turned_s_ago=None)).is_good
    assert probes.livez(Fake(turned_s_ago=1)).is_good
    assert not probes.livez(Fake(turned_s_ago=probes.LIVE_WITHIN_S + 1)).is_good
    assert probes.livez(Fake(turned_s_ago=probes.LIVE_WITHIN_S + 1, is_stopping=True)).is_good
