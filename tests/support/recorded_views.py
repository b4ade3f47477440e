"""The views of the recorded deployments (tests/recorded/): what readers find in them, and what they must find.

Nothing of viewtail is imported. shop.moved and shop.gone, whose views were halted, are no part of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import redis

from tests.support.asking import ask
from tests.support.world import World

HALVES = {
    "mysql:ix_half": "half_mysql",
    "redis:half": "half_redis",
    "elasticsearch:half": "half_search",
}  # view, and its table
OF_USERS = frozenset(
    f"{store}:{name}"
    for store, names in {
        "mysql": ("ix_email", "ix_even"),
        "redis": ("user", "document"),
        "elasticsearch": ("user", "even"),
    }.items()
    for name in names
)
HALTED = frozenset({"mysql:ix_gone", "redis:moved"})
_VALUES = {"ix_email": "email", "ix_even": "n", "ix_half": "v"}


def wanted(world: World) -> dict[str, dict[int, Any]]:
    """What the views must show, from the tables."""
    users = ask(world.mysql, "SELECT id, email, n FROM shop.user")
    halves = {view: dict(ask(world.mysql, f"SELECT id, v FROM shop.{table}")) for view, table in HALVES.items()}
    documents = {key: {"email": email, "n": n, "tag": (email or "")[:3]} for key, email, n in users}
    return {
        "mysql:ix_email": {key: email for key, email, _ in users if email is not None},
        "mysql:ix_even": {key: n for key, _, n in users if n % 2 == 0},
        "mysql:ix_half": halves["mysql:ix_half"],
        "redis:user": {key: {"n": str(n)} | ({} if email is None else {"email": email}) for key, email, n in users},
        "redis:document": documents,
        "redis:half": {key: {"v": v} for key, v in halves["redis:half"].items()},
        "elasticsearch:user": {key: {"n": n} | ({} if email is None else {"email": email}) for key, email, n in users},
        "elasticsearch:even": {key: documents[key] for key, _, n in users if n % 2 == 0},
        "elasticsearch:half": {key: {"v": v} for key, v in halves["elasticsearch:half"].items()},
    }


def readers_find(world: World, views: Collection[str]) -> dict[str, dict[int, Any]]:
    """By view, what its readers are shown."""
    found: dict[str, dict[int, Any]] = {}
    for view in views:
        store, _, name = view.partition(":")
        if store == "mysql":
            value = _VALUES[name]
            rows = ask(world.mysql, f"SELECT id, {value} FROM viewtail.{name} WHERE {value} IS NOT NULL")
            found[view] = dict(rows)
        elif store == "redis":
            found[view] = _in_redis(world, name)
        else:
            world.search("POST", f"/{name}/_refresh")
            hits = world.search("GET", f"/{name}/_search?size=10000")["hits"]["hits"]
            found[view] = {int(hit["_id"]): hit["_source"] for hit in hits}
    return found


def _in_redis(world: World, name: str) -> dict[int, Any]:
    client = redis.Redis(port=world.redis.port, decode_responses=True)
    found = {}
    for key in client.scan_iter(f"{name}:*", count=1000):
        number = key.partition(":")[2]
        if number.isdigit():  # no tombstone, nor of a copy beside
            held: Any = client.hgetall(key) if client.type(key) == "hash" else json.loads(str(client.get(key)))
            del held["_version"]
            found[int(number)] = held
    client.close()
    return found
