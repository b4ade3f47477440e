"""The owners of the keys of views: one hash in each Redis database, of all deployments that write there.

A field is a view of a deployment, its value the owner with the shapes of the view's keys: two views of other names may
have templates whose keys meet. Another field is the name under which a deployment keeps its witnesses, if that is just
the name of its database: a second deployment whose database is called the same has another one. A counter makes a
change one step: a process that read before another's change reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
UNDER_WAY = "being adopted from another tool"  # how the owner came to a place whose keys have not all a version yet

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
    """The value of one field."""

    owner: PlaceOwner
    shapes: tuple[str, ...] = ()  # of a view's keys
    is_released: bool = False  # its owner gave it up, and may have it again

    def meets(self, shapes: Iterable[str]) -> bool:
        """Return whether some key could be this view's and have one of these shapes."""
        return any(shapes_meet(mine, theirs) for mine in self.shapes for theirs in shapes)


@dataclass(frozen=True, slots=True)
class Change:
    """Fields to set, and fields to remove unless they are set."""

    kept: dict[str, Kept] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Owners:
    """The content of the hash."""

    changes: bytes = b"0"
    kept: Mapping[str, Kept] = field(default_factory=dict)  # by field

    def others(self, claimant: Claimant, shapes: Sequence[str]) -> dict[str, PlaceOwner]:
        """The owners of other deployments' views whose keys could be of these shapes, by field."""
        return {
            name: kept.owner
            for name, kept in self.kept.items()
            if not kept.is_released and not claimant.is_owner(kept.owner) and kept.meets(shapes)
        }

    def own(self, claimant: Claimant, view: str) -> Kept | None:
        """The field of the view as this deployment's."""
        kept = self.kept.get(view_field(claimant, view))
        return None if kept is None or kept.is_released else kept

    def released(self, shapes: Sequence[str]) -> list[str]:
        """The fields of views that were given up, and whose keys could be of these shapes."""
        return [name for name, kept in self.kept.items() if kept.is_released and kept.meets(shapes)]

    def refusal(self, claimant: Claimant, view: str, shapes: Sequence[str], holds: Callable[[], bool]) -> str | None:
        """The reason why the claimant does not get the keys of these shapes; None if it does."""
        own = self.own(claimant, view)
        if own is not None and own.owner.taken == UNDER_WAY:
            return (
                f"{place_of(shapes)} is half taken over from another tool: a viewtail adopt was cut off, and some keys "
                f"have no version yet. Give the command again: viewtail adopt {view}"
            )
        return refusal(
            view, place_of(shapes), MEND, claimant=claimant, **self._whose(claimant, view, shapes), holds=holds
        )

    def why_not_dropped(self, claimant: Claimant, view: str, shapes: Sequence[str]) -> str | None:
        """The reason why such keys stay when the view is forgotten; None if they are this deployment's."""
        own = self.own(claimant, view)
        if own is not None and own.owner.taken == UNDER_WAY:
            return (
                "they are half taken over from another tool, by a viewtail adopt that was cut off, and stay. To finish "
                f"that, declare the view again and give the command again: viewtail adopt {view}"
            )
        return why_not_dropped(view, claimant=claimant, **self._whose(claimant, view, shapes))

    def _whose(self, claimant: Claimant, view: str, shapes: Sequence[str]) -> dict[str, Any]:
        """The other owners, and whether a view of this deployment has or had such keys: this one, or one of a former
        name."""
        had = any(claimant.is_owner(kept.owner) and kept.meets(shapes) for kept in self.kept.values())
        is_own = had or self.own(claimant, view) is not None
        return {"owners": list(self.others(claimant, shapes).values()), "is_released": is_own}


def view_field(claimant: Claimant, view: str) -> str:
    """The field of a deployment's view."""
    return f"view:{claimant.id}:{view}"


def name_field(database: str) -> str:
    """The field of the deployment that calls its witnesses by the plain name of its database."""
    return f"name:{database}"


