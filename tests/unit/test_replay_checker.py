"""The checker of replays is itself tested: each thing that no reader may see is told, and nothing else is."""

from __future__ import annotations

import pytest

from tests.support.replayed import Checker, Entry, Found, Ledger, mark_of, text_of

PERSON, SOME = ("redis", "person"), ("mysql", "some")


@pytest.fixture
def checker() -> Checker:
    """Key 1 came at 1, changed at 3 and 4, was deleted at 5 and put back at 7."""
    ledger = Ledger()
    for seq, is_there in ((1, True), (3, True), (4, True), (5, False), (7, True)):
        ledger.note("person", 1, Entry(seq, is_there))
    return Checker(ledger)


def row(version: int, seq: int) -> Found:
    return Found(version, mark_of(1, seq), text_of(1, seq))


def test_what_writers_did_may_be_seen_in_order(checker: Checker) -> None:
    # A replay may show what is to come: its rows are newer than the version that they are written with.
    for version, seq, floor in ((10, 1, 0), (20, 4, 1), (30, 3, 3), (40, 4, 3)):
        checker.saw(PERSON, 1, row(version, seq), floor)
    checker.saw(PERSON, 1, Found(50, None), 5)
    checker.saw(PERSON, 1, row(70, 7), 5)
    checker.saw(PERSON, 2, None, 0)
    checker.saw(SOME, 1, Found(30, None), 3)  # 3 is kept out of this view
    checker.saw(SOME, 1, row(40, 4), 4)
    assert checker.failures == []


@pytest.mark.parametrize(
    ("first", "then", "floor", "told"),
    [
        (row(20, 4), row(19, 4), 0, "went from version 20 to 19"),
        (Found(50, None), row(50, 7), 0, "returned at version 50"),
        (row(20, 4), None, 0, "nothing is left of it"),
        (row(20, 4), row(70, 4), 7, "shows 4, which the view was past"),
        (row(20, 4), Found(70, None), 7, "is gone, and was there at 7"),
        (row(20, 4), row(60, 6), 0, "shows 6, which is no state of its row"),
        (row(20, 4), row(60, 5), 0, "shows 5, which is no state of its row"),
        (row(20, 4), Found(60, mark_of(1, 7), text_of(1, 4)), 0, "shows parts of two rows"),
        (row(20, 4), Found(60, mark_of(2, 7), text_of(2, 7)), 0, "shows parts of two rows"),
    ],
)
def test_what_no_reader_may_see_is_told(
    checker: Checker, first: Found, then: Found | None, floor: int, told: str
) -> None:
    checker.saw(PERSON, 1, first, 0)
    assert checker.failures == []
    checker.saw(PERSON, 1, then, floor)
    assert [told in failure for failure in checker.failures] == [True]


def test_a_row_that_a_view_leaves_out_is_told_where_it_shows(checker: Checker) -> None:
    checker.saw(SOME, 1, row(10, 3), 0)
    assert checker.failures == ["mysql:some 1: shows 3, which is no state of its row"]
