"""When keys that are refused halt their view."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from projectors.dead_letters import PARKED_IN_A_ROW, Parking
from viewtail.changes.writes import Parked, ViewWrites, Write

VIEW = "redis:a"


class Scene:
    """A parking whose dead letters are a list."""

    def __init__(self) -> None:
        self.letters: list[Parked] = []
        self.halted: list[str] = []
        letters: Any = SimpleNamespace(record=self.letters.extend)
        self._parking = Parking(letters, lambda view, reason: self.halted.append(reason))

    def batch(self, *, good: int, bad: int, unprojected: int = 0) -> None:
        writes = {(key,): Write(1, (key,)) for key in range(good + bad)}
        refused = [Parked(VIEW, str(key), 1, "the store refuses it") for key in range(bad)]
        before = [Parked(VIEW, f"u{key}", 1, "its function raised") for key in range(unprojected)]
        self._parking.park([ViewWrites(VIEW, writes)] if writes else [], before, refused)


def test_a_hundred_refusals_without_one_success_halt_the_view() -> None:
    scene = Scene()
    for _ in range(PARKED_IN_A_ROW - 1):
        scene.batch(good=0, bad=1)
    assert not scene.halted
    scene.batch(good=0, bad=0, unprojected=1)
    (reason,) = scene.halted
    assert "100 keys in a row" in reason and "its function raised" in reason
    assert len(scene.letters) == PARKED_IN_A_ROW


def test_a_success_between_begins_the_count_again() -> None:
    scene = Scene()
    for _ in range(3):
        scene.batch(good=0, bad=PARKED_IN_A_ROW - 1)
        scene.batch(good=1, bad=1)
    assert not scene.halted


@pytest.mark.parametrize(("good", "bad"), [(23_900, 100), (12_000, 12_000), (1, 1)])
def test_a_view_of_which_as_much_is_applied_goes_on(good: int, bad: int) -> None:
    scene = Scene()
    for _ in range(150):
        scene.batch(good=good if good < 10 else 200, bad=bad if good < 10 else 200 * bad // good)
    assert not scene.halted


def test_a_batch_that_does_little_but_refuse_halts_the_view() -> None:
    scene = Scene()
    scene.batch(good=10, bad=0, unprojected=PARKED_IN_A_ROW)
    assert len(scene.halted) == 1
