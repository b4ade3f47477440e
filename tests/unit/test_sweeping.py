"""What the sweep at the end of a backfill leaves as it was is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from projectors.fills.guarded import GuardedFill
from viewtail.changes.writes import Key

OF_VIEWTAIL = 1 << 53
OLDER = [
    {(1,): OF_VIEWTAIL + 5, (2,): OF_VIEWTAIL + 5},
    {(3,): OF_VIEWTAIL + 7},
]  # keys that the view shows with an older version than the filling's, by page


class Sink:
    def __init__(self, pages: Sequence[Mapping[Key, int]] = OLDER) -> None:
        self.written: list[Key] = []
        self._pages = pages

    def keys_below(self, view: str, version: int, mark: int | None) -> Iterator[list[tuple[Key, int]]]:
        yield from (list(page.items()) for page in self._pages)

    def write(self, writes: Any, _: Any) -> None:
        self.written += writes[0].writes


def filling_of(unparked: Callable[[Mapping[Key, int]], dict[Key, int]], *, is_adopted: bool = False) -> Any:
    return SimpleNamespace(
        view=SimpleNamespace(
            id="redis:user",
            source=(),
            own=lambda keys: keys,
            view=SimpleNamespace(entity=SimpleNamespace(version=None, dropped="")),
        ),
        vitals=SimpleNamespace(state=""),
        progress=SimpleNamespace(commit_rows=lambda: None, is_adopted=lambda: is_adopted),
        rest=lambda: None,
        unparked=unparked,
    )


@pytest.mark.parametrize("parked", [(), ((1,),), ((1,), (3,))])
def test_keys_that_are_parked_keep_what_they_showed_and_the_log_says_how_many(parked: tuple[Key, ...]) -> None:
    def unparked(keys: Mapping[Key, int]) -> dict[Key, int]:
        return {key: stored for key, stored in keys.items() if key not in parked}

    filling = filling_of(unparked)
    sink: Any = Sink()
    fill = GuardedFill(sink)
    fill._is_swept = True
    with capture_logs() as logs:
        assert fill.sweep(filling)
    assert sink.written == [key for page in OLDER for key in page if key not in parked]
    told = [(line["view"], line["keys"]) for line in logs if "parked keep what they showed" in line["event"]]
    assert told == ([("redis:user", len(parked))] if parked else [])
    assert all(line["see"] == "viewtail dead-letters list redis:user" for line in logs)


@pytest.mark.parametrize(("is_adopted", "dropped"), [(True, [(2,)]), (False, [(1,), (2,), (3,)])])
def test_what_another_tool_left_stays_where_the_view_was_adopted(is_adopted: bool, dropped: list[Key]) -> None:
    sink: Any = Sink([{(1,): 0, (2,): OF_VIEWTAIL, (3,): 17}])
    fill = GuardedFill(sink)
    fill._is_swept = True
    assert fill.sweep(filling_of(dict, is_adopted=is_adopted))
    assert sink.written == dropped
