"""Slices of long tests (tests/support/slices.py)."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.support import slices


def test_some_days_take_everything() -> None:
    whole = range(1, 101)
    assert slices.of(whole, 4, number=7) == slices.of(whole, 4, number=32) == [29, 30, 31, 32]
    assert set(chain.from_iterable(slices.of(whole, 3, number) for number in range(40, 74))) == set(whole)
    assert slices.of("ab", 3, number=1) == ["b", "a"], "no more than there are"


def test_seeds_are_those_that_are_asked_for_or_a_part_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIEWTAIL_TEST_SEED", "VIEWTAIL_TEST_SEEDS"):
        monkeypatch.delenv(name, raising=False)
    taken = slices.seeds(4, whole=100, variable="VIEWTAIL_TEST_SEEDS")
    assert len(set(taken)) == 4 and set(taken) <= set(range(1, 101))
    monkeypatch.setenv("VIEWTAIL_TEST_SEEDS", "12")
    assert slices.seeds(4, whole=100, variable="VIEWTAIL_TEST_SEEDS") == [*range(1, 13)]
    monkeypatch.setenv("VIEWTAIL_TEST_SEED", "77")
    assert slices.seeds(4, whole=100, variable="VIEWTAIL_TEST_SEEDS") == [77]
