"""One file a store. Each applies a write only if it is newer, inside the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from changes.positions import Position
from changes.writes import Key, Parked, ViewWrites
from projectors.bound_views import BoundView


class Sink(Protocol):
    """The writer of one store. Not thread-safe: a pipeline and each backfill have their own."""

    meanwhile: Callable[[], None]  # `write` may call it when all is under way, before it waits for the store

    def prepare(self) -> None:
        """Connect, and create what is missing in the store. Idempotent.

        Raises StoreUnavailableError (try again), StoreError or DeclarationError (name the view, say what to do).
        """

    def write(self, writes: Sequence[ViewWrites], upto: Position | None) -> list[Parked]:
        """Apply each write whose version is above the stored one; return when they are durable.

        A view with a version column takes one of the stored version as well (see `takes_equal_versions`).
        `upto` becomes the store's witness with them; None (backfill, a piece of a large transaction) leaves it.
        A sink that shares its connection with the offset store leaves the transaction open: `save` commits both.
        Returns the keys that the store refused for good. On StoreUnavailableError nothing is assumed; call again
        with the same writes after `prepare`.
        """

    def missing(self) -> frozenset[str]:
        """The views of which the store holds nothing: new ones, and those whose place somebody took away.

        Asked before `prepare`, which makes their place: from then on nothing would show that it is empty.
        """

    def incarnation(self) -> str:
        """Changes when the store may have lost writes that it acknowledged; '' where it never does.

        The stream's writes have the witness for that. A fill has only this: its rows are in no stream, so one that
        meets another incarnation than it began with begins again.
        """

    def settle(self) -> None:
        """Called when nothing happens: a witness that may trail behind what was written catches up."""

    def witness(self, offset: Position) -> Position | None:
        """How far the store has kept the views that are not missing: `offset` where it shows no loss.

        None where nothing was ever written.
        """

    def keys_below(self, view: str, version: int) -> Iterator[list[tuple[Key, int]]]:
        """Pages of (key, stored version) of the view's present (not deleted) keys with a smaller version.

        A page comes after each round trip or two, empty where nothing in it is older, so that a caller can leave a
        sweep over many fresh keys between two pages.
        """

    def fit(self, view: BoundView) -> bool:
        """Make room for a view that was bound to its table again, between two writes; its column names are the same.

        False where the store has to make the view's place again for that.
        """

    def close(self) -> None:
        """Give the connection up; an open transaction is rolled back."""


def nothing() -> None:
    """What there is to do meanwhile, unless somebody says otherwise."""


def takes_equal_versions(view: BoundView) -> bool:
    """Whether a write of the version that the store has applies too, instead of changing nothing.

    With a version column a row has one version for good: filled again, because the declaration changed or the store
    was repaired, it comes with the version that is there, and must replace what an earlier declaration made of it.
    Equal versions are the same row there, shown or kept out by `where`; its delete is one above it. Elsewhere a fill
    has a version of its own, and an equal one is a change that was applied already.
    """
    return view.view.entity.version is not None
