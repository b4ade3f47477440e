"""Decides, alone, whether a pipeline and its views are well: for `status`, the metrics, the probes and any page.

A pipeline's state is from viewtail's own tables (`PipelineStatus`), or from what its process reported to its
supervisor (`Reported`). Both are judged by the same properties.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offsets.views import State
from viewtail.changes.pipelines import PipelineState

BEHIND_S = 60.0  # a pipeline that runs with a larger lag is behind
SILENT_AFTER_S = 5.0  # a process reports once or twice a second
SILENT = "silent"
_IN_ORDER = (PipelineState.RUNNING, PipelineState.PAUSED)  # what is paused is so on purpose
_READY = (*_IN_ORDER, PipelineState.STANDBY)  # it can take over, and nothing else is its task


class Judged:
    """One pipeline: `state`, `lag_s`, `error` and the views that are kept here."""

    __slots__ = ()
    state: str
    lag_s: float
    error: str | None

    def view_states(self) -> Sequence[tuple[str, int]]:
        """The state of each view, and how many keys of it are parked."""
        raise NotImplementedError

    @property
    def runs(self) -> bool:
        return self.state == PipelineState.RUNNING

    @property
    def is_behind(self) -> bool:
        """Return whether it runs, and its lag is too large all the same."""
        return self.runs and self.lag_s > BEHIND_S

    @property
    def keeps_up(self) -> bool:
        return self.runs and not self.is_behind

    @property
    def condition(self) -> str:
        """Return its state, or that it is behind."""
        return "behind" if self.is_behind else self.state

    @property
    def is_ready(self) -> bool:
        """Return whether it does what it is there for, however far it is."""
        return self.state in _READY

    @property
    def is_well(self) -> bool:
        """Return False when it is down or behind, has a view that is halted or waits for something, or parked keys.

        What is paused is so on purpose: a pipeline counts once it is behind, and a view never.
        """
        views = self.view_states()
        return (
            self.state in _IN_ORDER
            and self.lag_s <= BEHIND_S
            and not any(state == State.HALTED or parked for state, parked in views)
            and not (self.error and any(state in (State.NEW, State.BACKFILLING) for state, _ in views))
        )


@dataclass(frozen=True, slots=True)
class Reported(Judged):
    """A pipeline as its process said last, to the supervisor of this machine."""

    state: str
    lag_s: float
    error: str | None
    views: Sequence[Mapping[str, Any]]  # as reports.py writes them
    age_s: float | None  # since the process said so; None where it has said nothing yet, or is restarted

    def view_states(self) -> Sequence[tuple[str, int]]:
        return [(view["state"], view["parked"]) for view in self.views]


def reported(report: Mapping[str, Any]) -> Reported:
    """Return what a report of the supervisor says now: a process that has said nothing for a while is silent."""
    heard_at: float | None = report.get("heard_at")
    age_s = None if heard_at is None else max(0.0, time.monotonic() - heard_at)
    state, error = report["state"], report.get("error")
    if age_s is not None and age_s > SILENT_AFTER_S:
        state, error = SILENT, "its process reports nothing: it hangs, or the machine does"
    return Reported(state, report.get("lag_s", 0.0), error, report.get("views", ()), age_s)
