"""The seam to rows that are made of more than the changed row: which keys changed, and what their rows are now.

README.md says what an implementation provides. registry.py finds the one of a declaration, and nothing else knows which
it is. Backfills, verify and replays read the same rows in chunks by key (ingest/canonical/chunks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ingest.canonical.rows import ReadableRows
from viewtail.changes.batches import Refused, RowChanges
from viewtail.changes.tables import Table
from viewtail.changes.writes import Key
from viewtail.servers.sessions import Connection

LookUp: TypeAlias = Callable[[Connection], Mapping[Key, int]]


@dataclass(frozen=True, slots=True)
class Part:
    """A table that derived rows are made of."""

    table: Table  # as it was described
    columns: tuple[str, ...]  # those that the rows depend on, in its order
    keys: tuple[tuple[str, ...], ...]  # the unique keys beside the primary one that they rely on


@dataclass(frozen=True, slots=True)
class Touched:
    """The keys whose rows some events may have changed, and the version that each row gets.

    A version is not below the last event that touches the key, and not above the last of all events.
    """

    versions: Mapping[Key, int]  # of the keys that the events themselves tell
    look_up: LookUp | None = None  # reads the other keys from the tables; None: there are no others

    def __bool__(self) -> bool:
        return bool(self.versions) or self.look_up is not None

    def keys(self, in_snapshot: Callable[[LookUp], Mapping[Key, int]]) -> Mapping[Key, int]:
        """All of them; `in_snapshot` gives `look_up` a connection whose snapshot shows the events."""
        if self.look_up is None:
            return self.versions
        others = in_snapshot(self.look_up)
        return {**others, **{key: max(at, others.get(key, 0)) for key, at in self.versions.items()}}


class DerivedRows(ReadableRows, Protocol):
    """Rows of one view. `table` is the one that they would be of; its primary key is the view's key.

    Whatever is read shows one snapshot: all SELECTs of `fetch` are in the transaction of the connection.
    """

    @property
    def parts(self) -> Sequence[Part]:
        """The tables whose changes touch the rows; the first is the entity's."""

    @property
    def bodies(self) -> tuple[str, ...]:
        """The columns whose values the entity's codec decodes."""

    def problems(self) -> Iterator[str]:
        """Why the declaration cannot work with its tables. Nothing else is asked where there are some."""

    def touched(self, events: Sequence[RowChanges | Refused]) -> Touched:
        """The keys whose rows may be others now, from both images of each row.

        `events` are those of a batch that concern a table of `parts`, in order.
        """
