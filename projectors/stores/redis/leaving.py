"""Removes data from Redis: the keys of a view that is no longer declared. Finds what is left of one entity.

A view's keys are found by the shape of its key template, which viewtail's own tables keep. A key goes only if viewtail
wrote its value, which a script looks at in the step in which it drops it.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from redis import Redis

from projectors.stores import slices
from projectors.stores.leaving import Found, Holds, Leftover, Place, Retired, Trace, Traces
from projectors.stores.owners import NOBODY, Claimant
from projectors.stores.redis import owners
from projectors.stores.redis.keys import RedisKeys, SetKeys, glob_of, leading, pattern_of, shapes_meet
from projectors.stores.redis.moving import mark_of
from projectors.stores.redis.script import LOWEST, VERSION_IN
from projectors.stores.redis.set_packing import set_type
from projectors.stores.redis.set_script import COMMON
from projectors.stores.redis.sink import KEYS_A_SCAN, ROWS_A_SCRIPT, as_text
from projectors.stores.redis.unanswered import asking
from projectors.stores.redis.unique_reading import UniqueReader
from projectors.stores.redis.views import RedisHash, RedisSet
from projectors.views import BoundView
from viewtail.changes.copy_ids import copy_id
from viewtail.changes.counting import counted
from viewtail.changes.rendering import key_renderer
from viewtail.changes.writes import Key

_LOOK_EVERY_S = 1.0  # whether somebody else takes keys over while they are dropped

HASH, JSON, MEMBER, TOMBSTONE = "hash", "json", "member", "tombstone"
OF_SOURCES = "of sources"  # the tombstones of a key of one source at a time: each source has its own
_OF_A_SOURCE = re.compile(r"\{(.*)\}:t:[a-z0-9_]+", re.DOTALL)

# ARGV: for each key what it should hold. Returns for each key its version where viewtail wrote that, else ''.
_LOOK = (
    VERSION_IN
    + """
local answers = {}
for number, key in ipairs(KEYS) do
  local version = version_in(key, ARGV[number])
  answers[number] = version or ''
  --step
