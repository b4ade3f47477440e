"""The keys that a Redis view left: found in every form that they had, dropped a page at a time, and only if ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from projectors.stores.leaving import Retired
from projectors.stores.redis.leaving import RedisLeftover
from stack import Server

VERSION = "0" * 18 + "7"
MARK = "viewtail:own:redis:user:user:{INTEGER}:move"


@pytest.fixture
def client(redis_server: Server) -> Iterator[Any]:
    found = redis.Redis(port=redis_server.port)
    found.flushall()  # other tests' keys may have the form of these
    yield found
    found.flushall()
    found.close()


def leftover(client: Any, shapes: list[tuple[str, str]], copies: tuple[int, ...] = (), **others: str) -> RedisLeftover:
    def place(shape: str, kind: str) -> dict[str, str]:
        return {"entity": "shop.user", "shape": shape, "kind": kind}

    retired = Retired(
        name="user",
        places=[place(*one) for one in shapes],
        others={view: [place(shape, "hash")] for view, shape in others.items()},
        read_by=[],
        copies=copies,
    )
    return RedisLeftover(client, retired, "own")


def names(client: Any) -> set[str]:
    return {name.decode() for name in client.scan_iter()}


def test_keys_of_an_earlier_template_and_kind_go_too(client: Any) -> None:
    client.hset("user:7", "_version", VERSION)
    client.set("{u*[1]:7:x}:t", VERSION)
    client.set("u*[1]:8:x", f'{{"_version":"{VERSION}","a":1}}')
    client.set("u*[1]:8:x:more", f'{{"_version":"{VERSION}"}}')
    client.hset("u22[1]:8:x", "_version", VERSION)
    found = leftover(client, [("user:{INTEGER}", "hash"), ("u*[1]:{INTEGER}:{TEXT}", "json")])
    assert found.look().count == 3
    found.drop(lambda _: None)
    assert names(client) == {"u*[1]:8:x:more", "u22[1]:8:x"}
    assert found.look().count == 0


def test_what_is_left_of_a_move_that_was_cut_off_goes_too(client: Any) -> None:
    client.set(MARK, "2:1")
    client.set("viewtail:own:redis:user2:user2:{INTEGER}:move", "2:1")
    found = leftover(client, [("user:{INTEGER}", "hash")])
    assert found.look().count == 1 and any(MARK in line for line in found.look().dropped)
    found.drop(lambda _: None)
    assert names(client) == {"viewtail:own:redis:user2:user2:{INTEGER}:move"} and found.look().count == 0


def test_what_is_of_another_kind_or_of_another_view_stays(client: Any) -> None:
    client.set("user:1", f'{{"_version":"{VERSION}"}}')  # a document, where the view has hashes
    client.hset("user:2", "_version", "7")  # a version of another width
    client.hset("user:-3", "_version", VERSION)
    client.lpush("user:4", VERSION)
    client.lpush("{user:4}:t", VERSION)
    client.set("{user:5}:t", VERSION + "0")
    client.set("user:6:t", VERSION)
    before = names(client)
    kept = leftover(client, [("user:{INTEGER}", "hash")], **{"redis:heir": "user:{TEXT}"})
    assert kept.look().dropped == ()
    kept.drop(lambda _: None)
    assert names(client) == before
    alone = leftover(client, [("user:{INTEGER}", "hash")])
    assert alone.look().left == ["5 Redis keys of that form whose values viewtail did not write"]
    alone.drop(lambda _: None)
    assert names(client) == before - {"user:-3"}


def test_keys_of_a_copy_go_but_for_those_of_another_views_copy_of_that_number(client: Any) -> None:
    for name in ("user:1", "{user:1}:1", "{user:1}:2", "{user:1}:12", "{user:1}:2x", "{other:1}:2"):
        client.hset(name, "_version", VERSION)
    for name in ("{user:2}:t", "{user:2}:2t", "{user:2}:1t"):
        client.set(name, VERSION)
    client.hset("{user:3}:2", "name", "of another program")
    before, shapes = names(client), [("user:{INTEGER}", "hash")]
    heirs = leftover(client, shapes, (2,), **{"redis:heir": "user:{INTEGER}", "redis:heir~2": "user:{INTEGER}"})
    heirs.drop(lambda _: None)
    assert names(client) == before
    heirs = leftover(client, shapes, (2,), **{"redis:heir": "user:{INTEGER}", "redis:heir~12": "user:{INTEGER}"})
    assert heirs.look().count == 2
    heirs.drop(lambda _: None)
    assert names(client) == before - {"{user:1}:2", "{user:2}:2t"}
    leftover(client, shapes, (1, 2)).drop(lambda _: None)
    assert names(client) == {"{user:1}:12", "{user:1}:2x", "{other:1}:2", "{user:3}:2"}


def test_a_drop_that_is_cut_off_goes_on_with_what_is_left(client: Any) -> None:
    for number in range(1_000):
        client.hset(f"user:{number}", "_version", VERSION)
    found = leftover(client, [("user:{INTEGER}", "hash")])
    steps = []

    def cut_off(count: int) -> None:
        steps.append(count)
        if sum(steps) >= 300:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        found.drop(cut_off)
    assert found.look().count == 1_000 - sum(steps) > 0
    found.drop(lambda _: None)
    assert names(client) == set()
    assert max(steps) <= 100, "Redis serves nobody else while a script runs"
