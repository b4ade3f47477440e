"""Keys with the number of their copy, and the pointer that leads readers to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import redis

from ingest.binlog.coordinates import BinlogPosition
from projectors.stores.redis import sink as sinks
from projectors.stores.redis.keys import RedisKeys, SetKeys, leading
from projectors.stores.redis.sink import RedisSink
from projectors.stores.redis.store import RedisStore
from projectors.stores.redis.swapping import KeySwapping
from projectors.stores.redis.views import RedisHash, RedisSet
from projectors.views import BoundView, Entity, View
from stack import Server
from tests.contract.sinks import column, of_view
from tests.support.missing import missing
from viewtail.changes.errors import DeclarationError, StoreUnavailableError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Write

ID, NUMBER = column("id", Kind.INTEGER, "bigint", 0), column("generation", Kind.INTEGER, "bigint", 0)
NAME = column("name")


def bound(view: View, *key: Column, copy: int = 1, is_beside: bool = False) -> BoundView:
    table = Table(schema="shop", name="user", columns=(*key, NAME), primary_key=tuple(one.name for one in key))
    return BoundView(
        view=view, table=table, key=key, values=(NAME,), needed=(), fingerprint="", copy=copy, is_beside=is_beside
    )


def hashes(template: str, *key: Column, copy: int = 1, is_beside: bool = False) -> BoundView:
    view = RedisHash("v", Entity("shop.user"), fields=["name"], key=template)
    return bound(view, *(key or (ID,)), copy=copy, is_beside=is_beside)


def members(template: str, *key: Column, name: str = "m", copy: int = 1) -> BoundView:
    return bound(RedisSet(name, Entity("shop.user"), key=template), *(key or (ID,)), copy=copy)


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    found = redis.Redis(port=redis_server.port)
    found.flushall()
    yield found
    found.flushall()
    found.close()


def opened(client: redis.Redis) -> Callable[[], redis.Redis]:
    port = client.connection_pool.connection_kwargs["port"]
    return lambda: redis.Redis(port=port)


def sink_of(client: redis.Redis, *views: BoundView) -> RedisSink:
    """A pipeline's."""
    pointers = {keys.pointer: view.copy for view in views if (keys := leading(view)) and not view.is_beside}
    return RedisSink(
        opened(client), views, "viewtail", "redis", read_position=BinlogPosition.from_text, pointers=pointers
    )


def position(number: int) -> BinlogPosition:
    return BinlogPosition(epoch=1, file="binlog.000001", end=number, start=number - 5)


@pytest.mark.parametrize("is_beside", [False, True])
def test_each_copy_has_keys_of_its_own_and_knows_no_others(is_beside: bool) -> None:
    view = hashes("a/{generation}-{id}", copy=12, is_beside=is_beside)
    keys = RedisKeys(view)
    assert keys.names((7,)) == ("a/12-7", "{a/12-7}:t")
    assert keys.key_of("a/12-7") == keys.key_of_tombstone("{a/12-7}:t") == (7,)
    assert [keys.key_of(name) for name in ("a/1-7", "a/13-7", "a/012-7", "a/generation")] == [None] * 4
    assert keys.scan_match == "a/12\\-*" and keys.pointer == "a/generation"
    assert keys.shape == RedisKeys(hashes("a/{generation}-{id}")).shape, "what tells where a view is, is of all copies"
    sets = members("s:{generation}:{name}", copy=3)
    assert SetKeys(sets).redis_key(("x",)) == "s:3:x" and RedisKeys(sets).redis_key((7,)) == "m:3:7"
    found = leading(sets)
    assert found is not None and found.pointer == "s:generation"
    assert leading(hashes("u:{id}")) is None


