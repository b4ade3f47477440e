"""The set of ids that were read, against one that is a plain set."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ingest.poll.ids import Ids
from ingest.poll.position import PollPosition

STEPS = st.lists(st.one_of(st.lists(st.integers(1, 60), max_size=30, unique=True), st.integers(0, 70)), max_size=12)


@given(STEPS)
def test_it_is_the_set_of_what_was_read_and_passed(steps: list[list[int] | int]) -> None:
    ids, plain = Ids(), set[int]()
    for step in steps:
        if isinstance(step, int):
            ids.pass_up_to(step)
            plain.update(range(1, step + 1))
        else:
            new = sorted(set(step) - plain)
            ids.add(new)
            plain.update(new)
        top = max(plain, default=0)
        missing = [number for number in range(1, top + 1) if number not in plain]
        assert ids.top == top
        assert ids.passed == (missing[0] - 1 if missing else top)
        assert [number for low, high in ids.gaps() for number in range(low, high + 1)] == missing
        assert all((number in ids) == (number in plain) for number in range(1, 75))
        runs = ids.runs
        assert all(high + 1 < low for (_, high), (low, _) in pairwise(runs))
        position = PollPosition(1, 5, {"a.b": (ids.passed, tuple(runs))})
        again = PollPosition.from_text(position.to_text())
        assert again == position and again.ids("a.b").runs == runs  # type: ignore[union-attr]


def test_ids_near_the_largest_are_kept_exactly() -> None:
    most = (1 << 63) - 1
    ids = Ids(most - 10)
    ids.add([most - 8, most - 7, most])
    assert list(ids.gaps()) == [(most - 9, most - 9), (most - 6, most - 1)]
    text = PollPosition(1, 1, {"a.b": (ids.passed, tuple(ids.runs))}).to_text()
    assert PollPosition.from_text(text).ids("a.b").top == most  # type: ignore[union-attr]
