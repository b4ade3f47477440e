"""Sums of names: what tells that the same were added, and where not."""

from __future__ import annotations

import random

import pytest

from projectors.stores.redis.names import PARTS, NameSums, of_parts


def names_of(numbers: range | list[int]) -> list[bytes]:
    return [b"user:%d" % number for number in numbers]


def test_the_same_names_in_another_order_differ_in_no_part() -> None:
    written, present = NameSums(), NameSums()
    for start in range(0, 20_000, 100):
        written.add(names_of(range(start, start + 100)))
    shuffled = names_of(range(20_000))
    random.Random(1).shuffle(shuffled)
    present.add(shuffled)
    assert present.differing(written) == frozenset()


@pytest.mark.parametrize("more", ["written", "present", "both"])
def test_a_name_that_is_in_one_of_both_is_in_a_part_that_differs(more: str) -> None:
    written, present = NameSums(), NameSums()
    written.add(names_of(range(20_000)))
    present.add(names_of(range(20_000)))
    apart = names_of([70_001]) if more in ("written", "both") else []
    left = names_of([80_001, 80_002]) if more in ("present", "both") else []
    written.add(apart)
    present.add(left)
    differing = present.differing(written)
    assert set(of_parts([*apart, *left], differing)) == {*apart, *left}
    assert len(differing) <= len([*apart, *left])
    looked_at = len(of_parts(names_of(range(20_000)), differing))
    assert looked_at <= 4 * len(differing) * 20_000 / PARTS, "of the others few are looked at"


def test_a_name_that_came_twice_is_looked_at() -> None:
    written, present = NameSums(), NameSums()
    written.add(names_of(range(100)))
    present.add(names_of([*range(100), 7]))
    assert b"user:7" in of_parts(names_of(range(100)), present.differing(written))
