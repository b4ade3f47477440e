"""Reads sets: the set that an entity is in, all entities of a view, and the members of a set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

from redis import Redis

from projectors.stores import NOTHING_HELD, UNREADABLE, Held, StoredRow, ViewReader, slices
from projectors.stores.redis.keys import SetKeys, version_of
from projectors.stores.redis.memberships import Memberships, Orphans
from projectors.stores.redis.reading import ANOTHER_TYPE, BURIED, NO_VERSION, RedisReader, held_as_tombstone
from projectors.stores.redis.script import WRONG_TYPE
from projectors.stores.redis.set_packing import set_type, shown_or_beside
from projectors.stores.redis.set_script import LOOK, ORPHANS
from projectors.stores.redis.sink import KEYS_A_SCAN, ROWS_A_SCRIPT, as_text
from projectors.stores.redis.unanswered import reading
from projectors.views import BoundView
from viewtail.changes.errors import MisuseError
from viewtail.changes.rendering import key_renderer, parse_key
from viewtail.changes.writes import Key, Write


class SetReader(RedisReader):
    """Reads a view of sets. Content is the set that an entity is in, its name there, and its score in a sorted set."""

    has_orphans = True

    def __init__(self, client: Redis, view: BoundView) -> None:
        super().__init__(client, view)
        self._sets, self._memberships = SetKeys(view), Memberships(view)
        self._type = set_type(view)
        self._member = key_renderer(view.key)
        self._orphans: dict[Key, set[bytes]] = {}  # by entity, the wrong sets in which `orphans` found it

    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        by_key = self.held(keys)
        shown = [(key, by_key[key]) for key in keys if key in by_key]
        return [StoredRow(key, held.version or 0, held.content) for key, held in shown if held.content is not None]

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        """Run one script per hundred keys: it reads an entity's place, set and tombstone as of one moment."""
        by_key: dict[Key, Held] = {}
        for some in slices(keys, ROWS_A_SCRIPT):
            names = [name for key in some for name in self._keys.names(key)]
            with reading(self._client, self.view.id):
                command = ("EVAL", LOOK, len(names), *names, self._type, shown_or_beside(self._keys))
                answers: Any = self._client.execute_command(*command, NEVER_DECODE=True)  # type: ignore[no-untyped-call]
            for key, answer in zip(some, answers, strict=True):
                if (held := self._with_orphans(key, self._held_in_place(*answer))) is not None:
                    by_key[key] = held
        return by_key

    def unequal(self, wanted: Mapping[Key, Write]) -> list[Key]:
        """Read and compare here: the comparing script knows no sets."""
        return ViewReader.unequal(self, wanted)

    def form_of(self, key: Key, values: tuple[Any, ...] | bytes) -> Any:
        assert isinstance(values, tuple)
        there = self._memberships.of(key, values)
        return None if there is None else _content(there.set, there.member, there.score)

    def orphans(self) -> Iterator[list[Key]]:
        """Go through all sets of the view; members that no entity could be are added to `foreign`."""
        if self._keys.is_shadow:
            return  # the sets belong to the copy that readers see
        with reading(self._client, self.view.id):
            for name in self._client.scan_iter(match=self._sets.scan_match, count=KEYS_A_SCAN, _type=self._type):
                if self._sets.key_of(as_text(name)) is None:
                    continue
                scan: Any = self._client.zscan_iter if self._type == "zset" else self._client.sscan_iter
                scanned = (entry[0] if isinstance(entry, tuple) else entry for entry in scan(name, count=KEYS_A_SCAN))
                while members := list(islice(scanned, ROWS_A_SCRIPT)):
                    yield self._orphans_among(name, members)

    def keys_with(self, values: Sequence[Any], limit: int) -> list[Key]:
        """The keys in key order; for a sorted set in the order of scores."""
        if any(value is None for value in values):
            return []
        name = self._sets.redis_key(tuple(values))
        with reading(self._client, self.view.id):
            if self._type == "zset":
                size = max(limit, KEYS_A_SCAN) if self.view.source else limit
                return list(islice(self._own_keys(self._in_order(name, size)), limit))
            return sorted({*self._own_keys(self._client.sscan_iter(name, count=KEYS_A_SCAN))})[:limit]

    def _own_keys(self, members: Iterable[Any]) -> Iterator[Key]:
        """The keys of members that entities of the view's source have: a set has those of all."""
        keys = (self._key_of(as_text(member)) for member in members)
        return (key for key in keys if key is not None and self.view.own([key]))

    def _in_order(self, name: str, size: int) -> Iterator[Any]:
        """The members of a sorted set in the order of scores, some at a time."""
        for start in count(0, size):
            members: Any = self._client.zrange(name, start, start + size - 1)
            yield from members
            if len(members) < size:
                return

    def _held_in_place(
        self, kind: bytes, version: bytes, set_: bytes, member: bytes, has: Any, mark: bytes
    ) -> Held | None:
        if kind == b"none":
            return held_as_tombstone(mark or None)
        if kind != b"hash":
            return Held(None, None, ANOTHER_TYPE, WRONG_TYPE, is_foreign=True)
        number = version_of(version)
        fault = NO_VERSION if number is None else BURIED if mark != b"" else ""
        is_in = has not in (b"", "")
        score = as_text(has) if self._type == "zset" and is_in else None
        content = _content(as_text(set_), as_text(member), score) if is_in else None
        return Held(number, content, fault, version, is_foreign=number is None)

    def _with_orphans(self, key: Key, held: Held | None) -> Held | None:
        """`held`, with the wrong sets that `orphans` found for the entity, if it is still in them."""
        sets = self._orphans.get(key)
        if sets is None:
            return held
        member, there = self._member(key).encode(), held or NOTHING_HELD
        left = tuple(sorted(name for name in sets if self._orphaned(name, [member])))
        if not left:
            del self._orphans[key]
            return held
        if there.fault:
            return held  # that is repaired first
        content = UNREADABLE if there.content is None else there.content
        fault = f"{len(left)} of the view's sets has it as a member without its key naming that set"
        return Held(there.version, content, fault, Orphans(member, left))

    def _orphans_among(self, name: bytes, members: list[bytes]) -> list[Key]:
        """The keys of members that this set should not contain. Names may be any bytes."""
        keys = []
        for at in self._orphaned(name, members):
            key = self._key_of(as_text(members[at]))
            if key is None:
                self._note_foreign(f"member {as_text(members[at])!r} of {as_text(name)!r}")
            else:
                self._orphans.setdefault(key, set()).add(name)
                keys.append(key)
        return keys

    def _orphaned(self, name: bytes, members: Sequence[bytes]) -> list[int]:
        """The numbers of members that the set contains although no key says so. One script reads both, so moves do no
        harm."""
        keys = [self._key_of(as_text(member)) for member in members]
        places = ["" if key is None else self._keys.redis_key(key) for key in keys]
        pairs = [part for pair in zip(members, places, strict=True) for part in pair]
        with reading(self._client, self.view.id):
            orphaned: Any = self._client.eval(ORPHANS, 0, name, self._type, *pairs)
        return list(orphaned)

    def _key_of(self, member: str) -> Key | None:
        """The key of a member; None if no key is rendered like this: readers never ask for 007."""
        try:
            key = parse_key(member, self.view.key)
        except MisuseError:
            return None
        return key if self._member(key) == member else None


def _content(set_: str, member: str, score: str | None) -> dict[str, Any]:
    there: dict[str, Any] = {"set": set_, "member": member}
    return there if score is None else {**there, "score": float(score)}


def set_content(view: BoundView, key: Key, values: tuple[Any, ...] | bytes) -> dict[str, Any] | None:
    """The content that a reader finds for an entity with these values. Raises Unfit."""
    assert isinstance(values, tuple)
    there = Memberships(view).of(key, values)
    return None if there is None else _content(there.set, there.member, there.score)
