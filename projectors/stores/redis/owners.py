"""Whose the keys of each view are: one hash in each Redis database, of all deployments that write there.

A field is a view of a deployment, its value the owner with the shapes of the view's keys: two views of other names may
have templates whose keys meet. Another field is the name under which a deployment keeps its witnesses, where that is
plainly the name of its database: a second deployment whose database is called the same has another one. A counter
makes a change one step: whoever read before another's change reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import quote

import orjson

from projectors.stores.leaving import Place
from projectors.stores.owners import Claimant, PlaceOwner, refusal, why_not_dropped
from projectors.stores.redis.keys import keys_of, shapes_meet
from projectors.views import BoundView
from viewtail.changes.errors import RETRIES, StoreUnavailableError

OWNERS = "viewtail:owners"
_COUNTER = "changes"
ATTEMPTS = 20

_READ = "return redis.call('HGETALL', KEYS[1])"
# ARGV: what the counter was, how many fields are set, these with their values, fields that go.
_CHANGE = f"""
if (redis.call('HGET', KEYS[1], '{_COUNTER}') or '0') ~= ARGV[1] then return 0 end
local set_count = tonumber(ARGV[2])
for at = 3, 2 + 2 * set_count, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
for at = 3 + 2 * set_count, #ARGV do redis.call('HDEL', KEYS[1], ARGV[at]) end
redis.call('HINCRBY', KEYS[1], '{_COUNTER}', 1)
return 1
"""

Ask = Callable[..., Any]  # a command and its arguments; answers as bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """One field."""

    owner: PlaceOwner
    shapes: tuple[str, ...] = ()  # of a view's keys
    is_released: bool = False  # its owner gave it up, and may have it again

    def meets(self, shapes: Iterable[str]) -> bool:
        """Whether some key could be this view's and have one of these shapes."""
        return any(shapes_meet(mine, one) for mine in self.shapes for one in shapes)


@dataclass(frozen=True, slots=True)
class Owners:
    """What the hash says."""

    changes: bytes = b"0"
    kept: Mapping[str, Kept] = field(default_factory=dict)  # by field

    def others(self, claimant: Claimant | None, shapes: Sequence[str]) -> dict[str, Kept]:
        """By field, the views of other deployments whose keys could be of these shapes."""
        return {
            name: one
            for name, one in self.kept.items()
            if not one.is_released and not (claimant and claimant.is_owner(one.owner)) and one.meets(shapes)
        }

    def own(self, claimant: Claimant | None, view: str) -> Kept | None:
        """What is noted of the view as this deployment's."""
        one = None if claimant is None else self.kept.get(view_field(claimant, view))
        return None if one is None or one.is_released else one

    def released(self, shapes: Sequence[str]) -> list[str]:
        """The fields of views that were given up, and whose keys could be of these shapes."""
        return [name for name, one in self.kept.items() if one.is_released and one.meets(shapes)]

    def refusal(
        self, claimant: Claimant | None, view: str, shapes: Sequence[str], holds: Callable[[], bool]
    ) -> str | None:
        """Why the claimant does not get the keys of these shapes; None: it does."""
        found = [one.owner for one in self.others(claimant, shapes).values()]
        is_own = self._is_own(claimant, view, shapes)
        return refusal(view, place_of(shapes), MEND, claimant=claimant, owners=found, is_released=is_own, holds=holds)

    def why_not_dropped(self, claimant: Claimant | None, view: str, shapes: Sequence[str]) -> str | None:
        """Why keys of these shapes stay when the view is forgotten; None: they are this deployment's."""
        found = [one.owner for one in self.others(claimant, shapes).values()]
        is_own = self._is_own(claimant, view, shapes)
        return why_not_dropped(view, claimant=claimant, owners=found, is_released=is_own)

    def _is_own(self, claimant: Claimant | None, view: str, shapes: Sequence[str]) -> bool:
        """Whether a view of this deployment has such keys, or had them: this one, or one of a former name."""
        own = self.own(claimant, view)
        return own is not None or any(
            claimant is not None and claimant.is_owner(one.owner) and one.meets(shapes) for one in self.kept.values()
        )


def view_field(claimant: Claimant, view: str) -> str:
    """Of a deployment's view."""
    return f"view:{claimant.id}:{view}"


def name_field(database: str) -> str:
    """Of who calls its witnesses by the plain name of its database."""
    return f"name:{database}"


def read(ask: Ask) -> Owners:
    """What is noted now."""
    answer = ask("EVAL", _READ, 1, OWNERS)
    fields = {bytes(name): bytes(value) for name, value in zip(answer[::2], answer[1::2], strict=True)}
    changes = fields.pop(_COUNTER.encode(), b"0")
    kept = {name.decode(errors="replace"): one for name, value in fields.items() if (one := _kept(value)) is not None}
    return Owners(changes, kept)


def _kept(value: bytes) -> Kept | None:
    """None for what viewtail did not write."""
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    owner = PlaceOwner.of_json(found)
    if owner is None:
        return None
    return Kept(owner, tuple(map(str, found.get("shapes", ()))), bool(found.get("is_released")))


