"""The command, the metrics and the probes judge one state of a pipeline alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from viewtail import probes
from viewtail.commands import status_page
from viewtail.metrics import _Collector
from viewtail.operations.health import SILENT_AFTER_S, reported
from viewtail.operations.status import PipelineStatus, ViewStatus

STATES = ("starting", "running", "retrying", "halted", "paused", "restarting")


@dataclass
class Fake:
    """A supervisor of one pipeline."""

    report: Mapping[str, Any]
    is_stopping: bool = False

    def reports(self) -> Mapping[str, Mapping[str, Any]]:
        return {"mysql": self.report}

    def silent_s(self) -> float | None:
        return 0.1


def in_tables(state: str, lag_s: float, error: str | None, views: Mapping[str, tuple[str, int]]) -> PipelineStatus:
    """What `status` reads of it."""
    seen = tuple(
        ViewStatus(
            name=name,
            state=view_state,
            reason=None,
            filled_percent=None,
            row_count=0,
            row_estimate=0,
            rows_per_second=0,
            eta_s=None,
            parked=parked,
        )
        for name, (view_state, parked) in views.items()
    )
    return PipelineStatus(
        name="mysql", state=state, position=None, gtid=None, lag_s=lag_s, rows_per_second=0, applied_row_count=0,
        reconnect_count=0, error=error, owner="here", reported_s_ago=0.1, views=seen,
    )  # fmt: skip


def said(
    state: str, lag_s: float, error: str | None, views: Mapping[str, tuple[str, int]], age_s: float = 0.1
) -> dict[str, Any]:
    """What its process reports."""
    lines = [
        {"view": name, "state": view_state, "filled": None, "parked": parked, "proven_s": None}
        for name, (view_state, parked) in views.items()
    ]
    return {"state": state, "lag_s": lag_s, "error": error, "views": lines, "heard_at": time.monotonic() - age_s}


def metric(report: Mapping[str, Any], name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(_Collector(Fake(report).reports))
    return registry.get_sample_value(name, {"pipeline": "mysql", **labels})


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("lag_s", [0.0, 61.0])
@pytest.mark.parametrize("view", [("filled", 0), ("filled", 2), ("halted", 0), ("filling", 0), ("paused", 0)])
@pytest.mark.parametrize("error", [None, "why"])
def test_command_metrics_and_probes_say_the_same(
    state: str, lag_s: float, view: tuple[str, int], error: str | None
) -> None:
    views = {"mysql:v": view}
    shown, report = in_tables(state, lag_s, error, views), said(state, lag_s, error, views)
    live = reported(report)
    for question in ("runs", "is_behind", "keeps_up", "condition", "is_ready", "is_well"):
        assert getattr(live, question) == getattr(shown, question), question
    assert metric(report, "viewtail_pipeline_running") == shown.runs
    assert metric(report, "viewtail_pipeline_state", state=shown.state) == 1
    answer = probes.readyz(Fake(report))
    assert answer.is_good == (shown.is_ready and view[0] != "halted")
    assert bool(answer.body["down"]) == (not shown.is_ready)
    (row,) = status_page._pipeline_rows([shown])
    assert row[1] == live.condition
    if shown.is_well:
        assert answer.is_good


def test_a_process_that_says_nothing_runs_nothing() -> None:
    report = said("running", 0.0, None, {}, age_s=SILENT_AFTER_S + 1)
    assert metric(report, "viewtail_pipeline_running") == 0
    assert metric(report, "viewtail_pipeline_state", state="silent") == 1
    assert metric(report, "viewtail_pipeline_state", state="running") == 0
    assert probes.readyz(Fake(report)).body["down"][0]["state"] == "silent"
    assert not reported(report).is_well


def test_one_that_stands_by_is_ready_and_runs_nothing() -> None:
    report = said("standby", 0.0, None, {})
    assert probes.readyz(Fake(report)).is_good and metric(report, "viewtail_pipeline_running") == 0