def read(ask: Ask) -> Owners:
    """Read the hash."""
    answer = ask("EVAL", _READ, 1, OWNERS)
    fields = {bytes(name): bytes(value) for name, value in zip(answer[::2], answer[1::2], strict=True)}
    changes = fields.pop(_COUNTER.encode(), b"0")
    by_field = {name.decode(errors="replace"): _kept(value) for name, value in fields.items()}
    return Owners(changes, {name: kept for name, kept in by_field.items() if kept is not None})


def _kept(value: bytes) -> Kept | None:
    """The parsed value of a field; None if viewtail did not write it."""
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    owner = PlaceOwner.of_json(parsed)
    if owner is None:
        return None
    return Kept(owner, tuple(map(str, parsed.get("shapes", ()))), bool(parsed.get("is_released")))


def until_changed(ask: Ask, attempt: Callable[[Owners], Change | None]) -> None:
    """Make the change that `attempt` derives from the hash, if any. Repeats if somebody else changed the hash first."""
    for _ in range(ATTEMPTS):
        seen = read(ask)
        change = attempt(seen)
        if change is None:
            return
        pairs = [part for name, kept in change.kept.items() for part in (name, _text(kept))]
        if ask("EVAL", _CHANGE, 1, OWNERS, seen.changes, len(change.kept), *pairs, *change.gone - change.kept.keys()):
            return
    raise StoreUnavailableError(
        f"Redis: the key {OWNERS}, which says whose views are where, changes all the time; {RETRIES}"
    )


def _text(kept: Kept) -> bytes:
    return orjson.dumps({**kept.owner.as_json(), "shapes": list(kept.shapes), "is_released": kept.is_released})


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim of a sink."""

    claimant: Claimant
    views: Mapping[str, Sequence[str]]  # by id, the shapes of its keys
    database: str  # of the deployment's own tables
    pipeline: str
    holds: Callable[[str], bool]  # whether viewtail's keys lie where a view's would be

    def made(self, ask: Ask) -> tuple[dict[str, str], str]:
        """Claim what is free. Returns why the other views have no place, by id, and the key of the witness."""
        refused, witness = dict[str, str](), ""

        def attempt(seen: Owners) -> Change | None:
            nonlocal refused, witness
            refused, change = self._sorted_out(seen)
            witness, has_plain = self.witness(ask, seen)
            if has_plain and name_field(self.database) not in seen.kept:
                change.kept[name_field(self.database)] = Kept(self.claimant.owner(""))
            return change if change.kept else None

        until_changed(ask, attempt)
        return refused, witness

    def _sorted_out(self, seen: Owners) -> tuple[dict[str, str], Change]:
        """The reasons why views are refused, by id; the claims of the others."""
        refused: dict[str, str] = {}
        change = Change()
        for view, shapes in self.views.items():
            mine = seen.own(self.claimant, view)
            why = seen.refusal(self.claimant, view, shapes, partial(self.holds, view))
            if why is not None:
                refused[view] = why
            elif mine is None or mine.shapes != tuple(shapes):
                owner = self.claimant.owner(view) if mine is None else mine.owner
                change.kept[view_field(self.claimant, view)] = Kept(owner, tuple(shapes))
                change.gone.update(seen.released(shapes))
        return refused, change

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
    """The same as `shapes_of`, for the place of a view as viewtail's own tables keep it."""
    return [str(place[part]) for part in ("shape", "sets", "pointer") if part in place]


def shapes_of(view: BoundView) -> list[str]:
    """The shapes of all keys of the view, in all copies: of its entities, its sets, and what leads readers to them."""
    return [shape for keys in keys_of(view) for shape in keys.shapes]


def place_of(shapes: Sequence[str]) -> str:
    """The place of keys of these shapes, for people."""
    return f"the place of its Redis keys ({', '.join(shapes)})"


MEND = "Give the view here another name or, with key=, a template with another prefix"


def lost(ask: Ask, claimant: Claimant, views: Sequence[str]) -> list[str]:
    """The views that this deployment lost, of these that it had claimed."""
    if not views:
        return []
    values = ask("HMGET", OWNERS, *(view_field(claimant, view) for view in views))
    kept = [None if value is None else _kept(value) for value in values]
    return [view for view, mine in zip(views, kept, strict=True) if mine is None or mine.is_released]
