"""Second looks: what differs for good, what is under way, what is behind."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from projectors.proving.comparison import Comparison, Difference
from projectors.proving.second_looks import LOOKS, MOST_LISTED, SecondLooks
from projectors.stores import UNREADABLE, Held
from viewtail.changes.errors import StopRequested
from viewtail.changes.writes import Key

Content = dict[str, Any] | None


class Place:
    """What table and place show at each look, by key; the last of them from then on. Stands for a whole Comparison."""

    def __init__(self, wanted: dict[int, Sequence[Any]], there: dict[int, Sequence[Any]]) -> None:
        self._wanted, self._there = wanted, there
        self.looks = 0
        self.reader = self

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        self.looks += 1
        shown = {key: self._at(self._there, key) for key in keys}
        return {key: Held(None, content) for key, content in shown.items() if content is not None}

    def expected(self, keys: Sequence[Key], version: int) -> Any:
        class Expected:
            parked = frozenset("refused" if self._at(self._wanted, key) == "refused" else "" for key in keys)

        return Expected()

    def form(self, key: Key, expected: object) -> Any:
        return self._at(self._wanted, key)

    def is_shown(self, key: Key, held: Held, expected: object) -> bool:
        return bool(held.content == self.form(key, expected))

    def name_of(self, key: Key) -> str:
        return "refused" if self._at(self._wanted, key) == "refused" else str(key[0])

    @staticmethod
    def members(content: Any) -> dict[str, Any]:
        return content if isinstance(content, dict) else {}

    def _at(self, of: dict[int, Sequence[Any]], key: Key) -> Any:
        states = of.get(key[0], [None])
        return states[min(self.looks, len(states)) - 1]


def looked(place: Place) -> SecondLooks:
    looks = SecondLooks(comparison=cast(Comparison, place), again_after_s=0.01, stop=threading.Event())
    looks.add([(1,)])
    looks.finish()
    return looks


def told(looks: SecondLooks) -> list[tuple[Difference, tuple[str, ...]]]:
    return [(found.difference, found.fields) for found in looks.found]


A, B, C = {"x": 1, "y": 1}, {"x": 2, "y": 1}, {"x": 3, "y": 1}


def test_what_stands_still_is_told_at_the_second_look() -> None:
    for wanted, there, difference, fields in (
        (A, None, Difference.MISSING, ()),
        (None, A, Difference.EXTRA, ()),
        (A, B, Difference.WRONG, ("x",)),
        (A, {"x": 1}, Difference.WRONG, ("y",)),
        (A, {"x": 1.0, "y": 5}, Difference.WRONG, ("x", "y")),
        (A, UNREADABLE, Difference.WRONG, ()),
    ):
        place = Place({1: [wanted]}, {1: [there]})
        assert told(looked(place)) == [(difference, fields)]
        assert place.looks == 2


def test_what_was_under_way_does_not_count() -> None:
    assert not looked(Place({1: [B]}, {1: [A, B]})).found
    assert not looked(Place({1: [A, B]}, {1: [B]})).found  # the row came back to what is shown
    assert not looked(Place({1: [B, B, C]}, {1: [A, A, C]})).changing


def test_a_tool_that_is_behind_at_each_look_is_stale() -> None:
    looks = looked(Place({1: [B, C]}, {1: [A, B]}))
    assert told(looks) == [(Difference.STALE, ("x",))]
    assert not looks.changing


def test_what_changes_at_each_look_is_told_as_such() -> None:
    place = Place({1: [A]}, {1: [{"x": number} for number in range(10, 20)]})
    looks = looked(place)
    assert (looks.found, looks.changing, place.looks) == ([], 1, LOOKS)


def test_a_row_that_no_such_view_can_have_is_refused() -> None:
    looks = looked(Place({1: ["refused"]}, {1: [A]}))
    assert (looks.found, looks.refused) == ([], ["refused"])


def test_of_very_many_rows_that_are_refused_some_are_named_and_all_are_counted() -> None:
    looks = looked(Place({}, {}))
    for number in range(3 * MOST_LISTED):
        looks._refuse(str(number))
    looks._refuse("7")
    assert (len(looks.refused), looks.refused_count) == (MOST_LISTED, 3 * MOST_LISTED)


def test_a_stop_ends_the_wait() -> None:
    looks = SecondLooks(
        comparison=cast(Comparison, Place({1: [A]}, {1: [B]})), again_after_s=60, stop=threading.Event()
    )
    looks.add([(1,)])
    looks.stop.set()
    with pytest.raises(StopRequested):
        looks.finish()
