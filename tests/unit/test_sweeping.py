"""What the sweep at the end of a backfill leaves as it was is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from projectors.fills.guarded import GuardedFill
from viewtail.changes.writes import Key

OLDER = [{(1,): 5, (2,): 5}, {(3,): 7}]  # keys that the view shows with an older version than the filling's, by page


class Sink:
    def __init__(self) -> None:
        self.written: list[Key] = []

    def keys_below(self, view: str, version: int, mark: int | None) -> Iterator[list[tuple[Key, int]]]:
        yield from (list(page.items()) for page in OLDER)

    def write(self, writes: Any, _: Any) -> None:
        self.written += writes[0].writes


@pytest.mark.parametrize("parked", [(), ((1,),), ((1,), (3,))])
def test_keys_that_are_parked_keep_what_they_showed_and_the_log_says_how_many(parked: tuple[Key, ...]) -> None:
    def unparked(keys: Mapping[Key, int]) -> dict[Key, int]:
        return {key: stored for key, stored in keys.items() if key not in parked}

    filling: Any = SimpleNamespace(
        view=SimpleNamespace(
            id="redis:user", source=(), view=SimpleNamespace(entity=SimpleNamespace(version=None, dropped=""))
        ),
        vitals=SimpleNamespace(state=""),
        progress=SimpleNamespace(commit_rows=lambda: None),
        rest=lambda: None,
        unparked=unparked,
    )
    sink: Any = Sink()
    fill = GuardedFill(sink)
    fill._is_swept = True
    with capture_logs() as logs:
        assert fill.sweep(filling)
    assert sink.written == [key for page in OLDER for key in page if key not in parked]
    told = [(line["view"], line["keys"]) for line in logs if "parked keep what they showed" in line["event"]]
    assert told == ([("redis:user", len(parked))] if parked else [])
    assert all(line["see"] == "viewtail dead-letters list redis:user" for line in logs)
