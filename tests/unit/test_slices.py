"""Slices of long tests (tests/support/slices.py)."""

from __future__ import annotations

import pytest

from tests.support import slices


def test_seeds_are_those_that_are_asked_for_or_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIEWTAIL_TEST_SEED", "VIEWTAIL_TEST_SEEDS"):
        monkeypatch.delenv(name, raising=False)
    assert slices.seeds(4, "VIEWTAIL_TEST_SEEDS") == [9, 10, 11, 12]
    assert slices.seeds(20, "VIEWTAIL_TEST_SEEDS") == [*range(1, 21)]
    monkeypatch.setenv("VIEWTAIL_TEST_SEEDS", "12")
    assert slices.seeds(4, "VIEWTAIL_TEST_SEEDS") == [*range(1, 13)]
    monkeypatch.setenv("VIEWTAIL_TEST_SEED", "77")
    assert slices.seeds(4, "VIEWTAIL_TEST_SEEDS") == [77]


class _Case:
    """An item as pytest collects it."""

    def __init__(self, name: str, count: int | None, of: str = "test") -> None:
        self.nodeid = name
        self._count, self._of = count, of

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        assert name == "one_in"
        return None if self._count is None else pytest.Mark(name, (self._count,), {"of": self._of}, _ispytest=True)


def taken_of(*items: _Case) -> set[str]:
    left = slices.left_out(items)  # type: ignore[arg-type]
    return {item.nodeid for item in items} - {item.nodeid for item in left}


def test_some_cases_of_every_test_are_run() -> None:
    every = _Case("tests/a.py::test_every", None)
    matrix = [_Case(f"tests/a.py::test_matrix[{at}]", 3) for at in range(7)]
    few = [_Case(f"tests/a.py::test_few[{at}]", 3) for at in range(2)]
    alone = _Case("tests/a.py::test_alone", 3)
    taken = taken_of(every, *matrix, *few, alone)
    assert {every.nodeid, alone.nodeid} <= taken
    assert len([name for name in taken if "matrix" in name]) in (2, 3)
    assert len([name for name in taken if "few" in name]) == 1


def test_of_tests_that_share_what_they_are_tried_on_the_same_case_of_each_is_run() -> None:
    matrix = [_Case(f"tests/a.py::test_{test}[{at}]", 3, "file") for test in range(20) for at in range(3)]
    taken = taken_of(*matrix)
    assert len(taken) == 20 and len({name.partition("[")[2] for name in taken}) == 1


def test_of_folders_where_most_is_left_out_some_tests_of_each_longer_file_are_run_with_all_their_cases() -> None:
    some = [_Case(f"tests/faults/test_x.py::test_{at}{case}", None) for at in range(9) for case in ("[a]", "[b]")]
    shared = [_Case(f"tests/acceptance/test_y.py::test_{at}", 3, "file") for at in range(4)]
    all_of_it = [_Case("tests/faults/test_convergence.py::test_seeds", None)]
    elsewhere = [_Case(f"tests/unit/test_z.py::test_{at}", None) for at in range(4)]
    taken = taken_of(*some, *shared, *all_of_it, *elsewhere)
    assert taken >= {item.nodeid for item in [*shared, *all_of_it, *elsewhere]}
    assert len(taken & {item.nodeid for item in some}) in (2, 4), "one or two of nine tests, with both cases"
    assert taken == taken_of(*some, *shared, *all_of_it, *elsewhere)
