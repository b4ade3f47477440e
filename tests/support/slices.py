"""The part that a run of all tests takes of what is long by nature; a make target takes the whole.

Each day takes another part, so that some days take everything. Which one it was stands in the ids of the tests, and
`VIEWTAIL_TEST_SLICE=N` takes it again.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
# The tests in these folders take turns: each is run on one day of so many. Not those that take a part of their own by
# the day's number, or they would meet the same parts again and again: they are here with 1. (The three parts of
# faults/test_rebuild_faults.py and the days of its turn have no factor in common, so that it meets each.)
TURNS = {
    "tests/faults/test_convergence.py": 1,
    "tests/faults/test_planted_bugs.py": 1,
    "tests/faults/test_archive_faults.py": 1,
    "tests/faults/test_killed_commands.py": 1,
    "tests/faults/test_fleet_schedules.py": 1,
    "tests/faults/test_polling_faults.py": 1,
    "tests/faults/test_topic_schedules.py": 1,
    "tests/acceptance/": 7,
    "tests/faults/": 7,
    "tests/integration/": 5,
    "tests/contract/": 2,
}
SECONDS_A_DAY = 86_400
_VARIABLE = "VIEWTAIL_TEST_SLICE"
NUMBER = int(os.environ.get(_VARIABLE) or time.time() // SECONDS_A_DAY)
os.environ[_VARIABLE] = str(NUMBER)  # for the processes of this run, which may begin after midnight


def of(whole: Sequence[T], count: int, number: int = NUMBER) -> list[T]:
    """So many that follow each other, and the next ones on the next day, round and round."""
    return [whole[(number * count + at) % len(whole)] for at in range(min(count, len(whole)))]


def seeds(count: int, whole: int, variable: str) -> list[int]:
    """Of schedules: that of VIEWTAIL_TEST_SEED alone, as many as `variable` says, or the day's part of the whole."""
    if one := os.environ.get("VIEWTAIL_TEST_SEED"):
        return [int(one)]
    if first := os.environ.get(variable):
        return list(range(1, 1 + int(first)))
    return of(range(1, 1 + whole), count)


def left_for_other_days(items: Sequence[pytest.Item], number: int = NUMBER) -> list[pytest.Item]:
    """What a run of all tests leaves out, of `items` in the order of their files.

    Where tests take turns (TURNS), those whose turn it is not. Of a test that is marked `one_in(N)`, all cases but one
    in N, and at least one stays.

    Which ones depends on the day, and on the name. Tests that are marked `one_in(N, of="file")` take no turns, and the
    name is the file's: they share what they are tried on, one after another.
    """
    cases: dict[str, list[tuple[pytest.Item, int, bool]]] = {}
    for item in items:
        marker = item.get_closest_marker("one_in")
        count, of = (1, "test") if marker is None else (marker.args[0], marker.kwargs.get("of"))
        cases.setdefault(test_of(item), []).append((item, count, of == "file"))
    left, seen = [], Counter[str]()
    for test, found in cases.items():
        file, turn, is_shared = test.partition("::")[0], number, found[0][2]
        if not is_shared:
            days = next((days for name, days in TURNS.items() if file.startswith(name)), 1)
            turn, at = divmod(number + zlib.crc32(file.encode()) + seen[file], days)
            seen[file] += 1
            if at:
                left += [item for item, *_ in found]
                continue
        first = turn + zlib.crc32((file if is_shared else test).encode())
        left += [item for at, (item, count, _) in enumerate(found) if (first + at) % min(count, len(found))]
    return left


def test_of(item: pytest.Item) -> str:
    """The name of its test, without that of the case: 'tests/FILE.py::test_name'."""
    return item.nodeid.partition("[")[0]
