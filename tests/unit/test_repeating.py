"""When a reason to wait is said."""

from __future__ import annotations

import pytest

from viewtail.changes import repeating
from viewtail.changes.repeating import Repeats


def test_a_reason_is_said_when_it_is_new_and_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(repeating.time, "monotonic", lambda: now[0])
    repeats, said = Repeats(30), list[tuple[float, str | None]]()
    looks = [(0, None), (1, "down"), (2, "down"), (30, "down"), (31, "down"), (32, "busy"), (33, "down"), (34, "down")]
    looks += [(35, None), (36, "down"), (64, None), (65, "down")]
    for at, why in looks:
        now[0] = 100.0 + at
        if repeats.is_due(why):
            said.append((at, why))
    assert said == [(1, "down"), (31, "down"), (32, "busy"), (33, "down"), (36, "down"), (65, "down")]
