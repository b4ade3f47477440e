"""Slices of long tests (tests/support/slices.py)."""

from __future__ import annotations

import os
from itertools import chain

import pytest

from tests.support import slices


def test_some_days_take_everything() -> None:
    whole = range(1, 101)
    assert slices.of(whole, 4, number=7) == slices.of(whole, 4, number=32) == [29, 30, 31, 32]
    assert set(chain.from_iterable(slices.of(whole, 3, number) for number in range(40, 74))) == set(whole)
    assert slices.of("ab", 3, number=1) == ["b", "a"], "no more than there are"


def test_what_this_run_starts_takes_the_same_part_though_it_begins_after_midnight() -> None:
    assert os.environ["VIEWTAIL_TEST_SLICE"] == str(slices.NUMBER)


def test_seeds_are_those_that_are_asked_for_or_a_part_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIEWTAIL_TEST_SEED", "VIEWTAIL_TEST_SEEDS"):
        monkeypatch.delenv(name, raising=False)
    taken = slices.seeds(4, whole=100, variable="VIEWTAIL_TEST_SEEDS")
    assert len(set(taken)) == 4 and set(taken) <= set(range(1, 101))
    monkeypatch.setenv("VIEWTAIL_TEST_SEEDS", "12")
    assert slices.seeds(4, whole=100, variable="VIEWTAIL_TEST_SEEDS") == [*range(1, 13)]
    monkeypatch.setenv("VIEWTAIL_TEST_SEED", "77")
    assert slices.seeds(4, whole=100, variable="VIEWTAIL_TEST_SEEDS") == [77]


class _Case:
    """An item as pytest collects it."""

    def __init__(self, name: str, count: int | None, of: str = "test") -> None:
        self.nodeid = name
        self._count, self._of = count, of

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        assert name == "one_in"
        return None if self._count is None else pytest.Mark(name, (self._count,), {"of": self._of}, _ispytest=True)


def test_each_case_has_its_day_and_each_day_has_some_of_every_test() -> None:
    every = [_Case("tests/a.py::test_every", None)]
    matrix = [_Case(f"tests/a.py::test_matrix[{at}]", 3) for at in range(7)]
    few = [_Case(f"tests/a.py::test_few[{at}]", 3) for at in range(2)]
    alone = [_Case("tests/a.py::test_alone", 3)]
    run: list[set[str]] = []
    for number in range(100, 106):
        left = slices.left_for_other_days([*every, *matrix, *few, *alone], number)  # type: ignore[list-item]
        taken = {item.nodeid for item in [*every, *matrix, *few, *alone]} - {item.nodeid for item in left}
        assert {"tests/a.py::test_every", "tests/a.py::test_alone"} <= taken
        assert len([name for name in taken if "matrix" in name]) in (2, 3)
        assert len([name for name in taken if "few" in name]) == 1
        run.append(taken)
    assert set.union(*run[:3]) == set.union(*run[3:]) >= {item.nodeid for item in matrix}
    assert set.union(*run[:2]) >= {item.nodeid for item in few}


def test_of_tests_that_share_what_they_are_tried_on_a_day_takes_all() -> None:
    matrix = [_Case(f"tests/a.py::test_{test}[{at}]", 3, "file") for test in range(20) for at in range(3)]
    days = []
    for number in range(3):
        left = slices.left_for_other_days(matrix, number)  # type: ignore[arg-type]
        days.append({item.nodeid.partition("[")[2] for item in matrix if item not in left})
    assert sorted(map(sorted, days)) == [["0]"], ["1]"], ["2]"]]


def test_of_files_whose_tests_take_turns_each_has_its_day() -> None:
    turns = [_Case(f"tests/faults/test_x.py::test_{at}{case}", None) for at in range(9) for case in ("[a]", "[b]")]
    shared = [_Case(f"tests/acceptance/test_y.py::test_{at}", 3, "file") for at in range(4)]
    every_day = [_Case("tests/faults/test_convergence.py::test_seeds", None)]
    elsewhere = [_Case(f"tests/unit/test_z.py::test_{at}", None) for at in range(4)]
    run = []
    days = slices.TURNS["tests/faults/"]
    for number in range(50, 50 + 2 * days):
        items = [*turns, *shared, *every_day, *elsewhere]
        left = slices.left_for_other_days(items, number)  # type: ignore[arg-type]
        taken = {item.nodeid for item in items if item not in left}
        assert taken >= {item.nodeid for item in [*shared, *every_day, *elsewhere]}
        of_turns = {item.nodeid for item in turns} & taken
        assert len(of_turns) in (2, 4), "one or two of nine tests, with both cases"
        run.append(of_turns)
    once = run[:days]
    assert once == run[days:] and sum(map(len, once)) == len(turns) and len(set.union(*once)) == len(turns)


def test_each_case_of_a_test_that_takes_turns_has_its_day() -> None:
    cases = [_Case(f"tests/faults/test_x.py::test_cases[{at}]", 3) for at in range(6)]
    run: set[str] = set()
    for number in range(3 * slices.TURNS["tests/faults/"]):
        left = slices.left_for_other_days(cases, number)  # type: ignore[arg-type]
        taken = {item.nodeid for item in cases if item not in left}
        assert len(taken) in (0, 2)
        run |= taken
    assert len(run) == 6
