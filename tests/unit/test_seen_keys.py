"""Keys whose rows a pass saw are not asked for again; any other is."""

from __future__ import annotations

import pytest

from projectors.proving import seen_keys
from projectors.proving.seen_keys import SeenKeys


def test_numbers_that_python_hashes_alike_are_told_apart() -> None:
    assert hash(-1) == hash(-2)
    seen = SeenKeys(lambda key: str(key[0]))
    seen.add([(-1,), *((number,) for number in range(1000))])
    seen.settle()
    assert seen.unseen([(-2,), (-1,), (999,), (1000,), (5 + (1 << 61) - 1,)]) == [(-2,), (1000,), (5 + (1 << 61) - 1,)]


def test_keys_above_the_most_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_keys, "MOST_SEEN", 3)
    seen = SeenKeys(lambda key: str(key[0]))
    seen.add([(number,) for number in range(5)])
    seen.settle()
    assert seen.unseen([(number,) for number in range(5)]) == [(3,), (4,)]
