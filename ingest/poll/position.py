"""A position in the polling of tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import orjson

from ingest.poll.ids import Ids
from viewtail.changes.errors import HistoryGoneError
from viewtail.changes.positions import Position
from viewtail.changes.tables import Table, names_of

_BITS = 53  # for the batch number; the epoch is above
MOST_RUNS = 2_000  # runs per table in a position; ids above them are read again


@dataclass(frozen=True, slots=True)
class PollPosition:
    """A position behind a batch: for each table, which ids were delivered.

    Args:
        batch: the number of batches in this epoch.
        tables: by 'schema.table', the id up to which everything is delivered, and runs above it."""

    epoch: int
    batch: int
    tables: Mapping[str, tuple[int, tuple[tuple[int, int], ...]]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def version(self) -> int:
        return self.epoch << _BITS | self.batch

    @property
    def order(self) -> tuple[int, ...]:
        """See Position."""
        return (self.version,)

    def ids(self, table: str) -> Ids | None:
        """The delivered ids of a table; None if its reading has not begun."""
        delivered = self.tables.get(table)
        return None if delivered is None else Ids(*delivered)

    def of_pattern(self, table: Table) -> list[str]:
        """The tables, by 'schema.table', that match a pattern and whose reading has begun."""
        pattern = table.pattern
        if pattern is None:
            return []
        return [whole for whole in self.tables if (names := names_of(whole)) is not None and pattern.part(*names)]

    def behind(self, read: Mapping[str, Ids]) -> PollPosition:
        """The position behind the next batch, in which these ids are delivered."""
        tables = {**self.tables}
        for name, ids in read.items():
            tables[name] = (ids.passed, tuple(ids.runs[:MOST_RUNS]))
        return PollPosition(self.epoch, self.batch + 1, tables)

    def without(self, tables: Collection[str]) -> PollPosition:
        """The position without these tables: their reading starts again."""
        return replace(self, tables={name: ids for name, ids in self.tables.items() if name not in tables})

    def details(self) -> dict[str, str]:
        return {name: f"id {passed}" for name, (passed, _) in self.tables.items()}

    def to_text(self) -> str:
        """One line of JSON."""
        return orjson.dumps({"epoch": self.epoch, "batch": self.batch, "polled": dict(self.tables)}).decode()

    @classmethod
    def from_text(cls, text: str | bytes) -> PollPosition:
        """The inverse of `to_text`; raises ValueError on anything else."""
        parsed = orjson.loads(text)
        try:
            tables = {
                str(name): (int(passed), tuple((int(low), int(high)) for low, high in runs))
                for name, (passed, runs) in parsed["polled"].items()
            }
            return cls(int(parsed["epoch"]), int(parsed["batch"]), tables)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the text of a position: {error!r}") from None

    def __str__(self) -> str:
        return ", ".join(f"{name} up to id {passed}" for name, (passed, _) in self.tables.items()) or "the beginning"


BEFORE_ALL = PollPosition(0, 0)


def own(position: Position) -> PollPosition:
    """The position as a PollPosition. Raises HistoryGoneError for a position in the binlog."""
    if not isinstance(position, PollPosition):
        raise HistoryGoneError(
            f"{position} is a place in the binlog, and this source is polled. To go on from there by polling: viewtail "
            "switch --to poll. It was interrupted if you called it already: call it again"
        )
    return position
