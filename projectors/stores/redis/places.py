"""The owners of the keys of Redis views, for callers that ask or decide about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from redis import Redis

from projectors.stores.leaving import Retired
from projectors.stores.owners import Claimant, PlaceOwner, Places
from projectors.stores.redis import owners
from projectors.stores.redis.holding import KEYS_A_STEP, STEPS_OF_A_SAMPLE, holds_keys
from projectors.stores.redis.leaving import RedisLeftover, place_of
from projectors.stores.redis.unanswered import asking
from projectors.views import BoundView

_COPIES = range(2, 5)  # that a former owner may have left beside


class RedisPlaces(Places):
    """The hash of owners; see owners.py."""

    def __init__(self, client: Redis, claimant: Claimant, database: str) -> None:
        """`database` has the deployment's own tables."""
        super().__init__(claimant)
        self._client, self._database = client, database

    def owners(self, view: BoundView) -> list[PlaceOwner]:
        seen = owners.read(self._ask)
        own = seen.own(self._claimant, view.view.id)
        others = seen.others(self._claimant, owners.shapes_of(view)).values()
        return [*others, *([] if own is None else [own.owner])]

    def refusal(self, view: BoundView) -> str | None:
        seen = owners.read(self._ask)
        self.remark = None

        def has_keys() -> bool:
            if (holds := holds_keys(self._ask, view)) is None:
                self.remark = (
                    f"no owner is noted, and of the keys in this Redis only about {STEPS_OF_A_SAMPLE * KEYS_A_STEP:,} "
                    "were looked at: none of them is another viewtail's"
                )
            return bool(holds)

        return seen.refusal(self._claimant, view.view.id, owners.shapes_of(view), has_keys)

    def take_over(self, view: BoundView, taken: str) -> None:
        claimant, shapes = self._claimant, owners.shapes_of(view)

        def claim(seen: owners.Owners) -> owners.Change:
            mine = owners.Kept(claimant.owner(view.view.id, taken), tuple(shapes))
            gone = {*seen.others(claimant, shapes), *seen.released(shapes)}
            return owners.Change({owners.view_field(claimant, view.view.id): mine}, gone)

        owners.until_changed(self._ask, claim)

    def clear(self, view: BoundView) -> None:
        retired = Retired(name=view.view.name, places=[place_of(view)], others={}, read_by=(), copies=_COPIES)
        RedisLeftover(self._client, retired, self._database, self._claimant).drop(lambda _: None)

    def release(self, view: str) -> None:
        def give_up(seen: owners.Owners) -> owners.Change | None:
            if (own := seen.own(self._claimant, view)) is None:
                return None
            return owners.Change({owners.view_field(self._claimant, view): replace(own, is_released=True)})

        owners.until_changed(self._ask, give_up)

    def close(self) -> None:
        self._client.close()

    def _ask(self, *command: Any) -> Any:
        with asking(self._client, "looking whose keys are"):
            return self._client.execute_command(*command)  # type: ignore[no-untyped-call]