end
return answers
"""
)
# A key with the lowest version has a value that another tool wrote (adopting.py), or one that viewtail left to readers
# without a version of its own.
_OURS = _LOOK.replace("answers[number]", f"if version == '{LOWEST}' then version = false end\n  answers[number]")
_DROP = _OURS.replace("--step", "if version then redis.call('UNLINK', key) end")
# Of a set's entities: the member that its key names leaves its set in the same step.
_LEAVE = COMMON + _OURS.replace(
    "--step", "if version then if ARGV[number] == 'member' then leave(key) end call('UNLINK', key) end"
)


def _pointers(places: Sequence[Place], kept: Collection[str]) -> dict[str, tuple[str, str]]:
    """Those of these places that nobody else has."""
    return {
        place["pointer"]: (place["shape"], "which generation readers find")
        for place in places
        if "pointer" in place and place["pointer"] not in kept
    }


class RedisLeftover(Leftover):
    """Keys and tombstones of one view and its copies, in all shapes that its keys ever had."""

    def __init__(self, client: Redis, retired: Retired, database: str, claimant: Claimant = NOBODY) -> None:
        """`database`: of the deployment's own tables. `claimant`: whose keys are dropped, and nobody else's."""
        self._client, self._retired, self._claimant = client, retired, claimant
        self._view = f"redis:{retired.name}"
        shapes = {(place["shape"], place["kind"]) for place in retired.places}
        self._shapes = [(shape, kind, re.compile(pattern_of(shape))) for shape, kind in sorted(shapes)]
        self._of_sources = {place["shape"] for place in retired.places if place.get("tombstones") == OF_SOURCES}
        self._copies = retired.copies
        others = [(view, place) for view, places in retired.others.items() for place in places]
        self._others = [(view, re.compile(pattern_of(place["shape"]))) for view, place in others]
        # Other keys of the view: for each the shape of the rows' keys that it goes with, and what it says.
        self._also = _pointers(retired.places, _named(map(itemgetter(1), others), "pointer")) | {
            mark_of(self._view, shape, database): (shape, "how far its copies changed places")
            for shape, *_ in self._shapes
        }
        self._shared = sorted(_sharing(others, _named(retired.places, "sets")))

    def look(self) -> Found:
        counts, others, foreign = Counter[str](), Counter[str](), 0
        taken = self._taken()
        for names, kind in self._pages(others, taken):
            ours = sum(map(bool, self._ask(_OURS, names, kind)))
            counts[kind] += ours
            foreign += len(names) - ours
        shapes = ", ".join(shape for shape, *_ in self._shapes if shape not in taken)
        also = list(filter(self._is_there, self._also_ours(taken)))
        count = counts.total() + len(also)
        numbers = f"{counts.total() - counts[TOMBSTONE]:,}, and {counted(counts[TOMBSTONE], 'tombstones')}"
        lines = [f"Redis keys {shapes}{' and those of its copies' if self._copies else ''}: {numbers}"]
        lines += [f"Redis key {name}, which says {self._also[name][1]}" for name in also]
        left = [*_stays(taken), *self._left(others, foreign)]
        return Found(count=count, dropped=lines if count else (), left=left)

    def of_others(self) -> Sequence[str]:
        return _stays(self._taken())

    def _taken(self) -> dict[str, str]:
        """The shapes of entities' keys that are not this deployment's, with the reasons."""
        with asking(self._client, "looking whose keys are"):
            noted = owners.read(self._client.execute_command)
        whys = [
            (place["shape"], noted.why_not_dropped(self._claimant, self._view, owners.shapes_in(place)))
            for place in self._retired.places
        ]
        return {shape: why for shape, why in whys if why is not None}

    def _also_ours(self, taken: Collection[str]) -> list[str]:
        """The view's other keys, without those that go with another deployment's keys."""
        return [name for name, (shape, _) in self._also.items() if shape not in taken]

    def _left(self, others: Counter[str], foreign: int) -> list[str]:
        """Lines for what stays: `others`, keys by the view that has them, and `foreign`, keys with others' values."""
        left = [
            f"{counted(number, 'Redis keys')} of that form that view {view} has"
            for view, number in sorted(others.items())
        ]
        if foreign:
            left += [f"{counted(foreign, 'Redis keys')} of that form whose values viewtail did not write"]
        left += [f"members of the Redis sets {shape}, which view {view} has" for view, shape in self._shared]
        return left

    def drop(self, went_on: Callable[[int], None]) -> None:
        went_on(0)
        script = _DROP if self._shared else _LEAVE
        taken, looked_at = self._taken(), time.monotonic()
        for names, kind in self._pages(Counter(), taken):
            if time.monotonic() - looked_at > _LOOK_EVERY_S:
                if self._taken() != taken:
                    return  # somebody takes the keys over
                looked_at = time.monotonic()
            went_on(sum(map(bool, self._ask(script, names, kind))))
        for name in self._also_ours(self._taken()):
            with asking(self._client, "dropping a key"):
                self._client.delete(name)

    def _is_there(self, name: str) -> bool:
        with asking(self._client, "looking at keys"):
            return bool(self._client.exists(name))

    def close(self) -> None:
        self._client.close()

    def _pages(self, others: Counter[str], taken: Collection[str]) -> Iterator[tuple[Sequence[bytes], str]]:
        """Keys of the view's form, a script's worth at a time, with what each should hold; others' keys are counted."""
        for shape, kind, pattern in self._shapes:
            if shape in taken:
                continue
            for before, behind, of, copy in self._forms(kind):
                for names in self._scan(f"{before}{glob_of(shape)}{behind}"):
                    bare = ((name, as_text(name)[len(before) :].removesuffix(behind)) for name in names)
                    ours = [name for name, key in bare if self._is_ours(key, pattern, copy, others)]
                    yield from ((some, of) for some in slices(ours, ROWS_A_SCRIPT))
            if shape in self._of_sources:
                yield from self._tombstones_of_sources(shape, pattern, others)

    def _tombstones_of_sources(
        self, shape: str, pattern: re.Pattern[str], others: Counter[str]
    ) -> Iterator[tuple[Sequence[bytes], str]]:
        for names in self._scan(f"{{{glob_of(shape)}}}:t:*"):
            found = ((name, _OF_A_SOURCE.fullmatch(as_text(name))) for name in names)
            ours = [name for name, match in found if match and self._is_ours(match[1], pattern, "", others)]
            yield from ((some, TOMBSTONE) for some in slices(ours, ROWS_A_SCRIPT))

    def _forms(self, kind: str) -> Iterator[tuple[str, str, str, str]]:
        """The texts before and behind a key in names, what such keys hold, and how the ids of copies that have them
        end: '' for what readers know."""
        yield "", "", kind, ""
        yield "{", "}:t", TOMBSTONE, ""
        for copy in self._copies:
            yield "{", f"}}:{copy}", kind, copy_id("", copy)
            yield "{", f"}}:{copy}t", TOMBSTONE, copy_id("", copy)

    def _is_ours(self, key: str, pattern: re.Pattern[str], copy: str, others: Counter[str]) -> bool:
        """`copy`: how the ids of copies end that have keys of that form beside those that readers know."""
        if pattern.fullmatch(key) is None:
            return False
        these = (view for view, theirs in self._others if view.endswith(copy) and theirs.fullmatch(key))
        other = next(these, None)
        if other is not None:
            others[other] += 1
        return other is None

    def _scan(self, match: str) -> Iterator[list[bytes]]:
        cursor: Any = 0
        while True:
            with asking(self._client, "scanning"):
                answer: Any = self._client.scan(cursor, match=match, count=KEYS_A_SCAN)
            cursor, names = answer
            if names:
                yield list(dict.fromkeys(names))
            if not cursor:
                return

    def _ask(self, script: str, names: Sequence[bytes], kind: str) -> list[Any]:
        with asking(self._client, "looking at keys"):
            versions: Any = self._client.eval(script, len(names), *names, *([kind] * len(names)))
            return list(versions)


