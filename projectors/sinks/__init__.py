"""One file a store. Each applies a write only if it is newer, inside the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from changes.positions import Position
from changes.writes import Key, Parked, ViewWrites


class Sink(Protocol):
    """The writer of one store. Not thread-safe: a pipeline and each backfill have their own."""

    def prepare(self) -> None:
        """Connect, and create what is missing in the store. Idempotent.

        Raises StoreUnavailableError (try again), StoreError or DeclarationError (name the view, say what to do).
        """

    def write(self, writes: Sequence[ViewWrites], upto: Position | None) -> list[Parked]:
        """Apply each write whose version is above the stored one; return when they are durable.

        `upto` becomes the store's witness with them; None (backfill, a piece of a large transaction) leaves it.
        A sink that shares its connection with the offset store leaves the transaction open: `save` commits both.
        Returns the keys that the store refused for good. On StoreUnavailableError nothing is assumed; call again
        with the same writes after `prepare`.
        """

    def missing(self) -> frozenset[str]:
        """The views of which the store holds nothing: new ones, and those whose place somebody took away.

        Asked before `prepare`, which makes their place: from then on nothing would show that it is empty.
        """

    def witness(self, offset: Position) -> Position | None:
        """How far the store has kept the views that are not missing: `offset` where it shows no loss.

        None where nothing was ever written.
        """

    def keys_below(self, view: str, version: int) -> Iterator[list[tuple[Key, int]]]:
        """Pages of (key, stored version) of the view's present (not deleted) keys with a smaller version."""

    def close(self) -> None:
        """Give the connection up; an open transaction is rolled back."""
