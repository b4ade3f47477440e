"""What a publisher promises beyond every sink: each change exactly once, and the position with it or not at all.

The stores are in sinks.py beside this file, the fake among them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from projectors.stores import GuardedSink, Publisher
from projectors.views import BoundView
from tests.contract.sinks import PUBLISHERS, SHARED_SERVERS, PublisherStore
from tests.contract.test_sink_contract import position
from tests.support.missing import missing
from viewtail.changes.batches import Watermark
from viewtail.changes.errors import FencedError, StoreUnavailableError
from viewtail.changes.writes import KeptChange, ViewWrites

_tokens = itertools.count(1)


@pytest.fixture(params=sorted(PUBLISHERS))
def store(request: pytest.FixtureRequest) -> Iterator[PublisherStore]:
    shared = SHARED_SERVERS.get(request.param)
    server = request.getfixturevalue(shared) if shared else None
    found = PUBLISHERS[request.param](server, f"publisher_{next(_tokens)}")
    yield found
    found.close()


@pytest.fixture
def sink(store: PublisherStore) -> Iterator[Publisher]:
    sink = store.sink()
    assert sink.prepare() == {}
    yield sink
    sink.close()


def changes(view: BoundView, versions: range, op: str = "insert") -> ViewWrites:
    """One change a version, each of a key of its own."""
    made = [
        KeptChange((version,), version, op, None, None if op == "delete" else (f"e{version}", None))
        for version in versions
    ]
    return ViewWrites(view.id, None, made)


def versions(store: PublisherStore) -> list[int]:
    return sorted(version for _, version, _, _ in store.published(store.person))


def test_a_publisher_is_told_apart_from_a_guarded_sink(sink: Publisher) -> None:
    assert isinstance(sink, Publisher)
    assert not isinstance(sink, GuardedSink)


def test_every_change_of_a_key_is_published_in_order_and_none_is_coalesced(
    store: PublisherStore, sink: Publisher
) -> None:
    history = [
        KeptChange((1,), 5, "insert", None, ("a", None)),
        KeptChange((1,), 6, "update", ("a", None), ("b", "n")),
        KeptChange(
            (1,), 6, "update", ("a", None), ("b", "n")
        ),  # a source that repeats itself is not this one's concern
        KeptChange((1,), 7, "delete", ("b", "n"), None),
        KeptChange((1,), 8, "insert", None, ("c", None)),
        KeptChange((1,), 9, "read", None, ("c", None)),
    ]
    sink.write([ViewWrites(store.person.id, None, history)], position(500))
    found = [(op, version, after) for _, version, op, after in store.published(store.person)]
    assert found == [
        ("insert", 5, ("a", None)),
        ("update", 6, ("b", "n")),
        ("update", 6, ("b", "n")),
        ("delete", 7, None),
        ("insert", 8, ("c", None)),
        ("read", 9, ("c", None)),
    ]


@pytest.mark.parametrize("is_kept", [False, True])
def test_after_a_commit_that_was_not_answered_each_change_is_there_once(store: PublisherStore, is_kept: bool) -> None:
    sink = store.sink()
    sink.prepare()
    sink.write([changes(store.person, range(100, 110))], position(500))
    store.break_off(sink, is_kept)
    with pytest.raises(StoreUnavailableError):
        sink.write([changes(store.person, range(110, 120))], position(600))
    with pytest.raises(StoreUnavailableError):
        sink.write([], position(600))  # nothing is assumed before `prepare`
    sink.prepare()
    kept = sink.witness(position(500))
    assert kept == position(600 if is_kept else 500)
    if not is_kept:
        sink.write([changes(store.person, range(110, 120))], position(600))
    assert versions(store) == [*range(100, 120)]
    sink.close()


def test_the_witness_is_committed_with_the_changes_or_not_at_all(store: PublisherStore, sink: Publisher) -> None:
    assert sink.witness(position(9_000)) is None
    sink.write([changes(store.person, range(100, 103))], position(500))
    assert sink.witness(position(9_000)) == position(500), "the offset is no witness"
    sink.write([changes(store.person, range(103, 106))], None)
    assert sink.witness(position(9_000)) == position(500)
    again = store.sink()
    again.prepare()
    assert again.witness(position(9_000)) == position(500)
    assert versions(store) == [100, 101, 102]
    again.write([], position(700))
    again.close()
    third = store.sink()
    third.prepare()
    assert third.witness(position(9_000)) == position(700)
    third.close()


def test_a_place_is_empty_until_something_is_appended_to_it(store: PublisherStore, sink: Publisher) -> None:
    assert sink.is_empty(store.person.id)
    sink.write([], position(400))
    assert sink.is_empty(store.person.id), "a position alone is kept elsewhere"
    sink.write([changes(store.person, range(50, 60))], None)
    time.sleep(0.3)  # a real store has them by then
    assert sink.prepare() == {}
    assert sink.is_empty(store.person.id), "what a process had written when it died is taken back"
    sink.write([changes(store.person, range(100, 101), "delete")], position(500))
    assert not sink.is_empty(store.person.id)


def test_pieces_are_seen_together_when_the_write_with_their_position_comes(
    store: PublisherStore, sink: Publisher
) -> None:
    sink.write([changes(store.person, range(100, 110))], None)
    sink.write([changes(store.person, range(110, 120))], None)
    assert versions(store) == []
    sink.write([changes(store.person, range(120, 125))], position(500))
    assert versions(store) == [*range(100, 125)]


def test_pieces_without_their_end_are_taken_back(store: PublisherStore, sink: Publisher) -> None:
    sink.write([changes(store.person, range(100, 110))], None)
    sink.close()
    sink.prepare()
    assert sink.witness(position(1)) is None
    sink.write([changes(store.person, range(200, 203))], position(500))
    assert versions(store) == [200, 201, 202]


def test_the_notes_of_fills_are_durable_with_the_next_position_and_not_before(
    store: PublisherStore, sink: Publisher
) -> None:
    sink.fills[store.person.id] = "up to 100"
    sink.write([changes(store.person, range(100, 101))], position(500))
    sink.fills[store.person.id] = "up to 200"
    sink.write([changes(store.person, range(200, 201))], None)
    again = store.sink()
    again.prepare()
    assert again.fills == {store.person.id: "up to 100"}
    del again.fills[store.person.id]
    again.write([], position(600))
    again.close()
    sink.prepare()
    assert sink.fills == {}


def test_consumers_are_told_of_watermarks_at_once(store: PublisherStore, sink: Publisher) -> None:
    sink.on_passed([Watermark("t1", 11), Watermark("t2", 12)])
    sink.write([changes(store.person, range(100, 101))], position(500))
    sink.publish_watermarks()
    assert store.told() == ({"t1": 11, "t2": 12}, position(500).version)
    sink.on_passed([])
    sink.publish_watermarks()
    sink.on_passed([Watermark("t3", 13)])
    sink.write([changes(store.person, range(101, 102))], position(600))
    sink.publish_watermarks()
    assert store.told() == ({"t1": 11, "t2": 12, "t3": 13}, position(600).version)


def test_a_watermark_is_told_by_the_next_owner_when_one_dies_between_its_batch_and_that(
    store: PublisherStore, sink: Publisher
) -> None:
    """Nobody reads it again: the position is past it. Whoever waits for it would wait in vain."""
    sink.on_passed([Watermark("t1", 11)])
    sink.write([changes(store.person, range(100, 101))], position(500))
    sink.on_passed([Watermark("t2", 12)])
    sink.write([changes(store.person, range(101, 102))], None)
    again = store.sink()
    again.prepare()
    again.settle()
    assert store.told() == ({"t1": 11}, position(500).version), "what was read again later is told then"
    again.settle()
    again.on_passed([Watermark("t2", 12)])
    again.write([changes(store.person, range(101, 102))], position(600))
    again.publish_watermarks()
    assert store.told() == ({"t1": 11, "t2": 12}, position(600).version)
    again.close()


def test_a_watermark_is_told_when_all_is_published_that_changed_before_it(
    store: PublisherStore, sink: Publisher
) -> None:
    """What very many rows depend on comes page by page, behind the position."""
    sink.lacks_from = lambda: 12
    sink.on_passed([Watermark("t1", 11), Watermark("t2", 12), Watermark("t3", 13)])
    sink.write([changes(store.person, range(100, 101))], position(500))
    sink.publish_watermarks()
    sink.publish_watermarks()
    assert store.told()[0] == {"t1": 11}
    assert not sink.is_open
    sink.write([changes(store.person, range(101, 102))], None)
    assert sink.is_open
    sink.commit()
    assert not sink.is_open and versions(store) == [100, 101], "a page is committed without a position"
    again = store.sink()
    again.prepare()
    assert again.witness(position(1)) == position(500)
    again.lacks_from = lambda: 13
    again.settle()
    assert store.told()[0] == {"t1": 11, "t2": 12}, "the next owner knows of them"
    again.lacks_from = lambda: 99
    again.settle()
    assert store.told()[0] == {"t1": 11, "t2": 12, "t3": 13}
    again.close()


def test_what_is_unfinished_is_durable_with_the_position(store: PublisherStore, sink: Publisher) -> None:
    sink.unfinished = lambda: {store.person.id: 7}
    sink.write([changes(store.person, range(100, 101))], None)
    assert sink.was_unfinished == {}
    sink.write([], position(500))
    again = store.sink()
    again.prepare()
    assert again.was_unfinished == {store.person.id: 7}
    again.write([], position(501))
    last = store.sink()
    last.prepare()
    assert last.was_unfinished == {}
    last.close()
    again.close()


def test_the_oldest_watermarks_are_forgotten_where_too_many_wait_to_be_told(
    store: PublisherStore, sink: Publisher
) -> None:
    """All are in each record of the position, which a broker takes up to a size; who waits for one writes it again."""
    sink.lacks_from = lambda: 10_001
    sink.on_passed([Watermark("told", 10_000)])
    for first in (10_001, 10_801):
        sink.on_passed([Watermark(f"t{version}", version) for version in range(first, first + 800)])
        sink.write([], position(first))
        sink.publish_watermarks()
    assert store.told()[0] == {"told": 10_000}
    sink.lacks_from = lambda: 99_999
    sink.publish_watermarks()
    told = store.told()[0]
    assert told == {"told": 10_000, **{f"t{version}": version for version in range(10_601, 11_601)}}


def test_when_nothing_happens_consumers_are_told_how_far_they_are(store: PublisherStore, sink: Publisher) -> None:
    sink.settle()
    assert store.told() == ({}, None), "there is nothing to tell before the first position"
    sink.write([changes(store.person, range(100, 101))], position(500))
    sink.settle()
    assert store.told()[1] == position(500).version
    sink.write([changes(store.person, range(101, 102))], None)
    sink.settle()
    assert versions(store) == [100], "it commits no piece"


def test_a_place_that_was_deleted_is_missing_and_the_next_one_is_another(
    store: PublisherStore, sink: Publisher
) -> None:
    fresh = store.sink()
    assert missing(fresh) == frozenset()
    before = dict(sink.incarnations())
    assert before.keys() == {store.person.id, store.place.id}
    sink.prepare()
    assert sink.incarnations() == before
    sink.write([changes(store.person, range(100, 103))], position(500))
    store.delete(store.person)
    assert missing(sink) == {store.person.id}
    sink.prepare()
    after = sink.incarnations()
    assert after[store.person.id] != before[store.person.id]
    assert after[store.place.id] == before[store.place.id]
    assert missing(sink) == frozenset()
    sink.write([changes(store.person, range(200, 201))], position(600))
    assert versions(store) == [200]


def test_a_second_sink_of_the_pipeline_fences_the_first(store: PublisherStore, sink: Publisher) -> None:
    sink.write([changes(store.person, range(100, 103))], position(500))
    sink.write([changes(store.person, range(103, 106))], None)
    other = store.sink()
    other.prepare()
    with pytest.raises(FencedError):
        sink.write([changes(store.person, range(106, 109))], position(600))
    other.write([changes(store.person, range(103, 106))], position(550))
    assert versions(store) == [*range(100, 106)]
    other.close()


def test_a_fenced_sink_that_has_nothing_to_write_finds_out_too(store: PublisherStore, sink: Publisher) -> None:
    sink.write([changes(store.person, range(100, 103))], position(500))
    other = store.sink()
    other.prepare()
    with pytest.raises(FencedError):
        sink.write([], position(600))
    assert other.witness(position(1)) == position(500)
    other.close()
