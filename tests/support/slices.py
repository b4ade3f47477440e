"""The part that `make test` takes of what is long by nature, always the same; `make whole` takes all of it."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Sequence

import pytest

# Of the tests in these folders one in so many is run. Not of those that take a part of their schedules by themselves:
# they are here with 1.
ONE_IN = {
    "tests/faults/test_convergence.py": 1,
    "tests/faults/test_document_schedules.py": 1,
    "tests/faults/test_tenant_schedules.py": 1,
    "tests/faults/test_planted_bugs.py": 1,
    "tests/faults/test_archive_faults.py": 1,
    "tests/faults/test_killed_commands.py": 1,
    "tests/faults/test_fleet_schedules.py": 1,
    "tests/faults/test_polling_faults.py": 1,
    "tests/faults/test_adoption_schedules.py": 1,
    "tests/faults/test_killed_adoptions.py": 1,
    "tests/faults/test_topic_schedules.py": 1,
    "tests/acceptance/test_killed_deployment.py": 1,
    "tests/acceptance/test_demo.py": 1,  # what a new user runs first
    "tests/acceptance/test_helm_chart.py": 1,
    "tests/acceptance/test_container_build.py": 1,
    "tests/acceptance/test_distribution.py": 1,  # what users install
    "tests/acceptance/test_howto.py": 1,
    "tests/acceptance/test_site.py": 1,
    "tests/acceptance/": 7,
    "tests/faults/": 7,
    "tests/integration/": 5,
    "tests/contract/": 2,
}


LAST_SEED = 12  # what every second, third or fourth schedule has is in it


def seeds(count: int, variable: str) -> list[int]:
    """Of schedules: that of VIEWTAIL_TEST_SEED alone, the first ones where `variable` says how many, or `count`."""
    if one := os.environ.get("VIEWTAIL_TEST_SEED"):
        return [int(one)]
    if first := os.environ.get(variable):
        return list(range(1, 1 + int(first)))
    last = max(LAST_SEED, count)
    return list(range(1 + last - count, 1 + last))


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """What `make test` leaves out, of `items` in the order of their files.

    Of tests in the folders of ONE_IN, most. Of a test that is marked `one_in(N)`, all cases but one in N, and at least
    one stays. Which ones depends on the name. Tests that are marked `one_in(N, of="file")` are all run, and the name
    is the file's: they share what they are tried on, one after another.
    """
    cases: dict[str, list[tuple[pytest.Item, int, bool]]] = {}
    for item in items:
        marker = item.get_closest_marker("one_in")
        count, of = (1, "test") if marker is None else (marker.args[0], marker.kwargs.get("of"))
        cases.setdefault(test_of(item), []).append((item, count, of == "file"))
    left, seen = [], Counter[str]()
    for test, found in cases.items():
        file, is_shared = test.partition("::")[0], found[0][2]
        if not is_shared:
            number = zlib.crc32(file.encode()) + seen[file]
            seen[file] += 1
            if number % next((parts for name, parts in ONE_IN.items() if file.startswith(name)), 1):
                left += [item for item, *_ in found]
                continue
        first = zlib.crc32((file if is_shared else test).encode())
        left += [item for at, (item, count, _) in enumerate(found) if (first + at) % min(count, len(found))]
    return left


def test_of(item: pytest.Item) -> str:
    """The name of its test, without that of the case: 'tests/FILE.py::test_name'."""
    return item.nodeid.partition("[")[0]
