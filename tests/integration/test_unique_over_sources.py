"""Views in which a key is of one source at a time: the guard of real servers, one sink a source."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest
import redis
from elasticsearch import Elasticsearch
from pydantic import SecretStr

from ingest.binlog.coordinates import BinlogPosition
from ingest.canonical.parts import of_parts
from projectors.binding import bind
from projectors.stores import GuardedSink, ViewReader
from projectors.stores.elasticsearch import bulk
from projectors.stores.elasticsearch.leaving import SearchTraces
from projectors.stores.elasticsearch.requests import ask
from projectors.stores.elasticsearch.sink import ElasticsearchSink
from projectors.stores.elasticsearch.store import ElasticsearchSettings
from projectors.stores.elasticsearch.unique_reading import UniqueReader as SearchReader
from projectors.stores.index_tables.reading import IndexTableReader
from projectors.stores.index_tables.sink import MySQLSink
from projectors.stores.leaving import Holds
from projectors.stores.redis.sink import RedisSink
from projectors.stores.redis.unique_reading import UniqueReader
from projectors.views import BoundView, View
from stack import Server
from tests.support.indices import Indices
from viewtail import Entity, IndexTable, RedisHash, RedisJson, SearchIndex
from viewtail.changes.patterns import pattern_of
from viewtail.changes.rendering import parse_key, render_key
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Parked, ViewWrites, Write
from viewtail.servers.sessions import MySQLAddress, open_session

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.elasticsearch]

ID = Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False)
_tokens = itertools.count(1)


def text(length: int, name: str = "email") -> Column:
    declared = f"varchar({length})"
    return Column(name=name, kind=Kind.TEXT, declared=declared, is_nullable=True, charset="utf8mb4", length=length)


def view_of(
    source: str, *, length: int = 40, is_unique: bool = True, value: tuple[str, ...] = ("email",), kind: str = "table"
) -> BoundView:
    columns = (ID, text(length), text(40, "note"))
    user = Table(schema="shop", name="user", columns=columns, primary_key=("id",))

    def described(schema: str, name: str) -> Table:
        pattern = pattern_of(schema, name)
        assert pattern is not None
        return of_parts(pattern, [user], [pattern.sample])

    entity = Entity("shop.user", sources=["eu", "us"], unique_over_sources=is_unique)
    declared: View = IndexTable("by_email", entity, value=value)
    if kind == "hash":
        declared = RedisHash("by_email", entity, fields=list(value))
    elif kind == "json":
        declared = RedisJson("by_email", entity, fields=list(value))
    elif kind == "search":
        declared = SearchIndex("by_email", entity, fields=dict.fromkeys(value, "keyword"))
    (bound,) = bind([declared.of_source(source)], described)
    return bound


class Place:
    """Where such a view is, and a sink for each source."""

    views: dict[str, BoundView]
    sinks: dict[str, Any]

    def sink(self, view: BoundView) -> GuardedSink:
        raise NotImplementedError

    def reader(self, source: str) -> ViewReader:
        raise NotImplementedError

    def rows(self) -> list[tuple[int, str, str]]:
        """Key, source and e-mail address of all that is shown."""
        raise NotImplementedError

    def settle(self, sink: Any) -> None:
        """Make durable what was written."""

    def open(self, kind: str) -> None:
        self.views = {name: view_of(name, kind=kind) for name in ("eu", "us")}
        self.sinks = {name: self.sink(view) for name, view in self.views.items()}
        for sink in self.sinks.values():
            assert sink.prepare() == {}

    def write(self, source: str, **emails: str | None) -> list[Parked]:
        """Write keys k1, k2, ... at a version each: `k1_5='a@x'` is key 1 at version 5; None is a tombstone."""
        writes = {}
        for name, email in emails.items():
            key, version = name[1:].split("_")
            writes[source, int(key)] = Write(int(version), None if email is None else (email or None,))
        parked: list[Parked] = self.sinks[source].write([ViewWrites(self.views[source].id, writes)], None)
        self.settle(self.sinks[source])
        return parked

    def shown(self) -> dict[int, tuple[str, str]]:
        rows = self.rows()
        assert len({key for key, _, _ in rows}) == len(rows), rows
        return {key: (source, email) for key, source, email in rows}

    def close(self) -> None:
        for sink in self.sinks.values():
            sink.close()


class Table_(Place):
    """One index table."""

    def __init__(self, server: Server) -> None:
        self.address = MySQLAddress(host=server.host, port=server.port, user="root", io_timeout_s=20)
        self.database = f"unique_{next(_tokens)}"
        self.plain = pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True)
        self.open("table")

    def sink(self, view: BoundView) -> MySQLSink:
        return MySQLSink(lambda: open_session(self.address, role="store"), self.database, [view])

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with self.plain.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def settle(self, sink: MySQLSink) -> None:
        sink.connection.commit()

    def reader(self, source: str) -> ViewReader:
        return IndexTableReader(open_session(self.address, role="store"), self.database, self.views[source])

    def rows(self) -> list[tuple[int, str, str]]:
        return self.ask(f"SELECT id, source, email FROM {self.database}.by_email WHERE email IS NOT NULL")

    def close(self) -> None:
        super().close()
        self.ask(f"DROP DATABASE IF EXISTS {self.database}")
        self.plain.close()


class Keys(Place):
    """Keys of one Redis, hashes or documents."""

    def __init__(self, server: Server, kind: str) -> None:
        self.client = redis.Redis(host=server.host, port=server.port, decode_responses=True)
        self.client.flushall()
        self.kind, self.port = kind, server.port
        self.open(kind)

    def sink(self, view: BoundView) -> RedisSink:
        return RedisSink(
            lambda: redis.Redis(port=self.port, socket_timeout=20),
            [view],
            database="viewtail",
            name=f"{view.source[0]}.0.redis",
            read_position=BinlogPosition.from_text,
        )

    def reader(self, source: str) -> ViewReader:
        return UniqueReader(redis.Redis(port=self.port), self.views[source])

    def rows(self) -> list[tuple[int, str, str]]:
        found = []
        for name in self.client.scan_iter(match="by_email:*"):
            row: Any = self.client.hgetall(name) if self.kind == "hash" else json.loads(str(self.client.get(name)))
            found.append((int(name.partition(":")[2]), row["_source"], row["email"]))
        return found


class Documents(Place):
    """One index."""

    def __init__(self, server: Server) -> None:
        self.client = Indices(server)
        self.client.drop_all()
        self.url = server.url
        self.open("search")

    def sink(self, view: BoundView) -> ElasticsearchSink:
        name = f"{view.source[0]}.0.elasticsearch"
        return ElasticsearchSink(self.connect, [view], name=name, read_position=BinlogPosition.from_text)

    def connect(self) -> Elasticsearch:
        return ElasticsearchSettings(url=SecretStr(self.url)).client()

    def reader(self, source: str) -> ViewReader:
        return SearchReader(self.connect(), self.views[source])

    def rows(self) -> list[tuple[int, str, str]]:
        with self.connect() as client:
            ask(client, "refreshing", "POST", "/by_email/_refresh")
            hits = ask(client, "searching", "POST", "/by_email/_search", {"size": 1000})["hits"]["hits"]
        return [(int(hit["_id"]), hit["_source"]["viewtail_source"], hit["_source"]["email"]) for hit in hits]


def place_of(request: pytest.FixtureRequest, kind: str) -> Place:
    if kind in ("mysql", "mariadb"):
        return Table_(request.getfixturevalue(f"{kind}_server"))
    if kind == "search":
        return Documents(request.getfixturevalue("elasticsearch_server"))
    return Keys(request.getfixturevalue("redis_server"), kind)


@pytest.fixture(params=["mysql", "mariadb", "hash", "json", "search"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    found = place_of(request, request.param)
    yield found
    found.close()


@pytest.fixture(params=["mysql_server", "mariadb_server"])
def table(request: pytest.FixtureRequest) -> Iterator[Table_]:
    """Of what tables alone have."""
    found = Table_(request.getfixturevalue(request.param))
    yield found
    found.close()


def test_a_key_of_another_source_is_refused_until_that_ones_row_is_deleted(place: Place) -> None:
    assert place.write("eu", k1_5="eu@x", k2_5="two@x") == []
    (letter,) = place.write("us", k1_90="us@x", k3_91="three@x")
    assert (letter.key, letter.version, letter.waits) == ("1", 90, True)
    assert letter.reason.startswith("its key lives on the source eu, and this row is on us.")
    assert place.shown() == {1: ("eu", "eu@x"), 2: ("eu", "two@x"), 3: ("us", "three@x")}
    assert place.write("eu", k1_6="again@x") == []  # whatever the versions of the other one are
    assert place.write("us", k1_92=None) == []  # nothing of its own is shown, and the tombstone is kept
    (letter,) = place.write("us", k1_93="us@x")  # now it has a row of its own
    assert letter.waits and place.shown()[1] == ("eu", "again@x")
    assert place.write("eu", k1_7=None) == []
    assert place.write("us", k1_94="us@x") == [] and place.shown()[1] == ("us", "us@x")


def test_an_old_write_of_the_source_that_gave_a_key_up_never_comes_back_over_the_others(place: Place) -> None:
    place.write("eu", k1_5="eu@x")
    place.write("eu", k1_9=None)
    assert place.write("us", k1_2="us@x") == []  # with a version far below
    assert place.write("eu", k1_5="eu@x") == [] and place.write("eu", k1_8="late@x") == []
    assert place.shown() == {1: ("us", "us@x")}
    (letter,) = place.write("eu", k1_10="back@x")  # but a newer one is a row on both
    assert letter.waits and letter.reason.startswith("its key lives on the source us, and this row is on eu.")
    place.write("us", k1_3=None)
    assert place.write("eu", k1_10="back@x") == [] and place.shown() == {1: ("eu", "back@x")}
    assert place.write("us", k1_2="us@x") == [] and place.shown() == {1: ("eu", "back@x")}


def test_a_row_that_shows_no_value_holds_no_key(table: Table_) -> None:
    table.write("eu", k1_5="")
    assert table.write("us", k1_5="us@x") == []
    assert table.write("eu", k1_6="eu@x")[0].waits and table.shown() == {1: ("us", "us@x")}


def test_one_refused_row_of_a_large_block_keeps_no_other_out(place: Place) -> None:
    place.write("eu", k150_1="eu@x")
    parked = place.write("us", **{f"k{key}_1": f"{key}@x" for key in range(1, 301)})
    assert [letter.key for letter in parked] == ["150"] and len(place.shown()) == 300
    with closing(place.sink(place.views["us"])) as again:  # as a backfill does, with rows that are there unchanged
        again.prepare()
        writes = {("us", key): Write(2, (f"{key}@x",)) for key in range(1, 301)}
        assert [letter.key for letter in again.write_again([ViewWrites(place.views["us"].id, writes)])] == ["150"]
        place.settle(again)
    assert place.shown()[150] == ("eu", "eu@x")
    with closing(place.reader("us")) as reader:
        rows = reader.rows([("us", key) for key in range(1, 301)])
    assert [row.version for row in rows] == [2] * 299


def test_of_two_sources_that_insert_at_the_same_time_one_gets_the_key(place: Place) -> None:
    def insert(source: str, refused: list[Parked]) -> None:
        for start in range(1, 100, 10):
            refused += place.write(source, **{f"k{key}_1": f"{source}@x" for key in range(start, start + 10)})

    refused: dict[str, list[Parked]] = {"eu": [], "us": []}
    threads = [threading.Thread(target=insert, args=(source, refused[source])) for source in refused]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shown = place.shown()
    assert shown.keys() == {*range(1, 101)}
    for source, other in (("eu", "us"), ("us", "eu")):
        assert {int(letter.key) for letter in refused[source]} == {k for k, (of, _) in shown.items() if of == other}


def test_what_a_source_sweeps_and_takes_away_is_its_own(place: Place) -> None:
    place.write("eu", k1_5="eu@x", k2_5="eu@x", k4_5="eu@x")
    place.write("us", k1_6=None, k3_2="us@x", k4_1="us@x")
    for source, own in (("eu", {1, 2, 4}), ("us", {3})):
        sink, view = place.sinks[source], place.views[source]
        pages = sink.keys_of_part(view.id, (source,), MAX_VERSION)
        assert {key for page in pages for key, _ in page} == {(source, key) for key in own}
    with closing(place.reader("us")) as reader:
        held = reader.held([("us", 1), ("us", 4)])
    sink = place.sinks["us"]
    for key, found in held.items():
        if found is not None:
            sink.take_away(place.views["us"].id, {key: found})
    assert place.write("us", k1_3=None, k5_1="us@x") == [] and place.shown()[1] == ("eu", "eu@x")
    assert place.write("eu", k1_6=None) == [] and place.write("us", k1_2="old@x") == []
    assert place.shown().get(1) is None, "the tombstone that came in the place of what was taken away keeps it out"
    assert place.write("us", k1_4="us@x") == [] and place.shown()[1] == ("us", "us@x")


def test_a_sweep_finds_a_row_beside_which_another_source_wrote_meanwhile(place: Place) -> None:
    place.write("eu", k1_5="eu@x", k2_5="eu@x")
    sink, view = place.sinks["eu"], place.views["eu"]
    mark = sink.mark_writes(view.id)
    place.write("us", k1_6=None)
    swept = {key for page in sink.keys_below(view.id, MAX_VERSION, mark) for key, _ in page}
    assert swept == {("eu", 1), ("eu", 2)}


def test_readers_of_a_source_know_whose_a_key_is(place: Place) -> None:
    place.write("eu", k1_5="both@x", k2_5="both@x", k4_5=None)
    place.write("us", k3_5="both@x")
    for source, own in (("eu", [1, 2]), ("us", [3])):
        with closing(place.reader(source)) as reader:
            keys = [(source, key) for key in (1, 2, 3, 4, 5)]
            assert reader.owners(keys) == {(source, 1): "eu", (source, 2): "eu", (source, 3): "us"}
            assert [row.key for row in reader.rows(keys)] == [(source, key) for key in own]
            held = {key for key, found in reader.held(keys).items() if found is not None and found.content is not None}
            assert held == {(source, key) for key in own}
            assert {key for page in reader.shown_keys() for key in page} == {(source, key) for key in own}
            if isinstance(place, Table_):
                assert reader.keys_with(["both@x"], 10) == [(source, key) for key in own]
    view = place.views["eu"]
    assert render_key(("eu", 7), view.key) == "7" and parse_key("7", view.key) == ("eu", 7)


def test_a_wider_column_of_one_source_is_taken_and_a_view_does_not_become_unique_in_place(table: Table_) -> None:
    table.write("eu", k1_5="eu@x")
    for view in (view_of("us", length=60), view_of("eu")):
        with closing(table.sink(view)) as sink:
            assert sink.prepare(lambda missing: pytest.fail(f"{missing} is there")) == {}
    assert table.write("us", k2_5="w" * 60) == []
    assert table.write("us", k1_6="us@x")[0].waits
    for other in (view_of("eu", is_unique=False), view_of("eu", value=("email", "note"))):
        with closing(table.sink(other)) as sink:
            (why,) = sink.prepare().values()
            assert "give the view another name" in why


@pytest.fixture
def documents(elasticsearch_server: Server) -> Iterator[Documents]:
    """Of what an index alone has."""
    found = Documents(elasticsearch_server)
    yield found
    found.close()


def test_a_document_that_viewtail_did_not_write_is_left_alone_until_it_is_taken_away(documents: Documents) -> None:
    documents.client.ask("PUT", "/viewtail-by_email/_doc/1?refresh", {"email": "somebody@x"})
    documents.write("us", k2_5="us@x")
    (letter,) = documents.write("eu", k1_5="eu@x")
    assert "has a document under its id that viewtail did not write" in letter.reason and not letter.waits
    with closing(documents.reader("eu")) as reader:
        found = reader.held([("eu", 1)])[("eu", 1)]
        assert found.is_foreign and found.version is None and found.fault == "it does not say which source it is of"
        assert {key for page in reader.shown_keys() for key in page} == {("eu", 1)}
        assert reader.rows([("eu", 1)]) == [] and [row for page in reader.pages() for row in page] == []
    sink, view = documents.sinks["eu"], documents.views["eu"]
    assert [page for page in sink.keys_below(view.id, MAX_VERSION) if page] == []  # no sweep deletes it
    sink.take_away(view.id, {("eu", 1): found})
    assert documents.write("eu", k1_6="eu@x") == [] and documents.shown() == {1: ("eu", "eu@x"), 2: ("us", "us@x")}
    sink.take_away(view.id, {("eu", 1): found})  # what was seen is not there any more
    assert documents.write("eu", k1_6="other@x") == [] and documents.shown()[1] == ("eu", "eu@x")


@pytest.mark.parametrize(
    ("before", "meanwhile", "write", "shown"),
    [
        ({}, "us@x", "eu@x", ("us", "us@x")),  # the key is another one's by now
        ({"us": "us@x"}, "new@x", None, ("us", "new@x")),  # a delete beside a document that changes
        ({"us": "us@x"}, "", None, None),  # or goes for good
        ({"us": None}, "us@x", "eu@x", ("us", "us@x")),
    ],
)
def test_what_another_source_writes_between_reading_and_writing_counts(
    documents: Documents,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, str | None],
    meanwhile: str | None,
    write: str | None,
    shown: tuple[str, str] | None,
) -> None:
    for source, email in before.items():
        documents.write(source, k1_5=email)
    plain, came = bulk.ask_bulk, []

    def with_another(*of: Any) -> Any:
        if not came:
            came.append(True)
            if meanwhile == "":
                documents.client.ask("DELETE", "/viewtail-by_email/_doc/1")
            else:
                documents.write("us", k1_6=meanwhile)
        return plain(*of)

    monkeypatch.setattr(bulk, "ask_bulk", with_another)
    letters = documents.write("eu", k1_90=write)
    assert came and [letter.waits for letter in letters] == [True] * (shown is not None and write is not None)
    assert documents.shown().get(1) == (shown or (("eu", write) if write else None))
    assert documents.write("eu", k1_89="late@x") == [] or write, "what was noted beside it keeps an older one out"
    assert documents.shown().get(1) == (shown or (("eu", write) if write else None))


def test_a_search_finds_the_documents_of_all_sources_as_they_are_declared(documents: Documents) -> None:
    documents.write("eu", k1_5="both@x", k2_6="both@x", k3_7="both@x")
    documents.write("us", k2_90=None, k4_91="both@x")
    documents.write("eu", k3_8=None)
    documents.rows()
    with closing(documents.reader("us")) as reader:
        assert isinstance(reader, SearchReader)
        found = reader.search("both@x", fields=None, page=1, size=10)
        assert {(hit.id, hit.version) for hit in found.hits} == {("1", 5), ("2", 6), ("4", 91)}
        assert all(hit.document == {"email": "both@x"} for hit in found.hits)
        traces = SearchTraces(documents.connect(), documents.views["us"])
        with closing(traces):
            told = [(trace.holds, trace.version) for key in (1, 2, 4) for trace in traces.of(("us", key))]
        assert told == [(Holds.NOTHING, None), (Holds.TOMBSTONE, 90), (Holds.VALUES, 91)]


def test_an_index_does_not_become_unique_in_place(documents: Documents) -> None:
    documents.write("eu", k1_5="eu@x")
    with closing(documents.sink(view_of("us", is_unique=False, kind="search"))) as sink:
        (why,) = sink.prepare().values()
        assert "unique_over_sources was declared otherwise" in why and "Give the view another name" in why


def test_an_index_that_somebody_took_is_made_again_and_two_rows_of_a_key_are_told_as_such(table: Table_) -> None:
    table.write("eu", k1_5="eu@x")
    name = f"{table.database}.by_email"
    for taken in ("DROP INDEX live_idx", "DROP INDEX live_idx, ADD INDEX live_idx (id, is_live)"):
        table.ask(f"ALTER TABLE {name} {taken}")
        with closing(table.sink(table.views["us"])) as sink:
            assert sink.prepare() == {}
        assert table.write("us", k1_6="us@x")[0].waits
    table.ask(f"ALTER TABLE {name} DROP INDEX live_idx")
    table.ask(f"INSERT INTO {name} (source, id, email, version) VALUES ('us', 1, 'us@x', 7)")
    with closing(table.sink(table.views["us"])) as sink:
        (why,) = sink.prepare().values()
    assert "two sources show the same key" in why and "live_idx" in why and "DROP TABLE" in why
