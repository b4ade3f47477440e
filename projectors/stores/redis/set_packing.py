"""Packs a batch of writes to sets into one EVALSHA command."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from projectors.stores import Item, takes_equal_versions
from projectors.stores.redis.keys import RedisKeys
from projectors.stores.redis.memberships import Memberships, Orphans
from projectors.stores.redis.packing import argument
from projectors.stores.redis.script import UNLESS_MOVING
from projectors.stores.redis.set_script import EXPEL, MOVE, TAKE_AWAY
from projectors.stores.redis.views import RedisSortedSet
from projectors.views import BoundView
from viewtail.changes.writes import Key


class SetPacker:
    """Packs commands of one view of sets."""

    def __init__(self, view: BoundView, keys: RedisKeys, *, unless: str = "") -> None:
        """`unless` is as for Packer."""
        self._keys = keys
        self._last_keys = [argument(unless)] if unless else []
        self.script = UNLESS_MOVING + MOVE if unless else MOVE
        self._memberships = Memberships(view)
        above = ">=" if takes_equal_versions(view) else ">"
        self._between = argument(above) + argument(set_type(view)) + argument(shown_or_beside(keys))
        self._before = "$7\r\nEVALSHA\r\n" + argument(hashlib.sha1(self.script.encode()).hexdigest())

    def command(self, items: Sequence[Item], numbers: list[int] | None = None) -> bytes:
        """See `Packer.command`."""
        keys: list[str] = []
        arguments: list[str] = []
        for key, (version, values) in items:
            own, tombstone = self._keys.names(key)
            keys += (argument(own), argument(tombstone))
            assert not isinstance(values, bytes)
            there = None if values is None else self._memberships.of(key, values)
            if there is None:
                arguments.append(argument(f"{version:019d}t"))
            else:
                arguments += [argument(f"{version:019d}"), argument(there.set), argument(there.member)]
                arguments += [] if there.score is None else [argument(there.score)]
                if numbers is not None:
                    numbers.append(hash(own))
        keys += self._last_keys
        head = f"*{6 + len(keys) + len(arguments)}\r\n{self._before}{argument(str(len(keys)))}"
        return "".join([head, *keys, self._between, *arguments]).encode()

    def take_away(self, key: Key, mark: Any) -> tuple[object, ...]:
        """The EVAL that forgets what a reader saw for an entity; if it is in wrong sets too, only those memberships."""
        if isinstance(mark, Orphans):
            return (EXPEL, 1, self._keys.redis_key(key), mark.member, *mark.sets)
        return (TAKE_AWAY, 2, *self._keys.names(key), mark)

    def places_of(self, item: Item) -> str:
        """The keys that a write of this item affects, for people."""
        key, (_, values) = item
        there = self._memberships.of(key, values) if isinstance(values, tuple) else None
        own = f"key {self._keys.redis_key(key)!r}"
        return own if there is None else f"{own}, or the set {there.set!r},"


def shown_or_beside(keys: RedisKeys) -> str:
    """The scripts' word for whether entities with these keys are in sets that readers see."""
    return "beside" if keys.is_shadow else "shown"


def set_type(view: BoundView) -> str:
    """The Redis type of the view's sets."""
    return "zset" if isinstance(view.view, RedisSortedSet) else "set"
