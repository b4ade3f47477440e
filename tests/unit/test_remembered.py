"""What a worker remembers of entities: the newest, for a moment, in bounded memory."""

from __future__ import annotations

import time

import pytest

from viewtail.entities import remembered
from viewtail.entities.remembered import Remembered


def test_the_newest_of_each_entity_is_remembered() -> None:
    kept = Remembered()
    kept.keep({"ada": (1, b"{}", 1), "bob": (7, b"{}", 3)})
    kept.keep({"ada": (2, b"[]", 1)})
    assert kept.of(["ada", "bob", "eve"]) == {"ada": (2, b"[]", 1), "bob": (7, b"{}", 3)}


def test_where_nothing_was_committed_for_a_moment_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Remembered()
    kept.keep({"ada": (1, b"{}", 1)})
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + remembered.FOR_S + 0.1)
    assert kept.of(["ada"]) == {}


def test_nothing_is_remembered_for_a_moment_after_it_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Remembered()
    kept.keep({"ada": (1, b"{}", 1)})
    kept.forget()
    kept.keep({"ada": (2, b"{}", 1)})
    assert kept.of(["ada"]) == {}
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + remembered.FOR_S + 0.1)
    kept.keep({"ada": (3, b"{}", 1)})
    assert kept.of(["ada"]) == {"ada": (3, b"{}", 1)}


def test_what_is_remembered_is_bounded_in_bytes_and_the_latest_stay() -> None:
    kept, state = Remembered(), b"x" * (1 << 20)
    for number in range(40):
        kept.keep({str(number): (1, state, 1), "busy": (number, b"", 1)})
    found = kept.of([*map(str, range(40)), "busy"])
    assert len(found) * len(state) <= remembered.MOST_BYTES + 2 * len(state)
    assert {"39", "38", "busy"} <= found.keys() and "0" not in found
