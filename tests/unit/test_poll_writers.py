"""Who may still bring rows, where nobody says so."""

from __future__ import annotations

from typing import cast

import pytest

from ingest.poll import writers
from ingest.poll.writers import BoundedWait, still_open
from viewtail.servers.sessions import Connection

NOBODY = cast(Connection, None)


@pytest.mark.parametrize("wait_s", [0.1, 5, 3_600, 86_400])
def test_a_bounded_wait_lasts_as_long_as_it_says_and_keeps_little(
    wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded, now = BoundedWait(wait_s), 1_000.0
    monkeypatch.setattr(writers.time, "monotonic", lambda: now)
    looks = []
    for _ in range(100):
        at, open_then = now, bounded.now(NOBODY, "a", "b")
        looks.append(open_then)
        now = at + wait_s
        assert still_open(open_then, bounded.now(NOBODY, "a", "b")), "a transaction of that length is waited for"
        now = at + wait_s * 1.05 + 0.25
        assert not still_open(open_then, bounded.now(NOBODY, "a", "b"))
        now = at + wait_s / 1_000
    assert max(map(len, looks)) <= 22
    assert len({frozenset(one) for one in looks}) <= 4, "looks that follow each other closely are one"


def test_a_session_counts_until_it_is_in_another_transaction_or_in_none() -> None:
    before = {1: 10, 2: 20, 3: 30, 4: None, 5: None}
    assert still_open(before, {1: 10, 2: 21, 3: None, 4: 40}) == {1: 10, 3: 30, 4: None}
