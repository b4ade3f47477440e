"""Whose a view's place in a store is: the deployment and the view, kept by the store beside the place.

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
    """Who has a place."""

    deployment: str  # its id
    title: str  # and what people call it
    view: str  # the id of the view that it keeps there
    since: str  # UTC
    taken: str = ""  # how it came to it, where it took the place over

    def as_json(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def of_json(cls, found: Any) -> PlaceOwner | None:
        """None for what is no owner."""
        if not isinstance(found, Mapping) or not found.get("deployment"):
            return None
        return cls(**{field.name: str(found.get(field.name, "")) for field in fields(cls)})

    def __str__(self) -> str:
        taken = f", {self.taken}" if self.taken else ""
        return f"the deployment {self.title} (view {self.view}, since {self.since} UTC{taken})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """The deployment that a sink writes for."""

    id: str
    title: str
    ours: frozenset[str] = frozenset()  # ids of views that it had before: a place of theirs without an owner is its own

    def owner(self, view: str, taken: str = "") -> PlaceOwner:
        """This deployment as the owner of a view's place, from now on."""
        since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
        return PlaceOwner(deployment=self.id, title=self.title, view=view_of(view), since=since, taken=taken)

    def is_owner(self, owner: PlaceOwner | None) -> bool:
        return owner is not None and owner.deployment == self.id

    def had(self, view: str) -> bool:
        """Whether the view's place is its own where nobody noted an owner."""
        return view in self.ours or view_of(view) in self.ours


def refusal(
    view: str,
    place: str,
    mend: str,
    *,
    claimant: Claimant | None,
    owners: Sequence[PlaceOwner],
    is_released: bool,
    holds: Callable[[], bool],
) -> str | None:
    """Why the claimant does not get the view's place; None: it is its own, or free.

    `owners` are noted there, `is_released` says that one gave it up whose versions
    the claimant can go on from, `holds` whether a viewtail wrote there.
    """
    if others := [one for one in owners if claimant is None or not claimant.is_owner(one)]:
        return kept_by_another(view, place, others, mend)
    is_known = bool(owners) or is_released or (claimant is not None and claimant.had(view))
    return None if is_known or not holds() else of_nobody_known(view, place, mend)


def why_not_dropped(
    view: str, *, claimant: Claimant | None, owners: Sequence[PlaceOwner], is_released: bool
) -> str | None:
    """Why what lies in the place of a retired view stays when that is forgotten; None: it is this deployment's.

    `owners` are noted there, `is_released` says that this deployment gave the place up. Where there is nobody to claim
    for, no viewtail that notes owners ran: all that has none is its own.
    """
    others = [one for one in owners if claimant is None or not claimant.is_owner(one)]
    if others:
        return f"belongs to {_which(others)}"
    if owners or is_released or claimant is None or claimant.had(view):
        return None
    return "another viewtail wrote it, an earlier one that noted no owner or one that gave it up; not this deployment"


def kept_by_another(view: str, place: str, owners: Iterable[PlaceOwner], mend: str) -> str:
    """Why a view does not get its place, and what to do. `mend` is what else would do in that store."""
    return (
        f"{place} belongs to {_which(owners)}. Two deployments would overwrite each other there, so this one leaves it "
        f"alone. {mend}; or have the other one give it up: take the view out of its views.py and run viewtail forget "
        f"there, not here; or take it over: {_to_take_over(view)}"
    )


def _which(owners: Iterable[PlaceOwner]) -> str:
    return "; ".join(dict.fromkeys(map(str, owners)))


def taken_over(place: str, owners: Iterable[PlaceOwner]) -> str:
    """Why a copy that this deployment built is not shown, moved or dropped."""
    return f"{place} belongs to {_which(owners)} by now, so it is left alone"


def of_nobody_known(view: str, place: str, mend: str) -> str:
    """Why a view does not get a place where a viewtail wrote that noted no owner, and not this deployment."""
    return (
        f"{place} holds what a viewtail wrote, and does not say which: an earlier one that may keep it still, or one "
        f"that is gone. It is left alone. {mend}, or, where nobody keeps it any more, take it over: "
        f"{_to_take_over(view)}"
    )


def taken_from_us(views: Iterable[str]) -> str:
    """What a sink says that no longer finds itself as the owner."""
    return f"the places of {', '.join(sorted(views))} are not this deployment's any more; viewtail looks whose they are"


def _to_take_over(view: str) -> str:
    return f"viewtail replay {view_of(view)} {TO_TAKE_OVER}"


class Places(ABC):
    """Whose the places in one store are, for who asks or decides that. It keeps no view.

    Every method raises StoreUnavailableError (try again) or StoreError.
    """

    remark: str | None = None  # what the last `refusal` could not look at, for people

    @abstractmethod
    def others(self, view: BoundView) -> list[PlaceOwner]:
        """The other deployments that have the view's place. Nothing is changed."""

    @abstractmethod
    def own(self, view: BoundView) -> PlaceOwner | None:
        """This deployment as the owner of the view's place; None where it is not. Nothing is changed."""

    @abstractmethod
    def refusal(self, view: BoundView) -> str | None:
        """Why `run` would halt the view, and what to do; None: it would not. Nothing is changed."""

    @abstractmethod
    def take_over(self, view: BoundView, taken: str) -> None:
        """From now on the place is this deployment's; `taken` says how it came to that."""

    @abstractmethod
    def clear(self, view: BoundView) -> None:
        """Drop what the former owner left, once it has noticed: the place stays this deployment's all the while."""

    @abstractmethod
    def release(self, view: str) -> None:
        """The place of that view (its id) is nobody's any more, unless another deployment has it."""

    @abstractmethod
    def close(self) -> None:
        """Give the connection up."""


Claiming = Callable[[], Claimant | None]  # None: there is nobody to claim for, as where viewtail never ran
