"""What comes next of the copy beside a live one, for the command and for the pipeline itself: the whole table."""

from __future__ import annotations

from itertools import product

import pytest

from offsets.copies import (
    ASKED,
    CHANGING_PLACES,
    TRANSITIONS,
    Copy,
    Event,
    Goal,
    Stage,
    Step,
    next_by_itself,
    next_step,
)
from offsets.views import State

STATES = (None, *State)
BOTH = (False, True)


def copy(
    stage: Stage,
    state: State | None = State.FILLED,
    *,
    is_newest: bool = True,
    is_paused: bool = False,
    is_automatic: bool = False,
    is_compared: bool = False,
    kept_s: float | None = None,
) -> Copy:
    return Copy(
        view="mysql:people", live=1 if is_newest else 2, copy=2 if is_newest else 1, stage=stage, state=state,
        is_automatic=is_automatic, is_compared=is_compared, is_paused=is_paused, note=None, started_by="ada", keep_s=60,
        kept_s=kept_s,
    )  # fmt: skip


ALL = [
    copy(stage, state, is_newest=newest, is_paused=paused, is_automatic=auto, is_compared=equal, kept_s=kept_s)
    for stage, state, newest, paused, auto, equal, kept_s in product(
        Stage, STATES, BOTH, BOTH, BOTH, BOTH, (None, 60.0, -1.0)
    )
]

# On the way to a copy that readers do not have: by stage and state of the copy, without a proof and with one.
ON_THE_WAY = {
    None: (Step.FILL, Step.FILL),
    State.NEW: (Step.FILL, Step.FILL),
    State.BACKFILLING: (Step.FILL, Step.FILL),
    State.FILLED: (Step.COMPARE, Step.SWAP),
    State.HALTED: (Step.MEND, Step.MEND),
    State.PAUSED: (Step.MEND, Step.MEND),
}


@pytest.mark.parametrize(("goal", "is_newest"), [(Goal.NEWEST, True), (Goal.FORMER, False)])
def test_a_copy_that_readers_are_to_have_is_filled_compared_and_swapped(goal: Goal, is_newest: bool) -> None:
    for stage in (Stage.BUILDING, Stage.KEPT):
        for state, steps in ON_THE_WAY.items():
            beside = copy(stage, state, is_newest=is_newest)
            assert (next_step(beside, goal, is_proven=False), next_step(beside, goal, is_proven=True)) == steps
            paused = copy(stage, state, is_newest=is_newest, is_paused=True)
            unproven, proven = (Step.RESUME if step is Step.SWAP else step for step in steps)
            assert next_step(paused, goal, is_proven=False) is unproven
            assert next_step(paused, goal, is_proven=True) is proven


@pytest.mark.parametrize(
    ("stage", "before", "behind"),  # readers do not have what they are to have; they have it
    [
        (Stage.SWAPPING, Step.WAIT, Step.WAIT),
        (Stage.RETURNING, Step.WAIT, Step.WAIT),
        (Stage.MOVING, Step.WAIT, Step.WAIT),
        (Stage.DROPPING, Step.GONE, Step.DONE),
        (Stage.ENDED, Step.GONE, Step.DONE),
        (Stage.BUILDING, None, Step.DONE),
        (Stage.KEPT, None, Step.DONE),
    ],
)
def test_each_stage_says_what_comes_next(stage: Stage, before: Step | None, behind: Step) -> None:
    for state, paused, proven in product(STATES, BOTH, BOTH):
        for goal, is_newest in ((Goal.NEWEST, True), (Goal.FORMER, False)):
            if before is not None:
                beside = copy(stage, state, is_newest=is_newest, is_paused=paused)
                assert next_step(beside, goal, is_proven=proven) is before
            beside = copy(stage, state, is_newest=not is_newest, is_paused=paused)
            assert next_step(beside, goal, is_proven=proven) is behind
            assert next_step(beside, Goal.PRESENT, is_proven=proven) is behind


def test_only_a_filled_copy_of_a_view_that_runs_is_swapped_and_only_with_a_proof() -> None:
    for beside, goal, proven in product(ALL, Goal, BOTH):
        if next_step(beside, goal, is_proven=proven) is Step.SWAP:
            assert proven and beside.state is State.FILLED and not beside.is_paused
            assert not goal.is_reached(beside)


def test_only_a_kept_copy_whose_time_is_over_is_dropped() -> None:
    for beside, goal, proven in product(ALL, Goal, BOTH):
        is_over = beside.stage is Stage.KEPT and beside.kept_s is not None and beside.kept_s <= 0
        step = next_step(beside, goal, is_proven=proven)
        assert (step is Step.DROP) == (is_over and goal.is_reached(beside))


def test_the_pipeline_swaps_copies_of_changed_declarations_alone() -> None:
    """A copy that an operator asked for waits for the command; one that an operator went back from stays beside."""
    swapped = [beside for beside in ALL if next_by_itself(beside) is Step.SWAP]
    assert swapped
    for beside in swapped:
        assert beside.is_automatic and beside.is_compared and beside.stage is Stage.BUILDING
    for beside in ALL:
        if beside.stage is Stage.KEPT or not beside.is_automatic:
            assert next_by_itself(beside) in (Step.WAIT, Step.DONE, Step.DROP)


def test_what_a_step_asks_for_is_a_way_that_there_is() -> None:
    asks = {Step.SWAP: Event.SWAP_ASKED, Step.DROP: Event.DROP_ASKED}
    for beside, goal, proven in product(ALL, Goal, BOTH):
        step = next_step(beside, goal, is_proven=proven)
        if step in asks and (beside.stage, asks[step]) not in TRANSITIONS:
            raise AssertionError(f"{step} in {beside.stage}")
        assert (step is Step.WAIT) == (beside.stage in CHANGING_PLACES)
    assert Stage.DROPPING in ASKED
