"""The owner of a view's place in a store: a deployment and its view. The store keeps it beside the place.

Two deployments that are given one place would overwrite each other. The first that makes a place claims it; another
one is refused, by name, until somebody takes the place over on purpose. How a claim is kept is the store's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from projectors.views import BoundView
from viewtail.changes.copy_ids import view_of

LOOK_EVERY_S = 5.0  # a sink that writes sees within this that a place was taken over
TO_TAKE_OVER = "--take-over"  # of viewtail replay
NOTICED_WITHIN_S = 8.0  # so long whoever takes one over waits, before it drops what is there


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOwner:
    """The deployment that has a place."""

    deployment: str  # its id
    title: str  # and what people call it
    view: str  # the id of the view that it keeps there
    since: str  # UTC
    taken: str = ""  # how it came to it, where it took the place over

    def as_json(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def of_json(cls, parsed: Any) -> PlaceOwner | None:
        """The owner that `as_json` gave; None for anything else."""
        if not isinstance(parsed, Mapping) or not parsed.get("deployment"):
            return None
        return cls(**{field.name: str(parsed.get(field.name, "")) for field in fields(cls)})

    def __str__(self) -> str:
        taken = f", {self.taken}" if self.taken else ""
        return f"the deployment {self.title} (view {self.view}, since {self.since} UTC{taken})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """The deployment that a sink writes for; NOBODY where viewtail's own tables do not say who it is yet."""

    id: str  # '' of NOBODY
    title: str
    ours: frozenset[str] = frozenset()  # ids of views that it had before: a place of theirs without an owner is its own

    def owner(self, view: str, taken: str = "") -> PlaceOwner:
        """This deployment as the owner of a view's place, from now on."""
        assert self.id, "nobody is no owner of a place"
        since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
        return PlaceOwner(deployment=self.id, title=self.title, view=view_of(view), since=since, taken=taken)

    def is_owner(self, owner: PlaceOwner | None) -> bool:
        return owner is not None and owner.deployment == self.id

    def others(self, owners: Iterable[PlaceOwner]) -> list[PlaceOwner]:
        """Those of these owners that are another deployment."""
        return [owner for owner in owners if not self.is_owner(owner)]

    def had(self, view: str) -> bool:
        """Return whether the view's place is its own where nobody noted an owner."""
        return view in self.ours or view_of(view) in self.ours


NOBODY = Claimant(id="", title="")
Claiming = Callable[[], Claimant]


def refusal(
    view: str,
    place: str,
    mend: str,
    *,
    claimant: Claimant,
    owners: Sequence[PlaceOwner],
    is_released: bool,
    holds: Callable[[], bool],
) -> str | None:
    """The reason why the claimant does not get the view's place, and what to do; None if it is its own, or free.

    Args:
        mend: what else would do in that store.
        owners: those noted there.
        is_released: whether one gave it up whose versions the claimant can go on from.
        holds: asks whether a viewtail wrote there.
    """
    if others := claimant.others(owners):
        return (
            f"{place} belongs to {_which(others)}. Two deployments would overwrite each other there, so this one "
            f"leaves it alone. {mend}; or have the other one give it up: take the view out of its views.py and run "
            f"viewtail forget there, not here; or take it over: {_to_take_over(view)}"
        )
    if owners or is_released or claimant.had(view) or not holds():
        return None
    return (
        f"{place} holds what a viewtail wrote, and does not say which: an earlier one that may keep it still, or one "
        f"that is gone. It is left alone. {mend}, or, where nobody keeps it any more, take it over: "
        f"{_to_take_over(view)}"
    )


def why_not_dropped(view: str, *, claimant: Claimant, owners: Sequence[PlaceOwner], is_released: bool) -> str | None:
    """The reason why the place of a retired view stays when the view is forgotten; None if it is this deployment's.

    `owners` are noted there, `is_released` says that this deployment gave the place up. For NOBODY, no viewtail that
    notes owners ran: a place without an owner is its own.
    """
    if others := claimant.others(owners):
        return f"belongs to {_which(others)}"
    if owners or is_released or claimant is NOBODY or claimant.had(view):
        return None
    return "another viewtail wrote it, an earlier one that noted no owner or one that gave it up; not this deployment"


def _which(owners: Iterable[PlaceOwner]) -> str:
    return "; ".join(dict.fromkeys(map(str, owners)))


def taken_over(place: str, owners: Iterable[PlaceOwner]) -> str:
    """The reason why a copy that this deployment built is not shown, moved or dropped."""
    return f"{place} belongs to {_which(owners)} by now, so it is left alone"


def taken_from_us(views: Iterable[str]) -> str:
    """The message of a sink that no longer finds itself as the owner."""
    return f"the places of {', '.join(sorted(views))} are not this deployment's any more; viewtail looks whose they are"


def _to_take_over(view: str) -> str:
    return f"viewtail replay {view_of(view)} {TO_TAKE_OVER}"


class Places(ABC):
    """The owners of the places in one store, for callers that ask or decide about them. It writes no rows.

    Every method raises StoreUnavailableError (try again) or StoreError.
    """

    remark: str | None = None  # what the last `refusal` could not look at, for people

    def __init__(self, claimant: Claimant) -> None:
        self._claimant = claimant

    @abstractmethod
    def owners(self, view: BoundView) -> list[PlaceOwner]:
        """The deployments that have the view's place. Changes nothing."""

    def others(self, view: BoundView) -> list[PlaceOwner]:
        """The other deployments that have the view's place. Changes nothing."""
        return self._claimant.others(self.owners(view))

    def own(self, view: BoundView) -> PlaceOwner | None:
        """This deployment as the owner of the view's place; None where it is not. Changes nothing."""
        return next(filter(self._claimant.is_owner, self.owners(view)), None)

    @abstractmethod
    def refusal(self, view: BoundView) -> str | None:
        """The reason why `run` would halt the view, and what to do; None if it would not. Changes nothing."""

    @abstractmethod
    def take_over(self, view: BoundView, taken: str) -> None:
        """Make the place this deployment's; `taken` says how it came to that."""

    @abstractmethod
    def clear(self, view: BoundView) -> None:
        """Drop what the former owner left, once it has noticed: the place stays this deployment's all the while."""

    @abstractmethod
    def release(self, view: str) -> None:
        """The place of that view (its id) is nobody's any more, unless another deployment has it."""

    def close(self) -> None:
        """Give the connection up, where one is kept between two calls."""
        return
