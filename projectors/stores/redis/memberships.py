"""Computes from a row's values which set an entity is a member of, for the sink to write and a reader to compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from projectors.stores.redis.keys import SetKeys
from projectors.stores.redis.scores import score_text
from projectors.stores.redis.views import RedisSortedSet
from projectors.views import BoundView
from viewtail.changes.rendering import key_renderer
from viewtail.changes.writes import Key


class Membership(NamedTuple):
    """One entity in one set."""

    set: str
    member: str
    score: str | None  # as text; None in a set that has none


@dataclass(frozen=True, slots=True)
class Orphans:
    """The sets that contain one entity although the entity's own key does not name them."""

    member: bytes
    sets: tuple[bytes, ...]


class Memberships:
    """Computes the memberships of one view."""

    def __init__(self, view: BoundView) -> None:
        self._sets = SetKeys(view)
        self._member = key_renderer(view.key)
        names = [column.name for column in view.values]
        self._named_at = [names.index(column.name) for column in self._sets.columns]
        self._score: Callable[[Any], str] | None = None
        if isinstance(view.view, RedisSortedSet):
            self._score_at = names.index(view.view.score)
            self._score = score_text(view.values[self._score_at])

    def of(self, key: Key, values: tuple[Any, ...]) -> Membership | None:
        """The entity's membership; None if a value is NULL, so that it is in no set. Raises Unfit for a bad score."""
        if any(value is None for value in values):
            return None
        score = None if self._score is None else self._score(values[self._score_at])
        return Membership(self._sets.redis_key(tuple([values[at] for at in self._named_at])), self._member(key), score)
