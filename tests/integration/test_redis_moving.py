"""Two copies change places beside what somebody else put under the names of their keys."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from projectors.stores.redis.swapping import KeySwapping
from projectors.views import Move
from stack import Server
from tests.integration.test_redis_generations import hashes

VERSION = "0" * 18 + "5"


@pytest.fixture
def client(redis_server: Server) -> Iterator[Any]:
    found = redis.Redis(port=redis_server.port)
    found.flushall()
    yield found
    found.flushall()
    found.close()


def test_a_foreign_value_in_the_place_of_a_tombstone_does_not_hold_a_move_up(client: Any) -> None:
    """Such a key would keep every later entity from moving, and the pipeline from writing, for good."""
    client.hset("v:1", mapping={"_version": VERSION, "name": "old"})
    client.hset("{v:1}:2", mapping={"_version": VERSION, "name": "new"})
    client.rpush("{v:2}:t", "of somebody else")
    client.set("{v:3}:t", VERSION)
    live, coming = hashes("v:{id}", copy=1), hashes("v:{id}", copy=2, is_beside=True)
    swapping = KeySwapping(client, "viewtail")
    assert swapping.swap(live, coming, 9) is False, "nothing is moved yet"
    former = replace(live, is_beside=True, move=Move(copy=2, former=1, upto=9))
    assert swapping.move(former, threading.Event(), lambda _: None)
    assert client.hget("v:1", "name") == b"new" and client.hget("{v:1}:1", "name") == b"old"
    assert client.lrange("{v:2}:t", 0, -1) == [b"of somebody else"]
    assert client.get("{v:3}:t") == client.get("{v:3}:1t") == VERSION.encode()


def test_the_moves_of_two_deployments_with_one_name_for_database_and_view_go_on_side_by_side(client: Any) -> None:
    moves = []
    for start in "vw":
        client.hset(f"{start}:1", mapping={"_version": VERSION, "name": "old"})
        client.hset(f"{{{start}:1}}:2", mapping={"_version": VERSION, "name": "new"})
        live, coming = (hashes(f"{start}:{{id}}", copy=copy, is_beside=copy != 1) for copy in (1, 2))
        if start == "w":  # it was rebuilt once more
            live, coming = (replace(one, copy=one.copy + 1) for one in (live, coming))
            client.rename("{w:1}:2", "{w:1}:3")
        assert not KeySwapping(client, "viewtail").swap(live, coming, 9)
        moves.append(replace(live, is_beside=True, move=Move(copy=coming.copy, former=live.copy, upto=9)))
    for former in moves:
        assert KeySwapping(client, "viewtail").move(former, threading.Event(), lambda _: None)
    assert [client.hget(f"{start}:1", "name") for start in "vw"] == [b"new", b"new"]


def test_what_only_the_former_copy_has_is_found_behind_the_rest(client: Any) -> None:
    both, former_alone = range(150), range(150, 400)
    for number in (*both, *former_alone):
        client.hset(f"v:{number}", mapping={"_version": VERSION, "name": "old"})
    for number in both:
        client.hset(f"{{v:{number}}}:2", mapping={"_version": VERSION, "name": "new"})
    live, coming = hashes("v:{id}", copy=1), hashes("v:{id}", copy=2, is_beside=True)
    swapping, steps = KeySwapping(client, "viewtail"), list[int]()
    swapping.swap(live, coming, 9)
    former = replace(live, is_beside=True, move=Move(copy=2, former=1, upto=9))
    scripts = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    assert swapping.move(former, threading.Event(), steps.append)
    assert sum(steps) == len(both), "each entity of the copy that comes is counted once"
    assert all(client.hget(f"v:{number}", "name") == b"new" for number in both)
    assert not any(client.exists(f"v:{number}") for number in former_alone)
    assert {client.get(f"{{v:{number}}}:t") for number in former_alone} == {b"0" * 18 + b"9"}
    assert all(client.hget(f"{{v:{number}}}:1", "name") == b"old" for number in (*both, *former_alone))
    scripts = client.info("commandstats")["cmdstat_evalsha"]["calls"] - scripts
    assert scripts < 15 + 25 + 20, "no script runs again for what was moved"
