"""Whose the keys of Redis views are, for who asks or decides that."""

from __future__ import annotations

from typing import Any

from redis import Redis, exceptions

from projectors.stores.leaving import Retired
from projectors.stores.owners import Claimant, PlaceOwner, Places
from projectors.stores.redis import owners
from projectors.stores.redis.holding import KEYS_A_STEP, STEPS_OF_A_SAMPLE, holds_keys
from projectors.stores.redis.leaving import RedisLeftover, place_of
from projectors.stores.redis.unanswered import CHECK_RIGHTS, UNREACHABLE, is_denied, no_answer, server_of
from projectors.views import BoundView
from viewtail.changes.errors import StoreError, StoreUnavailableError

_COPIES = range(2, 5)  # that a former owner may have left beside


class RedisPlaces(Places):
    """The hash of owners; see owners.py."""

    def __init__(self, client: Redis, claimant: Claimant | None, database: str) -> None:
        """`database`: of the deployment's own tables."""
        self._client, self._claimant, self._database = client, claimant, database

    def others(self, view: BoundView) -> list[PlaceOwner]:
        found = owners.read(self._ask).others(self._claimant, owners.shapes_of(view))
        return [one.owner for one in found.values()]

    def own(self, view: BoundView) -> PlaceOwner | None:
        found = owners.read(self._ask).own(self._claimant, view.view.id)
        return None if found is None else found.owner

    def refusal(self, view: BoundView) -> str | None:
        seen = owners.read(self._ask)
        self.remark = None

        def holds() -> bool:
            if (found := holds_keys(self._ask, view)) is None:
                self.remark = (
                    f"no owner is noted, and of the keys in this Redis only about {STEPS_OF_A_SAMPLE * KEYS_A_STEP:,} "
                    "were looked at: none of them is another viewtail's"
                )
            return bool(found)

        return seen.refusal(self._claimant, view.view.id, owners.shapes_of(view), holds)

    def take_over(self, view: BoundView, taken: str) -> None:
        assert self._claimant is not None
        owners.take_over(self._ask, self._claimant, view.view.id, owners.shapes_of(view), taken)

    def clear(self, view: BoundView) -> None:
        retired = Retired(name=view.view.name, places=[place_of(view)], others={}, read_by=(), copies=_COPIES)
        RedisLeftover(self._client, retired, self._database, self._claimant).drop(lambda _: None)

    def release(self, view: str) -> None:
        if self._claimant is not None:
            owners.release(self._ask, self._claimant, view)

    def close(self) -> None:
        self._client.close()

    def _ask(self, *command: Any) -> Any:
        try:
            return self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except (exceptions.RedisError, OSError) as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> StoreError | StoreUnavailableError:
        if isinstance(error, UNREACHABLE) and not is_denied(error):
            return no_answer(self._client, error)
        said = f"{str(error).rstrip('.')} ({type(error).__name__})"
        failed = f"{server_of(self._client)}: looking whose keys are failed: {said}"
        if is_denied(error):
            return StoreError(f"{failed}. {CHECK_RIGHTS}")
        return StoreUnavailableError(f"{failed}. Try again when Redis answers")
