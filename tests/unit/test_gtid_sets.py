"""Sets of GTIDs: read, written, encoded and grown exactly, whatever the order."""

from __future__ import annotations

import itertools
import random
import struct
import uuid
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.gtid_sets import GtidSet, contains, count_beyond, grown, union
from ingest.binlog.gtids import gtid_text
from ingest.binlog.gtids_read import GtidsRead
from viewtail.changes.errors import SourceError

ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)
TRANSACTIONS = st.lists(
    st.tuples(st.sampled_from([ONE, TWO]), st.sampled_from(["", "", "", "nightly"]), st.integers(1, 40)),
    unique=True,
    max_size=60,
)


def kept(source: uuid.UUID, tag: str, number: int) -> bytearray:
    """What is kept of a GTID event."""
    flags = bytes([0x40 if tag else 1])
    return bytearray(flags + source.bytes + struct.pack("<q", number) + bytes([len(tag)]) + bytes(23) + tag.encode())


def behind_each_other(transactions: Iterable[tuple[uuid.UUID, str, int]]) -> bytearray:
    return bytearray(b"".join(kept(*one) for one in transactions))


def plain(transactions: list[tuple[uuid.UUID, str, int]]) -> set[tuple[uuid.UUID, str, int]]:
    """Through the text of a set, back to its members."""
    found = GtidSet()
    for source, tag, number in transactions:
        found.add((source.bytes, tag), number, number)
    again = GtidSet(str(found))
    assert GtidSet.decoded(found.encoded()).intervals == again.intervals == found.intervals
    for intervals in found.intervals.values():
        assert all(one[1] + 1 < other[0] for one, other in itertools.pairwise(intervals))
    return {
        (uuid.UUID(bytes=source), tag, number)
        for (source, tag), intervals in again.intervals.items()
        for first, last in intervals
        for number in range(first, last + 1)
    }


@given(TRANSACTIONS)
def test_a_set_holds_what_was_added_and_nothing_else(
    transactions: list[tuple[uuid.UUID, str, int]],
) -> None:
    assert plain(transactions) == set(transactions)


@given(TRANSACTIONS, st.randoms(use_true_random=False))
def test_what_was_seen_is_exact_behind_every_batch(
    transactions: list[tuple[uuid.UUID, str, int]], chance: random.Random
) -> None:
    """In runs mostly, as a primary writes them; `base` and the last GTID are enough to tell it."""
    if chance.random() < 0.7:
        transactions.sort(key=lambda one: (str(one[0]), one[1], one[2]))
    seen, done = GtidsRead(f"{ONE}:100"), [(ONE, "", 100)]
    while transactions:
        count = chance.randint(1, 7)
        some, transactions = transactions[:count], transactions[count:]
        seen.add(behind_each_other(some))
        done += some
        position = BinlogPosition(
            epoch=1, file="b.000001", end=9, start=4, gtid=gtid_text(kept(*some[-1])), gtid_base=seen.base
        )
        assert GtidSet(position.seen).intervals == GtidSet(seen.exact()).intervals
        assert plain(done) == set(done)
        assert {
            (uuid.UUID(bytes=source), tag, number)
            for (source, tag), intervals in GtidSet(position.seen).intervals.items()
            for first, last in intervals
            for number in range(first, last + 1)
        } == set(done)


def test_a_set_is_not_written_anew_while_a_primary_goes_on() -> None:
    seen = GtidsRead(f"{ONE}:1-10,{TWO}:1-5")
    base = seen.base
    for begin in range(11, 1011, 100):
        seen.add(behind_each_other((ONE, "", number) for number in range(begin, begin + 100)))
        assert seen.base is base
    assert seen.exact() == f"{ONE}:1-1010,{TWO}:1-5" == grown(base, f"{ONE}:1010")
    seen.add(behind_each_other((ONE, "", number) for number in (1011, 1013, 1012, 1015)))
    assert seen.base == f"{ONE}:1-1013:1015,{TWO}:1-5"


def test_a_run_of_another_source_in_its_midst_is_noticed() -> None:
    seen = GtidsRead(f"{ONE}:1")
    seen.add(behind_each_other([(ONE, "", 2), (TWO, "", 3), (ONE, "", 4)]))
    assert seen.exact() == f"{ONE}:1-2:4,{TWO}:3"


@pytest.mark.parametrize("text", ["x", f"{ONE}:a-b", f"{ONE}:1-2:-", f"{ONE}:1;2"])
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"tag|UUID"):
        GtidSet(text)


@pytest.mark.parametrize("cut", [1, 7, 12, 30, 45])
def test_bytes_that_end_too_early_are_refused(cut: int) -> None:
    encoded = GtidSet(f"{ONE}:1-5:9,{TWO}:tag:3").encoded()
    with pytest.raises(ValueError, match="too early"):
        GtidSet.decoded(encoded[: len(encoded) - cut])


@pytest.mark.parametrize(("base", "gtid"), [(f"{uuid.UUID(int=1)}:1-10", "0-1-5"), ("0-1-5", f"{uuid.UUID(int=1)}:11")])
def test_what_is_of_two_kinds_of_servers_is_no_position(base: str, gtid: str) -> None:
    mixed = BinlogPosition(epoch=1, file="binlog.000001", end=200, start=100, gtid=gtid, gtid_base=base)
    with pytest.raises(SourceError, match=r"binlog\.000001:200.*not one server's"):
        _ = mixed.seen


def text_of(transactions: Iterable[tuple[uuid.UUID, str, int]]) -> str:
    found = GtidSet()
    for source, tag, number in transactions:
        found.add((source.bytes, tag), number, number)
    return str(found)


@given(TRANSACTIONS, TRANSACTIONS)
def test_sets_are_joined_compared_and_counted_as_their_members_are(
    one: list[tuple[uuid.UUID, str, int]], other: list[tuple[uuid.UUID, str, int]]
) -> None:
    first, second = text_of(one), text_of(other)
    assert union(first, second) == text_of({*one, *other})
    assert contains(first, second) == ({*other} <= {*one})
    assert count_beyond(first, second) == len({*other} - {*one})


def test_numbers_of_a_domain_are_counted_where_one_server_wrote_its_last_two() -> None:
    assert count_beyond("0-1-57,2-1-9", "0-1-58") == 1
    assert count_beyond("0-1-57", "0-1-50") == 0
    assert count_beyond("0-1-57", "0-1-57,3-4-2") == 2, "a domain of which nothing was read"
    assert count_beyond("0-1-57", "0-2-58") is None
    assert contains("0-1-57,2-1-9", "0-2-57") and not contains("0-1-57", "0-1-57,2-1-1")
    assert union("0-1-57,2-1-9", "0-1-58") == "0-1-58,2-1-9"