def test_a_key_column_of_that_name_is_taken_for_itself_and_a_set_cannot_be_named_by_one() -> None:
    keys = RedisKeys(hashes("u:{id}:{generation}", ID, NUMBER, copy=5))
    assert keys.redis_key((1, 2)) == "u:1:2" and not keys.has_generation
    store, wrong = RedisStore(), members("s:{generation}:{name}", ID, NUMBER)
    assert any("has a column of that name" in one for one in store.problems(wrong))
    assert list(store.problems(members("s:{generation}:{name}"))) == []


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("u:{id}:{generation}", "before all columns"),
        ("u:{generation}:{generation}:{id}", "before all columns"),
        ("{generation}:{id}", "begin with text"),
        ("u:{generation}{id}", "could run into each other"),
        ("u:{generation}:x", "must name each of {id} once"),
    ],
)
def test_a_generation_that_readers_could_not_find_is_refused(template: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        RedisKeys(hashes(template))


@pytest.mark.parametrize(
    ("one", "other", "is_refused"),
    [
        ("u:{generation}:{id}", "u:{generation}:{id}:x", True),  # one pointer
        ("u:{generation}:{id}", "u:7:{id}", True),  # some copy
        ("u:{generation}:{id}", "u:x:{id}", False),
        ("u:{generation}:{id}", "u:{name}", True),  # the pointer could be a key
        ("u:{generation}:{id}", "u:{id}", False),
    ],
)
def test_views_that_could_meet_in_any_copy_are_refused(one: str, other: str, is_refused: bool) -> None:
    key = NAME if "{name}" in other else ID
    second = RedisHash("w", Entity("shop.user"), fields=["name"], key=other)
    views = [hashes(one), bound(second, key)]
    assert bool(list(RedisStore().problems_between(views))) is is_refused


def test_the_pipelines_sink_alone_leads_readers_and_puts_right_what_others_did(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, name = hashes("u:{generation}:{id}", copy=4), "u:generation"
    sink = sink_of(client, view, hashes("u:{generation}:{id}", copy=5, is_beside=True))
    sink.prepare()
    assert client.get(name) == b"4"
    client.set(name, "5")
    sink.write([of_view(view, {(1,): Write(7, ("a",))})], position(10))
    assert client.get(name) == b"5", "it looks now and then"
    monkeypatch.setattr(sinks, "LOOK_EVERY_S", 0.0)
    sink.write([], position(11))
    assert client.get(name) == b"4"
    client.delete(name)
    sink.settle()
    assert client.get(name) == b"4"
    client.delete(name)
    client.hset(name, "a", "b")
    sink.settle()
    assert client.get(name) == b"4"
    other = RedisSink(opened(client), [view], "viewtail", "redis", read_position=BinlogPosition.from_text)
    client.set(name, "5")
    other.prepare()
    other.write([], None)
    assert client.get(name) == b"5", "a sink beside the pipeline's leads nobody"
    other.close()
    sink.close()


@pytest.mark.parametrize("has_written", [True, False])
def test_who_lost_the_pipeline_does_not_lead_readers_back(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, has_written: bool
) -> None:
    monkeypatch.setattr(sinks, "LOOK_EVERY_S", 0.0)
    before = sink_of(client, hashes("u:{generation}:{id}", copy=1))
    before.prepare()
    if has_written:
        before.write([], position(10))
    swapping = KeySwapping(opened(client)(), "viewtail")
    live, beside = hashes("u:{generation}:{id}", copy=1), hashes("u:{generation}:{id}", copy=2, is_beside=True)
    assert swapping.swap(live, beside, 5), "nothing is moved"
    swapping.close()
    now = sink_of(client, hashes("u:{generation}:{id}", copy=2))
    now.prepare()
    now.write([], position(20))
    for again in (before.settle, lambda: before.write([], position(11))):
        with pytest.raises(StoreUnavailableError):
            again()
        assert client.get("u:generation") == b"2"
    now.close()


def test_a_store_that_is_emptied_while_a_pipeline_begins_is_no_new_one(client: redis.Redis) -> None:
    view = hashes("u:{generation}:{id}")
    sink = sink_of(client, view)
    sink.prepare()
    sink.write([], position(10))
    assert missing(sink) == frozenset()
    client.flushall()
    with pytest.raises(StoreUnavailableError, match="witness"):
        sink.witness(position(10))
    assert missing(sink) == {view.id} and client.get("u:generation") == b"1"
    sink.close()


def test_a_dropped_copy_takes_its_keys_and_sets_and_no_others(client: redis.Redis) -> None:
    for name in ("s:1:x", "s:2:x", "s:12:x", "s:generation:x"):
        client.sadd(name, "7")
    client.sadd("s:2", "other")
    for copy in (1, 2):
        client.hset(f"m:{copy}:7", mapping={"_version": "0" * 19, "set": f"s:{copy}:x", "member": "7"})
        client.set(f"{{m:{copy}:8}}:t", "0" * 19)
    swapping = KeySwapping(opened(client)(), "viewtail")
    live, beside = members("s:{generation}:{name}", copy=2), members("s:{generation}:{name}", copy=1)
    swapping.drop(live, replace(beside, is_beside=True))
    swapping.close()
    assert {name.decode() for name in client.scan_iter()} == {
        *("s:2:x", "s:12:x", "s:generation:x", "s:2", "m:2:7", "{m:2:8}:t", "s:generation"),
    }  # fmt: skip
    assert client.get("s:generation") == b"2", "nobody is led to what is dropped"
