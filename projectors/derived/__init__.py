"""The seam to rows that are made of more than the changed row: which keys changed, and what their rows are now.

An implementation is a module here (`cells.py`), and binding.py gives it to a view. Nothing else knows which it is.
The stream says which keys are touched, and `reading.py` reads their rows in snapshots that show the batch. Backfills,
verify and replays read the same rows in chunks by key (ingest/canonical/chunks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ingest.canonical.rows import ReadableRows
from viewtail.changes.batches import Refused, Row, RowChanges
from viewtail.changes.tables import Table
from viewtail.changes.writes import Key


@dataclass(frozen=True, slots=True)
class Part:
    """A table that derived rows are made of."""

    table: Table  # as it was described
    columns: tuple[str, ...]  # those that the rows depend on, in its order
    keys: tuple[tuple[str, ...], ...]  # the unique keys beside the primary one that they rely on


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

    @property
    def condition(self) -> str:
        """SQL: which rows of the first table belong to the entity; '' where all do."""

    def belongs(self, columns: Sequence[str]) -> Callable[[Row], bool] | None:
        """Whether a row of the first table, with these columns, belongs to the entity; None where all do."""

    def touched(self, events: Sequence[RowChanges | Refused]) -> Mapping[Key, int]:
        """The keys whose rows may be others now, from both images of each row, and the version that each row gets.

        `events` are all those of a batch that concern a table of `parts`, in order. The version is not below the last
        event that touches the key, and not above the end of the batch: the snapshot shows all of it.
        """