def _stays(taken: Mapping[str, str]) -> list[str]:
    return [f"Redis keys {shape}: {why}" for shape, why in sorted(taken.items())]


def _named(places: Iterable[Place], part: str) -> set[str]:
    """The values of a part in the places that have it."""
    return {place[part] for place in places if part in place}


def _sharing(others: Iterable[tuple[str, Place]], sets: Collection[str]) -> set[tuple[str, str]]:
    """Other views, each with a form of its sets that these may be of too."""
    return {
        (view, place["sets"])
        for view, place in others
        if "sets" in place and any(shapes_meet(place["sets"], ours) for ours in sets)
    }


class RedisTraces(Traces):
    """A key and its tombstone; of a set's entity, the sets that it is in too."""

    def __init__(self, client: Redis, view: BoundView) -> None:
        self._client, self._keys = client, RedisKeys(view)
        self._kind = kind_of(view)
        self._reader = UniqueReader(client, view) if view.is_unique_over_sources else None
        has_sets = isinstance(view.view, RedisSet) and not self._keys.is_shadow
        self._sets = _Sets(client, view) if has_sets else None

    def of(self, key: Key) -> list[Trace]:
        name, side = self._keys.names(key)
        with asking(self._client, "looking at keys"):
            is_there, has_side = self._client.exists(name), self._client.exists(side)
            answer: Any = self._client.eval(_LOOK, 2, name, side, self._kind, TOMBSTONE)
        written, deleted = map(as_text, answer)
        if self._is_anothers(key):
            is_there = 0
            written = ""
        version = int(written) if written else None
        sets = [] if self._sets is None else self._sets.of(key, name, version)
        held = _held(Holds.VALUES, is_there=is_there, is_ours=written)
        beside = _held(Holds.TOMBSTONE, is_there=has_side, is_ours=deleted)
        return [
            Trace(place=f"Redis key {name}", holds=held, version=version),
            Trace(place=f"Redis key {side}", holds=beside),
            *sets,
        ]

    def _is_anothers(self, key: Key) -> bool:
        """Return whether another source has the key, so that what is there is of an entity of that one."""
        if self._reader is None:
            return False
        (own,) = self._reader.view.source
        return bool(self._reader.owners([key]).get(key, own) != own)

    def close(self) -> None:
        self._client.close()


def _held(ours: Holds, *, is_there: Any, is_ours: Any) -> Holds:
    """The kind of what is in a place: nothing, `ours`, or a value that viewtail did not write."""
    if not is_there:
        return Holds.NOTHING
    return ours if is_ours else Holds.FOREIGN


class _Sets:
    """The sets of one view. All of them are looked at: a member that its entity's key does not name counts too."""

    def __init__(self, client: Redis, view: BoundView) -> None:
        self._client, self._keys = client, SetKeys(view)
        self._member = key_renderer(view.key)
        self._type = set_type(view)
        self._seen: dict[bytes, None] = {}  # reported again when the entity has left them

    def of(self, key: Key, place: str, version: int | None) -> list[Trace]:
        """A trace for each set that has the entity as a member, or had it when it was looked at before."""
        member = self._member(key)
        with asking(self._client, "looking at sets"):
            named: Any = self._client.hmget(place, "set", "member") if version is not None else [None, None]
            self._seen |= dict.fromkeys(name for name in self._all() if self._has(name, member))
            holding = {name for name in self._seen if self._has(name, member)}
        traces = []
        for name in self._seen:
            is_named = named == [name, member.encode()]
            holds = _held(Holds.VALUES, is_there=name in holding, is_ours=is_named)
            traces.append(Trace(place=f"Redis set {as_text(name)}", holds=holds, version=version if is_named else None))
        return traces or [Trace(place=f"Redis sets {self._keys.shape}", holds=Holds.NOTHING)]

    def _all(self) -> Iterator[bytes]:
        for name in self._client.scan_iter(match=self._keys.scan_match, count=KEYS_A_SCAN, _type=self._type):
            if self._keys.key_of(as_text(name)) is not None:
                yield name

    def _has(self, name: bytes, member: str) -> bool:
        if self._type == "zset":
            return self._client.zscore(name, member) is not None
        return bool(self._client.execute_command("SISMEMBER", name, member))  # type: ignore[no-untyped-call]


def kind_of(view: BoundView) -> str:
    """The word for what a key of the view holds."""
    if isinstance(view.view, RedisSet):
        return MEMBER
    return HASH if isinstance(view.view, RedisHash) else JSON


def place_of(view: BoundView) -> Place:
    """The data by which its keys are found again."""
    place = {"shape": RedisKeys(view).shape, "kind": kind_of(view)}
    if (keys := leading(view)) is not None:
        place["pointer"] = keys.pointer
    if view.is_unique_over_sources:
        place["tombstones"] = OF_SOURCES
    if isinstance(view.view, RedisSet):
        place |= {"sets": SetKeys(view).shape, "type": set_type(view)}
    return place
