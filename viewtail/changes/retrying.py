"""The reaction to each error: one table, used wherever something is retried.

viewtail never gives up by itself: it also retries what is halted from time to time, and continues once it is repaired.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from viewtail.changes.errors import AnotherServerError, FencedError, TemporaryError, ViewtailError
from viewtail.changes.pipelines import PipelineState


@dataclass(frozen=True, slots=True)
class Reaction:
    """The state that `status` shows meanwhile, and the pauses between attempts: longer each time, up to a bound."""

    state: PipelineState
    first_pause_s: float
    longest_pause_s: float

    def pause_s(self, attempt: int) -> float:
        """Before the attempt of that number, from 0; with jitter, so that several do not come at once."""
        pause_s = min(self.longest_pause_s, self.first_pause_s * (1 << min(attempt, 10)))
        return pause_s * random.uniform(0.5, 1.0)


# By class of error, the nearest one up its tree counts.
REACTIONS: dict[type[ViewtailError], Reaction] = {
    TemporaryError: Reaction(PipelineState.RETRYING, 0.1, 5.0),
    AnotherServerError: Reaction(PipelineState.RETRYING, 0.2, 5.0),  # the pipeline restarts, and then goes on or halts
    FencedError: Reaction(PipelineState.STANDBY, 0.0, 0.0),  # the lease is waited for
    ViewtailError: Reaction(PipelineState.HALTED, 0.2, 5.0),
}
WEBHOOK = Reaction(PipelineState.RETRYING, 10.0, 600.0)  # of messages to people
PROCESS_ENDED = Reaction(PipelineState.RESTARTING, 0.5, 10.0)


def reaction_to(error: ViewtailError) -> Reaction:
    """The reaction to an error."""
    return next(REACTIONS[kind] for kind in type(error).__mro__ if kind in REACTIONS)
