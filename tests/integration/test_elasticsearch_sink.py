"""The Elasticsearch sink on a real server, where the contract suite does not reach."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from elasticsearch import Elasticsearch

from ingest.binlog.coordinates import BinlogPosition
from projectors.stores import NOTHING_HELD
from projectors.stores.elasticsearch.sink import ElasticsearchSink
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.views import Entity
from stack import Server
from tests.contract.sinks import PERSON, ElasticsearchOne, bound
from tests.support.documents import get, search
from tests.support.missing import missing
from viewtail.changes.errors import MisuseError, StoreError, StoreUnavailableError
from viewtail.changes.writes import Key, ViewWrites, Write


def place(number: int) -> BinlogPosition:
    return BinlogPosition(epoch=1, file="binlog.000001", end=100 + number, start=100, gtid=f"u:{number}")


@pytest.fixture
def one(elasticsearch_server: Server) -> Iterator[ElasticsearchOne]:
    made = ElasticsearchOne(elasticsearch_server, uuid.uuid4().hex[:12])
    yield made
    made.close()


@pytest.fixture
def sink(one: ElasticsearchOne) -> Iterator[ElasticsearchSink]:
    made = one.sink()
    made.prepare()
    yield made
    made.close()


@pytest.fixture
def client(one: ElasticsearchOne) -> Iterator[Elasticsearch]:
    made = one.client()
    yield made
    made.close()


def write(
    sink: ElasticsearchSink,
    one: ElasticsearchOne,
    writes: dict[Key, Write],
    upto: BinlogPosition | None = None,
) -> int:
    return len(sink.write([ViewWrites(one.person.id, writes)], upto))


def test_a_deleted_key_stays_deleted_after_the_server_forgot_its_deletes(
    one: ElasticsearchOne, sink: ElasticsearchSink, client: Elasticsearch
) -> None:
    index = f"viewtail-{one.person.view.name}"
    client.indices.put_settings(index=index, settings={"index.gc_deletes": "0s"})
    write(sink, one, {(1,): Write(5, ("a", "b"))})
    write(sink, one, {(1,): Write(9, None)})
    client.indices.refresh(index=index)
    client.indices.forcemerge(index=index, max_num_segments=1)
    write(sink, one, {(1,): Write(7, ("old", "old"))})
    assert one.shown(one.person) == {}
    assert get(client, one.person, (1,)) is None
    write(sink, one, {(1,): Write(10, ("new", None))})
    assert get(client, one.person, (1,)) == (10, {"email": "new"})


def test_the_version_of_a_document_that_somebody_deleted_can_be_taken_away(
    one: ElasticsearchOne, sink: ElasticsearchSink, client: Elasticsearch
) -> None:
    write(sink, one, {(1,): Write(5, ("a", "b"))})
    client.delete(index=f"viewtail-{one.person.view.name}", id="1")
    write(sink, one, {(1,): Write(5, ("a", "b"))})
    assert one.shown(one.person) == {}, "Elasticsearch remembers the version of its delete"
    sink.take_away(one.person.id, {(1,): NOTHING_HELD})
    write(sink, one, {(1,): Write(5, ("a", "b"))})
    assert one.shown(one.person) == {(1,): Write(5, ("a", "b"))}


def test_what_a_failed_write_was_to_take_away_stays_there_when_another_follows(
    one: ElasticsearchOne, sink: ElasticsearchSink
) -> None:
    write(sink, one, {(1,): Write(5, ("a", "b"))})
    with closing(one.reader(one.person)) as reader:
        held = reader.held([(1,)])
    sink.close()
    sink.take_away(one.person.id, held)
    with pytest.raises(StoreUnavailableError):
        write(sink, one, {(1,): Write(4, ("c", "d"))})
    sink.take_away(one.person.id, held)
    sink.prepare()
    write(sink, one, {(2,): Write(5, ("e", "f"))})
    assert one.shown(one.person) == {(1,): Write(5, ("a", "b")), (2,): Write(5, ("e", "f"))}


def test_a_document_too_large_for_the_nodes_memory_is_parked_and_all_others_are_written(
    one: ElasticsearchOne, sink: ElasticsearchSink
) -> None:
    """The node has 512 MiB of heap: 10 % of that for writes, and writing a text takes several times its bytes."""
    writes: dict[Key, Write] = {(at,): Write(5, ("small", None)) for at in range(1, 1200)}
    writes[600,] = Write(5, ("x" * 15_000_000, None))
    (letter,) = sink.write([ViewWrites(one.person.id, writes)], None)
    assert letter.key == "600"
    assert re.match(r"its 15,000,\d+ bytes need [\d,]+ bytes of memory .* has 53,687,091 for all", letter.reason)
    assert len(one.shown(one.person)) == 1198
    assert write(sink, one, {(600,): Write(6, ("mended", None))}) == 0
    assert one.shown(one.person)[600,] == Write(6, ("mended", None))


def test_documents_that_only_together_are_too_large_are_waited_for(
    one: ElasticsearchOne, client: Elasticsearch
) -> None:
    unread = {"type": "keyword", "index": False, "doc_values": False}
    view = bound(SearchIndex(one.person.view.name, Entity("shop.person"), fields={"email": unread}), PERSON, ["email"])
    sink = one.sink(view)
    sink.prepare()
    before = version = rejected(client)
    while rejected(client) == before:  # they need not come to the node at the same moment
        version += 1
        assert version < before + 30, "the node never had two at once"
        writes: dict[Key, Write] = {(at,): Write(version, ("x" * 8_000_000,)) for at in range(1, 7)}
        assert sink.write([ViewWrites(view.id, writes)], None) == []
    sink.close()
    client.indices.refresh(index=view.view.name)
    hits = client.search(index=view.view.name, source=False, version=True)["hits"]["hits"]
    assert [hit["_version"] for hit in hits] == [version] * 6


def rejected(client: Elasticsearch) -> int:
    """The writes that the node refused for lack of memory."""
    (node,) = client.nodes.stats(metric="indexing_pressure")["nodes"].values()
    total = node["indexing_pressure"]["memory"]["total"]
    return int(total["coordinating_rejections"] + total["primary_rejections"])


def test_a_tombstone_is_in_no_search_and_no_count(
    one: ElasticsearchOne, sink: ElasticsearchSink, client: Elasticsearch
) -> None:
    write(sink, one, {(1,): Write(5, ("ann", "x")), (2,): Write(5, ("ann", "y"))})
    write(sink, one, {(1,): Write(6, None)})
    client.indices.refresh(index=one.person.view.name)
    page = search(client, one.person, "ann")
    assert (page.total, [hit.id for hit in page.hits]) == (1, ["2"])
    assert client.count(index=one.person.view.name)["count"] == 1


def test_pages_have_limits_and_a_bad_query_is_misuse(
    one: ElasticsearchOne, sink: ElasticsearchSink, client: Elasticsearch
) -> None:
    write(sink, one, {(at,): Write(5, ("same", None)) for at in range(25)})
    client.indices.refresh(index=one.person.view.name)
    pages = [search(client, one.person, "same", page=number, size=10) for number in (1, 2, 3)]
    assert [len(page.hits) for page in pages] == [10, 10, 5]
    assert len({hit.id for page in pages for hit in page.hits}) == 25
    with pytest.raises(MisuseError):
        search(client, one.person, "same", page=1001, size=10)
    with pytest.raises(MisuseError):
        search(client, one.person, "same", fields=["no_such_field"])


def test_an_index_of_somebody_else_is_left_alone(one: ElasticsearchOne, client: Elasticsearch) -> None:
    index = f"viewtail-{one.person.view.name}"
    client.indices.create(index=index)
    client.index(index=index, id="theirs", document={"x": 1}, refresh=True)
    made = one.sink()
    refused = made.prepare()
    assert list(refused) == [one.person.id], "the other view has its index"
    assert index in refused[one.person.id]
    made.close()
    assert client.get(index=index, id="theirs")["_source"] == {"x": 1}


def test_an_index_deleted_under_our_feet_is_not_made_again_by_a_write(
    one: ElasticsearchOne, sink: ElasticsearchSink, client: Elasticsearch
) -> None:
    write(sink, one, {(1,): Write(5, ("a", None))}, place(1))
    index = f"viewtail-{one.person.view.name}"
    client.indices.delete(index=index)
    with pytest.raises((StoreUnavailableError, StoreError)):
        write(sink, one, {(2,): Write(6, ("b", None))})
    assert not client.indices.exists(index=index)
    assert missing(sink) == {one.person.id}, "it lost what it had, and is to be filled again"
    assert sink.witness(place(2)) == place(1), "the other view lost nothing"
    assert write(sink, one, {(2,): Write(6, ("b", None))}) == 0


def test_a_field_that_is_added_to_the_declaration_is_added_to_the_index(
    one: ElasticsearchOne, sink: ElasticsearchSink, client: Elasticsearch
) -> None:
    index = f"viewtail-{one.person.view.name}"
    mapping = client.indices.get_mapping(index=index)[index]["mappings"]
    assert mapping["dynamic"] == "strict"
    assert {"email", "note", "viewtail_deleted"} <= set(mapping["properties"])


def test_the_index_of_a_halted_view_stays_as_it_is_and_its_witness_goes_on(
    one: ElasticsearchOne, sink: ElasticsearchSink, client: Elasticsearch
) -> None:
    """Its table changed, so that its declaration asks for another mapping: the index is made again by a replay."""
    sink.write([], place(100))
    write(sink, one, {(1,): Write(5, ("a", "b"))}, place(200))
    sink.settle()
    view = one.person.view
    assert isinstance(view, SearchIndex)
    other = SearchIndex(view.name, view.entity, fields={"email": "text", "note": "integer"})
    changed = replace(one.person, view=other, fingerprint="1" * 64)
    halted = one.sink(changed, one.place)
    try:
        halted.leave_alone([changed.id])
        assert missing(halted) == frozenset() and halted.prepare() == {}
        halted.write([], place(300))
        halted.settle()
        assert halted.witness(place(300)) == place(300)
    finally:
        halted.close()
    assert get(client, one.person, (1,)) == (5, {"email": "a", "note": "b"})
    led = one.sink(changed, one.place)
    try:
        assert missing(led) == {changed.id}, "not halted, it gets a new index, and is backfilled"
    finally:
        led.close()
    client.indices.delete(index=f"viewtail-{view.name}")
    gone = one.sink(changed, one.place)
    try:
        gone.leave_alone([changed.id])
        assert missing(gone) == frozenset() and gone.prepare() == {}
        gone.write([], place(400))
        gone.settle()
    finally:
        gone.close()
    assert not client.indices.exists(index=f"viewtail-{view.name}"), "nothing of a halted view is made"
