"""The script that marks another tool's keys: what they hold stays, and what is viewtail's or of another form too."""

from __future__ import annotations

import json

import pytest
import redis

from projectors.stores.leaving import Retired
from projectors.stores.owners import Claimant
from projectors.stores.redis.adopting import MARK, TAKEN, KeyAdoption
from projectors.stores.redis.leaving import RedisLeftover, place_of
from projectors.stores.redis.owners import UNDER_WAY
from projectors.stores.redis.places import RedisPlaces
from projectors.stores.redis.script import LOWEST
from projectors.stores.redis.views import RedisHash
from projectors.views import BoundView, Entity
from stack import Server
from viewtail.changes.tables import Column, Kind, Table

OURS = f'{{"_version":"{1 << 53:019d}","a":1}}'.encode()


@pytest.fixture
def client(redis_server: Server) -> redis.Redis:
    client = redis.Redis(port=redis_server.port)
    client.flushall()
    return client


@pytest.mark.parametrize(
    ("stored", "count"),
    [
        (b'{"a":1}', 1),
        (b"{}", 1),
        (b' \n{ \t"a": {"b": [1, "}"]} } ', 1),
        (b'{"_version":"7","a":1}', 1),
        ('{"a":"ü","b":null}'.encode(), 1),
        (OURS, 0),
        (b"[1]", 0),
        (b"text", 0),
        (b"{user}:5", 0),
        (b'{"a":1}{"a":2}', 0),
        (b'{"a":1', 0),
        (b"", 0),
    ],
)
def test_a_document_gets_the_lowest_version_as_its_first_member(client: redis.Redis, stored: bytes, count: int) -> None:
    client.set("card:1", stored, ex=1000)
    assert client.eval(MARK, 1, "card:1", "json", "new") == count
    now = client.get("card:1")
    assert isinstance(now, bytes)
    assert client.ttl("card:1") > 900
    if not count:
        assert now == stored
        return
    assert now.startswith(f'{{"_version":"{LOWEST}"'.encode())
    assert {**json.loads(now), "_version": ""} == {**json.loads(stored), "_version": ""}
    assert client.eval(MARK, 1, "card:1", "json", "new") == 0


def test_a_hash_gets_the_lowest_version_beside_its_fields(client: redis.Redis) -> None:
    client.hset("person:1", mapping={"name": "a"})
    client.hset("person:2", mapping={"name": "b", "_version": "7"})
    client.hset("person:3", mapping={"name": "c", "_version": f"{1 << 53:019d}"})
    client.set("person:4", "text")
    names = [f"person:{n}" for n in range(1, 6)]
    assert client.eval(MARK, len(names), *names, "hash", "new") == 2
    assert client.hgetall("person:1") == {b"name": b"a", b"_version": LOWEST.encode()}
    assert client.hget("person:2", "_version") == LOWEST.encode()
    assert client.hget("person:3", "_version") == f"{1 << 53:019d}".encode()
    assert (client.get("person:4"), client.exists("person:5")) == (b"text", 0)


def test_a_version_that_another_tool_wrote_becomes_the_lowest_one(client: redis.Redis) -> None:
    """Else a change to the row would lose to it in silence."""
    huge = "9" * 19
    client.hset("person:1", mapping={"name": "a", "_version": huge})
    client.set("card:1", f'{{"_version":"{huge}","a":1}}', ex=1000)
    for _ in range(2):
        client.eval(MARK, 1, "person:1", "hash", "all")
        client.eval(MARK, 1, "card:1", "json", "all")
    assert client.hget("person:1", "_version") == LOWEST.encode()
    assert client.get("card:1") == f'{{"_version":"{LOWEST}","a":1}}'.encode()
    assert client.ttl("card:1") > 900


def test_versions_are_anothers_until_each_key_was_marked(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    claimant = Claimant(id="d1", title="one")
    adoption = KeyAdoption(client, person(), RedisPlaces(client, claimant, "viewtail"))
    huge = "9" * 19
    client.hset("person:1", mapping={"name": "a", "_version": huge})
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(client, "eval", stopped)
        with pytest.raises(KeyboardInterrupt):
            adoption.take(is_beside=False)
    adoption.take(is_beside=False)
    assert client.hget("person:1", "_version") == LOWEST.encode()
    client.hset("person:2", mapping={"name": "a", "_version": huge})  # what viewtail wrote since
    adoption.take(is_beside=False)
    assert client.hget("person:2", "_version") == b"9" * 19


def test_versions_in_a_place_that_run_claimed_before_are_anothers_too(client: redis.Redis) -> None:
    places = RedisPlaces(client, Claimant(id="d1", title="one"), "viewtail")
    places.take_over(person(), "")
    client.hset("person:1", mapping={"name": "a", "_version": "9" * 19})
    KeyAdoption(client, person(), places).take(is_beside=False)
    assert client.hget("person:1", "_version") == LOWEST.encode()


def test_keys_that_viewtail_never_wrote_stay_when_the_view_is_forgotten(client: redis.Redis) -> None:
    claimant = Claimant(id="d1", title="one")
    places = RedisPlaces(client, claimant, "viewtail")
    client.hset("person:1", mapping={"name": "a", "_version": LOWEST})
    client.hset("person:2", mapping={"name": "a", "_version": f"{1 << 53:019d}"})
    retired = Retired(name="person", places=[place_of(person())], others={}, read_by=(), copies=())
    leftover = RedisLeftover(client, retired, "viewtail", claimant)
    places.take_over(person(), UNDER_WAY)
    assert "half taken over" in str(leftover.look().left)
    leftover.drop(lambda _: None)
    places.clear(person())
    assert client.exists("person:1", "person:2") == 2
    places.take_over(person(), TAKEN)
    leftover.drop(lambda _: None)
    assert (client.exists("person:1"), client.exists("person:2")) == (1, 0)


def stopped(*_: object) -> None:
    raise KeyboardInterrupt


def person() -> BoundView:
    columns = (
        Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False),
        Column(name="name", kind=Kind.TEXT, declared="varchar(10)", is_nullable=False),
    )
    return BoundView(
        view=RedisHash("person", Entity("shop.user"), fields=["name"]),
        table=Table(schema="shop", name="user", columns=columns, primary_key=("id",)),
        key=columns[:1],
        values=columns[1:],
        needed=("id", "name"),
        fingerprint="0",
    )
