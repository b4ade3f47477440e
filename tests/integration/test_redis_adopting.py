"""The script that marks another tool's keys: what they hold stays, and what is viewtail's or of another form too."""

from __future__ import annotations

import json

import pytest
import redis

from projectors.stores.redis.adopting import MARK
from projectors.stores.redis.script import LOWEST
from stack import Server

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
        (b"", 0),
    ],
)
def test_a_document_gets_the_lowest_version_as_its_first_member(client: redis.Redis, stored: bytes, count: int) -> None:
    client.set("card:1", stored, ex=1000)
    assert client.eval(MARK, 1, "card:1", "json") == count
    now = client.get("card:1")
    assert client.ttl("card:1") > 900
    if not count:
        assert now == stored
        return
    assert now.startswith(f'{{"_version":"{LOWEST}"'.encode())
    assert {**json.loads(now), "_version": ""} == {**json.loads(stored), "_version": ""}
    assert client.eval(MARK, 1, "card:1", "json") == 0


def test_a_hash_gets_the_lowest_version_beside_its_fields(client: redis.Redis) -> None:
    client.hset("person:1", mapping={"name": "a"})
    client.hset("person:2", mapping={"name": "b", "_version": "7"})
    client.hset("person:3", mapping={"name": "c", "_version": f"{1 << 53:019d}"})
    client.set("person:4", "text")
    names = [f"person:{n}" for n in range(1, 6)]
    assert client.eval(MARK, len(names), *names, "hash") == 2
    assert client.hgetall("person:1") == {b"name": b"a", b"_version": LOWEST.encode()}
    assert client.hget("person:2", "_version") == LOWEST.encode()
    assert client.hget("person:3", "_version") == f"{1 << 53:019d}".encode()
    assert (client.get("person:4"), client.exists("person:5")) == (b"text", 0)
