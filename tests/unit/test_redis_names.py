"""Names as numbers: what tells that the same were written as are there, and which were not."""

from __future__ import annotations

import random

import msgpack
import pytest

from projectors.stores.redis import names as names_module
from projectors.stores.redis.names import WrittenNames, total_of


def names_of(numbers: range | list[int]) -> list[str]:
    return [f"user:é{number}" for number in numbers]


def pages_of(names: list[str]) -> list[bytes]:
    return [msgpack.packb(names[start : start + 500]) for start in range(0, len(names), 500)]


def written_of(numbers: range | list[int]) -> WrittenNames:
    written, names = WrittenNames(), names_of(numbers)
    for start in range(0, len(names), 100):
        written.add(list(map(hash, names[start : start + 100])))
    return written


def missing_in(written: WrittenNames, pages: list[bytes]) -> list[str]:
    return [name for some in written.missing_from(pages) for name in some]


def missing(written: WrittenNames, present: list[str]) -> list[str]:
    return missing_in(written, pages_of(present))


def test_the_same_names_in_another_order_add_up_to_the_same() -> None:
    shuffled = names_of(range(20_000))
    random.Random(1).shuffle(shuffled)
    written = written_of(range(20_000))
    assert sum(map(total_of, pages_of(shuffled))) == written.total
    assert missing(written, shuffled) == []


@pytest.mark.parametrize("a_pass", [50_000, 3_000])
@pytest.mark.parametrize("more", ["written", "present", "both"])
def test_names_that_are_there_and_were_not_written_are_found_and_no_others(
    more: str, a_pass: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_module, "NAMES_A_PASS", a_pass)
    apart = [70_001] if more in ("written", "both") else []
    left = names_of([80_001, 80_002] if more in ("present", "both") else [])
    written, present = written_of([*range(20_000), *apart]), [*names_of(range(20_000)), *left]
    assert sum(map(total_of, pages_of(present))) != written.total
    assert sorted(missing(written, present)) == left


def test_a_name_that_came_twice_is_noticed_and_is_not_missing() -> None:
    written, present = written_of(range(100)), names_of([*range(100), 7])
    assert sum(map(total_of, pages_of(present))) != written.total
    assert missing(written, present) == []


def test_names_of_others_that_are_no_utf_8_are_told_as_they_are() -> None:
    page: bytes = msgpack.Packer().pack_array_header(2) + b"\xa6user:\xff\xa8user:\xc3\xa91"
    assert [name.encode("utf-8", "surrogateescape") for name in missing_in(written_of([1]), [page])] == [b"user:\xff"]


def test_a_page_without_missing_names_is_told_too() -> None:
    """Whoever sweeps looks between two pages whether it is to stop."""
    assert list(written_of(range(3_000)).missing_from(pages_of(names_of(range(1_000))))) == [[], []]
