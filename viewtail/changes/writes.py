"""The data that a projection hands to a sink: per view and key one write, the newest, or every change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from viewtail.changes.batches import UNKNOWN, Origin
from viewtail.changes.tables import Column, Table

Key = tuple[Any, ...]  # the entity key's values, in key order, as docs/types.md lists them


class Write(NamedTuple):
    """One write of one key: newer wins, in the store."""

    version: int
    values: tuple[Any, ...] | bytes | None
    # None: a tombstone. A tuple: the values of the view's columns or fields, in the order declared.
    # bytes: a document made by a user's function, as one JSON object (UTF-8).


LIVES_ON = "its key lives on the source "  # so begins the reason of a key that waits for another source's delete


class Parked(NamedTuple):
    """A key that a projection or a sink refused. Holds no row values but the key itself."""

    view: str
    key: str  # rendered
    version: int
    reason: str

    @property
    def waits(self) -> bool:
        """Return whether it goes in by itself, once another source's row is deleted."""
        return self.reason.startswith(LIVES_ON)


class KeptChange(NamedTuple):
    """One change of one key, for a store that keeps every change."""

    key: Key
    version: int
    op: str  # 'insert', 'update', 'delete', or 'read' for a row that a backfill read
    before: tuple[Any, ...] | bytes | None  # the images, as the view shows them; None too where one is not known
    after: tuple[Any, ...] | bytes | None
    origin: Origin = UNKNOWN  # one object for all rows of a row event


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """The form of a view's changes that were made while its table was another."""

    table: Table
    values: tuple[Column, ...]  # of the images, in order


class ViewWrites:
    """The writes of one view, the newest of each key; for a store that keeps every change, all of them too.

    Args:
        view: the view's id.
        writes: by key; None: they follow from the changes, and are made when somebody asks.
        changes: in stream order.
        form: the columns of the images, where they are others than those that the view has now.
    """

    __slots__ = ("_writes", "changes", "form", "view")

    def __init__(
        self,
        view: str,
        writes: dict[Key, Write] | None,
        changes: Sequence[KeptChange] = (),
        form: Form | None = None,
    ) -> None:
        self.view, self._writes, self.changes, self.form = view, writes, changes, form

    @property
    def writes(self) -> dict[Key, Write]:
        if self._writes is None:
            self._writes = {change.key: Write(change.version, change.after) for change in self.changes}
        return self._writes

    @property
    def count(self) -> int:
        return len(self.changes) or len(self.writes)
