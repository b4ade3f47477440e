"""What the probes /livez and /readyz answer, from what the pipelines' processes reported: no server is asked.

A process that stands by is ready: it can take over, and nothing else is its task. A view that is being backfilled does
not make a process unready: a backfill may take hours, and a rollout would wait for it, and fail.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from projectors.view_states import State
from viewtail.changes.retrying import STANDBY
from viewtail.logs import masked
from viewtail.operations.status import WELL

LIVE_WITHIN_S = 30.0  # the supervisor's loop turns twice a second
HEARD_WITHIN_S = 5.0  # a pipeline reports once or twice a second
_WELL = (*WELL, STANDBY)


class Watched(Protocol):
    """What is asked of a supervisor."""

    def reports(self) -> Mapping[str, Mapping[str, Any]]: ...
    def silent_s(self) -> float | None: ...
    @property
    def is_stopping(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """Of a probe. `body` is for people; what a program needs is `is_good`."""

    is_good: bool
    body: Mapping[str, Any]


def livez(supervisor: Watched) -> Answer:
    """Whether the supervisor does its work. What a server or a pipeline lacks, no restart would mend."""
    silent_s = supervisor.silent_s()
    if silent_s is None:
        return Answer(True, {"live": True, "state": "waiting for servers, or connecting to them"})
    is_live = silent_s < LIVE_WITHIN_S or supervisor.is_stopping
    return Answer(is_live, {"live": is_live, "loop_turned_s_ago": round(silent_s, 1)})


def readyz(supervisor: Watched) -> Answer:
    """Whether every pipeline runs, here or in another process, and no view of those that run here is halted."""
    reports = supervisor.reports()
    down = [_told(name, report) for name, report in reports.items() if _state(report) not in _WELL]
    halted, filling = [], []
    for name, report in reports.items():
        for view in report.get("views", ()):
            if view["state"] == State.HALTED:
                halted.append({"view": view["view"], "pipeline": name})
            elif view["state"] != State.FILLED:
                filling.append({"view": view["view"], "pipeline": name, "filled": view["filled"]})
    if supervisor.is_stopping:
        down.insert(0, {"state": "stopping"})
    elif not reports:
        down.insert(0, {"state": "starting", "error": "waiting for servers, or connecting to them"})
    is_ready = not down and not halted
    standby = [name for name, report in reports.items() if _state(report) == STANDBY]
    return Answer(is_ready, {"ready": is_ready, "down": down, "halted": halted, "standby": standby, "filling": filling})


def heard_s_ago(report: Mapping[str, Any]) -> float | None:
    """Age of a report; None where the process has said nothing yet, or is restarted."""
    heard_at: float | None = report.get("heard_at")
    return None if heard_at is None else max(0.0, time.monotonic() - heard_at)


def _state(report: Mapping[str, Any]) -> str:
    age_s = heard_s_ago(report)
    return "silent" if age_s is not None and age_s > HEARD_WITHIN_S else str(report["state"])


def _told(name: str, report: Mapping[str, Any]) -> dict[str, Any]:
    state = _state(report)
    error = "its process reports nothing: it hangs, or the machine does" if state == "silent" else report.get("error")
    return {"pipeline": name, "state": state, "error": error and masked(error)}
