"""By which columns the rows of derived rows are found, and the index that is missing for that.

Without one each change reads a whole table. Nothing here asks a server: tables were described with their indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from projectors.derived import LookedUp
from projectors.views import BoundView
from viewtail.changes.tables import Column, Kind, Table
from viewtail.servers.sessions import quote

MOST_BYTES = 3072  # of a column in an index
PREFIX = 255  # of a column that is longer
MOST_OF_NAME = 64


@dataclass(frozen=True, slots=True)
class LookUp:
    """Rows of a table that are found by values of some columns, for some views."""

    table: Table
    columns: tuple[Column, ...]
    is_upward: bool  # however many rows have a value, each change of what they refer to asks for them
    limit: int | None  # the most rows of one value that some view shows
    views: tuple[str, ...]

    @property
    def index(self) -> str | None:
        return self.table.index_of(self._names)

    @property
    def is_unique(self) -> bool:
        """Whether no value has two rows."""
        return any({*key} == {*self._names} for key in (self.table.primary_key, *self.table.unique_keys))

    @property
    def is_in_key_order(self) -> bool:
        """Whether the index has the rows of one value in the order of the primary key, in which they are paged."""
        name = self.index
        parts = () if name is None else self.table.indexes[name]
        behind = parts[len(self.columns) :]
        return name == "PRIMARY" or behind == self.table.primary_key[: len(behind)]

    @property
    def named(self) -> str:
        """'shop.order_line (order_id)'"""
        return f"{self.table.full_name} ({', '.join(self._names)})"

    @property
    def create_index(self) -> str:
        """The statement that makes an index for it alone."""
        taken = {name.lower() for name in self.table.indexes}
        base = "_".join(self._names)[: MOST_OF_NAME - 4]
        name = next(name for number in count(1) if (name := _numbered(base, number)).lower() not in taken)
        parts = ", ".join(map(_part, self.columns))
        return f"CREATE INDEX {quote(name)} ON {quote(self.table.schema, self.table.name)} ({parts});"

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def look_ups(views: Sequence[BoundView]) -> list[LookUp]:
    """Each of them once."""
    of_each: dict[tuple[str, str, frozenset[str]], list[tuple[BoundView, LookedUp]]] = {}
    for view, asked in _asked(views):
        names = frozenset(column.name for column in asked.columns)
        of_each.setdefault((asked.table.schema, asked.table.name, names), []).append((view, asked))
    return [_together(each) for each in of_each.values()]


def _asked(views: Sequence[BoundView]) -> Iterator[tuple[BoundView, LookedUp]]:
    for view in views:
        for asked in () if view.derived is None else view.derived.looked_up:
            yield view, asked


def _together(asked: Sequence[tuple[BoundView, LookedUp]]) -> LookUp:
    limits = [each.limit for _, each in asked if each.limit is not None]
    return LookUp(
        table=asked[0][1].table,
        columns=asked[0][1].columns,
        is_upward=any(each.is_upward for _, each in asked),
        limit=min(limits, default=None),
        views=tuple(dict.fromkeys(view.id for view, _ in asked)),
    )


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}_{number}"


def _part(column: Column) -> str:
    is_long = column.length * (4 if column.kind is Kind.TEXT else 1) > MOST_BYTES
    is_prefix = is_long or column.declared.lower().endswith(("text", "blob"))
    return quote(column.name) + (f"({min(PREFIX, column.length or PREFIX)})" if is_prefix else "")
