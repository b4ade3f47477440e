"""Making the index of a view: what a slow server answers. No server."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from elasticsearch import ApiError

from projectors.stores import PlaceRefusedError
from projectors.stores.elasticsearch import sink
from projectors.stores.elasticsearch.adopting import unlike_kept
from projectors.stores.elasticsearch.index import make_ready
from projectors.stores.elasticsearch.sink import ElasticsearchSink
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.views import BoundView, Entity
from viewtail.changes.errors import DeclarationError, StoreUnavailableError
from viewtail.changes.tables import Column, Kind, Table


class SlowServer:
    """It says that there is no index, and creates that of an earlier request then.

    Args:
        others: what is there then is another program's.
        is_seen: it shows it then.
    """

    def __init__(self, others: dict[str, Any] | None = None, *, is_seen: bool = True) -> None:
        self.others, self.is_seen = others, is_seen
        self.content: dict[str, Any] | None = None
        self.asked: list[str] = []

    def perform_request(self, method: str, target: str, *, headers: Any, body: Any) -> Any:
        self.asked.append(f"{method} {target.partition('?')[0]}")
        if method == "PUT":
            self.content = self.others or {"aliases": body["aliases"], "mappings": body["mappings"]}
            error = {"error": {"type": "resource_already_exists_exception", "reason": "it is there"}}
            meta = ApiResponseMeta(400, "1.1", HttpHeaders(), 0.0, NodeConfig("http", "localhost", 9200))
            raise ApiError("no", meta, error)
        is_there = self.content is not None and self.is_seen
        return SimpleNamespace(body={"viewtail-people": self.content} if is_there else {})


def people() -> BoundView:
    columns = (
        Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False),
        Column(name="n", kind=Kind.INTEGER, declared="int", is_nullable=False),
    )
    return BoundView(
        view=SearchIndex("people", Entity("shop.user"), fields=["n"]),
        table=Table(schema="shop", name="user", columns=columns, primary_key=("id",)),
        key=columns[:1],
        values=columns[1:],
        needed=("id", "n"),
        fingerprint="0",
    )


def of_source(name: str) -> Table:
    pattern = Entity("shop.user", sources=[name]).of_source(name).pattern
    assert pattern is not None
    return replace(people().table, pattern=pattern)


def test_an_index_that_an_earlier_request_created_late_is_taken_as_ours() -> None:
    server = SlowServer()
    make_ready(server, people())  # type: ignore[arg-type]
    asked = [one.split()[0] for one in server.asked]
    assert asked == ["GET", "PUT", "GET"], "it is as it was asked for: nothing is to be changed"


def test_an_index_that_another_program_created_meanwhile_is_left_alone() -> None:
    with pytest.raises(PlaceRefusedError, match="viewtail did not make"):
        make_ready(SlowServer({"aliases": {}, "mappings": {}}), people())  # type: ignore[arg-type]


def test_an_index_that_is_not_shown_yet_is_waited_for() -> None:
    with pytest.raises(StoreUnavailableError, match="by an earlier request of viewtail's") as found:
        make_ready(SlowServer(is_seen=False), people())  # type: ignore[arg-type]
    assert "somebody else" not in str(found.value)


class SharedIndex(SlowServer):
    """It has the index that another source made, and refuses another type of a field."""

    def __init__(self) -> None:
        super().__init__()
        mark = {"view": people().view.id, "mapping": "another"}
        properties = {"n": {"type": "long"}}
        self.content = {"aliases": {}, "mappings": {"_meta": {"viewtail": mark}, "properties": properties}}

    def perform_request(self, method: str, target: str, *, headers: Any, body: Any) -> Any:
        if method == "PUT" and target.endswith("/_mapping"):
            reason = "mapper [n] cannot be changed from type [long] to [integer]"
            meta = ApiResponseMeta(400, "1.1", HttpHeaders(), 0.0, NodeConfig("http", "localhost", 9200))
            raise ApiError("no", meta, {"error": {"type": "illegal_argument_exception", "reason": reason}})
        return super().perform_request(method, target, headers=headers, body=body)


def test_the_index_of_several_sources_is_never_deleted_for_the_types_of_one() -> None:
    server, view = SharedIndex(), replace(people(), table=of_source("us"))
    assert view.source == ("us",)
    with pytest.raises(PlaceRefusedError, match=r"source us .* from type \[long\] to .* another name; or DELETE"):
        make_ready(server, view)  # type: ignore[arg-type]
    assert server.asked == ["GET /viewtail-people,people,viewtail.write-people"], "nothing is deleted or created"


class LateShard(SlowServer):
    """It creates an index, whose shard is there only after some questions."""

    def __init__(self, questions: int) -> None:
        super().__init__()
        self.left = questions

    def perform_request(self, method: str, target: str, *, headers: Any, body: Any) -> Any:
        if method == "PUT":
            return SimpleNamespace(body={"acknowledged": True, "shards_acknowledged": False})
        if target != "/_mget":
            return super().perform_request(method, target, headers=headers, body=body)
        self.left -= 1
        error = {"error": {"type": "no_shard_available_action_exception"}}
        return SimpleNamespace(body={"docs": [error if self.left >= 0 else {"found": False}]})

    def close(self) -> None: ...


def test_an_index_that_was_just_made_is_waited_for_until_its_shard_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepared(server: LateShard) -> dict[str, str]:
        client: Any = server
        return ElasticsearchSink(lambda: client, [people()], "elasticsearch", read_position=str).prepare()  # type: ignore[arg-type]

    assert prepared(LateShard(3)) == {}
    monkeypatch.setattr(sink, "SHARD_WITHIN_S", 0.2)
    with pytest.raises(StoreUnavailableError, match="no_shard_available_action_exception"):
        prepared(LateShard(1000))


@pytest.mark.parametrize(
    ("settings", "mappings", "said"),
    [
        ({"lifecycle": {"name": "weekly"}}, {}, "index.lifecycle.name is weekly"),
        ({"default_pipeline": "upper"}, {}, "index.default_pipeline is upper"),
        ({"mode": "logsdb"}, {}, "index.mode is logsdb"),
        ({}, {"_source": {"enabled": False}}, "the whole _source"),
        ({}, {"_source": {"mode": "synthetic"}}, "the whole _source"),
        ({}, {"_routing": {"required": True}}, "requires a routing"),
    ],
)
def test_an_index_that_would_not_keep_documents_as_written_is_not_adopted(
    settings: dict[str, Any], mappings: dict[str, Any], said: str
) -> None:
    assert said in (unlike_kept({"settings": {"index": settings}, "mappings": mappings}) or "")


def test_settings_that_do_nothing_are_no_hindrance() -> None:
    settings = {"final_pipeline": "_none", "mode": "standard", "lifecycle": {"origination_date": "-1"}}
    mappings = {"_source": {"enabled": True, "excludes": []}, "_routing": {"required": False}}
    assert unlike_kept({"settings": {"index": settings}, "mappings": mappings}) is None


def test_a_type_name_stands_for_a_mapping_also_within_one() -> None:
    lines = {"properties": {"amount": "float", "product": {"properties": {"name": "text"}}}}
    view = SearchIndex(
        "v",
        Entity("shop.user"),
        document=dict,
        fields={"lines": lines, "name": {"type": "text", "fields": {"raw": "keyword"}}},
    )
    assert view.mapping == {
        "lines": {
            "properties": {
                "amount": {"type": "float"},
                "product": {"properties": {"name": {"type": "text"}}},
            }
        },
        "name": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
    }
    with pytest.raises(DeclarationError, match="properties 'amount': the mapping is a type name"):
        SearchIndex("v", Entity("shop.user"), document=dict, fields={"lines": {"properties": {"amount": 3}}})
