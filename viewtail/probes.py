"""Answers the probes /livez and /readyz from what the pipelines' processes reported: no server is asked.

A process that stands by is ready: it can take over, and nothing else is its task. A view that is being backfilled does
not make a process unready: a backfill may take hours, and a rollout would wait for it, and fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from offsets.views import State
from viewtail.changes.pipelines import PipelineState
from viewtail.logs import masked
from viewtail.operations.health import Reported, reported

LIVE_WITHIN_S = 30.0  # the supervisor's loop turns twice a second


class Watched(Protocol):
    """The questions to a supervisor."""

    def reports(self) -> Mapping[str, Mapping[str, Any]]: ...
    def silent_s(self) -> float | None: ...
    @property
    def is_stopping(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a probe. `body` is for people; what a program needs is `is_good`."""

    is_good: bool
    body: Mapping[str, Any]


def livez(supervisor: Watched) -> Answer:
    """Return whether the supervisor does its work. What a server or a pipeline lacks, no restart would mend."""
    silent_s = supervisor.silent_s()
    if silent_s is None:
        return Answer(True, {"live": True, "state": "waiting for servers, or connecting to them"})
    is_live = silent_s < LIVE_WITHIN_S or supervisor.is_stopping
    return Answer(is_live, {"live": is_live, "loop_turned_s_ago": round(silent_s, 1)})


def readyz(supervisor: Watched) -> Answer:
    """Return whether every pipeline runs, here or in another process, and no view of those that run here is halted."""
    pipelines = {name: reported(report) for name, report in supervisor.reports().items()}
    down = _not_running(supervisor, pipelines)
    standby = [name for name, pipeline in pipelines.items() if pipeline.state == PipelineState.STANDBY]
    body: dict[str, Any] = {"ready": True, "down": down, "halted": [], "standby": standby, "filling": []}
    for name, pipeline in pipelines.items():
        for view in pipeline.views:
            if view["state"] == State.HALTED:
                body["halted"].append({"view": view["view"], "pipeline": name})
            elif view["state"] != State.FILLED:
                body["filling"].append({"view": view["view"], "pipeline": name, "filled": view["filled"]})
    body["ready"] = not down and not body["halted"]
    return Answer(body["ready"], body)


def _not_running(supervisor: Watched, pipelines: Mapping[str, Reported]) -> list[dict[str, Any]]:
    down: list[dict[str, Any]] = []
    if supervisor.is_stopping:
        down.append({"state": "stopping"})
    elif not pipelines:
        down.append({"state": PipelineState.STARTING, "error": "waiting for servers, or connecting to them"})
    for name, pipeline in pipelines.items():
        if not pipeline.is_ready:
            error = pipeline.error and masked(pipeline.error)
            down.append({"pipeline": name, "state": pipeline.state, "error": error})
    return down
