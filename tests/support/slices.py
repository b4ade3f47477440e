"""The part that a run of all tests takes of what is long by nature; a make target takes the whole.

Each day takes another part, so that some days take everything. Which one it was stands in the ids of the tests, and
`VIEWTAIL_TEST_SLICE=N` takes it again.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
SECONDS_A_DAY = 86_400
NUMBER = int(os.environ.get("VIEWTAIL_TEST_SLICE") or time.time() // SECONDS_A_DAY)


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
    """Of each test that is marked `one_in(N)` all cases but one in N, and at least one stays.

    Which ones depends on the day, and on the test's name, so that each day has cases of every kind. Of tests that are
    marked `one_in(N, of="file")` it depends on the file's name: they share what they are tried on, one after another.
    """
    cases: dict[str, list[tuple[pytest.Item, pytest.Mark]]] = {}
    for item in items:
        marker = item.get_closest_marker("one_in")
        if marker is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append((item, marker))
    left = []
    for name, found in cases.items():
        for at, (item, marker) in enumerate(found):
            of = name.partition("::")[0] if marker.kwargs.get("of") == "file" else name
            if (number + zlib.crc32(of.encode()) + at) % min(marker.args[0], len(found)):
                left.append(item)
    return left
