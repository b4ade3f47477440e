"""The hash ring: every process finds the same owner, shares are about even, and a change moves only its own share."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from viewtail.entities.serving.ring import Ring

MEMBERS = [f"http://m{at}:8080" for at in range(5)]
IDS = [f"e{at}" for at in range(5_000)]


@given(st.permutations(MEMBERS), st.text(max_size=190))
def test_every_process_finds_the_same_owner(order: list[str], entity_id: str) -> None:
    owner = Ring(order).owner("bank.account", entity_id)
    assert owner == Ring(MEMBERS).owner("bank.account", entity_id) and owner in MEMBERS


def test_shares_are_about_even() -> None:
    ring = Ring(MEMBERS)
    shares = Counter(ring.owner("bank.account", one) for one in IDS)
    assert set(shares) == set(MEMBERS) and all(600 < count < 1_500 for count in shares.values()), shares


def test_a_member_that_leaves_moves_its_own_entities_and_no_others() -> None:
    before, after = Ring(MEMBERS), Ring(MEMBERS[1:])
    moved = [one for one in IDS if before.owner("t.t", one) != after.owner("t.t", one)]
    assert moved and {before.owner("t.t", one) for one in moved} == {MEMBERS[0]}
