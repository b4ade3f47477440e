"""A place in the polling of tables, as a position of a source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import orjson

from ingest.poll.ids import Ids
from viewtail.changes.errors import HistoryGoneError
from viewtail.changes.positions import Position
from viewtail.changes.tables import Table, matches, names_of

_BITS = 53  # of the number of a batch; the epoch is above
MOST_RUNS = 2_000  # of a table that a position names; what is above them is read again


@dataclass(frozen=True, slots=True)
class PollPosition:
    """Behind a batch: of each table, which ids were delivered.

    Args:
        batch: how many batches there were in this epoch.
        tables: by 'schema.table', the id up to which all is delivered, and runs above it.
    """

    epoch: int
    batch: int
    tables: Mapping[str, tuple[int, tuple[tuple[int, int], ...]]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def version(self) -> int:
        return self.epoch << _BITS | self.batch

    @property
    def order(self) -> tuple[int, ...]:
        """As a Position's."""
        return (self.version,)

    def ids(self, table: str) -> Ids | None:
        """Those of a table that were delivered; None: its reading has not begun."""
        found = self.tables.get(table)
        return None if found is None else Ids(*found)

    def of_pattern(self, table: Table) -> list[str]:
        """The tables whose reading has begun that match a pattern, by 'schema.table'."""
        named = ((whole, names_of(whole) or ("", "")) for whole in self.tables)
        return [whole for whole, (schema, name) in named if schema == table.schema and matches(table.name, name)]

    def behind(self, read: Mapping[str, Ids]) -> PollPosition:
        """The place behind the next batch, when these ids are delivered."""
        tables = {**self.tables}
        for name, ids in read.items():
            tables[name] = (ids.passed, tuple(ids.runs[:MOST_RUNS]))
        return PollPosition(self.epoch, self.batch + 1, tables)

    def without(self, tables: Collection[str]) -> PollPosition:
        """The same, with the reading of these tables to begin anew."""
        return replace(self, tables={name: ids for name, ids in self.tables.items() if name not in tables})

    def details(self) -> dict[str, str]:
        return {name: f"id {passed}" for name, (passed, _) in self.tables.items()}

    def to_text(self) -> str:
        """One line of JSON."""
        return orjson.dumps({"epoch": self.epoch, "batch": self.batch, "polled": dict(self.tables)}).decode()

    @classmethod
    def from_text(cls, text: str | bytes) -> PollPosition:
        """The inverse of `to_text`; raises ValueError on anything else."""
        found = orjson.loads(text)
        try:
            tables = {
                str(name): (int(passed), tuple((int(low), int(high)) for low, high in runs))
                for name, (passed, runs) in found["polled"].items()
            }
            return cls(int(found["epoch"]), int(found["batch"]), tables)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the text of a position: {error!r}") from None

    def __str__(self) -> str:
        return ", ".join(f"{name} up to id {passed}" for name, (passed, _) in self.tables.items()) or "the beginning"


BEFORE_ALL = PollPosition(0, 0)


def own(position: Position) -> PollPosition:
    """A position that polling gave, as such. Raises HistoryGoneError for one of another way in."""
    if not isinstance(position, PollPosition):
        raise HistoryGoneError(
            f"{position} is a place in the binlog, and this source is polled. To go on from there by polling: viewtail "
            "switch --to poll. It was interrupted if you called it already: call it again"
        )
    return position
