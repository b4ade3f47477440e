"""That by which readers or documents would be lost is refused; a failure leaves the index writable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from projectors.stores.elasticsearch import adopting
from projectors.stores.elasticsearch.adopting import IndexAdoption
from projectors.stores.elasticsearch.auditing import audited_index
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.owners import Claimant
from projectors.views import BoundView, Entity
from stack import Server
from viewtail.changes.errors import StoreError
from viewtail.changes.tables import Column, Kind, Table

INDEX, ALIAS = "fellow_v3", "fellow"
ONE_SHARD = {"number_of_shards": 1, "number_of_replicas": 0}
NAME = {"name": {"type": "keyword"}}
PLAIN: dict[str, Any] = {"settings": ONE_SHARD, "mappings": {"properties": NAME}, "aliases": {ALIAS: {}}}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another alias": ({"aliases": {ALIAS: {}, "fellows": {}}}, "other aliases too: fellows"),
    "a default pipeline": (
        {"settings": {**ONE_SHARD, "index.default_pipeline": "upper"}},
        "index.default_pipeline is upper",
    ),
    "a final pipeline": ({"settings": {**ONE_SHARD, "index.final_pipeline": "upper"}}, "index.final_pipeline is upper"),
    "a routing": ({"mappings": {"properties": NAME, "_routing": {"required": True}}}, "requires a routing"),
    "no source": ({"mappings": {"properties": NAME, "_source": {"enabled": False}}}, "the whole _source"),
    "a part of the source": ({"mappings": {"properties": NAME, "_source": {"excludes": ["x"]}}}, "the whole _source"),
}


def fellow() -> BoundView:
    columns = (
        Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False),
        Column(name="name", kind=Kind.TEXT, declared="varchar(10)", is_nullable=False),
    )
    return BoundView(
        view=SearchIndex(ALIAS, Entity("shop.user"), fields={"name": "keyword"}),
        table=Table(schema="shop", name="user", columns=columns, primary_key=("id",)),
        key=columns[:1],
        values=columns[1:],
        needed=("id", "name"),
        fingerprint="0",
    )


@pytest.fixture
def client(elasticsearch_server: Server) -> Iterator[Elasticsearch]:
    made = Elasticsearch(elasticsearch_server.url, request_timeout=60)
    remove(made)
    yield made
    remove(made)


def remove(client: Elasticsearch) -> None:
    if found := sorted(client.indices.get(index="*fellow*", expand_wildcards="all")):
        client.indices.delete(index=",".join(found))


def make(client: Elasticsearch, **others: Any) -> None:
    remove(client)
    client.indices.create(index=INDEX, **{**PLAIN, **others})


def blocks(client: Elasticsearch) -> Any:
    return client.indices.get_settings(index=INDEX).body[INDEX]["settings"]["index"].get("blocks")


def test_what_would_lose_readers_or_documents_is_refused(
    client: Elasticsearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, since the server takes a minute to start."""
    adoption = IndexAdoption(client, fellow(), Claimant(id="d1", title="one"))
    for kind, (others, said) in REFUSED.items():
        make(client, **others)
        assert said in (adoption.refusal() or ""), kind
    versions_are_refused(client, adoption)
    parts_are_not_audited(client)
    for before in (None, {"write": "true"}):
        failure_leaves_the_block_that_was_there(client, adoption, before, monkeypatch)
    a_clone_that_readers_use_is_not_deleted(client, adoption)


def versions_are_refused(client: Elasticsearch, adoption: IndexAdoption) -> None:
    make(client)
    assert adoption.refusal() is None
    for number, version in ((1, 7), (2, (1 << 53) - 1)):
        client.index(index=INDEX, id=str(number), document={"name": "a"}, version=version, version_type="external")
    assert adoption.refusal() is None
    client.index(index=INDEX, id="3", document={"name": "a"}, version=1 << 53, version_type="external")
    assert "the document 3 has the version 9007199254740992" in (adoption.refusal() or "")


def parts_are_not_audited(client: Elasticsearch) -> None:
    make(client, aliases={ALIAS: {"filter": {"term": {"name": "a"}}}})
    with pytest.raises(StoreError, match="has a filter"):
        audited_index(client, fellow())
    make(client, aliases={ALIAS: {"routing": "x"}})
    with pytest.raises(StoreError, match="has a routing"):
        audited_index(client, fellow())
    make(client)
    client.indices.create(index=f"{INDEX}b", aliases={ALIAS: {}})
    with pytest.raises(StoreError, match="several indices: fellow_v3, fellow_v3b"):
        audited_index(client, fellow())


def failure_leaves_the_block_that_was_there(
    client: Elasticsearch, adoption: IndexAdoption, before: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(client)
    if before:
        client.indices.put_settings(index=INDEX, settings={"index.blocks.write": True})
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(adopting, "aliases_of", lambda _: {"NO NAME": {}})
        with pytest.raises(StoreError, match="cannot be adopted"):
            adoption.take()
        assert blocks(client) == before
        assert adoption.refusal() is None, "the same command goes on"
        meanwhile.setattr(adopting, "aliases_of", gone)
        with pytest.raises(KeyboardInterrupt):
            adoption.take()
        assert blocks(client) == before
    adoption.take()
    assert blocks(client) == {"write": "true"}
    aliases = client.indices.get_alias(index=f"viewtail-{ALIAS}").body[f"viewtail-{ALIAS}"]["aliases"]
    assert sorted(aliases) == [ALIAS, f"viewtail.write-{ALIAS}"]


def gone(_: object) -> None:
    raise KeyboardInterrupt


def a_clone_that_readers_use_is_not_deleted(client: Elasticsearch, adoption: IndexAdoption) -> None:
    make(client)
    client.indices.put_settings(index=INDEX, settings={"index.blocks.write": True})
    own, unfinished = f"viewtail-{ALIAS}", f"viewtail.unfinished-{ALIAS}"
    client.indices.clone(index=INDEX, target=own)
    assert "no adopt left unfinished" in (adoption.refusal() or "")
    client.indices.put_alias(index=own, name=unfinished)
    assert adoption.refusal() is None
    client.indices.put_alias(index=own, name="fellow-beside")
    assert "in use already, by fellow-beside" in (adoption.refusal() or "")
    with pytest.raises(StoreError, match="in use already"):
        adoption.take()
    assert client.indices.exists(index=f"viewtail-{ALIAS}")
