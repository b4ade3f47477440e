"""Which rows `viewtail verify --sample` compares: the share that was asked for, spread over the table."""

from __future__ import annotations

import random

import pytest

from viewtail.operations.verify import _chunks_to_pass_over


@pytest.mark.parametrize("share", [0.5, 0.05, 0.005])
def test_the_share_of_chunks_is_the_one_that_was_asked_for(share: float) -> None:
    chance, compared, chunks = random.Random(7), 0, 200_000
    at = 0
    while at < chunks:
        at += _chunks_to_pass_over(chance, share) + 1
        compared += 1
    assert compared / chunks == pytest.approx(share, rel=0.15)