def change(ask: Ask, seen: Owners, kept: Mapping[str, Kept], gone: Iterable[str] = ()) -> bool:
    """Set and remove these fields, where nobody changed any since `seen` was read; returns whether that was done."""
    pairs = [part for name, one in kept.items() for part in (name, _text(one))]
    return bool(ask("EVAL", _CHANGE, 1, OWNERS, seen.changes, len(kept), *pairs, *gone))


def _text(kept: Kept) -> bytes:
    return orjson.dumps({**kept.owner.as_json(), "shapes": list(kept.shapes), "is_released": kept.is_released})


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a sink asks for."""

    claimant: Claimant
    views: Mapping[str, Sequence[str]]  # by id, the shapes of its keys
    database: str  # of the deployment's own tables
    pipeline: str
    holds: Callable[[str], bool]  # whether viewtail's keys lie where a view's would be

    def made(self, ask: Ask) -> tuple[dict[str, str], str]:
        """Claim what is free. Returns why the other views have no place, by id, and the key of the witness."""
        for _ in range(ATTEMPTS):
            seen = read(ask)
            refused, wanted, gone = self._sorted_out(seen)
            witness, has_plain = self.witness(ask, seen)
            if has_plain and name_field(self.database) not in seen.kept:
                wanted[name_field(self.database)] = Kept(self.claimant.owner(""))
            if not wanted or change(ask, seen, wanted, gone - wanted.keys()):
                return refused, witness
        raise busy()

    def _sorted_out(self, seen: Owners) -> tuple[dict[str, str], dict[str, Kept], set[str]]:
        """By view, why it is refused; the fields to set; those of views given up whose keys are claimed now."""
        refused: dict[str, str] = {}
        wanted: dict[str, Kept] = {}
        gone: set[str] = set()
        for view, shapes in self.views.items():
            mine = seen.own(self.claimant, view)
            why = seen.refusal(self.claimant, view, shapes, partial(self.holds, view))
            if why is not None:
                refused[view] = why
            elif mine is None or mine.shapes != tuple(shapes):
                owner = self.claimant.owner(view) if mine is None else mine.owner
                wanted[view_field(self.claimant, view)] = Kept(owner, tuple(shapes))
                gone.update(seen.released(shapes))
        return refused, wanted, gone

    def witness(self, ask: Ask, seen: Owners) -> tuple[str, bool]:
        """The key of the witness, and whether it is the plain one. Nothing is claimed."""
        plain = f"viewtail:{quote(self.database, safe='')}:{self.pipeline}:witness"
        own = f"{plain}:{self.claimant.id[:8]}"
        named = seen.kept.get(name_field(self.database))
        if named is not None:
            is_plain = self.claimant.is_owner(named.owner)
        else:  # no owner is noted, as after a loss: whoever kept views there before has gone on with its witness
            is_heir = any(map(self.claimant.had, self.views))
            is_plain = not ask("EXISTS", own) and (is_heir or not ask("EXISTS", plain))
        return (plain if is_plain else own), is_plain


def shapes_in(place: Place) -> list[str]:
    """As `shapes_of`, of where a view is as viewtail's own tables keep it."""
    return [str(place[part]) for part in ("shape", "sets", "pointer") if part in place]


def shapes_of(view: BoundView) -> list[str]:
    """Of all keys that the view has, in whatever copies: of its entities, its sets, and what leads readers to them."""
    return [shape for keys in keys_of(view) for shape in keys.shapes]


def place_of(shapes: Sequence[str]) -> str:
    """For people: the keys of these shapes."""
    return f"the place of its Redis keys ({', '.join(shapes)})"


MEND = "Give the view here another name or, with key=, a template with another prefix"


def still(ask: Ask, claimant: Claimant, views: Sequence[str]) -> list[str]:
    """Those of these views, which are this deployment's, that it has no more."""
    if not views:
        return []
    found = ask("HMGET", OWNERS, *(view_field(claimant, view) for view in views))
    kept = [None if value is None else _kept(value) for value in found]
    return [view for view, one in zip(views, kept, strict=True) if one is None or one.is_released]


def take_over(ask: Ask, claimant: Claimant, view: str, shapes: Sequence[str], taken: str) -> None:
    """The view's keys are this deployment's from now on, whosever they were."""
    for _ in range(ATTEMPTS):
        seen = read(ask)
        mine = {view_field(claimant, view): Kept(claimant.owner(view, taken), tuple(shapes))}
        gone = {*seen.others(claimant, shapes), *seen.released(shapes)} - mine.keys()
        if change(ask, seen, mine, gone):
            return
    raise busy()


def release(ask: Ask, claimant: Claimant, view: str) -> None:
    """Nobody has the view's keys any more, unless somebody took them over before."""
    for _ in range(ATTEMPTS):
        seen = read(ask)
        own = seen.own(claimant, view)
        if own is None or change(ask, seen, {view_field(claimant, view): replace(own, is_released=True)}):
            return
    raise busy()


def busy() -> StoreUnavailableError:
    """Others change it again and again."""
    return StoreUnavailableError(
        f"Redis: the key {OWNERS}, which says whose views are where, changes all the time; {RETRIES}"
    )
