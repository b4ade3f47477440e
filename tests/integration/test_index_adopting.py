"""That by which readers or documents would be lost is refused; a failure leaves the index writable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from projectors import failpoints
from projectors.stores.elasticsearch import adopting
from projectors.stores.elasticsearch.adopting import IndexAdoption
from projectors.stores.elasticsearch.auditing import audited_index
from projectors.stores.elasticsearch.checks import checks
from projectors.stores.elasticsearch.index import make_ready
from projectors.stores.elasticsearch.swapping import AliasSwapping
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.owners import Claimant
from projectors.views import BoundView, Entity
from stack import Server
from viewtail.changes.errors import StoreError
from viewtail.changes.tables import Column, Kind, Table

INDEX, ALIAS = "fellow_v3", "fellow"
CLAIMANT = Claimant(id="d1", title="one")
ONE_SHARD = {"number_of_shards": 1, "number_of_replicas": 0}
NAME = {"name": {"type": "keyword"}}
PLAIN: dict[str, Any] = {"settings": ONE_SHARD, "mappings": {"properties": NAME}, "aliases": {ALIAS: {}}}

BESIDE: dict[str, tuple[dict[str, Any], str]] = {
    "another mapping": ({"mappings": {"properties": {"name": {"type": "text"}}}}, "another mapping"),
    "several shards": ({"settings": {"number_of_shards": 2, "number_of_replicas": 0}}, "has 2 shards"),
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
    adoption = IndexAdoption(client, fellow(), CLAIMANT)
    for kind, (others, said) in BESIDE.items():
        make(client, **others)
        assert adoption.refusal(drops_extra=False) is None, kind
        assert said in (adoption.beside() or ""), kind
    other_readers_are_not_left_behind(client, adoption)
    large_versions_are_not_taken(client, adoption)
    an_index_of_the_views_name_goes_only_when_asked(client, adoption)
    a_copy_takes_only_what_was_given_up(client, adoption)
    parts_are_not_audited(client)
    for before in (None, {"write": "true"}):
        failure_leaves_the_block_that_was_there(client, adoption, before, monkeypatch)
    a_clone_that_readers_use_is_not_deleted(client, adoption)
    readers_that_somebody_led_away_meanwhile_are_left_there(client, adoption, monkeypatch)
    a_clone_that_takes_long_is_waited_for(client, adoption, monkeypatch)
    what_an_adopt_left_is_said(client, adoption)


def other_readers_are_not_left_behind(client: Elasticsearch, adoption: IndexAdoption) -> None:
    make(client, aliases={ALIAS: {}, "fellows": {}})
    assert "other aliases too: fellows" in (adoption.refusal(drops_extra=True) or "")


def an_index_of_the_views_name_goes_only_when_asked(client: Elasticsearch, adoption: IndexAdoption) -> None:
    remove(client)
    client.indices.create(index=ALIAS, settings=ONE_SHARD, mappings={"properties": {"name": {"type": "text"}}})
    assert "adopt elasticsearch:fellow --drop-extra" in (adoption.refusal(drops_extra=False) or "")
    assert adoption.refusal(drops_extra=True) is None


def a_copy_takes_only_what_was_given_up(client: Elasticsearch, adoption: IndexAdoption) -> None:
    view, copy = fellow(), replace(fellow(), copy=2, is_beside=True)
    swapping = AliasSwapping(client, lambda: CLAIMANT)
    for name in (INDEX, ALIAS):
        remove(client)
        aliases = {} if name == ALIAS else {ALIAS: {}}
        client.indices.create(index=name, mappings={"properties": {"name": {"type": "text"}}}, aliases=aliases)
        make_ready(client, copy, CLAIMANT)
        with pytest.raises(StoreError, match=r"viewtail did not make.*viewtail adopt elasticsearch:fellow"):
            swapping.swap(view, copy, 0)
        adoption.take(is_beside=True)
        with pytest.raises(StoreError, match="viewtail did not make"):
            swapping.swap(view, copy, 0)  # no adopt asked for this copy
        swapping.drop(view, replace(copy, copy=3))
        with pytest.raises(StoreError, match="viewtail did not make"):
            swapping.swap(view, copy, 0, is_adopting=True)  # nothing is given up any more
        adoption.take(is_beside=True)
        for _ in range(2):
            assert swapping.swap(view, copy, 0, is_adopting=True)
            assert list(client.indices.get_alias(name=ALIAS)) == [f"viewtail.2-{ALIAS}"]
        assert client.indices.exists(index=name) == (name == INDEX or client.indices.exists_alias(name=name))
        swapping.drop(copy, view)
    assert adoption.refusal(drops_extra=False) is None, "it is the view's own"
    assert adoption.steps() == []


def large_versions_are_not_taken(client: Elasticsearch, adoption: IndexAdoption) -> None:
    make(client)
    assert adoption.beside() is None
    for number, version in ((1, 7), (2, (1 << 53) - 1)):
        client.index(index=INDEX, id=str(number), document={"name": "a"}, version=version, version_type="external")
    assert adoption.beside() is None
    client.index(index=INDEX, id="3", document={"name": "a"}, version=1 << 53, version_type="external")
    assert "the document 3 has the version 9007199254740992" in (adoption.beside() or "")


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
            adoption.take(is_beside=False)
        assert blocks(client) == before
        assert note(client) == []
        assert adoption.refusal(drops_extra=False) is None, "the same command goes on"
        meanwhile.setattr(adopting, "aliases_of", gone)
        with pytest.raises(KeyboardInterrupt):
            adoption.take(is_beside=False)
        assert blocks(client) == before
    adoption.take(is_beside=False)
    assert blocks(client) == {"write": "true"}
    aliases = client.indices.get_alias(index=f"viewtail-{ALIAS}").body[f"viewtail-{ALIAS}"]["aliases"]
    assert sorted(aliases) == [ALIAS, f"viewtail.write-{ALIAS}"]


def note(client: Elasticsearch) -> list[str]:
    return [name for name in client.indices.get(index=INDEX).body[INDEX]["aliases"] if name != ALIAS]


def gone(_: object) -> None:
    raise KeyboardInterrupt


def a_clone_that_readers_use_is_not_deleted(client: Elasticsearch, adoption: IndexAdoption) -> None:
    make(client)
    client.indices.put_settings(index=INDEX, settings={"index.blocks.write": True})
    own, unfinished = f"viewtail-{ALIAS}", f"viewtail.unfinished-{ALIAS}"
    client.indices.clone(index=INDEX, target=own)
    assert "no adopt left unfinished" in (adoption.refusal(drops_extra=False) or "")
    client.indices.put_alias(index=own, name=unfinished)
    assert adoption.refusal(drops_extra=False) is None
    client.indices.put_alias(index=own, name="fellow-beside")
    assert "in use already, by fellow-beside" in (adoption.refusal(drops_extra=False) or "")
    with pytest.raises(StoreError, match="in use already"):
        adoption.take(is_beside=False)
    assert client.indices.exists(index=f"viewtail-{ALIAS}")


def readers_that_somebody_led_away_meanwhile_are_left_there(
    client: Elasticsearch, adoption: IndexAdoption, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(client)

    def reach(step: str) -> None:
        if step == "before leading readers":
            client.indices.create(index=f"{INDEX}b", settings=ONE_SHARD, mappings={"properties": NAME})
            moved = [
                {"remove": {"index": INDEX, "alias": ALIAS}},
                {"add": {"index": f"{INDEX}b", "alias": ALIAS}},
            ]
            client.indices.update_aliases(actions=moved)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(failpoints, "reach", reach)
        with pytest.raises(StoreError, match="cannot be adopted: 404"):
            adoption.take(is_beside=False)
    assert list(client.indices.get_alias(name=ALIAS)) == [f"{INDEX}b"]
    assert blocks(client) is None and note(client) == []


def a_clone_that_takes_long_is_waited_for(
    client: Elasticsearch, adoption: IndexAdoption, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(client)
    client.cluster.put_settings(persistent={"cluster.routing.allocation.enable": "none"})
    allocate = partial(client.cluster.put_settings, persistent={"cluster.routing.allocation.enable": None})
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(adopting, "CLONED_WITHIN", "500ms")
        meanwhile.setattr(adopting.time, "sleep", lambda _: allocate())
        try:
            adoption.take(is_beside=False)
        finally:
            allocate()
    assert list(client.indices.get_alias(name=ALIAS)) == [f"viewtail-{ALIAS}"]


def what_an_adopt_left_is_said(client: Elasticsearch, adoption: IndexAdoption) -> None:
    make(client)
    adoption.take(is_beside=True)
    (remark,) = audited_index(client, fellow()).remarks
    assert f"the index {INDEX} is noted to give its place to a copy" in remark
    url = next(iter(client.transport.node_pool.all())).base_url
    (found,) = [each for each in checks(lambda: Elasticsearch(url), None) if each.what == "adopt"]
    assert found.seen == f"{INDEX} is to give its place to a copy"
