"""Elasticsearch views on a real server: documents, witness, indices, reading. The sink's own promises are beside it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
import pytest
import structlog.testing
from elasticsearch import Elasticsearch

from ingest.binlog.coordinates import BinlogPosition
from projectors.stores.elasticsearch import sink as module
from projectors.stores.elasticsearch.reading import LONGEST_QUERY
from projectors.stores.elasticsearch.sink import ElasticsearchSink
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.views import BoundView, Entity
from stack.server import Server
from tests.support.documents import get, search
from tests.support.missing import missing
from viewtail.changes.errors import MisuseError, StoreError, StoreUnavailableError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key, Parked, ViewWrites, Write

pytestmark = pytest.mark.elasticsearch

_numbers = itertools.count(1)
WITNESS = "{viewtail:witness}"


def column(name: str, kind: Kind, declared: str, **more: Any) -> Column:
    return Column(name=name, kind=kind, declared=declared, is_nullable=True, **more)


COLUMNS = (
    column("id", Kind.INTEGER, "bigint"),
    column("code", Kind.TEXT, "varchar(600)"),
    column("name", Kind.TEXT, "varchar(200)"),
    column("population", Kind.INTEGER, "int"),
    column("founded", Kind.DATE, "date"),
    column("area", Kind.INTEGER, "bigint unsigned", is_unsigned=True),
    column("info", Kind.JSON, "json"),
)
CITY = Table(schema="geo", name="city", columns=COLUMNS, primary_key=("id",))


def city(
    name: str,
    fields: Any,
    key: str = "id",
    fingerprint: str = "1",
    document: Callable[[Mapping[str, Any]], Any] | None = None,
) -> BoundView:
    by_name = {one.name: one for one in COLUMNS}
    view = SearchIndex(name, Entity("geo.city"), fields=fields, document=document)
    return BoundView(
        view=view,
        table=CITY,
        key=(by_name[key],),
        values=() if document else tuple(by_name[one] for one in view.fields),
        needed=tuple(by_name),
        fingerprint=fingerprint,
    )


def position(end: int, epoch: int = 1) -> BinlogPosition:
    return BinlogPosition(epoch=epoch, file="binlog.000007", end=end, start=end - 100, gtid="uuid:5")


@pytest.fixture
def client(elasticsearch_server: Server) -> Iterator[Elasticsearch]:
    client = Elasticsearch(elasticsearch_server.url, request_timeout=20, max_retries=0)
    yield client
    client.close()


@pytest.fixture
def name(client: Elasticsearch) -> Iterator[str]:
    name = f"city{next(_numbers)}"
    yield name
    for index in (f"viewtail-{name}", name, f"viewtail.write-{name}"):
        if index in client.indices.get(index="*", expand_wildcards="all"):
            client.indices.delete(index=index)


@pytest.fixture
def sinks(elasticsearch_server: Server) -> Iterator[Callable[..., ElasticsearchSink]]:
    made: list[ElasticsearchSink] = []

    def make(*views: BoundView) -> ElasticsearchSink:
        url = elasticsearch_server.url
        sink = ElasticsearchSink(
            lambda: Elasticsearch(url, request_timeout=20, max_retries=0),
            views,
            "integration",
            read_position=BinlogPosition.from_text,
        )
        made.append(sink)
        for reason in sink.prepare().values():
            raise StoreError(reason)
        return sink

    yield make
    for sink in made:
        sink.close()


Make = Callable[..., ElasticsearchSink]


def apply(
    sink: ElasticsearchSink, view: BoundView, writes: dict[Key, Write], upto: BinlogPosition | None = None
) -> list[Parked]:
    return sink.write([ViewWrites(view.id, writes)], upto)


def all_ids(client: Elasticsearch, view: BoundView) -> set[str]:
    """What a reader finds through the alias."""
    client.indices.refresh(index=view.view.name)
    return {hit["_id"] for hit in client.search(index=view.view.name, size=1_000)["hits"]["hits"]}


def test_a_deleted_key_stays_deleted_when_elasticsearch_has_forgotten_its_deletes(
    client: Elasticsearch, name: str, sinks: Make
) -> None:
    view = city(name, ["name"])
    sink = sinks(view)
    index = f"viewtail-{name}"
    client.indices.put_settings(index=index, settings={"index.gc_deletes": "1ms"})
    apply(sink, view, {(1,): Write(10, ("Ulm",)), (2,): Write(10, ("Bonn",))})
    apply(sink, view, {(1,): Write(20, None)})
    # The server's own delete of the same version is forgotten at once, and the old write brings it back: so the test
    # would see a sink that deletes.
    client.delete(index=index, id="2", version=20, version_type="external")
    _until(lambda: _is_forgotten(client, index))
    apply(sink, view, {(1,): Write(15, ("old",)), (2,): Write(15, ("old",))})
    assert get(client, view, (1,)) is None
    assert get(client, view, (2,)) == (15, {"name": "old"})
    assert all_ids(client, view) == {"2"}
    assert apply(sink, view, {(1,): Write(21, ("Ulm again",))}) == []
    assert get(client, view, (1,)) == (21, {"name": "Ulm again"})


def _is_forgotten(client: Elasticsearch, index: str) -> bool:
    client.indices.refresh(index=index)
    client.indices.flush(index=index, force=True)
    probe = client.options(ignore_status=409).index(
        index=index, id="2", document={"name": "probe"}, version=14, version_type="external"
    )
    return probe.meta.status in (200, 201)


def _until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    import time

    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come"
        time.sleep(0.05)


def test_a_tombstone_holds_the_flag_alone_and_get_and_search_hide_it(
    client: Elasticsearch, name: str, sinks: Make
) -> None:
    view = city(name, ["name"])
    sink = sinks(view)
    apply(sink, view, {(1,): Write(10, ("Ulm",)), (2,): Write(11, None)})
    apply(sink, view, {(1,): Write(20, None)})
    raw = client.get(index=name, id="1")  # by id, the filter of the alias does not apply
    assert (raw["_version"], raw["_source"]) == (20, {"viewtail_deleted": True})
    assert get(client, view, (1,)) is None
    assert get(client, view, (2,)) is None
    assert get(client, view, (3,)) is None
    assert all_ids(client, view) == set()
    assert search(client, view, "ulm").total == 0


def test_get_sees_a_write_before_any_refresh(client: Elasticsearch, name: str, sinks: Make) -> None:
    view = city(name, ["name"])
    sink = sinks(view)
    client.indices.put_settings(index=f"viewtail-{name}", settings={"index.refresh_interval": "-1"})
    apply(sink, view, {(1,): Write((1 << 63) - 1, ("Ulm",))})
    assert get(client, view, (1,)) == ((1 << 63) - 1, {"name": "Ulm"})


def test_a_document_that_does_not_fit_is_parked_without_its_values(
    client: Elasticsearch, name: str, sinks: Make
) -> None:
    fields = {"name": "text", "population": "integer"}
    view = city(name, fields, document=lambda row: {})
    sink = sinks(view)
    writes: dict[Key, Write] = {(number,): Write(10, b'{"name":"n","population":1}') for number in range(1_300)}
    writes[(3,)] = Write(10, b'{"population":"secret words"}')
    writes[(4,)] = Write(10, b'{"mayor":"secret words"}')
    writes[(700,)] = Write(10, b'{"viewtail_position":"secret words"}')
    parked = {one.key: one.reason for one in apply(sink, view, writes, position(500))}
    assert set(parked) == {"3", "4", "700"}
    assert "population" in parked["3"] and "document_parsing_exception" in parked["3"]
    assert "mayor" in parked["4"] and "strict" in parked["4"]
    assert "secret" not in repr(parked)
    client.indices.refresh(index=name)
    assert client.count(index=name)["count"] == 1_297
    assert sink.witness(position(500)) == position(500)
    mapping = client.indices.get_mapping(index=f"viewtail-{name}")[f"viewtail-{name}"]["mappings"]
    assert set(mapping["properties"]) == {"name", "population", "viewtail_deleted", "viewtail_position"}


def test_a_document_above_a_limit_is_parked_with_field_and_limit_and_without_its_values(
    client: Elasticsearch, name: str, sinks: Make
) -> None:
    kinds = ("keyword", "byte", "long", "date", "date_nanos", "half_float")
    fields = {kind: {"type": kind} for kind in kinds} | {
        "text": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "nested": {"type": "nested", "properties": {"n": {"type": "byte"}}},
        "vector": {"type": "dense_vector", "dims": 3},
    }
    view = city(name, fields, document=lambda row: {})
    sink = sinks(view)
    refused: list[tuple[Any, str]] = [
        ({"keyword": "secret" * 6_000}, "in field keyword: a text of it is longer than the 32766 bytes"),
        ({"text": "secret" * 6_000}, "in field text.raw: a text of it is longer than the 32766 bytes"),
        ({"byte": 300}, "in field byte: a number is out of the range of byte"),
        ({"long": 2**63}, "in field long: a number is out of the range of long"),
        ({"date": "secret"}, "in field date: a text of it is no date of the field's format"),
        ({"date_nanos": "2300-01-01"}, "in field date_nanos: a moment is out of the range of date_nanos, 1970 to 2262"),
        ({"half_float": 1e10}, "in field half_float: a number is too large for a half_float"),
        ({"nested": [{"n": 1}] * 10_001}, "it has more than 10000 nested objects"),
        ({"vector": [1, 2]}, "in field vector: a vector has 2 dimensions, and the field's mapping has 3"),
    ]
    writes: dict[Key, Write] = {
        (at,): Write(10, orjson.dumps(document)) for at, (document, _) in enumerate(refused)
    } | {(99,): Write(10, b'{"byte":1}')}
    parked = {one.key: one.reason for one in apply(sink, view, writes, position(500))}
    assert parked.keys() == {str(at) for at in range(len(refused))}
    for at, (_, told) in enumerate(refused):
        assert told in parked[str(at)], parked[str(at)]
        assert "secret" not in parked[str(at)]


def test_keys_that_no_id_can_hold_are_parked_and_the_rest_is_applied(
    client: Elasticsearch, name: str, sinks: Make
) -> None:
    view = city(name, ["name"], key="code")
    sink = sinks(view)
    keys = ["", "ä" * 256, "漢字 😀/..?#&=+", "{viewtail:witness}", "\x00\n\r", " ", "viewtail:witness"]
    writes: dict[Key, Write] = {(key,): Write(10, (f"of {key}",)) for key in keys}
    writes[("ä" * 257,)] = Write(10, ("long",))
    writes[("\ud800",)] = Write(10, ("surrogate",))
    parked = apply(sink, view, writes, position(500))
    assert [one.key for one in parked] == ["ä" * 257, "\ud800"]
    assert "512" in parked[0].reason
    for key in keys:
        assert get(client, view, (key,)) == (10, {"name": f"of {key}"}), key
    assert sink.witness(position(500)) == position(500)
    found = {key for page in sink.keys_below(view.id, 11) for (key,), _ in page}
    assert found == set(keys)


def test_documents_larger_than_a_request_are_sent_in_several(
    client: Elasticsearch, name: str, sinks: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BYTES_A_REQUEST", 10_000)
    view = city(name, {"name": {"type": "text", "index": False}})
    sink = sinks(view)
    writes: dict[Key, Write] = {(number,): Write(10, ("x" * (number % 30) * 1_000,)) for number in range(100)}
    assert apply(sink, view, writes) == []
    assert all_ids(client, view) == {str(number) for number in range(100)}


def test_two_views_in_one_write_go_to_their_own_indices(client: Elasticsearch, name: str, sinks: Make) -> None:
    one, other = city(name, ["name"]), city(f"{name}b", ["name", "info"])
    sink = sinks(one, other)
    try:
        for version, count in ((5, 3), (6, 700)):
            writes = [
                ViewWrites(one.id, {(n,): Write(version, (f"one {version}",)) for n in range(count)}),
                ViewWrites(other.id, {(n,): Write(version, (f"other {version}", '{"a": [1]}')) for n in range(count)}),
            ]
            assert sink.write(writes, position(version * 100)) == []
            for n in (0, count - 1):
                assert get(client, one, (n,)) == (version, {"name": f"one {version}"})
                assert get(client, other, (n,)) == (version, {"name": f"other {version}", "info": {"a": [1]}})
        assert sink.witness(position(600)) == position(600)
        client.options(ignore_status=404).delete(index=f"viewtail-{name}", id=WITNESS)
        assert missing(sink) == {one.id}
        assert sink.witness(position(600)) == position(600), "the other index kept everything"
    finally:
        client.indices.delete(index=f"viewtail-{name}b")


# --- the witness ---


def witness_end(client: Elasticsearch, name: str) -> int | None:
    answer = client.options(ignore_status=404).get(index=f"viewtail-{name}", id=WITNESS)
    return BinlogPosition.from_text(answer["_source"]["viewtail_position"]).end if answer["found"] else None


def test_the_witness_moves_at_most_once_a_second_and_at_close(
    client: Elasticsearch, name: str, sinks: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    view = city(name, ["name"])
    sink = sinks(view)
    ends = []
    for step in range(1, 8):
        apply(sink, view, {(1,): Write(step, ("Ulm",))}, position(step * 100))
        ends.append(witness_end(client, name))
        now[0] += 0.3
    assert ends == [100, 100, 100, 100, 500, 500, 500]
    sink.close()
    assert witness_end(client, name) == 700
    assert all_ids(client, view) == {"1"}, "the witness is hidden"


def test_the_witness_does_not_move_for_writes_that_failed(client: Elasticsearch, name: str, sinks: Make) -> None:
    view = city(name, ["name"])
    sink = sinks(view)
    apply(sink, view, {(1,): Write(5, ("Ulm",))}, position(100))
    client.indices.put_settings(index=f"viewtail-{name}", settings={"index.blocks.write": True})
    with pytest.raises(StoreUnavailableError, match=r"index\.blocks\.write"):
        apply(sink, view, {(1,): Write(6, ("Ulm",))}, position(200))
    client.indices.put_settings(index=f"viewtail-{name}", settings={"index.blocks.write": None})
    sink.close()
    assert witness_end(client, name) == 100


def test_an_index_that_was_set_back_keeps_its_older_witness(
    client: Elasticsearch, name: str, sinks: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WITNESS_EVERY_S", 0.0)
    view = city(name, ["name"])
    sink = sinks(view)
    apply(sink, view, {(1,): Write(5, ("Ulm",))}, position(100))
    apply(sink, view, {(1,): Write(6, ("Ulm",))}, position(300))
    # As a restored snapshot looks: the witness of then, at another place of the index's history.
    client.index(
        index=f"viewtail-{name}",
        id=WITNESS,
        document={"viewtail_deleted": True, "viewtail_position": position(200).to_text()},
    )
    with pytest.raises(StoreUnavailableError, match="restored"):
        apply(sink, view, {(1,): Write(7, ("Ulm",))}, position(400))
    sink.close()
    sink.prepare()
    assert sink.witness(position(400)) == position(200)
    apply(sink, view, {(1,): Write(7, ("Ulm",))}, position(400))
    assert sink.witness(position(400)) == position(400)


def test_the_witness_never_goes_back(client: Elasticsearch, name: str, sinks: Make) -> None:
    view = city(name, ["name"])
    sink = sinks(view)
    apply(sink, view, {}, position(500, epoch=2))
    again = sinks(view)
    apply(again, view, {(1,): Write(5, ("Ulm",))}, position(400, epoch=2))
    assert again.witness(position(400, epoch=2)) == position(500, epoch=2)
    apply(again, view, {}, position(100, epoch=3))
    assert again.witness(position(100, epoch=3)) == position(100, epoch=3)


# --- the index ---


def test_an_index_deleted_under_our_feet_is_not_made_by_a_write(client: Elasticsearch, name: str, sinks: Make) -> None:
    view = city(name, ["name"])
    sink = sinks(view)
    apply(sink, view, {(1,): Write(5, ("Ulm",))}, position(100))
    client.indices.delete(index=f"viewtail-{name}")
    with pytest.raises(StoreUnavailableError, match="gone"):
        apply(sink, view, {(2,): Write(6, ("Bonn",))}, position(200))
    with pytest.raises(StoreUnavailableError, match="gone"):
        apply(sink, view, {(number,): Write(6, ("Bonn",)) for number in range(2_000)}, position(200))
    indices = client.indices.get(index="*", expand_wildcards="all").body
    assert not [index for index in indices if name in index]
    with pytest.raises(StoreUnavailableError):
        sink.witness(position(200))
    sink.prepare()
    assert sink.witness(position(200)) is None
    assert apply(sink, view, {(2,): Write(6, ("Bonn",))}, position(200)) == []
    apply(sink, view, {(3,): Write(6, None)})
    assert all_ids(client, view) == {"2"}
    sink.close()
    assert witness_end(client, name) == 200


@pytest.mark.parametrize("place", ["index", "alias", "alias as index", "alias elsewhere", "write alias"])
def test_what_viewtail_did_not_make_is_left_alone(client: Elasticsearch, name: str, sinks: Make, place: str) -> None:
    own = f"viewtail-{name}"
    made, aliases = {
        "index": (own, []),
        "alias": (own, [name, f"viewtail.write-{name}"]),
        "alias as index": (name, []),
        "alias elsewhere": (f"foreign-{name}", [name]),
        "write alias": (f"foreign-{name}", [f"viewtail.write-{name}"]),
    }[place]
    client.indices.create(index=made, aliases={alias: {} for alias in aliases})
    client.index(index=made, id="1", document={"some": "body"}, refresh=True)
    before = client.indices.get(index=made).body
    try:
        with pytest.raises(StoreError, match=r"did not make.*Rename") as caught:
            sinks(city(name, ["name"]))
        assert name in str(caught.value)
        assert client.indices.get(index=made).body == before
        assert client.get(index=made, id="1")["_source"] == {"some": "body"}
        assert [index for index in client.indices.get(index="*").body if name in index] == [made]
    finally:
        client.indices.delete(index=made)


def test_new_fields_are_added_and_the_documents_stay(client: Elasticsearch, name: str, sinks: Make) -> None:
    before = city(name, ["name"], fingerprint="1")
    apply(sinks(before), before, {(1,): Write(5, ("Ulm",))}, position(100))
    after = city(name, ["name", "population"], fingerprint="2")
    sink = sinks(after)
    assert get(client, after, (1,)) == (5, {"name": "Ulm"})
    assert apply(sink, after, {(2,): Write(6, ("Bonn", 5))}) == []
    meta = client.indices.get_mapping(index=name)[f"viewtail-{name}"]["mappings"]["_meta"]["viewtail"]
    assert (meta["view"], meta["fingerprint"]) == (after.id, "2")


def test_a_field_that_changed_its_type_makes_the_index_anew(client: Elasticsearch, name: str, sinks: Make) -> None:
    before = city(name, {"name": "keyword"}, fingerprint="1")
    apply(sinks(before), before, {(1,): Write(5, ("Ulm",))}, position(100))
    after = city(name, {"name": "text"}, fingerprint="2")
    sink = sinks(after)
    assert get(client, after, (1,)) is None
    assert sink.witness(position(100)) is None, "so that the pipeline fills it again"
    assert apply(sink, after, {(1,): Write(5, ("Ulm",)), (2,): Write(5, None)}) == []
    assert all_ids(client, after) == {"1"}


def test_a_mistake_in_the_mapping_costs_nothing(client: Elasticsearch, name: str, sinks: Make) -> None:
    before = city(name, {"name": "keyword"}, fingerprint="1")
    apply(sinks(before), before, {(1,): Write(5, ("Ulm",))}, position(100))
    for wrong in ({"type": "text", "analyzer": "klingon"}, {"type": "teks"}, {"type": "keyword", "what": 1}):
        with pytest.raises(StoreError, match=name):
            sinks(city(name, {"name": wrong}, fingerprint="2"))
    assert get(client, before, (1,)) == (5, {"name": "Ulm"})
    assert not [index for index in client.indices.get(index="*").body if "check" in index]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"type": "teks"}, "teks"),
        ({"type": "text", "analyzer": "klingon"}, "klingon"),
        ("unsigned_long", "unsigned"),
    ],
)
def test_a_mapping_that_the_server_refuses_is_said_in_its_words(
    client: Elasticsearch, name: str, sinks: Make, wrong: Any, told: str
) -> None:
    with pytest.raises(StoreError, match=told):
        sinks(city(name, {"area": wrong}))
    assert not client.indices.exists(index=f"viewtail-{name}")


def test_a_field_type_that_the_server_lacks_is_a_keyword_and_said(
    client: Elasticsearch, name: str, sinks: Make
) -> None:
    view = city(name, ["area", "name"])
    with structlog.testing.capture_logs() as logs:
        sink = sinks(view)
    assert [(entry["log_level"], entry["fields"]) for entry in logs] == [("warning", ["area"])]
    assert apply(sink, view, {(1,): Write(5, ((1 << 64) - 1, "Ulm"))}) == []
    assert get(client, view, (1,)) == (5, {"area": (1 << 64) - 1, "name": "Ulm"})
    client.indices.refresh(index=name)
    assert client.count(index=name, query={"term": {"area": str((1 << 64) - 1)}})["count"] == 1
    with structlog.testing.capture_logs() as logs:
        sink.prepare()
    assert logs == [], "nothing is changed a second time"


def test_lost_aliases_are_put_back(client: Elasticsearch, name: str, sinks: Make) -> None:
    view = city(name, ["name"])
    sink = sinks(view)
    client.indices.delete_alias(index=f"viewtail-{name}", name=f"viewtail.write-{name}")
    client.indices.put_alias(index=f"viewtail-{name}", name=name)  # without the filter
    with pytest.raises(StoreUnavailableError):
        apply(sink, view, {(1,): Write(5, None)})
    sink.prepare()
    apply(sink, view, {(1,): Write(5, None), (2,): Write(5, ("Ulm",))})
    assert all_ids(client, view) == {"2"}


# --- reading ---


@pytest.fixture
def towns(client: Elasticsearch, name: str, sinks: Make) -> BoundView:
    view = city(name, {"name": "text", "code": "keyword", "population": "integer", "founded": "date"})
    sink = sinks(view)
    rows = [("Frankfurt am Main", "F"), ("Frankfurt an der Oder", "FF"), ("Ulm", "UL"), ("Neu-Ulm", "NU")]
    writes: dict[Key, Write] = {
        (n,): Write(n + (1 << 60), (town, code, n * 1000, "0800-01-01")) for n, (town, code) in enumerate(rows)
    }
    writes[(9,)] = Write(1 << 61, None)
    apply(sink, view, writes, position(100))
    client.indices.refresh(index=name)
    return view


@pytest.mark.parametrize(
    ("query", "fields", "found"),
    [
        ("frankfurt", None, {"0", "1"}),
        ("FRANKFURT main", None, {"0"}),
        ('"an der"', None, {"1"}),
        ("ulm -neu", None, {"2"}),
        ("ul*", None, {"2", "3"}),
        ("UL", None, {"2"}),
        ("UL | frankfurt", ["name", "code^3"], {"0", "1", "2"}),
        ("UL", ["name"], set()),
        ("2000", ["population"], {"2"}),
        ("words", ["population", "founded"], set()),
        ("true", None, set()),
        ('"unfinished (', None, set()),
        ("", None, set()),
    ],
)
def test_search(client: Elasticsearch, towns: BoundView, query: str, fields: list[str] | None, found: set[str]) -> None:
    page = search(client, towns, query, fields=fields)
    assert {hit.id for hit in page.hits} == found
    assert page.total == len(found)
    assert page.took_ms >= 0
    for hit in page.hits:
        assert hit.version == int(hit.id) + (1 << 60)
        assert hit.document["population"] == int(hit.id) * 1000


@pytest.mark.parametrize(
    ("query", "fields", "found", "searched"),
    [
        ("ada mug", None, {"1"}, ("status", "who.name", "who.address.city", "lines.title", "more.known")),
        ("turin", ["who.address"], {"2"}, ("who.address.city",)),
        ("paid kettle", ["status^2", "lines^3"], {"1"}, ("status^2", "lines.title^3")),
        ("ada", ["lines.title", "who.name.raw"], set(), ("lines.title", "who.name.raw")),
        ("7", ["lines.amount"], {"2"}, ("lines.amount",)),
        ("turin", ["who.*"], {"2"}, ("who.*",)),
        ("why", ["more.reason"], {"2"}, ("more.reason",)),
    ],
)
def test_a_search_finds_what_is_in_an_object(
    client: Elasticsearch,
    name: str,
    sinks: Make,
    query: str,
    fields: list[str] | None,
    found: set[str],
    searched: tuple[str, ...],
) -> None:
    text = {"type": "text", "fields": {"raw": {"type": "keyword"}}}
    view = city(
        name,
        {
            "status": "keyword",
            "who": {"properties": {"name": text, "address": {"properties": {"city": "text"}}}},
            "lines": {"properties": {"title": "text", "amount": "integer"}},
            "notes": {"type": "nested", "properties": {"text": "text"}},
            "more": {"dynamic": "true", "properties": {"known": "keyword"}},
        },
        document=lambda row: {},
    )
    sink = sinks(view)
    ada = {"name": "Ada", "address": {"city": "Ulm"}}
    bob = {"name": "Bob", "address": {"city": "Turin"}}
    documents = [
        {"status": "paid", "who": ada, "lines": [{"title": "mug", "amount": 1}, {"title": "kettle", "amount": 2}]},
        {
            "status": "open",
            "who": bob,
            "lines": [{"title": "mug", "amount": 7}],
            "notes": [{"text": "ada"}],
            "more": {"reason": "why"},
        },
    ]
    apply(sink, view, {(n,): Write(10, orjson.dumps(made)) for n, made in enumerate(documents, 1)}, position(100))
    client.indices.refresh(index=name)
    page = search(client, view, query, fields=fields)
    assert {hit.id for hit in page.hits} == found
    assert page.searched == searched
    with pytest.raises(MisuseError, match=r"'notes.text' .* mapped as nested"):
        search(client, view, query, fields=["notes.text"])
    with pytest.raises(MisuseError, match=r"no field 'who.address.ctiy'; it has who.name, who.address.city$"):
        search(client, view, query, fields=["who.address.ctiy"])


def test_search_pages(client: Elasticsearch, towns: BoundView) -> None:
    pages = [search(client, towns, "frankfurt | ulm", page=number, size=3, fields=["name"]) for number in (1, 2, 3)]
    assert [len(page.hits) for page in pages] == [3, 1, 0]
    assert {page.total for page in pages} == {4}
    assert len({hit.id for page in pages for hit in page.hits}) == 4
    assert search(client, towns, "ulm", page=1, size=10_000).total == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"page": 0},
        {"size": 0},
        {"page": -1},
        {"page": 1001, "size": 10},
        {"size": 10_001},
        {"fields": ["mayor"]},
        {"fields": ["viewtail_deleted"]},
        {"fields": ["*"]},
        {"fields": []},
        {"fields": ["name^much"]},
    ],
)
def test_a_search_that_cannot_be_is_the_callers_mistake(
    client: Elasticsearch, towns: BoundView, wrong: dict[str, Any]
) -> None:
    with pytest.raises(MisuseError):
        search(client, towns, "ulm", **wrong)


def test_a_query_that_is_too_long_is_the_callers_mistake(client: Elasticsearch, towns: BoundView) -> None:
    longest = ("ulm " * LONGEST_QUERY)[:LONGEST_QUERY]
    assert search(client, towns, longest, fields=["name"]).total == 2
    with pytest.raises(MisuseError, match="10,001 characters"):
        search(client, towns, longest + "m")


def test_reading_a_view_that_has_no_index_says_so(client: Elasticsearch) -> None:
    view = city("nowhere", ["name"])
    with pytest.raises(StoreError, match="viewtail run"):
        get(client, view, (1,))
    with pytest.raises(StoreError, match="viewtail run"):
        search(client, view, "ulm")
